"""Processes that write streams to one Delta or Iceberg table: `stream_attempts` with another sink."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess

import pytest

from harness import delta_attempts, iceberg_attempts, sink_attempts, stream_attempts
from harness.iceberg_tables import sql_catalog, use
from harness.sink_attempts import Plan

OPEN = {"delta": delta_attempts.sink_at, "iceberg": iceberg_attempts.sink_at}


def start(kind: str, plan: Plan) -> ForkServerProcess:
    """Starts a process that carries out the plan on a table of this kind."""
    context = multiprocessing.get_context("forkserver")
    # Imported ahead and never used in the server: delta-rs's threads would not survive the fork.
    context.set_forkserver_preload(["harness.stream_tables", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # as in sink_attempts
        forkserver.ensure_running()
    process = context.Process(target=carry_out, args=(kind, plan), daemon=True)
    process.start()
    return process


def carry_out(kind: str, plan: Plan) -> None:
    """Runs in the child process, whose memory is its own."""
    use(sql_catalog(plan.folder))
    sink_attempts.sink_at = OPEN[kind]
    stream_attempts.carry_out(plan)
