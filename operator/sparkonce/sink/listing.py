"""The files of a slot: in the slot itself, or in a list beside it when they are many.

A slot travels: sealed into the ledger, whose values are small, and whole into a table's own commit. Thousands of files would not fit there,
so from `FILES_IN_SLOT` on a slot names one create-once object, with its digest, instead. The object lies in the staging folder of the
write whose files it lists and lives as long as they do. Such a slot has a schema of its own: a version that does not know of lists must
refuse it rather than read a table without rows.
"""

from __future__ import annotations

import hashlib

import rfc8785
from pydantic import TypeAdapter, ValidationError

from sparkonce.errors import OutputCorrupt, OutputUnavailable
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import FILES_IN_SLOT, LISTED_SCHEMA, DataFile, Listing, Slot

NAME = "_files.json"
"""The underscore keeps it out of what Spark, and what staging, take for data."""

_FILES = TypeAdapter(tuple[DataFile, ...])


async def with_files(objects: Objects, slot: Slot, folder: str, files: tuple[DataFile, ...]) -> Slot:
    """The slot, naming these files of a staging folder. OutputUnavailable: the list may be there; nothing names it."""
    if len(files) <= FILES_IN_SLOT:
        return slot.model_copy(update={"files": files})
    path, data = f"{folder}/{NAME}", rfc8785.dumps([file.dump() for file in files])
    # The folder is this write's alone: what stands there already is this very list, whose answer was lost.
    if not await objects.create(path, data) and await objects.get(path) != data:
        raise OutputUnavailable(
            f"{objects.where(path)} holds another list of files; nothing was committed, run it again"
        )
    size = sum(file.bytes for file in files)
    listing = Listing(path=path, digest=hashlib.sha256(data).hexdigest(), files=len(files), bytes=size)
    return slot.model_copy(update={"listing": listing, "schema_": LISTED_SCHEMA})


async def files_of(objects: Objects, slot: Slot) -> tuple[DataFile, ...]:
    """OutputUnavailable; OutputCorrupt: the list is gone, or is not the one that was committed."""
    if slot.listing is None:
        return slot.files
    data = await objects.get(slot.listing.path)
    where = objects.where(slot.listing.path)
    if data is None or hashlib.sha256(data).hexdigest() != slot.listing.digest:
        said = "is gone" if data is None else "is not the one that was committed"
        raise OutputCorrupt(
            f"the list of files {where} {said}; restore it from a backup, or rerun the job that wrote it"
        )
    try:
        return _FILES.validate_json(data)
    except ValidationError:
        raise OutputCorrupt(f"the list of files {where} cannot be read by this version; upgrade sparkonce") from None
