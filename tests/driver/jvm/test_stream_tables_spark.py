"""Streams into Delta and Iceberg tables with a real Spark whose driver is killed at several steps: every row once, as other readers
count."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from crash.scene import HERE, Scene
from driver.jvm.test_stream_spark import ROWS, files_in
from harness import iceberg_tables
from harness.patience import until_ended
from harness.spark import needed_java

pytestmark = pytest.mark.spark

BATCHES = 6
LONG = 600  # seconds for three JVMs, one after another, on a machine that others use
OUTPUTS: dict[str, dict[str, Any]] = {
    "delta": {"delta": {"path": "lake/a"}},
    "iceberg": {"iceberg": {"catalog": iceberg_tables.CATALOG, "table": iceberg_tables.TABLE}},
}


def shown(kind: str, scene: Scene) -> list[dict[str, Any]]:
    """The rows that another reader sees."""
    if kind == "delta":
        rows = DeltaTable(str(scene.folder / "lake" / "a")).to_pyarrow_table()
    else:
        rows = iceberg_tables.table().scan().to_arrow()
    return sorted(rows.to_pylist(), key=lambda row: int(row["n"]))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=pytest.mark.soak) if each == "delta" else each for each in OUTPUTS],  # as Iceberg's
)
def test_a_spark_driver_that_is_killed_at_steps_writes_every_row_once(
    kind: str, tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a commit of the table and before Spark records a batch: each row is there once, in one folder per partition value, and
    the result has the totals."""
    needed_java()
    catalog = iceberg_tables.sql_catalog(tmpfs_path)
    for name, value in catalog.items():
        monkeypatch.setenv(name, value)
    source = files_in(tmpfs_path / "in", BATCHES)
    spec = {"heartbeatTimeoutSeconds": 120, "outputs": [{"name": "a", **OUTPUTS[kind]}]}
    script = HERE / "stream_table_spark_job.py"
    scene = Scene(tmpfs_path, script=script, submit=None, spec=spec, environment=catalog)
    document = (tmpfs_path / "job.yaml").read_text()
    (tmpfs_path / "job.yaml").write_text(document.replace("- one\n", f"- {source}\n"))
    kills = {
        f"sink.{kind}.commit.after": "3*off->kill",
        "driver.stream.batch": "1*off->kill",
    }
    try:
        plan = ";".join(f"{at}={when}" for at, when in kills.items())
        assert until_ended(scene.run(plan), LONG) == 0, scene.last_output()

        assert {f"{point}=kill" for point in kills} <= set(scene.hits())
        (output,) = scene.said()["result"]["outputs"]
        assert (output["rows"], output["found"]) == (BATCHES * ROWS, "present")
        rows = shown(kind, scene)
        assert [row["n"] for row in rows] == list(range(BATCHES * ROWS))
        assert Counter(row["day"] for row in rows) == Counter(n % 2 for n in range(BATCHES * ROWS))
        assert rows[5]["at"].replace(tzinfo=UTC) == datetime.fromtimestamp(5, UTC)
    finally:
        scene.clear()
