"""A table of each format that can be overwritten, with the columns `day` and `n`: written without a JVM, read by other libraries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake import Schema as DeltaSchema
from pyarrow import parquet
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from harness import iceberg_tables
from harness.delta_entries import forget_entries
from harness.delta_stage import delta_stage
from harness.delta_tables import ORDERS
from sparkonce.blocking import run
from sparkonce.model.spec import Series, WriteMode
from sparkonce.sink.delta.sink import DeltaTableSink, open_delta
from sparkonce.sink.iceberg.sink import IcebergTableSink, open_iceberg
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import Committed, Declared, SinkKey, Slot, WriteOptions
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.slotlog.snapshot import Table, committed_slots
from sparkonce.sink.staging import StagedRows

DAYS = Schema(NestedField(1, "day", StringType()), NestedField(2, "n", LongType()))
BY_DAY = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))


def days(**numbers: int | None) -> pa.Table:
    """Rows (day, n); a day named `none` is null."""
    names = [None if name == "none" else name for name in numbers]
    return pa.table({"day": pa.array(names, pa.string()), "n": pa.array(list(numbers.values()), pa.int64())})


def by_day(frame: pa.Table, folder: str, partition_by: Sequence[str], *, helper: str = "0") -> StagedRows:
    """As Spark stages rows of an Iceberg table: a file per partition, in a folder with the partition's name.

    helper: names the partition column in folders."""
    at = Path(folder.removeprefix("file://"))
    for number, row in enumerate(frame.to_pylist()):
        part = at / f"so-group-{helper}={row['day'] or '__HIVE_DEFAULT_PARTITION__'}" if partition_by else at
        part.mkdir(parents=True, exist_ok=True)
        parquet.write_table(frame.slice(number, 1), part / f"part-{number:05d}.parquet")
    at.mkdir(parents=True, exist_ok=True)
    return StagedRows(rows=frame.num_rows, data_schema=arrow_schema(frame), application="arrow")


def arrow_schema(frame: pa.Table) -> str:
    return DeltaSchema.from_arrow(frame.schema).to_json()


class Lake(ABC):
    """One table with the columns `day` and `n`, partitioned by day if it is asked to be."""

    partition_by: tuple[str, ...] = ()

    @abstractmethod
    def sink(self, mode: WriteMode | None = None, series: Series | None = None) -> Any: ...

    @abstractmethod
    def rows(self) -> dict[str | None, list[int]]:
        """Sorted numbers by day, as a reader that is not ours sees them."""

    @abstractmethod
    def add(self, frame: pa.Table) -> None:
        """Another writer appends."""

    @abstractmethod
    def delete(self, predicate: str) -> None:
        """Another writer deletes rows."""

    @abstractmethod
    def forget(self) -> None:
        """The history of the table expires, up to its newest version."""

    @abstractmethod
    def commits(self) -> int:
        """Number of versions or snapshots of the table."""

    def write(self, key: SinkKey, mode: WriteMode | None, frame: pa.Table, *, token: int = 1) -> Slot:
        sink = self.sink(mode)
        slot = self.stage(sink, key, frame, token=token)
        assert run(sink.commit(key, slot)) == Committed(slot)
        return slot

    def stage(self, sink: Any, key: SinkKey, frame: pa.Table, *, token: int = 1) -> Slot:
        options = WriteOptions(partition_by=self.partition_by)
        return cast("Slot", sink.stage(frame, key, token, fingerprint="f", options=options))


class DeltaLake(Lake):
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "orders"

    def sink(self, mode: WriteMode | None = None, series: Series | None = None) -> DeltaTableSink:
        output = replace(ORDERS, mode=mode, series=series)
        return open_delta(output, FolderObjects(self.folder, durable=False), stage=self._staged)

    def _staged(self, frame: pa.Table, folder: str, partition_by: Sequence[str] = ()) -> StagedRows:
        """Without rows a file that lies in no partition's folder, as a job of Spark's may leave one."""
        return delta_stage(frame, folder, partition_by if frame.num_rows else ())

    def rows(self) -> dict[str | None, list[int]]:
        return _by_day(DeltaTable(str(self.folder)).to_pyarrow_table())

    def add(self, frame: pa.Table) -> None:
        write_deltalake(str(self.folder), frame, mode="append", partition_by=list(self.partition_by) or None)

    def delete(self, predicate: str) -> None:
        DeltaTable(str(self.folder)).delete(predicate)

    def forget(self) -> None:
        forget_entries(self.folder)

    def commits(self) -> int:
        return DeltaTable(str(self.folder)).version()


class SlotLake(Lake):
    """A slot log. It has no other writers than sparkonce, so another key stands for them; DuckDB reads the files that it names."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.others = folder / "orders", 0

    @property
    def objects(self) -> FolderObjects:
        return FolderObjects(self.folder, durable=False)

    def sink(self, mode: WriteMode | None = None, series: Series | None = None) -> SlotLogSink:
        assert series is None
        return SlotLogSink(self.objects, name="orders", mode=mode, stage=self._staged)

    def _staged(self, frame: pa.Table, folder: str, partition_by: Sequence[str] = ()) -> StagedRows:
        return by_day(frame, folder, partition_by, helper="day")

    def write(self, key: SinkKey, mode: WriteMode | None, frame: pa.Table, *, token: int = 1) -> Slot:
        sink = self.sink(mode)
        slot = self.stage(sink, key, frame, token=token)
        done = run(sink.commit(key, slot))
        assert isinstance(done, Committed)
        assert done.slot.nonce == slot.nonce
        return done.slot

    def rows(self) -> dict[str | None, list[int]]:
        if not (files := Table(self.folder).files()):
            return {}
        return _by_day(duckdb.read_parquet(files, union_by_name=True).to_arrow_table())

    def add(self, frame: pa.Table) -> None:
        self.others += 1
        self.write(SinkKey(key_hash=f"other{self.others}", output="orders", generation=1), None, frame)

    def delete(self, predicate: str) -> None:
        raise NotImplementedError(predicate)

    def forget(self) -> None:
        """It has no history."""

    def commits(self) -> int:
        return len(run(committed_slots(self.objects)))


