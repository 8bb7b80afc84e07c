"""How long a driver's silence has lasted, and how often its progress is shown."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.granted import Granted, granted
from harness.memory_store import MemoryStore
from sparkonce.attempt.observe import PLACING, UNPLACED, as_queued, observe_heartbeats, receivable_through, unstarted
from sparkonce.blocking import run
from sparkonce.controller.drive_tasks import EVERY, ShownProgress
from sparkonce.driver.channel import DirectChannel
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import UNCAUGHT, Report, Why
from sparkonce.store.roster import SILENT


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def attempt(folder: Path, clock: Clock) -> Granted:
    return granted(folder, "orders", store=MemoryStore(clock=clock, monotonic=clock))


def heard(one: Granted, served: float | None, owned: float) -> float | None:
    async def serving() -> float | None:
        return served

    said = run(observe_heartbeats(one.store, one.now(), None, receivable=receivable_through(serving, lambda: owned)))
    return said.receivable_for


@pytest.mark.parametrize(
    ("silent", "served", "owned", "believed"),
    [
        (500.0, 900.0, 800.0, 500.0 - SILENT),
        (500.0, 100.0, 800.0, 100.0 - SILENT),
        (500.0, 900.0, 50.0, 50.0 - SILENT),
        (500.0, 900.0, 1.0, 0.0),
        (500.0, 0.0, 800.0, 0.0),
        (500.0, None, 800.0, None),
        (SILENT / 2, 900.0, 800.0, 0.0),
    ],
)
def test_silence_counts_from_when_the_driver_could_be_heard(
    tmp_path: Path, silent: float, served: float | None, owned: float, believed: float | None
) -> None:
    """Silence is the shortest of the times since the last heartbeat, since a gateway serves and since this owner has the key, less the
    time that a gateway may be down unnoticed. It restarts after a takeover and after an outage; while no gateway serves, silence proves
    nothing."""
    clock = Clock()
    one = attempt(tmp_path, clock)
    DirectChannel(one.store, one.assignment).renew({"rows": 3})
    clock.at += silent
    assert heard(one, served, owned) == believed


def test_an_attempt_that_never_beat_is_no_silent_one(tmp_path: Path) -> None:
    """Its driver may not have called sparkonce.current() yet: it has no age, and the gateways' uptime is not read."""
    one = attempt(tmp_path, Clock())

    async def asked() -> float | None:
        raise AssertionError("nobody was heard that could be silent now")

    assert run(observe_heartbeats(one.store, one.now(), None, receivable=asked)).driver_age is None


def test_beats_of_another_attempt_or_grant_are_not_heard(tmp_path: Path) -> None:
    """A heartbeat of attempt 1 proves nothing about attempt 2, and neither does its permanent error."""
    one = attempt(tmp_path, Clock())
    channel = DirectChannel(one.store, one.assignment)
    channel.renew({"rows": 3})
    channel.report("driver-1", "permanent-error", {"message": "no such column"})
    assert run(observe_heartbeats(one.store, one.now(), None)).progress == {"rows": 3}
    assert run(observe_heartbeats(one.store, one.now(), None)).permanent_error == "no such column"
    one.settling(Why.LOST)
    one.next_attempt()
    said = run(observe_heartbeats(one.store, one.now(), None))
    assert (said.driver_age, dict(said.progress), said.permanent_error) == (None, {}, None)


def test_reports_of_settle_runs_are_no_errors_of_drivers(tmp_path: Path) -> None:
    """A settle run's report has another kind, so its message is not a driver's permanent error."""
    one = attempt(tmp_path, Clock())
    entry = Report(attempt=1, reporter="settle-1", kind="verdict", body={"verdict": "None", "message": "x"})
    run(one.store.report(one.record.address, 1, entry))
    assert run(observe_heartbeats(one.store, one.now(), None)).permanent_error is None


def test_progress_moves_when_it_changed_and_a_while_passed() -> None:
    """Progress is shown at once the first time, then at most every ten seconds, and only if it changed and is not empty."""
    shown = ShownProgress()
    assert not shown.moved({}, 0.0)
    assert shown.moved({"rows": 1}, 0.0)
    assert not shown.moved({"rows": 2}, EVERY - 0.1)
    assert shown.shown == {"rows": 1}
    assert not shown.moved({"rows": 1}, EVERY + 1)
    assert shown.moved({"rows": 2}, EVERY + 1)
    assert not shown.moved({}, 100 * EVERY)
    assert shown.shown == {"rows": 2}


