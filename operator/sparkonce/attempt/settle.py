"""Settles an attempt whose `settling` is written: at the outputs where this process reaches them, else by settle runs.

Writes to outputs and creates settle runs, and never writes the record: what must be recorded first is returned to the drive as a
decision. An operator whose output does not answer retries for `patience` seconds and then sends a settle run (a pod with the job's
volumes); before each further settle run it tries once more by itself. Both may settle at the same time, and again later; `settle_runs`
says why that is harmless.

Reports are read after the settle run's application was observed: a settle run reports before it ends, so one that was seen ended without
a report will never have one.

Local paths need care. In the operator's pod a path names another disk than in the driver's pod, unless both mount the same volume;
settling there would find nothing, close slots on the wrong disk and call a committed job failed. So a local folder counts as reachable
only if it contains the table itself. That the folder exists is not enough: `/tmp` and `/data` exist in many images. An administrator who
mounts every volume sets `--settle operator`. Object stores and catalogs are the same place for every process; whether one answers shows
when it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from sparkonce import failpoints
from sparkonce.attempt.decide import BeginSettleRun, Decision, Policy, Send
from sparkonce.attempt.settle_runs import Runs, driver_reported, lost_because, next_settle_run, settle_run_reported
from sparkonce.errors import InvalidInput, OutputUnavailable, OutputUnsafe, OutputUnsupported
from sparkonce.launch.protocol import ApplicationState, SettleRuns
from sparkonce.model.record import Address, Assignment, Record, Why
from sparkonce.sink.open import Absent
from sparkonce.sink.protocol import Sink
from sparkonce.sink.transaction import Settlement, settle
from sparkonce.store.protocol import IdempotencyStore

T = TypeVar("T")

_TABLES = ("_idem", "_delta_log")
"""A folder that contains one of these is a table that has been written to."""


class Settles(StrEnum):
    """Which process settles attempts that declare outputs."""

    AUTO = "auto"
    """The operator where it reaches all outputs, else settle runs."""
    OPERATOR = "operator"
    """Always the operator: its administrator guarantees that it reaches every output of every job."""
    RUN = "run"
    """Always settle runs: the operator touches no output."""


def settles_as(text: str) -> Settles:
    """Parses `--settle`.

    Raises: InvalidInput: not one of auto, operator and run."""
    if text not in set(Settles):
        raise InvalidInput(f"SPARKONCE_SETTLE (--settle) is {text!r}; give one of {', '.join(Settles)}")
    return Settles(text)


def within_reach(sink: Sink, settles: Settles) -> bool:
    """Whether this process may settle at this output, as far as can be known without asking it."""
    return not _beyond(sink, settles)


def out_of_reach(sinks: Sequence[Sink], settles: Settles) -> str:
    """Why this process cannot settle; empty: it can, as far as can be known without asking the outputs."""
    return next((why for sink in sinks if (why := _beyond(sink, settles))), "")


def _beyond(sink: Sink, settles: Settles) -> str:
    if isinstance(sink, Absent):
        return sink.why
    if settles is Settles.RUN:
        return "outputs are settled by settle runs alone (--settle run)"
    if settles is Settles.OPERATOR or not sink.uri.startswith("file:"):
        return ""
    folder = _folder(sink)
    if any((folder / name).is_dir() for name in _TABLES):
        return ""
    return f"output {sink.name} is the local folder {folder}, in which this process sees no table"


def _folder(sink: Sink) -> Path:
    return Path(unquote(urlsplit(sink.uri).path))


def refuse_links(sinks: Sequence[Sink]) -> None:
    """Checks that no local table, and none of its own folders, has become a symbolic link. A sink's path was free of links when it was
    opened, so a writer has made the link since, and it may lead to another team's table.

    Raises: OutputUnavailable: one is, and nothing was read through it; or the file system does not say."""
    for sink in sinks:
        if not sink.uri.startswith("file:"):
            continue
        folder = _folder(sink)
        inside = (folder / name for name in (*_TABLES, "_sparkonce"))
        try:
            link = next((each for each in (*reversed(folder.parents), folder, *inside) if each.is_symlink()), None)
        except OSError as error:
            raise OutputUnavailable(
                f"output {sink.name}: the folder {folder} cannot be looked at: {error.strerror}"
            ) from error
        if link is not None:
            raise OutputUnavailable(
                f"output {sink.name}: {link} has become a symbolic link, which is not followed; put the folder itself there"
            )


def _remedy(sinks: Sequence[Sink]) -> str:
    given = (sink.remedy for sink in sinks if isinstance(sink, Absent) and sink.remedy)
    return next(given, "mount the outputs into it and start it with --settle operator")


class Offload(Protocol):
    """Runs a key's work at its outputs. Sinks block, for as long as their stores take."""

    async def __call__(self, address: Address, work: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Returns what `work` returns. Its coroutine awaits only sinks.

        Raises: what it raises; OutputUnavailable: it has not ended in time, and may still take effect."""
        ...


async def inline(_: Address, work: Callable[[], Coroutine[Any, Any, T]], /) -> T:
    """Runs the call in this thread: for a process that drives one key."""
    return await work()


class SettleContext(Protocol):
    """The parts of a generation's job that settling needs."""

    @property
    def policy(self) -> Policy: ...

    @property
    def sinks(self) -> Sequence[Sink]: ...


@dataclass(kw_only=True)
class Settler:
    """Settles the attempts of one key. Without `runs` no settle run can be sent: this process settles, or raises."""

    store: IdempotencyStore
    owner: str
    runs: SettleRuns | None = None
    settles: Settles = Settles.OPERATOR
    patience: float = 30.0
    """Seconds of retrying an output before a settle run is sent, and the pause between two settle runs."""
    now: Callable[[], float] = lambda: 0.0
    """Monotonic seconds; measures how long this process has observed a condition."""
    offload: Offload = inline
    _since: dict[str, float] = field(default_factory=dict)

    async def verdict(
        self, record: Record, job: SettleContext, assignment: Assignment, *, end: bool
    ) -> Settlement | Decision:
        """Returns the final settlement, or the decision to perform first. `end`: see `settle`.

        Raises: whatever the sinks, the store and the launcher raise; nothing is settled then, call again."""
        reaches = self.settles is Settles.OPERATOR and not out_of_reach(job.sinks, self.settles)
        if self.runs is None or reaches:
            return await self.here(record, job, end=end)
        found = await self._found(record, job, assignment, end=end)
        if (
            isinstance(found, Decision)
            and isinstance(found.action, Send)
            and not (assignment.gateway or assignment.store)
        ):
            raise OutputUnavailable(
                f"{found.evidence}; a settle run could not report, because there is no gateway: start the operator with --gateway-url, "
                f"or {_remedy(job.sinks)}"
            )
        return found

    async def _found(
        self, record: Record, job: SettleContext, assignment: Assignment, *, end: bool
    ) -> Settlement | Decision:
        why = out_of_reach(job.sinks, self.settles)
        decision = await self._next_run(record, job, assignment, end=end, why=why)
        if why or not isinstance(decision.action, BeginSettleRun | Send):
            return decision
        try:
            return await self.here(record, job, end=end)
        except OutputUnavailable as silent:
            if record.settle_runs == 0 and self._seen_for(f"silent {assignment.name}") < self.patience:
                raise
            return Decision(decision.action, decision.row, f"{silent}; {decision.evidence}".removesuffix("; "))
        except (InvalidInput, OutputUnsupported, OutputUnsafe) as refused:
            return Decision(decision.action, decision.row, f"{refused}; {decision.evidence}".removesuffix("; "))

    async def here(self, record: Record, job: SettleContext, *, end: bool) -> Settlement:
        """Settles in this process, at the outputs. The sealed intent is final by now: `settling` bars every later seal."""
        intent = await self.store.intent(record.address, record.generation)

        async def work() -> Settlement:
            refuse_links(job.sinks)
            return await settle(
                job.sinks,
                key_hash=record.key_hash,
                generation=record.generation,
                attempt=record.attempt,
                fingerprint=record.fingerprint,
                intent=intent,
                by=self.owner,
                end=end,
            )

        return await self.offload(record.address, work)

    async def _next_run(
        self, record: Record, job: SettleContext, assignment: Assignment, *, end: bool, why: str
    ) -> Decision:
        seen: ApplicationState | None = None
        assert self.runs is not None  # `verdict` settles here without runs
        if record.settle_runs > 0:
            seen = await self.runs.settled(_of(assignment, record.settle_runs))
        reports = await self.store.reports(record.address, record.generation)
        outputs = [sink.name for sink in job.sinks]
        runs = Runs(
            reported=settle_run_reported(record, outputs, reports, end=end),
            driver=driver_reported(record, outputs, reports),
            seen=seen,
            age=0.0 if seen is None else self._seen_for(f"seen {seen.name}"),
            half_made_for=0.0 if seen is None or seen.half_made is None else self._seen_for(f"half-made {seen.name}"),
            start_timeout=job.policy.start_timeout,
            pause=self.patience,
            why=why,
        )
        if lost_because(record, runs):
            assert seen is not None  # lost_because is empty without an application
            runs = Runs(**{**vars(runs), "lost_for": self._seen_for(f"lost {seen.name}")})
        return next_settle_run(record, runs, await self.store.now())

    async def send(self, record: Record, assignment: Assignment, action: Send, *, end: bool) -> None:
        """Creates the settle run's application.

        Raises: LaunchRefused: no settle run of this attempt can ever be created. LaunchUnavailable: it may exist; try again."""
        assert self.runs is not None  # `verdict` returns Send only with runs
        why = record.settling.why if record.settling is not None else None
        if end and why not in (Why.CANCELLED, Why.SUPERSEDED):
            why = Why.CANCELLED
        settle_run = _of(assignment, action.run).model_copy(
            update={"settle": await self.store.intent(record.address, record.generation), "why": why}
        )
        failpoints.hit("engine.settle-run.before")
        await self.runs.settle(settle_run)
        failpoints.hit("engine.settle-run.after")

    def _seen_for(self, what: str) -> float:
        """Seconds since this process first observed the condition."""
        now = self.now()
        return now - self._since.setdefault(what, now)


def _of(assignment: Assignment, run: int) -> Assignment:
    return assignment.model_copy(update={"run": run})


@dataclass(frozen=True, kw_only=True)
class DelegatedSettler:
    """Makes the Settler of each key of one process. `patience`: see `Settler`."""

    settles: Settles = Settles.OPERATOR
    runs: SettleRuns | None = None
    patience: float = 30.0
    offload: Offload = inline

    def reaches(self, sink: Sink) -> bool:
        """See `within_reach`."""
        return within_reach(sink, self.settles)

    def settler(self, store: IdempotencyStore, owner: str) -> Settler:
        return Settler(
            store=store,
            owner=owner,
            runs=self.runs,
            settles=self.settles,
            patience=self.patience,
            now=time.monotonic,
            offload=self.offload,
        )
