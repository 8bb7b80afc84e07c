"""What the engine counts, in plain words; `metrics.py` turns it into Prometheus metrics, and everything runs without them.

A protocol and not the library itself, so that a driver, a laptop and a test need no metrics library, and so that names and units of
metrics are chosen in one place.
"""

from __future__ import annotations

from typing import Protocol


class Meter(Protocol):
    def reserved(self, outcome: str) -> None:
        """A reserve or reopen was answered: Owned, Duplicate, Mismatch, Moved, Lost, Refused, Full."""
        ...

    def taken_over(self, latency: float | None) -> None:
        """Seconds from the end of the old claim, as this process was told, to the new one; None: it was not told."""
        ...

    def granted(self, why: str) -> None:
        """Another attempt, because the one before ended so."""
        ...

    def finalized(self, outcome: str, *, attempts: int, seconds: float) -> None:
        """A generation got its result, so long after it was opened."""
        ...

    def held(self, reason: str) -> None: ...

    def replayed(self, *, executor_seconds: float) -> None:
        """A duplicate got the recorded result; what running it again would have cost, as far as its spec tells."""
        ...

    def followed(self) -> None:
        """A duplicate was attached to a running job."""
        ...

    def mismatched(self) -> None: ...

    def alarmed(self) -> None:
        """The store is older than it was."""
        ...

    def called(self, verb: str, kind: str, result: str) -> None:
        """One request to the API server: create, get, patch, ...; the kind; ok, or how it ended."""
        ...

    def stored(self, verb: str, result: str, seconds: float) -> None:
        """One request to the store, which took so long."""
        ...

    def conflicted(self) -> None:
        """A status write met a newer object."""
        ...

    def triggered(self, kind: str) -> None:
        """A watch told of an object: job, application, pod."""
        ...


class NoMeter:
    """Counts nothing."""

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
