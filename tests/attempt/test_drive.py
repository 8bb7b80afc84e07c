"""The drive of one key: its process may die after any step and any reply may be lost, and the end is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from attempt.owned import Lossy, Owner, owner
from harness.arrow_stage import table_of
from sparkonce import failpoints
from sparkonce.attempt.drive import Drive, Ended, NotOurs
from sparkonce.blocking import run
from sparkonce.errors import LaunchRefused, LaunchUnavailable, OutputCorrupt, StoreUnavailable
from sparkonce.failpoints import FailpointError
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Assignment, HeldReason, Outcome, Record, Result, State, StopWanted, Why
from sparkonce.sink.protocol import PLAIN
from sparkonce.store.protocol import Claim, View
from store.samples import Key


def writing(folder: Path, *outputs: str, phase: Phase = Phase.SUCCEEDED, **spec: Any) -> Owner:
    """An owner whose applications write three rows to each output, leave staging of a failed write behind, and end."""
    made = owner(folder, *(outputs or ("orders",)), **spec)

    def play(assignment: Assignment) -> Phase:
        job = made.job(assignment)
        for name in made.granted.sinks():
            sink, key = job._sink(name)
            job._stage(sink, key, table_of(9), PLAIN)
            job.write(table_of(1, 2, 3), name)
        return phase

    made.applications.plays = [play]
    return made


def stop_wanted(made: Owner) -> None:
    wish = StopWanted(why=Why.CANCELLED, by="ann", reason="too slow")
    run(made.store.request_stop(made.granted.now(), wish))


def after(before: str, made: Owner) -> Drive:
    """The drive of the process that has just opened the key or, after "another owner", of its successor."""
    if before == "another owner":
        made.dies()
        return made.drive()
    drive = made.drive()
    drive.opened(made.granted.record, made.granted.prepared.spec)
    return drive


def test_an_attempt_that_writes_its_outputs_succeeds(tmp_path: Path) -> None:
    """One launch; the result is read from the slots; staging that can never be committed is swept."""
    made = writing(tmp_path)

    result = made.result()

    assert (result.outcome, result.attempts, result.evidence) == (Outcome.SUCCEEDED, 1, "slots committed by attempt 1")
    assert [(o.name, o.rows) for o in result.outputs] == [("orders", 3)]
    assert (made.applications.launched, made.applications.stopped) == ([1], [])
    assert len(made.granted.staged("orders")) == 1


def test_what_is_committed_counts_whatever_the_exit_code_says(tmp_path: Path) -> None:
    """Exit code 1 after the commit: Succeeded, and not run again."""
    made = writing(tmp_path, phase=Phase.FAILED_KNOWN)
    assert made.result().outcome is Outcome.SUCCEEDED
    assert made.applications.launched == [1]


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("verb", ["update", "finalize", "renew", "heartbeat", "load", "reports"])
def test_a_lost_reply_is_raised_and_the_next_call_goes_on(tmp_path: Path, verb: str, *, lands: bool) -> None:
    """Whether or not the call took effect, nothing is launched or committed twice, there is one result, and no staging remains."""
    made = writing(tmp_path)
    made.applications.plays.insert(0, Phase.RUNNING)  # so that it waits, too
    made.waits = lambda: made.applications.become(made.granted.assignment.name, Phase.FAILED_KNOWN)
    store = Lossy(made.store, verb, times=1, lands=lands)
    with pytest.raises(StoreUnavailable, match=f"no answer to {verb}"):
        made.run(store)

    result = made.result()

    assert (result.outcome, result.attempts) == (Outcome.SUCCEEDED, 2)
    assert made.applications.launched == [1, 2]
    assert made.granted.rows("orders") == [1, 2, 3]
    assert len(made.granted.staged("orders")) == 1


POINTS = [
    name
    for name in failpoints.NAMES
    if name.startswith("engine.") and "reserve" not in name and "settle-run" not in name
]


@pytest.mark.parametrize("point", [*POINTS, "sink.slots.sweep.before"])
def test_an_owner_that_dies_at_any_step_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The first attempt fails, the second writes, and the owner dies once at each point: a successor ends the key with one effect."""
    made = writing(tmp_path)
    made.applications.plays.insert(0, Phase.FAILED_KNOWN)
    monkeypatch.setenv("SPARKONCE_FAILPOINTS", f"{point}=1*raise")
    failpoints.reset()
    try:
        with pytest.raises(FailpointError):
            made.run()
    finally:
        monkeypatch.undo()
        failpoints.reset()
    if made.granted.now().outcome is None:
        made.dies()

    result = made.result()

    assert (result.outcome, result.attempts) == (Outcome.SUCCEEDED, 2)
    assert made.applications.launched == [1, 2]
    assert made.granted.slots("orders") == [(1, "closed"), (2, "committed")]
    assert made.granted.rows("orders") == [1, 2, 3]


