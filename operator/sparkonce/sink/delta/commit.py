"""Computes the log entry that commits a slot at one version of a Delta table, or one sentence on why it cannot be committed.

Everything is derived anew for each version that is tried, and from the slot alone: a process that rolls a sealed slot forward, days later
and without the job, writes the same entry as its driver would have. Only the statistics of files are known to the driver alone (`log`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparkonce.errors import OutputCorrupt
from sparkonce.model.spec import OnRerun, WriteMode
from sparkonce.sink import groups
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.delta import schema as delta_fit
from sparkonce.sink.delta import stream as delta_stream
from sparkonce.sink.delta import widths as delta_widths
from sparkonce.sink.delta.inventory import STAGING, earlier, is_native, is_opening, missing
from sparkonce.sink.delta.numbering import numbering
from sparkonce.sink.delta.removals import traced
from sparkonce.sink.delta.snapshot import DeltaSnapshot
from sparkonce.sink.native import NATIVE_STANDS
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import DataFile, SinkKey, Slot, StreamPart
from sparkonce.sink.series import is_before
from sparkonce.sink.slotlog.layout import files_of
from sparkonce.sink.trace import RESTORE


def unwritable(table: DeltaSnapshot) -> str | None:
    """Why we cannot write rows to this table; None when we can."""
    return delta_fit.unwritable(
        reader=table.min_reader,
        writer=table.min_writer,
        features=table.features,
        configuration=table.configuration,
        schema=table.schema,
    )


def unfenceable(table: DeltaSnapshot) -> str | None:
    """Why we cannot write even an entry without files; None when we can."""
    return delta_fit.unfenceable(
        reader=table.min_reader,
        writer=table.min_writer,
        features=table.features,
        configuration=table.configuration,
    )


def fit(
    table: DeltaSnapshot, rows: Mapping[str, Any], asked: Sequence[str], *, merge: bool
) -> delta_fit.RowLayout | str:
    """How rows of a schema fit the table, or why they do not."""
    return delta_fit.fit(
        dict(rows),
        table=table.schema,
        partition_by=table.partition_by,
        asked=asked,
        merge=merge,
        features=table.features,
    )


def unfit(table: DeltaSnapshot | None, slot: Slot) -> str | None:
    """Why the slot can never be committed to this table; None when it can be, as far as its own rows are concerned."""
    if table is None:
        return "it was dropped after the rows were staged" if slot.table is not None else None
    if slot.table is not None and slot.table != table.identity:
        return "it was dropped and recreated after the rows were staged"
    if is_native(slot):
        return unfenceable(table)
    if why := unwritable(table):
        return why
    fits = _slot_fit(table, slot)
    return fits if isinstance(fits, str) else None


async def staged(objects: TableObjects, slot: Slot) -> tuple[DataFile, ...] | str:
    """The files of a slot, or why they no longer exist."""
    try:
        files = await files_of(objects, slot)
    except OutputCorrupt as error:
        return str(error)
    kinds = _types(_rows(slot))
    for file in files:
        names = (name for column, name in groups.named(file.path).items() if column in (slot.partition_by or ()))
        if groups.nameless(names, hashes=False) is not None:
            return f"the folders of {file.path} name no partition; run it again"
        for column, text in delta_log.partition_values(file.path, slot.partition_by or ()).items():
            if delta_log.is_misread(text, kinds.get(column)):
                return (
                    f"the folders of {file.path} give column {column} the value {text!r}, whose year delta-rs reads only with a sign, so "
                    "that it could not open the table again; clean the column and run it again"
                )
    if gone := await missing(objects, files):
        return f"{len(gone)} staged file(s) are gone, the first is {gone[0]}; run it again"
    return files


def unreplaceable(table: DeltaSnapshot) -> str | None:
    """Why no file of this table can be replaced; None when they can."""
    if table.configuration.get("delta.appendOnly", "false").lower() == "true":
        return "it is append-only (delta.appendOnly), so nothing in it is replaced"
    if "deletionVectors" in table.features:
        return "it may mark single rows as deleted (deletionVectors), so its files are not replaced whole"
    return None


def unable(table: DeltaSnapshot | None, mode: WriteMode, asked: Sequence[str]) -> str | None:
    """Why a table cannot be written in a mode; None when it can. asked: columns to partition a new table by."""
    if mode is WriteMode.APPEND:
        return None
    if table is not None and (why := unreplaceable(table)):
        return f"{why}; only mode Append fits it"
    new = table is None or delta_fit.is_blank(table.schema)
    if mode is WriteMode.OVERWRITE_PARTITIONS and not (asked if new or table is None else table.partition_by):
        return "it has no partition columns; pass partition_by where the table is new, or use mode Overwrite"
    return None


async def replaced(
    objects: TableObjects, table: DeltaSnapshot, key: SinkKey, slot: Slot, files: Sequence[DataFile]
) -> list[str] | str:
    """Paths of the live files that a commit removes, or why it cannot. files: those that it adds."""
    if is_opening(slot) or not numbering(key).own_rows:
        return []
    if slot.mode is None:
        found = await older(objects, table, key, slot.on_rerun)
        return found if isinstance(found, str) else [file.path for file in found]
    if why := unable(table, slot.mode, slot.partition_by or ()):
        return why
    if slot.mode is WriteMode.OVERWRITE:
        return list(table.live)
    return await _of_partitions(objects, table, key, slot, files)


async def _of_partitions(
    objects: TableObjects, table: DeltaSnapshot, key: SinkKey, slot: Slot, files: Sequence[DataFile]
) -> list[str] | str:
    columns = tuple(zip(table.partition_by, _kinds(table), strict=True))

    def written(file: DataFile) -> tuple[object, ...]:
        values = delta_log.partition_values(file.path, table.partition_by)
        return tuple(delta_log.typed(values[name], kind) for name, kind in columns)

    partitions = {written(file) for file in files if file.rows}
    removed = [
        path
        for path, values in table.partitions.items()
        if tuple(delta_log.typed(values[name], kind) for name, kind in columns) in partitions
    ]
    if slot.on_rerun is OnRerun.REPLACE and key.generation > 1:
        before = await earlier(objects, table, key)
        if before.statements:
            return NATIVE_STANDS
        rest = [file for file in before.files if file.rows and written(file) not in partitions]
        if lost := [file.path for file in rest if file.path not in table.live]:
            return await _lost(objects, table, lost)
        removed += [file.path for file in rest]
    return removed


def _kinds(table: DeltaSnapshot) -> tuple[str, ...]:
    """Types of the partition columns."""
    types = _types(table.schema)
    return tuple(str(types.get(name)) for name in table.partition_by)


def _types(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in schema["fields"]}


async def _lost(objects: TableObjects, table: DeltaSnapshot, paths: Sequence[str]) -> str:
    """Why files that the table does not have cannot be replaced. Costs requests: see `traced`."""
    fate = (await traced(objects, table, paths)).fate(paths)
    if not (fate.known and fate.changes) or any(each.operation != RESTORE for each in fate.changes):
        return _rewritten(paths)
    restores = ", ".join(sorted(each.commit for each in fate.changes))
    return (
        f"the table was restored to an earlier state ({restores}), which took out {len(paths)} file(s) of the generation before; delete "
        f"what is left of its rows, if any, and declare onRerun: Append (the first file is {paths[0]})"
    )


def _rewritten(paths: Sequence[str]) -> str:
    return (
        f"another writer rewrote or deleted {len(paths)} file(s) of the generation before, so its rows can no longer be identified; delete "
        f"them yourself and declare onRerun: Append (the first file is {paths[0]})"
    )


async def older(
    objects: TableObjects, table: DeltaSnapshot, key: SinkKey, on_rerun: OnRerun, *, explained: bool = True
) -> list[DataFile] | str:
    """Files of the generations that a commit of this key replaces, or why they cannot be removed. explained: by which commit, as far as the
    table's history shows it."""
    if on_rerun is not OnRerun.REPLACE or key.generation == 1:
        return []
    before = delta_stream.before(key)
    if before is not None and table.committed(before) is not None:
        return []  # the stream's first batch has replaced them
    found = await earlier(objects, table, key)
    if found.statements:
        return NATIVE_STANDS
    files = list(found.files)
    if not files:
        return []
    if why := unreplaceable(table):
        return f"{why}; declare onRerun: Append"
    if lost := [file.path for file in files if file.path not in table.live]:
        return await _lost(objects, table, lost) if explained else _rewritten(lost)
    return files


