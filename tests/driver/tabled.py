"""Streams into Delta and Iceberg tables: attempts whose outputs are such tables, and what other readers see in them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from driver.granted import Granted, granted
from harness import iceberg_tables
from harness.delta_stage import numbers_in

KINDS = ("delta", "iceberg")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the table; Iceberg's catalog is a file in the test's folder."""
    for name, value in iceberg_tables.sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    return str(request.param)


@pytest.fixture
def begin(kind: str, tmp_path: Path) -> Callable[..., Granted]:
    """An attempt whose outputs are tables of the kind."""

    def granted_with(*names: str, on_rerun: str = "Replace", **spec: Any) -> Granted:
        return granted(tmp_path, outputs=[output(kind, name, on_rerun) for name in names or ("orders",)], **spec)

    return granted_with


def output(kind: str, name: str, on_rerun: str = "Replace") -> dict[str, Any]:
    where = {"path": name} if kind == "delta" else {"catalog": iceberg_tables.CATALOG, "table": f"sales.{name}"}
    return {"name": name, kind: where, "onRerun": on_rerun}


def rows(attempt: Granted, name: str = "orders") -> list[int]:
    """As another reader of the table gets them."""
    if next(iter(attempt.sinks().values())).kind == "iceberg":
        if not iceberg_tables.catalog().table_exists(f"sales.{name}"):
            return []
        shown = iceberg_tables.table(f"sales.{name}")
        return iceberg_tables.rows(name=f"sales.{name}") if shown.schema().fields else []
    table = attempt.folder / name
    if not (table / "_delta_log").exists() or "n" not in {f.name for f in DeltaTable(str(table)).schema().fields}:
        return []
    return numbers_in(table)


def drop(attempt: Granted, name: str = "orders") -> None:
    """As somebody else does."""
    if next(iter(attempt.sinks().values())).kind == "iceberg":
        iceberg_tables.catalog().drop_table(f"sales.{name}")
    else:
        shutil.rmtree(attempt.folder / name)


def checkpoint_of(attempt: Granted) -> str:
    """One that stays when the table is dropped."""
    return str(attempt.folder / "checkpoint")
