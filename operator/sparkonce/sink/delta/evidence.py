"""Objects beside a Delta table: the slots that its log commits, and notes of fences.

    _sparkonce/<lineage>/g<generation>[-b<batch>]/<token>-<nonce>/slot.json     put before the commit that names it
    _sparkonce/<lineage>/g<generation>[-b<batch>]/fence-<token>.json            put before the fence that it records

The log records *that* a slot is committed, and which one (`numbering`); the create-once object holds its contents, because a log's
`commitInfo` is cleaned up after a month. Lineages are folders, so that finding what a rerun replaces costs one listing, however many keys
a table has. VACUUM skips folders that begin with an underscore.

A note does more than name the author of a fence: while no table exists, it is the fence. A fence puts the note, then looks for the table; a
commit makes sure that the table exists, then looks for notes. One of them sees the other. So a job that ended without effect bars its
attempts for ever and creates no empty table.
"""

from __future__ import annotations

import re

from sparkonce.errors import OutputCorrupt
from sparkonce.sink.delta.numbering import slot_number
from sparkonce.sink.objects.protocol import TableObjects, create_heard
from sparkonce.sink.protocol import SinkKey, Slot, SlotState
from sparkonce.sink.slotlog import layout

EVIDENCE = "_sparkonce"
SLOT = "slot.json"

_NOTE = re.compile(r"fence-(\d{10})\.json$")


def folder_of(sink_key: SinkKey | str) -> str:
    """The folder with all evidence of one sink key."""
    key = sink_key if isinstance(sink_key, SinkKey) else SinkKey.parse(sink_key)
    if key is None:
        raise ValueError(f"{sink_key} is no sink key")
    return f"{EVIDENCE}/{key.lineage}/{key.run}"


def write_folder(sink_key: SinkKey | str, token: int, nonce: str) -> str:
    """The folder with the evidence of one write call."""
    return f"{folder_of(sink_key)}/{token:010d}-{nonce}"


def slot_path(slot: Slot) -> str:
    return f"{write_folder(slot.sink_key, slot.token, slot.nonce)}/{SLOT}"


async def put_slot(objects: TableObjects, slot: Slot) -> bool:
    """Stores a slot. True: it is stored durably. False: it existed and was deleted meanwhile, by a process that swept the decided key.
    Raises: OutputCorrupt when another slot has the same nonce."""
    path, data = slot_path(slot), layout.encode(slot)
    if await create_heard(objects, path, data):
        return True
    found = await objects.get(path)
    if found is None:
        return False
    if found != data:
        raise OutputCorrupt(
            f"{objects.where(path)} holds another slot than the one to commit; nothing was committed, run it again"
        )
    await objects.persist([path])
    return True


async def slots(objects: TableObjects, sink_key: SinkKey | str) -> list[Slot]:
    """Every stored slot of a key, committed or not. Raises: OutputCorrupt when one does not parse."""
    found = [await read(objects, each.path) for each in await objects.list(folder_of(sink_key))]
    return [slot for slot in found if slot is not None]


async def read(objects: TableObjects, path: str) -> Slot | None:
    """The slot at a path below `EVIDENCE`; None for any other object. Raises: OutputCorrupt."""
    parts = path.split("/")
    token_and_nonce = layout.staged(parts[-2])
    if len(parts) != 5 or parts[-1] != SLOT or token_and_nonce is None:
        return None
    data = await objects.get(path)
    if data is None:
        return None
    return layout.decode(data, where=objects.where(path), sink_key=f"{parts[1]}-{parts[2]}", token=token_and_nonce[0])


async def numbered(objects: TableObjects, sink_key: SinkKey | str, number: int) -> Slot | None:
    """The slot that a log's `idem` transaction names; None when its object is gone."""
    return next((slot for slot in await slots(objects, sink_key) if slot_number(slot) == number), None)


async def put_note(objects: TableObjects, key: SinkKey, token: int, *, fingerprint: str, by: str) -> None:
    """Puts the note that lower tokens are barred; durable when this returns."""
    path = f"{folder_of(key)}/fence-{token:010d}.json"
    closed = Slot(state=SlotState.CLOSED, sink_key=str(key), token=token - 1, fingerprint=fingerprint, closed_by=by)
    if not await create_heard(objects, path, layout.encode(closed)):
        await objects.persist([path])


async def noted(objects: TableObjects, key: SinkKey) -> int:
    """The highest token of a noted fence; 0 when there is none."""
    return max((noted_token(each.path) for each in await objects.list(folder_of(key))), default=0)


def noted_token(path: str) -> int:
    """The token of the note at a path, which bars lower ones; 0 for any other path."""
    match = _NOTE.search(path)
    return int(match[1]) if match else 0


def lost(objects: TableObjects, sink_key: SinkKey | str) -> OutputCorrupt:
    """The error for a key that the log commits and whose slot is gone."""
    return OutputCorrupt(
        f"{objects.uri} holds a commit of {sink_key}, and its slot below {folder_of(sink_key)} is gone or cannot be read; restore that "
        "folder from a backup, nothing is written for its key until then"
    )


async def closed_by(objects: TableObjects, key: SinkKey, token: int) -> str:
    """The author of the fence that barred a token, for a person."""
    for each in await objects.list(folder_of(key)):
        noted = noted_token(each.path)
        if noted > token and (data := await objects.get(each.path)) is not None:
            return layout.decode(data, where=objects.where(each.path), sink_key=str(key), token=noted - 1).closed_by
    return "a later attempt"


async def runs(objects: TableObjects, lineage: str) -> list[SinkKey]:
    """The generations (and their batches and statements) of a lineage that have evidence, in order."""
    folders = await objects.folders(f"{EVIDENCE}/{lineage}")
    named = (SinkKey.parse(f"{lineage}-{folder.rpartition('/')[2]}") for folder in folders)
    found = [key for key in named if key is not None and key.lineage == lineage]
    return sorted(found, key=lambda key: (key.generation, key.batch or 0))
