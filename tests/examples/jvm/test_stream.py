"""The streaming example as a user runs it: one key per day, each sent twice, and a file that arrives in between."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from harness.patience import completed
from harness.spark import needed_java
from sparkonce.model import manifest

STREAM = Path(__file__).resolve().parents[3] / "examples" / "stream"
JOB_TIMEOUT = 300  # seconds; a job alone takes 10, and other tests may share the two cores


def test_the_job_file_is_a_valid_job_of_each_day() -> None:
    """The key names the day; the output is the Delta table that the script writes."""
    text = (STREAM / "job.yaml").read_text(encoding="utf-8")
    job = manifest.load(text, params={"day": "2024-05-01"}, source="job.yaml")
    assert job.spec.resource == "orders/2024-05-01"
    assert [(output.name, output.kind) for output in job.spec.outputs] == [("orders", "delta")]
    compile((STREAM / "job.py").read_text(encoding="utf-8"), "job.py", "exec")


@pytest.mark.spark
def test_each_day_writes_what_has_landed_since_and_every_file_once(tmp_path: Path) -> None:
    """Monday reads two files and is replayed when sent again; Tuesday, on the same checkpoint, reads the file that arrived since."""
    needed_java()
    folder = tmp_path / "stream"
    shutil.copytree(STREAM, folder, ignore=shutil.ignore_patterns("data"))

    monday = ask(folder, "2024-05-01")
    assert outcome(monday) == ("Succeeded", 4, {"batches": 2}, False)
    assert outcome(ask(folder, "2024-05-01")) == ("Succeeded", 4, {"batches": 2}, True)
    late = {"id": 5, "customer": "barbara", "amount": 1.0, "day": "2024-05-02"}
    (folder / "landing" / "0003.json").write_text(json.dumps(late))
    assert outcome(ask(folder, "2024-05-02")) == ("Succeeded", 1, {"batches": 1}, False)

    table = DeltaTable(str(folder / "data" / "orders")).to_pyarrow_table()
    assert sorted(row["id"] for row in table.to_pylist()) == [1, 2, 3, 4, 5]


def ask(folder: Path, day: str) -> dict[str, Any]:
    """Output of the command line for one day's job."""
    command = [
        sys.executable,
        "-m",
        "sparkonce",
        "run",
        "job.yaml",
        "--param",
        f"day={day}",
        "--store",
        "ledger.db",
        "--json",
    ]
    done = completed(command, JOB_TIMEOUT, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def outcome(told: dict[str, Any]) -> tuple[str, int, dict[str, Any], bool]:
    result = told["result"]
    return told["phase"], result["outputs"][0]["rows"], result["values"], told["replayed"]