def test_a_launch_that_is_refused_for_good_is_not_tried_again(tmp_path: Path) -> None:
    """The result is Failed(Permanent) with the launcher's sentence; a placeholder bars a late create."""
    made = owner(tmp_path, "orders")
    made.applications.errors = [LaunchRefused("the spec is too long")]

    result = made.result()

    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert (result.failure.class_, result.failure.message) == ("Permanent", "the spec is too long")
    assert (made.applications.launched, len(made.applications.stopped)) == ([], 1)


@pytest.mark.parametrize("before", ["nothing", "lost reply", "another owner"])
def test_an_opaque_job_whose_only_launch_was_refused_never_ran(tmp_path: Path, before: str) -> None:
    """If an earlier request of the same attempt may have arrived, from this process or from an earlier owner, the application may have
    run, and the end says that its outcome is unknown."""
    made = owner(tmp_path)
    granted, drive = made.granted, after(before, made)
    if before == "lost reply":
        made.applications.errors = [LaunchUnavailable("no answer")]
        with pytest.raises(LaunchUnavailable):
            run(drive.run(granted.record, granted.claim))
    made.applications.errors = [LaunchRefused("unknown field")]

    ended = run(drive.run(granted.record, granted.claim))

    assert isinstance(ended, Ended) and ended.result is not None and ended.result.failure is not None
    failure, unknown = ended.result.failure, "" if before == "nothing" else "outcome unknown; "
    assert (failure.class_, failure.message) == ("Permanent", f"{unknown}unknown field")
    assert made.applications.launched == []


@pytest.mark.parametrize("before", ["nothing", "a refused placeholder", "another owner"])
def test_an_opaque_job_that_is_cancelled_before_its_launch_never_ran(tmp_path: Path, before: str) -> None:
    """It waits, here because it is suspended. The process that granted the attempt knows that it sent no launch; an earlier owner may have
    sent one, and then the outcome is unknown."""
    made = owner(tmp_path, suspend=True)
    granted, drive = made.granted, after(before, made)
    made.applications.unplaceable = before == "a refused placeholder"
    made.waits = lambda: stop_wanted(made)

    ended = run(drive.run(granted.record, granted.claim))

    assert isinstance(ended, Ended) and ended.result is not None and ended.result.failure is not None
    unknown = "outcome unknown; " if before == "another owner" else ""
    assert (ended.result.outcome, ended.result.failure.message) == (
        Outcome.CANCELLED,
        f"{unknown}cancelled by ann: too slow",
    )
    assert ended.record.effectless is (before != "another owner")
    assert made.applications.launched == []


@pytest.mark.parametrize("lost", [False, True])
def test_an_opaque_job_whose_launch_and_placeholder_are_refused_never_ran(tmp_path: Path, *, lost: bool) -> None:
    """An admission policy refuses both. If an earlier request of the attempt may have arrived, the job is held: its name stays free."""
    made = owner(tmp_path)
    granted, drive = made.granted, made.drive()
    drive.opened(granted.record, granted.prepared.spec)
    if lost:
        made.applications.errors = [LaunchUnavailable("no answer")]
        with pytest.raises(LaunchUnavailable):
            run(drive.run(granted.record, granted.claim))
    made.applications.errors, made.applications.unplaceable = [LaunchRefused("every driver has a team")], True

    ended = run(drive.run(granted.record, granted.claim))

    assert isinstance(ended, Ended)
    if lost:
        assert (ended.record.state, ended.record.held) == (State.HELD, HeldReason.CANNOT_PLACE)
        return
    assert ended.result is not None and ended.result.failure is not None
    assert (ended.result.failure.class_, ended.result.failure.message) == ("Permanent", "every driver has a team")


