"""Paths inside a slot log and the encoding of slots; no I/O except to write and read the list of files of a large slot.

    <table>/_idem/<sink key>/<token>.json             one slot
    <table>/_idem/_snapshot/<n>.json                  lists of decided slots: a cache for readers
    <table>/_idem/_overwritten/table.json             exists if a slot may replace others: tells probes to look at all slots
    <table>/_data/<sink key>/<token>-<nonce>/*.parquet   the files of one write
    <table>/_data/<sink key>/<token>-<nonce>/_files.json   their list, when the slot is too small for it
    <table>/_data/<sink key>/<token>-<nonce>/_replaced-<digest>.json   likewise, the list of the slots that an overwrite replaces
    <table>/_streams/<sink key>/                      default location of a stream's Spark checkpoint

Tokens and snapshot numbers have ten digits, so that names sort in numeric order. All folders begin with an underscore, which Spark's own
listing skips: `spark.read.parquet(<table>)` finds no rows instead of uncommitted ones.

A slot is RFC 8785 (canonical) JSON, so that a roll-forward of a sealed slot writes the bytes that its driver would have. A slot that does
not parse still exists: it raises an error and is never treated as empty.

A slot is stored whole in the ledger, whose values are small, and in the commit of a Delta or Iceberg table. Thousands of files do not fit
there, so a slot with more than `FILES_IN_SLOT` files names a create-once list of them, by path and digest, instead. The list lies in the
staging folder of the write and is deleted with it. Such a slot has its own schema version: a release that does not know lists must refuse
the slot rather than read a table without rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import rfc8785
from pydantic import TypeAdapter, ValidationError

from sparkonce.errors import OutputCorrupt, OutputUnavailable
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import (
    FILES_IN_SLOT,
    LISTED_SCHEMA,
    NEWEST_SCHEMA,
    OVERWRITING_SCHEMA,
    DataFile,
    Listing,
    NamedSlots,
    Replacement,
    SinkKey,
    Slot,
)

T = TypeVar("T")

SLOTS = "_idem"
DATA = "_data"
SNAPSHOTS = f"{SLOTS}/_snapshot"
OVERWRITTEN = f"{SLOTS}/_overwritten"
STAGING_DEPTH = 3
"""Components of a staging folder's path; Spark names everything below."""
CHECKPOINTS = "_streams"
FILE_LIST = "_files.json"
"""The leading underscore makes Spark and `sink.staging` skip it."""
REPLACED_IN_SLOT = 32
"""Maximum number of replaced slots named in the slot itself, as `FILES_IN_SLOT`."""

_TOKEN = re.compile(r"(\d{10})\.json$")
_FOLDER = re.compile(r"(\d{10})-([0-9a-z]+)$")
_FILES = TypeAdapter(tuple[DataFile, ...])
_PATHS = TypeAdapter(tuple[str, ...])


def slots_folder(key: SinkKey | str) -> str:
    """Folder of a key's slots."""
    return f"{SLOTS}/{key}"


def slot_path(key: SinkKey | str, token: int) -> str:
    """Path of one attempt's slot."""
    return f"{SLOTS}/{key}/{token:010d}.json"


def staging_folder(key: SinkKey | str, token: int, nonce: str) -> str:
    """Folder of one write call's files."""
    return f"{DATA}/{key}/{token:010d}-{nonce}"


def snapshot_path(number: int) -> str:
    """Path of a snapshot; numbers begin with 1."""
    return f"{SNAPSHOTS}/{number:010d}.json"


def numbered(path: str) -> int | None:
    """The token or snapshot number in the last component of a path; None if it has neither."""
    match = _TOKEN.match(path.rpartition("/")[2])
    return int(match[1]) if match else None


def snapshots(paths: Iterable[str]) -> list[int]:
    """Numbers of the snapshots among the paths, ascending."""
    return sorted(n for path in paths if path.startswith(f"{SNAPSHOTS}/") and (n := numbered(path)) is not None)


def is_slot(path: str) -> bool:
    """Whether a path below `SLOTS` is the path of a slot."""
    return path.count("/") == 2 and numbered(path) is not None and not path.split("/")[1].startswith("_")


def staged(folder: str) -> tuple[int, str] | None:
    """Token and nonce of a staging folder; None if the path is not one."""
    match = _FOLDER.match(folder.rpartition("/")[2])
    return (int(match[1]), match[2]) if match else None


def in_staging(location: str) -> bool:
    """Whether a location lies in the folder of one write. A table's own folder may be called `_data`, too, or lie in one."""
    parts = location.split("/")
    return any(
        name == DATA and SinkKey.parse(key) is not None and staged(folder) is not None
        for name, key, folder, _ in zip(parts, parts[1:], parts[2:], parts[3:], strict=False)
    )


def lineage_of(sink_key: str) -> tuple[str, int] | None:
    """Lineage (`SinkKey.lineage`) and generation of a sink key, ignoring its batch; None if the text is not a sink key."""
    key = SinkKey.parse(sink_key)
    return None if key is None else (key.lineage, key.generation)


def batch_of(sink_key: str) -> int | None:
    """Number of the micro-batch or statement that a sink key names; None for a batch job's key and for a stream's opening."""
    key = SinkKey.parse(sink_key)
    return None if key is None else key.batch


def encode(slot: Slot) -> bytes:
    """Canonical JSON: equal slots have equal bytes."""
    return rfc8785.dumps(slot.dump())


