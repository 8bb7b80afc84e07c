"""Drivers for the fake: code that a `Script` runs with the environment of a real driver.

`writes_outputs` is a real driver without a JVM: it reads its assignment and writes every declared output through `sparkonce.sink`, with
the real slots, fences and refusals. The caller chooses its control channel; the silent one is a driver that reaches no gateway, which is
enough for outputs without a transaction.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.arrow_stage import arrow_stage, table_of
from harness.kubeflow.script import Code, Driver
from sparkonce.driver.channel import Channel
from sparkonce.driver.context import Job
from sparkonce.driver.current import assignment_of, expected_of
from sparkonce.model.record import ENVIRONMENT, Assignment, Intent
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.open import sinks_of
from sparkonce.store.protocol import Refused, Sealed

POLL = 0.05
"""Poll interval in seconds for a child process and for the deletion of its pod."""


class SilentChannel:
    """The channel of a driver that reaches no gateway: its lease is never renewed, its reports are lost, and it may not commit a
    transaction."""

    def renew(self, progress: Mapping[str, Any]) -> bool:
        return True

    def report(self, reporter: str, kind: str, body: Mapping[str, Any], *, patience: float | None = None) -> bool:
        return True

    def seal(self, intent: Intent) -> Sealed | Refused:
        raise NotImplementedError("a transaction needs a channel that reaches the ledger")


def assignment_in(driver: Driver) -> Assignment:
    return assignment_of(driver.environment[ENVIRONMENT])


def job_of(driver: Driver, channel: Channel | None = None) -> Job:
    """The Job that `sparkonce.current()` gives to a driver process; its heartbeat is not started."""
    assignment = assignment_in(driver)
    job = IdempotentJob.of(assignment.spec.job)
    return Job(
        assignment,
        sinks_of(job, assignment.spec.base, stager=arrow_stage),
        channel or SilentChannel(),
        expected=expected_of(job),
    )


def writes_outputs(*numbers: int, channel: Callable[[Driver], Channel] | None = None) -> Code:
    """Writes these numbers as the rows of every declared output. Fenced and KeyConflict give exit code 1, with the error in `Run.said`."""

    def code(driver: Driver) -> int:
        job = job_of(driver, channel(driver) if channel else None)
        for output in job.outputs:
            job.write(table_of(*(numbers or (1, 2, 3))), output)
        return 0

    return code


def waits_for(event: threading.Event, then: Code | None = None) -> Code:
    """Runs until the test sets the event, even if its pod is deleted: a frozen driver that wakes up again."""

    def code(driver: Driver) -> int | None:
        event.wait()
        return then(driver) if then else 0

    return code


def waits_unless_stopped(event: threading.Event) -> Code:
    """Runs until the test sets the event; ends by SIGTERM if its pod is deleted first."""

    def code(driver: Driver) -> int:
        while not event.wait(POLL):
            if driver.stop.is_set():
                return 143
        return 0

    return code


def runs_until_stopped(driver: Driver) -> int:
    """A driver that never ends by itself."""
    driver.stop.wait()
    return 143


def settles(store: str, log: Path) -> Code:
    """A settle run: our entry point as a process with direct access to this ledger; the operator's own way there is the gateway."""
    run_it = [sys.executable, "-m", "sparkonce.driver.settle"]

    def code(driver: Driver) -> int | None:
        told = assignment_in(driver).model_copy(update={"store": store, "gateway": ""}).dump()
        return runs(run_it, log)(replace(driver, environment={**driver.environment, ENVIRONMENT: json.dumps(told)}))

    return code


def runs(command: Sequence[str], log: Path) -> Code:
    """Runs a process with the container's environment over ours; it gets SIGTERM when its pod is deleted."""

    def code(driver: Driver) -> int:
        with log.open("ab") as output:
            child = subprocess.Popen(
                list(command),
                env={**os.environ, **driver.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            while child.poll() is None:
                if driver.stop.wait(POLL):
                    child.terminate()
                    child.wait()
            return child.returncode if child.returncode >= 0 else 128 - child.returncode

    return code
