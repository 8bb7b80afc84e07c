"""Modes that replace rows, on tables of each kind: what one commit removes, whoever wrote it, and that it does so once."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import VoidTransform

from harness import iceberg_tables
from harness.delta_stage import delta_stage, entries, numbers_in, transactions
from harness.delta_tables import ORDERS
from harness.lakes import DAYS, DeltaLake, IcebergLake, Lake, SlotLake, days, lake_of
from sparkonce.audit.findings import Kind
from sparkonce.audit.tables import of_table
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.model.spec import WriteMode
from sparkonce.sink.delta.sink import open_delta
from sparkonce.sink.iceberg import snapshot
from sparkonce.sink.iceberg.files import live
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import (
    OVERWRITING_SCHEMA,
    REPLACING_SCHEMA,
    Committed,
    Evidence,
    FencedOff,
    SinkKey,
    Stuck,
    WriteOptions,
)

A, B = (SinkKey(key_hash=name * 4, output="orders", generation=1) for name in "ab")
OVERWRITE, PARTITIONS = WriteMode.OVERWRITE, WriteMode.OVERWRITE_PARTITIONS


@pytest.fixture(params=["delta", "iceberg", "slotLog"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return lake_of(request.param, tmp_path, monkeypatch)


@pytest.fixture(params=["delta", "iceberg", "slotLog"])
def partitioned(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    lake = lake_of(request.param, tmp_path, monkeypatch)
    lake.partition_by = ("day",)
    return lake


# --- Overwrite -----------------------------------------------------------------------------------------------------------------


def test_overwrite_replaces_the_rows_of_every_writer(lake: Lake) -> None:
    """Rows of other writers, of other keys and of the table before: none is left, and no version shows both or neither."""
    lake.add(days(mon=1))
    lake.write(A, None, days(tue=2))
    lake.write(B, OVERWRITE, days(wed=3))
    assert lake.rows() == {"wed": [3]}


def test_overwrite_replaces_what_came_in_after_the_rows_were_staged(lake: Lake) -> None:
    """The rows that it replaces are those of the version it commits on, as with Spark's own overwrite."""
    lake.add(days(mon=1))
    sink = lake.sink(OVERWRITE)
    slot = lake.stage(sink, A, days(wed=3))
    lake.add(days(tue=2))
    run(sink.commit(A, slot))
    assert lake.rows() == {"wed": [3]}


def test_a_repeated_overwrite_removes_nothing(lake: Lake) -> None:
    """Its commit exists once: rows that others added later stay, whoever rolls the slot forward again."""
    slot = lake.write(A, OVERWRITE, days(mon=1))
    lake.add(days(tue=2))
    before = lake.commits()
    assert run(lake.sink(OVERWRITE).commit(A, slot)) == Committed(slot)
    assert (lake.rows(), lake.commits()) == ({"mon": [1], "tue": [2]}, before)


def test_an_overwrite_that_was_taken_over_removes_nothing(lake: Lake) -> None:
    """A frozen attempt wakes after its successor has committed, or after it was fenced."""
    lake.add(days(mon=1))
    sink = lake.sink(OVERWRITE)
    frozen = lake.stage(sink, A, days(tue=2))
    assert run(sink.fence(A, 2, fingerprint="f", by="attempt 2")) is None
    assert isinstance(run(sink.commit(A, frozen)), FencedOff)
    assert lake.rows() == {"mon": [1]}
    lake.write(A, OVERWRITE, days(wed=3), token=2)
    lake.add(days(thu=4))
    assert not isinstance(run(sink.commit(A, frozen)), Committed)
    assert lake.rows() == {"wed": [3], "thu": [4]}


@pytest.mark.parametrize("landed", [True, False], ids=["reply lost", "request lost"])
def test_a_lost_reply_overwrites_once(lake: Lake, failpoint: Callable[[str], None], landed: bool) -> None:
    """Whether the request or its reply was lost: one commit, and what others add in between is not removed a second time."""
    lake.add(days(mon=1))
    sink = lake.sink(OVERWRITE)
    slot = lake.stage(sink, A, days(tue=2))
    point = "sink.slots.create" if isinstance(lake, SlotLake) else f"sink.{sink.kind}.commit"
    failpoint(f"{point}.{'after' if landed else 'before'}=1*raise->off")
    done = run(sink.commit(A, slot))
    assert isinstance(done, Committed)
    assert done.slot.nonce == slot.nonce
    assert lake.rows() == {"tue": [2]}


