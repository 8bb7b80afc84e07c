"""Starts the fake as a separate process."""

from __future__ import annotations

import dataclasses
import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.apiserver import ADMIN, START_TIMEOUT, Cluster
from harness.child import Child
from harness.kubeflow.script import Script

TESTS = Path(__file__).resolve().parents[2]


@contextmanager
def kubeflow_process(
    cluster: Cluster, namespace: str, *, script: Script | None = None, least: bool = False
) -> Iterator[Child]:
    """`script` applies to every application; it has no code. `least`: for benchmarks, only the writes that the operator waits for."""
    told = dataclasses.asdict(script or Script())
    assert told.pop("code") is None, "code does not travel to another process; use FakeKubeflow"
    command = [sys.executable, "-m", "harness.kubeflow", "--server", cluster.url, "--ca", str(cluster.certificates.ca)]
    command += [
        "--token",
        ADMIN,
        "--namespace",
        namespace,
        "--script",
        json.dumps(told),
        *(["--least"] if least else []),
    ]
    log = cluster.folder / f"kubeflow-{uuid.uuid4().hex[:8]}.log"
    child = Child("kubeflow", command, log, {"PYTHONPATH": str(TESTS)})
    child.start()
    try:
        child.until(lambda: "ready" in log.read_text(), START_TIMEOUT)
        yield child
    finally:
        child.kill()
