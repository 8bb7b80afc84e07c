"""Acts as kubeflow's Spark operator for one namespace: one reconciliation at a time per application, on the last state that its watches
saw.

It is a small operator and not a list of answers, so that known faults happen as in the real one: the submission is inside the retry of a
conflict, so a label patched meanwhile submits twice; only the pod's name keeps a second driver out, which is then read as a failure; an
operator that died between submission and status submits again. Driver pods are deleted by name, without a UID.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.kube_api import path_of
from harness.kubeflow import states
from harness.kubeflow.script import Json, Lie, Script, Scripts
from harness.kubeflow.states import Action, State
from harness.kubeflow.wire import PAUSE, Informer, NoAnswer, Wire
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS

WHO = "spark-operator"
CONFLICTS = 5
"""Attempts at one status write that meets conflicts; client-go's default for a retry."""


class Died(Exception):
    """A script made the Spark operator die."""


@dataclass
class _Key:
    """Work in progress for one application."""

    task: asyncio.Task[None] | None = None
    again: bool = False
    edited: bool = False
    timers: set[asyncio.TimerHandle] = field(default_factory=set)


class SparkOperator:
    def __init__(
        self,
        wire: Wire,
        *,
        namespace: str,
        applications: Informer,
        pods: Informer,
        scripts: Scripts,
        least: bool = False,
    ) -> None:
        self._wire, self._namespace, self._scripts = wire, namespace, scripts
        self._applications, self._pods = applications, pods
        self._least = least
        self._keys: dict[str, _Key] = {}
        self._unsubscribe: list[Callable[[], None]] = []
        self._silent: set[str] = set()
        self.dead = asyncio.Event()
        self.submitting: set[str] = set()
        """Applications for which spark-submit is running."""
        self.may_submit = asyncio.Event()
        """While it is not set no spark-submit is started."""
        self.may_submit.set()

    def start(self) -> None:
        """Starts with everything that exists already: that is what makes a restart dangerous."""
        self.dead.clear()
        self._unsubscribe = [
            self._pods.subscribe(self._pod_changed),
            self._applications.subscribe(self._application_changed),
        ]

    async def stop(self) -> None:
        """Stops like a crash: all work in progress ends at once."""
        self._die()
        tasks = [key.task for key in self._keys.values() if key.task is not None]
        self._keys = {}
        current = asyncio.current_task()
        for task in tasks:
            if task is not current:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not current), return_exceptions=True)

    def _die(self) -> None:
        for each in self._unsubscribe:
            each()
        self._unsubscribe = []
        for key in self._keys.values():
            for timer in key.timers:
                timer.cancel()
        self.dead.set()

    # watch events

    def _application_changed(self, before: Json | None, after: Json | None) -> None:
        if after is None:
            return
        edited = before is not None and states.edited(before, after)
        self._enqueue(after["metadata"]["name"], edited=edited)

    def _pod_changed(self, before: Json | None, after: Json | None) -> None:
        if before is not None and after is not None and _phase(before) == _phase(after):
            return
        labels = (after or before or {})["metadata"].get("labels") or {}
        name = labels.get(states.APP_NAME)
        application = self._applications.objects.get(name) if name else None
        if application is None or states.LAUNCHED not in labels:
            return
        if application.get("status", {}).get("submissionID") != labels.get(states.SUBMISSION_ID):
            return  # a pod of a submission that it no longer knows
        self._enqueue(application["metadata"]["name"], after=self._scripts.of(application).lag_seconds)

    def _enqueue(self, name: str, *, after: float = 0.0, edited: bool = False) -> None:
        key = self._keys.setdefault(name, _Key())
        key.edited |= edited
        if after > 0:
            self._later(name, key, after)
        elif key.task is not None:
            key.again = True
        else:
            key.task = asyncio.create_task(self._work(name, key))

    def _later(self, name: str, key: _Key, seconds: float) -> None:
        def due() -> None:
            key.timers.discard(timer)
            self._enqueue(name)

        timer = asyncio.get_running_loop().call_later(seconds, due)
        key.timers.add(timer)

    async def _work(self, name: str, key: _Key) -> None:
        try:
            key.again = True
            while key.again:
                key.again = False
                try:
                    await self._reconcile(name, key)
                except NoAnswer:
                    await asyncio.sleep(PAUSE)
                    key.again = True
        except Died:
            await self.stop()
        finally:
            key.task = None

    # actions

    async def _reconcile(self, name: str, key: _Key) -> None:
        application = self._applications.objects.get(name)
        if application is None:
            return
        script = self._scripts.of(application)
        if application["metadata"].get("deletionTimestamp"):
            await self._delete_driver(application)
            return
        if key.edited:
            await self._write(name, lambda now: states.moved(states.status_of(now), State.INVALIDATING))
            key.edited = False
            return
        step = states.next_step(application, driver_exists=self._driver_is_there(application))
        match step.action:
            case Action.SUBMIT:
                await self._submit(name, script, states.state_of(application))
            case Action.FOLLOW:
                await self._follow(name, key, script)
            case Action.WRITE:
                if step.deletes_driver:
                    await self._delete_driver(application)
                await self._write(name, step.status)

    async def _follow(self, name: str, key: _Key, script: Script) -> None:
        def derived(now: Json) -> Json | None:
            pod = self._pods.objects.get(now.get("status", {}).get("driverInfo", {}).get("podName", ""))
            status = states.from_driver(now, pod, lie=script.lie, grace=script.grace_seconds)
            if status is None and pod is None:
                self._later(name, key, script.grace_seconds)
            return self._shortened(status) if self._least and status is not None else status

        await self._write(name, derived)

    def _shortened(self, status: Json) -> Json | None:
        """For benchmarks: only how it ended."""
        match State(status["applicationState"]["state"]):
            case State.SUCCEEDING:
                return states.moved(status, State.COMPLETED)
            case State.FAILING:
                return states.moved(status, State.FAILED)
            case _:
                return None

    async def _submit(self, name: str, script: Script, state: State) -> None:
        """Runs spark-submit inside the retry of the status write, as the real one does: a conflict submits again."""
        application = self._applications.objects.get(name)
        for submissions in range(1, CONFLICTS + 1):
            if application is None or not self._may_submit(application, script, state):
                return
            submission = str(uuid.uuid4())
            await self.may_submit.wait()
            self.submitting.add(name)
            error = await self._spark_submit(application, submission, script)
            self.submitting.discard(name)
            if script.dies and not error:
                raise Died
            if script.lie is Lie.SILENT:
                self._silent.add(application["metadata"]["uid"])
            elif submissions >= script.submissions or error:
                if await self._put_status(application, states.submitted(application, submission, error)):
                    return
                application = await self._read(name)

    def _may_submit(self, application: Json, script: Script, state: State) -> bool:
        silent = application["metadata"]["uid"] in self._silent
        return script.submits and not silent and states.state_of(application) is state

    async def _spark_submit(self, application: Json, submission: str, script: Script) -> str:
        """Returns the error that spark-submit prints; empty if it created the driver pod."""
        if script.submit_seconds:
            await asyncio.sleep(script.submit_seconds)
        if script.submission_error:
            return f"failed to run spark-submit: {script.submission_error}"
        if not states.image_of(application["spec"]):
            return f"failed to run spark-submit: {states.NO_IMAGE}"
        selector = f"spark-{uuid.uuid4().hex}"
        pod = states.driver_pod(application, submission, selector)
        if script.queued_seconds:
            del pod["spec"]["nodeName"]
        error = await self._create_pod(pod)
        if not error and script.twin:
            await self._create_pod(
                states.driver_pod(application, submission, selector, name=f"{pod['metadata']['name']}-2")
            )
        return error

    async def _create_pod(self, pod: Json) -> str:
        try:
            status, answer = await self._wire.send("POST", path_of(PODS, self._namespace), pod, who="spark-submit")
        except NoAnswer as lost:
            return f"failed to run spark-submit: {lost}"
        if status == 409:
            return states.ALREADY_EXISTS
        if status != 201:
            return f"failed to run spark-submit: {answer.get('message')}"
        self._pods.learn(answer)
        return ""

    def _driver_is_there(self, application: Json) -> bool:
        return self._driver_name(application) in self._pods.objects

    def _driver_name(self, application: Json) -> str:
        noted = application.get("status", {}).get("driverInfo", {}).get("podName")
        return noted or states.driver_pod_name(application)

    async def _delete_driver(self, application: Json) -> None:
        path = path_of(PODS, self._namespace, self._driver_name(application))
        code, answer = await self._wire.send("DELETE", path, who=WHO)
        if code >= 500 or code == 429:
            raise NoAnswer(f"delete of {path}: {code} {answer.get('message')}")

    async def _read(self, name: str) -> Json | None:
        status, found = await self._wire.send("GET", path_of(SPARK_APPLICATIONS, self._namespace, name), who=WHO)
        if status == 200:
            return found
        if status == 404:
            return None
        raise NoAnswer(f"get of {name}: {status}")

    async def _write(self, name: str, change: Callable[[Json], Json | None]) -> None:
        """Writes from the cached application, and after a conflict from the stored one."""
        application = self._applications.objects.get(name)
        known = application
        for _ in range(CONFLICTS):
            if application is None or known is None or states.state_of(application) is not states.state_of(known):
                return
            if self._scripts.of(application).lie is Lie.SILENT:
                return
            status = change(application)
            if status is None or await self._put_status(application, status):
                return
            application = await self._read(name)

    async def _put_status(self, application: Json, status: Json) -> bool:
        """Writes a status; False on a conflict. An application that is gone needs no status."""
        path = path_of(SPARK_APPLICATIONS, self._namespace, application["metadata"]["name"], "status")
        code, answer = await self._wire.send("PUT", path, {**application, "status": status}, who=WHO)
        if code == 200:
            self._applications.learn(answer)
            return True
        if code == 409:
            return False
        if code == 404:
            return True
        raise NoAnswer(f"status of {application['metadata']['name']}: {code} {answer.get('message')}")


def _phase(pod: Json) -> object:
    return pod.get("status", {}).get("phase")
