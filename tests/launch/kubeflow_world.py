"""An API server, a Spark operator and a kubelet in memory, on one clock, and the processes that launch and stop attempts there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from harness.kubeflow import states
from launch.fake_api import Died, FakeApi, FakeKubernetes, FakeWatched, Fault
from launch.fake_spark import FakeSpark
from launch.kubeflow_scene import NAMESPACE, assignment_of, job_of, wanting
from sparkonce.launch.kubeflow.labels import PODS_SINCE, STOPPING
from sparkonce.launch.kubeflow.launcher import KubeflowLauncher
from sparkonce.launch.kubeflow.spec import Wanting
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, ApiRefused, ApiUnavailable, Json
from sparkonce.launch.protocol import ApplicationState, StillThere, Stopped
from sparkonce.model.record import Application, Assignment

T = TypeVar("T")

DECLARED, OPAQUE = assignment_of(job_of("orders")), assignment_of(job_of())
BOTH = [DECLARED, OPAQUE]
NAME = DECLARED.name
DRIVER = f"{NAME}-driver"
TIMEOUT = 120.0
WANTING = [wanting("a"), wanting("b")]

Faults = Mapping[int, Fault | ApiRefused | ApiUnavailable]


class World:
    def __init__(self, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.api = FakeApi(NAMESPACE)
        self.spark = FakeSpark(self.api, self.rng)
        self.slept: list[float] = []
        self.each_sleep: Callable[[], object] = self.spark.settle
        """Called while a process sleeps."""

    # processes

    def process(
        self, faults: Faults | None = None, *, watches: bool = False, meanwhile: Callable[[], object] = lambda: None
    ) -> tuple[KubeflowLauncher, FakeKubernetes]:
        """A launcher and its client."""
        kubernetes = FakeKubernetes(self.api, faults, meanwhile=meanwhile)

        async def objects_of(_: Assignment) -> Sequence[Wanting]:
            return WANTING

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.api.clock += seconds
            await asyncio.sleep(0)
            self.each_sleep()

        launcher = KubeflowLauncher(
            kubernetes,
            applications=FakeWatched(self.api, SPARK_APPLICATIONS) if watches else None,
            pods=FakeWatched(self.api, PODS) if watches else None,
            namespace_of=lambda _: NAMESPACE,
            objects_of=objects_of,
            now=lambda: self.api.clock,
            sleep=sleep,
        )
        return launcher, kubernetes

    def launch(self, assignment: Assignment) -> Json:
        """Launches from a process without faults; returns the stored application."""
        run(self.process()[0].launch(assignment))
        return self.application()

    def running(self, assignment: Assignment) -> Application:
        """Launches the attempt and runs its driver. Returns what a record would note."""
        self.launch(assignment)
        self.spark.settle()
        return self.noted()

    def stop(
        self, assignment: Assignment, *, timeout: float = TIMEOUT, noted: Application | None = None
    ) -> Stopped | StillThere:
        return run(self.process()[0].stop(assignment, timeout=timeout, noted=noted))

    # --- observations

    def application(self) -> Json:
        found = self.api.get(SPARK_APPLICATIONS, NAMESPACE, NAME)
        assert found is not None
        return found

    def driver(self) -> Json | None:
        return self.api.get(PODS, NAMESPACE, DRIVER)

    def noted(self) -> Application:
        driver, metadata = self.driver(), self.application()["metadata"]
        return Application(
            name=NAME,
            uid=metadata["uid"],
            driver=driver["metadata"]["uid"] if driver is not None else None,
            pods_since=metadata.get("annotations", {}).get(PODS_SINCE),
        )

    def made(self, plural: str) -> int:
        return len([each for each, _ in self.api.made if each == plural])

    @property
    def state(self) -> str:
        return states.state_of(self.application()).value

    def put(self, name: str, *, kind: str = "pods", **document: Any) -> Json:
        """Creates an object as another client."""
        metadata = {"name": name, **document.pop("metadata", {})}
        resource = PODS if kind == "pods" else SPARK_APPLICATIONS
        return self.api.create(resource, NAMESPACE, {"metadata": metadata, "spec": {}, **document})

    def late_requests_land(self) -> None:
        for effect in self.api.late:
            try:
                effect()
            except ApiRefused:
                continue
        self.api.late.clear()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def outcome(coroutine: Coroutine[Any, Any, T]) -> T | BaseException:
    """The call's result, or what ended it: an error, or the death of its process."""
    try:
        return asyncio.run(coroutine)
    except (Exception, Died) as ended:
        return ended


def ended(answer: Stopped | StillThere) -> ApplicationState:
    assert isinstance(answer, Stopped), answer
    assert answer.seen is not None
    return answer.seen


def still_there(answer: Stopped | StillThere) -> str:
    assert isinstance(answer, StillThere), answer
    return answer.message


def marked(world: World) -> bool:
    application = world.application()
    return application["spec"].get("suspend") is True and STOPPING in application["metadata"]["annotations"]


def is_stub(pod: dict[str, Any] | None) -> bool:
    return pod is not None and pod["metadata"]["labels"].get("sparkonce.dev/role") == "stub"