def test_an_overwrite_without_rows_empties_the_table(lake: Lake) -> None:
    """As Spark's own overwrite does."""
    lake.add(days(mon=1))
    lake.write(A, OVERWRITE, days())
    assert lake.rows() == {}


def test_a_rerun_overwrites_the_run_before_and_what_came_after_it(lake: Lake) -> None:
    """Also when others have rewritten the files of the run before, which a rerun that appends cannot replace."""
    lake.write(A, OVERWRITE, days(mon=1))
    lake.write(B, OVERWRITE, days(tue=2))
    lake.write(A.model_copy(update={"generation": 2}), OVERWRITE, days(wed=3))
    assert lake.rows() == {"wed": [3]}


def test_a_slot_that_overwrites_is_refused_by_releases_without_modes(lake: Lake) -> None:
    """They would append its rows: its schema is one that they do not read. A slot that appends is as it was."""
    schema = OVERWRITING_SCHEMA if isinstance(lake, SlotLake) else REPLACING_SCHEMA
    assert lake.write(A, OVERWRITE, days(mon=1)).schema_ == schema
    appended = lake.write(B, WriteMode.APPEND, days(tue=2))
    assert (appended.schema_, appended.mode) == (1, None)


def test_an_audit_finds_nothing_wrong_in_an_overwritten_table(lake: Lake) -> None:
    """Rows of A were replaced by B, which is recorded in the table; both commits are still there."""
    lake.write(A, None, days(mon=1))
    lake.write(B, OVERWRITE, days(tue=2))
    table = run(lake.sink().inventory())
    assert {effect.slot.sink_key: effect.visible for effect in table.effects} == {str(A): False, str(B): True}
    assert [str(each.kind) for each in of_table(table, now=0.0)] == []


@pytest.mark.parametrize("partitioned", ["delta", "iceberg"], indirect=True)
def test_rows_that_a_partition_overwrite_replaced_are_not_missing(partitioned: Lake) -> None:
    """Once the history has expired that shows how one of A's two partitions was replaced, an audit does not count its rows as missing; rows
    that others deleted of the key that came last it does."""
    lake = partitioned
    lake.write(A, None, days(mon=1, tue=2))
    lake.write(B, PARTITIONS, days(mon=3))
    lake.forget()
    assert lake.rows() == {"mon": [3], "tue": [2]}
    assert Kind.MISSING_ROWS not in [each.kind for each in of_table(run(lake.sink().inventory()), now=0.0)]
    lake.delete("day = 'mon'")
    lake.forget()
    assert [
        each.rows for each in of_table(run(lake.sink().inventory()), now=0.0) if each.kind is Kind.MISSING_ROWS
    ] == [1]


def test_a_result_that_another_key_has_overwritten_is_changed_by_that_key(lake: Lake) -> None:
    """Its duplicates are still replayed; the answer names the commit, and a rerun would replace whatever is there then."""
    lake.write(A, OVERWRITE, days(mon=1))
    lake.write(B, OVERWRITE, days(tue=2))
    found = run(lake.sink(OVERWRITE).probe(A, None))
    assert (found.verdict, [each.key for each in found.changes], found.remedy) == (Evidence.CHANGED, [str(B)], "")
    lake.write(A.model_copy(update={"generation": 2}), OVERWRITE, days(wed=3))
    assert lake.rows() == {"wed": [3]}


def test_a_backfill_of_a_partition_is_no_defect(partitioned: Lake) -> None:
    """Part of A's rows were replaced by B, a job of sparkonce: told, and not as lost rows."""
    partitioned.add(days(sun=0))
    partitioned.write(A, PARTITIONS, days(mon=1, tue=2))
    partitioned.write(B, PARTITIONS, days(mon=3))
    found = run(partitioned.sink(PARTITIONS).probe(A, None))
    assert (found.verdict, [each.key for each in found.changes]) == (Evidence.CHANGED, [str(B)])
    said = [(str(each.kind), each.subject) for each in of_table(run(partitioned.sink().inventory()), now=0.0)]
    assert ("rewritten", str(A)) in said
    assert {kind for kind, _ in said} <= {"rewritten", "foreign files"}


