"""What starts, observes and stops applications, in neutral words; one implementation per kind of template.

An application is one attempt: created once under a name made from (key, generation, attempt), never updated, never created again.
A launcher reports what it saw and decides nothing. "Not there" is an answer only when the launcher really looked (`observe`
raises LaunchUnavailable otherwise).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Application, Bound


class Phase(StrEnum):
    ACCEPTED = "Accepted"
    STARTING = "Starting"
    RUNNING = "Running"
    FINISHING = "Finishing"
    SUCCEEDED = "Succeeded"
    FAILED_KNOWN = "FailedKnown"
    """It ran and ended badly: the exit code is known."""
    FAILED_INFRA = "FailedInfra"
    """It ended for a reason of the platform, not its own (not counted)."""
    UNKNOWN = "Unknown"
    """It is gone and nobody saw how it ended."""
    HELD = "Held"
    """It waits for a queue."""


ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED_KNOWN, Phase.FAILED_INFRA, Phase.UNKNOWN})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One application, as it is now."""

    name: str
    uid: str
    nonce: str
    """As its creator wrote it; empty for a foreign application."""
    phase: Phase
    driver: str | None = None
    exit_code: int | None = None
    rewound: bool = False
    """It was made by this install for this key, and by another grant than the record's: the ledger is older than it was."""
    stopping: bool = False
    """It carries our mark: somebody began to stop it."""
    repeated: bool = False
    """It ran more than once under this name, or was suspended and resumed by somebody else."""
    half_made: float | None = None
    """Since when (Unix seconds) a driver waits for what its submission, which has failed, may never have made. It may still start."""
    message: str = ""
    log_tail: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stopped:
    """Nothing of it runs, and nothing of it will."""

    seen: Seen | None


@dataclass(frozen=True)
class StillThere:
    """It could not be ended in time: it may still run."""

    message: str


class Launcher(Protocol):
    """LaunchUnavailable: not done now, try later (or unknown: `observe` tells). LaunchRefused: invalid for good."""

    kind: str

    async def launch(self, assignment: Assignment) -> Seen:
        """Creates the application; when the name is taken, returns what is there (whose nonce the caller compares)."""
        ...

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> Seen | None:
        """The application under the attempt's name, or None: there is none. `noted` is what the record knows of it: which driver it
        should have, so that one that is not there any more has vanished and is not still to come."""
        ...

    async def stop(self, assignment: Assignment, *, timeout: float) -> Stopped | StillThere:
        """Marks it as being stopped, then ends it. Without an application: places a stub under its name first, so that a late create
        of a frozen owner meets a taken name. Seconds."""
        ...


class Follows(Protocol):
    """Where applications that somebody else started can be looked at. Nothing is ever done to them."""

    async def follow(self, assignment: Assignment, bound: Bound) -> Seen | None:
        """What has the application's name now, read there and then, as its own operator says it; None: nothing has. LaunchUnavailable."""
        ...


class SettleRuns(Protocol):
    """Where settle runs can be started: applications beside an attempt's, named after it and their number. Errors as `Launcher`.

    `assignment.run` is the number, `assignment.settle` what it is to roll forward, `assignment.why` why the attempt ends."""

    async def settle(self, assignment: Assignment) -> Seen:
        """Creates it; when the name is taken, returns what is there (whose nonce the caller compares)."""
        ...

    async def settled(self, assignment: Assignment) -> Seen | None:
        """The application under the settle run's name, or None: there is none."""
        ...
