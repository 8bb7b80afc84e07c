"""Which rows a Delta table accepts, how they are laid out in it, and which tables are refused."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType

from harness.delta_stage import entries, rows_in
from harness.delta_tables import later, sink_on
from harness.spark_types import array, mapped, struct
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputUnsupported
from sparkonce.model.spec import OnRerun
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.delta import schema as delta_fit
from sparkonce.sink.delta.log import typed, value_texts
from sparkonce.sink.delta.sink import DeltaTableSink
from sparkonce.sink.delta.widths import DECLARED
from sparkonce.sink.protocol import CommitOutcome, Committed, DataFile, SinkKey, Slot, Stuck, WriteOptions

STRANGE_TEXTS = ["a b", "x:y/%=", "ü", "100%25", "{[^]}", "q\"'s", "+&?#", None]


@pytest.fixture
def delta(table: Path) -> DeltaTableSink:
    return sink_on(table)


def write(
    sink: DeltaTableSink, key: SinkKey, rows: dict[str, Any], *, partition_by: tuple[str, ...] = (), merge: bool = False
) -> CommitOutcome:
    options = WriteOptions(partition_by=partition_by, merge_schema=merge)
    frame: Any = pa.table(rows)
    return run(sink.commit(key, sink.stage(frame, key, 1, fingerprint="f", options=options)))


def test_partitions_keep_nulls_and_every_character(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Partition values survive folder names, log paths and the log's partition values unchanged; the files do not hold the column."""
    rows = {"d": STRANGE_TEXTS, "n": list(range(len(STRANGE_TEXTS)))}
    assert isinstance(write(delta, key, rows, partition_by=("d",)), Committed)
    assert sorted((row["n"], row["d"]) for row in rows_in(table)) == list(enumerate(STRANGE_TEXTS))
    adds = [action["add"] for action in entries(table)[-1] if "add" in action]
    assert {add["partitionValues"]["d"] for add in adds} == set(STRANGE_TEXTS)
    assert all(delta_log.plain_path(add["path"]) in {p.path for p in run(delta.find(key)).files} for add in adds)  # type: ignore[union-attr]  # it is committed
    assert DeltaTable(str(table)).metadata().partition_columns == ["d"]
    assert run(delta.probe(key, None)) == "present"
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert len(rows_in(table)) == len(STRANGE_TEXTS)