@pytest.mark.parametrize("lake", ["delta", "iceberg"], indirect=True)  # nothing deletes rows of a slot log
def test_rows_that_are_lost_after_an_overwrite_are_found(lake: Lake) -> None:
    """Only commits before the overwrite are excused."""
    lake.write(B, OVERWRITE, days(tue=2))
    lake.write(A, None, days(mon=1))
    if isinstance(lake, DeltaLake):
        DeltaTable(str(lake.folder)).delete("n = 1")
    else:
        iceberg_tables.table().delete("n = 1")
    table = run(lake.sink().inventory())
    assert [(str(each.kind), each.subject) for each in of_table(table, now=0.0)] == [("removed rows", str(A))]


# --- OverwritePartitions -------------------------------------------------------------------------------------------------------


def test_only_the_partitions_with_new_rows_are_replaced(partitioned: Lake) -> None:
    """By the value, whoever wrote the files: the null partition is one, and a day without new rows keeps its rows."""
    partitioned.add(days(mon=1, tue=2, none=3))
    partitioned.write(A, None, days(mon=4, wed=5))
    partitioned.write(B, PARTITIONS, days(mon=6, none=7))
    assert partitioned.rows() == {"mon": [6], "tue": [2], "wed": [5], None: [7]}


def test_no_rows_replace_no_partition(partitioned: Lake) -> None:
    """Not even the null partition, to which a file without rows might be taken to belong."""
    partitioned.add(days(mon=1, none=2))
    partitioned.write(A, PARTITIONS, days())
    assert partitioned.rows() == {"mon": [1], None: [2]}


def test_a_new_table_is_created_with_its_partitions(tmp_path: Path) -> None:
    """Of Iceberg's: driver/jvm/test_modes_spark.py, since only Spark's rows create a partitioned table there."""
    partitioned = DeltaLake(tmp_path)
    partitioned.partition_by = ("day",)
    partitioned.write(A, PARTITIONS, days(mon=1, tue=2))
    partitioned.write(B, PARTITIONS, days(tue=3))
    assert partitioned.rows() == {"mon": [1], "tue": [3]}


def test_a_table_without_partitions_is_refused_before_anything_is_staged(lake: Lake) -> None:
    """The sentence names the mode that fits such a table."""
    lake.add(days(mon=1))
    with pytest.raises(InvalidInput, match=r"no partition columns; .*use mode Overwrite"):
        lake.stage(lake.sink(PARTITIONS), A, days(mon=2))


def test_one_try_reads_the_files_of_a_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg: once before the rows are staged, and once for the commit, each time every manifest."""
    lake = IcebergLake(tmp_path, monkeypatch)
    lake.partition_by = ("day",)
    lake.add(days(mon=1, tue=2))
    lake.write(A, PARTITIONS, days(mon=3))
    read: list[int] = []

    def counted(table: Table) -> list[DataFile]:
        read.append(1)
        return live(table)

    monkeypatch.setattr(snapshot, "live", counted)
    again = A.model_copy(update={"generation": 2})
    sink = lake.sink(PARTITIONS)
    slot = lake.stage(sink, again, days(mon=4))
    assert len(read) == 1
    assert run(sink.commit(again, slot)) == Committed(slot)
    assert (len(read), lake.rows()) == (2, {"mon": [4], "tue": [2]})


def test_a_rerun_replaces_its_partitions_and_those_of_the_run_before(partitioned: Lake) -> None:
    """A backfill of another key has replaced one of them meanwhile, which the rerun replaces again, as it writes to it."""
    partitioned.add(days(sun=0))
    partitioned.write(A, PARTITIONS, days(mon=1, tue=2))
    partitioned.write(B, PARTITIONS, days(mon=3))
    partitioned.write(A.model_copy(update={"generation": 2}), PARTITIONS, days(mon=4, wed=5))
    assert partitioned.rows() == {"sun": [0], "mon": [4], "wed": [5]}


@pytest.mark.parametrize("partitioned", ["delta", "iceberg"], indirect=True)  # a slot log knows them by its slots
def test_a_rerun_that_cannot_find_the_rows_of_the_run_before_changes_nothing(partitioned: Lake) -> None:
    """Monday's file is gone (another key replaced it), and the rerun does not write to Monday: whether rows of the run before are still
    there cannot be told from files."""
    partitioned.add(days(sun=0))
    partitioned.write(A, PARTITIONS, days(mon=1))
    partitioned.write(B, PARTITIONS, days(mon=3))
    again = A.model_copy(update={"generation": 2})
    sink = partitioned.sink(PARTITIONS)
    slot = partitioned.stage(sink, again, days(wed=5))
    decided = run(sink.commit(again, slot))
    assert isinstance(decided, Stuck)
    assert "declare" in decided.why
    assert partitioned.rows() == {"sun": [0], "mon": [3]}


# --- what a table refuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [OVERWRITE, PARTITIONS])
def test_an_append_only_delta_table_is_refused_before_anything_is_staged(tmp_path: Path, mode: WriteMode) -> None:
    """Delta's own writers refuse to remove its files, too."""
    lake = DeltaLake(tmp_path)
    lake.partition_by = ("day",)
    configuration: dict[str, str | None] = {"delta.appendOnly": "true"}
    write_deltalake(str(lake.folder), days(mon=1), partition_by=["day"], configuration=configuration)
    with pytest.raises(InvalidInput, match=r"append-only .*; only mode Append fits it$"):
        lake.stage(lake.sink(mode), A, days(mon=2))
    assert list(lake.folder.glob("so-*")) == []


