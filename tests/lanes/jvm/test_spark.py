"""Spark reads what writers outside of Spark have written, and audits count it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkonce
from lanes.test_rows import KEPT
from sparkonce.lanes.rows import arrow_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", KEPT)
def test_spark_reads_each_type_as_it_was_written(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The column's type, and every value, extreme ones too: Spark hands the rows back as Arrow, so that nothing passes through Python's
    types."""
    given, _ = KEPT[name]
    table = arrow_of(pa.table({"c": given}), pa.schema([]))
    with sparkonce.writer(tmp_path / "t", name="tap", linger=0.0) as writer:
        writer.append(pa.table({"c": given}))
    frame = sparkonce.read(spark, str(tmp_path / "t"))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    read: Any = frame.toArrow().column("c")
    assert read.cast(table.schema.field("c").type).to_pylist() == table.column("c").to_pylist()


def test_lanes_and_columns_are_joined(spark: SparkSession, tmp_path: Path) -> None:
    """Two lanes, with columns of their own, over several generations of appends: the union, in which what a lane lacks is null."""
    with (
        sparkonce.writer(tmp_path / "t", name="a", linger=0.0) as a,
        sparkonce.writer(tmp_path / "t", name="b", linger=0.0) as b,
    ):
        a.append({"n": 1})
        a.flush()
        a.append({"n": 2, "text": "x"})
        b.append({"n": 3, "at": 1.5})
    rows = {
        tuple(row[name] for name in ("n", "text", "at")) for row in sparkonce.read(spark, str(tmp_path / "t")).collect()
    }
    assert rows == {(1, None, None), (2, "x", None), (3, None, 1.5)}


def test_a_range_of_batches_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Exactly the rows of these batches; a range without rows is an empty frame with the lane's columns."""
    with sparkonce.writer(tmp_path / "t", name="tap@home", linger=0.0) as writer:
        for n in range(5):
            writer.append({"n": n} if n != 3 else [], position=n)
            writer.flush()
    path = str(tmp_path / "t")
    assert [row.n for row in sparkonce.read(spark, path, batches="tap@home@2-3").orderBy("n").collect()] == [1, 2]
    nothing = sparkonce.read(spark, path, batches="tap@home@4-4")
    assert (nothing.columns, nothing.count()) == (["n"], 0)


def test_a_lane_without_rows_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    """Its columns are known once a row was written; before, there is nothing to read."""
    sparkonce.writer(tmp_path / "t", name="tap").close()
    with pytest.raises(sparkonce.SparkonceError, match="no job has committed anything"):
        sparkonce.read(spark, str(tmp_path / "t"))
