"""What can be read of a store on etcd: every look is linearizable, and every listing is of one moment.

Listings of unfinished keys read `open/` alone, so the sweep of a ledger with a hundred thousand results costs what is running. Pages
come in the order of the keys: those of unfinished ones by hash first, all others by the realm's encoded name first. A listing whose
revision etcd has compacted meanwhile begins again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeVar

from sparkonce.errors import StoreUnavailable
from sparkonce.etcd.errors import Compacted
from sparkonce.etcd.kv import KeyValue, Range, prefix_end
from sparkonce.model.record import Address, Beat, Event, Intent, Record, Report, SpecBody, State, Value
from sparkonce.model.result import Result
from sparkonce.store.codec import decode, listed, name, position_of
from sparkonce.store.etcd_look import epoch_of, first_of, text_of
from sparkonce.store.etcd_room import Room
from sparkonce.store.etcd_step import Connection, Steps, Touches
from sparkonce.store.etcd_watch import watch
from sparkonce.store.ledger import EVENTS
from sparkonce.store.protocol import Change, Page, Query, View

V = TypeVar("V", bound=Value)

CHUNK = 100
"""Records per request: etcd takes 128 operations in a transaction."""
TRIES = 3
"""Of one listing: each lost one means that its revision was compacted within the milliseconds it took."""
_UNFINISHED = frozenset({State.IN_PROGRESS, State.HELD})


class Reading:
    """The half of `EtcdStore` that changes nothing."""

    def __init__(self, connection: Connection, *, steps: Steps, touches: Touches, room: Room) -> None:
        self._connection, self._layout = connection, connection.layout
        self._steps, self._touches, self._room = steps, touches, room

    async def load(self, address: Address) -> View:
        return (await self._steps.look(address)).seen(0.0).view

    async def spec(self, address: Address, generation: int) -> SpecBody | None:
        return await self._body(SpecBody, "spec", address, generation)

    async def result(self, address: Address, generation: int) -> Result | None:
        return await self._body(Result, "result", address, generation)

    async def intent(self, address: Address, generation: int) -> Intent | None:
        return await self._body(Intent, "intent", address, generation)

    async def _body(self, kind: type[V], of: str, address: Address, generation: int) -> V | None:
        stands = first_of(await self._connection.range(Range(self._layout.beside(of, address, generation))))
        return None if stands is None else decode(kind, text_of(stands), where=name(address))

    async def _under(self, prefix: bytes) -> Sequence[KeyValue]:
        return (await self._connection.range(Range(prefix, prefix_end(prefix)))).kvs

    async def reports(self, address: Address, generation: int) -> Sequence[Report]:
        found = await self._under(self._layout.of_generation("report", address, generation))
        reports = [decode(Report, text_of(kv), where=name(address)) for kv in found]
        return sorted(reports, key=lambda report: (report.attempt, report.reporter))

    async def beats(self, address: Address, generation: int) -> Mapping[tuple[int, str], Beat]:
        """Ages count from when this process saw the touch: a period restarts in full after a takeover."""
        beats: dict[tuple[int, str], Beat] = {}
        for kv in await self._under(self._layout.of_generation("beat", address, generation)):
            beat = decode(Beat, text_of(kv), where=name(address))
            age = self._touches.age(kv.key, kv.mod_revision)
            beats[beat.attempt, beat.by] = beat.model_copy(update={"age": age})
        return dict(sorted(beats.items()))

    async def events(self, address: Address) -> Sequence[Event]:
        found = await self._under(self._layout.all_beside("event", address))
        newest = sorted(found, key=lambda kv: kv.create_revision)[-EVENTS:]
        return [decode(Event, text_of(kv), where=name(address)) for kv in newest]

    def watch(self, since: int) -> AsyncIterator[Change]:
        return watch(self._connection, since)

    async def count(self, *, realm: str | None = None, live_only: bool = False) -> int:
        number = await self._room.records(realm)
        return number - (await self._room.expired(realm, await self.now()) if live_only else 0)

    async def now(self) -> float:
        raise NotImplementedError

    # --- listings

    async def list(self, query: Query) -> Page:
        for _ in range(TRIES):
            try:
                return await self._list(query)
            except Compacted:
                continue
        raise StoreUnavailable("etcd: a listing's revision was compacted while it was read; list again")

    async def _list(self, query: Query) -> Page:
        epoch = await self._connection.range(Range(self._layout.epoch))
        rows: list[tuple[Address, str, int]] = []
        async for chunk in self._addresses(query, epoch.revision):
            for address, kv in await self._records(chunk, epoch.revision):
                if _asked(query, kv):
                    rows.append((address, text_of(kv), kv.mod_revision))
            if len(rows) > query.limit:
                break
        return listed(rows[: query.limit], epoch=epoch_of(first_of(epoch)), more=len(rows) > query.limit)

    async def _addresses(self, query: Query, revision: int) -> AsyncIterator[Sequence[Address]]:
        """In order, those that the keys alone do not rule out."""
        layout = self._layout
        after = _address(query.after) if query.after else None
        if query.states and _UNFINISHED.issuperset(query.states):
            prefix, last = layout.unfinished(), after and layout.open(after)
        elif query.realm is not None:
            prefix, last = layout.records(query.realm, query.hash_prefix), after and layout.record(after)
        else:
            prefix, last = layout.records(), after and layout.record(after)
        start, end = max(last + b"\0", prefix) if last else prefix, prefix_end(prefix)
        size = min(query.limit + 1, CHUNK)
        while start < end:
            page = await self._connection.range(Range(start, end, limit=size, revision=revision, keys_only=True))
            found = [layout.address_of(kv.key) for kv in page.kvs]
            yield [
                one for one in found if query.realm in (None, one.realm) and one.key_hash.startswith(query.hash_prefix)
            ]
            if not page.more:
                return
            start, size = page.kvs[-1].key + b"\0", CHUNK

    async def _records(self, addresses: Sequence[Address], revision: int) -> Sequence[tuple[Address, KeyValue]]:
        if not addresses:
            return []
        asked = [Range(self._layout.record(address), revision=revision) for address in addresses]
        found = zip(addresses, (await self._connection.gets(asked)).replies, strict=True)
        return [(address, kv) for address, reply in found if (kv := first_of(reply)) is not None]


def _address(token: str) -> Address:
    realm, key_hash = position_of(token)
    return Address(realm=realm, key_hash=key_hash)


def _asked(query: Query, kv: KeyValue) -> bool:
    """What cannot be read is of any state: it is listed, never left out."""
    if not query.states:
        return True
    try:
        state = Record.model_validate_json(kv.value).state
    except ValueError:
        return True
    return state in query.states
