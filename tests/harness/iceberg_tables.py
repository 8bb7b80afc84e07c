"""Iceberg tables of tests: a SQL catalog in one SQLite file, or whatever else a test names, and what stands in a table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from harness.arrow_stage import arrow_stage, table_of
from sparkonce.blocking import run
from sparkonce.sink import layout
from sparkonce.sink.iceberg import IcebergTable, open_iceberg
from sparkonce.sink.iceberg_catalog import Place
from sparkonce.sink.protocol import Committed, OnRerun, SinkKey, Slot, slot_digest
from sparkonce.sink.staging import Stager

CATALOG = "lake"
TABLE = "sales.orders"
NUMBERS = Schema(NestedField(1, "n", LongType()))
"""Of tables that somebody else makes."""
_PREFIX = f"PYICEBERG_CATALOG__{CATALOG.upper()}__"


def sql_catalog(folder: Path | str) -> dict[str, str]:
    """The environment in which the catalog is a SQLite file in the folder, with its warehouse beside it."""
    return {
        f"{_PREFIX}TYPE": "sql",
        f"{_PREFIX}URI": f"sqlite:///{folder}/catalog.db?timeout=30",
        f"{_PREFIX}WAREHOUSE": f"file://{folder}/warehouse",
    }


def rest_catalog(uri: str) -> dict[str, str]:
    return {f"{_PREFIX}TYPE": "rest", f"{_PREFIX}URI": uri}


def use(environment: Mapping[str, str]) -> None:
    """For a process that has only one catalog: children of tests."""
    os.environ.update(environment)


def opened(
    *, stage: Stager | None = arrow_stage, on_rerun: OnRerun = OnRerun.REPLACE, table: str = TABLE
) -> IcebergTable:
    """As a driver opens it, without fsync; `stage=None` is Spark."""
    location = f"{CATALOG}.{table}"
    return open_iceberg(location, name="orders", field="orders", on_rerun=on_rerun, stage=stage, durable=False)


def catalog() -> Catalog:
    """A client of its own, as any other user of the table has."""
    return Place(CATALOG, ()).catalog


def table(name: str = TABLE) -> Table:
    return catalog().load_table(name)


def rows(column: str = "n", name: str = TABLE) -> list[Any]:
    """What pyiceberg reads."""
    return sorted(cast("list[Any]", table(name).scan().to_arrow()[column].to_pylist()))


def tags(name: str = TABLE) -> set[str]:
    return {each for each in table(name).metadata.refs if each != "main"}


def folder_of(name: str = TABLE) -> Path:
    """Of a table that lies in a local folder."""
    return Path(table(name).location().removeprefix("file://"))


def staged(sink: IcebergTable, key: SinkKey, token: int, *numbers: int, fingerprint: str = "f") -> Slot:
    return sink.stage(table_of(*numbers), key, token, fingerprint=fingerprint)


def written(sink: IcebergTable, key: SinkKey, token: int, *numbers: int) -> Slot:
    slot = staged(sink, key, token, *numbers)
    assert run(sink.commit(key, slot)) == Committed(slot)
    return slot


def generation(key: SinkKey, number: int) -> SinkKey:
    return key.model_copy(update={"generation": number})


def digest_of(slot: Slot) -> str:
    return slot_digest(layout.encode(slot))


def folders() -> list[Path]:
    return sorted(folder_of().glob("data/so-*/*"))
