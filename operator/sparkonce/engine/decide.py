"""What to do next about one attempt. Pure: one table of rows, read from top to bottom; the first that applies decides.

`decide` looks at the record, at what was observed of the attempt's application, and at the job's policy, and names one action with
the row that decided, the evidence and what would unblock it (`sparkonce keys explain` prints exactly that). `conclude` is its second
half: what a settled attempt means for the generation. `engine/drive.py` performs actions and decides nothing.

The order of the rows is the protocol. What was begun is finished first (`settling`), then wishes to end, then what contradicts the
record, then what the application says, and time last: a timeout never overrules an answer.
Source: DESIGN section 6 and the executable model's `decide` and `conclude`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from sparkonce.engine.policy import Policy
from sparkonce.launch.protocol import Phase, Seen
from sparkonce.model.policy import OnUnknown
from sparkonce.model.record import HeldReason, Outcome, Record, State, StopWanted, Why
from sparkonce.model.result import Verdict

if TYPE_CHECKING:
    from sparkonce.sink.transaction import Settlement


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What was really looked at, just now."""

    seen: Seen | None
    """The application under the attempt's name; None: there is none."""
    rewound: bool = False
    """An application of our install whose nonce the record does not know: the store is older than it was."""
    permanent_error: str | None = None
    permanent_why: Why = Why.PERMANENT
    """As the attempt's driver reported it."""
    driver_age: float | None = None
    """Seconds since the driver touched the attempt; None: it never did."""
    heard_for: float | None = inf
    """Seconds for which this owner could have heard the driver: it owns the key, and somebody takes what drivers say. None: nobody does,
    and silence says nothing."""
    owner_age: float | None = None
    """Seconds since any owner touched the attempt before its driver did; None: nobody did."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """Of the driver, with its last sign of life; for people."""
    gone: bool = False
    """No object wants this generation any more (proved by live reads)."""
    superseded: bool = False
    """An object may open the next generation with another fingerprint."""


@dataclass(frozen=True)
class Launch:
    attempt: int


@dataclass(frozen=True)
class Note:
    """Write what was seen of the application into the record."""

    seen: Seen


@dataclass(frozen=True)
class Wait:
    until: float | None = None
    """Unix seconds of the store's clock; None: until something changes."""


@dataclass(frozen=True)
class Settle:
    attempt: int
    why: Why
    note: str


@dataclass(frozen=True)
class Count:
    """Write into the record that this settle run is begun, before it is."""

    run: int


@dataclass(frozen=True)
class Send:
    """Create the application of this settle run."""

    run: int


@dataclass(frozen=True)
class Believe:
    """What a settle run reported, or that none of them did."""

    settlement: Settlement


@dataclass(frozen=True)
class Grant:
    attempt: int
    counted: bool
    not_before: float | None


@dataclass(frozen=True)
class Finalize:
    outcome: Outcome
    why: Why | None
    note: str


@dataclass(frozen=True)
class Hold:
    reason: HeldReason
    note: str


@dataclass(frozen=True)
class Alarm:
    """StoreRewound: nothing is started or ended."""

    note: str


@dataclass(frozen=True)
class Done:
    """Nothing is left to do for an owner."""


Action = Launch | Note | Wait | Settle | Count | Send | Believe | Grant | Finalize | Hold | Alarm | Done


@dataclass(frozen=True)
class Decision:
    action: Action
    row: str
    """Name of the row that decided."""
    evidence: str = ""
    """One sentence: what was seen."""
    unblock: str = ""
    """What a person could do, when nothing moves by itself."""


def decide(record: Record, observation: Observation, policy: Policy, now: float) -> Decision:
    """The next action for the owner of this record. `now` is the store's clock, Unix seconds."""
    if record.state is not State.IN_PROGRESS:
        return ended(record)
    if observation.rewound:
        return Decision(
            Alarm("an application of this install carries a nonce that the record does not know"),
            "store rewound",
            "the store is older than the applications it started",
            "look at `sparkonce doctor`",
        )
    return (
        _begun(record, observation)
        or _contradicted(record, observation, policy, now)
        or _said(record, observation, policy, now)
    )


