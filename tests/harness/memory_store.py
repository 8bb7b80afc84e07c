"""A store in a dictionary, for tests that need no durable one; it lives as long as the object.

It keeps the same JSON text as a durable store, so that a value that cannot be stored, and a field that would be lost, fails here too.
Entries are immutable and replaced as a whole: a copy of the store is a copy of one dictionary, and a step that fails half-way has changed
nothing. A claim vanishes when its lease ends; leases end by `revoke` or, as if their process had died, by `expire`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sparkonce.errors import RecordUnreadable
from sparkonce.model.record import Address, Beat, Event, Intent, Record, Report, ReportedSoFar, Result, SpecBody, State
from sparkonce.store.codec import decode, encode, listed, name, position, position_of, record_of
from sparkonce.store.ledger import (
    EVENTS,
    LIVE_KEYS,
    POLL,
    REPORT_BYTES,
    TOMBSTONES,
    Beside,
    Changes,
    HeldLease,
    Ledger,
    held,
)
from sparkonce.store.protocol import Claim, Lease, Page, Query, View
from sparkonce.store.repair import repair
from sparkonce.store.roster import Gateway, GatewayUptime, Replica
from sparkonce.store.rules import RETRY_AFTER, KeyState, VerbOutcome, Write

T = TypeVar("T")


class MemoryLease(HeldLease):
    def __init__(self, owner: str, forget: Callable[[str], None]) -> None:
        self.id = uuid.uuid4().hex
        self.owner = owner
        self._forget = forget
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    def expire(self) -> None:
        """Ends the lease, as if its process had died."""
        self._ended = True

    async def keep_alive(self) -> bool:
        return not self._ended

    async def revoke(self) -> None:
        if not self._ended:
            self._ended = True
            self._forget(self.id)


@dataclass(frozen=True)
class _TimedBeat:
    text: str
    at: float


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """All values of one key. Values beside the record are by generation."""

    record: str | None = None
    revision: int = 0
    """Revision of the record."""
    state: str = ""
    expires: float | None = None
    changed: int = 0
    """Revision of the key's latest change."""
    claim: Claim | None = None
    floor: int = 0
    specs: Mapping[int, str] = field(default_factory=dict)
    results: Mapping[int, str] = field(default_factory=dict)
    intents: Mapping[int, str] = field(default_factory=dict)
    reports: Mapping[tuple[int, int, str], str] = field(default_factory=dict)
    sizes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Sizes of the reports, by (generation, attempt)."""
    beats: Mapping[tuple[int, int, str], _TimedBeat] = field(default_factory=dict)
    events: tuple[str, ...] = ()


class _MemoryBeside:
    """`Beside` for one key."""

    def __init__(self, store: MemoryStore, address: Address, entry: _Entry) -> None:
        self._store, self._address, self._entry = store, address, entry

    def result(self, generation: int) -> Result | None:
        text = self._entry.results.get(generation)
        return None if text is None else decode(Result, text, where=name(self._address))

    def intent(self, generation: int) -> Intent | None:
        text = self._entry.intents.get(generation)
        return None if text is None else decode(Intent, text, where=name(self._address))

    def report(self, generation: int, attempt: int, reporter: str) -> Report | None:
        text = self._entry.reports.get((generation, attempt, reporter))
        return None if text is None else decode(Report, text, where=name(self._address))

    def reported(self, generation: int, attempt: int) -> ReportedSoFar:
        text = self._entry.sizes.get((generation, attempt))
        return ReportedSoFar() if text is None else decode(ReportedSoFar, text, where=name(self._address))

    def realm_reported(self) -> int:
        return self._store._reported_in(self._address.realm)

    def ended(self, lease: HeldLease) -> bool:
        return lease.ended

    def full(self, limit: int) -> float | None:
        return self._store._full(self._address.realm, limit)


class MemoryStore(Ledger):
    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        max_live_keys: int = LIVE_KEYS,
        max_report_bytes: int = REPORT_BYTES,
        tombstones: int = TOMBSTONES,
        poll: float = POLL,
    ) -> None:
        super().__init__(max_live_keys=max_live_keys, max_report_bytes=max_report_bytes, poll=poll)
        self.url = "memory:"
        self._clock, self._monotonic, self._tombstones = clock, monotonic, tombstones
        self._lock = threading.RLock()
        self._leases: dict[str, MemoryLease] = {}
        self._entries: dict[Address, _Entry] = {}
        self._replicas: dict[str, tuple[Replica, HeldLease]] = {}
        self._gateways: dict[str, tuple[Gateway, HeldLease]] = {}
        self._service = GatewayUptime(monotonic)
        self._gone: dict[Address, int] = {}  # keys without a record, by the revision of their last change, oldest first
        self._gap = 0  # changes of such keys up to this revision are forgotten
        self._revision = 0
        self._epoch = 1

    def copy(self) -> MemoryStore:
        """A copy of the current state: cheap, and independent of this store except for leases, which belong to processes."""
        with self._lock:
            other = MemoryStore(
                clock=self._clock,
                monotonic=self._monotonic,
                max_live_keys=self._max_live_keys,
                max_report_bytes=self._max_report_bytes,
                tombstones=self._tombstones,
                poll=self._poll,
            )
            other._leases, other._replicas = self._leases, dict(self._replicas)
            other._gateways = dict(self._gateways)
            other._entries, other._gone = dict(self._entries), dict(self._gone)
            other._gap, other._revision, other._epoch = self._gap, self._revision, self._epoch
            return other

    async def open_lease(self, *, owner: str) -> MemoryLease:
        lease = MemoryLease(owner, self._forget_lease)
        self._leases[lease.id] = lease
        return lease

    def _forget_lease(self, lease: str) -> None:
        """Notifies watchers of a lease whose claims have ended already."""
        with self._lock:
            its = [address for address, entry in self._entries.items() if entry.claim and entry.claim.lease == lease]
            for address in sorted(its, key=position):
                entry = replace(self._entries[address], claim=None, changed=self._revision + 1)
                self._put(address, entry, moves=True)

    async def announce(self, replica: Replica, *, lease: Lease) -> None:
        with self._lock:
            self._replicas[replica.nonce] = replica, held(lease)

    async def replicas(self) -> Sequence[Replica]:
        with self._lock:
            alive = {nonce: entry for nonce, entry in self._replicas.items() if not entry[1].ended}
            self._replicas = alive
            return [replica for _, (replica, _) in sorted(alive.items())]

    async def announce_gateway(self, gateway: Gateway, *, lease: Lease) -> None:
        with self._lock:
            self._gateways[gateway.nonce] = gateway, held(lease)

    async def gateways_serving_for(self) -> float | None:
        with self._lock:
            self._gateways = {nonce: entry for nonce, entry in self._gateways.items() if not entry[1].ended}
            return self._service.serving_for([gateway for gateway, _ in self._gateways.values()])

    async def now(self) -> float:
        return self._clock()

    async def close(self) -> None:
        """Does nothing: the records are in the object."""

    # --- the step

    def _record(self, address: Address, entry: _Entry) -> Record | None:
        if entry.record is None:
            return None
        return record_of(address, entry.record, revision=entry.revision, epoch=self._epoch)

    def _see(self, address: Address, entry: _Entry) -> KeyState:
        lease = self._leases.get(entry.claim.lease) if entry.claim is not None else None
        return KeyState(
            record=self._record(address, entry),
            claim=entry.claim if lease is not None and not lease.ended else None,
            stale=False,
            floor=entry.floor,
            at=self._clock(),
            next=self._revision + 1,
            epoch=self._epoch,
        )

    def _step(self, address: Address, decide: Callable[[KeyState, Beside], VerbOutcome[T]]) -> T:
        with self._lock:
            entry = self._entries.get(address, _Entry())
            seen = self._see(address, entry)
            outcome, write = decide(seen, _MemoryBeside(self, address, entry))
            if write is not None:
                self._put(address, self._written(entry, write, seen.next), moves=write.moves)
            return outcome

    async def unreadable(self, address: Address) -> str | None:
        entry = self._entry(address)
        return None if self._damaged(address, entry).record is not None else entry.record

    def _damaged(self, address: Address, entry: _Entry) -> KeyState:
        try:
            return self._see(address, entry)
        except RecordUnreadable:
            return self._see(address, replace(entry, record=None))

    async def repair(
        self, address: Address, text: str, *, record: Record | None, generation: int, event: Event
    ) -> bool:
        with self._lock:
            entry = self._entry(address)
            seen = self._damaged(address, entry)
            done, write = repair(seen, entry.record, text, record=record, generation=generation, event=event)
            if write is not None:
                self._put(address, self._written(entry, write, seen.next), moves=True)
            return done

    def _put(self, address: Address, entry: _Entry, *, moves: bool) -> None:
        self._entries[address] = entry
        if not moves:
            return
        self._revision += 1
        self._gone.pop(address, None)
        if entry.record is None:
            self._gone[address] = self._revision
            if len(self._gone) > self._tombstones:
                self._gap = self._gone.pop(next(iter(self._gone)))

    def _written(self, entry: _Entry, write: Write, revision: int) -> _Entry:
        if write.remove:
            entry = _Entry(floor=entry.floor, events=entry.events)
        if write.moves:
            entry = replace(entry, changed=revision)
        if (record := write.record) is not None:
            text, state = encode(record), record.state.value
            entry = replace(entry, record=text, revision=revision, state=state, expires=record.expires_at)
        if write.claim is not None or write.drop_claim:
            entry = replace(entry, claim=write.claim)
        if write.floor is not None:
            entry = replace(entry, floor=write.floor)
        if write.event is not None:
            entry = replace(entry, events=(*entry.events, encode(write.event))[-EVENTS:])
        return self._beside(entry, write)

    def _beside(self, entry: _Entry, write: Write) -> _Entry:
        generation = write.generation
        if write.spec is not None:
            entry = replace(entry, specs={**entry.specs, generation: encode(write.spec)})
        if write.result is not None:
            entry = replace(entry, results={**entry.results, generation: encode(write.result)})
        if write.intent is not None:
            entry = replace(entry, intents={**entry.intents, generation: encode(write.intent)})
        if (report := write.report) is not None:
            at = generation, report.attempt, report.reporter
            entry = replace(entry, reports={**entry.reports, at: encode(report)})
            if write.reported is not None:
                sizes = {**entry.sizes, (generation, report.attempt): encode(write.reported)}
                entry = replace(entry, sizes=sizes)
        if (beat := write.beat) is not None:
            touch = _TimedBeat(encode(beat), self._monotonic())
            entry = replace(entry, beats={**entry.beats, (generation, beat.attempt, beat.by): touch})
        return entry

    def _reported_in(self, realm: str) -> int:
        entries = [entry for address, entry in self._entries.items() if address.realm == realm]
        texts = [(entry, text) for entry in entries for text in entry.sizes.values()]
        return sum(decode(ReportedSoFar, text, where=realm).size for _, text in texts)

    def _full(self, realm: str, limit: int) -> float | None:
        if len(self._entries) < limit:
            return None
        now = self._clock()
        expiries = [
            entry.expires
            for address, entry in self._entries.items()
            if address.realm == realm and entry.record is not None and not _expired(entry, now)
        ]
        if len(expiries) < limit:
            return None
        return min((expires - now for expires in expiries if expires is not None), default=RETRY_AFTER)

    def _changes(self, since: int) -> Changes:
        with self._lock:
            seen = [(address, entry.changed) for address, entry in self._entries.items() if entry.changed > since]
            gap = since < self._gap or since > self._revision
            return Changes(sorted(seen, key=lambda change: change[1]), self._revision, gap)

    # --- reading

    def _entry(self, address: Address) -> _Entry:
        with self._lock:
            return self._entries.get(address, _Entry())

    async def load(self, address: Address) -> View:
        with self._lock:
            return self._see(address, self._entry(address)).view

    async def spec(self, address: Address, generation: int) -> SpecBody | None:
        text = self._entry(address).specs.get(generation)
        return None if text is None else decode(SpecBody, text, where=name(address))

    async def result(self, address: Address, generation: int) -> Result | None:
        return _MemoryBeside(self, address, self._entry(address)).result(generation)

    async def intent(self, address: Address, generation: int) -> Intent | None:
        return _MemoryBeside(self, address, self._entry(address)).intent(generation)

    async def reports(self, address: Address, generation: int) -> Sequence[Report]:
        reports = sorted(self._entry(address).reports.items())
        return [decode(Report, text, where=name(address)) for at, text in reports if at[0] == generation]

    async def beats(self, address: Address, generation: int) -> Mapping[tuple[int, str], Beat]:
        now = self._monotonic()
        return {
            (attempt, by): decode(Beat, beat.text, where=name(address)).model_copy(
                update={"age": max(0.0, now - beat.at)}
            )
            for (of, attempt, by), beat in sorted(self._entry(address).beats.items(), key=lambda item: item[0])
            if of == generation
        }

    async def events(self, address: Address) -> Sequence[Event]:
        return [decode(Event, text, where=name(address)) for text in self._entry(address).events]

    async def list(self, query: Query) -> Page:
        with self._lock:
            asked = (
                address for address, entry in self._entries.items() if entry.record and _asked(query, address, entry)
            )
            chosen = sorted(asked, key=position)
            page = [(address, self._entries[address]) for address in chosen[: query.limit]]
        rows = [(address, entry.record or "", entry.revision) for address, entry in page]
        return listed(rows, epoch=self._epoch, more=len(chosen) > query.limit)

    async def realms(self) -> Sequence[str]:
        with self._lock:
            return sorted({address.realm for address, entry in self._entries.items() if entry.record or entry.floor})

    async def count(self, *, realm: str | None = None, live_only: bool = False) -> int:
        with self._lock:
            now = self._clock()
            return sum(
                entry.record is not None and realm in (None, address.realm) and not (live_only and _expired(entry, now))
                for address, entry in self._entries.items()
            )


def _expired(entry: _Entry, now: float) -> bool:
    return entry.expires is not None and entry.expires <= now


def _asked(query: Query, address: Address, entry: _Entry) -> bool:
    """Whether a record matches the query; one of an unknown state matches, too, and is listed as unreadable instead of left out."""
    return (
        query.realm in (None, address.realm)
        and address.key_hash.startswith(query.hash_prefix)
        and (not query.states or entry.state in query.states or entry.state not in set(State))
        and (not query.after or position(address) > position_of(query.after))
    )
