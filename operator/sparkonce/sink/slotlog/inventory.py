"""Lists a whole slot log for audits, and one stream of it for probes.

`inventory` reads every slot, whatever the readers' snapshots contain, and then computes what readers see *their* way: from the newest
snapshot and the slots missing from it. So an audit can compare the two, and finds a deleted slot whose rows a snapshot still shows. A slot
that is in a snapshot but not in the listing is read by name: a listing proves presence, never absence.

Slots are listed before data files, and a slot is created after its files: a file that a slot names and the later listing lacks is really
missing. In return, a write that commits in between may briefly appear as a staged folder without a slot.

`recorded` reads the batches of a stream in a few requests, however long the stream is. Reading one batch after the other would cost a
listing and a read for each. One listing of the slot log proves that the slots exist, the newest snapshot has the content of most, and only
the others are read. The snapshot alone would not do: it outlives the slots in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sparkonce import blocking
from sparkonce.errors import OutputCorrupt
from sparkonce.sink import stream
from sparkonce.sink.objects.protocol import Listed, TableObjects
from sparkonce.sink.protocol import CommittedFile, Effect, Found, Inventory, SinkKey, Slot, SlotState, StagedFolder
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.layout import files_of, replaced_by
from sparkonce.sink.slotlog.snapshot import SLOT_THREADS, listed_after_overwrites, newest_snapshot, replaced_verdict
from sparkonce.sink.slotlog.visibility import Extent, Extents, Hiding, is_listed, path_of, visible

THREADS = 8
"""Concurrent reads of slots: one round trip after the other would take as long as everything else together."""


@dataclass(frozen=True)
class _ReadSlot:
    """One slot object: its slot, its files and the slots that it replaces, or why it cannot be read."""

    path: str
    sink_key: str
    token: int
    slot: Slot | None = None
    files: tuple[CommittedFile, ...] = ()
    replaced: tuple[str, ...] = ()
    """Paths."""
    unreadable: str = ""


@dataclass
class _SlotSet:
    """The slots of a table, by sink key and token."""

    committed: dict[tuple[str, int], _ReadSlot] = field(default_factory=dict)
    closed: set[tuple[str, int]] = field(default_factory=set)
    unreadable: list[_ReadSlot] = field(default_factory=list)

    def add(self, found: Iterable[_ReadSlot | None]) -> None:
        for each in found:
            if each is None:
                continue
            if each.unreadable:
                self.unreadable.append(each)
            elif each.slot is not None and each.slot.state is SlotState.COMMITTED:
                self.committed[each.sink_key, each.token] = each
            else:
                self.closed.add((each.sink_key, each.token))

    @property
    def extents(self) -> Extents:
        return {
            each.path: Extent.of(each.slot, each.replaced, each.files)
            for each in self.committed.values()
            if each.slot is not None and each.slot.replaces is not None
        }

    @property
    def known(self) -> set[tuple[str, int]]:
        return {*self.committed, *self.closed, *((each.sink_key, each.token) for each in self.unreadable)}


async def inventory(objects: TableObjects, kind: str) -> Inventory:
    """Everything in the slot log; a slot or list of files that does not parse becomes one sentence of `unreadable`.

    Raises:
        OutputUnavailable: the store did not answer.
    """
    listed = [each.path for each in await objects.list(layout.SLOTS)]
    slots = await _read_all(objects, [path for path in listed if layout.is_slot(path)])
    readers_see = await _readers_see(objects, slots, listed)
    # Empty objects are markers (`_SUCCESS`, S3A's folder markers) and hold no rows. Without a slot the folder may be anything.
    found = [each for each in await objects.list("" if listed else layout.DATA) if each.bytes]
    data = [each for each in found if each.path.startswith(f"{layout.DATA}/")]
    effects, hidden = _effects(slots, set(readers_see))
    return Inventory(
        kind=kind,
        uri=objects.uri,
        effects=effects,
        staged=tuple(_folders(data, slots)),
        live=readers_see,
        unreadable=tuple(each.unreadable for each in slots.unreadable),
        hidden=hidden,
        uncommitted={each.path: each.bytes for each in _uncommitted(found, slots)},
    )


def _effects(slots: _SlotSet, live: Collection[str]) -> tuple[tuple[Effect, ...], dict[str, Found]]:
    """The committed slots, and `Inventory.hidden` of those of which overwrites hide some partitions: of those that readers see as the slots
    say. live: the files that readers see."""
    committed = [each.slot for each in slots.committed.values() if each.slot is not None]
    hiding = Hiding.of(committed, slots.extents)
    seen = {path_of(slot) for slot in visible(committed, slots.extents)}
    effects: list[Effect] = []
    hidden: dict[str, Found] = {}
    for _, each in sorted(slots.committed.items()):
        if each.slot is None:
            continue
        shown = hiding.shown(each.slot, each.files) if each.path in seen else None
        effects.append(Effect(slot=each.slot, files=each.files, commit=each.path, visible=shown is not None))
        by = [hiding.first(each.slot, file) for file in each.files] if shown and len(shown) < len(each.files) else []
        said = replaced_verdict(filter(None, by))
        if said is not None and {file.path for file in shown or ()} == {file.path for file in each.files} & set(live):
            hidden[each.sink_key] = said
    return tuple(effects), hidden


async def _read_all(objects: TableObjects, paths: Sequence[str]) -> _SlotSet:
    slots = _SlotSet()

    def overwrites(paths: Sequence[str]) -> bool:
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(lambda path: blocking.run(_read(objects, path)), paths))
        slots.add(found)
        return any(each is not None and each.slot is not None and each.slot.replaces is not None for each in found)

    await listed_after_overwrites(objects, paths, (), read=overwrites)
    return slots


async def _read(objects: TableObjects, path: str) -> _ReadSlot | None:
    sink_key, token = path.split("/")[1], layout.numbered(path) or 0
    data = await objects.get(path)
    if data is None:
        return None
    try:
        slot = layout.decode(data, where=objects.where(path), sink_key=sink_key, token=token)
        files = CommittedFile.all_of(await files_of(objects, slot))
        replaced = await replaced_by(objects, slot)
    except OutputCorrupt as error:
        return _ReadSlot(path, sink_key, token, unreadable=str(error))
    return _ReadSlot(path, sink_key, token, slot, files, replaced)


async def _readers_see(objects: TableObjects, slots: _SlotSet, listed: list[str]) -> tuple[str, ...]:
    """Paths of the files that readers see, computed as a reader does: slots in the newest snapshot are not read again."""
    committed, closed = await newest_snapshot(objects, layout.snapshots(listed))
    known = slots.known
    unseen = [path for path, slot in committed.items() if (slot.sink_key, slot.token) not in known]
    slots.add([await _read(objects, path) for path in unseen])
    by_path = {
        path: slot for each in slots.committed.values() if (slot := each.slot) and (path := each.path) not in closed
    }
    files: dict[str, tuple[CommittedFile, ...]] = {each.path: each.files for each in slots.committed.values()}
    seen: list[str] = []
    shown = by_path | committed
    extents = await _extents(objects, slots, shown)
    hiding = Hiding.of(shown.values(), extents)
    for slot in visible(shown.values(), extents):
        path = layout.slot_path(slot.sink_key, slot.token)
        if path not in files:
            try:
                files[path] = CommittedFile.all_of(await files_of(objects, slot))
            except OutputCorrupt as error:
                slots.unreadable.append(_ReadSlot(path, slot.sink_key, slot.token, unreadable=str(error)))
        seen += (file.path for file in hiding.shown(slot, files.get(path, ())) or ())
    return tuple(seen)


async def _extents(objects: TableObjects, slots: _SlotSet, shown: dict[str, Slot]) -> Extents:
    """What overwrites replace that a reader takes from lists: nothing where a list cannot be read."""
    found: dict[str, Extent] = {}
    known = slots.extents
    for path, slot in shown.items():
        if not is_listed(slot):
            continue
        try:
            found[path] = known.get(path) or Extent.of(
                slot, await replaced_by(objects, slot), await files_of(objects, slot)
            )
        except OutputCorrupt as error:
            found[path] = Extent.of(slot, (), ())
            slots.unreadable.append(_ReadSlot(path, slot.sink_key, slot.token, unreadable=str(error)))
    return found


def _uncommitted(found: Iterable[Listed], slots: _SlotSet) -> Iterator[Listed]:
    """As `Inventory.uncommitted`: files beside the folders of sparkonce, and files that a committed slot does not name beside its own.
    Names that begin with `_` or `.` are left out, as readers do."""
    named = {file.path for each in slots.committed.values() for file in each.files}
    own = {_folder(path) for path in named}
    for each in found:
        parts = each.path.split("/")
        in_data = parts[0] == layout.DATA
        if any(part.startswith(("_", ".")) for part in parts[in_data:]):
            continue
        folder = _folder(each.path)
        staged = len(parts) > layout.STAGING_DEPTH and layout.staged(folder) is not None
        if not in_data or not staged or (folder in own and each.path not in named):
            yield each


def _folder(path: str) -> str:
    return "/".join(path.split("/")[:3])


def _folders(data: Iterable[Listed], slots: _SlotSet) -> Iterable[StagedFolder]:
    staged: dict[str, list[Listed]] = {}
    for each in data:
        staged.setdefault(_folder(each.path), []).append(each)
    nonces: dict[str, set[tuple[int, str]]] = {}
    tokens = dict(slots.committed.keys())
    for (sink_key, token), found in slots.committed.items():
        nonces.setdefault(sink_key, set()).add((token, found.slot.nonce if found.slot else ""))
    unreadable = {each.sink_key for each in slots.unreadable}
    for folder, objects in staged.items():
        named = layout.staged(folder)
        if named is None:
            continue
        sink_key = folder.split("/")[1]
        own = named in nonces.get(sink_key, ())
        barred = sink_key in nonces or (sink_key, named[0]) in slots.closed or named[0] < _lowest(sink_key, tokens)
        yield StagedFolder(
            path=folder,
            sink_key=sink_key,
            token=named[0],
            nonce=named[1],
            files=sum(not each.path.rpartition("/")[2].startswith("_") for each in objects),
            bytes=sum(each.bytes for each in objects),
            unreachable=barred and not own and sink_key not in unreadable,
            modified=max(each.modified for each in objects),
        )


def _lowest(sink_key: str, tokens: Mapping[str, int]) -> int:
    """As `SlotLogSink` in a sweep. tokens: of the committed slots."""
    key = SinkKey.parse(sink_key)
    found = (tokens.get(str(each)) for each in (stream.before(key) if key is not None else ()))
    return next((token for token in found if token is not None), 0)


@dataclass(frozen=True)
class Recorded:
    """The committed batches of a stream, as one listing shows them."""

    slots: tuple[Slot, ...]
    """The committed slots after the opening, in order; the last one is the end if the stream has ended."""
    end: int
    """Number of the last slot's place."""
    writes: int
    """Slots in the whole log: roughly the number of writes in its data folder."""


