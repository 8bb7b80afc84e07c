"""What is done once in a while and by one process: retention of records, the end of applications that have served their time.

Run by whichever replica comes first in the rendezvous order, as far as each knows; two at once cost requests and nothing else, since each
removal names exactly what was looked at (a record's revision, an application's UID). A finalized record is purged when it has expired
by the oldest clock of all replicas; it is not while their clocks differ by more than a minute. Applications of opaque jobs leave a
suspended stub under their name until their record goes. Source: DESIGN sections 4 and 7.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sparkonce.engine.policy import Policy
from sparkonce.errors import RecordTooNew, RecordUnreadable
from sparkonce.launch.kubeflow_sweep import Found, list_of, remove
from sparkonce.launch.kubernetes import Kubernetes
from sparkonce.launch.protocol import Launcher
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Address, Outcome, Record, SpecBody, State
from sparkonce.model.spec import IdempotentJob
from sparkonce.store.protocol import IdempotencyStore, Query
from sparkonce.store.roster import Roster

log = logging.getLogger(__name__)

STOP = 1.0
"""Seconds for one try to stop what a finalized record left running; the next sweep goes on."""
CLOCKS_APART = 60.0
"""Seconds by which the clocks of replicas may differ before nothing is purged."""


@dataclass(kw_only=True)
class Sweeping:
    store: IdempotencyStore
    roster: Roster
    kubernetes: Kubernetes
    launcher: Launcher
    install: str
    namespaces: Sequence[str] | None
    leads: Callable[[], bool]
    """Whether this process comes first."""
    relist: Callable[[], Awaitable[None]]
    """Sees every object anew."""
    told_all: Callable[[Record], bool]
    """Every live object of the key shows the end in its status."""

    async def sweep(self) -> None:
        """After `relist`, and never while the store is in doubt: what it says has ended is removed here."""
        if self.leads():
            await self.applications()
            await self.purge()

    async def applications(self) -> None:
        """Of generations that ended, after applicationTTL; what no record wants is stopped by whoever owns its key, never here."""
        now = await self.store.now()
        records: dict[Address, Record | None] = {}
        for found in await list_of(self.kubernetes, self.install, self.namespaces):
            try:
                if found.address not in records:
                    records[found.address] = (await self.store.load(found.address)).record
                await self._application(found, records[found.address], now)
            except (RecordTooNew, RecordUnreadable) as problem:
                log.warning("%s", problem)

    async def _application(self, found: Found, record: Record | None, now: float) -> None:
        if record is None:
            return  # its record was purged, or the store is not what it was: a person looks at it (`sparkonce doctor`)
        over = found.generation < record.generation or record.state is State.FINALIZED
        if not over or found.placeholder:
            return
        spec = await self.store.spec(record.address, found.generation)
        policy = None if spec is None else Policy.of(IdempotentJob.of(spec.job).spec)
        ended = record.finalized_at if found.generation == record.generation else record.created_at
        if policy is None or ended is None:
            return
        if not policy.declared and not found.over:  # a finalized key has no owner who would end it
            await self.launcher.stop(_placed(found), timeout=STOP)
            return
        succeeded = record.outcome is Outcome.SUCCEEDED and found.attempt == record.attempt
        ttl = policy.application_ttl_succeeded if succeeded else policy.application_ttl_failed
        if ended + ttl <= now and await remove(self.kubernetes, found, keep_name=not policy.declared):
            log.info("application %s was removed after its applicationTTL", found.name)

    async def purge(self) -> None:
        """Finalized records whose retention is over by every clock."""
        now = await self._oldest_clock()
        if now is None:
            return
        after: str | None = ""
        while after is not None:
            page = await self.store.list(Query(states=(State.FINALIZED,), after=after, limit=500))
            for record in page.records:
                if record.expires_at is not None and record.expires_at <= now and self.told_all(record):
                    await self.store.purge(record, now=now)
            after = page.after

    async def _oldest_clock(self) -> float | None:
        """None: they differ too much, and nobody knows which one is right."""
        now = await self.store.now()
        clocks = [now, *(replica.clock for replica in await self.roster.replicas())]
        if max(clocks) - min(clocks) > CLOCKS_APART:
            log.warning("the clocks of the replicas are %.0f s apart: nothing is purged", max(clocks) - min(clocks))
            return None
        return min(clocks)


def _placed(found: Found) -> Assignment:
    """With the namespace, by which the launcher finds the application."""
    spec = SpecBody(job={"metadata": {"namespace": found.namespace}})
    return found.assignment.model_copy(update={"spec": spec})
