"""Which rows of a slot log a path below its folder stands for, as of a plain folder with the same partitions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from sparkonce.driver import places
from sparkonce.driver.script import reads
from sparkonce.driver.script.reads import ChosenRows, ScriptReads, chosen, named_files
from sparkonce.errors import InvalidInput, SparkonceError
from sparkonce.sink.protocol import SinkKey
from sparkonce.sink.slotlog import layout

COLUMNS = ("year", "Store id")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("*", ChosenRows(1)),
        ("*/*", ChosenRows(2)),
        ("*/*/*", ChosenRows(2)),
        ("*/*/*.parquet", ChosenRows(2)),
        ("year=*", ChosenRows(1)),
        ("YEAR=2024", ChosenRows(1, (("year", "2024"),))),
        ("year=2024/*", ChosenRows(2, (("year", "2024"),))),
        ("*/Store id=7", ChosenRows(2, (("Store id", "7"),))),
        ("*/Store%20id=a%3Ab", ChosenRows(2, (("Store id", "a:b"),))),
        ("year=2024/Store id=/*", ChosenRows(2, (("year", "2024"), ("Store id", "")))),
    ],
)
def test_a_path_of_partitions_stands_for_their_rows(path: str, expected: ChosenRows) -> None:
    """Wildcards for whole folders, and names of values as Spark escapes them, at each level."""
    assert chosen(path.split("/"), COLUMNS) == expected


@pytest.mark.parametrize(
    "path",
    [
        "*/*/*/*",
        "*/*/part-0.parquet",
        "*.parquet",
        "day=2024",
        "2024",
        "year=20*",
        "year={2023,2024}",
        "year=202[34]",
        "ye*",
        "Store id=7",
        "*/year=2024",
    ],
)
def test_any_other_path_cannot_be_told(path: str) -> None:
    """Too deep, names of files, other columns or order, patterns inside of a name."""
    assert chosen(path.split("/"), COLUMNS) is None


def test_a_table_without_partitions_has_files_only() -> None:
    """One wildcard stands for all of them."""
    assert chosen(["*"], ()) == chosen(["*.parquet"], ()) == ChosenRows(0)
    assert chosen(["*", "*"], ()) is None


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("SELECT * FROM parquet.`out/*/*`", ["out/*/*"]),
        ("select * from a join `PARQUET` . `s3a://b/out`", ["s3a://b/out"]),
        ("SELECT * FROM parquet.out WHERE x > 1", ["out"]),
        ("SELECT * FROM csv.`a``b`, text.`c`", ["a`b", "c"]),
        ("CREATE TEMPORARY VIEW v USING parquet OPTIONS (path 'out/*')", ["out/*"]),
        ('CREATE TEMPORARY VIEW v USING parquet OPTIONS ("path" = "out")', ["out"]),
        ("SELECT parquet.id.x, p.out, sparquet.`out` FROM lake.parquet", []),
        ("SELECT path FROM t WHERE path = 'out/x'", []),
        ("parquet.`out`", ["out"]),
    ],
)
def test_files_that_sql_names_are_found(text: str, paths: list[str]) -> None:
    """By a format and a path, or by the option of a view; columns and tables that look like it are none."""
    assert named_files(text) == paths


def _raised(problem: SparkonceError) -> NoReturn:
    raise problem


@pytest.fixture
def _spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths and options without a JVM."""
    monkeypatch.setattr(places, "qualified", lambda _, path: path)
    monkeypatch.setattr(reads, "options_of", lambda options: options)


def _script(**logs: Path) -> ScriptReads:
    return ScriptReads({name: at.as_uri() for name, at in logs.items()}, base="/", fail=_raised)


def _asked(at: Path, paths: list[str]) -> list[str]:
    """The paths that Spark is asked for when a script reads these; nothing is committed to the slot log."""
    reader = SimpleNamespace(_jreader={}, _spark=None)
    return cast("list[str]", _script(orders=at).rows(reader, paths, lambda found: cast("Any", list(found))))


@pytest.mark.usefixtures("_spelled_out")
@pytest.mark.parametrize("folder", ["_data/orders", "lake/_data", "_lake/orders", "lake/_data/0000000001-a/orders"])
def test_a_slot_log_is_known_whatever_the_folders_are_called(tmp_path: Path, folder: str) -> None:
    """Also where a folder above it, or its own, has the name that its folder of files has: patterns do not reach Spark, nor does SQL."""
    at = tmp_path / folder
    assert _asked(at, [f"{at}/*"]) == [at.as_uri()]
    with pytest.raises(InvalidInput, match="output orders keeps the files of all attempts"):
        _script(orders=at).refuse_named(None, f"SELECT * FROM parquet.`{at}/*/*/*`")
    with pytest.raises(InvalidInput, match="output orders keeps the files of all attempts"):
        _script(orders=at).refuse_named(None, f"SELECT * FROM parquet.`{at}/{layout.DATA}/*/*`")


@pytest.mark.usefixtures("_spelled_out")
def test_files_of_a_slot_log_are_read_as_they_are(tmp_path: Path) -> None:
    """By their whole paths, as sparkonce reads them itself: those of batch jobs, streams and lanes."""
    at = tmp_path / "_data" / "orders"
    keys = [SinkKey(key_hash="ab" * 32, output="orders", generation=1, batch=batch) for batch in (None, 7)]
    files = [f"{at.as_uri()}/{layout.staging_folder(key, 1, 'a9')}/day=2024/part.parquet" for key in keys]
    assert _asked(at, files) == files
