"""A job's progress in words: its pure parts, and the output to a log and to a terminal."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from harness.memory_store import MemoryStore
from sparkonce.attempt.decide import Action, Decision, Grant, Hold, Launch, Note, Observation, Settle, Wait
from sparkonce.cli.view import words
from sparkonce.cli.view.progress import Line, Progress, line_of
from sparkonce.commands.describe import iso
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import Application, HeldReason, Record, Settling, Why


def record(**change: Any) -> Record:
    fields: dict[str, Any] = {
        "realm": "local",
        "key_hash": "0" * 64,
        "key": "k",
        "generation": 1,
        "attempt": 1,
        "nonce": "n",
        "fingerprint": "f",
        "fingerprint_version": 1,
        "created_at": 1000.0,
    }
    return Record.model_validate(fields | change)


SEEN = ApplicationState(name="so-x", uid="u", nonce="n", phase=Phase.RUNNING)
APPLICATION = Application(name="so-x", uid="u")


@pytest.mark.parametrize(
    ("of", "action", "row", "text"),
    [
        (record(), Launch(1), "granted and not launched", "attempt 1 of 3: starting"),
        (record(), Note(SEEN), "seen and not noted", "attempt 1 of 3: running"),
        (record(phase="Running", application=APPLICATION), Wait(), "running", "attempt 1 of 3: running"),
        (record(), Settle(1, Why.EXITED, "exit code 1"), "exited", "attempt 1 of 3: settling (exit code 1)"),
        (record(attempt=2, not_before=1008.0), Wait(1008.0), "backoff", "attempt 2 of 3: backoff, starts in 8 s"),
        (record(), Hold(HeldReason.PARTIAL, "half"), "settled: Some", "attempt 1 of 3: held: Partial: half"),
        (record(attempt=3, uncounted=1), Launch(3), "granted and not launched", "attempt 3 of 4: starting"),
        (
            record(),
            Grant(2, True, None),
            "another attempt",
            "attempt 1 of 3: did not finish, attempt 2 is granted (because)",
        ),
        (record(settling=Settling(attempt=1, why=Why.LOST)), Wait(), "running", "attempt 1 of 3: settling"),
    ],
)
def test_what_an_attempt_is_doing(of: Record, action: Action, row: str, text: str) -> None:
    """Each decision has a text of its own; a backoff counts down."""
    line = line_of(of, Decision(action, row, "because"), {}, most=3, now=1000.0)
    assert line.state + line.countdown == text


def test_numbers_of_a_running_attempt() -> None:
    """Stages done out of all, rows committed, and elapsed time."""
    running = record(phase="Running", application=APPLICATION)
    told = {"stages": 7, "stagesDone": 3, "rows": 26483}
    line = line_of(running, Decision(Wait(), "running"), told, most=3, now=1042.0)
    assert line.text(42) == "attempt 1 of 3: running, stages 3 of 7, 26 483 rows committed, 0:42"
    elsewhere = line_of(running, None, told, most=None, now=1042.0, owner="pid 7 on box")
    assert elsewhere.state == "running elsewhere (pid 7 on box), attempt 1: running"


def looks(progress: Progress, *decisions: Decision, of: Record) -> None:
    for decision in decisions:
        progress.look(of, decision, Observation(seen=SEEN, progress={"rows": 5}))


def test_a_log_gets_news_and_now_and_then_numbers() -> None:
    """A hundred observations of a running attempt print one line, and another one after half a minute."""
    stream, now = io.StringIO(), [1000.0]
    progress = Progress(MemoryStore(), stream=stream, clock=lambda: now[0])
    running = record(phase="Running", application=APPLICATION)
    looks(progress, *[Decision(Wait(), "running")] * 100, of=running)
    assert stream.getvalue().splitlines() == ["attempt 1: running, 5 rows committed, 0:00"]
    now[0] += 31
    looks(progress, Decision(Wait(), "running"), of=running)
    looks(progress, Decision(Settle(1, Why.COMPLETED, "it completed"), "completed"), of=running)
    assert stream.getvalue().splitlines()[1:] == [
        "attempt 1: running, 5 rows committed, 0:31",
        "attempt 1: settling (it completed), 0:31",
    ]
    progress.close()


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_living_line() -> None:
    """The line is redrawn, and wiped at the end; other messages stay."""
    screen = Screen()
    progress = Progress(MemoryStore(), stream=screen)
    looks(progress, Decision(Wait(), "running"), of=record(phase="Running", application=APPLICATION))
    progress.say("something to keep")
    progress.close()
    wiped = "\x1b[2K"
    before, *redrawn, after = screen.getvalue().split(wiped)
    assert "something to keep\n" in before
    assert all("attempt 1: running" in text for text in (before, *redrawn))
    assert len(redrawn) >= 1
    assert after == ""


def test_a_log_whose_reader_has_gone_ends_no_job() -> None:
    """A closed pipe does not end the job."""

    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    progress = Progress(MemoryStore(), stream=Gone())
    looks(progress, Decision(Launch(1), "granted and not launched"), of=record())
    progress.close()


def test_words() -> None:
    """Numbers, sizes and times as a person would write them."""
    assert (words.rows(1), words.rows(26483)) == ("1 row", "26 483 rows")
    assert [words.size(n) for n in (0, 999, 1000, 153428, 2_500_000_000)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "153.4 kB",
        "2.5 GB",
    ]
    assert [words.clock(n) for n in (0, 59, 61, 3723)] == ["0:00", "0:59", "1:01", "1:02:03"]
    assert [words.span(n) for n in (5, 300, 7200, 2_592_000)] == ["5 s", "5 min", "2 h", "30 d"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", words.when(1_800_000_000))
    assert iso(0.0) is None
    assert iso(1_800_000_000) == "2027-01-15T08:00:00Z"
    assert words.sentence("two\n  lines") == "two lines"
    assert Line("a", "b", ", c").text(1) == "a, c, b, 0:01"
