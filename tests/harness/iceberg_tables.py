"""Iceberg tables of tests, on a SQL catalog in one SQLite file or on any other catalog, and their content."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from harness.arrow_stage import arrow_stage, table_of
from sparkonce.blocking import run
from sparkonce.model.spec import OnRerun
from sparkonce.sink.iceberg.catalog import CatalogTable
from sparkonce.sink.iceberg.masks import FILE_PATH
from sparkonce.sink.iceberg.sink import IcebergTableSink, open_iceberg
from sparkonce.sink.protocol import Committed, Declared, SinkKey, Slot, slot_digest
from sparkonce.sink.slotlog import layout
from sparkonce.sink.staging import Stager

CATALOG = "lake"
TABLE = "sales.orders"
NUMBERS = Schema(NestedField(1, "n", LongType()))
"""Schema of tables that another user creates."""
_PREFIX = f"PYICEBERG_CATALOG__{CATALOG.upper()}__"


def sql_catalog(folder: Path | str) -> dict[str, str]:
    """The environment for a catalog in a SQLite file in the folder, with its warehouse beside it."""
    return {
        f"{_PREFIX}TYPE": "sql",
        f"{_PREFIX}URI": f"sqlite:///{folder}/catalog.db?timeout=30",
        f"{_PREFIX}WAREHOUSE": f"file://{folder}/warehouse",
    }


def rest_catalog(uri: str) -> dict[str, str]:
    return {f"{_PREFIX}TYPE": "rest", f"{_PREFIX}URI": uri}


def use(environment: Mapping[str, str]) -> None:
    """Sets the catalog in the environment, for child processes of tests, which have only one."""
    os.environ.update(environment)


def opened(
    *, stage: Stager | None = arrow_stage, on_rerun: OnRerun = OnRerun.REPLACE, table: str = TABLE
) -> IcebergTableSink:
    """Opens an output as a driver does, without fsync; `stage=None` is Spark."""
    location = f"{CATALOG}.{table}"
    output = Declared(name="orders", kind="iceberg", location=location, on_rerun=on_rerun)
    return open_iceberg(output, stage=stage, durable=False)


def catalog() -> Catalog:
    """A separate client, as another user of the table has."""
    return CatalogTable(CATALOG, ()).catalog


def table(name: str = TABLE) -> Table:
    return catalog().load_table(name)


def rows(column: str = "n", name: str = TABLE) -> list[Any]:
    """Rows as pyiceberg reads them."""
    return sorted(cast("list[Any]", table(name).scan().to_arrow()[column].to_pylist()))


def tags(name: str = TABLE) -> set[str]:
    return {each for each in table(name).metadata.refs if each != "main"}


def folder_of(name: str = TABLE) -> Path:
    """The folder of a local table."""
    return Path(table(name).location().removeprefix("file://"))


def staged(sink: IcebergTableSink, key: SinkKey, token: int, *numbers: int, fingerprint: str = "f") -> Slot:
    return sink.stage(table_of(*numbers), key, token, fingerprint=fingerprint)


def written(sink: IcebergTableSink, key: SinkKey, token: int, *numbers: int) -> Slot:
    slot = staged(sink, key, token, *numbers)
    assert run(sink.commit(key, slot)) == Committed(slot)
    return slot


def generation(key: SinkKey, number: int) -> SinkKey:
    return key.model_copy(update={"generation": number})


def digest_of(slot: Slot) -> str:
    return slot_digest(layout.encode(slot))


def folders() -> list[Path]:
    return sorted(folder_of().glob("data/so-*/*"))


def compact(name: str = TABLE) -> None:
    """Rewrites all files of a table into one per partition, as Iceberg's `rewrite_data_files` does: a snapshot that says `replace`.
    pyiceberg has no such verb."""
    found = table(name)
    rows = found.scan().to_arrow()
    files = [task.file for task in found.scan().plan_files()]
    transaction = found.transaction()
    with transaction.update_snapshot().overwrite() as change:
        summary_of = change._summary

        def replaced(properties: dict[str, str] | None = None) -> Summary:
            said = summary_of(properties or {})
            return Summary(operation=Operation.REPLACE, **said.additional_properties)

        change._summary = replaced  # type: ignore[method-assign, assignment]
        for file in files:
            change.delete_data_file(file)
        for file in _dataframe_to_data_files(transaction.table_metadata, rows, found.io):
            change.append_data_file(file)
    transaction.commit_transaction()


def expire(*, but: Collection[int] = (), name: str = TABLE) -> None:
    """Expires all snapshots that no branch or tag refers to."""
    found = table(name)
    kept = {*but, *(ref.snapshot_id for ref in found.metadata.refs.values())}
    gone = [each.snapshot_id for each in found.metadata.snapshots if each.snapshot_id not in kept]
    found.maintenance.expire_snapshots().by_ids(gone).commit()


def forget(name: str = TABLE) -> None:
    """Expires the snapshots of everything that was done so far, behind one more commit, which adds no row."""
    found = table(name)
    found.append(found.schema().as_arrow().empty_table())
    expire(name=name)


def hide(positions: Mapping[str, int], *, bounds: bool = True, equality: bool = False, name: str = TABLE) -> int:
    """Hides one row of each of these data files by a delete file, as engines with merge-on-read do; returns the snapshot. pyiceberg reads
    such files and does not write them. bounds: the delete file tells the least and the greatest path that it names."""
    found = table(name)
    metadata, io = found.metadata, found.io
    number, parent = metadata.new_snapshot_id(), metadata.current_snapshot()
    assert parent is not None
    path = f"{found.location()}/data/deletes-{number}.parquet"
    rows = pa.table({"file_path": pa.array(positions, pa.string()), "pos": pa.array(positions.values(), pa.int64())})
    parquet.write_table(rows, path.removeprefix("file://"))
    content = DataFileContent.EQUALITY_DELETES if equality else DataFileContent.POSITION_DELETES
    file = DataFile.from_args(
        content=content, file_path=path, file_format=FileFormat.PARQUET, partition=Record(), record_count=len(positions),
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        lower_bounds={FILE_PATH: min(positions).encode()} if bounds else None,
        upper_bounds={FILE_PATH: max(positions).encode()} if bounds else None,
        equality_ids=[1] if equality else None,
    )  # fmt: skip
    file.spec_id = metadata.default_spec_id
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
    place = io.new_output(f"{found.location()}/metadata/deletes-{number}.avro")
    with _Deletes(found.spec(), found.schema(), place, number, "null") as manifest:
        manifest.add_entry(entry)
    sequence = metadata.next_sequence_number()
    listed = io.new_output(f"{found.location()}/metadata/snap-{number}.avro")
    with write_manifest_list(2, listed, number, parent.snapshot_id, sequence, "null") as manifests:
        manifests.add_manifests([*parent.manifests(io), manifest.to_manifest_file()])
    snapshot = Snapshot(
        snapshot_id=number, parent_snapshot_id=parent.snapshot_id, sequence_number=sequence, manifest_list=listed.location,
        summary=Summary(operation=Operation.DELETE), schema_id=metadata.current_schema_id,
    )  # fmt: skip
    main = SetSnapshotRefUpdate(
        ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=number,
        max_ref_age_ms=None, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
    )  # fmt: skip
    found.catalog.commit_table(found, (), (AddSnapshotUpdate(snapshot=snapshot), main))
    return number


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}
