"""Records what the operators did at the API server, through its own watches: every status of every object, and every application.

A test that looked only at the end would miss a status that went back and came again, or a second application that was created and removed.
So every event of both kinds is kept, in the order in which the API server committed it. The namespace is empty when the watches begin; a
watch that ends is resumed where it was, and changes that a killed API server no longer has are read from its etcd. If etcd has lost them,
too, the witness is useless and reports that (`missed`) instead of an incomplete record.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import httpx

from harness.apiserver import ADMIN, Cluster
from harness.eventually import assert_eventually
from harness.kube_api import path_of
from harness.kubeflow.wire import PAUSE, Expired, NoAnswer, Wire
from harness.patience import Patience, stretched
from harness.replay import replay
from sparkonce.launch.kubernetes import JOBS, SPARK_APPLICATIONS, Resource

Json = dict[str, Any]

START_TIMEOUT = 30.0
"""Seconds for two lists."""
WHO = "witness"
ENDS = frozenset({"Succeeded", "Failed", "Cancelled", "Held", "Mismatch", "Expired"})
"""Phases that no longer change by themselves."""


class Witness:
    """Use it in a `with` block that begins before the first job is applied."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self.jobs: dict[str, Json] = {}
        """Last seen objects by name, including deleted ones."""
        self.statuses: dict[str, list[Json]] = {}
        """By UID: every status that differs from the one before it, in order."""
        self.applications: dict[str, Json] = {}
        """By UID, as created, including deleted ones."""
        self.missed = ""
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=WHO, daemon=True)
        self._failed: BaseException | None = None

    def phases(self) -> Counter[str]:
        """Number of objects in each phase; "" is without a status."""
        return Counter(self.phase(name) for name in list(self.jobs))

    def phase(self, name: str) -> str:
        return str((self.jobs.get(name, {}).get("status") or {}).get("phase", ""))

    def until_ended(self, names: Iterable[str], timeout: float, *, hint: Callable[[], str] = lambda: "") -> None:
        """Waits until all of these objects are in a final phase; `hint` adds to the message if they are not."""
        waited = set(names)

        def ended() -> None:
            waited.difference_update([name for name in waited if self.phase(name) in ENDS])
            left = {name: self.phase(name) for name in sorted(waited)[:5]}
            assert not waited, f"{len(waited)} have not ended, such as {left}; all: {dict(self.phases())}"

        try:
            assert_eventually(ended, timeout, interval=0.1)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{hint()}") from late

    # the thread

    def __enter__(self) -> Self:
        self._thread.start()
        assert_eventually(lambda: self._ready.is_set() or self._failed is not None, START_TIMEOUT)
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive() and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(stretched(START_TIMEOUT))
        if self._failed is not None and value is None:
            raise self._failed

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._failed = error
        finally:
            self._loop.close()

    async def _main(self) -> None:
        self._task = asyncio.current_task()
        async with Wire(self._cluster.url, ca=self._cluster.certificates.ca, token=ADMIN) as wire:
            places = [(JOBS, self._job), (SPARK_APPLICATIONS, self._application)]
            revisions = [await self._empty(wire, resource) for resource, _ in places]
            self._ready.set()
            await asyncio.gather(
                *(self._follow(wire, *place, rev) for place, rev in zip(places, revisions, strict=True))
            )

    async def _empty(self, wire: Wire, resource: Resource) -> str:
        patience = Patience(START_TIMEOUT)
        while True:
            status, found = await wire.send("GET", path_of(resource, self._namespace), who=WHO)
            # An API server whose CRD another test has deleted and created again answers 429 until its cache is filled.
            if status != 429 or patience.over():
                break
            await asyncio.sleep(PAUSE)
        assert status == 200, f"list of {resource.plural}: {status} {found}"
        assert not found["items"], f"the witness came late: there are {resource.plural} already"
        return str(found["metadata"]["resourceVersion"])

    async def _follow(self, wire: Wire, resource: Resource, heard: Callable[[Json], None], revision: str) -> None:
        path = path_of(resource, self._namespace)
        while True:
            try:
                async for event in wire.watch(path, revision, who=WHO):
                    revision = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        heard(event["object"])
            except NoAnswer:
                await asyncio.sleep(PAUSE)
            except Expired:
                revision = await self._catch_up(wire, resource, heard, revision)

    async def _catch_up(self, wire: Wire, resource: Resource, heard: Callable[[Json], None], revision: str) -> str:
        """Reads missed events from etcd; returns the revision from which the watch continues."""
        try:
            status, found = await wire.send("GET", path_of(resource, self._namespace), who=WHO)
        except NoAnswer:
            return revision  # the revision expired again, so this is called again
        if status != 200:
            return revision
        until = str(found["metadata"]["resourceVersion"])
        try:
            written = await asyncio.to_thread(
                replay, self._cluster.etcd, resource, self._namespace, after=revision, until=until
            )
        except (httpx.HTTPError, AssertionError, KeyError) as lost:
            self.missed = f"what {resource.plural} did between {revision} and {until} is not known: {lost!r}"
            return until
        for each in written:
            heard(each)
        return until

    def _job(self, found: Json) -> None:
        self.jobs[found["metadata"]["name"]] = found
        seen = self.statuses.setdefault(found["metadata"]["uid"], [])
        status = found.get("status")
        if status and (not seen or seen[-1] != status):
            seen.append(status)

    def _application(self, found: Json) -> None:
        self.applications.setdefault(found["metadata"]["uid"], found)
