"""What a stream needs of an Iceberg table beside single commits: which place stands, the whole chain, and who uses a checkpoint.

The protocol is the chain of `sparkonce.sink.stream`; a place is a sink key of its own, its decision one change of the catalog. All
questions here are answered from the metadata that was loaded; slots are read where their content is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparkonce.sink import layout, stream
from sparkonce.sink.iceberg_evidence import Mark, marks, standing
from sparkonce.sink.iceberg_layout import DATA, MARK
from sparkonce.sink.iceberg_view import View
from sparkonce.sink.protocol import SinkKey, Slot


class At:
    """A loaded table, as a chain looks at it."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def find(self, key: SinkKey) -> Slot | None:
        """The committed slot. OutputCorrupt."""
        return self._view.committed(standing(self._view.table.metadata, key))


def lost(view: View, after: Slot) -> str | None:
    """Why nothing can follow a slot in this table; None when it stands there. OutputCorrupt."""
    stands = standing(view.table.metadata, after.sink_key).committed
    if stands is not None and stands.nonce == after.nonce:
        return None
    return (
        f"the table {view.uri} was dropped or made anew under the stream, and {after.sink_key}, after which it comes, is not there; "
        "rerun the job with a new checkpoint"
    )


def recorded(view: View, key: SinkKey) -> list[Mark]:
    """What stands for a key: its commit; of a stream all its batches in order, and the end last. OutputCorrupt."""
    metadata = view.table.metadata
    first = standing(metadata, key).committed
    if first is None or not first.query_id:
        return [] if first is None else [first]
    found: list[Mark] = []
    number = stream.mark(view.slot_of(first)).first_batch
    while (mark := standing(metadata, stream.place(key, number)).committed) is not None:
        found.append(mark)
        number += 1
    return found


def using(view: View, query_id: str) -> list[Slot]:
    """See `stream.Linked.using`. OutputCorrupt."""
    found: list[Slot] = []
    for mark in marks(view.table.metadata, lambda sink_key: layout.batch_of(sink_key) is None):
        if not isinstance(mark, Mark):
            raise mark
        if mark.query_id == query_id:
            key = _key(mark.sink_key)
            found += [view.slot_of(mark), *(view.slot_of(each) for each in recorded(view, key)[-1:])]
    return found


async def swept(view: View, key: SinkKey) -> Iterable[SinkKey]:
    """The keys whose staging goes with a key's: of a stream, its batches'."""
    stands = standing(view.table.metadata, key).committed
    if stands is None or not stands.query_id:
        return (key,)
    names = [folder.rpartition("/")[2] for folder in await view.objects.folders(DATA)]
    return (key, *stream.places(key, [name.removeprefix(MARK) for name in names if name.startswith(MARK)]))


def _key(sink_key: str) -> SinkKey:
    lineage, generation = layout.lineage_of(sink_key) or (sink_key, 0)
    key_hash, _, output = lineage.partition("-")
    return SinkKey(key_hash=key_hash, output=output, generation=generation)
