"""What an operator process does about one key when it looks at it: own it, open it, attach to it, end it, and say what became of it.

Level-triggered: a look reads what stands there now and does the next thing; nothing depends on which event caused it. Every write
compares what this look had read, so that a look of a process that froze in the middle, or a second process in the same look, changes
nothing. The order for a new object is the floor, then the object itself, then the reserve that compares that floor: an object that was
answered and deleted in between is seen to be gone.

An unanswered reserve is never given up: it is repeated with its nonce in the background until it is answered, and then driven; meanwhile
nothing else is done about the key. Source: DESIGN sections 4 to 7.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkonce import failpoints
from sparkonce.engine.decide import Alarm, Decision, Observation
from sparkonce.engine.drive import Drive, Ended, NotOurs
from sparkonce.engine.driving import Driving, Running
from sparkonce.engine.listening import hearing
from sparkonce.engine.looking import Looking
from sparkonce.engine.object_view import Json, ObjectView
from sparkonce.engine.objects import Objects
from sparkonce.engine.ownership import Ownership
from sparkonce.engine.publish import Looked, Publisher
from sparkonce.engine.requests import Plan, Standing, plan
from sparkonce.engine.reserving import Reserving
from sparkonce.engine.rewinding import Rewinding
from sparkonce.engine.settler import Entrusted
from sparkonce.engine.sweeping import Sweeping
from sparkonce.engine.wanted import NO_REALM, Reader, Wanted, describe
from sparkonce.engine.workqueue import Slots
from sparkonce.errors import RecordTooNew, RecordUnreadable
from sparkonce.launch.protocol import Follows, Launcher
from sparkonce.model.assignment import GatewayAddress
from sparkonce.model.fingerprint import UnknownFingerprintVersion
from sparkonce.model.policy import OnDelete
from sparkonce.model.record import Address, Record, SpecBody, State, StopWanted, Why
from sparkonce.observe.meter import Meter
from sparkonce.store.protocol import (
    Attached,
    IdempotencyStore,
    Owned,
    View,
)

log = logging.getLogger(__name__)

NOT_SEEN = 0.2
"""Seconds until a key is looked at again that came up before every object was seen: what they say of the ledger is not known yet."""
UNPLACED = 0.3
"""Seconds until a new generation is told of without its application: in the usual case that exists by then, and one status says both."""
MOVED = 0.01
"""Seconds until the next look after this one wrote into the record: what follows is planned from what stands there then."""


@dataclass(kw_only=True)
class Attend:
    """One per process; see `replica.Attendant`."""

    store: IdempotencyStore
    launcher: Launcher
    objects: Objects
    ownership: Ownership
    reader: Reader
    publisher: Publisher
    rewinding: Rewinding
    meter: Meter
    reserving: Reserving = field(init=False)
    slots: Slots
    install: str
    owner: str
    sweeping: Sweeping
    look: Callable[[Address], None]
    """Puts a key into the queue, at once."""
    follows: Follows | None = None
    """Looks at applications of somebody else."""
    entrusted: Entrusted = field(default_factory=Entrusted)
    """Who settles."""
    serving: Callable[[], Awaitable[float | None]] | None = None
    """For how many seconds gateways have served without a gap; see `listening.hearing`. None: drivers speak to the store."""
    gateway: GatewayAddress | None = None
    """How drivers reach the ledger; None: they do not."""
    new_nonce: Callable[[], str] = lambda: uuid.uuid4().hex
    driving: Driving = field(init=False)
    looking: Looking = field(init=False)
    _ended: dict[Address, Ended] = field(default_factory=dict)
    _unowned: dict[Address, float] = field(default_factory=dict)
    """Keys whose claim ended, and when (monotonic): for the latency of a takeover."""

    def __post_init__(self) -> None:
        self.looking = Looking(
            store=self.store, objects=self.objects, reader=self.reader, reaches=self.entrusted.reaches
        )
        self.driving = Driving(
            self.ownership,
            make=self._drive_of,
            on_end=self._on_end,
            on_trouble=self._on_trouble,
        )
        self.reserving = Reserving(
            store=self.store,
            objects=self.objects,
            ownership=self.ownership,
            reader=self.reader,
            meter=self.meter,
            slots=self.slots,
            new_nonce=self.new_nonce,
            on_owned=self._on_owned,
            on_full=self.publisher.refused,
            look=self.look,
            in_doubt=lambda: self.alarmed,
        )

    # --- what the replica tells

    def told(self, address: Address, revision: int) -> bool:
        return self.driving.wake(address, revision=revision)

    def untold(self, address: Address, revision: int) -> bool:
        """By what is known of the objects: in the usual case nobody is asked anything."""
        statuses = (body.get("status") or {} for body in self.objects.of(address))
        return any(int(status.get("ledgerRevision") or 0) < revision for status in statuses)

    def changed(self, hash20: str) -> None:
        """An application or a pod with this label did."""
        self.driving.wake_named(hash20)

    def unowned(self, address: Address) -> None:
        self._unowned[address] = time.monotonic()

    def lease_lost(self) -> None:
        for address in self.driving.drop_all():
            self.reserving.free(address)
            self.look(address)

    async def drain(self) -> None:
        self.reserving.stop()
        await self.driving.drain()

    @property
    def alarmed(self) -> bool:
        return self.rewinding.alarm is not None

    async def swept(self) -> None:
        await self.sweeping.relist()
        if not self.alarmed:
            await self.sweeping.sweep()

    # --- one look

    async def attend(self, address: Address) -> float | None:
        bodies = self.objects.of(address)
        if address.realm == NO_REALM:
            await self.publisher.invalid([(body, self.reader.read(body)) for body in bodies])
            return None
        if self.reserving.pursues(address):
            return None
        if not self.objects.synced:
            return NOT_SEEN
        try:
            return await self._look(address, bodies)
        except (RecordTooNew, RecordUnreadable, UnknownFingerprintVersion) as unread:
            # It is there, and nothing is done about it here.
            await self.publisher.unreadable([ObjectView.of(body, None) for body in bodies], unread)
            if isinstance(unread, UnknownFingerprintVersion):
                raise RecordTooNew(str(unread)) from unread
            raise

    async def _look(self, address: Address, bodies: Sequence[Json]) -> float | None:
        own = self._knows(address)
        view, ended = await self._view(address)
        record = view.record
        views, wanted = self.looking.views(bodies, record)
        if record is not None and (running := self.driving.get(address)) is not None:
            running.edited(self.looking.edition(record))
        alarm = self.rewinding.alarm if own else await self.rewinding.check(view, address, views)
        if alarm is not None:
            await self.publisher.alarm(views, alarm)
            return None
        if record is not None and record.state is State.IN_PROGRESS and self.driving.get(address) is None:
            owned = await self._own(view, record)
            if owned is None:
                return None
            view = View(owned.record, owned.claim, view.floor, view.revision, view.epoch)
        return await self._answer(address, view, ended, views, wanted)

    def _knows(self, address: Address) -> bool:
        """The store has just answered a write of this process: nothing can have seen more of the key."""
        ended = self._ended.get(address)
        return self.driving.get(address) is not None or (ended is not None and ended.result is not None)

    async def _view(self, address: Address) -> tuple[View, Ended | None]:
        """The key as it stands; of a key that is driven here, as its drive wrote it last."""
        running = self.driving.get(address)
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
        """An unfinished key without an owner is taken over: no slot is needed, since what was begun must be able to end."""
        lease = self.ownership.lease
        if view.claim is not None:
            if view.claim.lease != lease.id:
                return None  # its owner does what is to be done, or its claim ends and the store tells
            owned = Owned(record, view.claim)  # ours, and nothing drives it
        else:
            failpoints.hit("replica.take-over.before")
            reply = await self.store.take_over(record, lease=lease, nonce=self.new_nonce())
            if not isinstance(reply, Owned):
                self.look(record.address)
                return None
            since = self._unowned.pop(record.address, None)
            self.meter.taken_over(None if since is None else time.monotonic() - since)
            owned = reply
        return owned if self._start(owned) else None

    def _start(self, owned: Owned, *, opened: SpecBody | None = None) -> bool:
        """False: the alarm was raised meanwhile. The claim is kept: it is found, and driven, when the alarm ends."""
        if not self.alarmed:
            self.driving.start(owned, opened=opened)
        return not self.alarmed

    async def _answer(
        self,
        address: Address,
        view: View,
        ended: Ended | None,
        views: Sequence[ObjectView],
        wanted: dict[str, Wanted],
    ) -> float | None:
        record, result = view.record, ended.result if ended is not None else None
        if record is None and not views:
            return None
        spec = ended.spec if ended is not None else None
        spec = spec or await self.looking.spec_if(record, views)
        policy = self.looking.policy(record, spec, wanted)
        evidence = await self.looking.evidence(record, result, spec, views)
        gone = await self.looking.gone(record, policy, views)
        on_delete = policy.on_delete if policy is not None else OnDelete.STOP
        if record is not None and record.bound is not None:
            on_delete = OnDelete.DETACH  # there is nothing to stop: its application is not ours
        todo = plan(view, views, leader=policy, evidence=evidence, gone=gone, on_delete=on_delete)
        if record is not None and await self._act_on(record, todo, wanted):
            return MOVED  # what follows is planned from what it says now
        again: float | None = None
        if todo.opening is not None:
            again = await self.reserving.open(view, todo.opening, wanted, todo)
            if self.driving.get(address) is not None or self.reserving.pursues(address):
                return None  # its drive's first words, or the answer, put it into the queue
        looked = Looked(
            view=view,
            plan=todo,
            result=result,
            evidence=evidence,
            spec=spec,
            policy=policy,
            trouble=self._trouble(address),
            progress=self._progress(address),
        )
        due = await self.publisher.publish(looked, [(v, wanted.get(v.uid)) for v in views])
        return min((seconds for seconds in (again, due) if seconds is not None), default=None)

    def _trouble(self, address: Address) -> str:
        running = self.driving.get(address)
        return running.trouble if running is not None else ""

    def _progress(self, address: Address) -> Mapping[str, object] | None:
        running = self.driving.get(address)
        return running.progress.shown if running is not None else None

    async def _act_on(self, record: Record, todo: Plan, wanted: dict[str, Wanted]) -> bool:
        """Writes what the objects want into the record, without a claim; True: it has changed."""
        if todo.gone or todo.superseded:
            if record.stop_wanted is not None:
                return False
            why = Why.CANCELLED if todo.gone else Why.SUPERSEDED
            reason = "every object of this key was deleted" if todo.gone else "another object of this key replaces it"
            wish = StopWanted(why=why, by=self.owner, reason=reason)
            self._moved(await self.store.request_stop(record, wish))
            return True
        for uid in todo.uids(Standing.ATTACHES):
            reply = await self.store.attach(record, str(wanted[uid].ref))
            self._moved(reply)
            if not isinstance(reply, Attached):
                return True
            self.meter.followed()
            record = reply.record
        return bool(todo.uids(Standing.ATTACHES))

    def _moved(self, reply: object) -> None:
        """The drive of the key reads the record again, and the next look here sees it at once."""
        record = getattr(reply, "record", None)
        if isinstance(record, Record):
            running = self.driving.get(record.address)
            if running is not None:
                running.moved(record)

    # --- drives

    def _drive_of(self, running: Running) -> Drive:
        address = running.record.address
        running.edition = self.looking.edition(running.record)

        def on_record(record: Record) -> None:
            before = running.record
            if record.generation == before.generation and record.attempt > before.attempt:
                self.meter.granted(str(record.settling.why) if record.settling is not None else "Unknown")
            if running.read(record):
                self.look(address)

        def on_decision(record: Record, decision: Decision, observation: Observation) -> None:
            running.decided(record, decision, observation)
            if running.progress.moved(observation.progress, time.monotonic()):
                self.look(address)

        drive = Drive(
            store=self.store,
            launcher=self.launcher,
            describe=lambda record, spec: describe(record, spec, self.looking.leader(record)),
            wait=running.wait,
            new_nonce=self.new_nonce,
            install=self.install,
            store_url="",
            follows=self.follows,
            gateway=self.gateway,
            owner=self.owner,
            edition=self.looking.edition,
            on_decision=on_decision,
            on_record=on_record,
            guard=self.ownership.guard,
            settler=self.entrusted.settler(self.store, self.owner),
            hears=None if self.serving is None else hearing(self.serving, lambda: time.monotonic() - running.since),
            polled=False,
        )
        if running.opened is not None:
            drive.opened(running.record, running.opened)
        return drive

    def _on_owned(self, owned: Owned, opened: SpecBody | None) -> None:
        address = owned.record.address
        if self._start(owned, opened=opened):
            asyncio.get_running_loop().call_later(UNPLACED, self._tell_unplaced, address)
        else:
            self.look(address)

    def _tell_unplaced(self, address: Address) -> None:
        """An application that exists has put the key into the queue, and one that cannot be made has, too; what is left waits."""
        running = self.driving.get(address)
        if running is not None and running.record.application is None:
            self.look(address)

    def _on_trouble(self, running: Running) -> None:
        decision = running.decision
        if decision is not None and isinstance(decision.action, Alarm):
            self.rewinding.raise_it(f"{running.record.key}: {decision.action.note}", epoch=running.record.epoch)
        self.look(running.record.address)

    def stop_all(self) -> None:
        """StoreRewound: nothing is started and nothing is ended."""
        for address in self.driving.drop_all():
            self.reserving.free(address)

    def _on_end(self, address: Address, ended: Ended | NotOurs | None) -> None:
        self.reserving.free(address)
        if isinstance(ended, Ended):
            self._ended[address] = ended
            self._count(ended)
        self.look(address)

    def _count(self, ended: Ended) -> None:
        record = ended.record
        if record.state is State.HELD:
            self.meter.held(str(record.held))
        elif record.finalized_at is not None:
            seconds = max(0.0, record.finalized_at - record.created_at)
            self.meter.finalized(str(record.outcome), attempts=record.attempt, seconds=seconds)
