"""Acts as the only node: runs the driver of each pod that is bound to it, and writes the pod's status as a kubelet does.

A driver is a duration and an exit code, or code of the test in its own thread. Code is asked to stop when its pod is deleted, and has the
pod's grace period; after that the pod is gone, and code that still runs is a zombie, as on an unreachable node. Pods that are bound to no
node (a stub with a scheduling gate) are ignored: the API server removes them at once when they are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.kube_api import path_of
from harness.kubeflow import states
from harness.kubeflow.script import Code, Driver, Json, Moment, Script
from harness.kubeflow.wire import PAUSE, Informer, NoAnswer, Wire
from sparkonce.launch.kubernetes import EVENTS, PODS

WHO = "kubelet"
SIGTERM = 143
"""Exit code of a process that the signal ended: 128 + 15."""


@dataclass(eq=False)
class Run:
    """One driver that ran, for tests to count."""

    pod: str
    uid: str
    application: str
    environment: Mapping[str, str]
    began: float
    """Monotonic seconds."""
    ended: float | None = None
    exit_code: int | None = None
    said: str = ""
    """The error that ended a test's code, if it did not return."""
    stop: threading.Event = field(default_factory=threading.Event)


class Kubelet:
    def __init__(
        self,
        wire: Wire,
        *,
        namespace: str,
        pods: Informer,
        application_of: Callable[[Json], Json | None],
        script_of: Callable[[Json | None], Script],
        least: bool = False,
    ) -> None:
        self._wire, self._namespace, self._pods = wire, namespace, pods
        self._application_of, self._script_of = application_of, script_of
        self._least = least
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, asyncio.Event] = {}
        self._queued: dict[str, asyncio.Task[None]] = {}
        self.runs: list[Run] = []

    def start(self) -> None:
        self._pods.subscribe(self._changed)

    async def stop(self) -> None:
        for run in self.runs:
            run.stop.set()
        tasks = [*self._lives.values(), *self._queued.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _changed(self, before: Json | None, after: Json | None) -> None:
        pod = after or before or {}
        uid = pod["metadata"]["uid"]
        leaving = after is None or bool(after["metadata"].get("deletionTimestamp"))
        if uid in self._leaving:
            if leaving:
                self._leaving[uid].set()
        elif after is not None and self._is_queued(after):
            if uid not in self._queued:
                self._queued[uid] = asyncio.create_task(self._queue(after))
        elif after is not None and after["spec"].get("nodeName") == states.NODE:
            self._leaving[uid] = asyncio.Event()
            if leaving:
                self._leaving[uid].set()
            self._lives[uid] = asyncio.create_task(self._live(after))

    def _is_queued(self, pod: Json) -> bool:
        script = self._script_of(self._application_of(pod))
        return (
            not pod["spec"].get("nodeName") and bool(script.queued_seconds) and not pod["spec"].get("schedulingGates")
        )

    async def _queue(self, pod: Json) -> None:
        """The scheduler's part: says why no node takes the pod, and binds it in the end."""
        script, name = self._script_of(self._application_of(pod)), pod["metadata"]["name"]
        if script.queued_reason:
            await self._write(pod, states.pod_unschedulable(script.queued_reason))
        await asyncio.sleep(script.queued_seconds)
        target = {"apiVersion": "v1", "kind": "Node", "name": states.NODE}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self._insist("POST", path_of(PODS, self._namespace, name, "binding"), body)

    async def _live(self, pod: Json) -> None:
        """The life of a pod from when it is first seen."""
        application = self._application_of(pod)
        script = self._script_of(application)
        leaving = asyncio.Event() if script.cut_off else self._leaving[pod["metadata"]["uid"]]
        pod = {**pod, "status": {"startTime": states.now()}}
        if not await self._pending(pod, script, leaving):
            return
        run = Run(
            pod=pod["metadata"]["name"],
            uid=pod["metadata"]["uid"],
            application=(application or {}).get("metadata", {}).get("name", ""),
            environment=states.environment_of(pod),
            began=time.monotonic(),
        )
        self.runs.append(run)
        if not self._least:
            await self._write(pod, states.pod_running(pod))
        if script.vanishes is Moment.RUNNING:
            await self._delete(pod)
            leaving.set()
        run.exit_code = await self._run(run, Driver(application or {}, pod, run.environment, run.stop), script, leaving)
        run.ended = time.monotonic()
        if script.vanishes is Moment.ENDED:
            await self._delete(pod)
            return
        await self._write(pod, states.pod_ended(pod, run.exit_code, run.said or script.message))
        await leaving.wait()
        await self._delete(pod)

    async def _pending(self, pod: Json, script: Script, leaving: asyncio.Event) -> bool:
        """Waits before the container starts; returns whether it starts."""
        if script.pending_seconds:
            await self._write(pod, states.pod_pending(pod, script.pending_reason, mounted=not script.unmounted))
            if script.unmounted:
                await self._insist("POST", path_of(EVENTS, self._namespace), states.failed_mount(pod, script.unmounted))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(leaving.wait(), script.pending_seconds)
        if leaving.is_set() or script.vanishes is Moment.PENDING:
            if script.vanishes is not Moment.PENDING and not self._least:
                await self._write(pod, states.pod_unstarted(pod))
            await self._delete(pod)
            return False
        return True

    async def _run(self, run: Run, driver: Driver, script: Script, leaving: asyncio.Event) -> int:
        """Runs the driver; returns its exit code. Code that does not stop keeps running when the grace period is over."""
        if script.code is None:
            try:
                await asyncio.wait_for(leaving.wait(), script.run_seconds)
            except TimeoutError:
                return script.exit_code
            run.stop.set()
            return SIGTERM
        done = _in_a_thread(run, driver, script.code)
        told = asyncio.create_task(_tell(leaving, run.stop))
        grace = driver.pod["spec"].get("terminationGracePeriodSeconds", 30)
        try:
            await asyncio.wait([done, told], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([done], timeout=grace)
        finally:
            told.cancel()
        return done.result() if done.done() else SIGTERM

    async def _write(self, pod: Json, status: Json) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        code, answer = await self._insist(
            "PATCH", path_of(PODS, self._namespace, pod["metadata"]["name"], "status"), body
        )
        if code == 200:
            self._pods.learn(answer)

    async def _delete(self, pod: Json) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._insist("DELETE", path_of(PODS, self._namespace, pod["metadata"]["name"]), options)

    async def _insist(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, Json]:
        """Repeats a request until it is answered; 404 and 409 count as answers, since the pod is gone."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        while True:
            with contextlib.suppress(NoAnswer):
                code, answer = await self._wire.send(method, path, body, who=WHO, content_type=kind)
                if code < 500 and code != 429:
                    return code, answer
            await asyncio.sleep(PAUSE)


async def _tell(leaving: asyncio.Event, stop: threading.Event) -> int:
    await leaving.wait()
    stop.set()
    return SIGTERM


def _in_a_thread(run: Run, driver: Driver, code: Code) -> asyncio.Future[int]:
    """Uses a daemon thread: a driver that never stops must not keep the test run from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[int] = loop.create_future()

    def settle(exit_code: int) -> None:
        if not done.done():
            done.set_result(exit_code)

    def answer(exit_code: int) -> None:
        run.exit_code = exit_code
        with contextlib.suppress(RuntimeError):  # the fake has ended and does not wait for a zombie
            loop.call_soon_threadsafe(settle, exit_code)

    def work() -> None:
        try:
            answer(code(driver) or 0)
        except SystemExit as left:
            run.said = left.code if isinstance(left.code, str) else ""
            answer(left.code if isinstance(left.code, int) else int(left.code is not None))
        except Exception as error:
            run.said = repr(error)
            answer(1)

    threading.Thread(target=work, name=run.pod, daemon=True).start()
    return done
