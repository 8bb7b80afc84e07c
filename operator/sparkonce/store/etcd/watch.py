"""Turns etcd's events into changes of keys.

All that one transaction wrote arrives at one revision, as one change per key. A claim that is deleted while its record is unchanged means
that the key waits for an owner: the lease ended, or the owner dropped the claim. The client resumes a watch, and reports when it cannot: at
a revision that etcd has compacted, or has not reached (it was restored). After a gap the watcher lists all keys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby

from sparkonce.etcd.client import WatchEvent
from sparkonce.store.etcd.layout import Layout
from sparkonce.store.etcd.transaction import EtcdConnection
from sparkonce.store.protocol import KeyChange

TOLD = ("key", "own", "report")
"""Kinds of keys whose events are changes. Indexes only follow a record, and roster entries are not changes of a key."""


async def watch(connection: EtcdConnection, since: int) -> AsyncIterator[KeyChange]:
    """Changes after a revision, with gaps reported. Waits through outages of etcd."""
    layout = connection.layout
    key, end = layout.changes
    batches = connection.client.watch(key, end, start=since + 1)
    try:
        async for batch in batches:
            if batch.gap:
                yield KeyChange(None, batch.revision, gap=True)
            for change in changes(layout, batch.events):
                yield change
    finally:
        await batches.aclose()


def changes(layout: Layout, events: Sequence[WatchEvent]) -> Iterator[KeyChange]:
    for revision, together in groupby(events, key=lambda event: event.kv.mod_revision):
        kinds: dict[bytes, set[str]] = {}
        named: dict[bytes, KeyChange] = {}
        for event in together:
            kind = layout.kind_of(event.kv.key)
            if kind not in TOLD:
                continue
            address = layout.address_of(event.kv.key)
            at = layout.record(address)
            kinds.setdefault(at, set()).add(f"{kind} {event.kind}")
            ended = "key delete" in kinds[at] or kinds[at] >= {"own delete", "key put"}
            named[at] = KeyChange(address, revision, unowned=kinds[at] == {"own delete"}, ended=ended)
        yield from named.values()
