"""Writes the statuses of a key's objects, emits their events, and deletes objects whose TTL has ended.

`status` decides what a status says and whether it is worth a write: once for the cached object, and again for the live one whenever a
write meets a newer object. A failed write is not retried here: the key is reconciled again, which finds the same difference.
Source: docs/design.md, section 7.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkonce.attempt.decide import Policy
from sparkonce.controller.desired import Desired, Invalid
from sparkonce.controller.objects import JobObjects, Json, ObjectView
from sparkonce.controller.plan import Plan, Relation, reason
from sparkonce.controller.status import (
    RESERVED,
    SLOTS_TAKEN,
    STATUS_VERSION,
    Trouble,
    iso,
    next_status,
    project,
    transitions,
)
from sparkonce.errors import QuotaUsed, RecordUnreadable, StoreFull, StoreUnavailable, StoreUnusable
from sparkonce.model.record import Address, Record, Result, SpecBody, State
from sparkonce.model.spec import IdempotentJob
from sparkonce.observe.meter import Meter
from sparkonce.sink.protocol import Found
from sparkonce.store.protocol import View

_SILENT = frozenset({Relation.IGNORED})
_SOON = frozenset({Relation.OPENS, Relation.ATTACHES, Relation.SUPERSEDES})
"""Relations that normally last a moment: not worth a status unless something blocks them, or the last status is no longer true."""

SILENT = "the ledger does not answer, so nothing is started; the job continues by itself once it does, and need not be sent again"
UNUSABLE = "the operator cannot use the ledger, so nothing is started; its log says why, and the job continues by itself afterwards"
NO_SLOT = (
    "it waits for a slot: as many jobs as the operators may run (`--slots`, of which one namespace gets at most four fifths beside others) "
    "have not ended; it starts by itself once one of them has"
)
NOTED = 10_000
"""Keys for which it is noted why they wait."""


def was_unanswered(view: ObjectView) -> bool:
    """Whether the stored status says no more than that the ledger did not answer."""
    known = reason(view.status, RESERVED)[1] in ("StoreUnavailable", "StoreUnusable")
    return known and "ledgerRevision" not in view.status


@dataclass(frozen=True, kw_only=True)
class KeyReading:
    """What one reconcile read and planned."""

    view: View
    plan: Plan
    result: Result | None = None
    evidence: Mapping[str, Found] = field(default_factory=dict)
    spec: SpecBody | None = None
    """As recorded; None: not read."""
    policy: Policy | None = None
    """Of the record's generation."""
    trouble: str = ""
    """The error that blocks the key's drive; empty: none."""
    progress: Mapping[str, object] | None = None
    """Of the running attempt; None: not driven here."""


