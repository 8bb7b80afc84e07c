"""What stands in a slot log, of all keys: for an audit. Reads every slot anew and believes no snapshot of the readers."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkonce.errors import OutputCorrupt
from sparkonce.sink import layout
from sparkonce.sink.listing import NAME, files_of
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import DataFile, Effect, Inventory, Slot, SlotState, StagedFolder
from sparkonce.sink.table import visible


@dataclass
class _Found:
    slots: list[tuple[str, Slot, tuple[DataFile, ...]]] = field(default_factory=list)
    """Path, slot and its files, of the committed ones."""
    unreadable: list[str] = field(default_factory=list)


async def inventory(objects: Objects, kind: str) -> Inventory:
    """OutputUnavailable. A slot, or a list of files, that does not parse is one sentence of `unreadable`."""
    found = await _committed(objects)
    seen = {(slot.sink_key, slot.token) for slot in visible(slot for _, slot, _ in found.slots)}
    effects = tuple(
        Effect(slot=slot, files=files, commit=path, visible=(slot.sink_key, slot.token) in seen)
        for path, slot, files in found.slots
    )
    present: dict[str, int] = {}
    staged: dict[str, list[int]] = {}
    for each in await objects.list(layout.DATA):
        folder = "/".join(each.path.split("/")[:3])
        if layout.staged(folder) is None:
            continue
        staged.setdefault(folder, []).append(each.bytes)
        if not each.path.endswith(f"/{NAME}"):
            present[each.path] = each.bytes
    folders = []
    for folder, sizes in staged.items():
        token, nonce = layout.staged(folder) or (0, "")
        folders.append(
            StagedFolder(
                path=folder,
                sink_key=folder.split("/")[1],
                token=token,
                nonce=nonce,
                files=len(sizes),
                bytes=sum(sizes),
            )
        )
    return Inventory(
        kind=kind,
        uri=objects.uri,
        effects=effects,
        staged=tuple(folders),
        present=present,
        live=tuple(file.path for effect in effects if effect.visible for file in effect.files),
        unreadable=tuple(found.unreadable),
    )


async def _committed(objects: Objects) -> _Found:
    found = _Found()
    for each in await objects.list(layout.SLOTS):
        sink_key, token = each.path.split("/")[1], layout.numbered(each.path)
        if token is None or each.path.count("/") != 2 or sink_key.startswith("_"):
            continue
        data = await objects.get(each.path)
        if data is None:
            continue
        try:
            slot = layout.decode(data, where=objects.where(each.path), sink_key=sink_key, token=token)
            if slot.state is SlotState.COMMITTED:
                found.slots.append((each.path, slot, await files_of(objects, slot)))
        except OutputCorrupt as error:
            found.unreadable.append(str(error))
    return found
