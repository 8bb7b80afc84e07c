"""`decide`: its rows one by one, then properties of every combination of its inputs.

"Every case" is meant literally: harness/exhaust.py runs each combination of the values that are really read, some thousand cases that
represent 3 * 10^11.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from harness.attempts import ATTEMPT, NOW, OURS, Attempt, attempts, row_literals, settled_attempts
from sparkonce.attempt import decide as module
from sparkonce.attempt.decide import (
    HALF_MADE,
    LINGERING,
    Alarm,
    Decision,
    Done,
    Finalize,
    Launch,
    Note,
    Observation,
    Policy,
    Settle,
    Wait,
    conclude,
    decide,
    goes_back,
    waiting_note,
)
from sparkonce.launch.protocol import ENDED, ApplicationState, Phase
from sparkonce.model.record import Application, HeldReason, Outcome, Record, Settling, State, StopWanted, Verdict, Why

RECORD = Record(
    realm="local",
    key_hash="ab" * 32,
    key="load-may",
    fingerprint="f1",
    fingerprint_version=1,
    generation=3,
    attempt=ATTEMPT,
    nonce=OURS,
)
SEEN = ApplicationState(name="so-1", uid="u1", nonce=OURS, phase=Phase.RUNNING, driver="d1")
NOTED = Application(name="so-1", uid="u1", driver="d1")
POLICY = Policy(declared=True, heartbeat_timeout=60.0)
OPAQUE = Policy(declared=False, max_attempts=1)
SETTLING = Settling(attempt=ATTEMPT, why=Why.STALE, note="no heartbeat for 90 s")
WAITS = "no node takes its driver pod (Unschedulable): 0/3 nodes"
EXHAUSTIVE = pytest.mark.timeout(300)
"""Of tests that look at every attempt: 20 s on a free core, of which a busy machine may give a tenth."""
LATE = replace(POLICY, active_deadline=NOW - 1)
NO_PATH = ("PATH_NOT_FOUND", "AnalysisException")


def retrying(*names: str) -> Policy:
    """The policy of a job whose `retryOn` has these names."""
    return replace(POLICY, retry_on=frozenset(names))


def seen(**change: Any) -> Observation:
    return Observation(seen=replace(SEEN, **change))


def running(**change: Any) -> Record:
    """A record that notes the application SEEN, in phase Running."""
    return RECORD.changed(**{"application": NOTED, "phase": "Running", **change})


NOTHING = Observation(seen=None)
RUNNING = Observation(seen=SEEN)

TABLE: list[tuple[str, type, Record, Observation, Policy]] = [
    ("finalized", Done, RECORD.changed(state=State.FINALIZED, outcome=Outcome.SUCCEEDED), NOTHING, POLICY),
    ("held", Done, RECORD.changed(state=State.HELD, held=HeldReason.UNKNOWN), NOTHING, POLICY),
    ("store rewound", Alarm, RECORD, Observation(seen=SEEN, rewound=True), POLICY),
    ("settling has begun", Settle, RECORD.changed(settling=SETTLING), NOTHING, POLICY),
    ("a stop is wanted", Settle, RECORD.changed(stop_wanted=StopWanted(why=Why.CANCELLED, by="ann")), NOTHING, POLICY),
    ("superseded", Settle, RECORD, Observation(seen=None, superseded=True), POLICY),
    ("no object left", Settle, RECORD, Observation(seen=None, gone=True), POLICY),
    ("the application vanished", Settle, running(), NOTHING, POLICY),
    ("suspended", Wait, RECORD, NOTHING, replace(POLICY, suspend=True)),
    ("deadline", Settle, RECORD, NOTHING, LATE),
    ("backoff", Wait, RECORD.changed(not_before=NOW + 10), NOTHING, POLICY),
    ("granted and not launched", Launch, RECORD, NOTHING, POLICY),
    ("another application", Settle, running(), seen(uid="u2"), POLICY),
    ("another application", Settle, running(), seen(uid="u2", nonce="another"), POLICY),
    ("the name is taken", Settle, RECORD, seen(nonce="another"), POLICY),
    ("the name is taken", Settle, RECORD, seen(nonce=""), POLICY),
    ("it ran twice", Settle, running(), seen(driver="d2"), POLICY),
    ("it ran twice", Settle, running(), seen(repeated=True), POLICY),
    ("it is being stopped", Settle, running(), seen(stopping=True), POLICY),
    ("seen and not noted", Note, RECORD, RUNNING, POLICY),
    ("seen and not noted", Note, running(application=Application(name="so-1", uid="u1")), RUNNING, POLICY),
    ("permanent error", Settle, running(), replace(RUNNING, permanent_error="no such column"), POLICY),
    ("completed, opaque", Finalize, running(), seen(phase=Phase.SUCCEEDED), OPAQUE),
    ("completed", Settle, running(), seen(phase=Phase.SUCCEEDED), POLICY),
    ("exited", Settle, running(), seen(phase=Phase.FAILED_KNOWN), POLICY),
    ("exited", Settle, running(), seen(phase=Phase.FAILED_KNOWN, script_error=NO_PATH), OPAQUE),
    ("exited", Settle, running(), seen(phase=Phase.FAILED_KNOWN, script_error=NO_PATH), retrying("PATH_NOT_FOUND")),
    ("exited", Settle, running(), seen(phase=Phase.FAILED_KNOWN, script_error=NO_PATH), retrying("AnalysisException")),
    ("script error", Settle, running(), seen(phase=Phase.FAILED_KNOWN, script_error=NO_PATH), retrying("ImportError")),
    ("script error", Settle, running(), seen(phase=Phase.FAILED_KNOWN, script_error=NO_PATH), POLICY),
    ("lost", Settle, running(), seen(phase=Phase.UNKNOWN, script_error=NO_PATH), POLICY),
    ("lost with its platform", Settle, running(), seen(phase=Phase.FAILED_INFRA), POLICY),
    ("lost", Settle, running(), seen(phase=Phase.UNKNOWN), POLICY),
    ("phase changed", Note, running(phase="Starting"), RUNNING, POLICY),
    ("it waits", Note, running(phase="Starting"), seen(phase=Phase.STARTING, waits=WAITS), POLICY),
    ("it waits", Note, running(phase="Starting", note=WAITS), seen(phase=Phase.STARTING), POLICY),
    ("it waits", Note, running(note=WAITS), RUNNING, POLICY),
    (
        "running",
        Wait,
        running(phase="Starting", note=WAITS),
        seen(phase=Phase.STARTING, waits=WAITS + ": again"),
        POLICY,
    ),
    (
        "edited before it had a node",
        Settle,
        running(phase="Held", note=WAITS),
        replace(seen(phase=Phase.HELD, waits=WAITS, unplaced=True), edited=True),
        POLICY,
    ),
    ("running", Wait, running(phase="Held"), seen(phase=Phase.HELD, unplaced=True), POLICY),
    ("running", Wait, running(phase="Held"), replace(seen(phase=Phase.HELD), edited=True), POLICY),
    (
        "running",
        Wait,
        running(phase="Starting"),
        replace(seen(phase=Phase.STARTING, unplaced=True), edited=True),
        POLICY,
    ),
    ("running", Wait, running(), replace(RUNNING, edited=True), POLICY),
    (
        "it cannot start",
        Settle,
        running(phase="Starting", note=WAITS),
        seen(phase=Phase.STARTING, waits=WAITS, hopeless=True),
        POLICY,
    ),
    ("deadline", Settle, running(), RUNNING, LATE),
    ("heartbeat stale", Settle, running(), replace(RUNNING, driver_age=90.0), POLICY),
    ("it waits", Note, running(), seen(lingers=0.0), POLICY),
    ("it waits", Note, running(note=LINGERING), RUNNING, POLICY),
    ("running", Wait, running(note=LINGERING), seen(lingers=59.0), POLICY),
    ("it lingered", Settle, running(note=LINGERING), seen(lingers=61.0), POLICY),
    ("running", Wait, running(note=LINGERING), seen(lingers=61.0), OPAQUE),
    ("it did not start", Settle, running(), replace(RUNNING, owner_age=1900.0), POLICY),
    ("it did not start", Settle, running(), seen(phase=Phase.STARTING, half_made=NOW - 121.0), POLICY),
    ("it did not start", Settle, running(), seen(phase=Phase.STARTING, half_made=NOW - 121.0), OPAQUE),
    ("running", Wait, running(), seen(phase=Phase.STARTING, half_made=NOW - 119.0), POLICY),
    ("running", Wait, running(), replace(seen(half_made=NOW - 900.0), driver_age=1.0), POLICY),
    ("running", Wait, running(), replace(RUNNING, driver_age=59.0), POLICY),
    ("running", Wait, running(), seen(phase=Phase.STARTING), POLICY),
    ("phase changed", Note, running(), seen(phase=Phase.HELD), POLICY),
    ("phase changed", Note, running(phase="Held"), seen(phase=Phase.STARTING), POLICY),
    ("running", Wait, running(), replace(RUNNING, driver_age=9e9), OPAQUE),
    ("running", Wait, running(), replace(RUNNING, driver_age=9e9, receivable_for=None), POLICY),
    ("running", Wait, running(), replace(RUNNING, driver_age=9e9, receivable_for=59.0), POLICY),
]


@pytest.mark.parametrize(
    ("row", "action", "record", "observation", "policy"), TABLE, ids=[f"{n}-{case[0]}" for n, case in enumerate(TABLE)]
)
def test_row(row: str, action: type, record: Record, observation: Observation, policy: Policy) -> None:
    """This row decides, with this action."""
    decision = decide(record, observation, policy, NOW)
    assert (decision.row, type(decision.action)) == (row, action)


@EXHAUSTIVE
def test_every_row_has_its_line_above() -> None:
    """The table above has a line for every row of `decide`, so a new row cannot be forgotten."""
    reached = {attempt.decision.row for attempt in attempts()}
    assert {row for row, *_ in TABLE} == reached


# --- properties of every case


def test_every_row_is_reached() -> None:
    """Every row of the code is reached by some case, and no other row occurs."""
    decided = {attempt.decision.row for attempt in attempts()}
    concluded = {attempt.decision.row for attempt in settled_attempts()}
    by_verdict = {f"settled: {verdict}" for verdict in Verdict}
    assert (decided | concluded) - by_verdict == row_literals(module) - {"settled: "}
    assert concluded & by_verdict == by_verdict - {"settled: Some"}


def test_every_case_gets_one_decision_that_explains_itself() -> None:
    """For any input `decide` answers with one action, the row that decided, and a sentence of evidence."""
    for attempt in attempts():
        decision = attempt.decision
        assert isinstance(decision, Decision)
        assert isinstance(decision.action, Launch | Note | Wait | Settle | Finalize | Alarm | Done)
        assert decision.row and decision.evidence


@EXHAUSTIVE
def test_the_stand_ins_decide_as_real_values_do() -> None:
    """Each case gets the same row with the real types and random values in all unread fields: these do not matter, and the test's stand-ins
    hide nothing."""
    chance = random.Random(20261121)
    for attempt in attempts():
        decision = attempt.decision
        record, observation, policy = attempt.real(chance)
        assert isinstance(record, Record)
        said = decide(record, observation, policy, NOW)
        assert (said.row, type(said.action)) == (decision.row, type(decision.action))
        assert isinstance(said.action, Note) or said == decision


def test_an_ended_record_leaves_nothing_to_do() -> None:
    """Done if and only if the record is held or finalized."""
    for attempt in attempts():
        assert isinstance(attempt.decision.action, Done) == (attempt.record.state is not State.IN_PROGRESS)


def test_a_rewound_store_starts_and_ends_nothing() -> None:
    """An application of ours that the unfinished record does not know raises the alarm (StoreRewound), whatever else is observed or
    requested; nothing else raises it."""
    for attempt in attempts():
        alarm = attempt.record.state is State.IN_PROGRESS and attempt.observation.rewound
        assert isinstance(attempt.decision.action, Alarm) == alarm


def test_launch_is_only_for_an_attempt_of_which_nothing_was_ever_seen() -> None:
    """Launch is decided exactly when no application is noted or present, no end has begun or is requested, the job is not suspended, the
    backoff is over, and the deadline has not passed; it launches the record's own attempt."""
    for attempt in attempts():
        action, record = attempt.decision.action, attempt.record
        fresh = record.application is None and attempt.observation.seen is None
        may = (
            attempt.open
            and fresh
            and not (attempt.settling or attempt.wish or attempt.policy.suspend or attempt.overdue)
        )
        due = may and not (record.not_before is not None and record.not_before > NOW)
        assert isinstance(action, Launch) == due
        assert not isinstance(action, Launch) or action.attempt == record.attempt


