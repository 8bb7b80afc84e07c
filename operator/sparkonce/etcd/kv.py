"""Requests to and replies from etcd's key-value store as plain values.

Callers build these and never see a protobuf message, so that the store's codec and its tests need no gRPC. Ranges follow etcd's
convention: an empty `end` is the single key, `prefix_end(p)` all keys with prefix `p`, and a zero byte all keys from `key` on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ALL_FROM = b"\0"
"""Value of `end` that selects every key from `key` on."""


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all keys with this prefix: its last byte below 0xff is incremented, the rest is cut off."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else ALL_FROM


@dataclass(frozen=True)
class KeyValue:
    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    """Number of writes since the key was created; 1 for the first."""
    lease: int
    """0: no lease."""


@dataclass(frozen=True)
class Put:
    key: bytes
    value: bytes
    lease: int = 0
    """The key is deleted when this lease ends. If the lease does not exist, etcd refuses the whole transaction."""


@dataclass(frozen=True)
class Delete:
    key: bytes
    end: bytes = b""


@dataclass(frozen=True)
class Range:
    key: bytes
    end: bytes = b""
    limit: int = 0
    """Maximum number of keys in the reply, in byte order; 0: all."""
    revision: int = 0
    """Revision to read at; 0: the current one. All pages of a listing use the revision of the first page."""
    keys_only: bool = False
    count_only: bool = False


@dataclass(frozen=True)
class Compare:
    key: bytes
    target: Literal["create", "mod", "version", "value", "lease"]
    """`create` and `mod` are revisions. For a key that does not exist, both, its version and its lease are 0.

    A compare of `value` fails for a key that does not exist, `!=` included: etcd then takes the other branch.
    """
    op: Literal["=", "!=", "<", ">"]
    value: int | bytes
    """Bytes for `value`, a number for the other targets."""
    end: bytes = b""
    """If set, every key of the range must satisfy the comparison; an empty range compares as one key that does not exist."""


@dataclass(frozen=True)
class Nested:
    """A transaction inside a transaction's branch.

    Its comparisons see the store as it was before the outermost transaction, not earlier writes of the branch; its operations do see
    those writes.
    """

    compare: tuple[Compare, ...]
    then: tuple[Op, ...]
    otherwise: tuple[Op, ...] = ()


Op = Put | Delete | Range | Nested


@dataclass(frozen=True)
class RangeReply:
    kvs: tuple[KeyValue, ...]
    more: bool
    """True if the range has keys beyond the limit."""
    count: int
    """Number of keys in the whole range, regardless of the limit."""
    revision: int
    """The store's revision at this reply; inside a transaction, the transaction's."""


@dataclass(frozen=True)
class TxnReply:
    succeeded: bool
    """True if `then` ran, False if `otherwise` did."""
    revision: int
    """The store's revision after the transaction: the mod_revision of the keys that it wrote."""
    replies: tuple[RangeReply | int | TxnReply | None, ...]
    """One per operation of the branch: the reply of a Range or Nested, the number of deleted keys of a Delete, None for a Put."""


@dataclass(frozen=True)
class MemberStatus:
    """Status of one member, not of the cluster."""

    version: str
    db_size: int
    """Bytes of its backend file: the size that the quota limits."""
    leader: int
    """The leader's member id; 0 if this member knows no leader."""
    revision: int
