"""Unmodified Spark before a catalog that loses replies, with the proxy between them: every statement succeeds, its rows are there once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from harness import effort
from harness.catalog_faults import CatalogFault, FaultyCatalog, proxy
from harness.iceberg_rest import KEYED_RUNTIME, spark_runtime
from harness.spark import facts_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

APPLICATIONS = 2
ROUNDS = effort.size("statements on a catalog")


def every(nth: int, struck: list[float]) -> Callable[[str, str], CatalogFault | None]:
    """A plan that strikes every nth commit or create, with each fault in turn."""

    def plan(_: str, path: str) -> CatalogFault | None:
        if "/tables" not in path:
            return None
        struck.append(time.monotonic())
        return list(CatalogFault)[len(struck) // nth % 3] if len(struck) % nth == 0 else None

    return plan


def test_two_applications_write_every_row_once(
    tmp_path: Path, upstream: FaultyCatalog, server: str, say: Callable[[str], None]
) -> None:
    """Appends to one table by both, a table and overwrites of their own; every third request meets a lost reply, a false 503 or a broken
    connection. No statement fails, no row is missing or doubled, and every file of the tables is there."""
    jar = str(spark_runtime(KEYED_RUNTIME))
    direct = RestCatalog("direct", uri=server)
    direct.create_namespace("sales")
    direct.create_table("sales.shared", pa.schema([("n", pa.int64())]), properties={"commit.retry.num-retries": "20"})
    struck: list[float] = []
    upstream.plan = every(3, struck)
    for number in range(APPLICATIONS):
        (tmp_path / str(number)).mkdir()
    with proxy(tmp_path, upstream.url) as (url, _), ThreadPoolExecutor(APPLICATIONS) as pool:
        told = list(
            pool.map(
                lambda number: facts_of(
                    "harness.keyed_spark", tmp_path / str(number), jar, url, str(number), str(ROUNDS)
                ),
                range(APPLICATIONS),
            )
        )
    assert [each["failed"] for each in told] == [[]] * APPLICATIONS
    shared = sorted(direct.load_table("sales.shared").scan().to_arrow()["n"].to_pylist())
    assert shared == [number * 1000 + each for number in range(APPLICATIONS) for each in range(ROUNDS)]
    for number in range(APPLICATIONS):
        own = direct.load_table(f"sales.own{number}").scan().to_arrow()["n"].to_pylist()
        assert own == [ROUNDS - 1, ROUNDS - 1]
    say(f"{APPLICATIONS * ROUNDS * 2} statements, {len(struck)} requests, {len(struck) // 3} faults")
