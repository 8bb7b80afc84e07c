"""Projects `.status` of an IdempotentJob from the key's record and the object. Pure: it reads nothing, remembers nothing, writes nothing.

`project` builds the status, `next_status` decides whether it is worth a write, `transitions` lists the events that a change deserves. All
state is in the record and in the stored status, so any process computes the same after any crash.

*Answers.* A status that names its object's fingerprint beside a ledgerRevision is the answer to that request, and an answered object never
opens a generation again. So an object that is about to open one, or waits for its turn or to be named in the record, gets a status that
keeps its previous answer and only says what it waits for. `Failed` and `Cancelled` are reported of a generation that ended so, and of a
spec that never reached the ledger; never of a refused duplicate, because they mean that no effect exists. An object whose key went to
another job after it had finished stays finished and says so in its Mismatch condition. Complete is withheld when a result is first
reported and its output is gone; it is not withdrawn when the output disappears later.

*Phase.* Recovering means that something was lost and the job has not been observed running since: an attempt without an owner, one being
settled because it was lost, or a later attempt whose driver does not run yet. A new owner finds the application noted in the record, so
that the phase is Running again at once. A phase is never guessed from elapsed time, and no message holds a number that changes by itself:
each change would be a write.

*Conditions.* `Complete` and `Failed` are those of a batch/v1 Job, so that tools that wait for a Job can wait for this; they are listed once
true, and stay as False only if a rerun withdraws them. `Reserved` is always listed, since users first ask whether anything is being done.
lastTransitionTime is kept as long as the condition's status is, so that two processes write the same list.
`Ready`, `Reconciling` and `Stalled` are for tools that know no phases: kstatus (in Flux, kpt and Helm), Argo CD, `kubectl wait`.
`standard_condition` is their table; exactly one of them is True. They are always listed, so that `Reconciling=False` can be waited for.
Beside Reconciling, Ready is Unknown and not False, so that `Ready=False` means that the job ended without a result. They are left out while
an operator that does not know them runs, which would remove them at each of its sweeps.

*Order.* Statuses are ordered by (epoch, ledgerRevision, observedGeneration) and only move forward: any number of processes, frozen ones
among them, may hold a projection of an older record. The API server's resourceVersion makes each write a compare-and-set; this order is the
compare. Clocks were rejected for it: the most outdated process may have the fastest clock. A change of lastTransitionTime or ledgerRevision
alone is not worth a write: a record with a hundred followers changes a hundred times, and readers of a hundred objects learn nothing from
it. A stored ledgerRevision is therefore a lower bound of the revisions reported to the object, which suffices to detect a rewound store.
The projection of an older record may win for a moment; its write triggers a reconcile, which writes the newer one.

*Progress and events.* Heartbeats are in no record and cause no write. Progress is rounded to few digits, so that a status changes when a
person would notice. An event is a write that no program acts on, so each transition emits one: a phase, a refused duplicate, a lost
result. A job that runs well has two events. Source: docs/design.md, section 7.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal, localcontext
from typing import Any, NamedTuple

from sparkonce.attempt import rerun
from sparkonce.attempt.decide import LINGERING, Policy, stop_request_text
from sparkonce.attempt.request import Answer, Answered, for_kubectl
from sparkonce.controller.objects import Json, ObjectView
from sparkonce.controller.plan import (
    DUPLICATE_REJECTED,
    SUPERSEDED,
    UNANSWERED,
    Placed,
    Relation,
    answered_rerun,
    place,
    was_superseded,
)
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Outcome, Record, Result, Settling, State, Why
from sparkonce.sink.protocol import Evidence, Found
from sparkonce.store.protocol import View

_LOSSES = frozenset({Why.LOST, Why.PREEMPTED, Why.STALE, Why.NAME_TAKEN})
_RUNS = frozenset({Phase.RUNNING, Phase.FINISHING})


def settling_now(record: Record) -> Settling | None:
    """The settling of the current attempt; None: it is not being settled."""
    settling = record.settling
    return settling if settling is not None and settling.attempt >= record.attempt else None


def phase_of(view: View, record: Record) -> str:
    """The phase of a job in progress; see the module."""
    settling = settling_now(record)
    if view.claim is None or (settling is not None and settling.why in _LOSSES):
        return "Recovering"
    if record.phase in _RUNS:
        return "Running"
    return "Pending" if record.attempt == 1 else "Recovering"


class Now(NamedTuple):
    """What a job in progress does, or waits for."""

    message: str
    reason: str = ""
    """One word for programs; empty: the phase says it."""


def now_of(view: View, record: Record, leader: Policy | None) -> Now:
    """What a job in progress does or waits for: the only source of the status' message and of the reason of its Reconciling condition."""
    if _waits_for_its_start(view, record) and leader is not None and leader.suspend:
        return Now("suspended; set spec.suspend to false to start it", SUSPENDED)
    return Now(_message_of(view, record))


