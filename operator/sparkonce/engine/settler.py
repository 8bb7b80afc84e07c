"""Gets the verdict on an attempt whose `settling` is written: from the outputs, where this process reaches them, else from settle runs.

It writes to outputs and creates settle runs, and never writes the record: what is to be written is returned, as a decision, to the drive.
An operator that could reach an output and is not answered asks again for a while (the drive's own pauses), and then sends somebody else;
before each further settle run it tries once more by itself. Both may settle at the same time, and again later: see `entrust`.

Reports are read after the application was looked at: a settle run reports before it ends, so one that has ended without a report will
never have one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sparkonce import failpoints
from sparkonce.engine.decide import Count, Decision, Send
from sparkonce.engine.entrust import Runs, driver_said, entrust, heard, lost_because
from sparkonce.engine.policy import Policy
from sparkonce.engine.reach import Settles, out_of_reach, within_reach
from sparkonce.errors import InvalidInput, OutputUnavailable, OutputUnsafe, OutputUnsupported
from sparkonce.launch.protocol import Seen, SettleRuns
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Record, Why
from sparkonce.sink.protocol import Sink
from sparkonce.sink.transaction import Settlement, settle
from sparkonce.store.protocol import IdempotencyStore


class Settling(Protocol):
    """Of a generation's job, what a settle needs to know."""

    @property
    def policy(self) -> Policy: ...

    @property
    def sinks(self) -> Sequence[Sink]: ...


@dataclass(kw_only=True)
class Settler:
    """Of one key. Without `runs` there is nobody else to send: this process settles, or raises."""

    store: IdempotencyStore
    owner: str
    runs: SettleRuns | None = None
    settles: Settles = Settles.OPERATOR
    patience: float = 30.0
    """Seconds for which outputs that do not answer are asked again before a settle run is sent, and between two settle runs."""
    now: Callable[[], float] = lambda: 0.0
    """Monotonic seconds: how long this process has seen something."""
    _since: dict[str, float] = field(default_factory=dict)

    async def verdict(
        self, record: Record, job: Settling, assignment: Assignment, *, end: bool
    ) -> Settlement | Decision:
        """What is final now; or what is to be done first. `end`: see `settle`. Raises what the sinks, the store and the launcher raise."""
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
                "or mount the outputs into it and start it with --settle operator"
            )
        return found

    async def _found(
        self, record: Record, job: Settling, assignment: Assignment, *, end: bool
    ) -> Settlement | Decision:
        why = out_of_reach(job.sinks, self.settles)
        asked = await self._asked(record, job, assignment, end=end, why=why)
        if why or not isinstance(asked.action, Count | Send):
            return asked
        try:
            return await self.here(record, job, end=end)
        except OutputUnavailable as silent:
            if record.settle_runs == 0 and self._seen_for(f"silent {assignment.name}") < self.patience:
                raise
            return Decision(asked.action, asked.row, f"{silent}; {asked.evidence}".removesuffix("; "))
        except (InvalidInput, OutputUnsupported, OutputUnsafe) as refused:
            return Decision(asked.action, asked.row, f"{refused}; {asked.evidence}".removesuffix("; "))

    async def here(self, record: Record, job: Settling, *, end: bool) -> Settlement:
        """By this process itself, at the outputs. The sealed intent does not change any more: `settling` bars every seal."""
        intent = await self.store.intent(record.address, record.generation)
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

    async def _asked(self, record: Record, job: Settling, assignment: Assignment, *, end: bool, why: str) -> Decision:
        seen: Seen | None = None
        assert self.runs is not None  # the caller has looked
        if record.settle_runs > 0:
            seen = await self.runs.settled(_of(assignment, record.settle_runs))
        reports = await self.store.reports(record.address, record.generation)
        outputs = [sink.name for sink in job.sinks]
        runs = Runs(
            heard=heard(record, outputs, reports, end=end),
            driver=driver_said(record, outputs, reports),
            seen=seen,
            age=0.0 if seen is None else self._seen_for(f"seen {seen.name}"),
            half_made_for=0.0 if seen is None or seen.half_made is None else self._seen_for(f"half-made {seen.name}"),
            start_timeout=job.policy.start_timeout,
            pause=self.patience,
            why=why,
        )
        if lost_because(record, runs):
            assert seen is not None  # what is not seen is not lost
            runs = Runs(**{**vars(runs), "lost_for": self._seen_for(f"lost {seen.name}")})
        return entrust(record, runs, await self.store.now())

    async def send(self, record: Record, assignment: Assignment, action: Send, *, end: bool) -> None:
        """LaunchRefused: no settle run of this attempt can ever be created. LaunchUnavailable: ask again."""
        assert self.runs is not None  # decided by `verdict`
        why = record.settling.why if record.settling is not None else None
        if end and why not in (Why.CANCELLED, Why.SUPERSEDED):
            why = Why.CANCELLED
        told = _of(assignment, action.run).model_copy(
            update={"settle": await self.store.intent(record.address, record.generation), "why": why}
        )
        failpoints.hit("engine.settle-run.before")
        await self.runs.settle(told)
        failpoints.hit("engine.settle-run.after")

    def _seen_for(self, what: str) -> float:
        """Seconds since this was said first."""
        now = self.now()
        return now - self._since.setdefault(what, now)


def _of(assignment: Assignment, run: int) -> Assignment:
    return assignment.model_copy(update={"run": run})


@dataclass(frozen=True, kw_only=True)
class Entrusted:
    """Who settles, for all keys of one process. `patience`: see `Settler`."""

    settles: Settles = Settles.OPERATOR
    runs: SettleRuns | None = None
    patience: float = 30.0

    def reaches(self, sink: Sink) -> bool:
        return within_reach(sink, self.settles)

    def settler(self, store: IdempotencyStore, owner: str) -> Settler:
        return Settler(
            store=store,
            owner=owner,
            runs=self.runs,
            settles=self.settles,
            patience=self.patience,
            now=time.monotonic,
        )