async def recorded(objects: TableObjects, key: SinkKey, opening: Slot) -> Recorded:
    """The chain of the stream that `opening` opened.

    Raises:
        OutputUnavailable: the store did not answer.
        OutputCorrupt: a slot of this stream does not parse.
    """
    listed = [each.path for each in await objects.list(layout.SLOTS)]
    paths = [path for path in listed if layout.is_slot(path)]
    committed, closed = await newest_snapshot(objects, layout.snapshots(listed))
    own = [path for path in paths if _is_batch_of(path, key) and path not in closed]
    known = [committed[path] for path in own if path in committed]
    known += _read_batches(objects, (path for path in own if path not in committed))
    by_number = {layout.batch_of(slot.sink_key): slot for slot in known}
    chain, found = stream.Chain(opening, opening), []
    while not chain.ended and (slot := by_number.get(chain.next)) is not None:
        found.append(slot)
        chain = chain.followed_by(slot)
    return Recorded(tuple(found), chain.next if chain.ended else chain.next - 1, len(paths))


def _is_batch_of(path: str, key: SinkKey) -> bool:
    name = path.split("/")[1]
    return layout.batch_of(name) is not None and layout.lineage_of(name) == (key.lineage, key.generation)


def _read_batches(objects: TableObjects, paths: Iterable[str]) -> list[Slot]:
    """The committed slots among the paths."""

    def read(path: str) -> Slot | None:
        data, sink_key = blocking.run(objects.get(path)), path.split("/")[1]
        if data is None:
            return None
        slot = layout.decode(data, where=objects.where(path), sink_key=sink_key, token=layout.numbered(path) or 0)
        return slot if slot.state is SlotState.COMMITTED else None

    with ThreadPoolExecutor(SLOT_THREADS) as pool:
        return [slot for slot in pool.map(read, paths) if slot is not None]
