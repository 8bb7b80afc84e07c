"""Decides the next action for one attempt. Pure: one decision table, read from top to bottom; the first row that applies wins.

`decide` takes the record, the observation of the attempt's application and the job's policy, and returns one action with the row
that decided, its evidence and what would unblock it (`sparkonce keys explain` prints exactly these). `conclude` is the second half:
what a settled attempt means for its generation. `attempt/drive.py` performs the actions and decides nothing.

The order of the rows is the protocol: finish what was begun (`settling`), then honour requests to stop, then handle contradictions of
the record, then what the application reports, and timeouts last, since a timeout never overrules an answer.
Source: docs/design.md, section 6.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Self

from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import HeldReason, NoEffect, Outcome, Record, State, StopWanted, Verdict, Why
from sparkonce.model.spec import (
    HEARTBEAT_TIMEOUT,
    JobSpec,
    OnDelete,
    OnDuplicate,
    OnFinalized,
    OnMismatch,
    OnResultChanged,
    OnUnknown,
)

if TYPE_CHECKING:
    from sparkonce.sink.transaction import Settlement


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Effective policies of one job, with every default resolved; times in seconds.

    Separate from `JobSpec`, where a field that was not given stays None: its meaning depends on whether outputs are declared, and on the
    environment."""

    declared: bool
    """The job declares outputs: its outcome is read from them, never from an exit code."""
    max_attempts: int = 3
    submission_retries: int = 3
    """Attempts of an opaque job that never ran and are repeated beside `max_attempts`."""
    backoff_initial: float = 10.0
    backoff_max: float = 300.0
    retry_on: frozenset[str] = frozenset()
    """Names of errors of the script that are repeated like any other (`model.application.script_errors`)."""
    on_duplicate: OnDuplicate = OnDuplicate.ATTACH
    on_mismatch: OnMismatch = OnMismatch.REJECT
    on_finalized: OnFinalized = OnFinalized.REPLAY
    on_result_changed: OnResultChanged = OnResultChanged.REPLAY
    on_unknown: OnUnknown = OnUnknown.HOLD
    start_timeout: float = 1800.0
    """Seconds until the driver's first heartbeat."""
    active_deadline: float | None = None
    """Seconds from the opening of the generation, for all its attempts together."""
    heartbeat_timeout: float | None = None
    """Seconds. None: silence never ends an attempt (opaque jobs send no heartbeats)."""
    stop_timeout: float = 120.0
    linger: float = 60.0
    """Seconds from the end of a driver's program, with every output committed, to its stop."""
    retention_succeeded: float = 30 * 86400.0
    retention_failed: float = 7 * 86400.0
    suspend: bool = False
    on_delete: OnDelete = OnDelete.STOP
    application_ttl_succeeded: float = 3600.0
    application_ttl_failed: float = 86400.0
    object_ttl: float | None = None
    """Seconds from the end of the job to the deletion of its object (ttlSecondsAfterFinished); None: never."""

    @classmethod
    def of(cls, spec: JobSpec, *, heartbeat_timeout: int = HEARTBEAT_TIMEOUT) -> Self:
        """Resolves a spec. `heartbeat_timeout`: this environment's default, for jobs that declare outputs."""
        return cls(
            declared=not spec.opaque,
            max_attempts=spec.max_attempts,
            submission_retries=spec.submission_retries,
            backoff_initial=spec.retry.backoff.initial,
            backoff_max=spec.retry.backoff.max,
            retry_on=frozenset(spec.retry.retry_on),
            on_duplicate=spec.on_duplicate,
            on_mismatch=spec.on_mismatch,
            on_finalized=spec.on_finalized,
            on_result_changed=spec.on_result_changed or cls.on_result_changed,
            on_unknown=spec.on_unknown,
            start_timeout=spec.start_timeout_seconds,
            active_deadline=spec.active_deadline_seconds,
            heartbeat_timeout=spec.heartbeat_timeout(heartbeat_timeout),
            stop_timeout=spec.stop_timeout_seconds,
            linger=spec.linger_seconds or cls.linger,
            retention_succeeded=spec.retention.succeeded,
            retention_failed=spec.retention.failed,
            suspend=spec.suspend,
            on_delete=spec.on_delete,
            application_ttl_succeeded=spec.application_ttl.succeeded,
            application_ttl_failed=spec.application_ttl.failed,
            object_ttl=spec.ttl_seconds_after_finished,
        )

    def delay(self, attempts: int, *, nonce: str) -> float:
        """Seconds before the attempt that follows `attempts` counted ones: exponential, capped, minus up to 10 % jitter. The jitter is
        derived from the ended attempt's nonce: jobs that failed together are spread, and the function stays pure."""
        if attempts <= 0 or self.backoff_initial <= 0:
            return 0.0
        exponent = min(attempts - 1, 30)  # every cap is reached before 2**30
        jitter = zlib.crc32(nonce.encode()) / 2**32
        return min(self.backoff_initial * 2.0**exponent, self.backoff_max) * (1.0 - 0.1 * jitter)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What was read about the attempt for this decision, besides its record."""

    seen: ApplicationState | None
    """The application under the attempt's name; None: it does not exist."""
    rewound: bool = False
    """An application of this install carries a nonce that the record does not know: the store was rolled back."""
    permanent_error: str | None = None
    """Message of the permanent error that the attempt's driver reported."""
    permanent_why: Why = Why.PERMANENT
    """Class of that error."""
    driver_age: float | None = None
    """Seconds since the driver's last heartbeat; None: it never sent one."""
    receivable_for: float | None = inf
    """Seconds during which heartbeats could have been received without interruption: this process owned the key and a gateway
    served. None: no gateway serves, so that silence proves nothing."""
    owner_age: float | None = None
    """Seconds that the attempt has waited for its driver, since an owner touched it or since it was granted; None: it does not wait."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """From the driver's last heartbeat; for people."""
    edited: bool = False
    """The application was made from another template than the leading object has now."""
    gone: bool = False
    """Every object that wanted this generation was deleted (proved by live reads)."""
    superseded: bool = False
    """An object may open the next generation with another fingerprint."""


