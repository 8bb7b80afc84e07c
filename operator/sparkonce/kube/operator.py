"""One operator process, put together: store, API server, watches, launcher, engine, and the order in which it starts and ends.

It starts nothing before it has seen every object once and holds a lease, so that a store older than the objects' statuses is noticed
first. On SIGTERM it hands over: nothing is taken in any more, drives are let go while their applications go on, the lease is revoked
last; a successor then adopts within a second. Watches and kopf, which may take their time, end after that. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from sparkonce.engine.attend import Attend
from sparkonce.engine.publish import Publisher
from sparkonce.engine.reach import Settles
from sparkonce.engine.replica import Replica, ReplicaSettings
from sparkonce.engine.rewinding import Rewinding
from sparkonce.engine.settler import Entrusted
from sparkonce.engine.sweeping import Sweeping
from sparkonce.engine.wanted import Reader, Wanted
from sparkonce.engine.workqueue import Slots
from sparkonce.errors import InvalidInput
from sparkonce.kube.client import ApiClient
from sparkonce.kube.events import EventRecorder
from sparkonce.kube.jobs import KnownJobs
from sparkonce.kube.login import Login
from sparkonce.kube.trigger import Trigger
from sparkonce.kube.watch import Change, applications, driver_pods
from sparkonce.launch.kubeflow import KEY_LABEL
from sparkonce.launch.kubeflow_launcher import KubeflowLauncher
from sparkonce.launch.kubeflow_spec import Wanting
from sparkonce.launch.kubernetes import Json
from sparkonce.model.assignment import Assignment, GatewayAddress
from sparkonce.model.record import Address
from sparkonce.observe.meter import Meter, NoMeter
from sparkonce.store.metered import metered
from sparkonce.store.open import open_store
from sparkonce.store.roster import Gateways, Roster

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    store: str
    """etcd://HOST:PORT[,HOST:PORT]"""
    install: str
    """Of this deployment on that store."""
    namespaces: Sequence[str] | None = None
    """None: all of them."""
    kubeconfig: Path | None = None
    realms: Mapping[str, str] = field(default_factory=dict)
    """From namespaces to realms; a namespace that is not named is its own."""
    lease_seconds: int = 10
    max_live_keys: int = 100_000
    """Per realm; a live key is never evicted for a new one."""
    gateway: GatewayAddress | None = None
    """How drivers reach the ledger; without it jobs that declare outputs cannot run."""
    replica: ReplicaSettings = field(default_factory=ReplicaSettings)
    settles: Settles = Settles.AUTO
    """Who settles attempts that declare outputs."""
    settle_after: float = 30.0
    """Seconds for which outputs that do not answer are asked again before a settle run is sent, and between two settle runs."""


