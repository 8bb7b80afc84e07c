"""Streams into a Delta table: which place of the chain is committed, the chain itself, and the keys that used a checkpoint.

The protocol is the chain of `sparkonce.sink.stream`: each place is a sink key of its own, decided by one entry of the log. All answers come
from one loaded version and from the slots that it names.

    _sparkonce/_queries/<query id>/<sink key>.json            put before an opening is committed
    _sparkonce/_sources/<digest of a source>/<sink key>.json  the same, for each source that the opening records

These names are hints: only the log shows whether an opening is committed. With them, one listing finds every key that used a checkpoint or
a source, however many keys the table has. They are never deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparkonce.sink import stream
from sparkonce.sink.delta import evidence
from sparkonce.sink.delta.inventory import STAGING
from sparkonce.sink.delta.numbering import slot_number
from sparkonce.sink.delta.snapshot import DeltaSnapshot
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import SinkKey, Slot, StreamSource

QUERIES = f"{evidence.EVIDENCE}/_queries"
SOURCES = f"{evidence.EVIDENCE}/_sources"


class DeltaPlaces:
    """One version of a table, as places of a chain."""

    def __init__(self, objects: TableObjects, table: DeltaSnapshot) -> None:
        self._objects, self._table = objects, table

    async def find(self, key: SinkKey) -> Slot | None:
        """The committed slot. Raises: OutputCorrupt when the key is committed and its slot cannot be read."""
        number = self._table.committed(key)
        if number is None:
            return None
        slot = await evidence.numbered(self._objects, key, number)
        if slot is None:
            raise evidence.lost(self._objects, key)
        return slot


def lost(table: DeltaSnapshot | None, after: Slot) -> str | None:
    """Why no slot can follow `after` in this table; None when `after` is committed there."""
    if table is not None and table.committed(after.sink_key) == slot_number(after):
        return None
    return (
        f"it was dropped or recreated under the stream, and {after.sink_key}, after which it comes, is not there; rerun the job "
        "with a new checkpoint"
    )


async def recorded(objects: TableObjects, table: DeltaSnapshot, key: SinkKey, slot: Slot) -> tuple[Slot, ...]:
    """The effects of a committed slot: itself, or a stream's batches in order and its end. Raises: as `DeltaPlaces.find`."""
    if slot.stream is None:
        return (slot,)
    return await stream.recorded(_places(objects, table), key, slot)


async def note(objects: TableObjects, slot: Slot) -> None:
    """Notes the query and the sources of an opening before its commit; durable when this returns."""
    opening = stream.mark(slot)
    if not opening.query_id:
        return  # a native block has no query
    folders = [f"{QUERIES}/{opening.query_id}", *(f"{SOURCES}/{source.digest}" for source in opening.sources)]
    for path in dict.fromkeys(f"{folder}/{slot.sink_key}.json" for folder in folders):
        if not await objects.create(path, b"{}"):
            await objects.persist([path])


async def using(objects: TableObjects, table: DeltaSnapshot | None, query_id: str) -> list[Slot]:
    """See `stream.Linked.using`. Errors as `DeltaPlaces.find`."""
    return await _noted(objects, table, [f"{QUERIES}/{query_id}"])


async def reading(objects: TableObjects, table: DeltaSnapshot | None, sources: Sequence[StreamSource]) -> list[Slot]:
    """See `stream.Linked.reading`. Errors as `DeltaPlaces.find`."""
    return await _noted(objects, table, [f"{SOURCES}/{source.digest}" for source in sources])


async def _noted(objects: TableObjects, table: DeltaSnapshot | None, folders: Sequence[str]) -> list[Slot]:
    """Opening and newest slot of each stream that is noted in one of the folders and opened in this version of the table."""
    found: list[Slot] = []
    if table is None:
        return found
    at = _places(objects, table)
    names = [each.path.rpartition("/")[2] for folder in dict.fromkeys(folders) for each in await objects.list(folder)]
    for name in dict.fromkeys(names):
        key = stream.key_of(name.removesuffix(".json"))
        opening = None if key is None else await at.find(key)
        if key is not None and opening is not None and opening.stream is not None:
            found += [opening, (await stream.walk(at, key, opening)).last]
    return found


async def swept(objects: TableObjects, key: SinkKey, slot: Slot | None) -> Iterable[SinkKey]:
    """The keys whose staging is swept with this key's: a stream's batches."""
    if slot is None or slot.stream is None:
        return (key,)
    named = [folder.removeprefix(STAGING) for folder in await objects.folders("") if folder.startswith(STAGING)]
    return (key, *stream.places(key, named))


def before(key: SinkKey) -> SinkKey | None:
    """The previous batch's key; None for the first batch and for keys without a batch."""
    return None if not key.batch else stream.place(key, key.batch - 1)


def _places(objects: TableObjects, table: DeltaSnapshot) -> stream.Places:
    found: object = DeltaPlaces(objects, table)
    return found  # type: ignore[return-value]  # reading needs no other verb
