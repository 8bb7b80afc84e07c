"""What a stream needs of a Delta table beside single commits: which place stands, the whole chain, and who uses a checkpoint.

The protocol is the chain of `sparkonce.sink.stream`; a place is a sink key of its own, its decision one entry of the log. All questions
here are answered from one loaded version and from the slots that it names.

    _sparkonce/_queries/<query id>/<sink key>.json    put before an opening is committed

These names are a hint: they say where to look, the log says whether the opening stands. So finding out whether a checkpoint has served
another key costs one listing, however many keys the table has. They are never deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparkonce.sink import delta_evidence as evidence
from sparkonce.sink import layout, stream
from sparkonce.sink.delta_inventory import STAGING
from sparkonce.sink.delta_log import slot_number
from sparkonce.sink.delta_state import Snapshot
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import SinkKey, Slot

QUERIES = f"{evidence.EVIDENCE}/_queries"


class At:
    """One version of a table, as a chain looks at it."""

    def __init__(self, objects: Objects, table: Snapshot) -> None:
        self._objects, self._table = objects, table

    async def find(self, key: SinkKey) -> Slot | None:
        """The committed slot. OutputCorrupt: it is committed, and what it is cannot be read any more."""
        number = self._table.committed(key)
        if number is None:
            return None
        slot = await evidence.numbered(self._objects, key, number)
        if slot is None:
            raise evidence.lost(self._objects, key)
        return slot


def lost(table: Snapshot | None, after: Slot) -> str | None:
    """Why nothing can follow a slot in this table; None when it stands there."""
    if table is not None and table.committed(after.sink_key) == slot_number(after):
        return None
    return (
        f"it was dropped or made anew under the stream, and {after.sink_key}, after which it comes, is not there; rerun the job "
        "with a new checkpoint"
    )


async def recorded(objects: Objects, table: Snapshot, key: SinkKey, slot: Slot) -> tuple[Slot, ...]:
    """What a key's committed slot stands for: itself; of a stream all its batches in order, and the end last. Errors as `At.find`."""
    if slot.stream is None:
        return (slot,)
    return await stream.recorded(_places(objects, table), key, slot)


async def note(objects: Objects, slot: Slot) -> None:
    """Of an opening that is about to be committed. Durable when this returns."""
    path = f"{QUERIES}/{stream.mark(slot).query_id}/{slot.sink_key}.json"
    if not await objects.create(path, b"{}"):
        await objects.persist([path])


async def using(objects: Objects, table: Snapshot | None, query_id: str) -> list[Slot]:
    """See `stream.Linked.using`. Errors as `At.find`."""
    found: list[Slot] = []
    if table is None:
        return found
    at = _places(objects, table)
    for each in await objects.list(f"{QUERIES}/{query_id}"):
        key = _key(each.path.rpartition("/")[2].removesuffix(".json"))
        opening = None if key is None else await at.find(key)
        if key is not None and opening is not None and opening.stream is not None:
            found += [opening, (await stream.walk(at, key, opening)).last]
    return found


async def swept(objects: Objects, key: SinkKey, slot: Slot | None) -> Iterable[SinkKey]:
    """The keys whose staging goes with a key's: of a stream, its batches'."""
    if slot is None or slot.stream is None:
        return (key,)
    named = [folder.removeprefix(STAGING) for folder in await objects.folders("") if folder.startswith(STAGING)]
    return (key, *stream.places(key, named))


def before(key: SinkKey) -> SinkKey | None:
    """The place before a batch's, unless that is the opening, or the key is no batch's."""
    return None if not key.batch else stream.place(key, key.batch - 1)


def _key(sink_key: str) -> SinkKey | None:
    parsed = layout.lineage_of(sink_key)
    if parsed is None:
        return None
    key_hash, _, output = parsed[0].partition("-")
    return SinkKey(key_hash=key_hash, output=output, generation=parsed[1])


def _places(objects: Objects, table: Snapshot) -> stream.Places:
    found: object = At(objects, table)
    return found  # type: ignore[return-value]  # what is only looked at needs no other verb