@pytest.mark.parametrize(
    ("said", "silent", "served", "lingers"),
    [
        (0.0, 0.0, 900.0, 0.0),
        (12.5, 0.0, 900.0, 12.5),
        (3, 40.0, 900.0, 43.0 - SILENT),
        (3, 40.0, None, 3.0),
        (3, 40.0, 0.0, 3.0),
        *((wrong, 0.0, 900.0, None) for wrong in (None, True, "3", -1.0, math.inf, math.nan, [3])),
    ],
)
def test_a_driver_with_nothing_left_to_do_says_since_when(
    tmp_path: Path, said: object, silent: float, served: float | None, lingers: float | None
) -> None:
    """The driver reports the time by its own clock; its silence since is added by the store's clock, as far as heartbeats could have been
    received. A value that is not a number of seconds is ignored, and not shown with the progress."""
    clock = Clock()
    one = attempt(tmp_path, clock)
    DirectChannel(one.store, one.assignment).renew({"rows": 3, "lingers": said})
    clock.at += silent

    async def serving() -> float | None:
        return served

    there = ApplicationState(name="so-1", uid="u1", nonce="nonce-1", phase=Phase.RUNNING)
    found = run(observe_heartbeats(one.store, one.now(), there, receivable=serving))
    assert found.seen is not None
    assert (found.seen.lingers, found.progress) == (lingers, {"rows": 3})


REFUSED = """\
Traceback (most recent call last):
  File "/opt/job.py", line 9, in load
    spark.read.parquet("s3a://lake/may")
pyspark.errors.exceptions.captured.AnalysisException: [PATH_NOT_FOUND] Path does not exist: s3a://lake/may. SQLSTATE: 42K03
"""
FAILED = ApplicationState(
    name="so-1", uid="u1", nonce="nonce-1", phase=Phase.FAILED_KNOWN, exit_code=1, message="exit code 1"
)
NAMES = ("PATH_NOT_FOUND", "AnalysisException")


@pytest.mark.parametrize(
    ("trace", "seen", "names"),
    [
        (REFUSED, FAILED, NAMES),
        (REFUSED, replace(FAILED, log_tail="the last lines of a log"), NAMES),
        (REFUSED, replace(FAILED, exit_code=137), ()),
        (REFUSED, replace(FAILED, phase=Phase.UNKNOWN, exit_code=None), ()),
        (REFUSED, replace(FAILED, phase=Phase.RUNNING, exit_code=None), ()),
        ("no traceback", FAILED, ()),
        *((wrong, FAILED, ()) for wrong in (None, 7, ["x"], "")),
    ],
)
def test_the_exception_that_a_driver_reported_explains_its_failure(
    tmp_path: Path, trace: object, seen: ApplicationState, names: tuple[str, ...]
) -> None:
    """It is read like a log, once the driver is known to have failed; without a log it is also the message's end and the excerpt. What is
    no traceback changes nothing."""
    one = attempt(tmp_path, Clock())
    DirectChannel(one.store, one.assignment).report("driver-1", UNCAUGHT, {"trace": trace})
    found = run(observe_heartbeats(one.store, one.now(), seen)).seen
    assert found is not None and found.script_error == names
    if trace != REFUSED or seen.log_tail or seen.phase is not Phase.FAILED_KNOWN:
        assert (found.message, found.log_tail) == (seen.message, seen.log_tail)
    elif names:
        assert found.message.startswith(
            "exit code 1: pyspark.errors.exceptions.captured.AnalysisException: [PATH_NOT_FOUND]"
        )
        assert found.log_tail == REFUSED.strip()


def test_a_report_never_takes_back_what_a_log_shows(tmp_path: Path) -> None:
    """A log that shows an error of the script is believed also where the driver reported another exception."""
    one = attempt(tmp_path, Clock())
    DirectChannel(one.store, one.assignment).report("driver-1", UNCAUGHT, {"trace": REFUSED.replace("42", "08")})
    seen = replace(FAILED, log_tail="a log", script_error=("SyntaxError",))
    found = run(observe_heartbeats(one.store, one.now(), seen)).seen
    assert found is not None and found.script_error == ("SyntaxError",)