def ended(record: Record) -> Decision:
    """Finalized, or held: there is nothing to do."""
    if record.state is State.FINALIZED:
        return Decision(
            Done(), "finalized", f"{record.outcome}: {record.note}".rstrip(": "), f"sparkonce rerun {record.key}"
        )
    return Decision(
        Done(),
        "held",
        f"{record.held}: {record.note}",
        f"sparkonce keys resolve {record.key} --succeeded | --failed | --retry",
    )


def _settle(record: Record, why: Why, row: str, note: str) -> Decision:
    return Decision(Settle(record.attempt, why, note), row, note)


def wished(wish: StopWanted) -> str:
    """Who wants the end, and why; whoever says it goes on with what becomes of it."""
    return f"{wish.why.lower()} by {wish.by}" + (f": {wish.reason}" if wish.reason else "")


def _begun(record: Record, observation: Observation) -> Decision | None:
    """An end that has begun, or that somebody wants."""
    if record.settling is not None and record.settling.attempt >= record.attempt:
        return _settle(record, record.settling.why, "settling has begun", record.settling.note)
    if record.stop_wanted is not None:
        return _settle(record, record.stop_wanted.why, "a stop is wanted", wished(record.stop_wanted))
    if observation.superseded:
        return _settle(record, Why.SUPERSEDED, "superseded", "another request supersedes this generation")
    if observation.gone:
        return _settle(record, Why.CANCELLED, "nobody wants it", "every object of this key was deleted")
    return None


def _contradicted(record: Record, observation: Observation, policy: Policy, now: float) -> Decision | None:
    """The application is not there, or is not the one in the record."""
    seen, noted = observation.seen, record.application
    if seen is None:
        if noted is not None:
            return _settle(
                record, Why.LOST, "the application vanished", f"application {noted.name} is not there any more"
            )
        if policy.suspend:
            return Decision(Wait(), "suspended", "spec.suspend is true", "set spec.suspend to false")
        if overdue := _overdue(record, policy, now):  # a launch now would be stopped at the next look
            return overdue
        if record.not_before is not None and record.not_before > now:
            return Decision(
                Wait(record.not_before),
                "backoff",
                f"attempt {record.attempt} starts in {record.not_before - now:.0f} s",
            )
        return Decision(
            Launch(record.attempt), "granted and not launched", f"attempt {record.attempt} has no application yet"
        )
    if noted is not None and (noted.uid != seen.uid or seen.nonce != record.nonce):
        # Ours was there and may have taken effect: this attempt counts, and for an opaque job its outcome is unknown.
        return _settle(
            record, Why.LOST, "another application", f"application {seen.name} was deleted and created again"
        )
    if seen.nonce != record.nonce:
        return _settle(record, Why.NAME_TAKEN, "the name is taken", f"application {seen.name} exists and is not ours")
    another_driver = (
        noted is not None and noted.driver is not None and seen.driver is not None and noted.driver != seen.driver
    )
    if another_driver or seen.repeated:
        return _settle(record, Why.LOST, "it ran twice", f"application {seen.name} ran more than one driver")
    if seen.stopping:
        return _settle(record, Why.LOST, "it is being stopped", f"somebody began to stop application {seen.name}")
    if noted is None or (noted.driver is None and seen.driver is not None):
        return Decision(Note(seen), "seen and not noted", f"application {seen.name} exists")
    return None


def _said(record: Record, observation: Observation, policy: Policy, now: float) -> Decision:
    """What the application and its driver say; what time says, last."""
    seen = observation.seen
    assert seen is not None  # _contradicted answered for None
    if observation.permanent_error is not None:
        said = observation.permanent_error or "the driver reported a permanent error"
        return _settle(record, observation.permanent_why, "permanent error", said)
    if seen.phase is Phase.SUCCEEDED:
        if not policy.declared:
            return Decision(
                Finalize(Outcome.SUCCEEDED, Why.COMPLETED, "exit code 0"),
                "completed, opaque",
                "the application completed",
            )
        return _settle(record, Why.COMPLETED, "completed", "the application completed")
    if seen.phase is Phase.FAILED_KNOWN:
        return _settle(
            record, Why.EXITED, "exited", seen.message or f"the driver ended with exit code {seen.exit_code}"
        )
    if seen.phase is Phase.FAILED_INFRA:
        return _settle(record, Why.PREEMPTED, "lost with its platform", seen.message or "the platform ended it")
    if seen.phase is Phase.UNKNOWN:
        return _settle(record, Why.LOST, "lost", seen.message or "it is gone and nobody saw how it ended")
    if seen.phase not in (record.phase, Phase.FINISHING) and not goes_back(record, seen.phase):
        # what ends in a moment is not worth a write
        return Decision(Note(seen), "phase changed", f"application {seen.name} is {seen.phase}")
    return _timed(record, observation, policy, now)


