"""`sparkonce.read(spark, path, latest=[...])`: the last row of each key, in the order of the lane."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparkonce
from harness import effort
from harness.delta_jars import delta_jars
from harness.spark import facts_of
from sparkonce.errors import InvalidInput, NothingCommitted
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.table_log import TableLog
from sparkonce.lanes.writer import Writer
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.slotlog.latest import last_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ODD = (
    dt.date(1, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
    Decimal("-0.01"),
    "",
    "a/b=c%",
    b"\x00\xff",
    -(2**63),
    False,
)


def rows_of(spark: SparkSession, table: Path, *keys: str, **options: Any) -> dict[Any, Any]:
    """The last rows by key, as (value, is deleted)."""
    frame = sparkonce.read(spark, str(table), latest=list(keys), **options)
    found = [row.asDict(recursive=True) for row in frame.collect()]
    by_key = {tuple(row[key] for key in sorted(keys)): (row.get("v"), row.get("_deleted")) for row in found}
    assert len(by_key) == len(found)
    return by_key


def test_the_last_row_of_each_key_is_what_a_dictionary_has(spark: SparkSession, tmp_path: Path) -> None:
    """Random appends and deletions by a series of writers, several in one batch and over generations of the log, against a dictionary."""
    drawn = random.Random(effort.seed("latest rows"))
    kept: dict[tuple[int, str], Any] = {}
    for _ in range(4):
        log = TableLog(FolderObjects(tmp_path / "t", durable=False), "tap", places=5, keys=["id", "region"])
        with Writer(log, WriterOptions(linger=0.0)) as writer:
            for _ in range(12):
                rows = []
                for _ in range(drawn.randint(1, 6)):
                    key = (drawn.randrange(8), drawn.choice("ab"))
                    row: dict[str, Any] = {"id": key[0], "region": key[1], "v": drawn.randrange(10**6)}
                    if drawn.random() < 0.3:
                        row = {**row, "v": None, "_deleted": True}
                        kept.pop(key, None)
                    else:
                        kept[key] = row["v"]
                    rows.append(row)
                writer.append(rows)
                if drawn.random() < 0.5:
                    writer.flush()
    assert {key: value for key, (value, _) in rows_of(spark, tmp_path / "t", "region", "id").items()} == kept
    assert kept
    assert "_deleted" not in sparkonce.read(spark, str(tmp_path / "t"), latest=["id", "region"]).columns


def test_rows_of_one_batch_have_the_order_of_its_file(spark: SparkSession) -> None:
    """In whatever order Spark comes to them."""
    place = [f"so-group-{name}" for name in ("lane", "batch", "row")]
    rows = [(1, n, "a", batch, n) for batch in (7, 5) for n in (2, 3, 1, 0)]
    frame = spark.createDataFrame(rows, ["id", "v", *place]).coalesce(1)
    assert [tuple(row) for row in last_of(frame, ["id"], deleted=False).collect()] == [(1, 3)]


@pytest.mark.parametrize("key", ODD, ids=[type(key).__name__ + str(n) for n, key in enumerate(ODD)])
def test_keys_of_each_type_are_compared_for_equality(spark: SparkSession, tmp_path: Path, key: Any) -> None:
    """An odd value of each type is one key, and columns with odd names are read as any other."""
    with sparkonce.writer(tmp_path / "t", name="tap", keys=["k.e`y"], linger=0.0) as writer:
        writer.append([{"k.e`y": key, "_metadata": n, "_row.x": [{"n": n}]} for n in range(3)])
        writer.append({"k.e`y": key, "_metadata": 3, "_row.x": [{"n": 3}, {"n": None}]})
    frame = sparkonce.read(spark, str(tmp_path / "t"), latest=["k.e`y"])
    assert frame.columns == ["k.e`y", "_metadata", "_row.x"]
    (row,) = frame.collect()
    assert (row["_metadata"], [each.n for each in row["_row.x"]]) == (3, [3, None])


def test_a_range_is_read_as_what_has_changed(spark: SparkSession, tmp_path: Path) -> None:
    """The last row of each key within the range, and deletions with it: what a MERGE needs."""
    with sparkonce.writer(tmp_path / "t", name="tap", keys=["id"], linger=0.0) as writer:
        for rows in ([{"id": 1, "v": 1}, {"id": 2, "v": 1}], [{"id": 1, "v": 2}, {"id": 3, "v": 2}]):
            writer.append(rows)
            writer.flush()
        writer.delete([{"id": 1}, {"id": 9}])
        writer.flush()
        writer.append({"id": 1, "v": 4})
    assert rows_of(spark, tmp_path / "t", "id", batches="tap@2-3") == {
        (1,): (None, True),
        (3,): (2, False),
        (9,): (None, True),
    }
    assert rows_of(spark, tmp_path / "t", "id", batches="tap@1-1") == {(1,): (1, False), (2,): (1, False)}
    assert rows_of(spark, tmp_path / "t", "id") == {(1,): (4, None), (2,): (1, None), (3,): (2, None)}


def test_a_key_of_two_lanes_has_no_last_row(spark: SparkSession, tmp_path: Path) -> None:
    """Lanes with keys of their own are read together; a key that both have written ends the query with a sentence, also if it was
    deleted, and also a query that only counts."""
    with (
        sparkonce.writer(tmp_path / "t", name="a", keys=["id"], linger=0.0) as a,
        sparkonce.writer(tmp_path / "t", name="b", keys=["id"], linger=0.0) as b,
    ):
        a.append([{"id": 1, "v": 1}, {"id": 1, "v": 2}])
        b.append({"id": 2, "v": 3})
        a.flush()
        b.flush()
        assert rows_of(spark, tmp_path / "t", "id") == {(1,): (2, None), (2,): (3, None)}
        b.delete({"id": 1})
    for query in ("collect", "count"):
        with pytest.raises(Exception, match="two lanes have written the key id = 1; neither row is the last one"):
            getattr(sparkonce.read(spark, str(tmp_path / "t"), latest=["id"]), query)()


def test_a_lane_without_rows_has_no_last_ones(spark: SparkSession, tmp_path: Path) -> None:
    """Positions alone, deletions alone, and a lane whose rows came after places without columns."""
    with sparkonce.writer(tmp_path / "t", name="tap", keys=["id"], linger=0.0) as writer:
        writer.append([], position=1)
        writer.flush()
        with pytest.raises(NothingCommitted):
            rows_of(spark, tmp_path / "t", "id")
        writer.delete({"id": 1})
        writer.flush()
        assert rows_of(spark, tmp_path / "t", "id") == {}
        assert rows_of(spark, tmp_path / "t", "id", batches="tap@1-1") == {}
        assert rows_of(spark, tmp_path / "t", "id", batches="tap@1-2") == {(1,): (None, True)}
        writer.append({"id": 1, "v": 1})
    assert rows_of(spark, tmp_path / "t", "id") == {(1,): (1, None)}


def test_rows_without_an_order_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Other keys, none, and rows of a job: in one sentence each, before a query."""
    with sparkonce.writer(tmp_path / "plain", name="tap", linger=0.0) as writer:
        writer.append({"id": 1})
    with sparkonce.writer(tmp_path / "keyed", name="tap", keys=["id"], linger=0.0) as writer:
        writer.append({"id": 1, "sku": 1})
    for table, latest, why in (
        ("plain", ["id"], r"latest is \['id'\], and the lane tap of .* has no keys; keys are given to its writer"),
        ("keyed", ["sku"], r"latest is \['sku'\], and the lane tap of .* has the keys id; give latest=\['id'\]"),
        ("keyed", "id", r"latest is 'id', and must be a list of columns"),
    ):
        with pytest.raises(InvalidInput, match=why):
            sparkonce.read(spark, str(tmp_path / table), latest=latest)
    with sparkonce.job("load", outputs={"out": str(tmp_path / "keyed")}, store=f"sqlite:///{tmp_path}/l.db") as job:
        job.write(spark.range(1).selectExpr("id", "id AS sku"), "out")
    with pytest.raises(InvalidInput, match=r"also has rows of jobs .* and only a lane's rows have a last one"):
        sparkonce.read(spark, str(tmp_path / "keyed"), latest=["id"])


@pytest.mark.slow
def test_what_has_changed_is_merged_into_a_delta_table(tmp_path: Path) -> None:
    """The statement of the page, in a job for each range that is sent twice: the table has what the lane's last rows say."""
    facts = facts_of("harness.lane_merged", tmp_path, ",".join(map(str, delta_jars())))
    assert facts["left"] == [[[1, "new"], [2, "new"]], [[2, "paid"], [3, "new"]], [[1, "again"], [2, "paid"]]]
