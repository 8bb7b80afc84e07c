"""The operator process: wires store, API server, watches, launcher and controller, starts them in order, serves HTTP and handles signals.

No work starts before every object was listed once and a lease is held, so that a store older than the objects' statuses is detected first.
On SIGTERM the process hands over: it accepts no more work, releases its drives while their applications continue, and revokes the lease
last; a successor adopts within a second. Watches and kopf, which may be slow to stop, end after that. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from sparkonce.attempt.limits import SEVERAL, OutputLimits
from sparkonce.attempt.settle import DelegatedSettler, Settles
from sparkonce.controller.controller import Controller, ControllerSettings
from sparkonce.controller.desired import Desired, DesiredReader
from sparkonce.controller.drive_tasks import DriveBuilder
from sparkonce.controller.garbage_collection import GarbageCollection
from sparkonce.controller.output_threads import OutputThreads
from sparkonce.controller.reconcile import Reconciler
from sparkonce.controller.rewind_guard import RewindGuard
from sparkonce.controller.status_writer import JobStatusWriter
from sparkonce.controller.workqueue import Permits
from sparkonce.kube.client import ApiClient
from sparkonce.kube.events import EventRecorder
from sparkonce.kube.jobs import KnownJobs
from sparkonce.kube.login import KubeLogin
from sparkonce.kube.trigger import Trigger
from sparkonce.kube.watch import ObjectChange, applications, driver_pods
from sparkonce.launch.kubeflow.labels import KEY_LABEL
from sparkonce.launch.kubeflow.launcher import KubeflowLauncher
from sparkonce.launch.kubeflow.spec import Wanting
from sparkonce.launch.kubernetes import NAMESPACES, Json
from sparkonce.model.record import Address, Assignment, GatewayAddress
from sparkonce.observe.health import serve as serve_health
from sparkonce.observe.log_format import configure
from sparkonce.observe.meter import Meter, NoMeter
from sparkonce.observe.metrics import Metrics
from sparkonce.sink.allowed import AllowedOutputs
from sparkonce.store.instrumented import metered
from sparkonce.store.open import open_shared
from sparkonce.store.roster import Gateways, Roster

log = logging.getLogger(__name__)


SETTLING = 32
"""Threads in which the keys of one namespace are settled and swept at a time."""
PROBING = 4
"""Threads in which recorded results of one namespace are checked at a time: fewer than the controller has workers."""
PROBE = 5.0
"""Seconds that a replay waits for its outputs; then it says that they were not checked."""


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    store: str
    """etcd://HOST:PORT[,HOST:PORT], or postgresql://HOST/DATABASE"""
    install: str
    """Id of this deployment on that store."""
    namespaces: Sequence[str] | None = None
    """None: all of them."""
    kubeconfig: Path | None = None
    realms: Mapping[str, str] = field(default_factory=dict)
    """From namespaces to realms; a namespace that is not named is its own."""
    lease_seconds: int = 10
    max_live_keys: int = 100_000
    """Live keys per realm; a live key is never evicted for a new one."""
    gateway: GatewayAddress | None = None
    """How drivers reach the ledger; without it jobs that declare outputs cannot run."""
    replica: ControllerSettings = field(default_factory=ControllerSettings)
    settles: Settles = Settles.AUTO
    """Who settles attempts that declare outputs."""
    allowed: AllowedOutputs | None = None
    """The outputs that each namespace may have this operator act on; None: no list."""
    settle_after: float = 30.0
    """Seconds for which outputs that do not answer are asked again before a settle run is sent, and between two settle runs."""
    output_seconds: float = 60.0
    """The longest that a key waits for its outputs before it reports that they do not answer."""