class IcebergLake(Lake):
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in iceberg_tables.sql_catalog(folder).items():
            monkeypatch.setenv(name, value)

    def sink(self, mode: WriteMode | None = None, series: Series | None = None) -> IcebergTableSink:
        location = f"{iceberg_tables.CATALOG}.{iceberg_tables.TABLE}"
        output = Declared(name="orders", kind="iceberg", location=location, mode=mode, series=series)
        return open_iceberg(output, stage=self._staged, durable=False)

    def _staged(self, frame: pa.Table, folder: str, _partition_by: Sequence[str] = ()) -> StagedRows:
        return by_day(frame, folder, self.partition_by)

    def rows(self) -> dict[str | None, list[int]]:
        return _by_day(iceberg_tables.table().scan().to_arrow())

    def add(self, frame: pa.Table) -> None:
        catalog = iceberg_tables.catalog()
        catalog.create_namespace_if_not_exists(iceberg_tables.TABLE.partition(".")[0])
        spec = BY_DAY if self.partition_by else PartitionSpec()
        catalog.create_table_if_not_exists(iceberg_tables.TABLE, DAYS, partition_spec=spec).append(frame)

    def delete(self, predicate: str) -> None:
        iceberg_tables.table().delete(predicate)

    def forget(self) -> None:
        iceberg_tables.forget()

    def commits(self) -> int:
        return len(iceberg_tables.table().metadata.snapshots)


def _by_day(table: pa.Table) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for row in table.to_pylist():
        found.setdefault(row["day"], []).append(row["n"])
    return {day: sorted(numbers) for day, numbers in found.items()}


def lake_of(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    if kind == "slotLog":
        return SlotLake(folder)
    return DeltaLake(folder) if kind == "delta" else IcebergLake(folder, monkeypatch)
