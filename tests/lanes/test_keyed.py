"""Lanes whose rows have keys: what is taken, what is refused, and what of it the table says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import sparkonce
from sparkonce.errors import InvalidInput
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.table_log import TableLog
from sparkonce.lanes.writer import Writer
from sparkonce.sink.objects.local import FolderObjects


def opened(table: Path, name: str = "tap", **options: Any) -> Writer:
    return sparkonce.writer(table, name=name, linger=0.0, **options)


def written(table: Path) -> list[dict[str, Any]]:
    """All rows of the table, in order."""
    return [
        row for file in sparkonce.files(table) for row in parquet.read_table(file.removeprefix("file://")).to_pylist()
    ]


def test_rows_and_deletions_are_kept_in_order(tmp_path: Path) -> None:
    """The table has each row, with true in `_deleted` where its key is gone; that column may also be given."""
    with opened(tmp_path / "t", keys=["id"]) as writer:
        writer.append([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}], position=1)
        writer.delete({"id": 1}, position=2)
        writer.append([{"id": 1, "v": "c"}, {"id": 2, "_deleted": True}, {"id": 3, "v": None, "_deleted": False}])
    assert [(row["id"], row.get("v"), row.get("_deleted")) for row in written(tmp_path / "t")] == [
        (1, "a", None),
        (2, "b", None),
        (1, None, True),
        (1, "c", None),
        (2, None, True),
        (3, None, False),
    ]


@pytest.mark.parametrize(
    "rows", [{"id": 1}, [{"id": 1}, {"id": 2}], pa.table({"id": [1, 2], "_deleted": [None, False]})]
)
def test_a_deletion_marks_every_row(tmp_path: Path, rows: Any) -> None:
    """Whatever form the rows have, and whatever they say of themselves."""
    with opened(tmp_path / "t", keys=["id"]) as writer:
        writer.delete(rows)
    assert {row["_deleted"] for row in written(tmp_path / "t")} == {True}


def test_a_lane_keeps_its_keys(tmp_path: Path) -> None:
    """Over the generations of its log, for a writer that names them in any order, and for one that does not."""
    log = TableLog(FolderObjects(tmp_path / "t", durable=False), "tap", places=2, keys=["region", "id"])
    with Writer(log, WriterOptions(linger=0.0)) as writer:
        for n in range(5):
            writer.append({"id": n, "region": "eu"})
            writer.flush()
    for keys in (["id", "region"], ("region", "id"), None):
        with opened(tmp_path / "t", keys=keys) as writer:
            assert writer.keys == ("id", "region")
            with pytest.raises(InvalidInput, match="the rows have no column region, which is one of the lane's keys"):
                writer.append({"id": 1})
    entries = list(TableLog(FolderObjects(tmp_path / "t"), "tap").entries())
    assert {entry.keys for entry in entries} == {("id", "region")}
    assert any(entry.place.startswith("g3") for entry in entries)


def test_a_lane_has_one_set_of_keys(tmp_path: Path) -> None:
    """Others are refused when the writer is opened, and nothing is written."""
    opened(tmp_path / "keyed", keys=["id"]).close()
    opened(tmp_path / "plain").close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInput, match=r"the lane tap of .* has the keys id, and its writer gives keys=\['sku'\]"):
        opened(tmp_path / "keyed", keys=["sku"])
    with pytest.raises(InvalidInput, match=r"the lane tap of .* has no keys, and its writer gives keys=\['id'\]"):
        opened(tmp_path / "plain", keys=["id"])
    assert sorted(tmp_path.rglob("*")) == before


def test_the_lanes_of_a_table_have_the_same_keys(tmp_path: Path) -> None:
    """A new lane with others, or with none, is refused before anything is written, and the remedy works."""
    opened(tmp_path / "keyed", keys=["id"]).close()
    opened(tmp_path / "plain").close()
    before = sorted(tmp_path.rglob("*"))
    for table, keys, why in (
        ("keyed", ["sku"], r"the lane tap of .* has the keys id, and the writer of other gives keys=\['sku'\]"),
        ("keyed", None, "the lane tap of .* has the keys id, and the writer of other gives none"),
        ("plain", ["id"], r"the lane tap of .* has no keys, and the writer of other gives keys=\['id'\]"),
    ):
        with pytest.raises(InvalidInput, match=why):
            opened(tmp_path / table, "other", keys=keys)
    assert sorted(tmp_path.rglob("*")) == before
    opened(tmp_path / "keyed", "other", keys=["id"]).close()
    opened(tmp_path / "elsewhere", "other", keys=["sku"]).close()


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"v": 1}, "no column id, which is one of the lane's keys"),
        ({"id": None, "v": 1}, "no column id"),
        ([{"id": 1}, {"v": 1}], "a row has no value in id"),
        ({"id": 1.5}, "column id is double and one of the lane's keys"),
        ({"id": [1]}, r"column id is list<.*> and one of the lane's keys"),
        ({"id": 1, "_deleted": "yes"}, "column _deleted is string, and says with true or false whether a row is gone"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: Any, why: str) -> None:
    """Nothing of the append is written, and the writer goes on."""
    with opened(tmp_path / "t", keys=["id"]) as writer:
        with pytest.raises(InvalidInput, match=why):
            writer.append(rows)
        writer.append([])
        writer.append({"id": 1})
    assert [row["id"] for row in written(tmp_path / "t")] == [1]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("id", r'keys is \'id\', and must be a list of columns, as in keys=\["id"\]'),
        ([], "keys is .*, and must be a list of columns"),
        ([1], "keys is .*, and must be a list of columns"),
        ([""], "keys is .*, and must be a list of columns"),
        (7, "keys is 7, and must be a list of columns"),
        (["id", "ID"], "keys names a column twice"),
        ([f"c{n}" for n in range(17)], "keys has 17 columns, and may have 16"),
        (["_deleted"], "the column _deleted says which rows are gone, and cannot be one of the keys"),
    ],
)
def test_keys_that_are_none_are_refused(tmp_path: Path, keys: Any, why: str) -> None:
    """In one sentence, before anything is written."""
    with pytest.raises(InvalidInput, match=why):
        opened(tmp_path / "t", keys=keys)
    assert not (tmp_path / "t").exists()


def test_without_keys_nothing_is_deleted(tmp_path: Path) -> None:
    """A lane without keys refuses, and has a column `_deleted` of any type like any other."""
    with opened(tmp_path / "t") as writer:
        with pytest.raises(InvalidInput, match=r"the lane tap of .* has no keys, and nothing can be deleted from it"):
            writer.delete({"id": 1})
        writer.append({"id": 1, "_deleted": "no"})
    assert written(tmp_path / "t") == [{"id": 1, "_deleted": "no"}]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (["_lane"], "the column _lane cannot be one of the keys: a message's key has the lane's name under it"),
        (["x" * 397], "the names of the keys take 401 bytes of JSON, and on Kafka they may take 400"),
    ],
)
def test_a_message_has_room_for_keys(keys: list[str], why: str) -> None:
    """Other keys are refused before any broker is asked."""
    with pytest.raises(InvalidInput, match=why):
        sparkonce.writer("kafka://127.0.0.1:1/t", name="tap", keys=keys)
