"""Processes that write to one Iceberg table at the same time: `sink_attempts`, with another sink and a catalog of its own."""

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
"""A file in a plan's folder: where it is, the plan's processes use that REST catalog."""


def start(plan: Plan) -> ForkServerProcess:
    """A process that carries the plan out, on the table of the catalog in the plan's folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.iceberg_attempts", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # as in sink_attempts
        forkserver.ensure_running()
    process = context.Process(target=carry_out, args=(plan,), daemon=True)
    process.start()
    return process


def carry_out(plan: Plan) -> None:
    """The process."""
    url = Path(plan.folder, REST_URL)
    use(rest_catalog(url.read_text()) if url.exists() else sql_catalog(plan.folder))
    sink_attempts.sink_at = sink_at  # a process of ours: nobody else sees the change
    sink_attempts.carry_out(plan)


def sink_at(table: str) -> Sink:
    """One catalog per process, whatever the plan says of a table."""
    return opened()
