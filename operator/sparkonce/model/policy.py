"""What is to happen around a run: duplicates, unknown outcomes, retries, how long things are kept.

Policies are no part of what the job *is*: two requests that differ only here are the same job. They therefore never enter the
fingerprint, and the leader's policies rule.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt, model_validator

from sparkonce.model.duration import Duration
from sparkonce.model.part import Part
from sparkonce.model.problems import refuse

HOUR = 3600.0
DAY = 24 * HOUR


class OnDuplicate(StrEnum):
    ATTACH = "Attach"
    REJECT = "Reject"


class OnMismatch(StrEnum):
    REJECT = "Reject"
    SUPERSEDE = "Supersede"


class OnFinalized(StrEnum):
    REPLAY = "Replay"
    RERUN_IF_FAILED = "RerunIfFailed"


class OnUnknown(StrEnum):
    HOLD = "Hold"
    RETRY = "Retry"
    FAIL = "Fail"


class OnDelete(StrEnum):
    STOP = "Stop"
    DETACH = "Detach"


class Backoff(Part):
    initial: Duration = 10.0
    """Wait before the second attempt; it doubles, with jitter, for each further one."""
    max: Duration = 300.0
    """The longest wait between two attempts."""

    @model_validator(mode="after")
    def _ordered(self) -> Backoff:
        if self.initial > self.max:
            refuse("Backoff", [(("initial",), "must not be longer than spec.retry.backoff.max")])
        return self


class Retry(Part):
    max_attempts: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    """Attempts that count within one generation: 3 where outputs are declared, 1 where the job is opaque."""
    backoff: Backoff = Backoff()
    """How long to wait between attempts."""


class Retention(Part):
    """How long a finalized record is remembered: after that the same key is a new job."""

    succeeded: Duration = 30 * DAY
    """From the moment it succeeded."""
    failed: Duration = 7 * DAY
    """From the moment it failed or was cancelled."""


class ApplicationTTL(Part):
    """How long the Spark application of a finalized job stays, for its logs and its page."""

    succeeded: Duration = HOUR
    """After it succeeded."""
    failed: Duration = 24 * HOUR
    """After it failed or was cancelled."""
