"""The events that are counted as metrics; `metrics.py` and its neighbours export them to Prometheus.

A protocol rather than the Prometheus library, so that drivers, laptops and tests need no metrics library, and so that metric names and
units are chosen in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Meter(Protocol):
    """Receives one call per event."""

    def reserved(self, outcome: str) -> None:
        """A reserve or reopen returned: Owned, Duplicate, Mismatch, Moved, Lost, Refused, Full."""
        ...

    def taken_over(self, latency: float | None) -> None:
        """A key was taken over: seconds from the end of the old claim, as the store reported it, to the new one; None if not reported."""
        ...

    def granted(self, why: str) -> None:
        """Another attempt was granted; `why` is how the previous one ended."""
        ...

    def finalized(self, outcome: str, *, attempts: int, seconds: float) -> None:
        """A generation got its result, `seconds` after it was opened."""
        ...

    def held(self, reason: str) -> None:
        """A key was held for a decision."""
        ...

    def replayed(self, *, executor_seconds: float) -> None:
        """A duplicate got the recorded result. executor_seconds: core seconds saved, as far as its spec determines them."""
        ...

    def followed(self) -> None:
        """A duplicate was attached to a running job."""
        ...

    def mismatched(self) -> None:
        """An object was refused because its key has another fingerprint."""
        ...

    def alarmed(self) -> None:
        """The store was found to have been rolled back."""
        ...

    def called(self, verb: str, kind: str, result: str) -> None:
        """One request to the API server: its verb, the kind, and ok or the error."""
        ...

    def stored(self, verb: str, result: str, seconds: float) -> None:
        """One request to the store: its verb, result and duration."""
        ...

    def conflicted(self) -> None:
        """A status write failed on a newer resourceVersion."""
        ...

    def triggered(self, kind: str) -> None:
        """A watch event arrived for a job, application or pod."""
        ...


class NoMeter:
    """A meter that counts nothing."""

    def reserved(self, outcome: str) -> None:
        """Counts nothing."""

    def taken_over(self, latency: float | None) -> None:
        """Counts nothing."""

    def granted(self, why: str) -> None:
        """Counts nothing."""

    def finalized(self, outcome: str, *, attempts: int, seconds: float) -> None:
        """Counts nothing."""

    def held(self, reason: str) -> None:
        """Counts nothing."""

    def replayed(self, *, executor_seconds: float) -> None:
        """Counts nothing."""

    def followed(self) -> None:
        """Counts nothing."""

    def mismatched(self) -> None:
        """Counts nothing."""

    def alarmed(self) -> None:
        """Counts nothing."""

    def called(self, verb: str, kind: str, result: str) -> None:
        """Counts nothing."""

    def stored(self, verb: str, result: str, seconds: float) -> None:
        """Counts nothing."""

    def conflicted(self) -> None:
        """Counts nothing."""

    def triggered(self, kind: str) -> None:
        """Counts nothing."""


class ReplyMeter(Protocol):
    """Receives one call per event of requests with an Idempotency-Key."""

    def answered(self, outcome: str, seconds: float) -> None:
        """A request ended, `seconds` after it came: `ran`, `released`, `replayed`, `failed`, `left`, or the title of its refusal."""
        ...

    def reconciled(self, verdict: str) -> None:
        """The outcome of an earlier request was looked for: `answered`, `not-done`, `unknown`, or `rerun`, where the scope says so."""
        ...


class NoReplyMeter:
    """A reply meter that counts nothing."""

    def answered(self, outcome: str, seconds: float) -> None:
        """Counts nothing."""

    def reconciled(self, verdict: str) -> None:
        """Counts nothing."""


class LaneMeter(Protocol):
    """Receives one call per event of writers of lanes, from several threads."""

    def opened(self, lane: str, waiting: Callable[[], tuple[int, float]]) -> None:
        """A writer acquired the lane. `waiting` returns the bytes of its appends without an outcome, and the age of the oldest, in
        seconds."""
        ...

    def ended(self, lane: str, appends: int, *, outcome: str, rows: int, seconds: float) -> None:
        """So many appends have an outcome: `applied`, `refused`, `fenced` or `unknown`, `seconds` after the oldest of them."""
        ...


class NoLaneMeter:
    """A lane meter that counts nothing."""

    def opened(self, lane: str, waiting: Callable[[], tuple[int, float]]) -> None:
        """Counts nothing."""

    def ended(self, lane: str, appends: int, *, outcome: str, rows: int, seconds: float) -> None:
        """Counts nothing."""