@dataclass(frozen=True)
class Launch:
    """Create the attempt's application."""

    attempt: int


@dataclass(frozen=True)
class Note:
    """Write the observed application into the record."""

    seen: ApplicationState


@dataclass(frozen=True)
class Wait:
    """Nothing to do for now."""

    until: float | None = None
    """Unix seconds of the store's clock; None: until something changes."""


@dataclass(frozen=True)
class Settle:
    """End the attempt: write `settling`, then find out for good whether it took effect."""

    attempt: int
    why: Why
    note: str


@dataclass(frozen=True)
class BeginSettleRun:
    """Count this settle run in the record before creating it."""

    run: int


@dataclass(frozen=True)
class Send:
    """Create this settle run's application."""

    run: int


@dataclass(frozen=True)
class Believe:
    """Accept this settlement: reported by a settle run or the driver, or CannotSettle once the settle runs are used up."""

    settlement: Settlement


@dataclass(frozen=True)
class Grant:
    """Grant the next attempt."""

    attempt: int
    counted: bool
    """Whether the attempt that ended counts against maxAttempts."""
    not_before: float | None
    """Unix seconds of the store's clock; None: at once."""


@dataclass(frozen=True)
class Finalize:
    """Record the generation's result."""

    outcome: Outcome
    why: Why | None
    note: str


@dataclass(frozen=True)
class Hold:
    """Stop until a person resolves the key."""

    reason: HeldReason
    note: str


@dataclass(frozen=True)
class Alarm:
    """StoreRewound: start nothing and end nothing."""

    note: str


@dataclass(frozen=True)
class Done:
    """The owner has nothing left to do."""


Action = Launch | Note | Wait | Settle | BeginSettleRun | Send | Believe | Grant | Finalize | Hold | Alarm | Done


@dataclass(frozen=True)
class Decision:
    action: Action
    row: str
    """Name of the row that decided."""
    evidence: str = ""
    """One sentence: what was observed."""
    unblock: str = ""
    """What a person can do where progress needs one."""


def never_ran(record: Record) -> NoEffect | None:
    """Proof that no attempt of the generation ran, given that the current one did not; None if an earlier one may have."""
    before = NoEffect(generation=record.generation, attempt=record.attempt - 1)
    chained = record.attempt == 1 or record.no_effect == before
    return NoEffect(generation=record.generation, attempt=record.attempt) if chained else None


