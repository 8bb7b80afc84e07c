"""What one look at a key in etcd saw, or what a caller believes to stand there, and the comparison that makes either safe to act on.

A verb decides by `rules` on a look and then writes in one transaction that compares what the decision rested on. So a belief may be as
old as it likes: a wrong one fails the comparison, and the same transaction returns a look that was taken. Only a *no* that rests on a
belief is worth nothing, because no transaction follows it; `etcd_step` takes a real look then.

What a decision asks for and nobody has read (`Unread`) is read at the same revision, so that one decision never sees two moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sparkonce.errors import RecordUnreadable
from sparkonce.etcd.kv import Compare, KeyValue, Range, RangeReply, TxnReply
from sparkonce.model.record import Address, Intent, Record, Report, Value
from sparkonce.model.result import Result
from sparkonce.store.codec import decode, encode, name, record_of
from sparkonce.store.etcd_keys import Layout
from sparkonce.store.protocol import Claim
from sparkonce.store.step import Seen

V = TypeVar("V", bound=Value)

FIRST_EPOCH = 1
"""Of a store that nobody has restored."""


class Unread(Exception):
    """A decision asks for a key that this look did not include."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.key = key


class Owner(Value):
    """The value of a claim. That it is there is the claim; whose it is says its value."""

    lease: str
    owner: str
    nonce: str


def claim_text(claim: Claim) -> bytes:
    return encode(Owner(lease=claim.lease, owner=claim.owner, nonce=claim.nonce)).encode()


@dataclass(frozen=True, kw_only=True)
class Look:
    layout: Layout
    address: Address
    record: Record | None
    claim: Claim | None
    floor: int = 0
    epoch: int = FIRST_EPOCH
    revision: int = 0
    """Of the store, when it was read; 0: nobody read it, a caller believes it."""
    found: Mapping[bytes, KeyValue | None] = field(default_factory=dict)
    """What stands beside the record, as far as it is known; None: nothing stands there."""
    asked: set[bytes] = field(default_factory=set)
    """Of `found`, what a decision has looked at."""

    @property
    def believed(self) -> bool:
        return self.revision == 0

    def seen(self, at: float) -> Seen:
        """A revision that the next write may not get: `etcd_step` sets it when etcd has said it."""
        return Seen(
            record=self.record,
            claim=self.claim,
            stale=False,
            floor=self.floor,
            at=at,
            next=self.revision + 1,
            epoch=self.epoch,
        )

    def result(self, generation: int) -> Result | None:
        return self._body(Result, self.layout.beside("result", self.address, generation))

    def intent(self, generation: int) -> Intent | None:
        return self._body(Intent, self.layout.beside("intent", self.address, generation))

    def report(self, generation: int, attempt: int, reporter: str) -> Report | None:
        return self._body(Report, self.layout.report(self.address, generation, attempt, reporter))

    def _body(self, kind: type[V], key: bytes) -> V | None:
        if key not in self.found:
            raise Unread(key)
        self.asked.add(key)
        stands = self.found[key]
        return None if stands is None else decode(kind, text_of(stands), where=name(self.address))

    def compares(self, *, claim: bool, floor: bool) -> list[Compare]:
        """That the record is as seen, and what was asked for beside it; claim and floor where the verb depends on them."""
        layout, address = self.layout, self.address
        same = [_unmoved(layout.record(address), self.record.revision if self.record else 0)]
        if claim:
            same.append(_unmoved(layout.claim(address), self.claim.revision if self.claim else 0))
            if self.claim is not None and self.believed:  # a store that was put back may count the same revisions again
                same.append(Compare(layout.claim(address), "value", "=", claim_text(self.claim)))
        if floor and self.floor:
            same.append(Compare(layout.floor(address), "value", "=", str(self.floor).encode()))
        elif floor:
            same.append(_unmoved(layout.floor(address), 0))
        return same + [_unmoved(key, _revision_of(self.found[key])) for key in sorted(self.asked)]


def _revision_of(stands: KeyValue | None) -> int:
    return 0 if stands is None else stands.mod_revision


def _unmoved(key: bytes, revision: int) -> Compare:
    """Last written at this revision; 0: not there."""
    return Compare(key, "mod", "=", revision)


def text_of(stands: KeyValue) -> str:
    """Bytes that are no text become text that no parser takes."""
    return stands.value.decode(errors="replace")


def reads(layout: Layout, address: Address, also: Sequence[bytes] = ()) -> list[Range]:
    """What one look reads, in one transaction."""
    keys = layout.record(address), layout.claim(address), layout.floor(address), layout.epoch, *also
    return [Range(key) for key in keys]


def first_of(reply: object) -> KeyValue | None:
    """Of a range of one key."""
    if not isinstance(reply, RangeReply):
        raise TypeError(f"etcd answered a range with {type(reply).__name__}")
    return reply.kvs[0] if reply.kvs else None


def look_of(layout: Layout, address: Address, reply: TxnReply, *, also: Sequence[bytes] = ()) -> Look:
    """From the answer to `reads`. RecordUnreadable, RecordTooNew."""
    record, claim, floor, epoch, *beside = [first_of(one) for one in reply.replies]
    number = epoch_of(epoch)
    return Look(
        layout=layout,
        address=address,
        record=_record(address, record, number),
        claim=_claim(address, claim),
        floor=0 if floor is None else _number(floor, f"the generation floor of {name(address)}"),
        epoch=number,
        revision=reply.revision,
        found=dict(zip(also, beside, strict=True)),
    )


def epoch_of(stands: KeyValue | None) -> int:
    return FIRST_EPOCH if stands is None else _number(stands, "the store's epoch")


def _record(address: Address, stands: KeyValue | None, epoch: int) -> Record | None:
    if stands is None:
        return None
    return record_of(address, text_of(stands), revision=stands.mod_revision, epoch=epoch)


def _claim(address: Address, stands: KeyValue | None) -> Claim | None:
    """Its revision is that of its last write: a claim is written once, and where a person's reopen replaces one, the new one counts."""
    if stands is None:
        return None
    said = decode(Owner, text_of(stands), where=name(address))
    return Claim(address=address, lease=said.lease, owner=said.owner, revision=stands.mod_revision, nonce=said.nonce)


def _number(stands: KeyValue, what: str) -> int:
    try:
        return int(stands.value)
    except ValueError:
        raise RecordUnreadable(
            f"{what} is {text_of(stands)[:20]!r} and no number; restore the store from a backup"
        ) from None
