"""Tells objects what became of their key: statuses that only move forward, events for people, the end of objects that have a TTL.

What a status says is `project`'s business, whether it is worth a write `next_status`'s; here both are asked once for what is known of the
object, and again for what the API server has whenever a write meets a newer object. A write that fails is not repeated here: the key is
looked at again, and the next look finds the same difference. Source: DESIGN section 7.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkonce.engine.object_view import Json, ObjectView
from sparkonce.engine.objects import Objects
from sparkonce.engine.policy import Policy
from sparkonce.engine.project import Trouble, project
from sparkonce.engine.project_events import transitions
from sparkonce.engine.project_running import iso
from sparkonce.engine.requests import Plan, Standing
from sparkonce.engine.status_order import next_status
from sparkonce.engine.wanted import Invalid, Wanted
from sparkonce.errors import QuotaUsed, RecordUnreadable, StoreFull
from sparkonce.model.record import Address, Record, SpecBody, State
from sparkonce.model.result import Result
from sparkonce.model.spec import IdempotentJob
from sparkonce.observe.meter import Meter
from sparkonce.sink.protocol import Evidence
from sparkonce.store.protocol import View

_SILENT = frozenset({Standing.IGNORED})
_SOON = frozenset({Standing.OPENS, Standing.ATTACHES, Standing.SUPERSEDES})
"""Standings that end at once when all goes well: not worth a status unless something is in the way."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What one look at a key found."""

    view: View
    plan: Plan
    result: Result | None = None
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    spec: SpecBody | None = None
    """As recorded; None where it was not read."""
    policy: Policy | None = None
    """Of the record's generation."""
    trouble: str = ""
    """Why the drive of the key does not get on."""
    progress: Mapping[str, object] | None = None


@dataclass(kw_only=True)
class Publisher:
    objects: Objects
    meter: Meter
    clock: Callable[[], float] = time.time
    """Unix seconds; of times that people read and of TTLs, never of an order."""
    _refused: dict[Address, Trouble] = field(default_factory=dict)

    def refused(self, address: Address, full: StoreFull) -> None:
        """There is no room for this key."""
        reason = "StoreFull" if isinstance(full, QuotaUsed) else "RealmFull"
        self._refused[address] = Trouble(reason, str(full))

    async def publish(self, looked: Looked, objects: Sequence[tuple[ObjectView, Wanted | None]]) -> float | None:
        """Seconds until an object is due to be deleted, or None. ApiUnavailable, ApiRefused: some may not have been told."""
        writes = [self._tell(looked, view, wanted) for view, wanted in objects]
        told = await asyncio.gather(*writes, return_exceptions=True)
        if problems := [each for each in told if isinstance(each, BaseException)]:
            raise problems[0]
        return await self._due(looked, [view for view, _ in objects])

    async def _tell(self, looked: Looked, view: ObjectView, wanted: Wanted | None) -> None:
        placed = looked.plan.of(view.uid)
        trouble = self._trouble(looked, wanted)
        if placed.standing in _SILENT or (placed.standing in _SOON and trouble is None):
            return
        paths = None
        if (
            placed.standing is Standing.MISMATCH
            and looked.view.record is not None
            and looked.spec is not None
            and wanted
        ):
            paths = wanted.differing(looked.view.record, looked.spec)
        now = iso(self.clock())

        def status_of(obj: ObjectView) -> Json:
            return project(
                looked.view,
                obj,
                now_text=now,
                leader=looked.policy,
                result=looked.result,
                evidence=looked.evidence,
                mismatch_paths=paths,
                progress=looked.progress,
                trouble=trouble,
            )

        await self._write(view, status_of, on_told=lambda old, new: self._count(looked, old, new))

    def _trouble(self, looked: Looked, wanted: Wanted | None) -> Trouble | None:
        if looked.trouble:
            return Trouble("Trouble", looked.trouble)
        return self._refused.get(wanted.address) if wanted is not None and looked.view.record is None else None

    async def _write(
        self,
        view: ObjectView,
        status_of: Callable[[ObjectView], Json],
        *,
        on_told: Callable[[Json, Json], None] = lambda *_: None,
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
                return None  # another object, or edited since: the watch tells, and it is looked at anew
            wanted = next_status(obj.status, status_of(obj), conflicted=tries > 1)
            if tries > 1:
                self.meter.conflicted()
            if wanted is not None:
                said = body, dict(obj.status), wanted
            return wanted

        await self.objects.write_status(view.ref, make)
        if said is not None:
            body, old, new = said
            on_told(old, new)
            for event in transitions(old, new):
                self.objects.emit(body, event.kind, event.reason, event.message)

    def _count(self, looked: Looked, old: Json, new: Json) -> None:
        """Of what a status tells for the first time."""
        if new.get("phase") == "Mismatch" and old.get("phase") != "Mismatch":
            self.meter.mismatched()
        record = looked.view.record
        told = old.get("phase") == new.get("phase") and old.get("generation") == new.get("generation")
        if record is not None and not told and new.get("replayed") and record.state is State.FINALIZED:
            self.meter.replayed(executor_seconds=_executor_seconds(looked.spec, record))

    async def invalid(self, objects: Sequence[tuple[Json, Wanted | Invalid]]) -> None:
        """Says which field is wrong; the object runs nothing until it is edited."""
        for body, read in objects:
            if isinstance(read, Wanted):
                continue  # edited since, and looked at under its key
            trouble = Trouble("InvalidSpec", read.message, final=True)
            await self._without_record(ObjectView.of(body, None), trouble)

    async def alarm(self, objects: Sequence[ObjectView], why: str) -> None:
        """An object that has been answered keeps its answer; one that waits is told why."""
        trouble = Trouble("StoreRewound", why, unknown=True)
        for view in objects:
            await self._without_record(view, trouble)

    async def unreadable(self, objects: Sequence[ObjectView], problem: Exception) -> None:
        """Told to those that nobody has told anything: a process that can read the record may have said more."""
        reason = "RecordUnreadable" if isinstance(problem, RecordUnreadable) else "RecordTooNew"
        trouble = Trouble(reason, str(problem), unknown=True)
        for view in objects:
            if not view.status:
                await self._without_record(view, trouble)

    async def _without_record(self, view: ObjectView, trouble: Trouble) -> None:
        now = iso(self.clock())
        await self._write(view, lambda obj: project(None, obj, now_text=now, trouble=trouble))

    async def _due(self, looked: Looked, objects: Sequence[ObjectView]) -> float | None:
        """ttlSecondsAfterFinished, of each object by itself, once its status says the end."""
        record = looked.view.record
        if record is not None:
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
    """What running it again would have cost: executors times their cores times the seconds it took, as far as the spec says."""
    if spec is None or record.finalized_at is None:
        return 0.0
    template = IdempotentJob.of(spec.job).spec.template.spec
    executor = template.get("executor")
    executor = executor if isinstance(executor, dict) else {}
    instances, cores = executor.get("instances", 1), executor.get("cores", 1)
    if not isinstance(instances, int | float) or not isinstance(cores, int | float):
        return 0.0
    return float(instances) * float(cores) * max(0.0, record.finalized_at - record.created_at)
