"""Processes that write to one table at the same time, and the answers that they got.

Each process runs attempts of one token over many keys, as a driver would: look, stage (pyarrow instead of Spark), commit; some fence
first, as an owner would; some discard, abort or sweep. Each answer of a verb is appended to a file in one write, so that a kill loses at
most the last one. Processes are forked from a server that has everything imported: a start costs milliseconds, so hundreds can be killed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pandas  # noqa: F401, ICN001 - pyarrow imports it at its first table: better once, before the fork
import pytest

from harness.arrow_stage import arrow_stage, days_of, stage_by_day, table_of
from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.errors import Fenced, OutputUnavailable, SparkonceError
from sparkonce.model.spec import WriteMode
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared, Sink, SinkKey, Slot, WriteOptions
from sparkonce.sink.staging import Stager

FINGERPRINT = "f"
ROWS = 4
"""Rows of each key: ten times its number, and the three numbers after it."""
SWEEPS = 3
"""Times a sweep is tried; operators repeat it, too."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one process."""

    folder: str
    """Contains the answers and the log of failpoints, and the table unless `table` is given."""
    process: str
    token: int
    keys: tuple[str, ...]
    verb: str = "attempt"
    """attempt (a random mixture), commit, fence, abort or sweep."""
    seed: int = 0
    failpoints: str = ""
    table: str = ""
    """URL or path of the table."""
    environment: tuple[tuple[str, str], ...] = ()
    """Environment of the process, with the address of its store. The fork server's own environment may be out of date."""
    mode: WriteMode | None = None
    """Of its writes."""
    days: tuple[str, ...] = ()
    """A row for each of these days, by which the table is partitioned; empty: `rows_of`."""
    doom: tuple[str, float] | None = None
    """A key, and the seconds after its beginning at which the process is killed unless something else kills it first."""

    @property
    def answers(self) -> str:
        return f"{self.folder}/answers-{self.process}"

    @property
    def hits(self) -> str:
        return f"{self.folder}/hits"


def start(plan: Plan) -> ForkServerProcess:
    """Starts a process that carries out the plan."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.sink_attempts"])
    with pytest.MonkeyPatch.context() as patch:
        # Before Python 3.13 the server does not get our sys.path and would preload nothing.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    process = context.Process(target=carry_out, args=(plan,), daemon=True)
    process.start()
    return process


def sink_in(folder: str) -> Sink:
    """The sink of the table in a test's folder, as `sink_at`."""
    return sink_at(f"{folder}/table")


def sink_at(table: str) -> Sink:
    """A sink without fsync: processes die in these tests, the machine does not."""
    return _sink_at(table, arrow_stage)


def _sink_at(table: str, stage: Stager) -> Sink:
    output = Declared(name="orders", kind="slotLog", location=table)
    return open_sink(output, base=None, stage=stage, durable=False)


def sink_of(plan: Plan) -> Sink:
    """The sink that the plan's process writes to."""
    table = plan.table or f"{plan.folder}/table"
    return _sink_at(table, stage_by_day) if plan.days else sink_at(table)


def key_of(name: str) -> SinkKey:
    """Generation 1 of the key `k<number>`."""
    return SinkKey(key_hash=name, output="orders", generation=1)


def rows_of(name: str) -> list[int]:
    """Rows of a commit of the key."""
    return [int(name[1:]) * 10 + row for row in range(ROWS)]


def answers(plan: Plan) -> list[dict[str, Any]]:
    """The process's answers, in order."""
    file = Path(plan.answers)
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def carry_out(plan: Plan) -> None:
    """Runs in the child process: works on one key after the other, in the order of the plan."""
    os.environ.update(plan.environment)
    os.environ["SPARKONCE_FAILPOINTS"] = plan.failpoints
    os.environ["SPARKONCE_FAILPOINTS_LOG"] = plan.hits
    failpoints.reset()
    dice = random.Random(plan.seed)
    for name in keys_of(plan):
        _tell(plan, name, "begin", None)
        try:
            globals()[f"_{plan.verb}"](plan, name, sink_of(plan), dice)
        except OutputUnavailable:
            if "://" not in plan.table:
                raise
            _tell(
                plan, name, "unanswered", None
            )  # a server on a busy machine: nothing is proven, whatever became of the request


def keys_of(plan: Plan) -> Iterator[str]:
    """The plan's keys in order. A doomed process is killed before they end."""
    for name in plan.keys:
        if plan.doom and plan.doom[0] == name:
            death = threading.Timer(plan.doom[1], os.kill, (os.getpid(), signal.SIGKILL))
            death.daemon = True  # lets an error end the process
            death.start()
        yield name
    if plan.doom:
        threading.Event().wait()


def _tell(plan: Plan, name: str, what: str, slot: Slot | None) -> None:
    line = {
        "token": plan.token,
        "key": name,
        "what": what,
        "nonce": slot.nonce if slot else None,
        "at": time.monotonic(),
    }
    descriptor = os.open(plan.answers, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, json.dumps(line).encode() + b"\n")
    os.close(descriptor)


def _attempt(plan: Plan, name: str, sink: Sink, dice: random.Random) -> None:
    key = key_of(name)
    if dice.random() < 0.25:
        _fence(plan, name, sink, dice)
    if dice.random() < 0.5 and (found := run(sink.find(key))) is not None:
        _tell(plan, name, "found", found)
        return
    try:
        slot = staged(plan, name, sink)
    except (
        SparkonceError,
        OSError,
    ) as error:  # swept during the write, by a process that knew that it cannot be committed
        _tell(plan, name, "staging Fenced" if isinstance(error, Fenced) else "staging failed", None)
        return
    if dice.random() < 0.1:
        run(sink.discard(key, slot))
        return
    decision = run(sink.commit(key, slot))
    _tell(plan, name, type(decision).__name__, decision.slot)
    if dice.random() < 0.15:
        _tell(plan, name, "abort", run(sink.abort(key, slot)))
    if dice.random() < 0.2:
        _sweep(plan, name, sink, dice)


def staged(plan: Plan, name: str, sink: Sink) -> Slot:
    options = WriteOptions(mode=plan.mode, partition_by=("day",) if plan.days else ())
    frame = days_of(int(name[1:]), plan.days) if plan.days else table_of(*rows_of(name))
    return sink.stage(frame, key_of(name), plan.token, fingerprint=FINGERPRINT, options=options)


def _commit(plan: Plan, name: str, sink: Sink, dice: random.Random) -> None:
    decision = run(sink.commit(key_of(name), staged(plan, name, sink)))
    _tell(plan, name, type(decision).__name__, decision.slot)


def _fence(plan: Plan, name: str, sink: Sink, dice: random.Random) -> None:
    found = run(sink.fence(key_of(name), plan.token, fingerprint=FINGERPRINT, by=plan.process))
    _tell(plan, name, "fence found" if found else "fence none", found)


def _abort(plan: Plan, name: str, sink: Sink, dice: random.Random) -> None:
    _tell(plan, name, "abort", run(sink.abort(key_of(name), staged(plan, name, sink))))


def _sweep(plan: Plan, name: str, sink: Sink, dice: random.Random) -> None:
    for left in reversed(range(SWEEPS)):
        try:
            run(sink.sweep(key_of(name)))
            break
        except (
            OutputUnavailable
        ):  # versitygw refuses to remove a folder into which an attempt writes that has just woken up
            if left == 0:
                raise
    _tell(plan, name, "swept", None)
