"""What other readers make of their own tables: exceptions that tests/harness/matrix.py allows. Each test fails once a release mends it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from harness import iceberg_tables


def test_pyiceberg_takes_a_null_list_of_structs_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a table that it wrote itself; lists of simple types keep their nulls."""
    for name, value in iceberg_tables.sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    structs = pa.list_(pa.struct([("a", pa.int32())]))
    rows = pa.table({"s": pa.array([None, []], structs), "i": pa.array([None, []], pa.list_(pa.int32()))})
    iceberg_tables.catalog().create_namespace("sales")
    table = iceberg_tables.catalog().create_table("sales.lists", schema=rows.schema)
    table.append(rows)
    found = table.scan().to_arrow()
    assert (found["s"].to_pylist(), found["i"].to_pylist()) == ([[], []], [None, []])


def test_delta_rs_fails_on_partitions_by_decimals_between_minus_one_and_zero(tmp_path: Path) -> None:
    """So they are refused (sink/delta/partitions.py)."""
    rows = pa.table({"n": [1], "d": pa.array(["-0.000004005"]).cast(pa.decimal128(9, 9))})
    with pytest.raises(DeltaError, match=r"Failed to parse value '0.0000-4005' as 'decimal\(9,9\)'"):
        write_deltalake(str(tmp_path), rows, partition_by=["d"])