_NOT_RUNNING_YET = (None, Phase.ACCEPTED, Phase.STARTING, Phase.HELD)
"""What the record says of an attempt whose driver was never seen to run."""


def not_started(record: Record) -> bool:
    """Whether no driver of the generation was seen to run. This is no proof: the current attempt's driver may have started a moment ago,
    which only the end of the attempt shows."""
    unseen = record.phase in _NOT_RUNNING_YET and record.intent is None and record.bound is None
    return unseen and never_ran(record) is not None


def decide(record: Record, observation: Observation, policy: Policy, now: float) -> Decision:
    """Returns the next action for the owner of this record. `now`: the store's clock, Unix seconds."""
    if record.state is not State.IN_PROGRESS:
        return ended(record)
    if observation.rewound:
        return Decision(
            Alarm("an application of this install carries a nonce that the record does not know"),
            "store rewound",
            "the store is older than the applications it started",
            "look at `sparkonce doctor`",
        )
    if begun := _begun(record, observation):
        return begun
    if observation.seen is None:
        return _absent(record, policy, now)
    return _contradicted(record, observation.seen) or _said(record, observation, observation.seen, policy, now)


def ended(record: Record) -> Decision:
    """The decision for a finalized or held record: nothing to do."""
    if record.state is State.FINALIZED:
        return Decision(
            Done(), "finalized", f"{record.outcome}: {record.note}".rstrip(": "), f"sparkonce rerun {record.key}"
        )
    return Decision(
        Done(),
        "held",
        f"{record.held}: {record.note}",
        held_remedy(record.key),
    )


def held_remedy(key: str, how: str = "--succeeded | --failed | --retry") -> str:
    """The command that ends a hold. how: its options to choose from."""
    return f"sparkonce keys resolve {key} --reason TEXT {how}"


def _settle(record: Record, why: Why, row: str, note: str) -> Decision:
    return Decision(Settle(record.attempt, why, note), row, note)


def stop_request_text(stop: StopWanted) -> str:
    """The beginning of a sentence: who requested the stop, and why."""
    return f"{stop.why.lower()} by {stop.by}" + (f": {stop.reason}" if stop.reason else "")


def _begun(record: Record, observation: Observation) -> Decision | None:
    """Rows for an attempt whose end has begun or was requested."""
    if record.settling is not None and record.settling.attempt >= record.attempt:
        return _settle(record, record.settling.why, "settling has begun", record.settling.note)
    if record.stop_wanted is not None:
        return _settle(record, record.stop_wanted.why, "a stop is wanted", stop_request_text(record.stop_wanted))
    if observation.superseded:
        return _settle(record, Why.SUPERSEDED, "superseded", "another request supersedes this generation")
    if observation.gone:
        return _settle(record, Why.CANCELLED, "no object left", "every object of this key was deleted")
    return None


def _absent(record: Record, policy: Policy, now: float) -> Decision:
    """Rows for an attempt without an application: it has vanished, or is still to be launched."""
    if (noted := record.application) is not None:
        return _settle(record, Why.LOST, "the application vanished", f"application {noted.name} no longer exists")
    if policy.suspend:
        return Decision(Wait(), "suspended", "spec.suspend is true", "set spec.suspend to false")
    if overdue := _overdue(record, policy, now):  # an attempt launched now would be stopped in the next step
        return overdue
    if record.not_before is not None and _backs_off(record, record.not_before, now):
        waits = f"attempt {record.attempt} starts in {record.not_before - now:.0f} s"
        return Decision(Wait(record.not_before), "backoff", waits)
    return Decision(
        Launch(record.attempt), "granted and not launched", f"attempt {record.attempt} has no application yet"
    )


def _backs_off(record: Record, until: float, now: float) -> bool:
    """Whether the attempt still waits. More than twice its backoff is left only after the clock was set back, by hours perhaps: over."""
    return 0 < until - now <= 2 * (until - record.granted_at)


