"""A key as one read of etcd returned it, or as a caller believes it to be, and the comparison that makes either safe to act on.

A verb decides by `rules` on a snapshot, then writes in one transaction that compares what the decision rested on. So a belief may be of any
age: a wrong one fails the comparison, and the same transaction returns a real snapshot. Only a refusal must not rest on a belief, because
no transaction follows it to check the belief; `Steps.step` reads the key then.

A key that a decision needs and the snapshot lacks (`Unread`) is read at the same revision: one decision never mixes two revisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sparkonce.errors import RecordUnreadable
from sparkonce.etcd.kv import Compare, KeyValue, Range, RangeReply, TxnReply
from sparkonce.model.record import Address, Intent, Record, Report, ReportedSoFar, Result, Value
from sparkonce.store.codec import decode, encode, name, record_of
from sparkonce.store.etcd.layout import Layout
from sparkonce.store.protocol import Claim
from sparkonce.store.rules import KeyState

V = TypeVar("V", bound=Value)

FIRST_EPOCH = 1
"""Epoch of a store that was never restored."""


class Unread(Exception):
    """A decision needs a key that this snapshot does not include."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.key = key


class Owner(Value):
    """The value of a claim: the key's existence is the claim, its value names the owner."""

    lease: str
    owner: str
    nonce: str


def claim_text(claim: Claim) -> bytes:
    return encode(Owner(lease=claim.lease, owner=claim.owner, nonce=claim.nonce)).encode()


@dataclass(frozen=True, kw_only=True)
class KeySnapshot:
    layout: Layout
    address: Address
    record: Record | None
    claim: Claim | None
    floor: int = 0
    epoch: int = FIRST_EPOCH
    revision: int = 0
    """The store's revision when it was read; 0: not read but believed by a caller."""
    found: Mapping[bytes, KeyValue | None] = field(default_factory=dict)
    """Values beside the record, as far as known; None: the key does not exist."""
    asked: set[bytes] = field(default_factory=set)
    """Keys of `found` that a decision has used."""

    @property
    def believed(self) -> bool:
        return self.revision == 0

    def seen(self, at: float) -> KeyState:
        """The key's state for `rules`. `next` is provisional: `Steps.step` sets the revision that etcd returned."""
        return KeyState(
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

    def reported(self, generation: int, attempt: int) -> ReportedSoFar:
        return self._body(ReportedSoFar, self.layout.size(self.address, generation, attempt)) or ReportedSoFar()

    def _body(self, kind: type[V], key: bytes) -> V | None:
        if key not in self.found:
            raise Unread(key)
        self.asked.add(key)
        kv = self.found[key]
        return None if kv is None else decode(kind, text_of(kv), where=name(self.address))

    def compares(self, *, claim: bool, floor: bool) -> list[Compare]:
        """The comparisons: the record and the values used beside it are as seen; claim and floor too if the verb depends on them."""
        layout, address = self.layout, self.address
        same = [_unmoved(layout.record(address), self.record.revision if self.record else 0)]
        if claim:
            same.append(_unmoved(layout.claim(address), self.claim.revision if self.claim else 0))
            if self.claim is not None and self.believed:  # a restored store may count the same revisions again
                same.append(Compare(layout.claim(address), "value", "=", claim_text(self.claim)))
        if floor and self.floor:
            same.append(Compare(layout.floor(address), "value", "=", str(self.floor).encode()))
        elif floor:
            same.append(_unmoved(layout.floor(address), 0))
        return same + [_unmoved(key, _revision_of(self.found[key])) for key in sorted(self.asked)]


def _revision_of(kv: KeyValue | None) -> int:
    return 0 if kv is None else kv.mod_revision


def _unmoved(key: bytes, revision: int) -> Compare:
    """Compares that the key was last written at this revision; 0: it does not exist."""
    return Compare(key, "mod", "=", revision)


def text_of(kv: KeyValue) -> str:
    """The value as text; bytes that are not UTF-8 become text that no parser accepts."""
    return kv.value.decode(errors="replace")


def reads(layout: Layout, address: Address, also: Sequence[bytes] = ()) -> list[Range]:
    """The ranges that one snapshot reads, in one transaction."""
    keys = layout.record(address), layout.claim(address), layout.floor(address), layout.epoch, *also
    return [Range(key) for key in keys]


def first_of(reply: object) -> KeyValue | None:
    """The one key of a range, or None."""
    if not isinstance(reply, RangeReply):
        raise TypeError(f"etcd answered a range with {type(reply).__name__}")
    return reply.kvs[0] if reply.kvs else None


def snapshot_of(layout: Layout, address: Address, reply: TxnReply, *, also: Sequence[bytes] = ()) -> KeySnapshot:
    """The snapshot in the answer to `reads`. Raises: RecordUnreadable, RecordTooNew."""
    record, claim, floor, epoch, *beside = [first_of(one) for one in reply.replies]
    number = epoch_of(epoch)
    return KeySnapshot(
        layout=layout,
        address=address,
        record=_record(address, record, number),
        claim=_claim(address, claim),
        floor=0 if floor is None else number_of(floor, f"the generation floor of {name(address)}"),
        epoch=number,
        revision=reply.revision,
        found=dict(zip(also, beside, strict=True)),
    )


def epoch_of(kv: KeyValue | None) -> int:
    return FIRST_EPOCH if kv is None else number_of(kv, "the store's epoch")


def _record(address: Address, kv: KeyValue | None, epoch: int) -> Record | None:
    if kv is None:
        return None
    return record_of(address, text_of(kv), revision=kv.mod_revision, epoch=epoch)


def _claim(address: Address, kv: KeyValue | None) -> Claim | None:
    """The claim, with the revision of its last write: a claim is written once, and a person's reopen may replace it by a new one."""
    if kv is None:
        return None
    said = decode(Owner, text_of(kv), where=name(address))
    return Claim(address=address, lease=said.lease, owner=said.owner, revision=kv.mod_revision, nonce=said.nonce)


def number_of(kv: KeyValue, what: str) -> int:
    try:
        return int(kv.value)
    except ValueError:
        raise RecordUnreadable(
            f"{what} is {text_of(kv)[:20]!r} and not a number; restore the store from a backup"
        ) from None