@pytest.mark.parametrize(("since", "row"), [(-1.0, "backoff"), (9.0, "backoff"), (-7200.0, "granted and not launched")])
def test_a_clock_that_was_set_back_costs_no_hours(since: float, row: str) -> None:
    """A backoff of ten seconds lasts twenty at most: two hours are left where the clock was two hours ahead when the attempt was granted.
    `since`: seconds from the grant until now, as the clock tells."""
    granted = NOW - since
    record = RECORD.changed(granted_at=granted, not_before=granted + 10)
    assert decide(record, NOTHING, POLICY, NOW).row == row


def test_decide_alone_calls_nothing_failed_or_cancelled() -> None:
    """Without settling, `decide` names no end but Succeeded, for an opaque job whose noted application completed, ran once and is not being
    stopped, with no request to end it."""
    for attempt in attempts():
        action = attempt.decision.action
        if isinstance(action, Finalize):
            application, there = attempt.record.application, attempt.observation.seen
            assert action.outcome is Outcome.SUCCEEDED and not attempt.policy.declared
            assert not attempt.wish and not attempt.settling
            assert application is not None and there is not None and application.uid == there.uid
            assert there.phase is Phase.SUCCEEDED and there.nonce == OURS
            assert not there.repeated and not there.stopping
            assert there.driver in (None, application.driver)


