"""A metered store behaves like the store inside it, and reports the result of every request."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from harness.memory_store import MemoryStore
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, StoreUnavailable
from sparkonce.model.record import Address, Report, SpecBody
from sparkonce.store.instrumented import metered
from sparkonce.store.protocol import IdempotencyStore, View
from store.samples import address_of, request, reserved, result


def counted(store: IdempotencyStore) -> tuple[IdempotencyStore, Counter[tuple[str, str]]]:
    told: Counter[tuple[str, str]] = Counter()
    return metered(store, lambda verb, answer, seconds: told.update([(verb, answer)])), told


def test_each_request_is_told_once_with_its_answer() -> None:
    """Outcomes are reported by name, a read as ok, a refused report as False; the caller gets the store's own answer."""
    plain = MemoryStore()
    store, told = counted(plain)
    key = reserved(store)
    assert run(store.reserve(request(key.record.key), lease=key.lease, floor=0)).record == key.record  # type: ignore[union-attr]  # Duplicate
    run(store.report(key.address, 1, Report(attempt=1, reporter="d", kind="a")))
    run(store.report(key.address, 1, Report(attempt=1, reporter="d", kind="b")))
    run(store.finalize(key.record, key.claim, result(), retention=1.0))
    assert run(store.count()) == run(plain.count()) == 1
    assert told == {
        ("open_lease", "ok"): 1,
        ("load", "ok"): 1,
        ("reserve", "Owned"): 1,
        ("reserve", "Duplicate"): 1,
        ("report", "ok"): 1,
        ("report", "False"): 1,
        ("finalize", "Finalized"): 1,
        ("count", "ok"): 1,
    }


class NoAnswer(StoreUnavailable):
    """A subclass that a store raises."""


class Gone(MemoryStore):
    async def load(self, address: Address) -> View:
        raise NoAnswer("it is gone")

    async def now(self) -> float:
        await asyncio.sleep(60)
        return 0.0


def test_errors_are_told_and_stay_errors() -> None:
    """An error is reported by the name of its public class, the same for every lost answer, and reaches the caller itself. A cancelled
    request is reported as Cancelled."""
    store, told = counted(Gone())
    with pytest.raises(StoreUnavailable, match="it is gone"):
        run(store.load(address_of("any")))
    lease = run(store.open_lease(owner="me"))
    with pytest.raises(InvalidInput):
        run(store.reserve(request(spec=SpecBody(job={"text": "\ud800"})), lease=lease, floor=0))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.now()

    asyncio.run(give_up())
    assert told[("load", "StoreUnavailable")] == told[("reserve", "InvalidInput")] == told[("now", "Cancelled")] == 1


def test_what_a_store_has_besides_is_there() -> None:
    """Its url, its watch and all other attributes pass through; attributes that the store lacks are missing here, too."""
    plain = MemoryStore(poll=0.01)
    store, told = counted(plain)
    assert store.url == "memory:"
    assert not hasattr(store, "no_such_verb")

    async def first() -> object:
        return await anext(store.watch(0))

    key = reserved(plain)
    assert asyncio.run(first()).address == key.address  # type: ignore[attr-defined]  # a Change
    assert told == Counter()
