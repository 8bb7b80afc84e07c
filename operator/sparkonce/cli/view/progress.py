"""Progress of a running job: one live line on a terminal, a few plain lines in a log.

`LocalRunner.on_observation` is called after each observation: an owner's has the decision and the evidence, a follower's only the record;
the rest is read from the ledger, at most once a second. Drawing never slows the run: an observation that changes nothing draws
nothing, and what cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from sparkonce.attempt import decide as rows
from sparkonce.attempt.decide import Decision, Observation
from sparkonce.blocking import run
from sparkonce.cli.view import words
from sparkonce.cli.view.terminal import line
from sparkonce.errors import SparkonceError
from sparkonce.model.record import Record
from sparkonce.model.spec import IdempotentJob
from sparkonce.store.protocol import IdempotencyStore

if TYPE_CHECKING:
    from rich.live import Live

QUIET = 30.0
"""Seconds after which a plain log gets a line although nothing but numbers changed: long enough for a log of a day's job."""
FOLLOW = 1.0
"""Seconds between two reads of a follower."""
REFRESH = 4
"""Times a second the line on a terminal is drawn."""


@dataclass(frozen=True)
class Line:
    state: str
    """What the attempt is doing; a change is printed."""
    numbers: str = ""
    """Stages and rows as the driver last reported them; empty unless the attempt runs."""
    countdown: str = ""
    """`starts in 8 s`; a change alone is not printed."""

    def text(self, elapsed: float) -> str:
        return ", ".join(filter(None, (self.state + self.countdown, self.numbers, words.clock(elapsed))))


def line_of(
    record: Record,
    decision: Decision | None,
    progress: Mapping[str, Any],
    *,
    most: int | None,
    now: float,
    owner: str = "",
) -> Line:
    """The progress line of a job. most: maxAttempts; owner: of a key that another process runs. Pure."""
    of = f" of {max(most + record.uncounted, record.attempt)}" if most else ""
    prefix = f"running elsewhere ({owner}), " if owner else ""
    start = f"{prefix}attempt {record.attempt}{of}"
    action = decision.action if decision is not None else None
    if (record.not_before or 0) > now and record.application is None and not isinstance(action, rows.Settle):
        return Line(f"{start}: backoff", countdown=f", starts in {(record.not_before or 0) - now:.0f} s")
    runs = action is None or isinstance(action, rows.Wait | rows.Note)
    return Line(f"{start}: {_doing(record, decision)}", numbers=_numbers(progress) if runs else "")


def _doing(record: Record, decision: Decision | None) -> str:
    match decision.action if decision is not None else None:
        case rows.Launch():
            return "starting"
        case rows.Note(seen):
            return _plain(seen.phase)
        case rows.Settle(_, _, note):
            return f"settling ({note})"
        case rows.Grant(attempt, _, _):
            return f"did not finish, attempt {attempt} is granted ({decision.evidence if decision else ''})"
        case rows.Hold(reason, note):
            return f"held: {reason}: {note}"
        case rows.Finalize(outcome):
            return f"settled: {str(outcome).lower()}"
        case rows.Wait() if decision is not None and decision.row == "suspended":
            return f"{decision.evidence}; {decision.unblock}"
    if record.settling is not None and record.settling.attempt >= record.attempt:
        return "settling"
    if record.note == rows.LINGERING:
        return rows.LINGERING
    return _plain(record.phase or "Starting")


def _plain(phase: str) -> str:
    ended = {"Succeeded": "ended", "FailedKnown": "ended", "FailedInfra": "ended", "Unknown": "ended"}
    return ended.get(str(phase), str(phase).lower())


def _numbers(progress: Mapping[str, Any]) -> str:
    told = []
    if (stages := progress.get("stages")) is not None and stages:
        told.append(f"stages {progress.get('stagesDone', 0)} of {stages}")
    if (committed := progress.get("rows")) is not None and (committed or told):
        told.append(f"{words.rows(int(committed))} committed")
    return ", ".join(told)


class Progress:
    """Pass `look` to the runner; call `close` before printing anything else."""

    def __init__(
        self, store: IdempotencyStore, *, stream: TextIO | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._stream, self._clock = store, stream or sys.stderr, clock
        self._most: dict[int, int | None] = {}
        self._live: Live | None = None
        self._terminal = self._stream.isatty()
        self._line, self._begun = Line(""), 0.0
        self._told, self._told_at, self._followed_at = Line(""), 0.0, 0.0

    def look(self, record: Record, decision: Decision | None, observation: Observation | None) -> None:
        now = self._clock()
        owner, progress = "", observation.progress if observation else {}
        if decision is None:
            if now - self._followed_at < FOLLOW:
                return
            self._followed_at = now
            owner, progress = self._elsewhere(record)
        most = self._max_attempts(record)
        self._line = line_of(record, decision, progress, most=most, now=now, owner=owner)
        self._begun = record.created_at or now
        if self._terminal:
            self._draw()
        else:
            self._write(now)

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        text = line(text)
        with contextlib.suppress(OSError):  # a closed pipe must not end a job
            if self._live is not None:
                self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
            else:
                self._stream.write(f"{text}\n")
                self._stream.flush()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _elsewhere(self, record: Record) -> tuple[str, Mapping[str, Any]]:
        try:
            claim = run(self._store.load(record.address)).claim
            beats = run(self._store.beats(record.address, record.generation))
        except SparkonceError:
            return "its owner cannot be read now", {}
        beat = beats.get((record.attempt, "driver"))
        mine = beat is not None and beat.nonce == record.nonce
        return claim.owner if claim else "no owner, it is being taken over", beat.progress if beat and mine else {}

    def _max_attempts(self, record: Record) -> int | None:
        """maxAttempts of the generation's own spec, whose policies apply."""
        if record.generation not in self._most:
            try:
                spec = run(self._store.spec(record.address, record.generation))
                self._most[record.generation] = IdempotentJob.of(spec.job).spec.max_attempts if spec else None
            except SparkonceError:
                return None
        return self._most[record.generation]

    def _draw(self) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live
            from rich.spinner import Spinner
            from rich.text import Text

            spinner = Spinner("dots")

            def living() -> Spinner:
                spinner.update(text=Text(line(self._line.text(self._clock() - self._begun))))  # no markup
                return spinner

            self._live = Live(
                get_renderable=living,
                console=Console(file=self._stream),
                refresh_per_second=REFRESH,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        if self._line.state != self._told.state and "did not finish" in self._line.state:
            self.say(self._line.state)  # why an attempt ended is worth keeping on the screen
        self._told = self._line

    def _write(self, now: float) -> None:
        news = self._line.state != self._told.state
        if news or now - self._told_at > QUIET:
            self.say(self._line.text(now - self._begun))
            self._told, self._told_at = self._line, now
