"""Which rows of a slot log a path below its folder stands for, as of a plain folder with the same partitions."""

from __future__ import annotations

import pytest

from sparkonce.driver.script.reads import ChosenRows, chosen, named_files

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
