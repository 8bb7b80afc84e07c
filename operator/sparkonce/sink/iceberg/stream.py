"""Streams in an Iceberg table: reads the chain of a stream, and the streams that use a checkpoint.

The protocol is the chain of `sparkonce.sink.stream`: each place is a sink key of its own, decided by one change of the catalog. All answers
come from loaded metadata; slots are read only when their content is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sparkonce.sink import stream
from sparkonce.sink.iceberg.evidence import DATA, MARK, Mark, evidence_of, marks
from sparkonce.sink.iceberg.snapshot import TableView
from sparkonce.sink.protocol import SinkKey, Slot, StreamSource
from sparkonce.sink.slotlog import layout


def lost(view: TableView, after: Slot) -> str | None:
    """Why no slot can follow `after` in this table; None if `after` is committed in it.

    Raises:
        OutputCorrupt: its evidence cannot be read.
    """
    commit = evidence_of(view.table.metadata, after.sink_key).committed
    if commit is not None and commit.nonce == after.nonce:
        return None
    return (
        f"the table {view.uri} was dropped or recreated under the stream, and the slot before, {after.sink_key}, is not in it; "
        "rerun the job with a new checkpoint"
    )


def recorded(view: TableView, key: SinkKey) -> list[Mark]:
    """Commits of a key: one, or all batches of a stream in order, with its end last.

    Raises:
        OutputCorrupt: evidence of one cannot be read.
    """
    metadata = view.table.metadata
    first = evidence_of(metadata, key).committed
    if first is None or not first.query_id:
        return [] if first is None else [first]
    found: list[Mark] = []
    number = stream.mark(view.slot_of(first)).first_batch
    while (mark := evidence_of(metadata, stream.place(key, number)).committed) is not None:
        found.append(mark)
        number += 1
    return found


def using(view: TableView, query_id: str) -> list[Slot]:
    """See `stream.Linked.using`.

    Raises:
        OutputCorrupt: evidence of a stream cannot be read.
    """
    return _streams(view, lambda opening: opening.query_id == query_id)


def reading(view: TableView, sources: Sequence[StreamSource]) -> list[Slot]:
    """See `stream.Linked.reading`. Errors as `using`."""
    digests = {source.digest for source in sources}
    return _streams(view, lambda opening: not digests.isdisjoint(opening.sources))


def _streams(view: TableView, wanted: Callable[[Mark], bool]) -> list[Slot]:
    """Opening and newest slot of each stream whose opening is wanted."""
    found: list[Slot] = []
    for mark in marks(view.table.metadata, lambda sink_key: layout.batch_of(sink_key) is None):
        if not isinstance(mark, Mark):
            raise mark
        if mark.query_id and wanted(mark):
            key = stream.key_of(mark.sink_key)
            found += [view.slot_of(mark), *(view.slot_of(each) for each in (recorded(view, key) if key else [])[-1:])]
    return found


async def swept(view: TableView, key: SinkKey) -> Iterable[SinkKey]:
    """The key, and the keys of its batches if it is a stream: the keys whose staging is swept together."""
    commit = evidence_of(view.table.metadata, key).committed
    if commit is None or not commit.query_id:
        return (key,)
    names = [folder.rpartition("/")[2] for folder in await view.objects.folders(DATA)]
    return (key, *stream.places(key, [name.removeprefix(MARK) for name in names if name.startswith(MARK)]))