def test_a_delta_table_that_becomes_append_only_makes_the_slot_stuck(tmp_path: Path) -> None:
    """Between staging and commit: nothing is removed, nothing is added."""
    lake = DeltaLake(tmp_path)
    lake.add(days(mon=1))
    sink = lake.sink(OVERWRITE)
    slot = lake.stage(sink, A, days(tue=2))
    DeltaTable(str(lake.folder)).alter.set_table_properties({"delta.appendOnly": "true"})
    assert isinstance(run(sink.commit(A, slot)), Stuck)
    assert lake.rows() == {"mon": [1]}


def test_files_of_an_earlier_partitioning_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows may belong to the partitions that are written, and their files to several: nothing is staged."""
    lake = IcebergLake(tmp_path, monkeypatch)
    lake.add(days(mon=1))
    with iceberg_tables.table().update_spec() as spec:
        spec.add_identity("day")
    with pytest.raises(InvalidInput, match=r"1 file\(s\) of .* are partitioned as the table was earlier"):
        lake.stage(lake.sink(PARTITIONS), A, days(mon=2))


@pytest.mark.parametrize("merged", [False, True], ids=["own manifests", "one manifest"])
@pytest.mark.parametrize("mode", [OVERWRITE, None])
def test_files_that_are_partitioned_by_a_dropped_column_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: WriteMode | None, merged: bool
) -> None:
    """pyiceberg cannot write their partition values by the table's schema. Files of others keep theirs, also in a manifest that is written
    anew without the replaced file (`merged`)."""
    lake = IcebergLake(tmp_path, monkeypatch)
    lake.partition_by = ("day",)
    lake.add(days(mon=1))
    with iceberg_tables.table().transaction() as change:
        merging = {"commit.manifest-merge.enabled": str(merged).lower(), "commit.manifest.min-count-to-merge": "1"}
        change.set_properties(merging)
    lake.write(A, None, days(tue=2))
    lake.add(days(wed=3))
    with iceberg_tables.table().update_spec() as spec:
        spec.remove_field("day")
    with iceberg_tables.table().update_schema() as schema:
        schema.delete_column("day")
    lake.partition_by = ()
    lake.write(A.model_copy(update={"generation": 2}), mode, days(thu=4).drop_columns("day"))
    assert iceberg_tables.rows() == ([4] if mode is OVERWRITE else [1, 3, 4])
    kept = [[file.partition[0]] for file in live(iceberg_tables.table()) if file.spec_id == 0]
    assert sorted(kept) == ([] if mode is OVERWRITE else [["mon"], ["wed"]])


def test_a_table_that_is_void_of_a_dropped_column_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of format version 1 keep a dropped partition field so, and were upgraded. The remedy of the sentence works."""
    lake = IcebergLake(tmp_path, monkeypatch)
    iceberg_tables.catalog().create_namespace("sales")
    void = PartitionSpec(PartitionField(1, 1000, VoidTransform(), "day"))
    iceberg_tables.catalog().create_table(iceberg_tables.TABLE, DAYS, partition_spec=void)
    with iceberg_tables.table().update_schema() as schema:
        schema.delete_column("day")
    frame = days(thu=4).drop_columns("day")
    with pytest.raises(
        OutputUnsupported, match=r"partitioned by void\(a dropped column\), .*; drop that partition field"
    ):
        lake.write(A, OVERWRITE, frame)
    with iceberg_tables.table().update_spec() as spec:
        spec.remove_field("day")
    lake.write(A, OVERWRITE, frame)
    assert iceberg_tables.rows() == [4]


