"""Plays one random schedule of writers of a lane: each reads a source from the lane's position on, appends, and is dropped, frozen or
superseded at any moment, over a log that loses, repeats and delays requests. Afterwards an undisturbed writer reads the source to its end.

What must hold is checked whenever a writer acquires the lane, and at the end: the log has exactly the rows up to its position, once and in
order, and every append that was acknowledged is in it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field

from sparkonce.errors import LaneError, OutputUnavailable
from sparkonce.lanes.protocol import LaneEntry, LaneLog
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.writer import Writer

FATES = ("ok", "ok", "ok", "ok", "lost", "silent", "late", "frozen")
SOURCE = 24
"""Rows of the source."""
FROZEN = 1.0
"""Seconds at most; a schedule takes a tenth of that."""
PATIENCE = 0.2
"""Seconds that a schedule waits for a writer's flush or close."""


class Dice:
    """The fates of one writer's requests. A frozen request, and with it its thread, waits until the schedule goes on or ends."""

    def __init__(self, seed: int, thaw: threading.Event, *, share: float) -> None:
        self._random, self._thaw, self._share, self._lock = random.Random(seed), thaw, share, threading.Lock()

    def __call__(self, verb: str) -> str:
        with self._lock:
            return self._random.choice(FATES) if self._random.random() < self._share else "ok"

    def freeze(self) -> None:
        """Waits as a process that was stopped, though not for ever: its thread has to end."""
        self._thaw.wait(FROZEN)


@dataclass
class Findings:
    wrong: list[str] = field(default_factory=list)
    acked: list[LaneEntry] = field(default_factory=list)
    acquired: int = 0
    fenced: int = 0


MakeLog = Callable[[Callable[[str], str], Callable[[], None]], LaneLog]
"""A log of a new process: its faults, and how its frozen requests wait."""


def play(seed: int, make_log: MakeLog, rows: Callable[[], list[int]]) -> Findings:
    """rows: what a reader sees now, in order."""
    dice, found = random.Random(seed), Findings()
    handles: list[Future[LaneEntry]] = []
    thaws: list[threading.Event] = []
    living: list[tuple[Writer, threading.Event]] = []
    for _ in range(dice.randint(2, 4)):
        thaw = threading.Event()
        thaw.set()
        thaws.append(thaw)
        faults = Dice(dice.getrandbits(32), thaw, share=dice.choice((0.0, 0.3, 0.7)))
        options = WriterOptions(
            linger=dice.choice((0.0, 0.001)),
            batch_size=dice.choice((1, 40, 10_000)),
            max_inflight=dice.choice((1, 2, 5)),
            delivery_timeout=dice.choice((0.05, 2.0)),
        )
        try:
            writer = Writer(make_log(faults, faults.freeze), options)
        except OutputUnavailable:
            continue
        found.acquired += 1
        thaw.clear()
        _at_position(found, writer, rows)
        at = writer.position or 0
        for _ in range(dice.randint(1, 6)):
            if at >= SOURCE:
                break
            upto = min(SOURCE, at + dice.randint(1, 5))
            try:
                handles.append(writer.append([{"n": n} for n in range(at + 1, upto + 1)], position=upto))
            except (LaneError, OutputUnavailable):
                found.fenced += 1
                break
            at = upto
        fate = dice.choice(("close", "drop", "leave", "flush"))
        if fate == "close":
            _tried(writer.close)
        elif fate == "flush":
            _tried(writer.flush)
        if fate == "drop":
            writer._sender.abandon()
        living.append((writer, thaw))
        if dice.random() < 0.5:
            thaw.set()
    last = Writer(make_log(lambda _: "ok", lambda: None), WriterOptions(linger=0.0))
    _at_position(found, last, rows)
    for thaw in thaws:
        thaw.set()
    handles += [last.append({"n": n}, position=n) for n in range((last.position or 0) + 1, SOURCE + 1)]
    last.close()
    for writer, _ in living:
        writer._sender.abandon()
    wait_for(handles, timeout=2 * FROZEN)
    found.acked += [each.result() for each in handles if each.done() and each.exception() is None]
    if (seen := rows()) != list(range(1, SOURCE + 1)):
        found.wrong.append(f"the log has {seen}")
    return found


def _tried(call: Callable[..., None]) -> None:
    try:
        call(timeout=PATIENCE)
    except LaneError:
        return


def _at_position(found: Findings, writer: Writer, rows: Callable[[], list[int]]) -> None:
    position, seen = writer.position or 0, rows()
    if seen[:position] != list(range(1, position + 1)):
        found.wrong.append(f"position {position} with the rows {seen}")