def goes_back(record: Record, phase: Phase) -> bool:
    """The record has seen the attempt further on. The application and its pod are two watches, and neither waits for the other: a pod
    that is known to run may be seen once more as it was before."""
    return phase in _GROWS and record.phase in _GROWS[_GROWS.index(phase) + 1 :]


HALF_MADE = 120.0
"""Seconds that the driver pod of a submission that failed half-way may wait for what it mounts: ConfigMaps that were not made never come,
and a volume may take a minute or two to be attached. A driver that would have come costs an attempt, and no effect."""
_GROWS = (Phase.ACCEPTED, Phase.STARTING, Phase.RUNNING)


def _overdue(record: Record, policy: Policy, now: float) -> Decision | None:
    if policy.active_deadline is None or now - record.created_at <= policy.active_deadline:
        return None
    said = f"generation {record.generation} is older than activeDeadlineSeconds ({policy.active_deadline:.0f} s)"
    return _settle(record, Why.TIMEOUT, "deadline", said)


def _timed(record: Record, observation: Observation, policy: Policy, now: float) -> Decision:
    if overdue := _overdue(record, policy, now):
        return overdue
    if observation.driver_age is not None:
        silence = _silence(observation)
        if policy.heartbeat_timeout is not None and silence is not None and silence > policy.heartbeat_timeout:
            return _settle(record, Why.STALE, "heartbeat stale", f"no heartbeat for {observation.driver_age:.0f} s")
    elif observation.owner_age is not None and observation.owner_age > policy.start_timeout:
        return _settle(
            record, Why.STALE, "it did not start", f"no driver for {observation.owner_age:.0f} s (startTimeoutSeconds)"
        )
    elif (half_made := _half_made(observation)) is not None and now > half_made + HALF_MADE:
        said = f"no driver for {now - half_made:.0f} s after a submission that failed half-way"
        return _settle(record, Why.STALE, "it did not start", said)
    until = _next_limit(record, observation, policy, now)
    said = f"attempt {record.attempt} is {record.phase}"
    return Decision(Wait(until), "running", said, f"sparkonce cancel {record.key}")


def _silence(observation: Observation) -> float | None:
    """Seconds of silence that say something: the period restarts in full after a takeover, and after an outage of all gateways."""
    if observation.driver_age is None or observation.heard_for is None:
        return None
    return min(observation.driver_age, observation.heard_for)


def _next_limit(record: Record, observation: Observation, policy: Policy, now: float) -> float | None:
    """When the first of the limits that are not reached yet will be, if nothing changes."""
    limits: list[float] = []
    if policy.active_deadline is not None:
        limits.append(record.created_at + policy.active_deadline)
    if observation.driver_age is not None:
        silence = _silence(observation)
        if policy.heartbeat_timeout is not None and silence is not None:
            limits.append(now + policy.heartbeat_timeout - silence)
    else:
        if observation.owner_age is not None:
            limits.append(now + policy.start_timeout - observation.owner_age)
        if (half_made := _half_made(observation)) is not None:
            limits.append(half_made + HALF_MADE)
    return min(limits, default=None)


def _half_made(observation: Observation) -> float | None:
    return observation.seen.half_made if observation.seen is not None else None