def _contradicted(record: Record, seen: ApplicationState) -> Decision | None:
    """Rows for an application that is not the one in the record."""
    noted = record.application
    if noted is not None and (noted.uid != seen.uid or seen.nonce != record.nonce):
        # Our application existed and may have taken effect: the attempt counts, and an opaque job's outcome is unknown.
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
        return _settle(record, Why.LOST, "it is being stopped", f"a stop of application {seen.name} has begun")
    if noted is None or (noted.driver is None and seen.driver is not None):
        return Decision(Note(seen), "seen and not noted", f"application {seen.name} exists")
    return None


def _said(record: Record, observation: Observation, seen: ApplicationState, policy: Policy, now: float) -> Decision:
    """Rows for what the application and its driver report; timeouts last."""
    if observation.permanent_error is not None:
        said = observation.permanent_error or "the driver reported a permanent error"
        return _settle(record, observation.permanent_why, "permanent error", said)
    if seen.phase is Phase.SUCCEEDED:
        completed = "; ".join(filter(None, (_COMPLETED, seen.message)))
        if not policy.declared:
            note = "; ".join(filter(None, ("exit code 0", seen.message)))
            return Decision(Finalize(Outcome.SUCCEEDED, Why.COMPLETED, note), "completed, opaque", completed)
        return _settle(record, Why.COMPLETED, "completed", completed)
    if seen.phase is Phase.FAILED_KNOWN:
        said = seen.message or f"the driver ended with exit code {seen.exit_code}"
        if seen.script_error and policy.declared and policy.retry_on.isdisjoint(seen.script_error):
            # An opaque job's retries are what its author asked for; a log is no reason to take them back.
            return _settle(record, Why.PERMANENT, "script error", _not_repeated(record, seen.script_error[0], said))
        return _settle(record, Why.EXITED, "exited", said)
    if seen.phase is Phase.FAILED_INFRA:
        return _settle(record, Why.PREEMPTED, "lost with its platform", seen.message or "the platform ended it")
    if seen.phase is Phase.UNKNOWN:
        return _settle(record, Why.LOST, "lost", seen.message or "it is gone, and its end was not observed")
    if observation.edited and seen.unplaced and seen.phase is Phase.HELD:
        return _settle(record, Why.PREEMPTED, "edited before it had a node", f"the job was edited while {seen.waits}")
    if seen.hopeless:
        return _settle(record, Why.STALE, "it cannot start", seen.waits or "its driver cannot start")
    if seen.phase not in (record.phase, Phase.FINISHING) and not goes_back(record, seen.phase):
        # FINISHING ends in a moment: not worth a write
        return Decision(Note(seen), "phase changed", f"application {seen.name} is {seen.phase}")
    if seen.phase is not Phase.FINISHING and _cause(note := waiting_note(record, seen)) != _cause(record.note):
        return Decision(Note(seen), "it waits", note or f"application {seen.name} no longer waits")
    return _timed(record, observation, policy, now)


def _not_repeated(record: Record, name: str, said: str) -> str:
    """The note on an attempt that ends its job by an error of the script. It ends with the error, as all notes on failures do."""
    again = "kubectl sparkonce rerun -f FILE --reason TEXT" if record.objects else "sparkonce rerun -f FILE"
    remedy = f"correct it, or add {name} to spec.retry.retryOn, and run it again with `{again}`"
    return f"not repeated, because every attempt of this script would fail the same way ({remedy}): {said}"


LINGERING = "every output is committed and its program has ended, but a thread keeps its process, which is stopped after lingerSeconds"


def waiting_note(record: Record, seen: ApplicationState) -> str:
    """The record's note in this state: why the driver has not started, or has not ended."""
    if seen.phase is Phase.RUNNING and seen.lingers is not None:
        return LINGERING
    starts = seen.phase in (Phase.ACCEPTED, Phase.STARTING, Phase.HELD) and not goes_back(record, seen.phase)
    return seen.waits if starts else ""


def _cause(waits: str) -> str:
    """The cause without reason and details, which may change at every observation: each change would be a write."""
    return waits.partition(" (")[0]


def goes_back(record: Record, phase: Phase) -> bool:
    """Whether the record already holds a later phase. Application and driver pod are watched independently, so a pod that is known to
    run may be observed once more in its earlier phase."""
    return phase in _GROWS and record.phase in _GROWS[_GROWS.index(phase) + 1 :]


