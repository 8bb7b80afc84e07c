"""Reconciles one key: takes it over, opens a generation, attaches objects, requests the end, and reports in the objects' statuses.

Level-triggered: a reconcile reads the current state and performs the next step; nothing depends on which event caused it. Every write is
conditional on what this reconcile read, so that one which froze in the middle, or runs in two processes at once, changes nothing.

A key whose request is unanswered is left alone until `admission` has its answer. Source: docs/design.md, sections 4 to 7.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkonce import failpoints
from sparkonce.attempt.decide import Alarm, Decision, Observation
from sparkonce.attempt.drive import Drive, Ended, NotOurs
from sparkonce.attempt.limits import OutputLimits
from sparkonce.attempt.settle import Offload, inline
from sparkonce.controller.admission import Admission
from sparkonce.controller.desired import NO_REALM, Desired, DesiredReader
from sparkonce.controller.drive_tasks import DriveBuilder, DriveTasks, OwnedKey
from sparkonce.controller.garbage_collection import GarbageCollection
from sparkonce.controller.lease_guard import LeaseGuard
from sparkonce.controller.objects import JobObjects, Json, ObjectView
from sparkonce.controller.plan import Plan, Relation, plan
from sparkonce.controller.reads import KeyReader, RecordedJob
from sparkonce.controller.rewind_guard import RewindGuard, Witness, implausible
from sparkonce.controller.status_writer import JobStatusWriter, KeyReading
from sparkonce.controller.workqueue import Permits
from sparkonce.errors import RecordTooNew, RecordUnreadable, StoreUnavailable, StoreUnusable
from sparkonce.model.identity import UnknownFingerprintVersion
from sparkonce.model.record import Address, Record, SpecBody, State, StopWanted, Why
from sparkonce.observe.meter import Meter
from sparkonce.store.protocol import Attached, IdempotencyStore, Owned, View

log = logging.getLogger(__name__)

MOST_UNOWNED = 10_000
"""Keys whose claim has ended that are remembered."""
NOT_SEEN = 0.2
"""Seconds until a key is reconciled again that was due before the cache was synced or the roster was read: before that, statuses that may
prove a rewound store are missing, or the version of statuses to write is unknown."""
UNPLACED = 0.3
"""Seconds before a status reports a new generation without its application: usually that exists by then, and one write reports both."""
MOVED = 0.01
"""Seconds until the key is reconciled again after its record was written: the next step is planned from the new record."""


@dataclass(kw_only=True)
class Reconciler:
    """Implements `controller.KeyReconciler`; one per process."""

    store: IdempotencyStore
    objects: JobObjects
    lease_guard: LeaseGuard
    reader: DesiredReader
    status_writer: JobStatusWriter
    rewind_guard: RewindGuard
    meter: Meter
    admission: Admission = field(init=False)
    permits: Permits
    owner: str
    garbage: GarbageCollection
    enqueue: Callable[[Address], None]
    """Enqueues a key, due at once."""
    builder: DriveBuilder
    """Makes each key's drive."""
    probes: Offload = inline
    """Where the outputs of recorded results are probed; its callers are the controller's few workers."""
    limits: OutputLimits = field(default_factory=OutputLimits)
    """What this process may do at outputs."""
    drives: DriveTasks = field(init=False)
    reads: KeyReader = field(init=False)
    _ended: dict[Address, Ended] = field(default_factory=dict)
    _unowned: dict[Address, float] = field(default_factory=dict)
    """When each key's claim ended (monotonic seconds), to measure the latency of takeovers. The newest ones: those that another
    replica took over are not removed."""

    def __post_init__(self) -> None:
        self.reads = KeyReader(
            store=self.store,
            objects=self.objects,
            reader=self.reader,
            reaches=self.builder.settlers.reaches,
            offload=self.probes,
            limits=self.limits,
        )
        self.drives = DriveTasks(
            self.lease_guard,
            make=self._drive_of,
            on_end=self._on_end,
            on_trouble=self._on_trouble,
        )
        self.admission = Admission(
            store=self.store,
            objects=self.objects,
            lease_guard=self.lease_guard,
            reader=self.reader,
            meter=self.meter,
            permits=self.permits,
            new_nonce=self.builder.new_nonce,
            on_owned=self._on_owned,
            on_full=self.status_writer.refused,
            on_wait=self.status_writer.waits_for_slot,
            enqueue=self.enqueue,
            refusal=self.reads.refusal,
            in_doubt=lambda realm: self.rewind_guard.alarm_of(realm) is not None,
        )

    # --- called by the controller

    def record_changed(self, address: Address, revision: int) -> bool:
        return self.drives.wake(address, revision=revision)

    def unreported(self, address: Address, revision: int) -> bool:
        """Whether an object of the key lacks this revision, by the cache alone: no request is sent."""
        statuses = (body.get("status") or {} for body in self.objects.of(address))
        return any(int(status.get("ledgerRevision") or 0) < revision for status in statuses)

    def changed(self, hash20: str) -> None:
        """Call when an application or a pod with this label changed."""
        self.drives.wake_named(hash20)

    def claim_ended(self, address: Address) -> None:
        self._unowned[address] = time.monotonic()
        while len(self._unowned) > MOST_UNOWNED:
            del self._unowned[next(iter(self._unowned))]

    def lease_lost(self) -> None:
        for address in self.drives.drop_all():
            self.admission.free(address)
            self.enqueue(address)

    async def drain(self) -> None:
        self.admission.stop()
        await self.drives.drain()

    @property
    def alarmed(self) -> bool:
        return self.rewind_guard.alarm is not None

    async def see_objects(self) -> None:
        if not self.objects.synced:
            await self.garbage.relist()

    async def swept(self) -> None:
        await self.garbage.relist()
        if not self.alarmed:
            await self.garbage.sweep()

    # --- one key

    async def reconcile(self, address: Address) -> float | None:
        bodies = self.objects.of(address)
        if self.status_writer.version() is None:
            await self._ask_for_the_roster(address, bodies)
            return NOT_SEEN
        if address.realm == NO_REALM:
            await self.status_writer.invalid([(body, self.reader.read(body)) for body in bodies])
            return None
        if self.admission.repeats(address):
            return None
        if not self.objects.synced:
            return NOT_SEEN
        try:
            return await self._reconcile(address, bodies)
        except (StoreUnavailable, StoreUnusable) as silent:
            await self.status_writer.unanswered(self.reads.views(bodies, None)[0], silent)
            raise
        except (RecordTooNew, RecordUnreadable, UnknownFingerprintVersion) as unread:
            # The record exists: the key is not free, and this process leaves it alone.
            await self.status_writer.unreadable([ObjectView.of(body, None) for body in bodies], unread)
            if isinstance(unread, UnknownFingerprintVersion):
                raise RecordTooNew(str(unread)) from unread
            raise

    async def _ask_for_the_roster(self, address: Address, bodies: Sequence[Json]) -> None:
        """Before the roster was read it is unknown what other processes write into statuses, but an object without a status can already
        report that the ledger does not answer."""
        if address.realm == NO_REALM:
            return
        try:
            await self.store.load(address)
        except (StoreUnavailable, StoreUnusable) as silent:
            await self.status_writer.unanswered(self.reads.views(bodies, None)[0], silent)
            raise

    async def _reconcile(self, address: Address, bodies: Sequence[Json]) -> float | None:
        await self.reads.look_up(bodies)
        own = self._knows(address)
        view, ended = await self._view(address)
        record = view.record
        views, desired = self.reads.views(bodies, record)
        if record is not None and (running := self.drives.get(address)) is not None:
            running.edited(self.reads.edition(record))
        self._report_implausible(bodies, views, view.epoch)
        guard = self.rewind_guard
        alarm = guard.alarm_of(address.realm) if own else await guard.check(view, address, views)
        if alarm is not None:
            await self.status_writer.alarm(views, alarm)
            return None
        if record is not None and record.state is State.IN_PROGRESS and self.drives.get(address) is None:
            owned = await self._own(view, record)
            if owned is None:
                return None
            view = View(owned.record, owned.claim, view.floor, view.revision, view.epoch)
        return await self._answer(address, view, ended, views, desired)

    def _report_implausible(self, bodies: Sequence[Json], views: Sequence[ObjectView], epoch: int) -> None:
        for body, obj in zip(bodies, views, strict=True):
            witness = Witness.of(obj)
            said = obj.implausible or (implausible(witness, epoch) if witness is not None else None)
            if said:
                self.objects.emit(body, "Warning", "ImplausibleStatus", said)
            if obj.rerun_refused:
                self.objects.emit(body, "Warning", "RerunRefused", obj.rerun_refused)

    def _knows(self, address: Address) -> bool:
        """Whether our cached record is current: we wrote it last."""
        return self.drives.get(address) is not None or getattr(self._ended.get(address), "result", None) is not None

    async def _view(self, address: Address) -> tuple[View, Ended | None]:
        """The key's view: as its drive wrote it last, if driven here, else from the store; and the result, if the key is finalized."""
        running = self.drives.get(address)
        if running is not None:
            record = running.record
            return View(record, running.claim, record.generation, record.revision, record.epoch), None
        if (ended := self._ended.pop(address, None)) is not None and ended.result is not None:
            record = ended.record
            return View(record, None, record.generation, record.revision, record.epoch), ended
        view = await self.store.load(address)
        if view.record is None or view.record.state is not State.FINALIZED:
            return view, None
        return view, Ended(view.record, await self.store.result(address, view.record.generation))

    async def _own(self, view: View, record: Record) -> Owned | None:
        """Takes over an unfinished key without an owner. Needs no permit: a generation that was begun must be able to end. None: the key
        has another owner."""
        lease = self.lease_guard.lease
        if view.claim is not None:
            if view.claim.lease != lease.id:
                return None  # its owner acts; if that dies, the watch reports the end of the claim
            owned = Owned(record, view.claim)  # our claim, without a drive
        else:
            failpoints.hit("replica.take-over.before")
            reply = await self.store.take_over(record, lease=lease, nonce=self.builder.new_nonce())
            if not isinstance(reply, Owned):
                self.enqueue(record.address)
                return None
            since = self._unowned.pop(record.address, None)
            self.meter.taken_over(None if since is None else time.monotonic() - since)
            owned = reply
        return owned if self._start(owned) else None

    def _start(self, owned: Owned, *, opened: SpecBody | None = None) -> bool:
        """Starts the key's drive. False: the rewind alarm was raised meanwhile; the claim is kept, and driven once the alarm ends."""
        frozen = self.rewind_guard.alarm_of(owned.record.realm) is not None
        if not frozen:
            self.drives.start(owned, opened=opened)
        return not frozen

    async def _answer(
        self,
        address: Address,
        view: View,
        ended: Ended | None,
        views: Sequence[ObjectView],
        desired: dict[str, Desired],
    ) -> float | None:
        record, job = view.record, RecordedJob()
        if record is None and not views:
            return None
        if record is not None:
            job = await self.reads.recorded(record, ended, views, desired)
        todo = plan(view, views, leader=job.policy, evidence=job.evidence, gone=job.gone, on_delete=job.on_delete)
        if record is not None and await self._act_on(record, todo, desired):
            return MOVED
        again: float | None = None
        if todo.opening is not None:
            again = await self.admission.open(view, todo.opening, desired, todo)
            if self.admission.repeats(address):
                await self.status_writer.unanswered(views, StoreUnavailable("its request for this key"))
                return None  # the request's answer enqueues the key
            if self.drives.get(address) is not None:
                return None  # so does the drive's first record
        reading = KeyReading(
            view=view,
            plan=todo,
            result=ended.result if ended is not None else None,
            evidence=job.evidence,
            spec=job.spec,
            policy=job.policy,
            trouble=self._trouble(address),
            progress=self._progress(address),
        )
        due = await self.status_writer.publish(reading, [(v, desired.get(v.uid)) for v in views])
        return min((seconds for seconds in (again, due) if seconds is not None), default=None)

    def _trouble(self, address: Address) -> str:
        running = self.drives.get(address)
        return running.trouble if running is not None else ""

    def _progress(self, address: Address) -> Mapping[str, object] | None:
        running = self.drives.get(address)
        return running.progress.shown if running is not None else None

    async def _act_on(self, record: Record, todo: Plan, desired: dict[str, Desired]) -> bool:
        """Writes requests to stop, and attached objects, into the record; neither needs a claim. True: the record may have changed."""
        if todo.gone or todo.superseded:
            if record.stop_wanted is not None:
                return False
            why = Why.CANCELLED if todo.gone else Why.SUPERSEDED
            reason = "every object of this key was deleted"
            if not todo.gone:
                wanting = [desired[uid] for uid in todo.uids(Relation.SUPERSEDES) if uid in desired]
                reason = wanting[0].supersedes(record) if wanting else "another object of this key replaces it"
            stop = StopWanted(why=why, by=self.owner, reason=reason)
            self._moved(await self.store.request_stop(record, stop))
            return True
        for uid in todo.uids(Relation.ATTACHES):
            reply = await self.store.attach(record, str(desired[uid].ref))
            self._moved(reply)
            if not isinstance(reply, Attached):
                return True
            self.meter.followed()
            record = reply.record
        return bool(todo.uids(Relation.ATTACHES))

    def _moved(self, reply: object) -> None:
        """Passes the record in a reply to the key's drive."""
        record = getattr(reply, "record", None)
        if isinstance(record, Record):
            running = self.drives.get(record.address)
            if running is not None:
                running.moved(record)

    # --- drives

    def _drive_of(self, running: OwnedKey) -> Drive:
        address = running.record.address
        running.edition = self.reads.edition(running.record)

        def on_record(record: Record) -> None:
            before = running.record
            if record.generation == before.generation and record.attempt > before.attempt:
                self.meter.granted(str(record.settling.why) if record.settling is not None else "Unknown")
            if running.read(record):
                self.enqueue(address)

        def on_decision(record: Record, decision: Decision, observation: Observation) -> None:
            running.decided(record, decision, observation)
            if running.progress.moved(observation.progress, time.monotonic()):
                self.enqueue(address)

        return self.builder.build(
            running,
            describe=self.reads.describe,
            edition=self.reads.edition,
            on_decision=on_decision,
            on_record=on_record,
        )

    def _on_owned(self, owned: Owned, opened: SpecBody | None) -> None:
        address = owned.record.address
        if self._start(owned, opened=opened):
            asyncio.get_running_loop().call_later(UNPLACED, self._report_unplaced, address)
        else:
            self.enqueue(address)

    def _report_unplaced(self, address: Address) -> None:
        """Enqueues a key that still has no application; otherwise the application, or the error in creating it, has enqueued it."""
        running = self.drives.get(address)
        if running is not None and running.record.application is None:
            self.enqueue(address)

    def _on_trouble(self, running: OwnedKey) -> None:
        decision = running.decision
        if decision is not None and isinstance(decision.action, Alarm):
            record = running.record
            self.rewind_guard.raise_it(f"{record.key}: {decision.action.note}", realm=record.realm, epoch=record.epoch)
        if running.record.settling is not None:
            self.admission.free(
                running.record.address
            )  # nothing of it runs any more: new keys do not wait for its outputs
        self.enqueue(running.record.address)

    def stop_drives(self, realm: str | None) -> None:
        """Drops the drives of a realm, or of all, when the rewind alarm is raised."""
        for address in self.drives.drop_all(realm):
            self.admission.free(address)

    def _on_end(self, address: Address, ended: Ended | NotOurs | None) -> None:
        self.admission.free(address)
        if isinstance(ended, Ended):
            self._ended[address] = ended
            self._count(ended)
        self.enqueue(address)

    def _count(self, ended: Ended) -> None:
        record = ended.record
        if record.state is State.HELD:
            self.meter.held(str(record.held))
        elif record.finalized_at is not None:
            seconds = max(0.0, record.finalized_at - record.created_at)
            self.meter.finalized(str(record.outcome), attempts=record.attempt, seconds=seconds)