def test_a_declared_job_ends_by_settling_only() -> None:
    """`decide` never finalizes, holds or grants an attempt of a job with declared outputs, since exit codes and silence are no evidence."""
    for attempt in attempts():
        if isinstance(attempt.decision.action, Finalize):
            assert not attempt.policy.declared


def test_settle_is_of_the_records_attempt() -> None:
    """Settle always names the record's own attempt: a fence closes the tokens up to that one, and none above it."""
    for attempt in attempts():
        if isinstance(attempt.decision.action, Settle):
            assert attempt.decision.action.attempt == attempt.record.attempt


def test_only_an_error_of_the_script_that_ended_the_driver_is_not_repeated() -> None:
    """A log ends the retries of a job with outputs alone, only once its driver is known to have failed, and never against `retryOn`.
    Whatever it says, the attempt is settled: the outputs decide what took effect."""
    for attempt in attempts():
        if attempt.decision.row == "script error":
            there, action = attempt.observation.seen, attempt.decision.action
            assert there is not None and there.phase is Phase.FAILED_KNOWN and there.script_error
            assert attempt.policy.declared and attempt.policy.retry_on.isdisjoint(there.script_error)
            assert isinstance(action, Settle) and action.why is Why.PERMANENT


@pytest.mark.parametrize(
    ("objects", "command"),
    [((), "`sparkonce rerun -f FILE`"), (("u1/ns/load/1",), "`kubectl sparkonce rerun -f FILE --reason TEXT`")],
)
def test_the_note_on_an_error_of_the_script_says_what_to_do(objects: tuple[str, ...], command: str) -> None:
    """It names the error's most specific name for `retryOn`, the command of where the job runs, and ends with the exception."""
    failed = seen(phase=Phase.FAILED_KNOWN, script_error=NO_PATH, message="exit code 1: no path")
    action = decide(running(objects=objects), failed, POLICY, NOW).action
    assert isinstance(action, Settle)
    assert action.note == (
        "not repeated, because every attempt of this script would fail the same way "
        f"(correct it, or add PATH_NOT_FOUND to spec.retry.retryOn, and run it again with {command}): exit code 1: no path"
    )