class Operator:
    """One process. `ready` and `healthy` answer with one sentence each about what is missing."""

    def __init__(self, settings: OperatorSettings, *, meter: Meter | None = None) -> None:
        self.settings, self.meter = settings, meter or NoMeter()
        self.owner = f"{os.environ.get('POD_NAME') or socket.gethostname()}/{os.getpid()}"
        self.store = open_store(
            settings.store,
            install=settings.install,
            ttl=settings.lease_seconds,
            max_live_keys=settings.max_live_keys,
        )
        if not hasattr(self.store, "announce"):
            raise InvalidInput(
                f"the operator needs a store that several processes share, at etcd://HOST:PORT, and {self.store.url} is none"
            )
        self.store = metered(self.store, self.meter.stored)
        self.login = Login(settings.kubeconfig)
        self.client = ApiClient(self.login, on_call=self.meter.called)
        self.recorder = EventRecorder(self.client, host=self.owner)
        self.reader = Reader(realm_of=lambda namespace: settings.realms.get(namespace, namespace))
        self.trigger = Trigger(self.login, self._told, namespaces=settings.namespaces)
        self.jobs = KnownJobs(
            self.client,
            self.client,
            self.reader,
            namespaces=settings.namespaces,
            recorder=self.recorder,
            listed=lambda: self.trigger.seen_first_list,
            on_change=self._look,
        )
        self.applications = applications(self.client, settings.namespaces, self._application_changed)
        self.pods = driver_pods(self.client, settings.namespaces, self._application_changed)
        self.replica = Replica(
            self.store,
            cast("Roster", self.store),
            owner=self.owner,
            known=self.jobs.addresses,
            waiting=self.jobs.waiting,
            settings=settings.replica,
        )
        self.rewinding = Rewinding(
            self.store, newest=lambda: self.jobs.newest, on_alarm=self._alarmed, on_end=self.replica.sweep_soon
        )
        self.launcher = KubeflowLauncher(
            self.client,
            applications=self.applications,
            pods=self.pods,
            namespace_of=_namespace_of,
            objects_of=self._wanting,
            now=asyncio.get_event_loop().time,
            sleep=asyncio.sleep,
            read_log=self.client.log_tail,
        )
        self.attend = Attend(
            store=self.store,
            launcher=self.launcher,
            follows=self.launcher,
            objects=self.jobs,
            ownership=self.replica.ownership,
            reader=self.reader,
            publisher=Publisher(objects=self.jobs, meter=self.meter),
            rewinding=self.rewinding,
            meter=self.meter,
            slots=Slots(settings.replica.slots),
            gateway=settings.gateway,
            install=settings.install,
            owner=self.owner,
            entrusted=Entrusted(settles=settings.settles, runs=self.launcher, patience=settings.settle_after),
            serving=cast("Gateways", self.store).gateways_serving_for,
            look=lambda address: self.replica.look(address, at_once=True),
            sweeping=Sweeping(
                store=self.store,
                roster=cast("Roster", self.store),
                kubernetes=self.client,
                launcher=self.launcher,
                install=settings.install,
                namespaces=settings.namespaces,
                leads=lambda: self.replica.rank(SWEEPER) == 0,
                relist=self.jobs.relist,
                told_all=self.jobs.told_all,
            ),
        )

    # --- what watches tell

    def _told(self, kind: str | None, body: Json) -> None:
        self.meter.triggered("job")
        self.jobs.told(kind, body)

    def _look(self, address: Address, edited: bool) -> None:  # noqa: FBT001 - a callback's
        """Whoever drives the key looks at once, the others behind each other; and they leave its statuses to it."""
        driven = self.attend.driving.get(address) is not None
        if driven or edited:
            self.replica.look(address, at_once=driven)

    def _application_changed(self, change: Change, found: Json) -> None:
        del change
        self.meter.triggered(str(found.get("kind") or "application").lower())
        name = (found["metadata"].get("labels") or {}).get(KEY_LABEL)
        if name:
            self.attend.changed(str(name))

    def _alarmed(self, why: str) -> None:
        self.meter.alarmed()
        log.error("StoreRewound: %s", why)
        self.attend.stop_all()

    async def _wanting(self, assignment: Assignment) -> Sequence[Wanting]:
        """All live objects of the key: who is gone must not own an application, which would be collected at once."""
        wanting: list[Wanting] = []
        for body in self.jobs.of(assignment.address):
            read = self.reader.read(body)
            if not isinstance(read, Wanted):
                continue
            if await self.jobs.lives(read.ref):
                ref = read.ref
                wanting.append(
                    Wanting(name=ref.name, namespace=ref.namespace, uid=ref.uid, on_delete=read.policy.on_delete)
                )
        return wanting

    # --- life

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        self.recorder.start()
        self.applications.start()
        self.pods.start()
        self.trigger.start()
        try:
            yield
        finally:
            await self.trigger.stop()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, then hands over and returns. Raises what ends the process for good."""
        try:
            async with self._watching():
                running = asyncio.create_task(self.replica.run(self.attend), name="replica")
                stopping = asyncio.create_task(stop.wait(), name="stop")
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                await self.replica.hand_over()  # before the trigger ends, for which kopf may take its time
        finally:
            await self._close()

    async def _close(self) -> None:
        await self.recorder.stop()
        await self.applications.stop()
        await self.pods.stop()
        await self.client.close()
        await self.store.close()

    def ready(self) -> str | None:
        """None: yes; else what is missing."""
        checks: list[tuple[bool, str]] = [
            (self.jobs.synced, "the IdempotentJobs have not all been seen yet"),
            (self.applications.synced, "the SparkApplications have not all been seen yet"),
            (self.pods.synced, "the driver pods have not all been seen yet"),
            (self.replica.ownership.alive(), "no lease is held on the store"),
            (self.rewinding.alarm is None, self.rewinding.alarm or ""),
        ]
        return next((why for holds, why in checks if not holds), None)

    def gauges(self) -> dict[str, float]:
        """What is read when somebody asks; `observe.metrics.GAUGES` says what they are."""
        return {
            "queue_depth": float(len(self.replica.queue)),
            "queue_seconds": self.replica.queue.oldest_wait,
            "work_seconds": self.replica.queue.oldest_work,
            "lease_seconds": self.replica.ownership.left,
            "drives": float(len(self.attend.driving)),
            "objects": float(len(self.jobs)),
            "slots": float(self.attend.slots.limit),
            "slots_taken": float(self.attend.slots.taken),
            "ready": float(self.ready() is None),
            "store_alarm": float(self.rewinding.alarm is not None),
            **cast("Mapping[str, float]", getattr(self.store, "used", dict)()),
        }


SWEEPER = Address(realm="-", key_hash="1" * 64)
"""No key has this address: the replica that comes first for it does what one of them should do."""


def _namespace_of(assignment: Assignment) -> str:
    metadata: dict[str, Any] = assignment.spec.job.get("metadata") or {}
    return str(metadata.get("namespace") or "default")
