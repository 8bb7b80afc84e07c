"""How the transaction identifiers of a sink key are numbered in a Delta log: what a version says, and which versions an entry sets. Pure.

`numbering(key)` is the only place that asks what kind of place a key names:

| | commits and fences of our own writer (`ByDigest`) | statements of a native block (`ByToken`) |
| --- | --- | --- |
| identifiers | `idem:<key>` and `fence:<key>` | `idem:<key>` alone, because Spark's commit carries one |
| version of a commit | 63 bits of the digest of the committed slot | the token: `statement_number`, or `end_number` of an end |
| version of a fence | the lowest token that may still commit | the same: `closed_number` |
| rows | files of ours, which the entry adds and removes | Spark has committed them; no file of them can be replaced |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sparkonce.sink.delta.log import fence, idem
from sparkonce.sink.protocol import SinkKey, Slot, StreamPart
from sparkonce.sink.slotlog import layout

Versions = Callable[[str], int | None]
"""The version of a transaction identifier in a table; None when the log has none."""


class Numbering(Protocol):
    """The versions of one sink key's identifiers."""

    @property
    def own_rows(self) -> bool:
        """Whether commits under this key add and remove files of our own; if not, another engine has committed the rows."""
        ...

    def slot(self, slot: Slot) -> int:
        """The version by which the log names this slot."""
        ...

    def commits(self, version: int) -> bool:
        """Whether a version of `idem:<key>` names a committed slot."""
        ...

    def fenced(self, versions: Versions) -> int:
        """The lowest token that may still commit; 0 when none was ever barred."""
        ...

    def names(self, version: int, slot: Slot) -> bool:
        """Whether a version proves that this very slot is committed. False proves nothing."""
        ...

    def commit(self, slot: Slot, *, fenced: int) -> Mapping[str, int]:
        """The versions that an entry sets to commit a slot. fenced: as the table has it."""
        ...

    def bar(self, token: int) -> Mapping[str, int]:
        """The versions that an entry sets to bar the tokens below `token`."""
        ...


@dataclass(frozen=True)
class ByDigest:
    """See the module."""

    key: str
    own_rows = True

    def slot(self, slot: Slot) -> int:
        return int.from_bytes(hashlib.sha256(layout.encode(slot)).digest()[:8], "big") >> 1

    def commits(self, version: int) -> bool:
        del version
        return True

    def fenced(self, versions: Versions) -> int:
        return versions(fence(self.key)) or 0

    def names(self, version: int, slot: Slot) -> bool:
        return version == self.slot(slot)

    def commit(self, slot: Slot, *, fenced: int) -> Mapping[str, int]:
        return {idem(self.key): self.slot(slot), fence(self.key): max(slot.token, fenced)}

    def bar(self, token: int) -> Mapping[str, int]:
        return {fence(self.key): token}


@dataclass(frozen=True)
class ByToken:
    """See the module."""

    key: str
    own_rows = False

    def slot(self, slot: Slot) -> int:
        ends = slot.stream is not None and slot.stream.part is StreamPart.END
        return end_number(slot.token) if ends else statement_number(slot.token)

    def commits(self, version: int) -> bool:
        return version % 4 != 1

    def fenced(self, versions: Versions) -> int:
        version = versions(idem(self.key))
        return 0 if version is None else (version + 3) // 4

    def names(self, version: int, slot: Slot) -> bool:
        del version, slot
        return False  # every slot of one token has the same version

    def commit(self, slot: Slot, *, fenced: int) -> Mapping[str, int]:
        del fenced
        return {idem(self.key): self.slot(slot)}

    def bar(self, token: int) -> Mapping[str, int]:
        return {idem(self.key): closed_number(token)}


def numbering(key: SinkKey | str) -> Numbering:
    """The numbering of a sink key; of a text that is none, that of our own writer."""
    found = key if isinstance(key, SinkKey) else SinkKey.parse(key)
    statement = found is not None and found.native and found.batch is not None
    return ByToken(str(key)) if statement else ByDigest(str(key))


def slot_number(slot: Slot) -> int:
    """The version by which the log names a slot: transaction versions are signed 64-bit numbers."""
    return numbering(slot.sink_key).slot(slot)


def closed_number(token: int) -> int:
    """Version in the place of a statement that bars tokens below `token` there."""
    return 4 * token - 3


def statement_number(token: int) -> int:
    """Version that the statement of an attempt has in its place. It is above every version that bars lower tokens and below those that bar
    this one, so that Delta itself skips a statement that was barred, and refuses one that is barred while it runs."""
    return 4 * token - 2


def end_number(token: int) -> int:
    """Version of an end that is committed in the place after the last statement."""
    return 4 * token - 1