def test_only_a_first_attempt_reports_an_error_of_the_script(tmp_path: Path) -> None:
    """The report of attempt 1 is not of attempt 2, and of attempt 2 it is an explanation alone: an earlier one may have got further."""
    one = attempt(tmp_path, Clock())
    channel = DirectChannel(one.store, one.assignment)
    channel.report("driver-1", UNCAUGHT, {"trace": REFUSED})
    one.settling(Why.LOST)
    one.next_attempt()
    found = run(observe_heartbeats(one.store, one.now(), FAILED)).seen
    assert found == FAILED
    DirectChannel(one.store, one.assignment).report("driver-2", UNCAUGHT, {"trace": REFUSED})
    found = run(observe_heartbeats(one.store, one.now(), FAILED)).seen
    assert found is not None and (found.script_error, found.log_tail) == ((), REFUSED.strip())


STARTING = ApplicationState(name="so-1", uid="u1", nonce="nonce-1", phase=Phase.STARTING, unplaced=True)


@pytest.mark.parametrize(
    ("seen", "noted", "waits", "phase"),
    [
        (STARTING, "Starting", PLACING - 1, Phase.STARTING),
        (STARTING, "Starting", PLACING + 1, Phase.HELD),
        (STARTING, "Held", 1.0, Phase.HELD),
        (replace(STARTING, unplaced=False), "Starting", 9e9, Phase.STARTING),
        (replace(STARTING, unplaced=False), "Held", 9e9, Phase.STARTING),
        (replace(STARTING, phase=Phase.RUNNING), "Held", None, Phase.RUNNING),
    ],
)
def test_a_driver_that_no_node_takes_waits_in_a_queue(
    tmp_path: Path, seen: ApplicationState, noted: str, waits: float | None, phase: Phase
) -> None:
    """Even if no scheduler reports it, the driver counts as queued once it has had no node for longer than placing takes, until a node has
    it."""
    record = attempt(tmp_path, Clock()).now().changed(phase=noted)
    found = as_queued(record, seen, waits, start_timeout=1800.0)
    assert found is not None and found.phase is phase
    assert found.waits == (UNPLACED if phase is Phase.HELD else "")


def test_a_driver_that_no_node_takes_is_never_late(tmp_path: Path) -> None:
    """This holds even where startTimeoutSeconds is less than the time that placing takes."""
    record = attempt(tmp_path, Clock()).now()
    found = as_queued(record, STARTING, 1.5, start_timeout=1.0)
    assert found is not None and found.phase is Phase.HELD


def test_a_driver_starts_when_it_has_left_its_queue(tmp_path: Path) -> None:
    """The time in the queue is not part of startTimeoutSeconds; an earlier attempt's time in the queue does not count for this one."""
    clock = Clock()
    one = attempt(tmp_path, clock)
    clock.at += 5000.0
    seen = replace(STARTING, unplaced=False)
    for left, granted_at, waits in ((clock.at - 30.0, 1000.0, 30.0), (clock.at - 30.0, clock.at - 10.0, 10.0)):
        record = one.now().changed(queued_until=left, granted_at=granted_at)
        assert run(unstarted(one.store, record, seen, {})) == waits
        assert run(unstarted(one.store, record, replace(seen, phase=Phase.HELD), {})) is None


def test_a_clock_that_was_set_back_counts_from_the_first_look(tmp_path: Path) -> None:
    """It is set back by a day, further while the driver waits, and put right again. Seconds count from the first look after each change; by
    the right clock, from the grant."""
    clock = Clock()
    clock.at = granted_at = 200_000.0
    one = attempt(tmp_path, clock)
    record, looked = one.now().changed(granted_at=granted_at), dict[str, float]()
    seen = replace(STARTING, unplaced=False)
    back = granted_at - 86400.0
    looks = [(back, 0.0), (back + 600.0, 600.0), (back - 3600.0, 0.0), (back - 3000.0, 600.0)]
    looks += [(granted_at + 30.0, 30.0), (granted_at - 60.0, 0.0)]
    for clock.at, waits in looks:
        assert run(unstarted(one.store, record, seen, looked)) == waits