def test_a_launch_that_is_not_possible_now_is_raised_and_costs_nothing(tmp_path: Path) -> None:
    """The error is raised; the caller retries later, in the same attempt."""
    made = writing(tmp_path)
    made.applications.errors = [LaunchUnavailable("no space"), LaunchUnavailable("no space")]
    for _ in range(2):
        with pytest.raises(LaunchUnavailable):
            made.run()

    assert (made.result().attempts, made.applications.launched) == (1, [1])


def test_a_name_that_is_taken_three_times_is_for_a_person(tmp_path: Path) -> None:
    """Nothing of ours ran: the attempts are uncounted, the foreign applications are not stopped, and the key ends as Held(NameTaken)."""
    made = owner(tmp_path, "orders")
    stem = made.granted.assignment.name.removesuffix("1")
    for attempt in (1, 2, 3, 4):
        made.applications.squat(f"{stem}{attempt}")

    record = made.held()

    assert (record.held, record.attempt, record.uncounted) == (HeldReason.NAME_TAKEN, 3, 2)
    assert (made.applications.launched, made.applications.stopped) == ([], [])


def test_an_opaque_job_that_completes_succeeded(tmp_path: Path) -> None:
    """The exit code is the only evidence, and the result says so."""
    made = owner(tmp_path, plays=(Phase.SUCCEEDED,))
    result = made.result()
    assert (result.outcome, result.evidence, result.outputs) == (Outcome.SUCCEEDED, "exit code 0", ())


def test_an_opaque_job_that_exits_badly_failed_unless_it_may_try_again(tmp_path: Path) -> None:
    """With one attempt it is Failed, with the exit code. With two, the second one decides."""
    made = owner(tmp_path, plays=(Phase.FAILED_KNOWN,), retry={"maxAttempts": 1})
    result = made.result()
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert (result.failure.class_, made.applications.launched) == ("Exited", [1])
    assert "exit code 1" in result.failure.message

    (tmp_path / "two").mkdir()
    retry = {"maxAttempts": 2, "backoff": {"initial": "0s", "max": "0s"}}
    made = owner(tmp_path / "two", plays=(Phase.FAILED_KNOWN, Phase.SUCCEEDED), retry=retry)
    assert (made.result().outcome, made.applications.launched) == (Outcome.SUCCEEDED, [1, 2])


def test_an_opaque_job_whose_end_nobody_saw_goes_by_on_unknown(tmp_path: Path) -> None:
    """By default the key is held; with Retry the job runs again; with Fail it is Failed, outcome unknown."""
    made = owner(tmp_path, plays=(Phase.UNKNOWN,))
    assert made.held().held is HeldReason.UNKNOWN

    (tmp_path / "retry").mkdir()
    made = owner(tmp_path / "retry", plays=(Phase.UNKNOWN, Phase.SUCCEEDED), onUnknown="Retry")
    assert (made.result().outcome, made.applications.launched) == (Outcome.SUCCEEDED, [1, 2])

    (tmp_path / "fail").mkdir()
    made = owner(tmp_path / "fail", plays=(Phase.UNKNOWN,), onUnknown="Fail")
    result = made.result()
    assert result.failure is not None
    assert (result.outcome, made.applications.launched) == (Outcome.FAILED, [1])
    assert "outcome unknown" in result.failure.message


