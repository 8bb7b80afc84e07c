"""A session of Spark without a JVM: pyiceberg plays its Iceberg engine, which writes to the branch in the session's settings."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException

from harness import iceberg_tables
from harness.iceberg_tables import catalog
from sparkonce.driver.branch import ShownTable
from sparkonce.driver.statements import Statement

WAP = "spark.wap.branch"


class Engine:
    """A session whose statements append one number to a table, on the branch of its settings."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {"spark.user": "kept"}
        self.ran: list[int] = []
        self.conf, self.sparkContext = self, SimpleNamespace(applicationId="app")
        self._jsparkSession = SimpleNamespace(equals=lambda _: True)

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        self.values.pop(name, None)

    def sql(self, text: str) -> Any:
        """It knows no Delta tables."""
        raise AnalysisException(f"cannot read {text}")

    def createDataFrame(self, rows: list[Any], schema: str) -> tuple[list[Any], str]:  # noqa: N802 - Spark's name
        return rows, schema

    def insert(self, number: int, table: str = iceberg_tables.TABLE) -> None:
        self.ran.append(number)
        iceberg_tables.table(table).append(pa.table({"n": pa.array([number], pa.int64())}), branch=self.values[WAP])

    def rewrite(self) -> None:
        rewritten = pa.table({"n": pa.array([10], pa.int64())})
        iceberg_tables.table().overwrite(rewritten, "n == 0", branch=self.values[WAP])

    def read(self, table: str = iceberg_tables.TABLE) -> list[int]:
        """What the session reads: its branch where the table has it, or else `main`."""
        found = iceberg_tables.table(table)
        ref = found.metadata.refs.get(self.values.get(WAP, ""))
        snapshot = None if ref is None else ref.snapshot_id
        return sorted(int(row["n"]) for row in found.scan(snapshot_id=snapshot).to_arrow().to_pylist())

    def statement(self, number: int, *, run: Callable[[], object] | None = None, **given: Any) -> Statement:
        session: Any = self
        known = {"kind": "INSERT", "table": iceberg_tables.TABLE, "digest": f"{number:064x}", **given}
        write = run or (lambda: self.insert(number, known["table"]))
        return Statement(session=session, identify=lambda: self.sql("DESCRIBE"), run=write, **known)


def look(_: object, table: str) -> ShownTable | None:
    """How Spark sees a table: what the catalog says."""
    name, _, branch = table.partition(".branch_")
    if not catalog().table_exists(name):
        return None
    found = iceberg_tables.table(name).metadata
    enabled = found.properties.get("write.wap.enabled") == "true"
    heads = {name: ref.snapshot_id for name, ref in found.refs.items()}
    return ShownTable(str(found.table_uuid), branch or None, enabled, heads.get, len(found.schema().fields))
