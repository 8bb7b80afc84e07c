"""`sparkonce run` of a job with a Delta and an Iceberg output, with real Spark: one effect each, whichever process dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from crash.scene import HERE, PATIENCE, ROWS, Scene

pytestmark = pytest.mark.spark

DELTA, ICEBERG = "delta", "iceberg"


class Tables(Scene):
    """A scene with two outputs of different kinds, each read by its own format's library."""

    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.folder / "lake" / DELTA))

    def iceberg(self) -> Table:
        return load_catalog("lake", **properties(self.folder)).load_table(f"sales.{ICEBERG}")

    def effects(self) -> tuple[int, int]:
        """The commits that added rows: entries of the Delta log, snapshots of the Iceberg table."""
        log = sorted((self.folder / "lake" / DELTA / "_delta_log").glob("*.json"))
        entries = [[json.loads(line) for line in path.read_text().splitlines()] for path in log]
        snapshots = [each.summary.additional_properties for each in self.iceberg().metadata.snapshots if each.summary]
        return (
            sum(any("add" in action for action in entry) for entry in entries),
            sum("sparkonce.nonce" in said and "sparkonce.snapshot" not in said for said in snapshots),
        )

    def check_tables(self) -> None:
        """Each output has its rows once, from one commit, and nothing else is staged."""
        assert _sorted(self.delta().to_pyarrow_table()["n"].to_pylist()) == list(range(ROWS))
        assert _sorted(self.iceberg().scan().to_arrow()["n"].to_pylist()) == list(range(ROWS, 2 * ROWS))
        assert self.effects() == (1, 1)


def _sorted(numbers: list[Any]) -> list[int]:
    return sorted(int(n) for n in numbers)


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": (folder / "warehouse").as_uri()}


def test_a_job_with_two_tables_is_killed_at_each_commit_run_again_and_replayed(tmpfs_path: Path) -> None:
    """Driver and runner die when one commit has taken effect unanswered, and again before the other commit is sent. The next run ends with
    the rows of both tables once, and the run after it gets the recorded result without starting Spark."""
    outputs = [
        {"name": DELTA, "delta": {"path": f"lake/{DELTA}"}},
        {"name": ICEBERG, "iceberg": {"catalog": "lake", "table": f"sales.{ICEBERG}"}},
    ]
    environment = {f"PYICEBERG_CATALOG__LAKE__{name.upper()}": value for name, value in properties(tmpfs_path).items()}
    spec = {"outputs": outputs, "heartbeatTimeoutSeconds": 10}
    script = HERE / "tables_spark_job.py"
    scene = Tables(tmpfs_path, script=script, submit=None, environment=environment, spec=spec)
    try:
        for point in ("sink.delta.commit.after", "sink.iceberg.commit.before"):
            scene.kill_at(point, patience=PATIENCE)

        said = scene.finish()
        assert said["phase"] == "Succeeded"
        scene.check_tables()
        made = scene.attempts_made()
        assert len(made) >= 3

        again = scene.finish(tries=1)
        assert (again["replayed"], again["result"]) == (True, said["result"])
        assert scene.attempts_made() == made
        scene.check_tables()
    finally:
        scene.clear()