def test_a_filter_on_a_partition_skips_files(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Readers prune by partition values, and find row counts without opening a file."""
    write(delta, key, {"d": ["a", "b", None], "n": [1, 2, 3]}, partition_by=("d",))
    read = DeltaTable(str(table))
    assert len(read.file_uris(file_pruning_predicate="d = 'a'")) == 1
    assert read.to_pyarrow_table(filters=[("d", "=", "b")])["n"].to_pylist() == [2]
    assert sum(pa.table(read.get_add_actions(flatten=True))["num_records"].to_pylist()) == 3  # type: ignore[arg-type]  # no nulls


def test_a_table_keeps_its_own_partitions(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """The table's partitions are used when the write names none; others are refused before the rows run, with the remedy."""
    write_deltalake(str(table), pa.table({"d": ["z"], "n": [0]}), partition_by=["d"])
    with pytest.raises(InvalidInput, match="is partitioned by d, not by n; leave partition_by out"):
        write(delta, key, {"d": ["a"], "n": [1]}, partition_by=("n",))
    assert list(table.glob("so-*")) == []
    assert isinstance(write(delta, key, {"d": ["a"], "n": [1]}), Committed)
    assert list(table.glob("so-*/*/d=a/*.parquet"))
    assert isinstance(write(delta, later(key, 2), {"d": ["b"], "n": [2]}, partition_by=("d",)), Committed)
    assert rows_in(table) == [{"d": "b", "n": 2}, {"d": "z", "n": 0}]


def test_rows_without_a_partition_column_have_null_there(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Missing columns are null, partition columns too."""
    write_deltalake(str(table), pa.table({"d": ["z"], "n": [0]}), partition_by=["d"])
    write(delta, key, {"n": [1]})
    assert {(row["d"], row["n"]) for row in rows_in(table)} == {("z", 0), (None, 1)}


def test_new_columns_need_merge_schema(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Without it new columns are refused by name before the rows run. With it they are added in the log entry that shows the rows; older
    rows have null there."""
    write_deltalake(str(table), pa.table({"n": [0]}), name="sales", description="of a person")
    with pytest.raises(InvalidInput, match=r"does not have the column\(s\) a, b; pass merge_schema=True"):
        write(delta, key, {"n": [1], "a": ["x"], "b": [1.5]})
    assert list(table.glob("so-*")) == []
    assert isinstance(write(delta, key, {"n": [1], "a": ["x"], "b": [1.5]}, merge=True), Committed)
    assert rows_in(table) == [{"n": 1, "a": "x", "b": 1.5}, {"n": 0, "a": None, "b": None}]
    assert sorted(next(iter(action)) for action in entries(table)[-1]) == [
        "add", "add", "commitInfo", "metaData", "txn", "txn",
    ]  # fmt: skip
    metadata = DeltaTable(str(table)).metadata()
    assert (metadata.name, metadata.description) == ("sales", "of a person")


def test_a_roll_forward_merges_as_its_driver_would_have(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Whether new columns are allowed is recorded in the sealed slot; a column that another writer added meanwhile is not added twice."""
    write_deltalake(str(table), pa.table({"n": [0]}))
    frame: Any = pa.table({"n": [1], "a": ["x"], "b": ["y"]})
    slot = delta.stage(frame, key, 1, fingerprint="f", options=WriteOptions(merge_schema=True))
    DeltaTable(str(table)).alter.add_columns([Field("a", PrimitiveType("string"))])
    assert isinstance(run(sink_on(table).commit(key, type(slot).model_validate(slot.dump()))), Committed)
    assert [field.name for field in DeltaTable(str(table)).schema().fields] == ["n", "a", "b"]


def test_a_column_that_changed_under_the_write_is_stuck(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Rows that fitted when they were staged and no longer do are never shown."""
    write_deltalake(str(table), pa.table({"n": [0]}))
    frame: Any = pa.table({"n": [1]})
    slot = delta.stage(frame, key, 1, fingerprint="f")
    write_deltalake(str(table), pa.table({"n": ["text"]}), mode="overwrite", schema_mode="overwrite")
    decision = run(delta.commit(key, slot))
    assert isinstance(decision, Stuck)
    assert "its column n is string, and the rows have long; cast it" in decision.why
    assert rows_in(table) == [{"n": "text"}]


def test_missing_columns_are_null(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Columns of the table that the rows lack are null."""
    write_deltalake(str(table), pa.table({"n": [0], "a": ["x"]}))
    write(delta, key, {"n": [1]})
    assert rows_in(table) == [{"n": 0, "a": "x"}, {"n": 1, "a": None}]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"n": ["text"]}, "its column n is long, and the rows have string; cast it"),
        ({"N": [1]}, "its column is called n, and the rows call it N; rename it"),
        ({"n": [1], "a b": [1]}, "which a Delta table cannot have; rename it"),
        ({"s": [{"x": "text"}]}, r"its column s\.x is long, and the rows have string; cast it"),
        ({"s": ["text"]}, "its column s is struct, and the rows have string; cast it"),
        ({"s": [{"X": 1}]}, r"its column is called s\.x, and the rows call it s\.X; rename it"),
        ({"s": [{"x": 1, "a b": 2}]}, "the column name 'a b' holds a space"),
        ({"l": [[{"x": 1.5}]]}, r"its column l\.element\.x is long, and the rows have double; cast it"),
        ({"l": [1]}, "its column l is array, and the rows have long; cast it"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_they_run(
    delta: DeltaTableSink, key: SinkKey, table: Path, rows: dict[str, Any], why: str
) -> None:
    """One sentence names the column and the remedy; nothing is staged."""
    write_deltalake(str(table), pa.table({"n": [0], "s": [{"x": 1}], "l": [[{"x": 1}]]}))
    with pytest.raises(InvalidInput, match=f"output orders does not fit the Delta table .*{why}"):
        write(delta, key, rows, merge=True)
    assert list(table.glob("so-*")) == []


def test_not_null_columns_are_respected(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Rows that may hold nulls there, or lack the column, are refused; rows that cannot hold nulls are accepted."""
    loose = pa.table({"n": [0], "a": ["x"]}).schema
    strict = loose.set(0, loose.field("n").with_nullable(nullable=False))
    write_deltalake(str(table), pa.table({"n": [0], "a": ["x"]}, schema=strict))
    with pytest.raises(InvalidInput, match="its column n is NOT NULL, and the rows may hold nulls there"):
        write(delta, key, {"n": [1]})
    with pytest.raises(InvalidInput, match="its column n is NOT NULL, and the rows do not have it"):
        write(delta, key, {"a": ["y"]})
    frame: Any = pa.table({"n": [1], "a": ["y"]}, schema=strict)
    assert isinstance(run(delta.commit(key, delta.stage(frame, key, 1, fingerprint="f"))), Committed)


def test_a_new_table_lets_every_column_be_null(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A guarantee of one job's rows does not bind later jobs: no column is NOT NULL, at any depth."""
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    strict: pa.Schema = pa.schema(
        [pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.list_(pa.field("e", inner, nullable=False)))]
    )
    frame: Any = pa.table({"n": [1], "s": [[{"x": 1}]]}, schema=strict)
    run(delta.commit(key, delta.stage(frame, key, 1, fingerprint="f")))
    text = DeltaTable(str(table)).schema().to_json()
    assert '"nullable":false' not in text
    assert '"containsNull":false' not in text


def test_local_timestamps_get_their_feature(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A new table with a `timestamp_ntz` column lists that table feature; an existing table without the feature is refused such a
    column."""
    frame: Any = pa.table({"n": [1], "at": pa.array([0], pa.timestamp("us"))})
    run(delta.commit(key, delta.stage(frame, key, 1, fingerprint="f")))
    protocol = DeltaTable(str(table)).protocol()
    assert protocol.writer_features == ["timestampNtz"]
    assert len(rows_in(table)) == 1
    other = sink_on(table.with_name("other"))
    write_deltalake(str(table.with_name("other")), pa.table({"n": [0]}))
    with pytest.raises(
        InvalidInput, match=r"new column at holds timestamp_ntz, .*; enable that feature first, or cast"
    ):
        other.stage(frame, key, 1, fingerprint="f", options=WriteOptions(merge_schema=True))
    cast: Any = frame.set_column(1, "at", frame["at"].cast(pa.timestamp("us", "UTC")))
    assert other.stage(cast, key, 1, fingerprint="f", options=WriteOptions(merge_schema=True)).rows == 1
    found = DeltaTable(str(table.with_name("other")))
    found.alter.add_feature(TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True)
    enabled = other.stage(frame, key, 1, fingerprint="f", options=WriteOptions(merge_schema=True))
    assert isinstance(run(other.commit(key, enabled)), Committed)


def test_a_table_without_columns_gets_the_feature_with_its_first_rows(
    delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """The table was created by a write without columns, or by a stream's opening, with the lowest protocol. The entry with the first rows
    raises the protocol and keeps the features that the old one implied."""
    nothing, first = pa.table({}), SinkKey(key_hash="c3", output="orders", generation=1)
    assert isinstance(run(delta.commit(first, delta.stage(nothing, first, 1, fingerprint="f"))), Committed)  # type: ignore[arg-type]  # as a DataFrame
    assert DeltaTable(str(table)).protocol().min_writer_version == 2
    frame: Any = pa.table({"n": [1], "at": pa.array([[0]], pa.list_(pa.timestamp("us")))})
    assert isinstance(run(delta.commit(key, delta.stage(frame, key, 1, fingerprint="f"))), Committed)
    protocol = DeltaTable(str(table)).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["timestampNtz"]
    assert set(protocol.writer_features or ()) == {"appendOnly", "invariants", "timestampNtz"}
    write_deltalake(str(table), frame, mode="append")
    assert len(rows_in(table)) == 2


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (1, 2, (["x"], ["appendOnly", "invariants", "x"])),
        (2, 5, (
            ["columnMapping", "x"],
            ["appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "generatedColumns", "invariants", "x"],
        )),
        (3, 7, (["r", "x"], ["r", "w", "x"])),
        (1, 7, (["r", "x"], ["r", "w", "x"])),
    ],
)  # fmt: skip
def test_a_raised_protocol_names_what_was_implied(
    reader: int, writer: int, expected: tuple[list[str], list[str]]
) -> None:
    """For an old protocol, the raised one lists the features that its version implied; a protocol with a list of features keeps its
    list."""
    listed = frozenset({"r"}) if writer == 7 else frozenset[str]()
    raised = delta_fit.raised_protocol(
        reader=reader,
        writer=writer,
        reader_features=listed,
        features=listed | ({"w"} if writer == 7 else set()),
        enables=frozenset({"x"}),
    )
    assert (raised["minReaderVersion"], raised["minWriterVersion"]) == (3, 7)
    assert (raised["readerFeatures"], raised["writerFeatures"]) == expected


def test_a_column_called_like_a_type_needs_no_feature() -> None:
    """A column name never counts as a type."""
    assert delta_fit.needed_features(struct(timestamp_ntz="long")) == set()
    assert delta_fit.needed_features(struct(m=mapped("string", "timestamp_ntz"))) == {"timestampNtz"}


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.binary()])
def test_columns_without_one_text_are_no_partitions(delta: DeltaTableSink, key: SinkKey, kind: pa.DataType) -> None:
    """Spark names a timestamp's folder in the session's time zone, so such a partition is refused: rows could move by hours."""
    frame: Any = pa.table({"n": [1], "p": pa.array([None], kind)})
    with pytest.raises(InvalidInput, match="by which this version does not partition"):
        delta.stage(frame, key, 1, fingerprint="f", options=WriteOptions(partition_by=("p",)))


def test_partitions_that_are_no_columns_are_refused(delta: DeltaTableSink, key: SinkKey) -> None:
    """They are refused by name, before the rows run."""
    with pytest.raises(InvalidInput, match="the rows have no column day to partition by"):
        write(delta, key, {"n": [1]}, partition_by=("day",))


def test_an_empty_frame_makes_a_table_with_its_columns(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Zero rows are a result as well; partitioned or not."""
    frame: Any = pa.table({"d": pa.array([], pa.string()), "n": pa.array([], pa.int64())})
    slot = delta.stage(frame, key, 1, fingerprint="f", options=WriteOptions(partition_by=("d",)))
    assert run(delta.commit(key, slot)) == Committed(slot)
    assert rows_in(table) == []
    assert DeltaTable(str(table)).metadata().partition_columns == ["d"]
    assert run(delta.probe(key, None)) == "present"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ([("m", "long"), ("M", "long")], "two columns called M"),
        ([("m", "interval day")], "column m is interval day, which a Delta table cannot hold here"),
        ([("m", {"type": "array", "elementType": "void", "containsNull": True})], r"column m\.element is void"),
        ([("m", {"type": "map", "keyType": "void", "valueType": "long"})], r"column m\.key is void"),
        ([("m", {"type": "map", "keyType": "long", "valueType": "void"})], r"column m\.value is void"),
        ([("m", {"type": "udt"})], "column m is udt"),
        (
            [("m", {"type": "struct", "fields": [{"name": "y", "type": "long"}, {"name": "Y", "type": "long"}]})],
            "column m has two fields called Y; rename one",
        ),
    ],
)
def test_columns_that_no_table_can_have(columns: list[tuple[str, Any]], why: str) -> None:
    """They are refused by name, with what to do, whether or not the table exists."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    found = delta_fit.new_schema({"type": "struct", "fields": fields}, ())
    assert isinstance(found, str)
    assert re.search(why, found)


# --- nested columns ----------------------------------------------------------------------------------------------------------


def fitted(table: Any, rows: Any, *, merge: bool = False, **features: bool) -> delta_fit.RowLayout | str:
    return delta_fit.fit(
        struct(c=rows), table=struct(c=table), partition_by=(), asked=(), merge=merge, features=frozenset(features)
    )


def test_struct_fields_are_matched_by_name_at_any_depth() -> None:
    """Rows with their fields in another order fit, also inside arrays and in keys and values of maps."""
    one, other = struct(a="long", b="string"), struct(b="string", a="long")
    for wrapped in (lambda kind: kind, array, lambda kind: mapped(kind, array(kind)), lambda kind: struct(s=kind)):
        assert fitted(wrapped(one), wrapped(other)) == delta_fit.RowLayout(None, (), ())


def test_a_field_that_rows_lack_is_null_unless_the_table_forbids_it() -> None:
    """It is like a column that the rows lack; the sentence names the field."""
    assert fitted(struct(a="long", b="long"), struct(b="long")) == delta_fit.RowLayout(None, (), ())
    why = "its column c.a is NOT NULL, and the rows do not have it"
    assert fitted(struct(a_="long", b="long"), struct(b="long")) == why
    assert fitted(array(struct(a_="long", b="long")), array(struct(b="long"))) == why.replace("c.a", "c.element.a")


@pytest.mark.parametrize(
    ("table", "rows", "place"),
    [
        (struct(b="long", a_="long"), struct(a="long", b="long"), "c.a"),
        (array("long", nulls=False), array("long"), "c.element"),
        (mapped("long", "long", nulls=False), mapped("long", "long"), "c.value"),
        (mapped(struct(a_="long"), "long"), mapped(struct(a="long"), "long"), "c.key.a"),
        (array(array(struct(x="long", a_="long"))), array(array(struct(a="long", x="long"))), "c.element.element.a"),
    ],
)
def test_nulls_that_a_table_forbids_are_named_by_their_path(table: Any, rows: Any, place: str) -> None:
    """Fields are compared by name, so another order hides nothing; rows that are stricter than the table fit."""
    assert fitted(table, rows) == f"its column {place} is NOT NULL, and the rows may hold nulls there; coalesce them"
    assert fitted(rows, table) == delta_fit.RowLayout(None, (), ())


def test_new_fields_of_structs_need_merge_schema(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Without it new fields are named by their path. With it they are added, nullable, at the end of their struct; older rows have null
    there."""
    write_deltalake(str(table), pa.table({"n": [0], "who": [{"age": 1}], "l": [[{"x": 1}]]}))
    rows: dict[str, Any] = {"n": [1], "who": [{"name": "Ada", "age": 2}], "l": [[{"w": 2, "x": 2}]]}
    with pytest.raises(
        InvalidInput, match=r"does not have the column\(s\) who\.name, l\.element\.w; pass merge_schema=True"
    ):
        write(delta, key, rows)
    assert isinstance(write(delta, key, rows, merge=True), Committed)
    assert sorted(rows_in(table), key=lambda row: int(row["n"])) == [
        {"l": [{"x": 1, "w": None}], "n": 0, "who": {"age": 1, "name": None}},
        {"l": [{"x": 2, "w": 2}], "n": 1, "who": {"age": 2, "name": "Ada"}},
    ]
    query = QueryBuilder().register("t", DeltaTable(str(table)))
    assert pa.table(query.execute("SELECT who['name'] AS name FROM t ORDER BY n"))["name"].to_pylist() == [None, "Ada"]
    assert isinstance(write(delta, later(key, 2), {"n": [2], "who": [{"name": "Grace"}]}), Committed)
    assert {"l": None, "n": 2, "who": {"age": None, "name": "Grace"}} in rows_in(table)


def test_a_new_field_needs_its_features_too() -> None:
    """A nested `timestamp_ntz` requires the same table feature as a column of that type."""
    added = fitted(struct(a="long"), struct(a="long", at="timestamp_ntz"), merge=True)
    assert str(added).startswith(
        "its new column at holds timestamp_ntz, which needs the table feature timestampNtz; enable that"
    )
    assert isinstance(
        fitted(struct(a="long"), struct(a="long", at="timestamp_ntz"), merge=True, timestampNtz=True),
        delta_fit.RowLayout,
    )


@pytest.mark.parametrize("wrapped", [lambda kind: mapped("string", kind), lambda kind: mapped(kind, "long")])
def test_no_field_comes_or_goes_inside_a_map(wrapped: Any) -> None:
    """Not every reader fills in a field that a file lacks there, and a key with another field is another key."""
    more, fewer = wrapped(struct(a="long", b="long")), wrapped(struct(a="long"))
    place = "c.key" if isinstance(more["keyType"], dict) else "c.value"
    added, lacking = fitted(fewer, more, merge=True), fitted(more, fewer)
    assert added == f"its column {place} has no field b, and no field is added inside a map; drop it"
    assert (
        lacking == f"its column {place} has a field b, which the rows lack; add it, inside a map nothing is filled in"
    )


# --- tables that require what we do not write ---------------------------------------------------------------------------------


def plain(**configuration: str) -> dict[str, Any]:
    return {
        "reader": 1,
        "writer": 2,
        "features": frozenset[str](),
        "configuration": configuration,
        "schema": {"fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]},
    }


def test_ordinary_tables_are_written() -> None:
    """Old protocols, and features that are enabled but unused, are no reason to refuse a table."""
    assert delta_fit.unwritable(**plain()) is None
    known = plain() | {"reader": 3, "writer": 7, "features": frozenset(delta_fit.KNOWN)}
    assert delta_fit.unwritable(**known) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"writer": 8}, "demands reader version 1 and writer version 8"),
        ({"features": frozenset({"rowTracking"})}, "it uses rowTracking, which this version does not write"),
        ({"features": frozenset({"clustering", "domainMetadata"})}, "it uses clustering,"),
        ({"features": frozenset({"catalogManaged"})}, "it uses catalogManaged, which this version does not know"),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "column mapping"),
        ({"configuration": {"delta.enableInCommitTimestamps": "true"}}, "keeps timestamps in its commits"),
        ({"configuration": {"delta.constraints.positive": "n > 0"}}, "the constraint delta.constraints.positive"),
        ({"configuration": {"delta.setTransactionRetentionDuration": "interval 1 day"}}, "forgets who committed"),
    ],
)
def test_tables_that_demand_more_are_refused(change: dict[str, Any], why: str) -> None:
    """Each refusal names what the table requires."""
    assert why in (delta_fit.unwritable(**(plain() | change)) or "")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("delta.generationExpression", "a generated column"),
        ("delta.identity.start", "an identity column"),
        ("delta.invariants", "an invariant"),
        ("CURRENT_DEFAULT", "a default value"),
        (DECLARED, "says '1', which this version cannot read; correct it"),
    ],
)
@pytest.mark.parametrize("deep", [True, False])
def test_columns_that_writers_must_compute_are_refused(name: str, why: str, deep: bool) -> None:
    """A column whose values or checks the writer must compute is named, at any depth."""
    field = {"name": "n", "type": "long", "nullable": True, "metadata": {name: "1"}}
    if deep:
        field = {"name": "s", "type": {"type": "struct", "fields": [field]}, "nullable": True, "metadata": {}}
    assert why in (delta_fit.unwritable(**(plain() | {"schema": {"fields": [field]}})) or "")


