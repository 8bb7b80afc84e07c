"""Scenes whose jobs write an Iceberg table by Spark's own engine, with a catalog server for all of a module's tests."""

from __future__ import annotations

import shutil

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField

from crash.scene import Scene
from harness.iceberg_rest import EXTENSIONS, lake_at
from harness.iceberg_tables import catalog

NAME = "sales.orders"
OLD = dict.fromkeys(range(10), 0)
"""Value by id: the rows of the table before the job."""


def engine(jar: str, url: str) -> dict[str, str]:
    """Settings of a session with Iceberg's engine and this catalog."""
    return {
        "spark.jars": jar,
        "spark.sql.extensions": EXTENSIONS,
        **lake_at(url),
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }


def drop(*names: str) -> None:
    """Drops those of the tables that exist, with their files. What writes them must have ended."""
    for name in names:
        if catalog().table_exists(name):
            location = catalog().load_table(name).location()
            catalog().drop_table(name)
            shutil.rmtree(location.removeprefix("file://"), ignore_errors=True)


class Tables(Scene):
    """A scene whose job writes an Iceberg table; it exists before."""

    def create(self) -> None:
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", IntegerType()))
        catalog().create_namespace_if_not_exists("sales")
        catalog().create_table(NAME, schema)
        self.add(*OLD, value=0)

    def add(self, *ids: int, value: int = 1) -> None:
        """What another writer appends."""
        rows = pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids), pa.int32())})
        self.table().append(rows)

    def table(self, name: str = NAME) -> Table:
        return catalog().load_table(name)

    def read(self, name: str = NAME, *columns: str) -> list[tuple[int, ...]]:
        """Rows of `main`, as pyiceberg reads them."""
        found = self.table(name).scan().to_arrow().to_pylist()
        return sorted(tuple(row[each] for each in columns or ("id", "v")) for row in found)

    def commits(self, name: str = NAME) -> int:
        """Commits of the key, as its evidence counts them."""
        said = [each.summary for each in self.table(name).metadata.snapshots]
        return sum(each is not None and "sparkonce.snapshot" in each.additional_properties for each in said)

    def branches(self, name: str = NAME) -> list[str]:
        return [each for each in self.table(name).metadata.refs if each.startswith("idem-wap.")]