@pytest.mark.parametrize("polled", [True, False])
@pytest.mark.parametrize("then", ["the same drive", "another drive of the process", "a successor that saw it"])
def test_an_application_that_is_deleted_before_it_is_noted_is_not_launched_again(
    tmp_path: Path, then: str, *, polled: bool
) -> None:
    """The ledger is silent from the create until the driver has ended and a person has deleted the application, perhaps for so long that
    this process loses its claim and takes the key over. The create was answered, or the application was seen: an opaque job is held, and
    runs once."""
    made = owner(tmp_path, plays=(Phase.SUCCEEDED,))
    store = Lossy(made.store, "update", times=2 if then == "a successor that saw it" else 1, lands=False)
    drive = replace(made.drive(store), polled=polled)
    with pytest.raises(StoreUnavailable):
        run(drive.run(made.granted.record, made.granted.claim))
    if then == "a successor that saw it":
        made.dies()
        drive = replace(made.drive(store), polled=polled)
        with pytest.raises(StoreUnavailable):
            run(drive.run(made.granted.record, made.granted.claim))
    made.applications.by_name.clear()
    if then == "another drive of the process":
        made.dies()
        drive = replace(made.drive(), polled=polled, unnoted=drive.unnoted)

    ended = run(drive.run(made.granted.record, made.granted.claim))

    assert made.applications.launched == [1]
    assert isinstance(ended, Ended) and ended.record.held is HeldReason.UNKNOWN
    assert ended.record.settling is not None and ended.record.settling.why is Why.LOST
    assert made.rows[-3:] == ["seen and not noted", "the application vanished", "outcome unknown"]
    assert drive.unnoted == {}


def test_an_opaque_job_that_cannot_be_stopped_is_held(tmp_path: Path) -> None:
    """The attempt may still run, so the key is neither Cancelled nor granted another attempt."""
    made = owner(tmp_path)
    made.applications.unstoppable = True
    made.waits = lambda: stop_wanted(made)
    assert made.held().held is HeldReason.STILL_THERE


def test_an_attempt_that_runs_is_never_recorded_as_starting_again(tmp_path: Path) -> None:
    """The application is Running, while our view of its pod comes from another watch and is a moment older: the driver is noted, and the
    phase stays."""
    made = owner(tmp_path)
    name = "so-" + made.granted.record.key_hash[:20] + "-g1-a1"
    phases: list[tuple[str | None, str | None]] = []
    views = [(Phase.RUNNING, None), (Phase.STARTING, "d1"), (Phase.STARTING, "d1"), (Phase.SUCCEEDED, "d1")]

    def passes() -> None:
        phase, driver = views.pop(0)
        made.applications.by_name[name] = replace(made.applications.by_name[name], phase=phase, driver=driver)
        record = made.granted.now()
        phases.append((record.phase, record.application.driver if record.application else None))

    made.applications.plays = [Phase.ACCEPTED]
    made.applications.driverless = True
    made.waits = passes

    assert made.result().outcome is Outcome.SUCCEEDED
    assert phases == [("Accepted", None), ("Running", None), ("Running", "d1"), ("Running", "d1")]


def test_an_attempt_is_not_launched_before_its_time(tmp_path: Path) -> None:
    """The backoff counts by the store's clock: about 100 s less jitter after the first failure, however often the key is looked at in
    between."""
    now = [1000.0]
    launched: list[float] = []
    retry = {"maxAttempts": 2, "backoff": {"initial": "100s", "max": "100s"}}
    made = owner(tmp_path, "orders", clock=lambda: now[0], retry=retry)

    def play(_: Assignment) -> Phase:
        launched.append(now[0])
        return Phase.FAILED_KNOWN

    def passes() -> None:
        now[0] += 1.0

    made.applications.plays = [play]
    made.waits = passes

    assert made.result().attempts == 2
    assert launched[0] == 1000.0
    assert 1090.0 <= launched[1] <= 1101.0
    assert "backoff" in made.rows


def test_a_clock_that_is_set_back_stretches_the_start_timeout_once(tmp_path: Path) -> None:
    """The store's clock is set back by a day while a driver starts: the attempt ends when startTimeoutSeconds have passed once more."""
    now, waited = [1_000_000.0], [0]
    made = owner(tmp_path, "orders", clock=lambda: now[0], startTimeoutSeconds=10, retry={"maxAttempts": 1})
    made.applications.plays = [Phase.STARTING]

    def passes() -> None:
        waited[0] += 1
        now[0] += -86400.0 if waited[0] == 5 else 1.0

    made.waits = passes
    ended = run(replace(made.drive(), polled=False).run(made.granted.record, made.granted.claim))

    assert isinstance(ended, Ended) and ended.result is not None and ended.result.failure is not None
    assert ended.result.failure.class_ == "Stale"
    assert 11 <= waited[0] <= 17


