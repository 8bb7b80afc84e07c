"""`current()`: from the environment of a driver process to the Job that its code writes through."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from sparkonce import failpoints
from sparkonce.driver.channel import channel_of
from sparkonce.driver.context import Job
from sparkonce.errors import AttemptEnded, InvalidInput, NotInJob, StoreUnavailable
from sparkonce.model.assignment import ENVIRONMENT, FOLDER_ENVIRONMENT, Assignment
from sparkonce.model.output import Expect
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.open import Declared, open_or_absent, open_sink
from sparkonce.sink.protocol import OnRerun

if TYPE_CHECKING:
    from sparkonce.sink.protocol import Sink
    from sparkonce.sink.staging import Stager

BEAT = 2.0
"""Seconds between heartbeats at most; well below any heartbeatTimeoutSeconds (1 is the least, a quarter of it is used then)."""
GATEWAY_BEAT = 5.0
"""The same through a gateway, which hears the drivers of a whole cluster."""

_current: Job | None = None


def current(*, stager: Stager | None = None) -> Job:
    """The attempt that this process was started for; the same object each time.

    NotInJob outside any attempt. AttemptEnded: the ledger has answered that the attempt is over, nothing it does can take effect.
    `stager` replaces the Spark half of a write (tests of drivers without Spark)."""
    global _current  # noqa: PLW0603 - one process is one attempt: a second Job would beat and lock twice
    if _current is None:
        _current = from_environment(os.environ, stager=stager)
    return _current


def from_environment(environment: Mapping[str, str], *, stager: Stager | None = None) -> Job:
    text = environment.get(ENVIRONMENT)
    if text is None:
        raise NotInJob(
            "sparkonce.current() works inside a job: start this script with `sparkonce run JOB.yaml`, "
            "or use `with sparkonce.job(KEY, outputs={...}) as job:` in a notebook"
        )
    assignment = assignment_of(text)
    if folder := environment.get(FOLDER_ENVIRONMENT):
        join(Path(folder), assignment)
    channel = channel_of(assignment, environment)
    spec = IdempotentJob.of(assignment.spec.job)
    timeout, longest = spec.spec.heartbeat_timeout(), GATEWAY_BEAT if assignment.gateway else BEAT
    job = Job(
        assignment,
        sinks_of(spec, assignment.spec.base, stager=stager),
        channel,
        interval=min(longest, timeout / 4) if timeout else longest,
        expected=expected_of(spec),
    )
    with contextlib.suppress(StoreUnavailable):  # silence proves nothing, and an attempt never ends for it
        if not job.channel.renew({}):
            raise AttemptEnded(
                f"attempt {assignment.attempt} of {assignment.key} is over; nothing it writes can be committed"
            )
    failpoints.hit("driver.current")
    job.heartbeat.start()
    return job


def assignment_of(text: str) -> Assignment:
    """InvalidInput: it is not what this version writes."""
    try:
        return Assignment.model_validate_json(text)
    except ValidationError:
        raise InvalidInput(
            f"{ENVIRONMENT} does not hold an assignment that this version reads; let `sparkonce run` of the same version start the job"
        ) from None


def join(folder: Path, assignment: Assignment) -> None:
    """Takes a shared lock of the attempt for the life of this process: the JVM that started us closed its own."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise AttemptEnded(
            f"the folder of attempt {assignment.attempt} of {assignment.key} is gone: {folder}"
        ) from None
    fcntl.flock(lock, fcntl.LOCK_SH)
    if (folder / "stopped").exists():
        raise AttemptEnded(f"attempt {assignment.attempt} of {assignment.key} was stopped before it began")


def expected_of(job: IdempotentJob) -> dict[str, Expect]:
    """What each declared output's commit must fulfil, by the output's name."""
    return {output.name: output.expect for output in job.resolved_outputs}


def sinks_of(job: IdempotentJob, base: str | None, *, stager: Stager | None = None) -> dict[str, Sink]:
    """The declared outputs, by name."""
    return {each.name: open_sink(each, base=base, stage=stager) for each in declared_of(job)}


def sinks_or_absent(job: IdempotentJob, base: str | None) -> dict[str, Sink]:
    """The same for whoever writes none of them: see `open_or_absent`."""
    return {each.name: open_or_absent(each, base=base) for each in declared_of(job)}


def declared_of(job: IdempotentJob) -> list[Declared]:
    return [
        Declared(name=each.name, kind=each.kind, location=each.location, on_rerun=OnRerun(each.on_rerun.value))
        for each in job.resolved_outputs
    ]