@dataclass(kw_only=True)
class JobStatusWriter:
    """See the module."""

    objects: JobObjects
    meter: Meter
    clock: Callable[[], float] = time.time
    """Unix seconds, for times that people read and for TTLs; never used to order statuses."""
    version: Callable[[], int | None] = lambda: STATUS_VERSION
    """The highest STATUS_VERSION that every live operator process writes; None: not known yet, and nothing may be written."""
    _refused: dict[Address, Trouble] = field(default_factory=dict)

    def refused(self, address: Address, full: StoreFull) -> None:
        """Notes that the store has no room for this key, for the next status."""
        self._note(address, Trouble("StoreFull" if isinstance(full, QuotaUsed) else "RealmFull", str(full)))

    def waits_for_slot(self, address: Address) -> None:
        """Notes that the operators may run no further job of this key's namespace, for the next status."""
        self._note(address, Trouble(SLOTS_TAKEN, NO_SLOT))

    def _note(self, address: Address, trouble: Trouble) -> None:
        self._refused[address] = trouble
        while len(self._refused) > NOTED:  # keys whose objects are gone; one that waits is noted again
            del self._refused[next(iter(self._refused))]

    async def publish(self, reading: KeyReading, objects: Sequence[tuple[ObjectView, Desired | None]]) -> float | None:
        """Writes the statuses of all objects of a key. Returns the seconds until an object is due for deletion, or None.

        Raises: ApiUnavailable, ApiRefused: some statuses may not have been written."""
        writes = [self._report(reading, view, desired) for view, desired in objects]
        replies = await asyncio.gather(*writes, return_exceptions=True)
        if problems := [each for each in replies if isinstance(each, BaseException)]:
            raise problems[0]
        return await self._due(reading, [view for view, _ in objects])

    async def _report(self, reading: KeyReading, view: ObjectView, desired: Desired | None) -> None:
        placed = reading.plan.of(view.uid)
        trouble = self._trouble(reading, view, desired)
        lasts = placed.relation not in _SOON or trouble is not None or was_unanswered(view)
        if placed.relation in _SILENT or not lasts:
            return
        paths = None
        if (
            placed.relation is Relation.MISMATCH
            and reading.view.record is not None
            and reading.spec is not None
            and desired
        ):
            paths = desired.differing(reading.view.record, reading.spec)
        now = iso(self.clock())

        def status_of(obj: ObjectView) -> Json:
            return project(
                reading.view,
                obj,
                now_text=now,
                leader=reading.policy,
                result=reading.result,
                evidence=reading.evidence,
                mismatch_paths=paths,
                progress=reading.progress,
                trouble=trouble,
                version=self.version() or 0,
            )

        await self._write(view, status_of, on_written=lambda old, new: self._count(reading, old, new))

    def _trouble(self, reading: KeyReading, view: ObjectView, desired: Desired | None) -> Trouble | None:
        if reading.trouble:
            return Trouble("Trouble", reading.trouble)
        opening = reading.plan.opening
        opens = reading.view.record is None or (opening is not None and opening.uid == view.uid)
        return self._refused.get(desired.address) if desired is not None and opens else None

    async def _write(
        self,
        view: ObjectView,
        status_of: Callable[[ObjectView], Json],
        *,
        on_written: Callable[[Json, Json], None] = lambda *_: None,
    ) -> None:
        if next_status(view.status, status_of(view)) is None:
            return
        tries = 0
        said: tuple[Json, Json, Json] | None = None

        def make(body: Json) -> Json | None:
            nonlocal tries, said
            tries, said = tries + 1, None
            obj = view.reread(body)
            if obj is None:
                return None  # another object, or edited since: the watch reports it, and it is reconciled again
            desired = next_status(obj.status, status_of(obj), conflicted=tries > 1)
            if tries > 1:
                self.meter.conflicted()
            if desired is not None:
                said = body, dict(obj.status), desired
            return desired

        await self.objects.write_status(view.ref, make)
        if said is not None:
            body, old, new = said
            on_written(old, new)
            for event in transitions(old, new):
                self.objects.emit(body, event.kind, event.reason, event.message)

    def _count(self, reading: KeyReading, old: Json, new: Json) -> None:
        """Counts what a status reports for the first time."""
        if new.get("phase") == "Mismatch" and old.get("phase") != "Mismatch":
            self.meter.mismatched()
        record = reading.view.record
        reported = old.get("phase") == new.get("phase") and old.get("generation") == new.get("generation")
        if record is not None and not reported and new.get("replayed") and record.state is State.FINALIZED:
            self.meter.replayed(executor_seconds=_executor_seconds(reading.spec, record))

    async def invalid(self, objects: Sequence[tuple[Json, Desired | Invalid]]) -> None:
        """Writes into the status which field is wrong; the object runs nothing until it is edited."""
        for body, read in objects:
            if isinstance(read, Desired):
                continue  # edited since, and reconciled under its key
            trouble = Trouble("InvalidSpec", read.message, final=True)
            await self._without_record(ObjectView.of(body, None), trouble)

    async def alarm(self, objects: Sequence[ObjectView], why: str) -> None:
        """Reports the rewind alarm to objects that wait; an answered object keeps its answer."""
        trouble = Trouble("StoreRewound", why, unknown=True)
        for view in objects:
            await self._without_record(view, trouble)

    async def unanswered(self, objects: Sequence[ObjectView], problem: StoreUnavailable | StoreUnusable) -> None:
        """Reports that the ledger does not answer, once and only to objects without a status: an answered object keeps its answer, and
        an outage costs the API server one write per new object, however long it lasts."""
        silent = isinstance(problem, StoreUnavailable)
        trouble = (
            Trouble("StoreUnavailable", SILENT, unknown=True)
            if silent
            else Trouble("StoreUnusable", UNUSABLE, unknown=True)
        )

        def status_of(obj: ObjectView) -> Json:
            # Read again: a process that reaches the ledger may have written one meanwhile.
            known = self.version()  # None: without the standard conditions a first status would count as Current
            version = STATUS_VERSION if known is None else known
            return dict(obj.status) or project(None, obj, now_text=iso(self.clock()), trouble=trouble, version=version)

        for view in objects:
            if not view.status:
                await self._write(view, status_of)

    async def unreadable(self, objects: Sequence[ObjectView], problem: Exception) -> None:
        """Reports an unreadable record, only to objects without a status: a process that can read the record may have written more."""
        why = "RecordUnreadable" if isinstance(problem, RecordUnreadable) else "RecordTooNew"
        trouble = Trouble(why, str(problem), unknown=True)
        for view in objects:
            if not view.status or was_unanswered(view):
                await self._without_record(view, trouble)

    async def _without_record(self, view: ObjectView, trouble: Trouble) -> None:
        now = iso(self.clock())
        version = self.version() or 0
        await self._write(view, lambda obj: project(None, obj, now_text=now, trouble=trouble, version=version))

    async def _due(self, reading: KeyReading, objects: Sequence[ObjectView]) -> float | None:
        """Deletes objects whose ttlSecondsAfterFinished has passed. Called after their statuses show the end. Returns the seconds until the
        next is due, or None."""
        record = reading.view.record
        if record is not None and reading.plan.opening is None:
            self._refused.pop(record.address, None)
        if record is None or record.state is not State.FINALIZED or record.finalized_at is None:
            return None
        soonest: float | None = None
        for view in objects:
            ttl = view.policy.object_ttl if view.policy is not None else None
            if ttl is None or view.deleting:
                continue
            left = record.finalized_at + ttl - self.clock()
            if left <= 0:
                await self.objects.delete(view.ref)
            else:
                soonest = left if soonest is None else min(soonest, left)
        return soonest


def _executor_seconds(spec: SpecBody | None, record: Record) -> float:
    """The cost that a replay saved: executors times cores times seconds, as far as the spec names them."""
    if spec is None or record.finalized_at is None:
        return 0.0
    template = IdempotentJob.of(spec.job).spec.template.spec
    executor = template.get("executor")
    executor = executor if isinstance(executor, dict) else {}
    instances, cores = executor.get("instances", 1), executor.get("cores", 1)
    if not isinstance(instances, int | float) or not isinstance(cores, int | float):
        return 0.0
    return float(instances) * float(cores) * max(0.0, record.finalized_at - record.created_at)