@pytest.mark.parametrize(("commits", "outcome"), [(False, Outcome.CANCELLED), (True, Outcome.SUCCEEDED)])
def test_a_stop_that_is_wanted_ends_a_running_attempt(tmp_path: Path, outcome: Outcome, *, commits: bool) -> None:
    """The key is Cancelled and its application stopped, or Succeeded if the attempt had committed, since that is the truth."""
    made = writing(tmp_path, phase=Phase.RUNNING) if commits else owner(tmp_path, "orders")
    made.waits = lambda: stop_wanted(made)

    result = made.result()

    assert (result.outcome, made.applications.launched) == (outcome, [1])
    assert made.applications.stopped == [made.granted.assignment.name]
    if not commits:
        assert result.failure is not None
        assert "cancelled by ann: too slow" in result.failure.message
        assert made.granted.slots("orders") == [(1, "closed")]


def test_a_drive_that_lost_its_claim_writes_nothing(tmp_path: Path) -> None:
    """Another process took over while it waited: the drive ends with NotOurs, and the record stays the successor's."""
    made = owner(tmp_path, "orders")
    before: list[int] = []

    def taken() -> None:
        made.store._leases[made.granted.claim.lease].expire()
        made.take_over()
        made.applications.become(made.granted.assignment.name, Phase.FAILED_KNOWN)
        before.append(made.granted.now().revision)

    made.waits = taken
    ended = made.run()

    assert isinstance(ended, NotOurs)
    assert [made.granted.now().revision] == before
    assert (made.granted.slots("orders"), made.granted.now().settling) == ([], None)


@pytest.mark.parametrize("then", ["forgotten", "reopened", "reopened and ended"])
def test_a_record_that_was_forgotten_or_reopened_is_not_ours(tmp_path: Path, then: str) -> None:
    """While the drive waits, another owner ends its generation, and the record is forgotten, or reopened and perhaps ended once more: the
    drive ends with NotOurs, without the newer generation's result, and writes nothing."""
    made = owner(tmp_path, "orders")
    store, after = made.store, list[View]()

    def over() -> None:
        store._leases[made.granted.claim.lease].expire()
        key = Key(store, run(store.open_lease(owner="the successor")), made.granted.now(), made.take_over())
        if then == "forgotten":
            key.remove()
        else:
            key.finalize()
            key = key.reopen(nonce="of a rerun", spec=made.granted.prepared.spec)
        if then == "reopened and ended":
            key.finalize()
        after.append(key.view())

    made.waits = over
    ended = made.run()

    assert isinstance(ended, NotOurs)
    assert "gone, or has a newer generation" in ended.why
    assert [run(store.load(made.granted.record.address))] == after
    assert made.granted.slots("orders") == []


def failing(made: Owner) -> Callable[[Assignment], Phase]:
    def play(assignment: Assignment) -> Phase:
        with pytest.raises(SystemExit):
            made.job(assignment).fail("no such column: fare")
        return Phase.FAILED_KNOWN

    return play


def test_a_permanent_error_fails_for_good_with_its_message(tmp_path: Path) -> None:
    """`job.fail` in the first of three attempts: Failed(Permanent), with one attempt."""
    made = owner(tmp_path, "orders")
    made.applications.plays = [failing(made)]

    result = made.result()

    assert result.failure is not None
    assert (result.outcome, made.applications.launched) == (Outcome.FAILED, [1])
    assert (result.failure.class_, result.failure.message) == ("Permanent", "no such column: fare")


def test_an_unmet_expectation_fails_for_good_under_its_own_name(tmp_path: Path) -> None:
    """One attempt of three: Failed(Expectation). A failure class from a newer driver, which we do not know, counts as a permanent error."""
    for said, failure in (("Expectation", "Expectation"), ("Weather", "Permanent")):
        made = owner(tmp_path / said, "orders")

        def play(assignment: Assignment, said: str = said, made: Owner = made) -> Phase:
            made.job(assignment).report("permanent-error", message="too few rows", failure=said)
            return Phase.FAILED_KNOWN

        made.applications.plays = [play]
        result = made.result()

        assert result.failure is not None
        assert (result.outcome, made.applications.launched) == (Outcome.FAILED, [1])
        assert (result.failure.class_, result.failure.message) == (failure, "too few rows")