def commit_entry(
    table: DeltaSnapshot,
    key: SinkKey,
    slot: Slot,
    files: Sequence[DataFile],
    *,
    removed: Sequence[str],
    stats: Mapping[str, str],
) -> bytes:
    """The entry that commits a fitting slot as the next version of the table. removed: paths of the files that it replaces (`replaced`).
    stats: by path, of the files whose statistics are known."""
    fits = _slot_fit(table, slot)
    if isinstance(fits, str):
        raise TypeError(f"slot {slot.token} of {key} does not fit: {fits}")
    now = _now()
    notes = {"sinkKey": str(key), "token": slot.token, "nonce": slot.nonce, "fingerprint": slot.fingerprint}
    if slot.mode is not None:
        notes["mode"] = str(slot.mode)
    if slot.place is not None and slot.skipped is None:
        notes |= {"series": slot.place.series, "position": slot.place.position}
    parameters = {
        "mode": "Append" if slot.mode is None else "Overwrite",
        "partitionBy": json.dumps(list(fits.partition_by)),
    }
    actions = [
        delta_log.commit_info("WRITE", parameters, now=now, blind=not removed and slot.mode is None, notes=notes),
        *_set(numbering(key).commit(slot, fenced=table.fenced(key)), now),
    ]
    if slot.place is not None and not is_before(slot.place, table.latest(slot.place)):
        actions.append(delta_log.txn(delta_log.series(slot.place), slot.place.order, now=now))
        actions.append(delta_log.txn(delta_log.series_text(slot.place), delta_log.spelled(slot.place), now=now))
    if fits.enables:
        upgraded = delta_fit.raised_protocol(
            reader=table.min_reader,
            writer=table.min_writer,
            reader_features=table.reader_features,
            features=table.features,
            enables=fits.enables,
        )
        actions.append({"protocol": upgraded})
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
    actions += (delta_log.remove(table.live[path], _values(table, path), now=now) for path in removed)
    modified = int(slot.committed_at * 1000)
    actions += (
        delta_log.add(file, partition_by=fits.partition_by, stats=stats.get(file.path), modified=modified)
        for file in files
    )
    return delta_log.render(actions)


