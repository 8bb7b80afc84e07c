"""Settle runs, for owners that cannot reach the outputs: every case of the decision table, and which reports are accepted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from sparkonce.attempt.decide import HALF_MADE, BeginSettleRun, Believe, Send, Wait
from sparkonce.attempt.settle_runs import (
    LIMIT,
    LOST_RUNS,
    Runs,
    driver_reported,
    lost_because,
    next_settle_run,
    settle_run_reported,
)
from sparkonce.launch.protocol import ENDED, ApplicationState, Phase
from sparkonce.model.record import Record, Report, Settling, Verdict, Why
from sparkonce.sink.protocol import SinkKey, Slot, SlotState, StreamMark, StreamPart
from sparkonce.sink.transaction import Settlement

NOW = 1000.0
KEY = "ab" * 32
ALL = Settlement(Verdict.ALL, {})
START, PAUSE = 100.0, 10.0


def record(**change: Any) -> Record:
    known = Record(
        realm="team",
        key_hash=KEY,
        key="load-may",
        generation=2,
        attempt=3,
        nonce="ours",
        fingerprint="f1",
        fingerprint_version=1,
        settling=Settling(attempt=3, why=Why.LOST),
    )
    return known.changed(**change)


def seen(phase: Phase, *, nonce: str = "ours", **more: Any) -> ApplicationState:
    return ApplicationState(name="so-1-s1", uid="u1", nonce=nonce, phase=phase, **more)


def runs(of: ApplicationState | None = None, **more: Any) -> Runs:
    return Runs(**{"reported": None, "seen": of, "start_timeout": START, "pause": PAUSE, **more})


HALF_SENT = seen(Phase.STARTING, half_made=NOW - 900.0)


# --- the table


@pytest.mark.parametrize(
    ("row", "action", "count", "known"),
    [
        ("a settle run has reported", Believe(ALL), 0, runs(reported=ALL)),
        ("a settle run has reported", Believe(ALL), 3, runs(seen(Phase.FAILED_KNOWN), reported=ALL)),
        ("a settle run has reported", Believe(ALL), 0, runs(reported=ALL, driver=ALL)),
        ("the driver has reported", Believe(ALL), 0, runs(driver=ALL)),
        ("the driver has reported", Believe(ALL), 3, runs(seen(Phase.FAILED_KNOWN), driver=ALL)),
        ("a settle run is due", BeginSettleRun(1), 0, runs()),
        ("counted and not sent", Send(1), 1, runs()),
        ("counted and not sent", Send(3), 3, runs()),
        ("a settle run is under way", Wait(NOW + START), 1, runs(seen(Phase.ACCEPTED))),
        ("a settle run is under way", Wait(NOW + START + LIMIT - 5), 1, runs(seen(Phase.RUNNING), age=5.0)),
        (
            "a settle run is under way",
            Wait(NOW + HALF_MADE - 30),
            1,
            runs(HALF_SENT, half_made_for=30.0, start_timeout=1800.0),
        ),
        ("a settle run is under way", Wait(NOW + START), 1, runs(HALF_SENT, half_made_for=1.0)),
        (
            "the next settle run waits",
            Wait(NOW + PAUSE),
            1,
            runs(HALF_SENT, half_made_for=HALF_MADE + 1, start_timeout=1800.0),
        ),
        ("the next settle run waits", Wait(NOW + PAUSE), 1, runs(seen(Phase.SUCCEEDED))),
        ("the next settle run waits", Wait(NOW + 4), 2, runs(seen(Phase.HELD), age=START + 1, lost_for=6.0)),
        ("a settle run is due", BeginSettleRun(2), 1, runs(seen(Phase.UNKNOWN), lost_for=PAUSE)),
        ("a settle run is due", BeginSettleRun(3), 2, runs(seen(Phase.RUNNING, nonce="another"), lost_for=PAUSE)),
        ("a settle run is due", BeginSettleRun(5), 4, runs(seen(Phase.FAILED_KNOWN), lost_for=PAUSE)),
    ],
)
def test_row(row: str, action: object, count: int, known: Runs) -> None:
    """This row decides, with this action."""
    decision = next_settle_run(record(settle_runs=count), known, NOW)
    assert (decision.row, decision.action) == (row, action)


@pytest.mark.parametrize("intent", [None, 3])
def test_the_third_lost_run_is_for_a_person(intent: int | None) -> None:
    """CannotSettle, with the reason why the last one was lost; for a sealed transaction the note warns that it may be half committed."""
    decision = next_settle_run(
        record(settle_runs=3, intent=intent), runs(seen(Phase.FAILED_KNOWN, exit_code=75, log_tail="no volume")), NOW
    )
    assert isinstance(decision.action, Believe)
    told = decision.action.settlement
    assert (decision.row, told.verdict) == ("the settle runs were lost", Verdict.CANNOT_SETTLE)
    assert "exit code 75" in told.note and "no volume" in told.note
    assert ("half committed" in told.note) == (intent is not None)


def test_in_every_case_one_run_at_a_time_and_each_counted_before_it_is_sent() -> None:
    """For all counts, phases and ages, a run is started only under the number in the record, the number grows by one only after the last
    run was lost, and after three lost runs in a row none is started. A report always takes precedence."""
    seens = [None, HALF_SENT, *[seen(phase, nonce=nonce) for phase in Phase for nonce in ("ours", "another")]]
    for count, there, age, lost, by in itertools.product(
        range(8), seens, (0.0, START + 1, START + LIMIT + 1), (0.0, PAUSE), ("", "reported", "driver")
    ):
        if count == 0 and there is not None:
            continue  # only a counted run can exist
        known, one = runs(there, age=age, lost_for=lost, **({by: ALL} if by else {})), record(settle_runs=count)
        action = next_settle_run(one, known, NOW).action
        is_lost = bool(lost_because(one, known))
        if by:
            assert action == Believe(ALL)
        elif isinstance(action, Send):
            assert (action.run, there) == (count, None)
        elif isinstance(action, BeginSettleRun):
            assert action.run == count + 1 and (count == 0 or (is_lost and lost >= PAUSE and count % LOST_RUNS))
        elif isinstance(action, Believe):
            assert is_lost and count % LOST_RUNS == 0 and action.settlement.verdict is Verdict.CANNOT_SETTLE
        else:
            assert isinstance(action, Wait) and action.until is not None and action.until >= NOW
        if there is not None and there.phase in ENDED:
            assert is_lost


# --- reports


def slot(output: str, *, token: int = 3, **change: Any) -> dict[str, Any]:
    key = SinkKey(key_hash=KEY, output=output, generation=2)
    known = Slot(state=SlotState.COMMITTED, sink_key=str(key), token=token, nonce="n", fingerprint="f1", rows=5)
    return known.model_copy(update=change).dump()


def stream(output: str, part: StreamPart) -> dict[str, Any]:
    marked = StreamMark(part=part, query_id="q", first_batch=0, last_batch=4, batches=5)
    return slot(output, sink_key=f"{SinkKey(key_hash=KEY, output=output, generation=2)}-b4", stream=marked)


def report(verdict: str, slots: Any, *, attempt: int = 3, reporter: str = "settle-1", **body: Any) -> Report:
    return Report(
        attempt=attempt,
        reporter=reporter,
        kind=body.pop("kind", "verdict"),
        body={"verdict": verdict, "note": "", "slots": slots, **body},
    )


BOTH = {"a": slot("a"), "b": slot("b")}
HALF = {"a": slot("a"), "b": None}
NEITHER = {"a": None, "b": None}


def said(*reports: Report, end: bool = False) -> Verdict | None:
    settlement = settle_run_reported(record(), ["a", "b"], reports, end=end)
    return None if settlement is None else settlement.verdict


def test_what_adds_up_is_believed() -> None:
    """Each verdict is accepted with the slots that it lists; the slots are returned as they were committed."""
    assert said(report("All", BOTH)) is Verdict.ALL
    assert said(report("Some", HALF)) is Verdict.SOME
    assert said(report("None", NEITHER)) is Verdict.NONE
    assert said(report("Stuck", {})) is Verdict.STUCK
    assert said(report("KeyConflict", {"a": slot("a", fingerprint="f2")})) is Verdict.KEY_CONFLICT
    told = settle_run_reported(record(), ["a", "b"], [report("All", BOTH)], end=False)
    assert told is not None
    assert {name: each.dump() for name, each in told.slots.items() if each is not None} == BOTH


@pytest.mark.parametrize(
    "wrong",
    [
        report("All", HALF),
        report("All", NEITHER),
        report("All", {"a": slot("a")}),
        report("All", {**BOTH, "c": slot("c")}),
        report("All", {"a": slot("a"), "b": slot("a")}),
        report("All", {"a": slot("a"), "b": slot("b", fingerprint="f2")}),
        report("All", {"a": slot("a"), "b": slot("b", state=SlotState.CLOSED)}),
        report("All", {"a": slot("a"), "b": {"state": "committed"}}),
        report("All", {"a": slot("a"), "b": slot("b") | {"token": "3"}}),
        report("All", {"a": slot("a"), "b": stream("b", StreamPart.BATCH)}),
        report("All", [BOTH]),
        report("None", HALF),
        report("None", {"a": None}),
        report("Some", BOTH),
        report("Some", NEITHER),
        report("Completed", NEITHER),
        report("CannotSettle", NEITHER),
        report("Sure", BOTH),
        report("All", BOTH, kind="values"),
        report("All", BOTH, reporter="driver-1"),
        report("None", NEITHER, reporter="driver-1"),
        report("All", BOTH, attempt=4),
        report("None", NEITHER, attempt=2),
        report("Some", HALF, attempt=2),
        report("Stuck", {}, attempt=2),
    ],
)
def test_what_does_not_add_up_is_no_report(wrong: Report) -> None:
    """Refused: a verdict that its slots contradict, slots of another generation or job, a driver's own word, and a negative verdict about
    another attempt."""
    assert said(wrong) is None


def test_all_committed_stays_true_whoever_says_it() -> None:
    """About an earlier attempt, repeated, or beside a report that had missed it, "all committed" gives the same verdict."""
    assert said(report("All", BOTH, attempt=1)) is Verdict.ALL
    assert said(report("All", BOTH), report("All", BOTH, reporter="settle-2")) is Verdict.ALL
    assert said(report("None", NEITHER), report("All", BOTH, reporter="settle-2")) is Verdict.ALL


def test_reports_that_contradict_each_other_are_cannot_settle() -> None:
    """Two equal reports count as one. "None" and "some" together, or reports with different slots, are CannotSettle."""
    again = "settle-2"
    assert said(report("None", NEITHER), report("None", NEITHER, reporter=again)) is Verdict.NONE
    assert said(report("None", NEITHER), report("Some", HALF, reporter=again)) is Verdict.CANNOT_SETTLE
    other = {"a": None, "b": slot("b")}
    assert said(report("Some", HALF), report("Some", other, reporter=again)) is Verdict.CANNOT_SETTLE


def test_a_stream_that_nobody_had_ended_is_settled_once_more_when_its_end_is_wanted() -> None:
    """A report of an open stream is enough to grant the next attempt; for a cancel another settle run writes the end."""
    opened = {"a": slot("a"), "b": stream("b", StreamPart.BATCH)}
    ended = {"a": slot("a"), "b": stream("b", StreamPart.END)}
    assert said(report("Some", opened)) is Verdict.SOME
    assert said(report("Some", opened), end=True) is None
    assert said(report("Some", opened), report("All", ended, reporter="settle-2", end=True), end=True) is Verdict.ALL
    half = replace_slot(ended, "a")
    late = report("Some", half, reporter="settle-2", end=True)
    assert said(report("Some", replace_slot(opened, "a")), late, end=True) is Verdict.SOME
    assert said(report("None", NEITHER), end=True) is Verdict.NONE


def driver(slots: Any, *, attempt: int = 3, reporter: str = "driver-1", kind: str = "committed") -> Report:
    return Report(attempt=attempt, reporter=reporter, kind=kind, body={"slots": slots})


def test_a_driver_is_believed_that_all_is_committed() -> None:
    """It may be a driver of this attempt or an earlier one, reported once or twice; its slots are returned as they were committed."""
    for reports in ([driver(BOTH)], [driver(BOTH, attempt=1)], [driver(BOTH), driver(BOTH, reporter="driver-2")]):
        told = driver_reported(record(), ["a", "b"], reports)
        assert told is not None and told.verdict is Verdict.ALL
        assert {name: each.dump() for name, each in told.slots.items() if each is not None} == BOTH


@pytest.mark.parametrize(
    "reports",
    [
        [],
        [driver(HALF)],
        [driver(NEITHER)],
        [driver({"a": slot("a")})],
        [driver({**BOTH, "c": slot("c")})],
        [driver({"a": slot("a"), "b": slot("b", state=SlotState.CLOSED)})],
        [driver({"a": slot("a"), "b": slot("b", fingerprint="f2")})],
        [driver({"a": slot("a"), "b": slot("a")})],
        [driver({"a": slot("a"), "b": stream("b", StreamPart.BATCH)})],
        [driver([BOTH])],
        [driver(BOTH, attempt=4)],
        [driver(BOTH, kind="values")],
        [driver(BOTH, reporter="settle-1")],
        [driver(BOTH), driver({"a": slot("a"), "b": slot("b", token=2)}, reporter="driver-2")],
    ],
)
def test_a_driver_is_believed_nothing_else(reports: list[Report]) -> None:
    """An incomplete report, slots of another job or generation, a later attempt, or two contradictory reports: the report is not accepted,
    so a settle run has to find out."""
    assert driver_reported(record(), ["a", "b"], reports) is None


def replace_slot(slots: dict[str, Any], output: str) -> dict[str, Any]:
    """The same slots, except that this output has none."""
    return {**slots, output: None}


def test_a_run_is_lost_for_a_reason() -> None:
    """While a settle run can still report, it has no reason to count as lost."""
    one = record(settle_runs=1)
    assert lost_because(one, runs(seen(Phase.RUNNING), age=START)) == ""
    assert "is taken" in lost_because(one, runs(seen(Phase.RUNNING, nonce="")))
    assert "reported nothing" in lost_because(one, runs(seen(Phase.SUCCEEDED, exit_code=0)))
    late = runs(seen(Phase.RUNNING), age=START + LIMIT + 1)
    assert "for 701 s" in lost_because(one, late)
    assert lost_because(one, replace(late, seen=None)) == ""
    assert "for 121 s after a submission that failed half-way" in lost_because(
        one, runs(HALF_SENT, half_made_for=121.0)
    )
