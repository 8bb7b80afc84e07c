"""Partition values of Iceberg tables that are close to others: each is overwritten as itself, and those of others stay as they are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import Schema as ArrowsSchema
from pyarrow import parquet
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform
from pyiceberg.types import DoubleType, FloatType, LongType, NestedField, StringType, TimestampType

from harness import iceberg_tables
from sparkonce.blocking import run
from sparkonce.model.spec import WriteMode
from sparkonce.sink.iceberg.sink import open_iceberg
from sparkonce.sink.protocol import Committed, Declared, Sink, SinkKey, Stuck
from sparkonce.sink.staging import StagedRows, Stager

A, B = (SinkKey(key_hash=name * 4, output="orders", generation=1) for name in "ab")
Texts = Callable[[Mapping[str, Any]], str]


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in iceberg_tables.sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    iceberg_tables.catalog().create_namespace("sales")


def by_text(text: Texts) -> Stager:
    """Writes each row into a folder that is named after its value's text, as Spark does."""

    def stage(frame: pa.Table, folder: str, _: object = ()) -> StagedRows:
        ids = [field.with_metadata({b"PARQUET:field_id": str(n + 1).encode()}) for n, field in enumerate(frame.schema)]
        for number, row in enumerate(frame.to_pylist()):
            value = text(row)
            name = (
                value
                if re.fullmatch(r"[a-z0-9+-][a-z0-9.+_-]*(/so-group-1=.*)?", value)
                else f"_x{value.encode().hex().upper()}"
            )
            place = Path(folder.removeprefix("file://")) / f"so-group-0={name}"
            place.mkdir(parents=True, exist_ok=True)
            parquet.write_table(frame.slice(number, 1).cast(pa.schema(ids)), place / f"part-{number:05d}.parquet")
        return StagedRows(
            rows=frame.num_rows, data_schema=ArrowsSchema.from_arrow(frame.schema).to_json(), application="x"
        )

    return stage


def table_by(kind: Any, transform: Any, name: str) -> None:
    iceberg_tables.catalog().create_table(
        "sales.orders",
        schema=Schema(NestedField(1, "v", kind), NestedField(2, "n", LongType())),
        partition_spec=PartitionSpec(PartitionField(1, 1000, transform, name)),
    )


def sink_of(text: Texts, mode: WriteMode | None = None) -> Sink:
    place = Declared(name="orders", kind="iceberg", location="lake.sales.orders", mode=mode)
    return open_iceberg(place, stage=by_text(text), durable=False)


def rows_of(kind: pa.DataType, values: list[Any], first: int = 1) -> Any:
    return pa.table({"v": pa.array(values, kind), "n": pa.array(range(first, first + len(values)), pa.int64())})


def numbers(value: float | None = None) -> list[int]:
    """Of the rows with this value, by a filter; of all."""
    table = iceberg_tables.table("sales.orders")
    equal: Any = EqualTo
    found = table.scan() if value is None else table.scan(row_filter=equal("v", value))
    return sorted(cast("list[int]", found.to_arrow()["n"].to_pylist()))


@pytest.mark.parametrize(
    ("kind", "arrow", "texts", "values", "left"),
    [
        pytest.param(FloatType(), pa.float32(), ("0.1", "0.1"), (0.1, 0.1), [2], id="float"),
        pytest.param(
            FloatType(), pa.float32(), ("3.4028235e38",) * 2, (3.4028235e38, 3.4028235e38), [2], id="largest float"
        ),
        pytest.param(DoubleType(), pa.float64(), ("0.1", "0.1"), (0.1, 0.1), [2], id="double"),
        pytest.param(DoubleType(), pa.float64(), ("-0.0", "0.0"), (-0.0, 0.0), [1, 2], id="both zeros"),
        pytest.param(DoubleType(), pa.float64(), ("NaN", "NaN"), (float("nan"), float("nan")), [2], id="NaN"),
    ],
)
def test_a_partition_is_overwritten_as_itself(
    kind: Any, arrow: pa.DataType, texts: tuple[str, str], values: tuple[float, float], left: list[int]
) -> None:
    """The rows of the same value go, and those of another one stay, however near it is."""
    table_by(kind, IdentityTransform(), "v")
    for key, text, value, number in ((A, texts[0], values[0], 1), (B, texts[1], values[1], 2)):
        sink = sink_of(lambda _, text=text: text, WriteMode.OVERWRITE_PARTITIONS)  # type: ignore[misc] # a default in a lambda has no type
        slot = sink.stage(rows_of(arrow, [value], number), key, 1, fingerprint="f")
        assert isinstance(run(sink.commit(key, slot)), Committed)
    assert numbers() == left


def test_partitions_of_another_writer_keep_their_values() -> None:
    """They share a manifest with what is overwritten, which is written anew: pyiceberg's fast decoder reads doubles in single precision."""
    table_by(DoubleType(), IdentityTransform(), "v")
    iceberg_tables.table("sales.orders").append(rows_of(pa.float64(), [0.1, 0.5, 1e300]))
    sink = sink_of(lambda row: repr(row["v"]), WriteMode.OVERWRITE_PARTITIONS)
    slot = sink.stage(rows_of(pa.float64(), [0.5], 9), A, 1, fingerprint="f")
    assert isinstance(run(sink.commit(A, slot)), Committed)
    assert numbers() == [1, 3, 9]
    assert (numbers(0.1), numbers(0.5), numbers(1e300)) == ([1], [9], [3])


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_long_text_leaves_the_values_beside_it_as_they_are(zero: float) -> None:
    """Its folder is named by a hash, so only the file holds it. Statistics do not tell one zero from the other: the folder beside does."""
    long = "x" * 101
    schema = Schema(NestedField(1, "v", DoubleType()), NestedField(2, "s", StringType()))
    by = [PartitionField(number, 999 + number, IdentityTransform(), name) for number, name in ((1, "v"), (2, "s"))]
    iceberg_tables.catalog().create_table("sales.orders", schema=schema, partition_spec=PartitionSpec(*by))
    hashed = f"so-group-1=_s{hashlib.sha256(long.encode()).hexdigest()}"
    sink = sink_of(lambda row: f"{row['v']}/{hashed}")
    rows: Any = pa.table({"v": pa.array([zero]), "s": pa.array([long])})
    slot = sink.stage(rows, A, 1, fingerprint="f")
    assert isinstance(run(sink.commit(A, slot)), Committed)
    [task] = iceberg_tables.table("sales.orders").scan().plan_files()
    assert (repr(task.file.partition[0]), task.file.partition[1]) == (repr(zero), long)


def test_rows_that_were_staged_for_another_partitioning_are_not_committed() -> None:
    """A day's number in a folder would be taken for an hour's: filters of every reader would lose the rows."""
    table_by(TimestampType(), DayTransform(), "v_day")
    sink = sink_of(lambda _: "19844")
    slot = sink.stage(rows_of(pa.timestamp("us"), [19844 * 86_400_000_000]), A, 1, fingerprint="f")
    with iceberg_tables.table("sales.orders").update_spec() as spec:
        spec.remove_field("v_day")
        spec.add_field("v", HourTransform(), "v_hour")
    answer = run(sink.commit(A, slot))
    assert isinstance(answer, Stuck)
    assert "was partitioned differently when the rows were staged; rerun the job" in answer.why
    assert numbers() == []
