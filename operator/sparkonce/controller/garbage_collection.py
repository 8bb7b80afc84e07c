"""Collects garbage: purges expired records and removes the applications of ended generations.

Run once per sweep by the controller that is first in the rendezvous order. Two at once only cost requests, since each removal names exactly
what was read (a record's revision, an application's UID). A finalized record is purged once it has expired by the slowest clock of all
controllers, and not while their clocks differ by more than a minute. An application of an opaque job leaves a suspended
placeholder under its name until its record is purged, and for `LATE_CREATE` at least. The generation floor, which outlives the record,
proves that it was: without it the store was rolled back, and everything stays. Source: docs/design.md, sections 4 and 7.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sparkonce.attempt.decide import Policy
from sparkonce.errors import SparkonceError, StoreUnavailable
from sparkonce.launch.kubeflow.sweep import FoundApplication, list_of, remove
from sparkonce.launch.kubernetes import Kubernetes
from sparkonce.launch.protocol import Launcher
from sparkonce.model.record import Address, Assignment, Outcome, Record, SpecBody, State
from sparkonce.model.spec import IdempotentJob
from sparkonce.store.protocol import IdempotencyStore, Query, View
from sparkonce.store.roster import Roster

log = logging.getLogger(__name__)

STOP = 1.0
"""Seconds for one try to stop an application that outlived its finalized record; the next sweep tries again."""
LATE_CREATE = 86_400.0
"""Seconds for which a placeholder is kept although its record was purged or forgotten: a frozen process may yet send its create."""
CLOCKS_APART = 60.0
"""Seconds by which the controllers' clocks may differ; beyond that nothing is purged."""


@dataclass(kw_only=True)
class GarbageCollection:
    store: IdempotencyStore
    roster: Roster
    kubernetes: Kubernetes
    launcher: Launcher
    install: str
    namespaces: Sequence[str] | None
    leads: Callable[[], bool]
    """Whether this process is first in the rendezvous order."""
    relist: Callable[[], Awaitable[None]]
    """Lists every object anew."""
    reported_all: Callable[[Record], bool]
    """Whether every live object of the key shows the end in its status."""
    frozen: Callable[[str], bool] = lambda _: False
    """Whether the rewind alarm of a realm is raised: removal trusts the store's records."""

    async def sweep(self) -> None:
        """Removes what is due. Call after `relist`, and never while the rewind alarm of all realms is raised."""
        if self.leads():
            try:
                await self.applications()
            finally:  # records of all namespaces expire, whatever applications cannot be listed
                await self.purge()

    async def applications(self) -> None:
        """Removes applications of ended generations after applicationTTL. Never stops an attempt of a running generation: that is its
        owner's task."""
        now = await self.store.now()
        views: dict[Address, View] = {}
        for found in await list_of(self.kubernetes, self.install, self.namespaces):
            if self.frozen(found.address.realm):
                continue
            try:
                if found.address not in views:
                    views[found.address] = await self.store.load(found.address)
                if (record := views[found.address].record) is not None:
                    await self._application(found, record, now)
                elif found.generation <= views[found.address].floor:
                    await self._of_purged(found, now)
                # Otherwise the store was rolled back: `sparkonce doctor` lists such applications.
            except StoreUnavailable:
                raise
            except SparkonceError as problem:
                # Of this application alone: a policy of its namespace, its annotations, its record.
                log.warning("application %s: %s", found.name, problem)

    async def _application(self, found: FoundApplication, record: Record, now: float) -> None:
        over = found.generation < record.generation or record.state is State.FINALIZED
        if not over or found.placeholder:
            return
        spec = await self.store.spec(record.address, found.generation)
        policy = None if spec is None else Policy.of(IdempotentJob.of(spec.job).spec)
        ended = record.finalized_at if found.generation == record.generation else record.created_at
        if policy is None or ended is None:
            return
        if not policy.declared and not found.over:  # a finalized key has no owner to stop it
            await self.launcher.stop(_placed(found), timeout=STOP)
            return
        succeeded = record.outcome is Outcome.SUCCEEDED and found.attempt == record.attempt
        ttl = policy.application_ttl_succeeded if succeeded else policy.application_ttl_failed
        if ended + ttl <= now and await remove(self.kubernetes, found, keep_name=not policy.declared):
            log.info("application %s was removed after its applicationTTL", found.name)

    async def _of_purged(self, found: FoundApplication, now: float) -> None:
        """Removes the placeholder of a key whose record was purged or forgotten. No generation has its name again."""
        if not found.placeholder or found.created is None or now < found.created.timestamp() + LATE_CREATE:
            return
        if await remove(self.kubernetes, found, keep_name=False):
            log.info("the placeholder %s was removed, as its record was before", found.name)

    async def purge(self) -> None:
        """Purges finalized records whose retention has ended by every controller's clock."""
        now = await self._oldest_clock()
        if now is None:
            return
        after: str | None = ""
        while after is not None:
            page = await self.store.list(Query(states=(State.FINALIZED,), after=after, limit=500))
            for record in page.records:
                due = record.expires_at is not None and record.expires_at <= now
                if due and not self.frozen(record.realm) and self.reported_all(record):
                    await self.store.purge(record, now=now)
            after = page.after

    async def _oldest_clock(self) -> float | None:
        """Unix seconds of the controllers' slowest clock. None: the clocks differ too much, and which one is right is unknown."""
        now = await self.store.now()
        clocks = [now, *(replica.clock for replica in await self.roster.replicas())]
        if max(clocks) - min(clocks) > CLOCKS_APART:
            log.warning("the clocks of the replicas are %.0f s apart: nothing is purged", max(clocks) - min(clocks))
            return None
        return min(clocks)


def _placed(found: FoundApplication) -> Assignment:
    """The application's assignment with its namespace, by which the launcher finds it."""
    spec = SpecBody(job={"metadata": {"namespace": found.namespace}})
    return found.assignment.model_copy(update={"spec": spec})
