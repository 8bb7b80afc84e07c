"""Plans what to do about the objects of one key: what each asks for, and its relation to the key's record. Pure; writes nothing.

Two questions are kept apart. *What does this object ask for now?* (`asked`): requests of an object are numbered; the number grows by one
whenever its fingerprint differs from that of its last known request, which is the newer of its status and the record's openers. A known
request opens nothing, so two objects that would replace each other end after one generation each, and an edit that was reverted before
any process read it is not a request. *What is its relation to the record?* (`place`; `plan` for all objects of a key): the one object that
may reserve, reopen or supersede now, and which ones follow, wait, are refused or get a recorded result.

`attempt.request.answer` is the decision table behind `place`, the same as for commands; this module adds what only objects have: a name in
the record, a stored status, and other objects of the same key. The leader's policies rule its duplicates (onDuplicate); an object's own
policies rule what it may replace (onMismatch, onFinalized).

No object is attached to a generation that is being ended on request: it would get the outcome Cancelled although it was not cancelled. It
waits and opens the next generation. Source: docs/design.md, sections 6 and 7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sparkonce.attempt import rerun
from sparkonce.attempt.decide import Policy, held_remedy, not_started
from sparkonce.attempt.request import Answer, Answered, answer, for_kubectl
from sparkonce.controller.objects import ObjectView, uids
from sparkonce.model.record import MOST_OBJECTS, Opener, Record, State, Why
from sparkonce.model.spec import OnDelete, OnDuplicate, OnMismatch
from sparkonce.sink.protocol import Found
from sparkonce.store.protocol import View

DUPLICATE_REJECTED = "DuplicateRejected"
SUPERSEDED = "Superseded"
"""Reasons in a status that a later reconcile reads back."""


@dataclass(frozen=True)
class LatestRequest:
    """What an object asks for now."""

    number: int
    fingerprint: str
    known: bool
    """It is the object's last known request: it opens nothing."""
    answered: bool
    """The object's status shows the answer."""


def asked(obj: ObjectView, record: Record | None) -> LatestRequest:
    """Returns what the object asks for now. Where status and record name two requests under one number (two processes read the object
    before and after an edit), the current one counts as known: opening nothing is always safe."""
    known: list[tuple[int, bool]] = []
    status = obj.status
    if "ledgerRevision" in status and "fingerprint" in status:
        known.append((int(status.get("requestNumber") or 0), obj.asks(status["fingerprint"])))
    told, in_status = known[0] if known else (0, False)
    if record is not None:
        known += [(by.number or 0, obj.asks(by.fingerprint)) for by in record.openers if by.uid == obj.uid]
    number, same = max(known, default=(0, False))
    answered = same and in_status and told == number
    if answered and _policy_edited(obj):
        return LatestRequest(number + 1, obj.fingerprint, known=False, answered=False)
    return LatestRequest(number + (not same), obj.fingerprint, known=same, answered=answered)


def _policy_edited(obj: ObjectView) -> bool:
    """Whether the stored answer was given under another onMismatch: the edit asks again. A status that does not name it was written by an
    earlier version, or by one beside it: nothing is asked then."""
    told = obj.status.get("onMismatch")
    return told is not None and obj.policy is not None and told != obj.policy.on_mismatch


def asks_rerun(obj: ObjectView, record: Record) -> bool:
    """Whether the object's annotation asks for a generation that it has not got: no request that opened one had this text, and the status
    does not name it. Returning to an earlier text asks for nothing."""
    if not obj.rerun or obj.deleting or obj.status.get("rerun") == obj.rerun:
        return False
    return not answered_rerun(obj, record)


def answered_rerun(obj: ObjectView, record: Record) -> bool:
    """Whether a generation of the key was opened with the text of the object's annotation, by this object or another one."""
    return bool(obj.rerun) and any(by.rerun == rerun.digest(obj.rerun) for by in record.openers)