def _waits_for_its_start(view: View, record: Record) -> bool:
    ends = settling_now(record) is not None or record.stop_wanted is not None
    return view.claim is not None and not ends and record.bound is None and record.application is None


def _message_of(view: View, record: Record) -> str:
    number = f"attempt {record.attempt}"
    settling = settling_now(record)
    if view.claim is None:
        return f"{number} has no owner; the next operator process continues it"
    if settling is not None:
        return f"{number} is being settled: {settling.note or settling.why}"
    if record.stop_wanted is not None:
        ends = (
            f"{number} ends"
            if record.bound is None
            else f"it waits for the end of application {record.bound.application}"
        )
        return f"{stop_request_text(record.stop_wanted)}; {ends}"
    if record.bound is not None:
        return _followed(record)
    if record.application is None:
        return _granted(record, number)
    if record.phase == Phase.HELD and not record.note:
        return f"{number} waits for its queue"
    if record.phase in _RUNS:
        return f"{number}: {LINGERING}" if record.note == LINGERING else f"{number} runs"
    return f"{number}{_WAITS}{record.note}" if record.note else f"{number} waits for its driver"


_WAITS = " waits for its driver: "
"""Part of the message of a job whose driver does not start; the cause follows it."""


def _followed(record: Record) -> str:
    assert record.bound is not None  # _message_of calls this for bound records only
    name = record.bound.application
    if record.application is None:
        return f"application {name} is being read"
    if record.phase == Phase.HELD:
        return f"follows application {name}, which is suspended"
    return f"follows application {name}, which " + ("runs" if record.phase in _RUNS else "waits for its driver")


def _granted(record: Record, number: str) -> str:
    """The message of an attempt that is not launched yet."""
    before = (
        f"attempt {record.settling.attempt} ended: {record.settling.note or record.settling.why}; "
        if record.settling
        else ""
    )
    if record.not_before is None:
        return f"{before}{number} is about to be launched"
    return f"{before}{number} is launched at {iso(record.not_before)}"


def iso(seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC, to the second, as Kubernetes writes times."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


COMPLETE, FAILED, RESERVED, HELD, MISMATCH, RESULT_GONE, RESULT_CHANGED = (
    "Complete",
    "Failed",
    "Reserved",
    "Held",
    "Mismatch",
    "ResultGone",
    "ResultChanged",
)
READY, RECONCILING, STALLED = "Ready", "Reconciling", "Stalled"
STANDARD = (READY, RECONCILING, STALLED)
"""Types that other tools know; see `standard_condition`."""
TYPES = (COMPLETE, FAILED, RESERVED, HELD, MISMATCH, RESULT_GONE, RESULT_CHANGED, *STANDARD)
"""Condition types, in the order of the list."""
SUSPENDED, INVALID_SPEC = "Suspended", "InvalidSpec"
"""Reasons of standard conditions that are not phases."""
STATUS_VERSION = 3
"""Version of the statuses that this process writes. 1: with the standard conditions, and a message of every phase. 2: with `rerun` and
`onMismatch`, which a process of an earlier version would remove. 3: with the condition ResultChanged, which it would remove, too."""
_WITH_STANDARD, _WITH_REQUESTS, _WITH_CHANGED = 1, 2, 3
FINAL = frozenset({"Succeeded", "Failed", "Cancelled"})
"""Phases of a generation that ended."""
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
MESSAGE_LIMIT = 1024
"""Characters of a message: every watcher gets the whole status."""

_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


@dataclass(frozen=True)
class Fact:
    """The content of one condition."""

    holds: str
    reason: str
    message: str


def fact(reason: str, message: str, *, holds: str = TRUE) -> Fact:
    """Makes a Fact; a reason that the API server would refuse becomes Other."""
    return Fact(holds, reason if _REASON.fullmatch(reason) else "Other", sentence(message))


def sentence(text: str) -> str:
    """The text on one line, cut to MESSAGE_LIMIT."""
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 1] + "…"


_STOPPED = frozenset({"Failed", "Cancelled", "Held", "Mismatch", "Expired"})
"""Phases that wait for a person, unless the job is Complete nevertheless."""


