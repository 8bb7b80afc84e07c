"""`current()`: builds the `Job` of a driver process from its environment, joins its attempt's lock and starts the heartbeat."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pydantic import ValidationError

from sparkonce import failpoints
from sparkonce.driver.channel import channel_of
from sparkonce.driver.context import Job
from sparkonce.errors import AttemptEnded, InvalidInput, NotInJob, StoreUnavailable
from sparkonce.model.record import ENVIRONMENT, FOLDER_ENVIRONMENT, Assignment
from sparkonce.model.spec import Expect, IdempotentJob
from sparkonce.sink.open import sinks_of

if TYPE_CHECKING:
    from sparkonce.sink.staging import Stager

BEAT = 2.0
"""Maximum seconds between heartbeats. A shorter heartbeatTimeoutSeconds (minimum 1) lowers it to a quarter of that timeout."""
GATEWAY_BEAT = 5.0
"""The same through a gateway, which serves the drivers of a whole cluster."""

_current: Job | None = None


def current(*, stager: Stager | None = None) -> Job:
    """The attempt that this process was started for; the same object each time.

    stager: replaces Spark as the writer of files (tests of drivers without Spark).

    Raises:
        NotInJob: this process was not started for an attempt.
        AttemptEnded: the attempt is over; nothing it does can take effect.
        InvalidInput: the assignment cannot be read.
    """
    global _current  # noqa: PLW0603 - one process is one attempt: a second Job would beat and lock twice
    if _current is None:
        _current = from_environment(os.environ, stager=stager)
        _report_uncaught(_current)
    return _current


def _report_uncaught(job: Job) -> None:
    """Reports the exception that ends this program, before it is printed."""
    printed = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            job.report_uncaught(error)
        finally:
            printed(kind, error, trace)

    sys.excepthook = hook


def from_environment(environment: Mapping[str, str], *, stager: Stager | None = None) -> Job:
    """As `current`, for any environment and without keeping the job."""
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
        merged_on=merged_on(spec),
    )
    with contextlib.suppress(StoreUnavailable):  # silence proves nothing and never ends an attempt
        if not job.channel.renew({}):
            raise AttemptEnded(
                f"attempt {assignment.attempt} of {assignment.key} is over; nothing it writes can be committed"
            )
    failpoints.hit("driver.current")
    job.heartbeat.start()
    if assignment.gateway:
        atexit.register(job.last_beat)  # the JVM may outlive Python, and no thread of ours beats there
    return job


def assignment_of(text: str) -> Assignment:
    """Parses an assignment.

    Raises:
        InvalidInput: not an assignment of this release.
    """
    try:
        return Assignment.model_validate_json(text)
    except ValidationError:
        raise InvalidInput(
            f"{ENVIRONMENT} does not hold an assignment that this version reads; let `sparkonce run` of the same version start the job"
        ) from None


def join(folder: Path, assignment: Assignment) -> None:
    """Takes the attempt's shared lock for the life of this process: the JVM that started us closed its own.

    Raises:
        AttemptEnded: the attempt was stopped, or its folder is gone.
    """
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
    """`expect` of each declared output, by name."""
    return {output.name: output.expect for output in job.resolved_outputs}


def merged_on(job: IdempotentJob) -> dict[str, tuple[str, ...]]:
    """`on` of each declared output that has it, by name."""
    return {output.name: output.on for output in job.resolved_outputs if output.on is not None}
