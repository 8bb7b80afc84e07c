"""Processes that write to one Delta table at the same time: those of sink_attempts on another kind of output, and foreign writers.

A foreign writer is another engine that knows nothing of sparkonce: delta-rs's own writer, which appends rows and writes checkpoints.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from harness import sink_attempts
from harness.arrow_stage import arrow_stage, table_of
from harness.eventually import assert_eventually
from harness.sink_attempts import Plan
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared, Sink

PATIENCE = 60.0
"""Seconds until the table must exist."""
STRANGE = -1
"""Rows of foreign writers are negative."""


def sink_in(folder: str) -> Sink:
    """The sink of the table in a test's folder."""
    return sink_at(f"{folder}/table")


def sink_at(table: str) -> Sink:
    """A sink without fsync: processes die in these tests, the machine does not."""
    return open_sink(Declared(name="orders", kind="delta", location=table), base=None, stage=arrow_stage, durable=False)


def start(plan: Plan) -> ForkServerProcess:
    """Starts a process that carries out the plan on a Delta table."""
    return _spawn(carry_out, plan)


def start_stranger(folder: str, rows: int) -> ForkServerProcess:
    """Starts a process that appends `rows` rows, one commit each, once the table exists."""
    return _spawn(append, folder, rows)


def carry_out(plan: Plan) -> None:
    """Runs in the child process: makes the attempts open Delta sinks."""
    sink_attempts.sink_at = sink_at
    sink_attempts.carry_out(plan)


def append(folder: str, rows: int) -> None:
    """Runs in the child process: appends rows."""
    table = Path(folder, "table")
    assert_eventually((table / delta_log.entry_path(0)).exists, PATIENCE)
    number = 0
    while number < rows:
        with contextlib.suppress(CommitFailedError):  # other writers were faster, more often than the library retries
            write_deltalake(str(table), table_of(STRANGE - number), mode="append")
            number += 1
            if number % 10 == 0:
                DeltaTable(str(table)).create_checkpoint()


def _spawn(target: object, *arguments: object) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    # Imported ahead and never used in the server: delta-rs's threads would not survive the fork.
    context.set_forkserver_preload(["harness.delta_attempts"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    process = context.Process(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]  # any callable
    process.start()
    return process