def test_a_refused_table_is_refused_at_start_and_before_the_rows(
    delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """One sentence names the table; nothing is staged, and a fence still works."""
    write_deltalake(str(table), pa.table({"n": [0]}))
    DeltaTable(str(table)).alter.add_constraint({"positive": "n >= 0"})
    with pytest.raises(OutputUnsupported, match=r"the Delta table file:.* cannot be written: it has the constraint"):
        run(delta.check())
    with pytest.raises(OutputUnsupported, match="it has the constraint"):
        write(delta, key, {"n": [-1]})
    assert list(table.glob("so-*")) == []
    assert run(delta.fence(key, 2, fingerprint="f", by="settle")) is None


def test_an_append_only_table_takes_rows_and_no_replacement(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A table whose rows may not be deleted cannot be replaced: this is said before the rows run."""
    write_deltalake(str(table), pa.table({"n": [0]}), configuration={"delta.appendOnly": "true"})
    assert isinstance(write(delta, key, {"n": [1]}), Committed)
    with pytest.raises(InvalidInput, match=r"append-only .*declare onRerun: Append"):
        write(delta, later(key, 2), {"n": [2]})
    assert isinstance(write(sink_on(table, OnRerun.APPEND), later(key, 2), {"n": [2]}), Committed)
    assert len(rows_in(table)) == 3


# --- entries of the log ---------------------------------------------------------------------------------------------------


def test_an_entry_is_golden() -> None:
    """Paths are URI-encoded from the names on disk, partition values are not; every line is one action."""
    file = DataFile(
        path="so-k-o-g1/0000000001-a/d=x%3Ay%2F%25/n=__HIVE_DEFAULT_PARTITION__/p ü#.parquet",
        rows=2,
        bytes=7,
        digest="d",
    )
    action = delta_log.add(file, partition_by=("d", "n", "other"), stats=None, modified=5)
    assert delta_log.render([action]) == (
        b'{"add":{"path":"so-k-o-g1/0000000001-a/d=x%253Ay%252F%2525/n=__HIVE_DEFAULT_PARTITION__/p%20\xc3\xbc%23.parquet",'
        b'"partitionValues":{"d":"x:y/%","n":null,"other":null},"size":7,"modificationTime":5,"dataChange":true,'
        b'"stats":"{\\"numRecords\\": 2}"}}\n'
    )
    assert delta_log.plain_path(action["add"]["path"]) == file.path
    assert delta_log.entry_path(12) == "_delta_log/00000000000000000012.json"


def test_paths_are_spelled_as_java_spells_them() -> None:
    """Delta's VACUUM compares paths as text, so exactly those characters are escaped that Java's URI class escapes."""
    assert delta_log.log_path('a b/c%d#e?f[g]{h}^i`j|k"l<m>n\\o') == (
        "a%20b/c%25d%23e%3Ff%5Bg%5D%7Bh%7D%5Ei%60j%7Ck%22l%3Cm%3En%5Co"
    )
    assert delta_log.log_path("-_.!~*'():@&=+$,;/ü漢🙂") == "-_.!~*'():@&=+$,;/ü漢🙂"
    assert delta_log.log_path("a\u00a0b\u0085") == "a%C2%A0b%C2%85"


def test_a_commit_says_who_made_it(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """For people, the table's history names key, token, nonce and fingerprint."""
    write(delta, key, {"n": [1]})
    slot = run(delta.find(key))
    assert slot is not None
    told = json.loads(DeltaTable(str(table)).history(1)[0]["userMetadata"])
    assert told == {"sparkonce": {"sinkKey": str(key), "token": 1, "nonce": slot.nonce, "fingerprint": "f"}}


def test_folders_that_name_no_value_are_stuck(delta: DeltaTableSink, key: SinkKey) -> None:
    """A slot that was sealed with folder names that encode no partition value is Stuck with one sentence, not an error that repeats for
    ever."""
    frame: Any = pa.table({"d": ["a"], "n": [1]})
    slot = delta.stage(frame, key, 1, fingerprint="f", options=WriteOptions(partition_by=("d",)))
    forged = [each.model_copy(update={"path": each.path.replace("/d=a/", "/so-group-d=_xFF/")}) for each in slot.files]
    decision = run(delta.commit(key, slot.model_copy(update={"files": tuple(forged)})))
    assert isinstance(decision, Stuck)
    assert "so-group-d=_xFF" in decision.why
    assert "name no partition; run it again" in decision.why


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us")], ids=str)
def test_a_year_that_delta_rs_cannot_read_never_reaches_the_log(
    delta: DeltaTableSink, key: SinkKey, table: Path, kind: pa.DataType
) -> None:
    """delta-rs opens no table whose log has a year of five digits without a sign: a sealed slot with such a folder is Stuck before the log
    has it, with a sentence that names the column and the text. With a sign the rows are committed."""
    days: Any = pa.array([dt.date(2024, 5, 1)], pa.date32()).cast(kind)
    write_deltalake(str(table), pa.table({"d": days, "n": [0]}), partition_by=["d"])
    frame: Any = pa.table({"d": days, "n": [1]})
    slot = delta.stage(frame, key, 1, fingerprint="f")
    [file] = slot.files

    def dated(year: str) -> Slot:
        path = file.path.replace("/d=2024", f"/d={year}")
        (table / path).parent.mkdir()
        (table / path).write_bytes((table / file.path).read_bytes())
        return slot.model_copy(update={"files": (file.model_copy(update={"path": path}),)})

    decision = run(delta.commit(key, dated("10000")))
    assert isinstance(decision, Stuck)
    assert "column d" in decision.why
    assert "'10000-05-01" in decision.why
    assert DeltaTable(str(table)).version() == 0
    assert isinstance(run(delta.commit(key, dated("+10000"))), Committed)
    assert len(DeltaTable(str(table)).file_uris()) == 2


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("0.1", pa.scalar(0.1, pa.float32()), "float"),
        ("1.5", pa.scalar(1.5, pa.float32()), "float"),
        ("0.1", pa.scalar(0.1), "double"),
        ("NaN", pa.scalar(float("nan"), pa.float32()), "float"),
        ("0999-05-01", pa.scalar(dt.date(999, 5, 1)), "date"),
        ("+12345-01-01", pa.scalar(3_789_391, pa.date32()), "date"),
        ("0999-05-01 00:00:00", pa.scalar(dt.datetime.combine(dt.date(999, 5, 1), dt.time())), "timestamp_ntz"),
        ("2024-05-01 12:00:00.5", pa.scalar(1_714_564_800_500_000, pa.timestamp("us")), "timestamp_ntz"),
        ("2024-05-01T12:00:00.500000Z", pa.scalar(1_714_564_800_500_000, pa.timestamp("us", "UTC")), "timestamp"),
    ],
)
def test_a_partition_value_equals_itself_however_it_is_spelled(text: str, value: pa.Scalar[Any], kind: str) -> None:
    """Spark's text in a folder's name, and the value that delta-rs reads: or else an overwrite of the partition would leave its rows."""
    (spelled,) = value_texts(pa.chunked_array([[value]], value.type))
    assert typed(text, kind) == typed(spelled, kind)