def test_what_was_begun_is_finished_for_its_own_reason() -> None:
    """Once `settling` names the attempt, every owner settles it for the recorded reason, whatever is observed or requested by then: a
    successor concludes what its predecessor would have."""
    for attempt in attempts():
        if attempt.open and attempt.settling:
            written = attempt.record.settling
            assert written is not None
            assert attempt.decision.action == Settle(ATTEMPT, written.why, written.note)


def test_a_wish_to_end_is_always_carried_out() -> None:
    """After a cancellation, a supersede or the deletion of all objects the attempt is settled for that reason, unless an end had already
    begun. Only then is an attempt settled as Cancelled or Superseded."""
    for attempt in attempts():
        action = attempt.decision.action
        if not attempt.open or attempt.settling:
            continue
        if attempt.wish:
            assert isinstance(action, Settle)
            asked = attempt.record.stop_wanted
            unasked = Why.SUPERSEDED if attempt.observation.superseded else Why.CANCELLED
            assert action.why is (asked.why if asked else unasked)
        elif isinstance(action, Settle):
            assert action.why not in (Why.CANCELLED, Why.SUPERSEDED, Why.RESOLVED)


@EXHAUSTIVE
def test_time_never_overrules_an_answer() -> None:
    """Ages, backoff and deadline never change a decision that record, application or driver determine. They only turn a launch into a wait,
    or a launch or wait into Settle as Timeout or Stale, or as Completed if the driver has nothing left to do."""
    for attempt in attempts():
        there: Any = attempt.observation.seen
        timeless = decide(
            attempt.but("record", not_before=None),
            attempt.but(
                "observation",
                driver_age=None,
                owner_age=None,
                seen=None if there is None else there.but(half_made=None, lingers=there.lingers and 0.0),
            ),
            attempt.but("policy", active_deadline=None),
            NOW,
        )
        action = attempt.decision.action
        if isinstance(timeless.action, Note):  # the note contains the time, so it differs
            assert (attempt.decision.row, type(action)) == (timeless.row, Note)
        elif not isinstance(timeless.action, Launch | Wait):
            assert attempt.decision == timeless
        elif isinstance(action, Settle):
            assert action.why in (Why.TIMEOUT, Why.STALE) or attempt.decision.row == "it lingered"
        else:
            assert isinstance(action, Wait) or attempt.decision == timeless


