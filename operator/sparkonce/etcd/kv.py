"""What is asked of etcd's key-value store, and what it answers, as plain values.

Callers build these and never see a protobuf message, so that the store's codec and its tests need no gRPC. A range is named as etcd
names it: `end` empty is the one key, `prefix_end(p)` all keys that begin with `p`, and a single zero byte all keys from `key` on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ALL_FROM = b"\0"
"""As `end`: every key from `key` on."""


def prefix_end(prefix: bytes) -> bytes:
    """The first key that is greater than all keys that begin with `prefix`: its last byte below 0xff counted up, the rest cut off."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else ALL_FROM


@dataclass(frozen=True)
class KeyValue:
    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    """Writes since the key was created, 1 for the first."""
    lease: int
    """0: on no lease."""


@dataclass(frozen=True)
class Put:
    key: bytes
    value: bytes
    lease: int = 0
    """The key goes when this lease does; a lease that does not exist makes etcd refuse the whole transaction."""


@dataclass(frozen=True)
class Delete:
    key: bytes
    end: bytes = b""


@dataclass(frozen=True)
class Range:
    key: bytes
    end: bytes = b""
    limit: int = 0
    """Most keys in one reply, in the order of their bytes; 0: all."""
    revision: int = 0
    """Read the store as it was then; 0: as it is. Pages of one listing use the first page's."""
    keys_only: bool = False
    count_only: bool = False


@dataclass(frozen=True)
class Compare:
    key: bytes
    target: Literal["create", "mod", "version", "value", "lease"]
    """`create` and `mod` are revisions; a key that does not exist has 0 in both, in its version and in its lease.

    A `value` of a key that does not exist compares unequal to everything, `!=` included: etcd then takes the other branch.
    """
    op: Literal["=", "!=", "<", ">"]
    value: int | bytes
    """Bytes for `value`, a number for the others."""
    end: bytes = b""
    """With an end, all keys of the range must compare so; a range without keys compares as one key that does not exist."""


@dataclass(frozen=True)
class Nested:
    """A transaction inside a transaction's branch.

    Its comparisons are of the store as it was before the whole transaction, and not of what the branch wrote before it; its
    operations do see that.
    """

    compare: tuple[Compare, ...]
    then: tuple[Op, ...]
    otherwise: tuple[Op, ...] = ()


Op = Put | Delete | Range | Nested


@dataclass(frozen=True)
class RangeReply:
    kvs: tuple[KeyValue, ...]
    more: bool
    """There are keys beyond the limit."""
    count: int
    """Keys in the whole range, whatever the limit."""
    revision: int
    """Of the store at this reply; inside a transaction the transaction's own counts."""


@dataclass(frozen=True)
class TxnReply:
    succeeded: bool
    """Which branch ran: True is `then`."""
    revision: int
    """Of the store after the transaction: what it wrote has this as its mod_revision."""
    replies: tuple[RangeReply | int | TxnReply | None, ...]
    """One for each operation of the branch: a Range's reply, a Delete's number of keys, a Nested's reply, None for a Put."""


@dataclass(frozen=True)
class Status:
    """Of the member that was asked, not of the cluster."""

    version: str
    db_size: int
    """Bytes of its backend file, which is what the quota limits."""
    leader: int
    """The leader's member id, 0 if this member knows of none."""
    revision: int
