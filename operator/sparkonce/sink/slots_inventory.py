"""What stands in a slot log, of all keys: for an audit.

Every slot is read anew, whatever the readers' snapshots say of it; what readers see is then worked out *their* way, from the newest
snapshot and the slots that it does not name. So an audit can compare the two, and a slot that is gone while a snapshot still shows its
rows is found. A slot that a snapshot names and a listing does not is asked for by its name: no listing is believed when it shows nothing.

Slots are listed before data files, and a slot is created after the files it names: a file that a slot names and the later listing
lacks was really not there. The other way round a write that commits meanwhile leaves a staged folder without a slot, for one look.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sparkonce import blocking
from sparkonce.errors import OutputCorrupt
from sparkonce.sink import layout
from sparkonce.sink.listing import NAME, files_of
from sparkonce.sink.objects import Listed, Objects
from sparkonce.sink.protocol import CommittedFile, Effect, Inventory, Slot, SlotState, StagedFolder
from sparkonce.sink.table import newest_snapshot, visible

THREADS = 8
"""Slots read at once: a store's round trips in a row would take as long as everything else together."""


@dataclass(frozen=True)
class _Read:
    """One slot object."""

    path: str
    sink_key: str
    token: int
    slot: Slot | None = None
    files: tuple[CommittedFile, ...] = ()
    unreadable: str = ""


@dataclass
class _Slots:
    committed: dict[tuple[str, int], _Read] = field(default_factory=dict)
    closed: set[tuple[str, int]] = field(default_factory=set)
    unreadable: list[_Read] = field(default_factory=list)

    def add(self, found: Iterable[_Read | None]) -> None:
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
    def known(self) -> set[tuple[str, int]]:
        return {*self.committed, *self.closed, *((each.sink_key, each.token) for each in self.unreadable)}


async def inventory(objects: Objects, kind: str) -> Inventory:
    """OutputUnavailable. A slot, or a list of files, that does not parse is one sentence of `unreadable`."""
    listed = [each.path for each in await objects.list(layout.SLOTS)]
    slots = _read_all(objects, (path for path in listed if layout.is_slot(path)))
    readers_see = await _readers_see(objects, slots, listed)
    # Empty objects are marks (`_SUCCESS`, and those by which S3A keeps folders): no row is in them.
    data = [each for each in await objects.list(layout.DATA) if each.bytes]
    shown = {
        (slot.sink_key, slot.token) for slot in visible(each.slot for each in slots.committed.values() if each.slot)
    }
    return Inventory(
        kind=kind,
        uri=objects.uri,
        effects=tuple(
            Effect(slot=each.slot, files=each.files, commit=each.path, visible=at in shown)
            for at, each in sorted(slots.committed.items())
            if each.slot is not None
        ),
        staged=tuple(_folders(data, slots)),
        live=readers_see,
        unreadable=tuple(each.unreadable for each in slots.unreadable),
    )


def _read_all(objects: Objects, paths: Iterable[str]) -> _Slots:
    slots = _Slots()
    with ThreadPoolExecutor(THREADS) as pool:
        slots.add(pool.map(lambda path: blocking.run(_read(objects, path)), paths))
    return slots


async def _read(objects: Objects, path: str) -> _Read | None:
    sink_key, token = path.split("/")[1], layout.numbered(path) or 0
    data = await objects.get(path)
    if data is None:
        return None
    try:
        slot = layout.decode(data, where=objects.where(path), sink_key=sink_key, token=token)
        files = CommittedFile.all_of(await files_of(objects, slot))
    except OutputCorrupt as error:
        return _Read(path, sink_key, token, unreadable=str(error))
    return _Read(path, sink_key, token, slot, files)


async def _readers_see(objects: Objects, slots: _Slots, listed: list[str]) -> tuple[str, ...]:
    """Paths, as a reader comes to them: what the newest snapshot says of a slot is not asked again."""
    committed, closed = await newest_snapshot(objects, layout.snapshots(listed))
    known = slots.known
    unseen = [path for path, slot in committed.items() if (slot.sink_key, slot.token) not in known]
    slots.add([await _read(objects, path) for path in unseen])
    said = {
        path: slot for each in slots.committed.values() if (slot := each.slot) and (path := each.path) not in closed
    }
    files: dict[str, tuple[CommittedFile, ...]] = {each.path: each.files for each in slots.committed.values()}
    seen: list[str] = []
    for slot in visible((said | committed).values()):
        path = layout.slot_path(slot.sink_key, slot.token)
        if path not in files:
            try:
                files[path] = CommittedFile.all_of(await files_of(objects, slot))
            except OutputCorrupt as error:
                slots.unreadable.append(_Read(path, slot.sink_key, slot.token, unreadable=str(error)))
        seen += (file.path for file in files.get(path, ()))
    return tuple(seen)


def _folder(path: str) -> str:
    return "/".join(path.split("/")[:3])


def _folders(data: Iterable[Listed], slots: _Slots) -> Iterable[StagedFolder]:
    staged: dict[str, list[Listed]] = {}
    for each in data:
        staged.setdefault(_folder(each.path), []).append(each)
    nonces: dict[str, set[tuple[int, str]]] = {}
    for (sink_key, token), found in slots.committed.items():
        nonces.setdefault(sink_key, set()).add((token, found.slot.nonce if found.slot else ""))
    unreadable = {each.sink_key for each in slots.unreadable}
    for folder, objects in staged.items():
        named = layout.staged(folder)
        if named is None:
            continue
        sink_key = folder.split("/")[1]
        own = named in nonces.get(sink_key, ())
        decided = sink_key in nonces or (sink_key, named[0]) in slots.closed
        yield StagedFolder(
            path=folder,
            sink_key=sink_key,
            token=named[0],
            nonce=named[1],
            files=sum(not each.path.endswith(f"/{NAME}") for each in objects),
            bytes=sum(each.bytes for each in objects),
            unreachable=decided and not own and sink_key not in unreadable,
            modified=max(each.modified for each in objects),
        )