class Relation(StrEnum):
    """An object's current relation to its key."""

    OPENS = "Opens"
    """It may open a generation now: reserve, or reopen."""
    WAITS = "Waits"
    """It is answered later: another object opens first, the generation is ending, or a person must resolve it first."""
    SUPERSEDES = "Supersedes"
    """It may open the next generation, with another fingerprint, once the present one has been ended for it."""
    ATTACHES = "Attaches"
    """A follower that the record does not name yet; its status is written once it does."""
    LEADS = "Leads"
    """It opened the generation."""
    FOLLOWS = "Follows"
    """It was attached while the generation ran."""
    REPLAYS = "Replays"
    """It came after the end and gets the recorded result."""
    REFUSED = "Refused"
    """onDuplicate is Reject, and the generation has not ended."""
    MISMATCH = "Mismatch"
    """The key belongs to another job."""
    SUPERSEDED = "Superseded"
    """Another job took the key after this one had been served; terminal until the object is edited."""
    EXPIRED = "Expired"
    """It was answered and the record is gone: it runs nothing."""
    INVALID = "InvalidSpec"
    """Its spec is not valid, or it would open a generation whose template contradicts the attempt."""
    IGNORED = "Ignored"
    """It is gone, or was deleted before its request was recorded."""


UNANSWERED = frozenset(
    {
        Relation.OPENS,
        Relation.WAITS,
        Relation.SUPERSEDES,
        Relation.ATTACHES,
        Relation.INVALID,
        Relation.IGNORED,
    }
)
"""A status written in these relations must not name the fingerprint: it would count as an answer."""


@dataclass(frozen=True)
class Placed:
    """One object with its relation to the key."""

    uid: str
    relation: Relation
    asked: LatestRequest | None = None
    """None: its spec is not valid, or it is ignored."""
    said: Answered | None = None
    """The answer that `attempt.request.answer` gave; None where it was not asked."""
    why: str = ""
    """One sentence: what it waits for."""
    rerun: str = ""
    """Text of the annotation that asks for the next generation; empty: nothing does, or it was answered."""


@dataclass(frozen=True)
class Opening:
    """The one request that may open a generation now; its write is conditional on the view that was planned from."""

    uid: str
    by: Opener
    reserve: bool
    """The key has no record: reserve it. Else reopen the record."""
    supersedes: bool = False
    rerun: str = ""
    """Text of the annotation that asks for it; empty: another rule opens it."""
    annotation: str | None = None
    """The object's annotation, which the object still has when it opens; None: it has none."""


@dataclass(frozen=True)
class Plan:
    """What to do about all objects of a key."""

    placed: tuple[Placed, ...]
    """One per object, in the given order."""
    opening: Opening | None = None
    superseded: bool = False
    """End the present generation, so that another may follow it."""
    gone: bool = False
    """End the running generation: every object that wanted it is gone."""

    def of(self, uid: str) -> Placed:
        """The object of this UID. Raises: KeyError: not among the objects."""
        found = next((placed for placed in self.placed if placed.uid == uid), None)
        if found is None:
            raise KeyError(uid)
        return found

    def uids(self, relation: Relation) -> tuple[str, ...]:
        """UIDs of the objects with this relation."""
        return tuple(placed.uid for placed in self.placed if placed.relation is relation)


def plan(
    view: View,
    objects: Sequence[ObjectView],
    *,
    leader: Policy | None = None,
    evidence: Mapping[str, Found] | None = None,
    gone: Collection[str] = (),
    on_delete: OnDelete = OnDelete.STOP,
) -> Plan:
    """Plans all live objects of one key at once.

    `leader`: the policies of the record's generation. `gone`: UIDs that live reads proved to be gone; absence from a list proves nothing.
    `on_delete`: the leader's.

    Raises: RecordTooNew: the record's fingerprint version is unknown here, so equality cannot be judged."""
    placed: list[Placed] = []
    turns: list[tuple[bool, str, str, int]] = []
    for index, obj in enumerate(objects):
        if obj.uid in gone:
            placed.append(Placed(obj.uid, Relation.IGNORED))
            continue
        one = place(view, obj, leader=leader, evidence=evidence)
        placed.append(one)
        if one.relation is Relation.OPENS:
            turns.append((not _supersedes(one), obj.created, obj.uid, index))
    first = (
        min(turns)[-1] if turns else None
    )  # superseding objects first, then the oldest: every process picks the same one
    for *_, index in turns:
        if index != first:
            said = "another object of this key is first"
            placed[index] = replace(placed[index], relation=Relation.WAITS, why=said)
    record = view.record
    running = record is not None and record.state is State.IN_PROGRESS
    joining = any(one.relation is Relation.ATTACHES for one in placed)
    return Plan(
        placed=tuple(placed),
        opening=None if first is None else _opening(view, objects[first], placed[first]),
        superseded=running and any(one.relation is Relation.SUPERSEDES for one in placed),
        gone=record is not None and running and on_delete is OnDelete.STOP and not joining and _unwanted(record, gone),
    )


