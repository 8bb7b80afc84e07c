"""What the objects of one key ask, and what each of them is to the key's record. Pure; it writes nothing.

Two questions that must not be mixed up. *What does this object ask now?* (`asked`): a request has a number, one more whenever the object's
fingerprint differs from the last one known, and that is the newer of its status and the record's openers. A request that is known opens
nothing, so two objects that would replace each other end after one generation each, and an edit there and back that nobody saw is no
request at all. *What is it to the record?* (`place`, and `plan` for all objects of a key at once): which single one may reserve, reopen
or supersede now; who follows, is refused, waits, is told a result.

`engine.request.answer` is the table behind `place`, as for a command; here stands what only objects have: a name in the record, a status
that remembers, and others of the same key. The leader's policies rule its duplicates (onDuplicate); what an object may replace is its
own wish (onMismatch, onFinalized), as in the executable model.

Nobody is attached to a generation that ends by somebody's will. A follower named after the end was begun would be told Cancelled
although nobody cancelled it: it waits, and opens the next generation. Source: DESIGN sections 6 and 7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sparkonce.engine.object_view import ObjectView, uids
from sparkonce.engine.policy import Policy
from sparkonce.engine.request import Answer, Answered, answer
from sparkonce.model.policy import OnDelete, OnDuplicate
from sparkonce.model.record import Opener, Record, State, Why
from sparkonce.sink.protocol import Evidence
from sparkonce.store.protocol import View

DUPLICATE_REJECTED = "DuplicateRejected"
SUPERSEDED = "Superseded"
"""Reasons in a status by which a later look knows what this object was told."""


@dataclass(frozen=True)
class Asked:
    number: int
    fingerprint: str
    known: bool
    """The last request known of this object is this one: it opens nothing."""
    answered: bool
    """Its status shows the answer."""


def asked(obj: ObjectView, record: Record | None) -> Asked:
    """What the object asks now. Where status and record name two requests under one number (two processes had read the object
    before and after an edit), the one that it asks now counts as known: opening nothing is always safe."""
    known: list[tuple[int, bool]] = []
    status = obj.status
    if "ledgerRevision" in status and "fingerprint" in status:
        known.append((int(status.get("requestNumber") or 0), obj.asks(status["fingerprint"])))
    told = bool(known) and known[0][1]
    if record is not None:
        known += [(by.number or 0, obj.asks(by.fingerprint)) for by in record.openers if by.uid == obj.uid]
    number, same = max(known, default=(0, False))
    return Asked(number + (not same), obj.fingerprint, known=same, answered=same and told)


class Standing(StrEnum):
    """What an object is to its key, now."""

    OPENS = "Opens"
    """It may open a generation, and it is its turn: reserve, or reopen."""
    WAITS = "Waits"
    """It will be answered later: another opens first, the generation is ending, or a person must decide before it may be replaced."""
    SUPERSEDES = "Supersedes"
    """It may open the next generation, with another fingerprint: the running one ends for it first."""
    ATTACHES = "Attaches"
    """A follower that the record does not name yet; it gets no status before."""
    LEADS = "Leads"
    FOLLOWS = "Follows"
    REPLAYS = "Replays"
    """It came after the end."""
    REFUSED = "Refused"
    """onDuplicate is Reject, and the generation has not ended."""
    MISMATCH = "Mismatch"
    """The key is for something else."""
    SUPERSEDED = "Superseded"
    """Another job took the key after this one had been served; terminal until it is edited."""
    EXPIRED = "Expired"
    """It was answered, and the record is gone: it runs nothing."""
    INVALID = "Invalid"
    """Its spec has no fingerprint."""
    IGNORED = "Ignored"
    """It is gone, or being deleted and never asked anything that was heard."""


UNANSWERED = frozenset(
    {
        Standing.OPENS,
        Standing.WAITS,
        Standing.SUPERSEDES,
        Standing.ATTACHES,
        Standing.INVALID,
        Standing.IGNORED,
    }
)
"""A status written now must not name the fingerprint: it would count as an answer."""


@dataclass(frozen=True)
class Placed:
    uid: str
    standing: Standing
    asked: Asked | None = None
    """None: its spec is not valid, or it is ignored."""
    said: Answered | None = None
    """The row of `answer`; None where no row was asked."""
    why: str = ""
    """One sentence: what is waited for."""


@dataclass(frozen=True)
class Opening:
    """The one request that may open a generation now; the write compares what was seen here."""

    uid: str
    by: Opener
    reserve: bool
    """There is no record: reserve over the floor that was read. Else reopen the record that was read."""
    supersedes: bool = False


@dataclass(frozen=True)
class Plan:
    placed: tuple[Placed, ...]
    """One per object, in the order they were given."""
    opening: Opening | None = None
    superseded: bool = False
    """The running generation ends, so that another one may follow it."""
    gone: bool = False
    """Nobody wants the running generation any more."""

    def of(self, uid: str) -> Placed:
        """KeyError: not among the objects."""
        found = next((placed for placed in self.placed if placed.uid == uid), None)
        if found is None:
            raise KeyError(uid)
        return found

    def uids(self, standing: Standing) -> tuple[str, ...]:
        return tuple(placed.uid for placed in self.placed if placed.standing is standing)


def plan(
    view: View,
    objects: Sequence[ObjectView],
    *,
    leader: Policy | None = None,
    evidence: Mapping[str, Evidence] | None = None,
    gone: Collection[str] = (),
    on_delete: OnDelete = OnDelete.STOP,
) -> Plan:
    """All live objects of one key at once. `leader`: the policies of the record's generation. `gone`: UIDs that live reads proved to be
    gone; a list alone proves nothing. `on_delete`: of the leader. RecordTooNew: equality cannot be judged here."""
    placed: list[Placed] = []
    turns: list[tuple[bool, str, str, int]] = []
    for index, obj in enumerate(objects):
        if obj.uid in gone:
            placed.append(Placed(obj.uid, Standing.IGNORED))
            continue
        one = place(view, obj, leader=leader, evidence=evidence)
        placed.append(one)
        if one.standing is Standing.OPENS:
            turns.append((not _supersedes(one), obj.created, obj.uid, index))
    first = (
        min(turns)[-1] if turns else None
    )  # who replaces the job goes first, then the oldest: the same for every process
    for *_, index in turns:
        if index != first:
            said = "another object of this key is first"
            placed[index] = replace(placed[index], standing=Standing.WAITS, why=said)
    record = view.record
    running = record is not None and record.state is State.IN_PROGRESS
    joining = any(one.standing is Standing.ATTACHES for one in placed)
    return Plan(
        placed=tuple(placed),
        opening=None if first is None else _opening(view, placed[first]),
        superseded=running and any(one.standing is Standing.SUPERSEDES for one in placed),
        gone=record is not None and running and on_delete is OnDelete.STOP and not joining and _unwanted(record, gone),
    )


def _unwanted(record: Record, gone: Collection[str]) -> bool:
    """A generation that no object ever wanted (a command opened it) is not unwanted now."""
    return bool(record.objects) and all(uid in gone for uid in uids(record))


def _supersedes(placed: Placed) -> bool:
    return placed.said is not None and placed.said.answer is Answer.SUPERSEDE


def _opening(view: View, placed: Placed) -> Opening:
    assert placed.asked is not None  # who opens has asked something
    by = Opener(uid=placed.uid, number=placed.asked.number, fingerprint=placed.asked.fingerprint)
    return Opening(placed.uid, by, reserve=view.record is None, supersedes=_supersedes(placed))


def place(
    view: View,
    obj: ObjectView,
    *,
    leader: Policy | None = None,
    evidence: Mapping[str, Evidence] | None = None,
) -> Placed:
    """One object by itself; several may be told OPENS, of which `plan` leaves one."""
    record = view.record
    if not obj.fingerprints or obj.policy is None:
        return Placed(obj.uid, Standing.INVALID)
    ask = asked(obj, record)
    if obj.deleting and not ask.known:
        return Placed(obj.uid, Standing.IGNORED)
    if record is None:
        return Placed(obj.uid, Standing.EXPIRED if ask.answered else Standing.OPENS, ask)
    same = obj.same(record)
    said = answer(view, same=same, policy=obj.policy, outputs=evidence, key=record.key, opened=ask.known)
    if ask.answered and was_superseded(obj):
        return Placed(obj.uid, Standing.SUPERSEDED, ask, said)
    standing, why = _standing(record, obj, ask, said, same=same, leader=leader)
    return Placed(obj.uid, standing, ask, said, why)


def _standing(
    record: Record, obj: ObjectView, ask: Asked, said: Answered, *, same: bool, leader: Policy | None
) -> tuple[Standing, str]:
    match said.answer:
        case Answer.MISMATCH:
            return (Standing.SUPERSEDED if ask.known and _was_served(obj, record) else Standing.MISMATCH), ""
        case Answer.SUPERSEDE if record.reopenable:
            return Standing.OPENS, ""
        case Answer.SUPERSEDE:
            return Standing.SUPERSEDES, f"generation {record.generation} ends first; this job then takes its place"
        case Answer.REOPEN:
            return Standing.OPENS, ""
        case Answer.HELD if not same:
            return Standing.WAITS, f"generation {record.generation} is held ({said.evidence}); {said.unblock}"
        case Answer.REPLAY | Answer.RESULT_GONE:
            return _role(record, obj), ""
    return _unfinished(record, obj, ask, leader)


def _role(record: Record, obj: ObjectView) -> Standing:
    if not obj.wanting(record):
        return Standing.REPLAYS
    return Standing.LEADS if leader_of(record) == obj.uid else Standing.FOLLOWS


def _unfinished(record: Record, obj: ObjectView, ask: Asked, leader: Policy | None) -> tuple[Standing, str]:
    """The same job, in progress or held."""
    if obj.wanting(record):
        return _role(record, obj), ""
    rejects = leader is not None and leader.on_duplicate is OnDuplicate.REJECT
    if rejects and (not ask.known or was_refused(obj)):
        return Standing.REFUSED, ""
    if ending(record):
        return Standing.WAITS, f"generation {record.generation} is being ended"
    if obj.deleting:
        return Standing.IGNORED, ""
    return Standing.ATTACHES, ""


def leader_of(record: Record) -> str | None:
    """UID of the object that opened the generation; where a command did, the first that wanted it."""
    opened_by = record.openers[-1].uid if record.openers else None
    return opened_by or next(iter(uids(record)), None)


def ending(record: Record) -> bool:
    """Somebody wants this generation to end: nobody may be made to want it now."""
    if record.state is not State.IN_PROGRESS:
        return False
    settling = record.settling
    begun = settling is not None and settling.attempt >= record.attempt
    willed = settling is not None and settling.why in (Why.CANCELLED, Why.SUPERSEDED)
    return record.stop_wanted is not None or (begun and willed)


def _was_served(obj: ObjectView, record: Record) -> bool:
    """It led, followed or was told a result; else it was a mismatch before and is one still."""
    opened = any(by.uid == obj.uid and obj.asks(by.fingerprint) for by in record.openers)
    return opened or "role" in obj.status


def reason(status: Mapping[str, object], kind: str) -> tuple[str, str]:
    """(status, reason) of the condition of this type; ("", "") when there is none."""
    listed = status.get("conditions")
    for each in listed if isinstance(listed, list) else ():
        if each.get("type") == kind:
            return str(each.get("status", "")), str(each.get("reason", ""))
    return "", ""


def was_superseded(obj: ObjectView) -> bool:
    return reason(obj.status, "Mismatch") == ("True", SUPERSEDED)


def was_refused(obj: ObjectView) -> bool:
    return reason(obj.status, "Reserved") == ("False", DUPLICATE_REJECTED)