def test_a_driver_that_beats_is_never_late_to_start() -> None:
    """After the driver's first heartbeat only its silence counts, and only where heartbeats are promised."""
    for attempt in attempts():
        if attempt.decision.row == "it did not start":
            assert attempt.observation.driver_age is None
        if attempt.decision.row == "heartbeat stale":
            age, limit = attempt.observation.driver_age, attempt.policy.heartbeat_timeout
            assert age is not None and limit is not None and age > limit
            heard = attempt.observation.receivable_for
            assert heard is not None and heard > limit, "nobody could have heard it for so long"


def test_only_an_attempt_that_never_ran_lost_its_name() -> None:
    """NameTaken, which is not counted and ignores onUnknown, is concluded only if no application was ever noted: a noted application of
    ours may have had an effect before another client replaced it."""
    for attempt in attempts():
        action, there = attempt.decision.action, attempt.observation.seen
        if attempt.open and not attempt.settling and isinstance(action, Settle) and action.why is Why.NAME_TAKEN:
            assert attempt.record.application is None
            assert there is not None and there.nonce != OURS


def test_nothing_is_concluded_from_what_is_not_noted() -> None:
    """What an application or its driver shows (an exit code, an error, silence, lingering) counts only once the application, and its
    driver, are noted in the record."""
    said = {
        "permanent error",
        "completed, opaque",
        "completed",
        "exited",
        "script error",
        "lost with its platform",
        "lost",
        "edited before it had a node",
    }
    said |= {"phase changed", "heartbeat stale", "it did not start", "it lingered", "running"}
    for attempt in attempts():
        if attempt.decision.row in said:
            noted, there = attempt.record.application, attempt.observation.seen
            assert noted is not None and there is not None
            assert (noted.uid, OURS) == (there.uid, there.nonce)
            assert there.driver in (None, noted.driver)


def test_noting_ends() -> None:
    """After a Note was written as drive.py writes it, the same observation gives another action: notes never repeat for ever."""
    chance = random.Random(20261121)
    for attempt in attempts():
        if isinstance(attempt.decision.action, Note):
            record, observation, policy = attempt.real(chance)
            there = observation.seen
            assert there is not None
            phase = there.phase if there.phase not in ENDED else record.phase or Phase.STARTING
            phase = record.phase or phase if goes_back(record, there.phase) else phase
            application = Application(name=there.name, uid=there.uid, driver=there.driver)
            noted = record.changed(application=application, phase=phase, note=waiting_note(record, there))
            again = decide(noted, observation, policy, NOW)
            assert not isinstance(again.action, Note)


def test_a_driver_that_lingers_is_stopped_in_time() -> None:
    """The wait ends when the driver's time is over, without another heartbeat."""
    lingers = replace(seen(lingers=20.0), driver_age=1.0)
    policy = replace(POLICY, linger=50.0)
    assert decide(running(note=LINGERING), lingers, policy, NOW).action == Wait(NOW + 30.0)