def _unwanted(record: Record, gone: Collection[str]) -> bool:
    """Whether all objects that wanted the generation are gone; False if none ever did (a command opened it)."""
    return bool(record.objects) and all(uid in gone for uid in uids(record))


def _supersedes(placed: Placed) -> bool:
    return placed.said is not None and placed.said.answer is Answer.SUPERSEDE


def _opening(view: View, obj: ObjectView, placed: Placed) -> Opening:
    assert placed.asked is not None  # set for every valid object
    by = Opener(uid=placed.uid, number=placed.asked.number, fingerprint=placed.asked.fingerprint)
    opening = Opening(placed.uid, by, reserve=view.record is None, supersedes=_supersedes(placed))
    return opening if obj.annotation is None else _annotated(opening, obj, placed)


def _annotated(opening: Opening, obj: ObjectView, placed: Placed) -> Opening:
    """Whatever rule opens the generation, it is what the annotation asks for, too."""
    by = opening.by.model_copy(update={"rerun": rerun.digest(obj.rerun)}) if obj.rerun else opening.by
    return replace(opening, by=by, rerun=placed.rerun, annotation=obj.annotation)


def place(
    view: View,
    obj: ObjectView,
    *,
    leader: Policy | None = None,
    evidence: Mapping[str, Found] | None = None,
) -> Placed:
    """Places one object by itself; of several that get OPENS, `plan` keeps one."""
    record = view.record
    if not obj.fingerprints or obj.policy is None:
        return Placed(obj.uid, Relation.INVALID)
    ask = asked(obj, record)
    if obj.deleting and not ask.known:
        return Placed(obj.uid, Relation.IGNORED)
    if record is None:
        return _opens(obj, Placed(obj.uid, Relation.EXPIRED if ask.answered else Relation.OPENS, ask))
    same = obj.same(record)
    said = answer(view, same=same, policy=obj.policy, outputs=evidence, key=record.key, opened=ask.known)
    relation, why = _standing(record, obj, ask, said, same=same, leader=leader)
    placed = Placed(obj.uid, relation, ask, said, why)
    return _opens(obj, placed if obj.annotation is None else _reruns(record, obj, placed, ask))


def _reruns(record: Record, obj: ObjectView, placed: Placed, ask: LatestRequest) -> Placed:
    """The relation of an annotated object. If it asks for the next generation it opens that one once it may, and stops none for it."""
    if not asks_rerun(obj, record):
        return placed
    if record.reopenable:
        new = replace(ask, number=ask.number + ask.known, known=False, answered=False)
        return replace(placed, relation=Relation.OPENS, asked=new, why="", rerun=obj.rerun)
    if placed.relation in (Relation.MISMATCH, Relation.SUPERSEDED):
        ends = f"generation {record.generation} is for another job and ends first"
        if record.state is State.HELD:
            ends = (
                f"generation {record.generation} is for another job and held ({record.held}); "
                f"{for_kubectl(held_remedy(record.key), obj.ref.namespace)}"
            )
        return replace(
            placed, relation=Relation.WAITS, why=f"{ends}; this job then runs, as its annotation asks", rerun=obj.rerun
        )
    return replace(placed, rerun=obj.rerun)


def _opens(obj: ObjectView, placed: Placed) -> Placed:
    """Refuses an object that may not open a generation but would; an object of a recorded key is answered as before."""
    if obj.contradiction and placed.relation in (Relation.OPENS, Relation.SUPERSEDES):
        return replace(placed, relation=Relation.INVALID, why=obj.contradiction)
    return placed


def _standing(
    record: Record, obj: ObjectView, ask: LatestRequest, said: Answered, *, same: bool, leader: Policy | None
) -> tuple[Relation, str]:
    if ask.answered and was_superseded(obj):
        return Relation.SUPERSEDED, ""
    match said.answer:
        case Answer.MISMATCH if _corrects(record, obj, ask):
            return _correction(record)
        case Answer.MISMATCH:
            return (Relation.SUPERSEDED if ask.known and _was_served(obj, record) else Relation.MISMATCH), ""
        case Answer.SUPERSEDE if record.reopenable:
            return Relation.OPENS, ""
        case Answer.SUPERSEDE:
            return Relation.SUPERSEDES, f"generation {record.generation} ends first; this job then takes its place"
        case Answer.REOPEN:
            return Relation.OPENS, ""
        case Answer.HELD if not same:
            remedy = for_kubectl(said.unblock, obj.ref.namespace)
            return Relation.WAITS, f"generation {record.generation} is held ({said.evidence}); {remedy}"
        case Answer.REPLAY | Answer.RESULT_GONE:
            return _role(record, obj), ""
    return _unfinished(record, obj, ask, leader)