def refused(made: Owner, *writes: str) -> Callable[[Assignment], Phase]:
    """Writes these outputs and ends by an exception of Spark, which the driver reports."""

    def play(assignment: Assignment) -> Phase:
        job = made.job(assignment)
        for output in writes:
            job.write(table_of(1), output)
        try:
            raise AnalysisException("[PATH_NOT_FOUND] Path does not exist: s3a://lake/may. SQLSTATE: 42K03")
        except AnalysisException as error:
            job.report_uncaught(error)
        return Phase.FAILED_KNOWN

    return play


def test_an_error_of_the_script_is_known_without_a_log(tmp_path: Path) -> None:
    """The launcher read no log, and the driver's report ends the job after one attempt: its message ends with the exception."""
    made = owner(tmp_path, "orders")
    made.applications.plays = [refused(made)]

    result = made.result()

    assert result.failure is not None
    assert (result.outcome, result.failure.class_, made.applications.launched) == (Outcome.FAILED, "Permanent", [1])
    assert result.failure.message.startswith(
        "not repeated, because every attempt of this script would fail the same way"
    )
    assert result.failure.message.endswith("[PATH_NOT_FOUND] Path does not exist: s3a://lake/may. SQLSTATE: 42K03")


def test_what_retry_on_names_is_repeated(tmp_path: Path) -> None:
    """Every attempt is made, by the name of the condition or of the class; another name changes nothing."""
    for names, launched in (
        (["PATH_NOT_FOUND"], [1, 2, 3]),
        (["AnalysisException"], [1, 2, 3]),
        (["ImportError"], [1]),
    ):
        backoff = {"initial": "0s", "max": "0s"}
        made = owner(tmp_path / names[0], "orders", retry={"maxAttempts": 3, "backoff": backoff, "retryOn": names})
        made.applications.plays = [refused(made)]
        failure = made.result().failure
        assert failure is not None
        assert (failure.class_, made.applications.launched) == ("Exited" if launched[1:] else "Permanent", launched)


def test_an_error_of_the_script_says_nothing_of_its_effect(tmp_path: Path) -> None:
    """A driver that committed every output and then raised has Succeeded; after half of them its key is for a person."""
    made = owner(tmp_path / "all", "a", "b")
    made.applications.plays = [refused(made, "a", "b")]
    assert (made.result().outcome, made.applications.launched) == (Outcome.SUCCEEDED, [1])
    made = owner(tmp_path / "half", "a", "b")
    made.applications.plays = [refused(made, "a")]
    assert (made.held().held, made.applications.launched) == (HeldReason.PARTIAL, [1])


def test_a_permanent_error_after_half_of_the_outputs_is_for_a_person(tmp_path: Path) -> None:
    """Some outputs are committed: neither Failed nor another attempt, but Held(Partial)."""
    made = owner(tmp_path, "a", "b")

    def play(assignment: Assignment) -> Phase:
        made.job(assignment).write(table_of(1), "a")
        return failing(made)(assignment)

    made.applications.plays = [play]
    record = made.held()
    assert (record.held, made.applications.launched) == (HeldReason.PARTIAL, [1])
    assert "no such column: fare" in record.note


def test_values_reach_the_result_and_later_ones_win(tmp_path: Path) -> None:
    """Values that drivers report are in the result, which every duplicate gets."""
    made = owner(tmp_path, "orders")

    def play(assignment: Assignment) -> Phase:
        job = made.job(assignment)
        job.result(rows=1, source="may")
        job.write(table_of(1), "orders")
        job.result(rows=2)
        return Phase.SUCCEEDED

    made.applications.plays = [play]
    assert made.result().values == {"rows": 2, "source": "may"}


def test_an_attempt_that_ends_well_and_writes_nothing_failed(tmp_path: Path) -> None:
    """NoEffect: another attempt would do the same; the message says what to do."""
    made = owner(tmp_path, "orders", plays=(Phase.SUCCEEDED,))
    result = made.result()
    assert result.failure is not None
    assert (result.failure.class_, made.applications.launched) == ("NoEffect", [1])
    assert "job.write()" in result.failure.message
    assert result.evidence == "every output is fenced and holds no commit"


