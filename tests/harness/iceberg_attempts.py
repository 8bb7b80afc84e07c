"""Processes that write to one Iceberg table at the same time: `sink_attempts` with another sink and its own catalog."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from harness import sink_attempts
from harness.iceberg_tables import opened, rest_catalog, sql_catalog, use
from harness.sink_attempts import Plan
from sparkonce.sink.protocol import Sink

REST_URL = "rest-url"
"""A file in a plan's folder; if it exists, the plan's processes use the REST catalog at this URL."""


def start(plan: Plan) -> ForkServerProcess:
    """Starts a process that carries out the plan on the table of the catalog in the plan's folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.iceberg_attempts", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # as in sink_attempts
        forkserver.ensure_running()
    process = context.Process(target=carry_out, args=(plan,), daemon=True)
    process.start()
    return process


def carry_out(plan: Plan) -> None:
    """Runs in the child process."""
    url = Path(plan.folder, REST_URL)
    use(rest_catalog(url.read_text()) if url.exists() else sql_catalog(plan.folder))
    sink_attempts.sink_at = sink_at  # in a process of our own, so no other test sees the change
    sink_attempts.carry_out(plan)


def sink_at(table: str) -> Sink:
    """A sink on the process's one catalog, whatever table the plan names."""
    return opened()
