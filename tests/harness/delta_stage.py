"""A stager without a JVM that lays out files as Spark does: escaped Hive folders, and files without the partition columns.

Also reads a Delta table through delta-rs, with sorted rows, so that two tables can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyarrow import compute, parquet

from sparkonce.sink.staging import StagedRows

_ESCAPED = {chr(code) for code in range(32)} | set("\"#%'*/:=?\\\x7f{[]^")


def delta_stage(frame: pa.Table, folder: str, partition_by: Sequence[str] = ()) -> StagedRows:
    """A `Stager` for pyarrow tables: two files per partition, so that half a result can be distinguished from a whole one."""
    for part, rows in _partitions(frame, list(partition_by)):
        path = Path(folder.removeprefix("file://"), *part)
        path.mkdir(parents=True, exist_ok=True)
        bare = rows.drop_columns(list(partition_by))
        half = (bare.num_rows + 1) // 2
        for number, piece in enumerate((bare.slice(0, half), bare.slice(half))):
            if piece.num_rows or not partition_by:
                parquet.write_table(piece, path / f"part-{number:05d}.parquet")
    return StagedRows(rows=frame.num_rows, data_schema=Schema.from_arrow(frame.schema).to_json(), application="arrow")


def escaped(text: str) -> str:
    """The folder name that Spark gives to a value."""
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)


def _partitions(frame: pa.Table, columns: list[str]) -> list[tuple[list[str], pa.Table]]:
    found: list[tuple[list[str], pa.Table]] = [([], frame)]
    for column in columns:
        deeper = []
        for path, rows in found:
            for value in rows[column].unique():
                mask = compute.is_null(rows[column]) if value.as_py() is None else compute.equal(rows[column], value)
                text = "__HIVE_DEFAULT_PARTITION__" if value.as_py() is None else escaped(str(value.as_py()))
                deeper.append(([*path, f"{escaped(column)}={text}"], rows.filter(mask)))
        found = deeper
    return found


def rows_in(table: Path) -> list[dict[str, Any]]:
    """Every row that a reader of the table sees."""
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def numbers_in(table: Path, version: int | None = None) -> list[int]:
    """The numbers of tables with a column `n`."""
    shown = DeltaTable(str(table), version=version).to_pyarrow_table()
    return sorted(cast("list[int]", shown["n"].to_pylist()))


def entries(table: Path) -> list[list[dict[str, Any]]]:
    """Entries of the log, from the first existing one to the last."""
    return [
        [json.loads(line) for line in path.read_bytes().splitlines()]  # texts may hold other ends of lines
        for path in sorted((table / "_delta_log").glob("*.json"))
    ]


def transactions(table: Path) -> list[dict[str, Any]]:
    """Every `txn` of the log, in order."""
    return [action["txn"] for entry in entries(table) for action in entry if "txn" in action]
