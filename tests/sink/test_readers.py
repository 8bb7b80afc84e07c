"""Mistakes of other readers in tables that they wrote themselves: the exceptions of tests/harness/matrix.py. Each test fails once a release
fixes the mistake."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from harness import iceberg_tables


def test_pyiceberg_takes_a_null_list_of_structs_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a table that pyiceberg wrote itself; nulls in lists of simple types are kept."""
    for name, value in iceberg_tables.sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    structs = pa.list_(pa.struct([("a", pa.int32())]))
    rows = pa.table({"s": pa.array([None, []], structs), "i": pa.array([None, []], pa.list_(pa.int32()))})
    iceberg_tables.catalog().create_namespace("sales")
    table = iceberg_tables.catalog().create_table("sales.lists", schema=rows.schema)
    table.append(rows)
    found = table.scan().to_arrow()
    assert (found["s"].to_pylist(), found["i"].to_pylist()) == ([[], []], [None, []])


@pytest.mark.parametrize(
    ("value", "read"), [("-0.000004005", "0.0000-4005"), ("-1.500000000", "-1.-500000000"), ("-7.000000000", "")]
)
def test_delta_rs_fails_on_partitions_by_negative_decimals_with_a_fraction(
    tmp_path: Path, value: str, read: str
) -> None:
    """This is why such partitions are refused (sink/delta/partitions.py). Negative decimals without a fraction are read correctly."""
    rows = pa.table({"n": [1], "d": pa.array([value]).cast(pa.decimal128(10, 9))})
    if not read:
        write_deltalake(str(tmp_path), rows, partition_by=["d"])
        assert DeltaTable(str(tmp_path)).to_pyarrow_table()["d"].to_pylist() == [Decimal(value)]
        return
    with pytest.raises(DeltaError, match=rf"Failed to parse value '{read}' as 'decimal\(10,9\)'"):
        write_deltalake(str(tmp_path), rows, partition_by=["d"])
