"""The batches of a recorded stream, for a probe: in a few requests, however long the stream is.

Asking for one batch after the other costs a listing and a read for each of them. Here the slot log is listed once, which shows that
the slots are there, and the newest snapshot says what is in them; only those that it does not name are read. A snapshot alone
would not do: it outlives the slots that it lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparkonce import blocking
from sparkonce.sink import layout
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import SinkKey, Slot, SlotState
from sparkonce.sink.stream import Chain
from sparkonce.sink.table import SLOT_THREADS, newest_snapshot


@dataclass(frozen=True)
class Recorded:
    """A stream, as one listing shows it."""

    slots: tuple[Slot, ...]
    """Every committed one after the opening, in order; the last one is the end if there is one."""
    end: int
    """Number of the last one's place."""
    writes: int
    """Slots in the whole log: how many writes its data folder holds, more or less."""


async def recorded(objects: Objects, key: SinkKey, opening: Slot) -> Recorded:
    """OutputUnavailable; OutputCorrupt for a slot of this stream that does not parse."""
    listed = [each.path for each in await objects.list(layout.SLOTS)]
    paths = [path for path in listed if layout.is_slot(path)]
    committed, closed = await newest_snapshot(objects, layout.snapshots(listed))
    own = [path for path in paths if _is_batch_of(path, key) and path not in closed]
    known = [committed[path] for path in own if path in committed]
    known += _read(objects, (path for path in own if path not in committed))
    by_number = {layout.batch_of(slot.sink_key): slot for slot in known}
    chain, found = Chain(opening, opening), []
    while not chain.ended and (slot := by_number.get(chain.next)) is not None:
        found.append(slot)
        chain = chain.followed_by(slot)
    return Recorded(tuple(found), chain.next if chain.ended else chain.next - 1, len(paths))


def _is_batch_of(path: str, key: SinkKey) -> bool:
    name = path.split("/")[1]
    return layout.batch_of(name) is not None and layout.lineage_of(name) == (key.lineage, key.generation)


def _read(objects: Objects, paths: Iterable[str]) -> list[Slot]:
    """The committed ones."""

    def read(path: str) -> Slot | None:
        data, sink_key = blocking.run(objects.get(path)), path.split("/")[1]
        if data is None:
            return None
        slot = layout.decode(data, where=objects.where(path), sink_key=sink_key, token=layout.numbered(path) or 0)
        return slot if slot.state is SlotState.COMMITTED else None

    with ThreadPoolExecutor(SLOT_THREADS) as pool:
        return [slot for slot in pool.map(read, paths) if slot is not None]
