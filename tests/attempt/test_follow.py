"""A generation that follows a foreign application: the decision table for every case, and its drive under crashes and lost replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from attempt.owned import Lossy, Owner, owner
from harness.followed import BOUND, NOTED, RECORD, SEEN, followed
from harness.memory_store import MemoryStore
from sparkonce.attempt.decide import Done, Finalize, Hold, Note, Observation, Policy, Wait
from sparkonce.attempt.drive import Drive, Ended, NotOurs, next_of
from sparkonce.attempt.follow import follow
from sparkonce.blocking import run
from sparkonce.errors import LaunchUnavailable, StoreUnavailable
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import Assignment, Bound, HeldReason, Outcome, Record, State, StopWanted, Why
from sparkonce.model.spec import OnUnknown
from sparkonce.store.protocol import Updated

OPAQUE = Policy(declared=False)
ENDS = (Phase.SUCCEEDED, Phase.FAILED_KNOWN)


# --- the table


def test_nothing_is_ever_done_to_what_is_followed() -> None:
    """In every case the application is only observed: its state is noted, waited for, or the record is held or ended. No row launches,
    settles, stops or grants."""
    assert {type(decision.action) for *_, decision in followed()} == {Done, Finalize, Hold, Note, Wait}


def test_an_end_is_told_only_of_the_very_application_and_only_when_it_is_known() -> None:
    """Succeeded needs the bound application, noted and completed; Failed needs it noted and ended by an error or, under `onUnknown: Fail`,
    an end that is not known. The end is never Cancelled: the next object would launch the job beside a driver that may run."""
    outcomes = set()
    for record, observation, policy, decision in followed():
        if not isinstance(decision.action, Finalize):
            continue
        seen, end = observation.seen, decision.action
        bound = seen is not None and seen.uid == BOUND.uid
        known = seen.phase if seen is not None and bound and record.application is not None else None
        unknown = not bound or known in (Phase.UNKNOWN, Phase.FAILED_INFRA)
        outcomes.add((end.outcome, unknown))
        if unknown:
            assert policy.on_unknown is OnUnknown.FAIL
            assert end.note.startswith("outcome unknown")
        else:
            assert known is {Outcome.SUCCEEDED: Phase.SUCCEEDED, Outcome.FAILED: Phase.FAILED_KNOWN}.get(end.outcome)
    assert outcomes == {(Outcome.SUCCEEDED, False), (Outcome.FAILED, False), (Outcome.FAILED, True)}


def test_a_key_is_never_free_while_its_application_may_run() -> None:
    """While the bound application exists and has not ended, no case finalizes: another generation would repeat its work beside it."""
    for _, observation, _, decision in followed():
        seen = observation.seen
        if seen is not None and seen.uid == BOUND.uid and seen.phase not in {*ENDS, Phase.UNKNOWN, Phase.FAILED_INFRA}:
            assert not isinstance(decision.action, Finalize)


def test_a_note_says_something_new() -> None:
    """Each Note changes the record (the phase advances, or the application is noted for the first time), so notes never repeat for ever."""
    for record, observation, _, decision in followed():
        if isinstance(decision.action, Note):
            seen = observation.seen
            assert seen is not None
            again = record.changed(application=NOTED, phase=seen.phase)
            assert not isinstance(follow(again, observation, OPAQUE).action, Note)


def test_only_bound_records_are_followed() -> None:
    """`next_of` uses `follow` for a bound record and `decide` for any other: without the binding the application would be launched."""
    nothing = Observation(seen=None)
    assert next_of(RECORD, nothing, OPAQUE, 0.0).row == "how its application ended is unknown"
    assert next_of(RECORD.changed(bound=None), nothing, OPAQUE, 0.0).row == "granted and not launched"


@pytest.mark.parametrize(
    ("noted", "seen", "words"),
    [
        (False, None, "application nightly of UID u1 is not in the job's namespace"),
        (True, None, "application nightly no longer exists"),
        (True, replace(SEEN, uid="u2"), "application nightly was deleted, and another one has its name"),
        (True, replace(SEEN, phase=Phase.UNKNOWN, message="the Spark operator says FAILED"), "says FAILED"),
    ],
)
def test_what_nobody_can_tell_is_held_in_words_for_a_person(
    *, noted: bool, seen: ApplicationState | None, words: str
) -> None:
    """Held(Unknown) names the application, and what is not known about it."""
    record = RECORD.changed(application=NOTED if noted else None)
    action = follow(record, Observation(seen=seen), OPAQUE).action
    assert isinstance(action, Hold)
    assert action.reason is HeldReason.UNKNOWN
    assert words in action.note


def test_a_cancelled_key_is_held_while_its_application_runs() -> None:
    """The sentence says who cancelled, and that the application is not ours and keeps running."""
    wish = StopWanted(why=Why.CANCELLED, by="ann", reason="too slow")
    decision = follow(RECORD.changed(application=NOTED, stop_wanted=wish), Observation(seen=SEEN), OPAQUE)
    assert isinstance(decision.action, Hold)
    assert decision.action.reason is HeldReason.STILL_THERE
    assert "cancelled by ann: too slow" in decision.action.note
    assert "was not started by sparkonce, so it is not stopped and runs on" in decision.action.note


# --- the drive


@dataclass
class Foreign:
    """Applications that others started; counts observations."""

    seen: ApplicationState | None = SEEN
    looks: int = 0
    errors: list[Exception] = field(default_factory=list)

    async def follow(self, assignment: Assignment, bound: Bound) -> ApplicationState | None:
        assert bound == BOUND
        self.looks += 1
        assert self.looks < 100, "it never rests"
        if self.errors:
            raise self.errors.pop(0)
        return self.seen

    def become(self, phase: Phase) -> None:
        self.seen = replace(SEEN, phase=phase, exit_code=3 if phase is Phase.FAILED_KNOWN else None)


@dataclass
class Following:
    """The owner of a bound key; it has a launcher, which must not be called."""

    made: Owner
    foreign: Foreign

    def run(self, store: Any = None) -> Ended | NotOurs:
        drive = self.made.drive(store)
        bound: Drive = replace(drive, follows=self.foreign)
        return run(bound.run(self.made.granted.now(), self.made.granted.claim))

    @property
    def record(self) -> Record:
        return self.made.granted.now()

    @property
    def untouched(self) -> bool:
        return not self.made.applications.launched and not self.made.applications.stopped


@pytest.fixture
def following(tmp_path: Path) -> Following:
    made = owner(tmp_path)
    record = made.granted.now()
    reply = run(made.store.update(record, made.granted.claim, record.changed(bound=BOUND)))
    assert isinstance(reply, Updated)
    made.granted.record = reply.record
    return Following(made, Foreign())


@pytest.mark.parametrize(
    ("phase", "outcome"), [(Phase.SUCCEEDED, Outcome.SUCCEEDED), (Phase.FAILED_KNOWN, Outcome.FAILED)]
)
def test_it_is_followed_to_its_end(following: Following, phase: Phase, outcome: Outcome) -> None:
    """It is noted, awaited, and its end recorded; the launcher is never called."""
    phases = iter([Phase.STARTING, Phase.RUNNING, Phase.FINISHING, phase])
    following.foreign.become(Phase.ACCEPTED)
    following.made.waits = lambda: following.foreign.become(next(phases))
    ended = following.run()
    assert isinstance(ended, Ended)
    assert ended.result is not None
    assert (ended.result.outcome, ended.result.attempts) == (outcome, 1)
    assert ended.record.application == NOTED
    assert following.untouched


def test_retries_of_its_own_operator_are_followed(following: Following) -> None:
    """FAILING, PENDING_RERUN and a second run are not an end, whatever the first driver did; only the Spark operator's final state is
    one."""
    phases = iter(
        [
            Phase.RUNNING,
            Phase.FINISHING,
            Phase.ACCEPTED,
            Phase.STARTING,
            Phase.RUNNING,
            Phase.FINISHING,
            Phase.SUCCEEDED,
        ]
    )
    following.made.waits = lambda: following.foreign.become(next(phases))
    ended = following.run()
    assert isinstance(ended, Ended)
    assert ended.result is not None
    assert ended.result.outcome is Outcome.SUCCEEDED
    assert following.untouched


def test_what_is_not_there_is_held_and_nothing_is_launched(following: Following) -> None:
    """A binding whose application does not exist holds the key."""
    following.foreign.seen = None
    ended = following.run()
    assert isinstance(ended, Ended)
    assert (ended.record.state, ended.record.held) == (State.HELD, HeldReason.UNKNOWN)
    assert following.untouched


def test_an_api_server_that_does_not_answer_says_nothing(following: Following) -> None:
    """LaunchUnavailable is raised and the key is unchanged; the next drive finds the end."""
    following.foreign.errors.append(LaunchUnavailable("no answer"))
    with pytest.raises(LaunchUnavailable):
        following.run()
    assert following.record.state is State.IN_PROGRESS
    following.foreign.become(Phase.SUCCEEDED)
    assert isinstance(following.run(), Ended)
    assert following.record.outcome is Outcome.SUCCEEDED


def test_a_process_that_cannot_look_raises(following: Following) -> None:
    """A drive that cannot observe foreign applications concludes nothing."""
    with pytest.raises(LaunchUnavailable, match="its operator drives it"):
        following.made.run()
    assert following.record.state is State.IN_PROGRESS


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("verb", ["load", "update", "finalize", "heartbeat"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_lost_reply_changes_nothing(following: Following, verb: str, number: int, *, lands: bool) -> None:
    """Whichever call loses its answer, carried out or not, the same owner or a successor records one result, and never touches the
    application."""
    lossy = _LosesOne(following.made.store, verb, number, lands=lands)
    phases = iter([Phase.RUNNING, Phase.SUCCEEDED, Phase.SUCCEEDED, Phase.SUCCEEDED, Phase.SUCCEEDED])
    following.foreign.become(Phase.STARTING)
    following.made.waits = lambda: following.foreign.become(next(phases))
    try:
        following.run(lossy)
    except StoreUnavailable:
        if following.record.state is State.IN_PROGRESS:
            following.made.dies()
        following.run()
    assert (following.record.outcome, following.record.generation) == (Outcome.SUCCEEDED, 1)
    assert following.untouched


class _LosesOne(Lossy):
    """Loses the answer to one call of one verb, selected by number."""

    def __init__(self, store: MemoryStore, verb: str, number: int, *, lands: bool) -> None:
        super().__init__(store, verb, times=0, lands=lands)
        self._before = number

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            self.times = int(self._before == 0)
            self._before -= 1
        return super().__getattr__(name)


def _wish(following: Following, why: Why) -> Callable[[], object]:
    wish = StopWanted(why=why, by="ann")
    return lambda: run(following.made.store.request_stop(following.record, wish))


def test_a_cancel_holds_it_and_stops_nothing(following: Following) -> None:
    """A cancellation request while the application runs: Held(StillThere), and the application is not touched."""
    following.made.waits = _wish(following, Why.CANCELLED)
    assert isinstance(following.run(), Ended)
    assert (following.record.state, following.record.held) == (State.HELD, HeldReason.STILL_THERE)
    assert following.untouched


def test_a_cancel_after_its_end_is_told_the_truth(following: Following) -> None:
    """It completed before the next observation: Succeeded, despite the cancellation."""
    _wish(following, Why.CANCELLED)()
    following.foreign.become(Phase.SUCCEEDED)
    assert isinstance(following.run(), Ended)
    assert following.record.outcome is Outcome.SUCCEEDED


def test_what_supersedes_it_waits_for_its_end(following: Following) -> None:
    """The generation continues until the application has ended, so that two never run under one key."""
    wishes: Iterator[Callable[[], object]] = iter(
        [_wish(following, Why.SUPERSEDED), lambda: None, lambda: following.foreign.become(Phase.FAILED_KNOWN)]
    )

    def next_wish() -> None:
        next(wishes)()

    following.made.waits = next_wish
    assert isinstance(following.run(), Ended)
    assert following.made.rows.count("it ends first") >= 1
    assert following.record.outcome is Outcome.FAILED
    assert following.untouched
