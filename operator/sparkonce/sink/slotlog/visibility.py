"""What readers of a slot log see: a pure function of its committed slots. No I/O.

A table is the union over the outputs of all keys; of one output of a key (a *lineage*) it shows every committed generation that no later
committed generation replaced (`stream.shown`). What an overwrite replaces is taken away from that.

**An overwrite** is a slot like any other: rule R decides whether it is committed, by the create of its key's slot, and there is no second
object and no lock. Just before that create its writer *looks*: it lists the table, and the slot names the slots that were visible then, and
has an *order* that is at least the number of committed slots seen, and above the order of every overwrite seen. Readers sort overwrites by
(order, sink key). **The last overwrite hides all others; a slot of any other kind is hidden once a committed overwrite names it.** Slots
never change, so what is hidden stays hidden.

So an overwrite takes effect as of its look:

1. An overwrite that saw another has a greater order: the sorting extends what was seen, and nothing hides in a circle.
2. A later look sees all that an earlier one saw. So if two overwrites saw different numbers of slots, the one with fewer looked first; if
   they saw equally many, no slot was committed between their looks, and either may count as the first. The sorting is an order of the
   looks, and readers agree on it for ever. Two overwrites that did not see one another are concurrent: one of them is last. Never are
   both visible.
3. A slot that only adds rows is hidden if and only if some overwrite looked after it was committed. One that no overwrite saw came after
   all of them.
4. So readers see what they would see if all writers had taken turns, each at one moment between its beginning and its end: an overwrite at
   its look, any other at its create. Rows that are added between look and create, by a writer that is not seen, stay beside the new ones.
   If the writer freezes there for an hour, it replaces what there was an hour ago, unless an attempt that took over has closed its slot.
   This holds of each table that a reader sees, not of two reads one after the other: if two overwrites looked at the same table, the first
   may see the one and the second the other.

An order that counts only overwrites (one more than the greatest one seen) would do for tables that are replaced as a whole, but not for
partitions: there an overwrite that looked earlier could come after one that has seen more rows, in a partition that both write.

**An overwrite of partitions** replaces, of the slots that it saw, the files in the folders of the partitions that it has rows of, and names
the slots with such files. In each partition the last overwrite that has rows of it, or replaces the whole table, hides all others, and a
slot of another kind is hidden there once an overwrite that has rows of it names the slot: 1 to 4 hold word for word. A folder stands for
one tuple of values (`sink.groups`), so folders are compared. Rows in folders of other columns cannot be told apart: an overwrite of
partitions that sees some is refused. Two overwrites that do not see one another may still lay out their rows differently; then the one that
looked first shows, and an overwrite of partitions that did not see it is hidden. To recognise that, an overwrite of partitions also names
earlier overwrites with other columns, whose rows others have replaced since.

The generations of a key combine with this: the rows that an overwrite has hidden do not come back when the key is run again, and a rerun of
a key that adds rows adds its new ones. A generation that overwrote and was replaced by a later generation keeps what it replaced hidden.
Batches of a stream's rerun are not visible before its end, so no overwrite names them before: they come after it.

**A lane that is trimmed** (`lanes.table_log`) has a slot beside its chain that names a generation: the places of that one and of those
before it are hidden, whatever they hold. So it takes effect at its create, for all of them at once, and their files are not needed any
more.

**What is assumed of listings**: one that begins after an object was created contains it (S3, Google Cloud Storage, Azure and file systems
do this). A listing is no snapshot: of two slots that are committed while it is read it may lack the first. For slots that add rows this has
always been so, and readers then see rows a moment late. For an overwrite it would show rows beside what replaced them. So a reader that
finds an overwrite lists again until a listing shows no further one (`snapshot`). That listing began after each of them was created, and
has everything that each of them saw. Of several writers that commit while an overwrite looks, each by itself is replaced or kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sparkonce.model.spec import WriteMode
from sparkonce.sink.groups import named
from sparkonce.sink.protocol import CommittedFile, DataFile, LaneMark, SinkKey, Slot, SlotState
from sparkonce.sink.slotlog import layout
from sparkonce.sink.stream import shown

Partition = frozenset[tuple[str, str]]
"""The columns of a file's folders, each with the folder's name for the value; empty if the file lies in none."""


def partition_of(file: DataFile | CommittedFile) -> Partition:
    return frozenset(named(file.path).items())


@dataclass(frozen=True)
class Extent:
    """What an overwrite replaces."""

    slots: Sequence[str]
    """Paths of the slots that it names."""
    partitions: frozenset[Partition] | None = None
    """Those that it has rows of, of which it replaces the files; None: it replaces whole slots."""

    @classmethod
    def of(cls, slot: Slot, slots: Sequence[str], files: Iterable[DataFile | CommittedFile]) -> Extent:
        """slots, files: those of the slot, wherever they are listed."""
        if slot.mode is not WriteMode.OVERWRITE_PARTITIONS:
            return cls(slots)
        return cls(slots, frozenset(partition_of(file) for file in files if file.rows))


Extents = Mapping[str, Extent]
"""By the path of the overwrite: of those at least whose slot names a list of slots, or of files."""


def is_listed(slot: Slot) -> bool:
    """Whether the extent of a slot is not in the slot itself."""
    if slot.replaces is None:
        return False
    partial = slot.mode is WriteMode.OVERWRITE_PARTITIONS
    return slot.replaces.listing is not None or (partial and slot.listing is not None)


def visible(slots: Iterable[Slot], extents: Extents | None = None) -> list[Slot]:
    """The committed slots whose rows readers see, all of them or those in some partitions, ordered by lineage, generation and batch."""
    committed = _untrimmed([slot for slot in slots if slot.state is SlotState.COMMITTED])
    whole = Hiding.of(committed, extents or {}).whole
    return [slot for slot in _standing(committed) if path_of(slot) not in whole]


def trims(slot: Slot) -> bool:
    return slot.lane is not None and bool(slot.lane.trims)


def trimmed(committed: Iterable[Slot]) -> dict[str, tuple[int, LaneMark]]:
    """Key hash of each lane that was trimmed -> the last generation that readers no longer see, and the mark of the slot that hides it."""
    found: dict[str, tuple[int, LaneMark]] = {}
    for slot in committed:
        key = SinkKey.parse(slot.sink_key) if trims(slot) else None
        if key is None or slot.lane is None:
            continue
        if key.key_hash not in found or key.generation > found[key.key_hash][0]:
            found[key.key_hash] = key.generation, slot.lane
    return found


def _untrimmed(committed: list[Slot]) -> list[Slot]:
    """Without the places of lanes that were trimmed, and without the slots that say so."""
    found = trimmed(committed)
    return [slot for slot in committed if not _is_trimmed(slot, found)] if found else committed


def _is_trimmed(slot: Slot, found: Mapping[str, tuple[int, LaneMark]]) -> bool:
    key = SinkKey.parse(slot.sink_key) if slot.lane is not None else None
    if key is None or key.key_hash not in found:
        return False
    return trims(slot) or key.generation <= found[key.key_hash][0]


def _standing(committed: Iterable[Slot]) -> list[Slot]:
    """Those with rows that no later generation of their key replaced; `stream.shown` decides that, and when."""
    lineages: dict[str, dict[int, list[Slot]]] = {}
    for slot in committed:
        lineage, generation = layout.lineage_of(slot.sink_key) or (slot.sink_key, 0)
        lineages.setdefault(lineage, {}).setdefault(generation, []).append(slot)
    return [
        slot
        for _, generations in sorted(lineages.items())
        for slot in shown([each for _, each in sorted(generations.items())])
    ]


@dataclass(frozen=True)
class Hiding:
    """The slots and files that overwrites hide, each by the first overwrite that does."""

    whole: Mapping[str, Slot]
    """Path of a slot of which no row shows -> the overwrite."""
    after: Mapping[str, Mapping[Partition, Slot]]
    """Path of an overwrite -> partitions of it that later ones have rows of."""
    naming: Mapping[str, Sequence[tuple[Slot, frozenset[Partition]]]]
    """Path of a slot -> overwrites of partitions that name it, in order."""

    @classmethod
    def of(cls, committed: Iterable[Slot], extents: Extents) -> Hiding:
        ordered = [(slot, _extent(slot, extents)) for slot in overwrites(committed)]
        whole: dict[str, Slot] = {}
        naming = defaultdict[str, list[tuple[Slot, frozenset[Partition]]]](list)
        folders: dict[frozenset[str], list[Slot]] = {}
        unfit = set[str]()
        for slot, extent in ordered:
            if extent.partitions is None:
                folders = {}
                for path in extent.slots:
                    whole.setdefault(path, slot)
            elif (unseen := next(_elsewhere(slot, extent, folders), None)) is not None:
                whole[path_of(slot)] = unseen
                unfit.add(path_of(slot))
            if slot.rows and path_of(slot) not in unfit:
                folders.setdefault(_columns(slot), []).append(slot)
            if extent.partitions is not None:
                for path in extent.slots:
                    naming[path].append((slot, extent.partitions))
        after: dict[str, dict[Partition, Slot]] = {}
        later: Slot | None = None
        parts: dict[Partition, Slot] = {}
        for slot, extent in reversed(ordered):
            path, own = path_of(slot), extent.partitions
            if later is not None:
                whole[path] = min(later, whole.get(path, later), key=place)
            after[path] = dict(parts) if own is None else {each: parts[each] for each in own if each in parts}
            if own is None:
                later, parts = slot, {}
            elif path not in unfit:
                parts |= dict.fromkeys(own, slot)
        return cls(whole, after, naming)

    def first(self, slot: Slot, file: DataFile | CommittedFile) -> Slot | None:
        """The first overwrite that hides a file of a slot; None: readers see it, as far as overwrites go."""
        path, partition = path_of(slot), partition_of(file)
        if slot.replaces is not None:
            part = self.after.get(path, {}).get(partition)
        else:
            part = next((each for each, parts in self.naming.get(path, ()) if partition in parts), None)
        return min(filter(None, (self.whole.get(path), part)), key=place, default=None)

    def shown(self, slot: Slot, files: Sequence[AnyFile]) -> Sequence[AnyFile] | None:
        """The files of a visible slot that readers see; None: no row of it shows."""
        if not self.naming.get(path_of(slot)) and not self.after.get(path_of(slot)):
            return files
        seen = [file for file in files if not file.rows or self.first(slot, file) is None]
        return seen if len(seen) == len(files) or any(file.rows for file in seen) else None


AnyFile = TypeVar("AnyFile", DataFile, CommittedFile)


def overwrites(committed: Iterable[Slot]) -> list[Slot]:
    """From the first to the last."""
    return sorted((slot for slot in committed if slot.replaces is not None), key=place)


def _extent(slot: Slot, extents: Extents) -> Extent:
    if (found := extents.get(path_of(slot))) is not None:
        return found
    if slot.replaces is None or is_listed(slot):
        raise KeyError(path_of(slot))
    return Extent.of(slot, slot.replaces.slots, slot.files)


def _columns(slot: Slot) -> frozenset[str]:
    return frozenset(slot.partition_by or ())


def _elsewhere(slot: Slot, extent: Extent, folders: Mapping[frozenset[str], Sequence[Slot]]) -> Iterator[Slot]:
    """Overwrites with rows in other folders that an overwrite of partitions does not name, so that it has not seen them."""
    seen = set(extent.slots)
    for columns, slots in folders.items():
        if columns != _columns(slot):
            yield from (each for each in slots if path_of(each) not in seen)


def replacement(committed: Sequence[Slot], extents: Extents) -> tuple[int, list[str]]:
    """The order of an overwrite that sees these committed slots now, and the paths of all that are visible, which one of the whole table
    replaces."""
    greatest = max((slot.replaces.order for slot in committed if slot.replaces is not None), default=-1)
    return max(len(committed), greatest + 1), [path_of(slot) for slot in visible(committed, extents)]


Shown = Sequence[tuple[Slot, Sequence[DataFile]]]
"""The visible slots, each with the files that readers see."""


def of_partitions(committed: Sequence[Slot], seen: Shown, columns: Sequence[str], own: Iterable[DataFile]) -> list[str]:
    """Paths of the slots that an overwrite of partitions names. seen: what readers see as it looks. own: its files."""
    partitions = {partition_of(file) for file in own if file.rows}
    found = [
        path_of(slot) for slot, files in seen if any(file.rows and partition_of(file) in partitions for file in files)
    ]
    others: list[str] = []
    for slot in overwrites(committed):
        if slot.mode is WriteMode.OVERWRITE:
            others = []
        if slot.rows and _columns(slot) != frozenset(columns):
            others.append(path_of(slot))
    return list(dict.fromkeys([*found, *others]))


def misfit(seen: Shown, columns: Sequence[str]) -> str | None:
    """Why partitions of a table cannot be replaced by rows with these partition columns; None when they can."""
    for slot, files in seen:
        for file in files:
            found = named(file.path)
            if file.rows and set(found) != set(columns):
                by = ", ".join(found) or "no column"
                return (
                    f"the rows of {path_of(slot)} lie in folders by {by}, and the new ones by {', '.join(columns)}, so it cannot be told "
                    "which of them are replaced; partition them alike, or replace the table once with mode Overwrite"
                )
    return None


def place(slot: Slot) -> tuple[int, str, int]:
    """The place of an overwrite among those of its table: a key to sort by."""
    assert slot.replaces is not None  # else it overwrites nothing
    return slot.replaces.order, slot.sink_key, slot.token


def path_of(slot: Slot) -> str:
    return layout.slot_path(slot.sink_key, slot.token)