def test_a_half_made_submission_is_looked_at_in_time() -> None:
    """A driver that can never start sends no further event, so the wait for it has a time limit: the nearer of two."""
    half = seen(phase=Phase.STARTING, half_made=NOW - 20.0)
    for age, until in ((10.0, NOW + 100.0), (1790.0, NOW + 10.0), (None, NOW + 100.0)):
        assert decide(running(), replace(half, owner_age=age), POLICY, NOW).action == Wait(until)


def test_whoever_waits_says_for_what() -> None:
    """A Wait without a time limit names what a person can do; one with a limit ends in the future."""
    for attempt in attempts():
        action = attempt.decision.action
        if isinstance(action, Wait):
            assert attempt.decision.unblock if action.until is None else action.until > NOW


# --- the executable model, word for word


def lingered(attempt: Attempt) -> bool:
    """A driver with nothing left to do. The model does not tell it from a stale one: its outputs decide."""
    there, policy = attempt.observation.seen, attempt.policy
    runs = there is not None and there.phase is Phase.RUNNING and policy.declared
    return runs and there is not None and (there.lingers or 0) > policy.linger


def stale(attempt: Attempt) -> bool:
    """The model has no clock, so staleness is an observation there, and may be wrong."""
    view, policy = attempt.observation, attempt.policy
    if lingered(attempt):
        return True
    if view.driver_age is not None:
        return view.driver_age > (policy.heartbeat_timeout or math.inf)
    if view.seen is not None and view.seen.half_made is not None and NOW - view.seen.half_made > HALF_MADE:
        return True
    return (view.owner_age or 0) > policy.start_timeout


def model(attempt: Attempt) -> str:
    """The model's `decide` in our terms."""
    record, view = attempt.record, attempt.observation
    there, noted = view.seen, record.application
    if view.rewound:
        return "Alarm"
    if attempt.settling or attempt.wish:
        return "Settle"
    if there is None:
        return "Settle" if noted or stale(attempt) else "Launch"
    if there.nonce != record.nonce or (noted and noted.uid != there.uid):
        return "Settle"
    another_driver = noted and noted.driver and there.driver and noted.driver != there.driver
    if there.repeated or another_driver or there.stopping:
        return "Settle"
    if noted is None or (there.driver and noted.driver is None):
        return "Note"
    if there.phase is Phase.SUCCEEDED and not attempt.policy.declared:
        return "Finalize"
    if there.phase in ENDED or view.permanent_error is not None or stale(attempt):
        return "Settle"
    return "Wait"


DEPARTURES = {
    ("Settle", "Launch"): "a create that nobody answered is sent again: silence without an application is no evidence",
    ("Settle", "Wait"): "the same, in backoff or suspended",
    ("Launch", "Wait"): "backoff and suspend, which the model does not have",
    ("Launch", "Settle"): "activeDeadlineSeconds, which the model does not have",
    ("Wait", "Settle"): "activeDeadlineSeconds, and a driver that cannot start",
    ("Wait", "Note"): "the phase goes into the record, for people",
    ("Settle", "Note"): "the same before a stale attempt ends: time comes last",
    (
        "Finalize",
        "Settle",
    ): "an opaque job that completed and reported an error: stopped first, then its exit code counts",
}


@EXHAUSTIVE
def test_it_decides_as_the_model_does() -> None:
    """For every case of an unfinished record the action is the model's, but for the exceptions listed above, each of which occurs. Where
    the model waits we settle only for activeDeadlineSeconds, a driver that cannot start, or an edit before it has a node, and where it
    finalizes only after a permanent error."""
    departed = set()
    for attempt in attempts():
        if attempt.record.state is State.IN_PROGRESS:
            theirs, action = model(attempt), attempt.decision.action
            ours = type(action).__name__
            if theirs != ours:
                departed.add((theirs, ours))
            if isinstance(action, Settle) and theirs in ("Wait", "Launch"):
                edited = attempt.decision.row == "edited before it had a node"
                assert edited or action.why is Why.TIMEOUT or attempt.observation.seen.hopeless  # type: ignore[union-attr] # _said decides
            if isinstance(action, Settle) and theirs == "Finalize":
                assert attempt.observation.permanent_error is not None
    assert departed == set(DEPARTURES)


def test_settled_is_never_asked_before_settling_is_written() -> None:
    """`conclude` refuses a record without `settling`, since the reason would be lost with this process."""
    with pytest.raises(AssertionError):
        conclude(RECORD, Verdict.NONE, NOTHING, POLICY, NOW)