def test_history_shows_an_overwrite(tmp_path: Path) -> None:
    """`DESCRIBE HISTORY` and tools that look for appends do not take it for one."""
    lake = DeltaLake(tmp_path)
    lake.add(days(mon=1))
    lake.write(A, OVERWRITE, days(tue=2))
    newest = DeltaTable(str(lake.folder)).history(1)[0]
    assert (newest["operationParameters"]["mode"], newest["isBlindAppend"]) == ("Overwrite", False)
    assert sum(each["appId"] == f"idem:{A}" for each in transactions(lake.folder)) == 1


def test_partition_values_of_other_writers_are_compared_by_type(tmp_path: Path) -> None:
    """Another writer spells the same values in its own way, in the log and in the names of folders."""
    columns: dict[str, Any] = {
        "date": pa.array([dt.date(2024, 5, 1), dt.date(2024, 5, 2)]),
        "flag": pa.array([True, False]),
        "size": pa.array([1, 2], pa.int32()),
        "price": pa.array([Decimal("1.50"), Decimal("2.00")], pa.decimal128(10, 2)),
        "name": pa.array(["a/b=ü %", "x"]),
        "n": pa.array([1, 2], pa.int64()),
    }
    folder = tmp_path / "orders"
    by = [name for name in columns if name != "n"]
    write_deltalake(str(folder), pa.table(columns), partition_by=by)
    sink = open_delta(replace(ORDERS, mode=PARTITIONS), FolderObjects(folder, durable=False), stage=delta_stage)
    frame = pa.table({**{name: values[:1] for name, values in columns.items()}, "n": pa.array([3], pa.int64())})
    staged: Any = frame
    slot = sink.stage(staged, A, 1, fingerprint="f", options=WriteOptions(partition_by=tuple(by)))
    run(sink.commit(A, slot))
    assert numbers_in(folder) == [2, 3]


@pytest.mark.parametrize(
    ("kind", "far"),
    [
        pytest.param(pa.date32(), "+12345-01-01", id="late date"),
        pytest.param(pa.date32(), "-0005-01-01", id="early date"),
        pytest.param(pa.timestamp("us"), "+12345-01-01 00:00:00.000000", id="time"),
    ],
)
@pytest.mark.parametrize("mode", [OVERWRITE, PARTITIONS])
def test_a_partition_of_a_year_that_python_lacks_is_replaced_or_kept(
    tmp_path: Path, kind: pa.DataType, far: str, mode: WriteMode
) -> None:
    """Spark writes such dates and times; a checkpoint of the table is still read afterwards."""
    folder = tmp_path / "orders"
    columns = {"at": pa.array([0], pa.int64()).cast(pa.timestamp("us")).cast(kind), "n": pa.array([1], pa.int64())}
    for value in (None, far):
        write_deltalake(str(folder), pa.table(columns), mode="append", partition_by=["at"])
        newest = max((folder / "_delta_log").glob("*.json"))
        entry = [json.loads(line) for line in newest.read_text().splitlines()]
        entry[-1]["add"]["partitionValues"]["at"] = value or entry[-1]["add"]["partitionValues"]["at"]
        newest.write_text("\n".join(map(json.dumps, entry)))
    sink = open_delta(replace(ORDERS, mode=mode), FolderObjects(folder, durable=False), stage=delta_stage)
    frame: Any = pa.table({**columns, "n": pa.array([3], pa.int64())})
    slot = sink.stage(frame, A, 1, fingerprint="f", options=WriteOptions(partition_by=("at",)))
    assert run(sink.commit(A, slot)) == Committed(slot)
    DeltaTable(str(folder)).create_checkpoint()
    adds = pa.table(DeltaTable(str(folder)).get_add_actions())
    assert adds.num_rows == (1 if mode is OVERWRITE else 2)
    removed = {each["remove"]["partitionValues"]["at"] for each in entries(folder)[-1] if "remove" in each}
    assert (far in removed) == (mode is OVERWRITE)