def standard_condition(phase: str, facts: Mapping[str, Fact], reason: str = "") -> tuple[str, str]:
    """Which standard condition is True, and its reason. `facts`: the other conditions. `reason`: of `now_of`.

    Ready: the result is there. Stalled: nothing happens until a person acts. Reconciling: everything else, a job that waits for another
    one or for a restored ledger too, because it goes on without an edit of this object."""
    complete = facts.get(COMPLETE)
    if phase in ("Succeeded", "Expired") and complete is not None and complete.holds == TRUE:
        return READY, complete.reason
    reserved = facts.get(RESERVED)
    waits = reserved.reason if reserved is not None and reserved.holds != TRUE else ""
    if waits == INVALID_SPEC:
        return STALLED, INVALID_SPEC
    if phase == "Succeeded":
        return STALLED, RESULT_GONE
    if phase in _STOPPED:
        return STALLED, phase
    return RECONCILING, waits or reason or phase


def standard_conditions(phase: str, facts: Mapping[str, Fact], message: str, reason: str = "") -> dict[str, Fact]:
    """The standard conditions of a status with this phase, these other conditions and this message."""
    true, why = standard_condition(phase, facts, reason)
    others = {kind: Fact(FALSE, phase, f"the job is {phase}") for kind in (RECONCILING, STALLED)}
    ready = {READY: TRUE, RECONCILING: UNKNOWN, STALLED: FALSE}[true]
    return others | {READY: fact(why, message, holds=ready)} | {true: fact(why, message)}


def conditions(
    facts: Mapping[str, Fact],
    stored: Mapping[str, Any],
    *,
    phase: str,
    observed: int,
    now_text: str,
    types: Sequence[str] = TYPES,
) -> list[Json]:
    """Builds the list of conditions. `stored`: the current status. `observed`: metadata.generation of the object. `now_text`: RFC 3339.
    `types`: those that may be listed."""
    before = by_type(stored)
    listed: list[Json] = []
    for kind in types:
        was = before.get(kind, {})
        if kind in facts:
            one = facts[kind]
        elif was:
            one = Fact(FALSE, phase, f"the job is {phase}")
        else:
            continue
        same = was.get("status") == one.holds and "lastTransitionTime" in was
        listed.append(
            {
                "type": kind,
                "status": one.holds,
                "reason": one.reason,
                "message": one.message,
                "observedGeneration": observed,
                "lastTransitionTime": was["lastTransitionTime"] if same else now_text,
            }
        )
    return listed


def by_type(status: Mapping[str, Any]) -> dict[str, Json]:
    """The conditions of a status by type."""
    return {str(each.get("type", "")): each for each in status.get("conditions") or ()}


def kept(stored: Mapping[str, Any], kind: str) -> dict[str, Fact]:
    """The stored condition of this type, unchanged, if it is True; else nothing."""
    was = by_type(stored).get(kind, {})
    if was.get("status") != TRUE:
        return {}
    return {kind: Fact(TRUE, str(was.get("reason", "")), str(was.get("message", "")))}


def rounded(progress: Mapping[str, Any], *, digits: int) -> Json:
    """Rounds every number towards zero to `digits` significant digits, so that rising progress is never shown falling. NaN and infinity are
    left out.

    Raises: ValueError: `digits` is below 1."""
    if digits < 1:
        raise ValueError("progress is shown with at least one digit")
    shown = {str(name): _shown(value, digits) for name, value in progress.items()}
    return {name: value for name, value in shown.items() if value is not None}


def _shown(value: Any, digits: int) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return _whole(value, digits)
    if isinstance(value, float):
        return _real(value, digits) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return rounded(value, digits=digits)
    if isinstance(value, (list, tuple)):
        return [_shown(each, digits) for each in value]
    return str(value)