class Operator:
    """One process. `ready` and `healthy` answer with one sentence each about what is missing."""

    def __init__(self, settings: OperatorSettings, *, meter: Meter | None = None) -> None:
        self.settings, self.meter = settings, meter or NoMeter()
        self.owner = f"{os.environ.get('POD_NAME') or socket.gethostname()}/{os.getpid()}"
        ledger = open_shared(
            settings.store,
            install=settings.install,
            by="the operator",
            ttl=settings.lease_seconds,
            max_live_keys=settings.max_live_keys,
        )
        self.store = metered(ledger, self.meter.stored)
        self.login = KubeLogin(settings.kubeconfig)
        self.client = ApiClient(self.login, on_call=self.meter.called)
        self.recorder = EventRecorder(self.client, host=self.owner)
        self.reader = DesiredReader(realm_of=lambda namespace: settings.realms.get(namespace, namespace))
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
        self.replica = Controller(
            self.store,
            cast("Roster", self.store),
            owner=self.owner,
            known=self.jobs.addresses,
            waiting=self.jobs.waiting,
            settings=settings.replica,
        )
        self.rewind_guard = RewindGuard(
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
            read_events=self.client.warnings,
        )
        self.limits = OutputLimits.for_(
            settings.settles, settings.allowed, namespaces=settings.namespaces, labels=self._labels
        )
        self.reconciler = Reconciler(
            store=self.store,
            objects=self.jobs,
            lease_guard=self.replica.lease_guard,
            reader=self.reader,
            status_writer=JobStatusWriter(objects=self.jobs, meter=self.meter, version=lambda: self.replica.statuses),
            rewind_guard=self.rewind_guard,
            meter=self.meter,
            permits=Permits(settings.replica.slots, shared=settings.namespaces is None or len(settings.namespaces) > 1),
            owner=self.owner,
            builder=DriveBuilder(
                store=self.store,
                launcher=self.launcher,
                lease_guard=self.replica.lease_guard,
                install=settings.install,
                owner=self.owner,
                follows=self.launcher,
                settlers=DelegatedSettler(
                    settles=settings.settles,
                    runs=self.launcher,
                    patience=settings.settle_after,
                    offload=OutputThreads(seconds=settings.output_seconds, per_realm=SETTLING),
                ),
                serving=cast("Gateways", self.store).gateways_serving_for,
                gateway=settings.gateway,
            ),
            probes=OutputThreads(seconds=min(PROBE, settings.output_seconds), per_realm=PROBING, queues=False),
            limits=self.limits,
            enqueue=lambda address: self.replica.enqueue(address, at_once=True),
            garbage=GarbageCollection(
                store=self.store,
                roster=cast("Roster", self.store),
                kubernetes=self.client,
                launcher=self.launcher,
                install=settings.install,
                namespaces=settings.namespaces,
                leads=lambda: self.replica.rank(SWEEPER) == 0,
                relist=self.jobs.relist,
                reported_all=self.jobs.reported_all,
                frozen=lambda realm: self.rewind_guard.alarm_of(realm) is not None,
            ),
        )

    # --- watch callbacks

    def _told(self, kind: str | None, body: Json) -> None:
        self.meter.triggered("job")
        self.jobs.told(kind, body)

    def _look(self, address: Address, edited: bool) -> None:  # noqa: FBT001 - a callback's
        """Queues a key: at once in the process that drives it, in turn in the others, which ignore changes of its status."""
        driven = self.reconciler.drives.get(address) is not None
        if driven or edited:
            self.replica.enqueue(address, at_once=driven)

    def _application_changed(self, change: ObjectChange, found: Json) -> None:
        del change
        self.meter.triggered(str(found.get("kind") or "application").lower())
        name = (found["metadata"].get("labels") or {}).get(KEY_LABEL)
        if name:
            self.reconciler.changed(str(name))

    def _alarmed(self, why: str, realm: str | None) -> None:
        self.meter.alarmed()
        log.error("StoreRewound: %s: %s", "all namespaces" if realm is None else f"namespace {realm}", why)
        self.reconciler.stop_drives(realm)

    async def _wanting(self, assignment: Assignment) -> Sequence[Wanting]:
        """The live objects of the key. A deleted one must not own an application, which would be garbage-collected at once."""
        wanting: list[Wanting] = []
        for body in self.jobs.of(assignment.address):
            read = self.reader.read(body)
            if not isinstance(read, Desired):
                continue
            if await self.jobs.lives(read.ref):
                ref = read.ref
                wanting.append(
                    Wanting(name=ref.name, namespace=ref.namespace, uid=ref.uid, on_delete=read.policy.on_delete)
                )
        return wanting

    async def _labels(self, namespace: str) -> Mapping[str, str] | None:
        found = await self.client.get(NAMESPACES, None, namespace)
        return None if found is None else dict(found["metadata"].get("labels") or {})

    # --- lifecycle

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
        """Runs until `stop` is set, then hands over and returns.

        Raises:
            Exception: an error that must end the process.
        """
        try:
            async with self._watching():
                running = asyncio.create_task(self.replica.run(self.reconciler), name="replica")
                stopping = asyncio.create_task(stop.wait(), name="stop")
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                await self.replica.hand_over()  # before the trigger stops, which kopf may delay
        finally:
            await self._close()

    async def _close(self) -> None:
        await self.recorder.stop()
        await self.applications.stop()
        await self.pods.stop()
        await self.client.close()
        await self.store.close()

    def ready(self) -> str | None:
        """What is missing for readiness; None if ready."""
        checks: list[tuple[bool, str]] = [
            (self.jobs.synced, "the IdempotentJobs have not all been seen yet"),
            (self.applications.synced, "the SparkApplications have not all been seen yet"),
            (self.pods.synced, "the driver pods have not all been seen yet"),
            (self.replica.lease_guard.alive(), "no lease is held on the store"),
            (self.rewind_guard.nothing_left is None, self.rewind_guard.nothing_left or ""),
        ]
        return next((why for holds, why in checks if not holds), None)

    def gauges(self) -> dict[str, float]:
        """Current values of the gauges that `observe.metrics.GAUGES` describes."""
        return {
            "queue_depth": float(len(self.replica.queue)),
            "queue_seconds": self.replica.queue.oldest_wait,
            "work_seconds": self.replica.queue.oldest_work,
            "lease_seconds": self.replica.lease_guard.left,
            "drives": float(len(self.reconciler.drives)),
            "objects": float(len(self.jobs)),
            "slots": float(self.reconciler.permits.limit),
            "slots_taken": float(self.reconciler.permits.taken),
            "slots_open": float(self.reconciler.permits.open),
            "ready": float(self.ready() is None),
            "store_alarm": float(bool(self.rewind_guard.realms)),
            **cast("Mapping[str, float]", getattr(self.store, "used", dict)()),
        }


