"""Processes that write to one Delta table at the same time: those of sink_attempts, on the other kind of output, and strangers.

A stranger is another engine that knows nothing of us: delta-rs's own writer, which appends rows and writes checkpoints in between.
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
from sparkonce.sink import delta_log
from sparkonce.sink.open import Declared, open_sink
from sparkonce.sink.protocol import Sink

PATIENCE = 60.0
"""Seconds for somebody to create the table."""
STRANGE = -1
"""Rows of strangers are below zero."""


def sink_in(folder: str) -> Sink:
    """Of the table in a test's folder."""
    return sink_at(f"{folder}/table")


def sink_at(table: str) -> Sink:
    """Without fsync: processes die in these tests, the machine does not."""
    return open_sink(Declared(name="orders", kind="delta", location=table), base=None, stage=arrow_stage, durable=False)


def start(plan: Plan) -> ForkServerProcess:
    """A process that carries the plan out on a Delta table."""
    return _spawn(carry_out, plan)


def start_stranger(folder: str, rows: int) -> ForkServerProcess:
    """A process that appends `rows` rows, one commit each, once there is a table."""
    return _spawn(append, folder, rows)


def carry_out(plan: Plan) -> None:
    """In the child, whose memory is its own: the attempts open Delta sinks."""
    sink_attempts.sink_at = sink_at
    sink_attempts.carry_out(plan)


def append(folder: str, rows: int) -> None:
    """In the child."""
    table = Path(folder, "table")
    assert_eventually((table / delta_log.entry_path(0)).exists, PATIENCE)
    number = 0
    while number < rows:
        with contextlib.suppress(CommitFailedError):  # others were quicker, more often than the library tries
            write_deltalake(str(table), table_of(STRANGE - number), mode="append")
            number += 1
            if number % 10 == 0:
                DeltaTable(str(table)).create_checkpoint()


def _spawn(target: object, *arguments: object) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    # Imported and never used there: delta-rs's threads would not survive the fork.
    context.set_forkserver_preload(["harness.delta_attempts"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    process = context.Process(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]  # any callable
    process.start()
    return process