def conclude(record: Record, verdict: Verdict, observation: Observation, policy: Policy, now: float) -> Decision:
    """What a settled attempt means. Only ever called after every output is fenced, or an opaque attempt is stopped."""
    if verdict in (Verdict.ALL, Verdict.COMPLETED):
        said = "every output is committed" if verdict is Verdict.ALL else "exit code 0"
        return Decision(Finalize(Outcome.SUCCEEDED, None, said), f"settled: {verdict}", said)
    if held := _HELD.get(verdict):
        return Decision(Hold(*held), f"settled: {verdict}", held[1])
    settling = record.settling
    assert settling is not None  # written before anything was settled
    why, note = settling.why, settling.note
    if why is Why.NAME_TAKEN and not _wants_end(record, observation):
        if record.uncounted >= _FOREIGN_NAMES:
            said = f"the name of attempt {record.attempt} is taken, and {record.uncounted} attempts before it could not be counted either"
            return Decision(Hold(HeldReason.NAME_TAKEN, said), "the name is taken", said)
        return _grant(record, policy, now, counted=False, why="its name was taken")
    ended = _end(record, why, verdict, observation)
    counted = record.counted - (why is Why.PREEMPTED)
    more = counted < policy.max_attempts
    refused = why is Why.PERMANENT and record.application is None  # its application was never created
    if verdict is Verdict.UNKNOWN and not refused:
        note = f"outcome unknown; {note}"  # whatever the end is called, it proves nothing about effects
    if verdict is Verdict.SOME and (ended is not None or not more):
        said = f"some outputs are committed and some can never be by attempt {record.attempt}; {note}"
        return Decision(Hold(HeldReason.PARTIAL, said), "settled: Some, and a reason to end", said)
    if ended is not None:
        return Decision(Finalize(ended, why, note), f"settled: {verdict}", note)
    if verdict is Verdict.UNKNOWN and policy.on_unknown is OnUnknown.HOLD:
        said = f"nobody can tell whether attempt {record.attempt} took effect; {settling.note}"
        return Decision(Hold(HeldReason.UNKNOWN, said), "outcome unknown", said)
    if verdict is Verdict.UNKNOWN and policy.on_unknown is OnUnknown.FAIL:
        return Decision(Finalize(Outcome.FAILED, why, note), "outcome unknown", note)
    if more:
        return _grant(record, policy, now, counted=why is not Why.PREEMPTED, why=note)
    return Decision(
        Finalize(Outcome.FAILED, why, note), "attempts used up", f"{counted} of {policy.max_attempts} attempts: {note}"
    )


_FOREIGN_NAMES = 2  # a third taken name in a row is a person's business: somebody creates applications under our names

_HELD: dict[Verdict, tuple[HeldReason, str]] = {
    Verdict.STUCK: (
        HeldReason.STUCK,
        "a sealed transaction met a slot that is closed; some of its outputs may be committed",
    ),
    Verdict.KEY_CONFLICT: (HeldReason.KEY_CONFLICT, "an output holds a commit of this key for another job"),
    Verdict.CANNOT_SETTLE: (
        HeldReason.CANNOT_SETTLE,
        "nobody who can reach the outputs has said whether it took effect",
    ),
    Verdict.CANNOT_PLACE: (
        HeldReason.CANNOT_PLACE,
        "a late request could still take the attempt's name, so it cannot be abandoned",
    ),
    Verdict.STILL_THERE: (HeldReason.STILL_THERE, "the attempt could not be stopped; it may still run"),
}


def wants_end(record: Record, observation: Observation) -> bool:
    """Somebody asked for the end of this generation: what a stream has committed by then is its result."""
    settling = record.settling
    asked = settling is not None and settling.why in (Why.CANCELLED, Why.SUPERSEDED)
    return asked or _wants_end(record, observation)


def _wants_end(record: Record, observation: Observation) -> bool:
    return record.stop_wanted is not None or observation.gone or observation.superseded


def _end(record: Record, why: Why, verdict: Verdict, observation: Observation) -> Outcome | None:
    """The reason not to try again, if there is one."""
    if why in (Why.CANCELLED, Why.SUPERSEDED) or _wants_end(record, observation):
        return Outcome.CANCELLED
    if why in (Why.PERMANENT, Why.EXPECTATION, Why.TIMEOUT, Why.RESOLVED):
        return Outcome.FAILED
    if why is Why.COMPLETED and verdict is Verdict.NONE:
        return Outcome.FAILED  # NoEffect: it ended well and wrote nothing; again would do the same
    return None


def _grant(record: Record, policy: Policy, now: float, *, counted: bool, why: str) -> Decision:
    delay = policy.delay(record.counted, nonce=record.nonce)
    action = Grant(record.attempt + 1, counted, now + delay if delay else None)
    return Decision(action, "another attempt", f"attempt {record.attempt} ended: {why}")
