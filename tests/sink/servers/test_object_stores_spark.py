"""A job on an S3-compatible server with Spark's own connector: written once, replayed, read with pruning, with nothing left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness import store_servers
from harness.patience import completed
from harness.spark import needed_java
from harness.store_parts import s3a_jars
from harness.store_servers import ACCESS, SECRET

pytestmark = pytest.mark.spark


def test_a_job_on_s3a(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark stages through S3A and obstore creates the slot at the same place; the ledger holds no credentials."""
    needed_java()
    s3a_jars()
    store_servers.no_proxy(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    with store_servers.versitygw(tmp_path) as server:
        server.use(monkeypatch)
        ledger = tmp_path / "ledger.db"
        command = [sys.executable, "-m", "harness.s3a_job", server.url("lakehouse/orders"), str(ledger), str(tmp_path)]
        done = completed(command, 240)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["replayed"] == [False, True]
    assert seen["ids"] == list(range(1, 40, 4))
    assert seen["counts"] == [40, 10]
    assert all(file.startswith("s3a://lake/lakehouse/orders/_data/") for file in seen["files"])
    assert "PartitionFilters: [isnotnull(so-group-kind" in seen["plan"]
    assert "ReadSchema: struct<id:bigint>" in seen["plan"]
    assert (seen["failed"], seen["late"], seen["swept"]) == (True, "FencedOff", 1), seen["left"]
    # S3A leaves empty directory markers, which only it can delete; of the files, only those of the committed write remain.
    data = [path for path, size in seen["left"] if path.startswith("_data/") and size > 0]
    assert len(data) == 4
    assert all(path.endswith(".parquet") for path in data), data
    assert len({path.split("/")[2] for path in data}) == 1, data
    assert seen["inventory"] == [1, 1, 4]
    assert (seen["several"], seen["rows"]) == ("Committed", 40 + 3 + 3)
    for file in filter(Path.is_file, tmp_path.glob("ledger.db*")):
        held = file.read_bytes()
        assert SECRET.encode() not in held
        assert ACCESS.encode() + b"\0" not in held
        assert server.address.encode() not in held