def test_half_of_the_outputs_are_completed_by_the_next_attempt(tmp_path: Path) -> None:
    """The second attempt writes only the missing output; the result names both."""
    made = owner(tmp_path, "a", "b")

    def first(assignment: Assignment) -> Phase:
        made.job(assignment).write(table_of(1), "a")
        return Phase.UNKNOWN

    def second(assignment: Assignment) -> Phase:
        job = made.job(assignment)
        assert not job.write(table_of(7), "a").fresh
        job.write(table_of(2), "b")
        return Phase.SUCCEEDED

    made.applications.plays = [first, second]
    result = made.result()
    assert (result.outcome, result.attempts) == (Outcome.SUCCEEDED, 2)
    assert result.evidence == "slots committed by attempt 1, 2"
    assert (made.granted.rows("a"), made.granted.rows("b")) == ([1], [2])


def test_an_output_whose_staging_cannot_be_swept_does_not_change_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeping is housekeeping: an unreadable slot of another token does not concern this result."""
    made = writing(tmp_path)

    async def corrupt(*_: object) -> None:
        raise OutputCorrupt("slot 7 does not parse")

    monkeypatch.setattr("sparkonce.sink.slotlog.sink.SlotLogSink.sweep", corrupt)
    assert made.result().outcome is Outcome.SUCCEEDED


def test_a_follower_that_attaches_in_the_last_moment_is_read_before_the_end(tmp_path: Path) -> None:
    """With a watch of changes, the drive relies on the record that it read last. When finalize finds a newer one, it is not simply
    repeated: the record is read again, with the follower in it, and the second finalize succeeds."""
    made = owner(tmp_path, plays=(Phase.SUCCEEDED,))
    sent: list[int] = []

    class Busy:
        """The real store, with a follower attached right before the first finalize."""

        def __getattr__(self, name: str) -> Any:
            return getattr(made.store, name)

        async def finalize(self, record: Record, claim: Claim, result: Result, *, retention: float) -> object:
            sent.append(record.revision)
            assert len(sent) < 5, f"the same again and again: {sent}"
            if len(sent) == 1:
                await made.store.attach(record, "a-follower")
            return await made.store.finalize(record, claim, result, retention=retention)

    drive = made.drive(Busy())
    drive.polled = False
    ended = run(drive.run(made.granted.record, made.granted.claim))
    assert isinstance(ended, Ended)
    assert "a-follower" in ended.record.objects
    assert len(sent) == 2


def test_when_an_attempt_left_its_queue_is_recorded(tmp_path: Path) -> None:
    """The time, by the store's clock, is in the write that notes the next phase, and absent while the attempt is queued."""
    made = writing(tmp_path)
    made.applications.plays = [Phase.HELD]
    phases = [Phase.STARTING, Phase.SUCCEEDED]
    noted: list[float | None] = []

    def goes_on() -> None:
        noted.append(made.granted.now().queued_until)
        made.applications.become(made.granted.assignment.name, phases.pop(0))

    made.waits = goes_on
    made.run()
    assert noted[0] is None
    assert isinstance(noted[1], float)


@pytest.mark.parametrize("declared", [True, False])
def test_what_is_remarkable_about_a_success_is_in_its_result(tmp_path: Path, declared: bool) -> None:
    """The driver exited with 0 although one of its processes was killed for lack of memory: Succeeded, and the evidence says so."""
    made = writing(tmp_path, phase=Phase.RUNNING) if declared else owner(tmp_path)
    said = "driver container exited with code 0 (OOMKilled)"

    def ends() -> None:
        [(name, seen)] = made.applications.by_name.items()
        made.applications.by_name[name] = replace(seen, phase=Phase.SUCCEEDED, exit_code=0, message=said)

    made.waits = ends
    result = made.result()
    assert result.outcome is Outcome.SUCCEEDED
    assert result.evidence == ("slots committed by attempt 1" if declared else "exit code 0") + f"; {said}"