def fence_entry(key: SinkKey, token: int) -> bytes:
    """The entry that bars lower tokens and changes nothing else."""
    now = _now()
    notes = {"sinkKey": str(key), "fence": token}
    info = delta_log.commit_info("WRITE", {"mode": "Append"}, now=now, blind=True, notes=notes)
    return delta_log.render([info, *_set(numbering(key).bar(token), now)])


def _set(versions: Mapping[str, int], now: int) -> list[delta_log.Action]:
    return [delta_log.txn(identifier, version, now=now) for identifier, version in versions.items()]


def table_entry(slot: Slot, *, notes: Mapping[str, Any] | None = None, declared: bool = False) -> bytes | str:
    """Version 0 of the table that a first slot creates, without its rows; or why such a table cannot exist. declared: as for
    `TakesStatements.create`."""
    partition_by = slot.partition_by or ()
    columns = json.loads(slot.data_schema) if declared and slot.data_schema else _rows(slot)
    schema = delta_fit.new_schema(columns, partition_by, declared=declared)
    if isinstance(schema, str):
        return schema
    return delta_log.new_table(
        schema if schema["fields"] else delta_fit.BLANK,
        partition_by,
        protocol=delta_fit.new_protocol(delta_fit.needed_features(schema)),
        now=_now(),
        notes=notes,
    )


def _values(table: DeltaSnapshot, path: str) -> dict[str, str | None]:
    """Partition values of a live file, as texts."""
    if path.startswith(STAGING):
        return delta_log.partition_values(path, table.partition_by)
    return dict(table.partitions[path])


def _slot_fit(table: DeltaSnapshot, slot: Slot) -> delta_fit.RowLayout | str:
    rows = _rows(slot)
    if not rows["fields"]:
        return delta_fit.RowLayout(None, table.partition_by, ())
    asked = slot.partition_by or () if delta_fit.is_blank(table.schema) else ()
    fits = fit(table, rows, asked, merge=bool(slot.merge_schema))
    if not isinstance(fits, str) and slot.file_count and fits.staged_by != (slot.partition_by or ()):
        own, staged_by = (", ".join(columns) or "no column" for columns in (fits.staged_by, slot.partition_by or ()))
        return f"it is partitioned by {own}, and the rows were staged by {staged_by}"
    if not isinstance(fits, str) and slot.file_count:
        declared = delta_widths.widths((fits.schema or table.schema)["fields"])
        why = declared if isinstance(declared, str) else delta_widths.unchecked(declared, rows)
        return why or fits
    return fits


def _rows(slot: Slot) -> dict[str, Any]:
    """The schema of the slot's rows; without columns for a stream's opening and end, which have no rows."""
    ends = slot.stream is not None and slot.stream.part is StreamPart.END
    return delta_widths.settled(json.loads(slot.data_schema)) if slot.data_schema and not ends else delta_fit.EMPTY


def _now() -> int:
    """Milliseconds, as the log counts them; informative only."""
    return int(time.time() * 1000)
