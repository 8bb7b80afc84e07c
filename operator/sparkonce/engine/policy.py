"""What a job's spec says about deciding, as plain values: policies, limits and the outputs to look at. Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Self

from sparkonce.model.policy import OnDelete, OnDuplicate, OnFinalized, OnMismatch, OnUnknown
from sparkonce.model.spec import HEARTBEAT_TIMEOUT, JobSpec


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Times in seconds."""

    declared: bool
    """The job declares outputs: its end is read from them, never from an exit code."""
    max_attempts: int = 3
    backoff_initial: float = 10.0
    backoff_max: float = 300.0
    on_duplicate: OnDuplicate = OnDuplicate.ATTACH
    on_mismatch: OnMismatch = OnMismatch.REJECT
    on_finalized: OnFinalized = OnFinalized.REPLAY
    on_unknown: OnUnknown = OnUnknown.HOLD
    start_timeout: float = 1800.0
    """Before the driver's first sign of life."""
    active_deadline: float | None = None
    """From the opening of the generation, all its attempts together."""
    heartbeat_timeout: float | None = None
    """None: a silent driver is never replaced for it (opaque jobs have no heartbeat)."""
    stop_timeout: float = 120.0
    retention_succeeded: float = 30 * 86400.0
    retention_failed: float = 7 * 86400.0
    suspend: bool = False
    on_delete: OnDelete = OnDelete.STOP
    application_ttl_succeeded: float = 3600.0
    application_ttl_failed: float = 86400.0
    object_ttl: float | None = None
    """After its end the object itself is deleted (ttlSecondsAfterFinished)."""

    @classmethod
    def of(cls, spec: JobSpec, *, heartbeat_timeout: int = HEARTBEAT_TIMEOUT) -> Self:
        """The effective values of a spec; `heartbeat_timeout` is this environment's default, for jobs that declare outputs."""
        return cls(
            declared=not spec.opaque,
            max_attempts=spec.max_attempts,
            backoff_initial=spec.retry.backoff.initial,
            backoff_max=spec.retry.backoff.max,
            on_duplicate=spec.on_duplicate,
            on_mismatch=spec.on_mismatch,
            on_finalized=spec.on_finalized,
            on_unknown=spec.on_unknown,
            start_timeout=spec.start_timeout_seconds,
            active_deadline=spec.active_deadline_seconds,
            heartbeat_timeout=spec.heartbeat_timeout(heartbeat_timeout),
            stop_timeout=spec.stop_timeout_seconds,
            retention_succeeded=spec.retention.succeeded,
            retention_failed=spec.retention.failed,
            suspend=spec.suspend,
            on_delete=spec.on_delete,
            application_ttl_succeeded=spec.application_ttl.succeeded,
            application_ttl_failed=spec.application_ttl.failed,
            object_ttl=spec.ttl_seconds_after_finished,
        )

    def delay(self, attempts: int, *, nonce: str) -> float:
        """Seconds before the attempt that follows `attempts` counted ones: doubled each time, capped, less up to 10 % of jitter drawn from
        the ended attempt's nonce, so that jobs which failed together do not come back together and this stays a pure function."""
        if attempts <= 0 or self.backoff_initial <= 0:
            return 0.0
        exponent = min(attempts - 1, 30)  # beyond it any cap is reached, and the float stays small
        jitter = zlib.crc32(nonce.encode()) / 2**32
        return min(self.backoff_initial * 2.0**exponent, self.backoff_max) * (1.0 - 0.1 * jitter)
