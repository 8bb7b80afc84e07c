"""delta-rs in place of Spark's Delta engine, for native blocks without a JVM.

It commits with the identifier in the session's settings as Delta does: skipped if the table has that version, refused if another entry
moved the identifier meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import CommitProperties, Transaction

from sparkonce.driver.statements import APPLICATION, METADATA, VERSION, Statement


class Conf:
    def __init__(self) -> None:
        self.values: dict[str, str] = {"spark.user": "kept"}

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        self.values.pop(name, None)


class Described:
    def __init__(self, identity: str) -> None:
        self._identity = identity

    def select(self, *_: str) -> Described:
        return self

    def first(self) -> dict[str, str]:
        return {"format": "delta", "id": self._identity}


class Engine:
    """A session whose statements append one number to a table."""

    def __init__(self, table: Path) -> None:
        self.table, self.conf, self.ran = table, Conf(), list[int]()
        self.rows: Callable[[int], pa.Table] = rows_of

    def createDataFrame(self, rows: list[Any], schema: str) -> tuple[list[Any], str]:  # noqa: N802 - Spark's name
        return rows, schema

    def insert(self, number: int, *, during: Callable[[], object] = lambda: None, empty: bool = False) -> None:
        """One statement, as Delta's engine runs it. during: happens between its reading of the table and its commit."""
        self.ran.append(number)
        application, version = self.conf.values[APPLICATION], int(self.conf.values[VERSION])
        read = DeltaTable(str(self.table))
        if (read.transaction_version(application) or 0) >= version:
            return
        during()
        moved = DeltaTable(str(self.table)).transaction_version(application)
        if moved != read.transaction_version(application):
            raise RuntimeError("ConcurrentTransactionException")
        if empty:
            return
        properties = CommitProperties(
            app_transactions=[Transaction(application, version)],
            custom_metadata={"userMetadata": self.conf.values[METADATA]},
        )
        write_deltalake(str(self.table), self.rows(number), mode="append", commit_properties=properties)

    def statement(self, number: int, *, kind: str = "INSERT", table: Path | None = None, **options: Any) -> Statement:
        session: Any = self
        where = table or self.table
        return Statement(
            session=session,
            kind=kind,
            table=str(where),
            identify=lambda: Described(str(DeltaTable(str(where)).metadata().id)),
            digest=f"{number:064x}",
            run=lambda: self.insert(number, **options),
        )


def rows_of(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def numbers(table: Path) -> list[int]:
    read: list[Any] = DeltaTable(str(table)).to_pyarrow_table()["n"].to_pylist()
    return sorted(read)
