"""What reply ledgers on SQL databases do alike: a verb reads the key's row, asks `rules`, and writes, as one step of the database.

A verb that would write nothing, above all a replay, ends without a write. Reserving looks at the key before its step, so that replays and
repetitions never wait for the database's writers. Statements are run by name: `purge`, `count`, `count of caller`, and those of the
ledger's own step. Each database has its own, because their parameters are written differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

from sparkonce.replies.ledger import rules
from sparkonce.replies.ledger.ceilings import KEYS, KEYS_OF_CALLER, Ceilings
from sparkonce.replies.ledger.codec import from_row
from sparkonce.replies.ledger.rules import ReplyWrite
from sparkonce.replies.protocol import KeyStanding, Reply, ReplyRecord, Reservation, StoreTime, WriteOutcome

T = TypeVar("T")


Seen = tuple[ReplyRecord | None, StoreTime]
"""A key's record, and the store's clocks when it was read."""
Decide = Callable[[ReplyRecord | None, StoreTime], tuple[T, ReplyWrite]]


class ReplyReader(Protocol):
    def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Any]: ...

    def row(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any: ...


class ReplyTransaction(ReplyReader, Protocol):
    def commit(self) -> None: ...


class SqlReplies(ABC):
    """Verbs block the thread that calls them."""

    def __init__(self, *, keys: int = KEYS, keys_of_caller: int = KEYS_OF_CALLER) -> None:
        self._ceilings = Ceilings(keys=keys, keys_of_caller=keys_of_caller)

    @abstractmethod
    def _reading(self) -> AbstractContextManager[ReplyReader]: ...

    @abstractmethod
    def _writing(self) -> AbstractContextManager[ReplyTransaction]: ...

    @abstractmethod
    def _see(self, reader: ReplyReader, key: str) -> Seen:
        """The key's record and the store's clocks. In a write transaction no other one changes the key until this one ends."""

    @abstractmethod
    def _time(self, reader: ReplyReader) -> StoreTime: ...

    def _found(self, key: str, row: Any) -> ReplyRecord | None:
        return None if row is None or row["fingerprint"] is None else from_row(key, row)

    @abstractmethod
    def _step(self, key: str, decide: Decide[T], *, seen: Seen | None = None) -> T:
        """Reads, decides and writes. `seen`: what was read before, which may have changed."""

    async def reserve(
        self, key: str, *, caller: str, fingerprint: str, nonce: str, lease: float, lifetime: float
    ) -> Reservation:
        decide = partial(
            rules.reserve, caller=caller, fingerprint=fingerprint, nonce=nonce, lease=lease, lifetime=lifetime
        )
        with self._reading() as reader:
            seen = found, at = self._see(reader, key)
            outcome, write = decide(found, at)
            if write is not None and found is None:
                self._ceilings.check(caller, at.now, lambda whose: self._count(reader, whose, at.now))
        if write is None:
            return outcome
        outcome = self._step(key, decide, seen=seen)
        if outcome.standing is KeyStanding.OWNED and found is None:
            self._ceilings.added(caller)
        return outcome

    def _count(self, reader: ReplyReader, caller: str | None, now: float) -> tuple[int, float | None]:
        asked = {"now": now} if caller is None else {"now": now, "caller": caller}
        row = reader.row("count" if caller is None else "count of caller", asked)
        return row["live"], row["first"]

    async def look(self, key: str) -> Reservation | None:
        with self._reading() as reader:
            return rules.look(*self._see(reader, key))

    async def beat(self, key: str, nonce: str, *, lease: float) -> WriteOutcome:
        return self._step(key, lambda found, at: rules.beat(found, at, nonce=nonce, lease=lease))

    async def take_over(self, key: str, *, seen: str, nonce: str, lease: float) -> WriteOutcome:
        return self._step(key, lambda found, at: rules.take_over(found, at, seen=seen, nonce=nonce, lease=lease))

    async def finalize(self, key: str, nonce: str, reply: Reply, *, lifetime: float) -> WriteOutcome:
        return self._step(key, lambda found, at: rules.finalize(found, at, nonce=nonce, reply=reply, lifetime=lifetime))

    async def release(self, key: str, nonce: str) -> WriteOutcome:
        return self._step(key, lambda found, _: rules.release(found, nonce=nonce))

    async def abandon(self, key: str, nonce: str, *, pause: float) -> WriteOutcome:
        return self._step(key, lambda found, at: rules.abandon(found, at, nonce=nonce, pause=pause))

    async def purge(self, *, limit: int = 1000) -> int:
        with self._writing() as transaction:
            at = self._time(transaction)
            removed = transaction.rows("purge", {"now": at.now, "ticks": at.ticks, "at_most": limit})
            transaction.commit()
        return len(removed)

    @abstractmethod
    async def close(self) -> None: ...