def decode(data: bytes, *, where: str, sink_key: str, token: int) -> Slot:
    """Parses the slot stored for `sink_key` and `token`. `where` names the object in errors.

    Raises:
        OutputCorrupt: not the JSON of a slot, the content of another slot, or a schema of a later release.
    """
    try:
        body = json.loads(data)
        schema = body["schema"] if isinstance(body, dict) else None
    except (ValueError, KeyError):
        schema = None
    if not isinstance(schema, int):
        raise _corrupt(where, "it is not the JSON of a slot")
    if schema > NEWEST_SCHEMA:
        raise OutputCorrupt(
            f"the slot {where} has schema {schema} and this version reads up to {NEWEST_SCHEMA}; upgrade sparkonce"
        )
    try:
        slot = Slot.model_validate_json(data)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        raise _corrupt(where, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if (slot.sink_key, slot.token) != (sink_key, token):
        raise _corrupt(where, f"it is the slot of {slot.sink_key}, token {slot.token}")
    return slot


def _corrupt(where: str, why: str) -> OutputCorrupt:
    return OutputCorrupt(
        f"the slot {where} cannot be read ({why}); restore that file from a backup, nothing is written to its key until then"
    )


async def with_files(objects: TableObjects, slot: Slot, folder: str, files: tuple[DataFile, ...]) -> Slot:
    """The slot with these files of its staging folder, listed in a separate object if they are many.

    Raises:
        OutputUnavailable: the list may have been written; no slot names it.
    """
    if len(files) <= FILES_IN_SLOT:
        return slot.model_copy(update={"files": files})
    path, digest = await _put_list(objects, folder, FILE_LIST, [file.dump() for file in files])
    size = sum(file.bytes for file in files)
    listing = Listing(path=path, digest=digest, files=len(files), bytes=size)
    return slot.model_copy(update={"listing": listing, "schema_": LISTED_SCHEMA})


async def files_of(objects: TableObjects, slot: Slot) -> tuple[DataFile, ...]:
    """The files of a slot, read from its list if it has one.

    Raises:
        OutputCorrupt: the list is missing, or is not the committed one.
        OutputUnavailable: the store did not answer.
    """
    if slot.listing is None:
        return slot.files
    remedy = "restore it from a backup, or rerun the job that wrote it"
    return await _listed(objects, slot.listing, _FILES, what="list of files", remedy=remedy)


async def with_replaced(objects: TableObjects, slot: Slot, folder: str, *, order: int, replaced: Sequence[str]) -> Slot:
    """The slot of an overwrite with these slots that it replaces, listed in a separate object if they are many.

    Raises:
        OutputUnavailable: the list may have been written; no slot names it.
    """
    given = tuple(replaced)
    if len(given) <= REPLACED_IN_SLOT:
        replaces = Replacement(order=order, slots=given)
    else:
        # the digest in its name, since a commit that is tried again may replace other slots
        path, digest = await _put_list(objects, folder, "_replaced-{digest:.32}.json", list(given))
        replaces = Replacement(order=order, listing=NamedSlots(path=path, digest=digest, slots=len(given)))
    return slot.model_copy(update={"replaces": replaces, "schema_": OVERWRITING_SCHEMA})


async def replaced_by(objects: TableObjects, slot: Slot) -> tuple[str, ...]:
    """Paths of the slots that a slot names as replaced, read from their list if it has one.

    Raises:
        OutputCorrupt: the list is missing, or is not the committed one.
        OutputUnavailable: the store did not answer.
    """
    if slot.replaces is None:
        return ()
    if slot.replaces.listing is None:
        return slot.replaces.slots
    remedy = "restore it from a backup: until then it cannot be told which rows the table has"
    return await _listed(objects, slot.replaces.listing, _PATHS, what="list of replaced slots", remedy=remedy)


async def mark_overwritten(objects: TableObjects) -> None:
    """Notes that slots of this table may replace others, durably and before the first of them is created: probes look at the slots of other
    keys only then. Nothing else depends on it.

    Raises:
        OutputUnavailable: unknown; the note may exist.
    """
    path = f"{OVERWRITTEN}/table.json"
    if not await objects.create(path, b"{}"):
        await objects.persist([path])


async def _put_list(objects: TableObjects, folder: str, name: str, values: list[Any]) -> tuple[str, str]:
    """Creates a list in the folder of its write, durably; returns its path and its SHA-256 as hex digits, which `name` may contain as
    `{digest}`. Only this write uses the folder: an existing list with this content is our own, created by a request whose reply was lost.

    Raises:
        OutputUnavailable: the list may have been written, or another one is there.
    """
    data = rfc8785.dumps(values)
    digest = hashlib.sha256(data).hexdigest()
    path = f"{folder}/{name.format(digest=digest)}"
    if not await objects.create(path, data):
        if await objects.get(path) != data:
            raise OutputUnavailable(f"{objects.where(path)} holds another list; nothing was committed, run it again")
        await objects.persist([path])
    return path, digest


async def _listed(
    objects: TableObjects, listing: Listing | NamedSlots, kind: TypeAdapter[T], *, what: str, remedy: str
) -> T:
    data = await objects.get(listing.path)
    where = objects.where(listing.path)
    if data is None or hashlib.sha256(data).hexdigest() != listing.digest:
        problem = "is gone" if data is None else "is not the one that was committed"
        raise OutputCorrupt(f"the {what} {where} {problem}; {remedy}")
    try:
        return kind.validate_json(data)
    except ValidationError:
        raise OutputCorrupt(f"the {what} {where} cannot be read by this version; upgrade sparkonce") from None
