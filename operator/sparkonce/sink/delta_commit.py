"""What a commit of a slot would be, at one version of a Delta table: the sentence why it cannot be, or the entry of the log.

Everything here is worked out anew for each version that is tried, and from the slot alone: whoever rolls a sealed slot forward, days later
and without the job, comes to the same entry as its driver would. Only the statistics of files are the driver's alone (`delta_stats`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparkonce.errors import OutputCorrupt
from sparkonce.sink import delta_fit, delta_log, delta_stream
from sparkonce.sink.delta_inventory import is_opening, missing, older_files
from sparkonce.sink.delta_state import Snapshot
from sparkonce.sink.listing import files_of
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import DataFile, OnRerun, SinkKey, Slot, StreamPart


def unwritable(table: Snapshot) -> str | None:
    """Why rows cannot be written to it by us."""
    return delta_fit.unwritable(
        reader=table.min_reader,
        writer=table.min_writer,
        features=table.features,
        configuration=table.configuration,
        schema=table.schema,
    )


def unfenceable(table: Snapshot) -> str | None:
    """Why not even an entry without files can be written to it by us."""
    return delta_fit.unfenceable(
        reader=table.min_reader,
        writer=table.min_writer,
        features=table.features,
        configuration=table.configuration,
    )


def fit(table: Snapshot, rows: Mapping[str, Any], asked: Sequence[str], *, merge: bool) -> delta_fit.Fit | str:
    """How rows of a schema go into it, or why they do not."""
    return delta_fit.fit(
        dict(rows),
        table=table.schema,
        partition_by=table.partition_by,
        asked=asked,
        merge=merge,
        features=table.features,
    )


async def unfit(objects: Objects, table: Snapshot | None, key: SinkKey, slot: Slot) -> str | None:
    """Why the slot can never be committed to this table; None when it can."""
    if table is None:
        return "it was dropped after the rows were staged" if slot.table is not None else None
    if slot.table is not None and slot.table != table.identity:
        return "it was dropped and made anew after the rows were staged"
    if why := unwritable(table):
        return why
    fits = _slot_fit(table, slot)
    if isinstance(fits, str):
        return fits
    replaced = await _replaced(objects, table, key, slot)
    return replaced if isinstance(replaced, str) else None


async def staged(objects: Objects, slot: Slot) -> tuple[DataFile, ...] | str:
    """The files of a slot, or why it has none any more."""
    try:
        files = await files_of(objects, slot)
    except OutputCorrupt as error:
        return str(error)
    if gone := await missing(objects, files):
        return f"{len(gone)} staged file(s) are gone, the first is {gone[0]}; run it again"
    return files


async def older(objects: Objects, table: Snapshot, key: SinkKey, on_rerun: OnRerun) -> list[DataFile] | str:
    """Files of the generations that a commit of this key replaces, or why they cannot be removed."""
    if on_rerun is not OnRerun.REPLACE or key.generation == 1:
        return []
    before = delta_stream.before(key)
    if before is not None and table.committed(before) is not None:
        return []  # the stream's first batch has replaced them
    files = await older_files(objects, table, key)
    if not files:
        return []
    if table.configuration.get("delta.appendOnly", "false").lower() == "true":
        return "it is append-only (delta.appendOnly), so nothing in it is replaced; declare onRerun: Append"
    if "deletionVectors" in table.features:
        return "it may mark single rows as deleted (deletionVectors), so its files are not replaced whole; declare onRerun: Append"
    if lost := [file.path for file in files if file.path not in table.live]:
        return (
            f"another writer rewrote or deleted {len(lost)} file(s) of the generation before, the first is {lost[0]}, so its rows cannot "
            "be told apart any more; delete them yourself and declare onRerun: Append"
        )
    return files


async def commit_entry(
    objects: Objects,
    table: Snapshot,
    key: SinkKey,
    slot: Slot,
    files: Sequence[DataFile],
    *,
    stats: Mapping[str, str],
) -> bytes:
    """The entry that commits a slot which fits, right after this version of the table. stats: of files, by path, as far as known."""
    replaced, fits = await _replaced(objects, table, key, slot), _slot_fit(table, slot)
    if isinstance(replaced, str) or isinstance(fits, str):
        raise TypeError(f"slot {slot.token} of {key} does not fit: {replaced} {fits}")
    now = _now()
    notes = {"sinkKey": str(key), "token": slot.token, "nonce": slot.nonce, "fingerprint": slot.fingerprint}
    parameters = {"mode": "Append", "partitionBy": json.dumps(list(fits.partition_by))}
    actions = [
        delta_log.commit_info("WRITE", parameters, now=now, blind=not replaced, notes=notes),
        delta_log.txn(delta_log.idem(key), delta_log.slot_number(slot), now=now),
        delta_log.txn(delta_log.fence(key), max(slot.token, table.fenced(key)), now=now),
    ]
    if fits.schema is not None:
        actions.append(
            delta_log.meta_data(
                identity=table.identity,
                schema=fits.schema,
                partition_by=fits.partition_by,
                configuration=table.configuration,
                created=table.created,
                name=table.name,
                description=table.description,
            )
        )
    for file in replaced:
        values = delta_log.partition_values(file.path, table.partition_by)
        actions.append(delta_log.remove(table.live[file.path], values, now=now))
    modified = int(slot.committed_at * 1000)
    actions += (
        delta_log.add(file, partition_by=fits.partition_by, stats=stats.get(file.path), modified=modified)
        for file in files
    )
    return delta_log.render(actions)


def fence_entry(key: SinkKey, token: int) -> bytes:
    """The entry that bars the tokens below, and changes nothing else."""
    now = _now()
    notes = {"sinkKey": str(key), "fence": token}
    info = delta_log.commit_info("WRITE", {"mode": "Append"}, now=now, blind=True, notes=notes)
    return delta_log.render([info, delta_log.txn(delta_log.fence(key), token, now=now)])


def table_entry(slot: Slot) -> bytes | str:
    """Version 0 of the table that a slot is the first for, without its rows; or why there cannot be one."""
    partition_by = slot.partition_by or ()
    schema = delta_fit.new_schema(_rows(slot), partition_by)
    if isinstance(schema, str):
        return schema
    features = sorted(delta_fit.needed_features(schema))
    return delta_log.new_table(
        schema if schema["fields"] else delta_fit.BLANK, partition_by, features=features, now=_now()
    )


async def _replaced(objects: Objects, table: Snapshot, key: SinkKey, slot: Slot) -> list[DataFile] | str:
    return [] if is_opening(slot) else await older(objects, table, key, slot.on_rerun)


def _slot_fit(table: Snapshot, slot: Slot) -> delta_fit.Fit | str:
    rows = _rows(slot)
    if not rows["fields"]:
        return delta_fit.Fit(None, table.partition_by, ())
    asked = slot.partition_by or () if delta_fit.is_blank(table.schema) else ()
    fits = fit(table, rows, asked, merge=bool(slot.merge_schema))
    if not isinstance(fits, str) and slot.file_count and fits.staged_by != (slot.partition_by or ()):
        own, staged_by = (", ".join(columns) or "no column" for columns in (fits.staged_by, slot.partition_by or ()))
        return f"it is partitioned by {own}, and the rows were staged by {staged_by}"
    return fits


def _rows(slot: Slot) -> dict[str, Any]:
    """The schema of its rows; of a slot that never had any (a stream's opening, its end) one without columns."""
    ends = slot.stream is not None and slot.stream.part is StreamPart.END
    return dict(json.loads(slot.data_schema)) if slot.data_schema and not ends else delta_fit.EMPTY


def _now() -> int:
    """Milliseconds, as the log counts them; decides nothing."""
    return int(time.time() * 1000)