_COMPLETED = "the application completed"
ALL_COMMITTED = "every output is committed"
"""Beginning of the note on an attempt that has committed every output; "; " and details of its end may follow."""
HALF_MADE = 120.0
"""Seconds that the driver pod of a half-failed submission may wait for its mounts: a ConfigMap that was never created will not appear,
while attaching a volume may take a minute or two. Giving up on a driver that would have started costs an attempt and no effect."""
_GROWS = (Phase.ACCEPTED, Phase.STARTING, Phase.RUNNING)


def _overdue(record: Record, policy: Policy, now: float) -> Decision | None:
    if policy.active_deadline is None or now - record.created_at <= policy.active_deadline:
        return None
    said = f"generation {record.generation} is older than activeDeadlineSeconds ({policy.active_deadline:.0f} s)"
    return _settle(record, Why.TIMEOUT, "deadline", said)


def _timed(record: Record, observation: Observation, policy: Policy, now: float) -> Decision:
    if overdue := _overdue(record, policy, now):
        return overdue
    if (lingers := _lingers(observation, policy)) is not None and lingers > policy.linger:
        said = f"every output is committed, and its program ended {lingers:.0f} s ago (lingerSeconds)"
        return _settle(record, Why.COMPLETED, "it lingered", said)
    if observation.driver_age is not None:
        silence = _silence(observation)
        if policy.heartbeat_timeout is not None and silence is not None and silence > policy.heartbeat_timeout:
            return _settle(record, Why.STALE, "heartbeat stale", f"no heartbeat for {observation.driver_age:.0f} s")
    elif observation.owner_age is not None and observation.owner_age > policy.start_timeout:
        said = f"no driver for {observation.owner_age:.0f} s (startTimeoutSeconds)"
        return _settle(record, Why.STALE, "it did not start", "; ".join(filter(None, (said, record.note))))
    elif (half_made := _half_made(observation)) is not None and now > half_made + HALF_MADE:
        said = f"no driver for {now - half_made:.0f} s after a submission that failed half-way"
        return _settle(record, Why.STALE, "it did not start", "; ".join(filter(None, (said, record.note))))
    until = _next_limit(record, observation, policy, now)
    said = ": ".join(filter(None, (f"attempt {record.attempt} is {record.phase}", record.note)))
    return Decision(Wait(until), "running", said, f"sparkonce cancel {record.key}")


def _lingers(observation: Observation, policy: Policy) -> float | None:
    """Seconds since the driver reported that it has nothing left to do. A hint, as every report of a driver: the outputs decide."""
    seen = observation.seen
    return seen.lingers if seen is not None and seen.phase is Phase.RUNNING and policy.declared else None


def _silence(observation: Observation) -> float | None:
    """Seconds of silence that count: the period restarts after a takeover and after an outage of all gateways. None: silence proves
    nothing."""
    if observation.driver_age is None or observation.receivable_for is None:
        return None
    return min(observation.driver_age, observation.receivable_for)


