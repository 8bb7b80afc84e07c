"""The audit on Spark: executors read what threads read, and the findings are an output like any other."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from audit.scene import Scene, kinds
from harness.patience import completed
from sparkonce.audit.entry import write
from sparkonce.audit.files import with_spark, with_threads
from sparkonce.audit.findings import Kind
from sparkonce.audit.inspection import Audit
from sparkonce.audit.places import open_place
from sparkonce.sink.open import sinks_of
from sparkonce.sink.slotlog.reader import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
EXAMPLE = Path(__file__).parents[3] / "examples" / "audit"
LIMIT = 180
"""Seconds for a job with its own JVM on a busy machine."""


def test_executors_find_what_threads_find(clean: Scene, spark: SparkSession) -> None:
    """Spark executors and threads report the same missing, truncated and corrupted files, whether they read the footers or whole files."""
    gone, cut, rotten = (clean.files(job)[0] for job in clean.written[:3])
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-5])
    data = bytearray(rotten.read_bytes())
    data[8] ^= 0xFF
    rotten.write_bytes(data)
    for deep, found in ((False, 2), (True, 3)):
        readers = with_threads(open_place, deep=deep), with_spark(spark, open_place, deep=deep)
        by = [Audit(store=clean.store, read_files=reader, deep=deep).run().findings for reader in readers]
        assert by[0] == by[1]
        assert len(by[1]) == found


def test_findings_are_an_output(clean: Scene, spark: SparkSession) -> None:
    """An audit's findings are written through sparkonce: read back they equal the report, and the table of findings audits clean."""
    clean.files(clean.written[0])[0].unlink()
    report = clean.audit()
    auditor = clean.granted("audit", "findings")
    job = auditor.job(sinks=sinks_of(auditor.prepared.job, str(clean.folder)))
    write(job, spark, report, "findings")
    clean.finalize(auditor)
    rows = [row.asDict() for row in read(spark, clean.table("findings")).collect()]
    assert [(row["kind"], row["severity"], row["subject"]) for row in rows] == [
        (str(each.kind), str(each.severity), each.subject) for each in report.findings
    ]
    assert kinds(clean.audit()) == [Kind.MISSING_FILE]


@pytest.mark.slow
def test_the_example_runs_once_a_day(tmp_path: Path) -> None:
    """The example's YAML runs as a job: it audits the ledger that records it, a duplicate gets its recorded values, and its table has no
    row, since there is no finding."""
    shutil.copytree(EXAMPLE, tmp_path / "audit")
    environment = {**os.environ, "SPARKONCE_STORE": str(tmp_path / "ledger.db"), "PYSPARK_PYTHON": sys.executable}

    def run_example() -> dict[str, Any]:
        import json

        command = [sys.executable, "-m", "sparkonce", "run", "audit/audit.yaml", "--param", "DAY=2026-11-21", "--json"]
        done = completed(command, LIMIT, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    first, again = run_example(), run_example()
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["result"]["values"] == again["result"]["values"]
    assert first["result"]["values"]["clean"] is True
    assert first["result"]["outputs"][0]["rows"] == 0
