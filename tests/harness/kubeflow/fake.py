"""The fake for tests: kubeflow's Spark operator and a node, for one namespace, in a thread of this process.

It is a thread so that drivers can be code of the test. A benchmark, which must not share its interpreter with what it measures, starts
`python -m harness.kubeflow` instead, whose scripts are JSON.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from harness.eventually import assert_eventually
from harness.kubeflow import states
from harness.kubeflow.kubelet import Kubelet, Run
from harness.kubeflow.operator import WHO, SparkOperator
from harness.kubeflow.script import Json, Script, Scripts
from harness.kubeflow.wire import Informer, Wire
from harness.patience import stretched
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS

T = TypeVar("T")
START_TIMEOUT = 30.0
"""Seconds for two lists and two watches."""


class Kubeflow:
    """Both halves on one event loop."""

    def __init__(self, wire: Wire, *, namespace: str, scripts: Scripts, least: bool = False) -> None:
        self.applications = Informer(wire, SPARK_APPLICATIONS, namespace, who=WHO)
        self.pods = Informer(wire, PODS, namespace, who=WHO)
        self._seen: dict[str, Json] = {}
        self.applications.subscribe(self._remember)
        self.operator = SparkOperator(
            wire, namespace=namespace, applications=self.applications, pods=self.pods, scripts=scripts, least=least
        )
        self.kubelet = Kubelet(
            wire,
            namespace=namespace,
            pods=self.pods,
            application_of=self._application_of,
            script_of=scripts.of,
            least=least,
        )

    def _remember(self, _before: Json | None, after: Json | None) -> None:
        if after is not None:
            self._seen[after["metadata"]["name"]] = after

    def _application_of(self, pod: Json) -> Json | None:
        """The pod's application, even if it is gone by now: its pod may outlive it."""
        return self._seen.get((pod["metadata"].get("labels") or {}).get(states.APP_NAME, ""))

    async def run(self, ready: asyncio.Event) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            try:
                group.create_task(self.applications.run())
                group.create_task(self.pods.run())
                await self.applications.synced.wait()
                await self.pods.synced.wait()
                self.kubelet.start()
                self.operator.start()
                ready.set()
                await asyncio.Event().wait()
            finally:
                await self.operator.stop()
                await self.kubelet.stop()


class FakeKubeflow:
    """Use it in a `with` block, or call `start` and `stop`."""

    def __init__(self, server: str, *, ca: Path, token: str, namespace: str, script: Script | None = None) -> None:
        self.scripts = Scripts(script)
        self.on = self.scripts.on
        self._server, self._ca, self._token, self._namespace = server, ca, token, namespace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="kubeflow", daemon=True)
        self._ready = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._kubeflow: Kubeflow | None = None
        self._failed: BaseException | None = None

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every driver that ever started, in order."""
        return tuple(self._kubeflow.kubelet.runs) if self._kubeflow else ()

    def runs_of(self, application: str) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.application == application)

    def start(self) -> None:
        self._thread.start()
        assert_eventually(lambda: self._ready.is_set() or self._failed is not None, START_TIMEOUT)
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """Ends both halves at once; a driver's code that keeps running is a zombie."""
        if self._thread.is_alive() and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(stretched(START_TIMEOUT))
        if self._failed is not None:
            raise self._failed

    def kill_operator(self) -> None:
        """Crashes the Spark operator. The node continues: pods run and end, and their applications do not show it."""
        self._call(self._operator.stop())

    def restart_operator(self) -> None:
        """Starts the Spark operator again; it knows only what the API server has."""

        async def start() -> None:
            self._operator.start()

        self._call(start())

    def submitting(self, application: str) -> bool:
        """Whether spark-submit is running for it now."""
        return application in self._operator.submitting

    @contextmanager
    def without_submissions(self) -> Iterator[None]:
        """No spark-submit runs inside. One whose request for a driver pod has no answer leaves an application that failed beside a pod that
        may run, and what became of an opaque job is then unknown, rightly."""
        self._loop.call_soon_threadsafe(self._operator.may_submit.clear)
        assert_eventually(
            lambda: not self._operator.may_submit.is_set() and not self._operator.submitting, START_TIMEOUT
        )
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._operator.may_submit.set)

    def operator_is_dead(self) -> bool:
        """Whether the Spark operator is dead, by `kill_operator` or by a script."""
        return self._operator.dead.is_set()

    @property
    def _operator(self) -> SparkOperator:
        assert self._kubeflow is not None, "the fake was not started"
        return self._kubeflow.operator

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        assert_eventually(done.done, START_TIMEOUT)
        return done.result()

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
        async with Wire(self._server, ca=self._ca, token=self._token) as wire:
            self._kubeflow = Kubeflow(wire, namespace=self._namespace, scripts=self.scripts)
            ready = asyncio.Event()
            tell = asyncio.create_task(ready.wait())
            tell.add_done_callback(lambda _: self._ready.set())
            try:
                await self._kubeflow.run(ready)
            finally:
                tell.cancel()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