def _next_limit(record: Record, observation: Observation, policy: Policy, now: float) -> float | None:
    """When the next timeout expires if nothing changes."""
    limits: list[float] = []
    if policy.active_deadline is not None:
        limits.append(record.created_at + policy.active_deadline)
    if (lingers := _lingers(observation, policy)) is not None:
        limits.append(now + policy.linger - lingers)
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
    """Decides what a settled attempt means for its generation. Call it only once every output is fenced, or an opaque attempt is
    stopped: before that a late commit could contradict the decision."""
    if verdict in (Verdict.ALL, Verdict.COMPLETED):
        said = ALL_COMMITTED if verdict is Verdict.ALL else "exit code 0"
        if record.settling is not None and record.settling.note.startswith(_COMPLETED):
            said += record.settling.note.removeprefix(_COMPLETED)
        return Decision(Finalize(Outcome.SUCCEEDED, None, said), f"settled: {verdict}", said)
    if held := _HELD.get(verdict):
        return Decision(Hold(*held), f"settled: {verdict}", held[1])
    settling = record.settling
    assert settling is not None  # written before anything is settled
    why, note = settling.why, settling.note
    if why is Why.NAME_TAKEN and not _wants_end(record, observation):
        if record.uncounted >= _FOREIGN_NAMES:
            said = f"the name of attempt {record.attempt} is taken, and {record.uncounted} attempts before it could not be counted either"
            return Decision(Hold(HeldReason.NAME_TAKEN, said), "the name is taken", said)
        return _grant(record, policy, now, counted=False, why="its name was taken")
    ended = _end(record, why, verdict, observation)
    never_ran = verdict is Verdict.NONE and not policy.declared
    if never_ran and ended is None and record.uncounted < policy.submission_retries:
        again = _grant(record, policy, now, counted=False, why=note)
        return Decision(again.action, "it never ran", again.evidence)
    counted = record.counted - (why is Why.PREEMPTED)
    more = counted < policy.max_attempts
    if verdict is Verdict.UNKNOWN:
        note = f"outcome unknown; {note}"  # neither Failed nor Cancelled proves that no effect exists
    if verdict is Verdict.SOME and (ended is not None or not more):
        said = f"some outputs are committed and some can never be by attempt {record.attempt}; {note}"
        return Decision(Hold(HeldReason.PARTIAL, said), "settled: Some, and a reason to end", said)
    if ended is not None:
        return Decision(Finalize(ended, why, note), f"settled: {verdict}", note)
    if verdict is Verdict.UNKNOWN and policy.on_unknown is OnUnknown.HOLD:
        said = f"it is unknown whether attempt {record.attempt} took effect; {settling.note}"
        return Decision(Hold(HeldReason.UNKNOWN, said), "outcome unknown", said)
    if verdict is Verdict.UNKNOWN and policy.on_unknown is OnUnknown.FAIL:
        return Decision(Finalize(Outcome.FAILED, why, note), "outcome unknown", note)
    if more:
        return _grant(record, policy, now, counted=why is not Why.PREEMPTED, why=note)
    return Decision(
        Finalize(Outcome.FAILED, why, note), "attempts used up", f"{counted} of {policy.max_attempts} attempts: {note}"
    )


_FOREIGN_NAMES = (
    2  # at the third taken name in a row a person decides: another program creates applications under our names
)

_HELD: dict[Verdict, tuple[HeldReason, str]] = {
    Verdict.STUCK: (
        HeldReason.STUCK,
        "a sealed transaction cannot be committed; some of its outputs may be",
    ),
    Verdict.KEY_CONFLICT: (HeldReason.KEY_CONFLICT, "an output holds a commit of this key for another job"),
    Verdict.CANNOT_SETTLE: (
        HeldReason.CANNOT_SETTLE,
        "no process that reaches the outputs has reported whether it took effect",
    ),
    Verdict.CANNOT_PLACE: (
        HeldReason.CANNOT_PLACE,
        "a late request could still take the attempt's name, so it cannot be abandoned",
    ),
    Verdict.STILL_THERE: (HeldReason.STILL_THERE, "the attempt could not be stopped; it may still run"),
}


def wants_end(record: Record, observation: Observation) -> bool:
    """Whether the generation is to end here on request: then what a stream has committed so far is its result."""
    settling = record.settling
    requested = settling is not None and settling.why in (Why.CANCELLED, Why.SUPERSEDED)
    return requested or _wants_end(record, observation)


def _wants_end(record: Record, observation: Observation) -> bool:
    return record.stop_wanted is not None or observation.gone or observation.superseded


def _end(record: Record, why: Why, verdict: Verdict, observation: Observation) -> Outcome | None:
    """The outcome that rules out another attempt; None: another attempt may follow."""
    if why in (Why.CANCELLED, Why.SUPERSEDED) or _wants_end(record, observation):
        return Outcome.CANCELLED
    if why in (Why.PERMANENT, Why.EXPECTATION, Why.TIMEOUT, Why.RESOLVED):
        return Outcome.FAILED
    if why is Why.COMPLETED and verdict is Verdict.NONE:
        return Outcome.FAILED  # NoEffect: it exited 0 and wrote nothing; another attempt would do the same
    return None


def _grant(record: Record, policy: Policy, now: float, *, counted: bool, why: str) -> Decision:
    delay = policy.delay(record.counted, nonce=record.nonce)
    action = Grant(record.attempt + 1, counted, now + delay if delay else None)
    return Decision(action, "another attempt", f"attempt {record.attempt} ended: {why}")
