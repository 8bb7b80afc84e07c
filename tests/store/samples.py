"""Requests, results and intents for the tests of stores, and functions that bring a key into a state from which a test starts."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sparkonce.blocking import run
from sparkonce.model.record import Address, Event, Intent, Opener, Outcome, OutputResult, Record, Result, SpecBody
from sparkonce.store.protocol import Claim, Finalized, Gone, IdempotencyStore, Lease, Owned, Request, View

T = TypeVar("T")

RETENTION = 3600.0
_numbers = itertools.count(1)


def fresh(what: str = "nonce") -> str:
    """A text that is unique in this process."""
    return f"{what}-{next(_numbers)}"


def address_of(key: str, realm: str = "local") -> Address:
    return Address(realm=realm, key_hash=hashlib.sha256(key.encode()).hexdigest())


def request(key: str = "orders-2026-01", **change: Any) -> Request:
    """A request with an opener and a nonce of its own, unless `change` overrides them."""
    nonce = change.pop("nonce", None) or fresh()
    made = Request(
        address=address_of(key, change.pop("realm", "local")),
        key=key,
        by=Opener(nonce=nonce),
        nonce=nonce,
        fingerprints={1: "f" * 64},
        spec=SpecBody(job={"kind": "IdempotentJob", "left": None}, digests={"image": "0a"}, secret="s"),
        operation="load",
        resource="orders",
        job_revision="1",
    )
    return replace(made, **change)


def result(generation: int = 1, **change: Any) -> Result:
    made: dict[str, Any] = {
        "outcome": Outcome.SUCCEEDED,
        "generation": generation,
        "attempts": 1,
        "evidence": "slots",
        "started_at": 1.0,
        "finished_at": 2.0,
        "outputs": (
            OutputResult(
                name="orders",
                kind="slotLog",
                uri="file:///orders",
                commit="1.json",
                rows=3,
                bytes=9,
                files=1,
                digest="d",
            ),
        ),
    }
    return Result(**(made | change))


def intent(token: int = 1, digest: str = "d") -> Intent:
    return Intent(token=token, slots={"orders": {"digest": digest, "token": token}})


@dataclass
class Key:
    """One key of a store, as one caller with a lease sees it."""

    store: IdempotencyStore
    lease: Lease
    record: Record
    claim: Claim

    @property
    def address(self) -> Address:
        return self.record.address

    def view(self) -> View:
        return run(self.store.load(self.address))

    def now(self) -> Record:
        """The key's current state."""
        record = self.view().record
        assert record is not None
        return record

    def change(self, **change: Any) -> Record:
        """Makes an update that must succeed."""
        done = run(self.store.update(self.record, self.claim, self.record.changed(**change)))
        return self._keep(done)

    def finalize(self, **change: Any) -> Record:
        retention = change.pop("retention", RETENTION)
        outcome = result(self.record.generation, **change)
        done = run(self.store.finalize(self.record, self.claim, outcome, retention=retention))
        assert isinstance(done, Finalized), done
        return self._keep(done)

    def remove(self) -> None:
        """Finalizes and forgets the key: only the generation floor and the events remain."""
        self.finalize()
        done = run(self.store.forget(self.record, Event(what="Forgotten", by="a test")))
        assert isinstance(done, Gone), done

    def reopen(self, **change: Any) -> Key:
        asked = request(self.record.key, realm=self.record.realm, **change)
        done = run(self.store.reopen(self.record, asked, lease=self.lease))
        assert isinstance(done, Owned), done
        return Key(self.store, self.lease, done.record, done.claim)

    def _keep(self, done: Any) -> Record:
        assert isinstance(done.record, Record), done
        self.record = done.record
        return done.record


def reserved(store: IdempotencyStore, lease: Lease | None = None, key: str | None = None, **change: Any) -> Key:
    """A new key, owned by the caller."""
    lease = lease or run(store.open_lease(owner=fresh("owner")))
    asked = request(key or fresh("key"), **change)
    floor = run(store.load(asked.address)).floor
    done = run(store.reserve(asked, lease=lease, floor=floor))
    assert isinstance(done, Owned), done
    return Key(store, lease, done.record, done.claim)


def taken(store: IdempotencyStore, record: Record) -> Key:
    """The key of a dead owner, taken over under a new lease."""
    lease = run(store.open_lease(owner=fresh("owner")))
    done = run(store.take_over(record, lease=lease, nonce=fresh()))
    assert isinstance(done, Owned), done
    return Key(store, lease, done.record, done.claim)