def _whole(value: int, digits: int) -> int:
    unit: int = 10 ** max(0, len(str(abs(value))) - digits)
    return (abs(value) // unit * unit) * (1 if value >= 0 else -1)


def _real(value: float, digits: int) -> float:
    """Rounds the decimal text, so that 0.3 stays 0.3."""
    exact = Decimal(repr(value))
    with localcontext(prec=digits, rounding=ROUND_DOWN):
        return float(+exact)


PROGRESS_DIGITS = 2
"""Two digits have 90 values per power of ten: a job that writes a billion rows changes its status some hundreds of times, not millions."""
_PATHS_NAMED = 5  # in a message; `mismatch` lists all of them
_ROLES = {Relation.LEADS: "Leader", Relation.FOLLOWS: "Follower", Relation.REPLAYS: "Replay"}


@dataclass(frozen=True)
class Trouble:
    """Why nothing is done for an object, if the record does not show it: an invalid spec, a full realm, an unanswered request."""

    reason: str
    message: str
    final: bool = False
    """Nothing is done until the object is edited."""
    unknown: bool = False
    """The ledger could not be read: the key may be reserved all the same."""


def project(
    view: View | None,
    obj: ObjectView,
    *,
    now_text: str,
    leader: Policy | None = None,
    result: Result | None = None,
    evidence: Mapping[str, Found] | None = None,
    mismatch_paths: Sequence[str] | None = None,
    progress: Mapping[str, Any] | None = None,
    progress_digits: int = PROGRESS_DIGITS,
    trouble: Trouble | None = None,
    version: int = STATUS_VERSION,
) -> Json:
    """Builds the object's status.

    `view`: None: the ledger was not read. `leader`: policies of the record's generation. `result`: of that generation. `evidence`: per
    output, from a probe. `mismatch_paths`: where the object differs from the record. `progress`: of the running attempt. `now_text`:
        RFC 3339. For an argument that is None (not read), the stored status keeps what it says. `version`: the highest STATUS_VERSION that
    every live operator process writes.

    Raises: RecordTooNew: the record's fingerprint version is unknown here."""
    if view is None:
        unread = _StatusDraft(obj, now_text, version)
        return unread.unanswered(None, "NotRead", "the ledger has not been read yet", trouble)
    placed = place(view, obj, leader=leader, evidence=evidence)
    status, record = _StatusDraft(obj, now_text, version), view.record
    if placed.relation in UNANSWERED:
        why = placed.why or _WAITING.get(placed.relation, "")
        return status.unanswered(placed, str(placed.relation), why, trouble)
    if record is None:
        return status.expired(view, placed)
    status.answered(view, record, placed)
    match placed.relation:
        case Relation.SUPERSEDED:
            return status.superseded(record, placed)
        case Relation.MISMATCH:
            return status.mismatch(record, placed, mismatch_paths)
        case Relation.REFUSED:
            return status.refused(record)
    match record.state:
        case State.FINALIZED:
            return status.finalized(record, placed, result, evidence)
        case State.HELD:
            return status.held(record, placed)
        case State.IN_PROGRESS:
            coarse = None if progress is None else rounded(progress, digits=progress_digits)
            status.running(view, record, placed, coarse)
            now = Now(trouble.message) if trouble else now_of(view, record, leader)
            return status.done(phase_of(view, record), now.message, now.reason)


_WAITING = {
    Relation.OPENS: "the key is being reserved",
    Relation.ATTACHES: "this object is being attached to the running job",
    Relation.INVALID: "the spec is not valid",
    Relation.IGNORED: "the object is being deleted",
}


class _StatusDraft:
    """A status being built: `answered`, then one of the methods that end it."""

    def __init__(self, obj: ObjectView, now_text: str, version: int) -> None:
        self.obj, self.stored, self.now_text = obj, dict(obj.status), now_text
        self.standard, self.requests = version >= _WITH_STANDARD, version >= _WITH_REQUESTS
        self.shows_changed = version >= _WITH_CHANGED
        self.waits = ""
        self.body: Json = {"observedGeneration": obj.generation}
        self.facts: dict[str, Fact] = {}

    # --- the request that is answered
    def answered(self, view: View, record: Record, placed: Placed) -> None:
        assert placed.asked is not None  # set for every valid object
        told = self.stored.get("fingerprint")
        if not self.obj.asks(told):  # as recorded where it is the same job: edits of what is ignored then keep it
            recorded = self.obj.asks(record.fingerprint)
            told = record.fingerprint if recorded else self.obj.fingerprints[record.fingerprint_version]
        self.body |= {
            "epoch": view.epoch,
            "ledgerRevision": record.revision,
            "fingerprint": told,
            "requestNumber": placed.asked.number,
            "key": record.key,
            "keyHash": record.key_hash,
            "generation": record.generation,
        }
        self.reran(record)
        if placed.rerun:
            self.waits = f"the next generation follows its end, as {rerun.ANNOTATION} asks"

    def reran(self, record: Record) -> None:
        """Names the annotation's text that got a generation, or the one before it."""
        self.carried("rerun")
        if self.requests and answered_rerun(self.obj, record):
            self.body["rerun"] = self.obj.rerun

    def asked_under(self) -> None:
        """Names the onMismatch under which the object was refused the key: another one asks again."""
        if self.requests and self.obj.policy is not None:
            self.body["onMismatch"] = str(self.obj.policy.on_mismatch)

    def carried(self, *names: str) -> None:
        self.body |= {name: self.stored[name] for name in names if name in self.stored}

    @property
    def same_generation(self) -> bool:
        """Whether the stored status is about the same generation."""
        about = ("generation", "keyHash", "fingerprint", "epoch")
        return all(self.stored.get(name) == self.body.get(name) for name in about)

    def done(self, phase: str, message: str = "", reason: str = "") -> Json:
        self.body["phase"] = phase
        message = "; ".join(filter(None, (self.obj.rerun_refused, message, self.waits)))
        if message:
            self.body["message"] = sentence(message)
        if self.standard:
            said = str(self.body.get("message") or f"the job is {phase}")
            self.facts |= standard_conditions(phase, self.facts, said, reason)
        types = TYPES if self.standard else tuple(each for each in TYPES if each not in STANDARD)
        self.body["conditions"] = conditions(
            self.facts, self.stored, phase=phase, observed=self.obj.generation, now_text=self.now_text, types=types
        )
        return self.body

    def unchanged(self) -> Json:
        """The stored status, as an answer to the object's newest edit. Each condition names that edit, or `kubectl wait` would wait on."""
        phase = str(self.stored.get("phase", ""))
        before = by_type(self.stored)
        self.facts = {
            kind: Fact(str(was.get("status", UNKNOWN)), str(was.get("reason", "")), str(was.get("message", "")))
            for kind, was in before.items()
        }
        if self.standard and phase and not all(kind in before for kind in STANDARD):  # written by an earlier version
            said = str(self.stored.get("message") or f"the job is {phase}")
            self.facts |= standard_conditions(phase, self.facts, said)
        listed = conditions(self.facts, self.stored, phase=phase, observed=self.obj.generation, now_text=self.now_text)
        return self.stored | {"observedGeneration": self.obj.generation} | ({"conditions": listed} if listed else {})

    # --- no answer yet
    def unanswered(self, placed: Placed | None, reason: str, message: str, trouble: Trouble | None) -> Json:
        ask = placed.asked if placed is not None else None
        has_answer = "ledgerRevision" in self.stored
        if has_answer and (ask.answered if ask is not None else self.obj.asks(self.stored.get("fingerprint"))):
            return self.unchanged()
        names = ("epoch", "ledgerRevision", "fingerprint", "requestNumber", "generation", "key", "keyHash")
        self.carried(*names, "rerun", "onMismatch")
        self.body |= {"key": self.obj.key, "keyHash": self.obj.key_hash} if self.obj.key_hash else {}
        trouble = trouble or Trouble(reason, message, final=reason == Relation.INVALID)
        holds = UNKNOWN if trouble.unknown else FALSE
        self.facts[RESERVED] = fact(trouble.reason, trouble.message, holds=holds)
        if not trouble.final or has_answer:
            return self.done("Pending", trouble.message)
        self.facts[FAILED] = fact(trouble.reason, trouble.message)
        return self.done("Failed", trouble.message)

    def expired(self, view: View, placed: Placed) -> Json:
        assert placed.asked is not None  # only an answered object expires
        self.carried("key", "keyHash", "fingerprint", "result", "replayed", "rerun")
        self.body |= {"epoch": view.epoch, "ledgerRevision": view.revision, "generation": view.floor}
        self.body["requestNumber"] = placed.asked.number
        if self.stored.get("phase") == "Expired" and self.same_generation:
            self.carried("ledgerRevision")  # only other keys have advanced the store's revision
        said = "the record of this key is gone (retention has ended, or it was forgotten); apply a new object to run the job again"
        self.facts = kept(self.stored, COMPLETE) | kept(self.stored, FAILED)
        self.facts[RESERVED] = fact("Expired", said, holds=FALSE)
        return self.done("Expired", said)

    # --- the key belongs to another job
    def superseded(self, record: Record, placed: Placed) -> Json:
        if was_superseded(self.obj):
            return self.unchanged()  # terminal until edited
        assert placed.said is not None  # set with a record
        self.asked_under()
        said = f"generation {record.generation} of {record.key} is for another job, which took this one's place"
        self.facts[RESERVED] = fact(SUPERSEDED, said, holds=FALSE)
        self.facts[MISMATCH] = fact(SUPERSEDED, said)
        if self.obj.asks(self.stored.get("fingerprint")):
            self.facts |= kept(self.stored, COMPLETE) | kept(self.stored, FAILED)
            if self.stored.get("phase") in ("Succeeded", "Failed"):  # Cancelled is not a result
                self.carried("role", "generation", "attempt", "result", "replayed", "message")
                return self.done(str(self.stored["phase"]))
        return self.done("Mismatch", f"{said}; {self.instead()}")

    def instead(self) -> str:
        """What to do about an object whose key another job has. `sparkonce rerun KEY` would run that job again."""
        return f"give it another revision or key, or run it in the other one's place: {self.annotation}"

    @property
    def annotation(self) -> str:
        """The command that runs the object's current spec."""
        ref = self.obj.ref
        return f"kubectl annotate --overwrite idempotentjobs -n {ref.namespace} {ref.name} {rerun.ANNOTATION}=REASON"

    @property
    def again(self) -> str:
        """The command that runs the object's job once more. With `spec.bind` the annotation would follow the application again."""
        plugin = f"kubectl sparkonce rerun {self.obj.key} -n {self.obj.ref.namespace}"
        return plugin if self.obj.bound else self.annotation

    def mismatch(self, record: Record, placed: Placed, paths: Sequence[str] | None) -> Json:
        assert placed.said is not None  # set with a record
        self.asked_under()
        if paths is not None:
            self.body["mismatch"] = list(paths)
        elif self.same_generation:
            self.carried("mismatch")
        listed = self.body.get("mismatch") or []
        more = f" and {len(listed) - _PATHS_NAMED} more" if len(listed) > _PATHS_NAMED else ""
        fields = f" (it differs in {', '.join(listed[:_PATHS_NAMED])}{more})" if listed else ""
        other = f"generation {record.generation} of {record.key} is for another job"
        said = f"{other}{fields}; {self.instead()}"
        self.facts[MISMATCH] = fact("Mismatch", said)
        self.facts[RESERVED] = fact("Mismatch", other, holds=FALSE)
        return self.done("Mismatch", said)

    def refused(self, record: Record) -> Json:
        said = (
            f"refused: generation {record.generation} of {record.key} has not ended, and its onDuplicate is Reject; "
            "its result is shown here once there is one"
        )
        self.facts[RESERVED] = fact(DUPLICATE_REJECTED, said, holds=FALSE)
        return self.done("Pending", said)

    # --- the key belongs to this job
    def served(self, record: Record, placed: Placed) -> None:
        self.body |= {"role": _ROLES[placed.relation], "attempt": record.attempt}
        if record.application is not None:
            self.body["application"] = record.application.name
        reserved = {
            Relation.LEADS: f"generation {record.generation} was opened for this object",
            Relation.FOLLOWS: f"generation {record.generation} runs for this object, too",
            Relation.REPLAYS: f"generation {record.generation} is answered with its recorded result",
        }
        said = reserved[placed.relation]
        if record.bound is not None:
            said += f"; it follows application {record.bound.application}, which sparkonce did not start"
        self.facts[RESERVED] = fact(_ROLES[placed.relation], said)

    def running(self, view: View, record: Record, placed: Placed, progress: Json | None) -> None:
        self.served(record, placed)
        if view.claim is not None:
            self.body["owner"] = view.claim.owner
        if progress is not None:
            self.body |= {"progress": progress} if progress else {}
        elif self.same_generation and self.stored.get("attempt") == record.attempt:
            self.carried("progress")

    def held(self, record: Record, placed: Placed) -> Json:
        self.served(record, placed)
        assert placed.said is not None  # set with a record
        said = self.in_kubectl(f"{record.note or record.held}; {placed.said.unblock}")
        self.facts[HELD] = fact(str(record.held), said)
        return self.done("Held", said)

    def finalized(
        self, record: Record, placed: Placed, result: Result | None, evidence: Mapping[str, Found] | None
    ) -> Json:
        self.served(record, placed)
        self.body["replayed"] = placed.relation is not Relation.LEADS
        if result is not None:
            self.body["result"] = _result(self._told(result))
        elif self.same_generation:
            self.carried("result")
        if record.outcome is not Outcome.SUCCEEDED:
            failure = result.failure if result is not None else None
            said = f"{self.in_kubectl(record.note) or record.outcome}; to run it again: {self.again}"
            why = failure.class_ if failure and record.outcome is Outcome.FAILED else str(record.outcome)
            self.ends(FAILED, fact(why, said), known=result is not None)
            return self.done(str(record.outcome), said)
        gone = self._gone(placed, evidence)
        self.facts |= gone
        if not gone or (self.same_generation and kept(self.stored, COMPLETE)):
            said = f"generation {record.generation} succeeded" + (f": {result.evidence}" if result else "")
            reason = "Committed" if result is not None and result.outputs else "Completed"
            if result is not None and result.outputs and all(each.skipped is not None for each in result.outputs):
                reason = "Skipped"
            self.ends(COMPLETE, fact(reason, said), known=result is not None)
        else:
            self.facts[COMPLETE] = fact(RESULT_GONE, gone[RESULT_GONE].message, holds=FALSE)
        changed = {} if gone else self._changed(placed, evidence)
        self.facts |= changed
        succeeded = self.facts[COMPLETE].message if self.standard else ""
        return self.done("Succeeded", next((each.message for each in (gone | changed).values()), succeeded))

    def ends(self, kind: str, said: Fact, *, known: bool) -> None:
        """Sets the final condition. `known`: the result was read; without it, a condition written with the result is kept."""
        before = kept(self.stored, kind) if self.same_generation and not known else {}
        self.facts[kind] = before.get(kind, said)

    def _gone(self, placed: Placed, evidence: Mapping[str, Found] | None) -> dict[str, Fact]:
        """The ResultGone condition, if it holds; without a probe, as stored."""
        looked = [each.verdict for each in (evidence or {}).values() if each.verdict is not Evidence.NOT_CHECKED]
        if not looked:
            return kept(self.stored, RESULT_GONE) if self.same_generation else {}
        assert placed.said is not None  # set with a record
        if placed.said.answer is not Answer.RESULT_GONE:
            return {}
        reason = next((each for each in (Evidence.GONE, Evidence.REPLACED) if each in looked), Evidence.CHANGED)
        said = f"{placed.said.evidence}; nothing runs until {self.until(placed.said)}"
        return {RESULT_GONE: fact(reason.capitalize(), said)}

    def _changed(self, placed: Placed, evidence: Mapping[str, Found] | None) -> dict[str, Fact]:
        """The ResultChanged condition, if it holds; without a probe, as stored."""
        if not self.shows_changed:
            return {}
        looked = [found for found in (evidence or {}).values() if found.verdict is not Evidence.NOT_CHECKED]
        if not looked:
            return kept(self.stored, RESULT_CHANGED) if self.same_generation else {}
        verdicts = {found.verdict for found in looked} & {Evidence.CHANGED, Evidence.SUPERSEDED}
        if not verdicts:
            return {}
        assert placed.said is not None  # set with a record
        said = f"{placed.said.evidence}; its rows are written anew by {self.until(placed.said)}"
        reason = Evidence.CHANGED if Evidence.CHANGED in verdicts else Evidence.SUPERSEDED
        return {RESULT_CHANGED: fact(reason.capitalize(), said)}

    def _told(self, result: Result) -> Result:
        """With the remedy of a driver as a command of the plugin."""
        if (failure := result.failure) is None:
            return result
        told = failure.model_copy(update={"message": self.in_kubectl(failure.message)})
        return result.model_copy(update={"failure": told})

    def in_kubectl(self, text: str) -> str:
        """A sentence of the ledger, or of a driver, for who reads the object."""
        return for_kubectl(text, self.obj.ref.namespace)

    def until(self, said: Answered) -> str:
        """What a person can do, as the end of a sentence: a command, or several steps."""
        if said.unblock.startswith("sparkonce "):
            return f"`{self.again}`"
        return f"a person acts ({self.in_kubectl(said.unblock)})"


def _result(result: Result) -> Json:
    body = result.dump()
    times = {"startedAt": result.started_at, "finishedAt": result.finished_at}
    kept_out = {"outcome", "generation", *times}  # elsewhere in the status, or written as RFC 3339
    return {name: value for name, value in body.items() if name not in kept_out} | {
        name: iso(seconds) for name, seconds in times.items() if seconds
    }


NORMAL, WARNING = "Normal", "Warning"
_KINDS = {"Running": NORMAL, "Succeeded": NORMAL, "Expired": NORMAL}
_QUIET = frozenset({"", "Pending"})
SLOTS_TAKEN = "SlotsTaken"
_ROUTINE = frozenset({*UNANSWERED, "NotRead", SLOTS_TAKEN}) - {Relation.INVALID}
"""Reasons to wait that pass by themselves: not worth an event."""


class StatusEvent(NamedTuple):
    """One Kubernetes event."""

    kind: str
    """Normal or Warning."""
    reason: str
    message: str


def transitions(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[StatusEvent]:
    """The events to emit when status `new` replaces `old`."""
    old = old or {}
    phase, before = str(new.get("phase", "")), str(old.get("phase", ""))
    same_run = old.get("generation") == new.get("generation")
    ended_again = phase in FINAL and not same_run
    events: list[StatusEvent] = []
    if phase not in _QUIET and (phase != before or ended_again):
        replay = phase == "Succeeded" and new.get("role") == "Replay"
        events.append(StatusEvent(_KINDS.get(phase, WARNING), "Replayed" if replay else phase, _message(new, phase)))
    elif phase == before and same_run and new.get("attempt", 0) > old.get("attempt", 0):
        events.append(StatusEvent(NORMAL, "Retrying", _message(new, phase)))
    message = str(new.get("message", ""))
    if phase in ("Pending", "Recovering") and _WAITS in message and message != old.get("message"):
        events.append(StatusEvent(WARNING, "Waiting", message))
    waits = by_type(new).get(RESERVED, {})
    if phase == "Pending" and waits.get("status") != TRUE and _differs(old, waits, RESERVED):
        reason = str(waits.get("reason", ""))
        if reason not in _ROUTINE:
            events.append(StatusEvent(WARNING, reason, str(waits.get("message", ""))))
    gone = by_type(new).get(RESULT_GONE, {})
    if gone.get("status") == TRUE and _differs(old, gone, RESULT_GONE):
        events.append(StatusEvent(WARNING, RESULT_GONE, str(gone.get("message", ""))))
    changed = by_type(new).get(RESULT_CHANGED, {})
    if changed.get("status") == TRUE and _differs(old, changed, RESULT_CHANGED):
        events.append(StatusEvent(NORMAL, RESULT_CHANGED, str(changed.get("message", ""))))
    if phase != "Mismatch" and _became(old, new, MISMATCH, SUPERSEDED):
        events.append(StatusEvent(NORMAL, SUPERSEDED, str(by_type(new)[MISMATCH].get("message", ""))))
    return events


def _differs(old: Mapping[str, Any], now: Mapping[str, Any], kind: str) -> bool:
    was = by_type(old).get(kind, {})
    return (was.get("status"), was.get("reason")) != (now.get("status"), now.get("reason"))


def _became(old: Mapping[str, Any], new: Mapping[str, Any], kind: str, reason: str) -> bool:
    now = by_type(new).get(kind, {})
    return (now.get("status"), now.get("reason")) == (TRUE, reason) and _differs(old, now, kind)


def _message(status: Mapping[str, Any], phase: str) -> str:
    """The event's message; never empty."""
    if text := status.get("message"):
        return str(text)
    said = by_type(status).get("Complete", {}).get("message")
    return str(said or f"{status.get('key', 'the job')} is {phase}")


Order = tuple[int, int, int]

_NOT_WORTH_A_WRITE = frozenset({"ledgerRevision", "lastTransitionTime"})


def order(status: Mapping[str, Any] | None) -> Order:
    """(epoch, ledgerRevision, observedGeneration); zeros where the status was never written from the ledger."""
    status = status or {}
    return (
        int(status.get("epoch") or 0),
        int(status.get("ledgerRevision") or 0),
        int(status.get("observedGeneration") or 0),
    )


EPOCHS_AHEAD = 16
"""Epochs by which a status may be ahead of the ledger: a restore loses at most that many `accept-restore` decisions."""


def _far_ahead(stored: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Whether the stored status names an epoch that the ledger, which `desired` was read from, cannot have had."""
    return "epoch" in desired and order(stored)[0] > order(desired)[0] + EPOCHS_AHEAD


def newer(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Whether `one` was made from a later record, or from a later edit of the object, than `other`."""
    return order(one) > order(other)


def next_status(stored: Mapping[str, Any] | None, desired: Json, *, conflicted: bool = False) -> Json | None:
    """The status to write in place of `stored`; None: no write. `conflicted`: an earlier write of it met a changed object, so only a
    strictly newer status may replace the stored one; of two projections of one record, the stored one stays."""
    if not stored:
        return desired
    if _far_ahead(stored, desired):
        return desired
    if newer(stored, desired) or (conflicted and not newer(desired, stored)):
        return None
    return None if _content(stored) == _content(desired) else desired


def _content(status: Mapping[str, Any]) -> Json:
    """The status without the fields whose change alone is not worth a write."""
    content = {name: value for name, value in status.items() if name not in _NOT_WORTH_A_WRITE}
    content["conditions"] = [
        {name: value for name, value in each.items() if name not in _NOT_WORTH_A_WRITE}
        for each in status.get("conditions") or ()
    ]
    return content