def _corrects(record: Record, obj: ObjectView, ask: LatestRequest) -> bool:
    """Whether the object was edited into another job before a driver of the generation that it opened was seen to run, and no other object
    wants that generation. A mismatch protects effects, and this generation has none yet, so the operator ends it for the edited job. If a
    driver has run after all, the key keeps that result, and the object is a mismatch."""
    strict = obj.policy is None or obj.policy.on_mismatch is OnMismatch.REJECT_ALWAYS
    if ask.known or strict or record.state is not State.IN_PROGRESS:
        return False
    return leader_of(record) == obj.uid and set(uids(record)) <= {obj.uid} and not_started(record)


def _correction(record: Record) -> tuple[Relation, str]:
    """An application that waits for nothing that is known may have a driver in the next moment, so it is not ended for an edit."""
    before = f"generation {record.generation} is for this object as it was before its edit"
    if record.application is None or record.note:
        return (
            Relation.SUPERSEDES,
            f"{before}; it ends first, because no driver of it has started, and this job then takes its place",
        )
    return Relation.WAITS, f"{before}, and its driver may start now; if it has to wait, this job takes its place"


def _role(record: Record, obj: ObjectView) -> Relation:
    if not obj.wanting(record):
        return Relation.REPLAYS
    return Relation.LEADS if leader_of(record) == obj.uid else Relation.FOLLOWS


def _unfinished(record: Record, obj: ObjectView, ask: LatestRequest, leader: Policy | None) -> tuple[Relation, str]:
    """Relation of an object that asks for the same job, which is in progress or held."""
    if obj.wanting(record):
        return _role(record, obj), ""
    rejects = leader is not None and leader.on_duplicate is OnDuplicate.REJECT
    if rejects and (not ask.known or was_refused(obj)):
        return Relation.REFUSED, ""
    if why := _closed(record):
        return Relation.WAITS, why
    if obj.deleting:
        return Relation.IGNORED, ""
    return Relation.ATTACHES, ""


def _closed(record: Record) -> str:
    """Why no further object can be attached to the generation; empty: one can."""
    if ending(record):
        return f"generation {record.generation} is being ended"
    if len(record.objects) >= MOST_OBJECTS:
        return f"{MOST_OBJECTS} objects wait for generation {record.generation}, and no more can; this one gets its result afterwards"
    return ""


def leader_of(record: Record) -> str | None:
    """UID of the object that opened the generation or, if a command did, of the first that wants it."""
    opened_by = record.openers[-1].uid if record.openers else None
    return opened_by or next(iter(uids(record)), None)


def ending(record: Record) -> bool:
    """Whether the generation is being ended on request: no object may be attached to it."""
    if record.state is not State.IN_PROGRESS:
        return False
    settling = record.settling
    begun = settling is not None and settling.attempt >= record.attempt
    willed = settling is not None and settling.why in (Why.CANCELLED, Why.SUPERSEDED)
    return record.stop_wanted is not None or (begun and willed)


def _was_served(obj: ObjectView, record: Record) -> bool:
    """Whether the object led, followed or got a result; otherwise it was a mismatch before and still is."""
    opened = any(by.uid == obj.uid and obj.asks(by.fingerprint) for by in record.openers)
    return opened or "role" in obj.status


def reason(status: Mapping[str, object], kind: str) -> tuple[str, str]:
    """(status, reason) of the condition of this type; ("", "") if the status lacks it."""
    listed = status.get("conditions")
    for each in listed if isinstance(listed, list) else ():
        if each.get("type") == kind:
            return str(each.get("status", "")), str(each.get("reason", ""))
    return "", ""


def was_superseded(obj: ObjectView) -> bool:
    """Whether the stored status says that another job took the key."""
    return reason(obj.status, "Mismatch") == ("True", SUPERSEDED)


def was_refused(obj: ObjectView) -> bool:
    """Whether the stored status says that the object was refused as a duplicate."""
    return reason(obj.status, "Reserved") == ("False", DUPLICATE_REJECTED)
