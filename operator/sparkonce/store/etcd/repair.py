"""Repairs a record in etcd that cannot be read: reads its text, and replaces or removes it if that text has not changed.

These steps are not among those of `transaction`, whose snapshots require a readable record.
"""

from __future__ import annotations

from collections.abc import Callable

from sparkonce.errors import RecordUnreadable, StoreUnavailable
from sparkonce.etcd.kv import Compare, Delete, KeyValue, Put, Range, prefix_end
from sparkonce.model.record import Address, Record
from sparkonce.store.codec import name, record_of
from sparkonce.store.etcd.quota import entries
from sparkonce.store.etcd.snapshot import FIRST_EPOCH, KeySnapshot, epoch_of, first_of, number_of, text_of
from sparkonce.store.etcd.transaction import EtcdConnection, operations
from sparkonce.store.rules import KeyState, VerbOutcome

TRIES = 3
"""Each failed try means that the record was written meanwhile, which no verb does while it cannot be read."""


async def unreadable(connection: EtcdConnection, address: Address) -> str | None:
    """See `Repairable.unreadable`."""
    stored = first_of(await connection.range(Range(connection.layout.record(address))))
    return None if stored is None or _record(address, stored) is not None else text_of(stored)


async def repair(
    connection: EtcdConnection,
    address: Address,
    decide: Callable[[KeyState, str | None], VerbOutcome[bool]],
    *,
    at: float,
) -> bool:
    """See `Repairable.repair`. `decide`: gets the key and the text of its record; `at`: Unix seconds."""
    layout = connection.layout
    places = layout.record(address), layout.floor(address)
    for _ in range(TRIES):
        read = await connection.gets([Range(place) for place in (*places, layout.epoch)])
        stored, floor, epoch = map(first_of, read.replies)
        snapshot = KeySnapshot(
            layout=layout,
            address=address,
            record=_record(address, stored),
            claim=None,
            floor=0 if floor is None else number_of(floor, f"the generation floor of {name(address)}"),
            epoch=epoch_of(epoch),
            revision=read.revision,
        )
        done, write = decide(snapshot.seen(at), None if stored is None else text_of(stored))
        if write is None:
            return done
        found = zip(places, (stored, floor), strict=True)
        unmoved = [Compare(place, "mod", "=", kv.mod_revision if kv else 0) for place, kv in found]
        writes = operations(layout, snapshot, write, at=at)
        put = {each.key for each in writes if isinstance(each, Put)}
        writes += [Delete(entry) for entry in await _expiries(connection, address) if entry not in put]
        reply = await connection.ask(lambda client: client.txn(unmoved, writes))  # noqa: B023 - awaited in this very turn
        if reply.succeeded:
            return done
    raise StoreUnavailable(f"etcd: the record {name(address)} was written to {TRIES} times meanwhile; try again")


async def _expiries(connection: EtcdConnection, address: Address) -> list[bytes]:
    """The record's entries in the expiry index. They change with the record alone. Since it cannot be read, it does not say under which
    minute they are, and the whole index is read."""
    layout, start = connection.layout, connection.layout.expiries()
    listed = entries(connection, start, prefix_end(start))
    return [kv.key async for kv in listed if layout.address_of(kv.key) == address]


def _record(address: Address, stored: KeyValue | None) -> Record | None:
    if stored is None:
        return None
    try:
        return record_of(address, text_of(stored), revision=stored.mod_revision, epoch=FIRST_EPOCH)
    except RecordUnreadable:
        return None