SWEEPER = Address(realm="-", key_hash="1" * 64)
"""Address of no key: the replica that ranks first for it performs the tasks that only one of them should."""


def _namespace_of(assignment: Assignment) -> str:
    metadata: dict[str, Any] = assignment.spec.job.get("metadata") or {}
    return str(metadata.get("namespace") or "default")


NO_GATEWAY = "give --gateway-url, or --outputs-allowed"

STUCK = 300.0
"""Maximum seconds of one reconciliation before the process is unhealthy: every call in it has its own deadline."""


async def serve(
    settings: OperatorSettings, *, http: str | None, log_format: str, signals: Sequence[signal.Signals]
) -> None:
    """Runs an operator until a signal; a second signal has its default effect.

    Raises:
        InvalidInput: invalid settings.
        Exception: an error that must end the process.
    """
    configure(log_format)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        log.info("%s: handing over", number.name)
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
    metrics = Metrics()
    operator = Operator(settings, meter=metrics)
    metrics.watch(operator.gauges, operator.jobs.phases, operator.jobs.ages)

    def healthy() -> str | None:
        hangs = operator.replica.queue.oldest_work
        return f"reconciling a key has taken {hangs:.0f} s" if hangs > STUCK else None

    async with AsyncExitStack() as stack:
        if http is not None:
            await stack.enter_async_context(
                serve_health(http, ready=operator.ready, healthy=healthy, metrics=metrics.text)
            )
        log.info("operator %s of install %s on %s", operator.owner, settings.install, operator.store.url)
        if operator.limits.nothing == SEVERAL:
            log.info("%s; it touches no output, and settle runs in the jobs' own namespaces settle", SEVERAL)
            if settings.gateway is None:
                log.warning("settle runs report through a gateway, and none is configured: %s", NO_GATEWAY)
        gc.collect()
        gc.freeze()  # modules and schemas live for ever: keeps the collector from traversing them
        await operator.run(stop)
    log.info("handed over")
