"""The launcher protocol: starts, observes and stops applications; one implementation per kind of template.

An application is one attempt: created once under a name derived from (key, generation, attempt), never updated, never created again.
A launcher reports what it observes and decides nothing. It reports that an application does not exist only after reading the authoritative
state (`observe` raises LaunchUnavailable otherwise).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from sparkonce.model.record import Application, Assignment, Bound


class Phase(StrEnum):
    ACCEPTED = "Accepted"
    STARTING = "Starting"
    RUNNING = "Running"
    FINISHING = "Finishing"
    SUCCEEDED = "Succeeded"
    FAILED_KNOWN = "FailedKnown"
    """It ran and failed; the exit code is known."""
    FAILED_INFRA = "FailedInfra"
    """The platform ended it, through no fault of its own (not counted)."""
    UNKNOWN = "Unknown"
    """It ended and its outcome was not observed."""
    HELD = "Held"
    """It waits in a queue, or for a node: no process of it runs, and the launcher does not know when one will."""


ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED_KNOWN, Phase.FAILED_INFRA, Phase.UNKNOWN})


@dataclass(frozen=True, kw_only=True)
class ApplicationState:
    """The observed state of one application."""

    name: str
    uid: str
    nonce: str
    """Nonce that its creator wrote; empty for a foreign application."""
    phase: Phase
    driver: str | None = None
    exit_code: int | None = None
    rewound: bool = False
    """Whether this install created it for this key under a grant that the record lacks: the ledger was restored to an older state."""
    stopping: bool = False
    """Whether it has our stop mark: a stop has begun."""
    repeated: bool = False
    """Whether it ran more than once under this name, or another party suspended and resumed it."""
    never_ran: bool = False
    """Proof that no process of the attempt ever ran under this name, and none will."""
    unstarted: frozenset[str] = frozenset()
    """With `never_ran`: the drivers whose containers provably never started."""
    half_made: float | None = None
    """Unix seconds since when a driver waits for objects that its failed submission may never have created. It may still start."""
    waits: str = ""
    """Why its driver has not started, if it waits longer than a start takes: the cause, its reason in brackets, then details."""
    mounting: float | None = None
    """Unix seconds since when its driver has a machine and waits for what its containers need, such as volumes. None: it does not."""
    unplaced: bool = False
    """Whether its driver has no machine to run on yet. `phase` is Held only once a scheduler has said so."""
    pods_since: str | None = None
    """See `model.record.Application`. With `never_ran`: where the proof begins."""
    template: str = ""
    """`SpecBody.template_digest` of the job from which it was made; empty: not known."""
    hopeless: bool = False
    """Whether the cause in `waits` cannot go away by itself."""
    lingers: float | None = None
    """Seconds for which a running driver has had nothing left to do, as it reported itself (`model.record.LINGERS`); None: it has."""
    message: str = ""
    log_tail: str = ""
    """Of a driver that failed: its exception, or the last lines of its log (`driver_log`)."""
    script_error: tuple[str, ...] = ()
    """Names of the error that ended a first attempt and lies in the script or its image, the most specific one first
    (`model.application.script_errors`); empty: none was found. A hint, which may only end retries."""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stopped:
    """No process of the attempt runs, and none will start."""

    seen: ApplicationState | None


@dataclass(frozen=True)
class StillThere:
    """It could not be stopped in time and may still run."""

    message: str


class Launcher(Protocol):
    """Runs attempts as applications of one kind.

    Raises, from every method:
        LaunchUnavailable: not done now, or unknown (`observe` shows which); retry later.
        LaunchRefused: the application is invalid; retries cannot help.
    """

    kind: str

    async def launch(self, assignment: Assignment) -> ApplicationState:
        """Creates the application; if the name is taken, returns the existing one (the caller compares its nonce)."""
        ...

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> ApplicationState | None:
        """The application with the attempt's name, or None if there is none.

        noted: the application as recorded. A driver in it that is missing now has vanished; without one it may not have started yet.
        """
        ...

    async def stop(
        self, assignment: Assignment, *, timeout: float, proof: bool = False, noted: Application | None = None
    ) -> Stopped | StillThere:
        """Marks the application as stopping, then ends it. If there is none, creates a placeholder with its name first, so that a delayed
        create of a frozen operator finds the name taken. timeout: seconds. proof: holds the names until it is certain whether a driver
        ran, as for an attempt of an opaque job, also if declared outputs would tell; the answer may have `never_ran` then. noted: the
        application as recorded; if it is gone, the proof begins where the record says."""
        ...


class Follows(Protocol):
    """Observes applications that another party started; never changes them."""

    async def follow(self, assignment: Assignment, bound: Bound) -> ApplicationState | None:
        """The application with the bound name, read from the API server, as its own operator describes it; None if there is none.

        Raises:
            LaunchUnavailable: it could not be read.
        """
        ...


class SettleRuns(Protocol):
    """Starts settle runs: applications beside an attempt's, named after it and their number. Errors as `Launcher`.

    `assignment.run` is the number, `assignment.settle` the sealed intent to roll forward, `assignment.why` why the attempt ends."""

    async def settle(self, assignment: Assignment) -> ApplicationState:
        """Creates the settle run; if the name is taken, returns the existing one (the caller compares its nonce)."""
        ...

    async def settled(self, assignment: Assignment) -> ApplicationState | None:
        """The application with the settle run's name, or None if there is none."""
        ...
