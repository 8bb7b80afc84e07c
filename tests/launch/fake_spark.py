"""The Spark operator and the kubelet on a `FakeApi`, one step at a time, with the known faults of the real ones.

A submission consists of separate steps: it reads first, creates the pod later, writes the status last, and submits again if that write
meets a conflict. Suspending deletes any pod that has the driver's name, without checking its UID. Statuses and pods come from the harness
(`harness.kubeflow.states`), which the tests on a real API server use as well.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from harness.kubeflow import states
from harness.kubeflow.states import Action, Step
from launch.fake_api import FakeApi
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, AlreadyExists, ApiConflict, ApiRefused, Json


class FakeSpark:
    def __init__(self, api: FakeApi, rng: Random | None = None) -> None:
        self.api, self.rng = api, rng or Random(0)
        self.submits = True
        """False if the Spark operator is down."""
        self.cut_off = False
        """True if no kubelet learns that a pod is to end; its driver then runs on."""
        self.forgets = 0
        """The number of submissions after which the Spark operator dies before it has written the status."""
        self.in_flight: list[Json] = []
        """Applications as spark-submit has read them."""
        self.drivers: list[str] = []
        """UIDs of all driver pods ever created, in order."""
        self.ran: set[str] = set()
        """UIDs of the driver pods whose container started."""

    def step(self) -> bool:
        """Performs one step that is possible now. False if there is none."""
        may: list[tuple[Callable[[Json], None], Json]] = []
        if self.submits:
            may += [(self._reconcile, each) for each in self.api.list(SPARK_APPLICATIONS) if self._wants(each)]
            may += [(self._land, each) for each in self.in_flight]
        if not self.cut_off:
            may += [(self._kubelet, each) for each in self.api.list(PODS) if self._moves(each)]
        if not may:
            return False
        what, document = self.rng.choice(may)
        what(document)
        return True

    def settle(self) -> None:
        """Performs steps until none is possible."""
        for _ in range(200):
            if not self.step():
                return
        raise AssertionError("the Spark operator does not come to rest")

    def finish(self, name: str, code: int) -> None:
        """The driver of this application exits by itself."""
        [pod] = [each for each in self.api.list(PODS) if each["metadata"]["name"] == f"{name}-driver"]
        self._terminated(pod, code)

    def alive(self) -> list[str]:
        """Names of the driver pods whose container may run."""
        found = [
            each for each in self.api.list(PODS) if each["metadata"].get("labels", {}).get("spark-role") == "driver"
        ]
        return [each["metadata"]["name"] for each in found if states.terminated(each) is None]

    def _wants(self, application: Json) -> bool:
        if application["metadata"].get("deletionTimestamp") or self._submitting(application):
            return False
        action = self._next(application).action
        return action is not Action.NOTHING and (action is not Action.FOLLOW or self._derived(application) is not None)

    def _next(self, application: Json) -> Step:
        return states.next_step(application, driver_exists=self._driver(application) is not None)

    def _submitting(self, application: Json) -> bool:
        return any(each["metadata"]["uid"] == application["metadata"]["uid"] for each in self.in_flight)

    def _driver(self, application: Json) -> Json | None:
        namespace, name = application["metadata"]["namespace"], states.driver_pod_name(application)
        return self.api.get(PODS, namespace, name)

    def _derived(self, application: Json) -> Json | None:
        return states.from_driver(application, self._driver(application), lie=None, grace=0.0)

    def _reconcile(self, application: Json) -> None:
        step = self._next(application)
        match step.action:
            case Action.SUBMIT:
                self.in_flight.append(application)
            case Action.FOLLOW:
                derived = self._derived(application)
                if derived is not None:
                    self._write(application, derived)
            case Action.WRITE:
                if step.deletes_driver:
                    self.api.delete(PODS, application["metadata"]["namespace"], states.driver_pod_name(application))
                self._write(application, step.status(application))

    def _land(self, application: Json) -> None:
        """spark-submit creates the pod, and the Spark operator writes the status; if that write conflicts, it submits again."""
        self.in_flight = [each for each in self.in_flight if each is not application]
        metadata = application["metadata"]
        submission, error = self.api.fresh("submission"), ""
        if not states.image_of(application["spec"]):
            error = states.NO_IMAGE
        else:
            try:
                pod = states.driver_pod(application, submission, self.api.fresh("spark"))
                stored = self.api.create(PODS, metadata["namespace"], pod)
                self.drivers.append(stored["metadata"]["uid"])
            except AlreadyExists:
                error = states.ALREADY_EXISTS
            except ApiRefused as refused:
                error = str(refused)
        if self.forgets > 0:
            self.forgets -= 1
            return
        before = states.state_of(application)
        if not self._write(application, states.submitted(application, submission, error)):
            now = self.api.get(SPARK_APPLICATIONS, metadata["namespace"], metadata["name"])
            if now is not None and now["metadata"]["uid"] == metadata["uid"] and states.state_of(now) is before:
                self.in_flight.append(now)

    def _write(self, application: Json, status: Json) -> bool:
        metadata = application["metadata"]
        patch: dict[str, Any] = {"metadata": {name: metadata[name] for name in ("uid", "resourceVersion")}}
        try:
            self.api.patch(
                SPARK_APPLICATIONS, metadata["namespace"], metadata["name"], patch | {"status": status}, status=True
            )
        except ApiConflict:
            return False
        return True

    def _moves(self, pod: Json) -> bool:
        if "nodeName" not in pod["spec"]:
            return False
        return "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") in {None, "Pending"}

    def _kubelet(self, pod: Json) -> None:
        metadata = pod["metadata"]
        if "deletionTimestamp" not in metadata:
            self.ran.add(metadata["uid"])
            self._status(pod, states.pod_running(pod))
        elif states.terminated(pod) is None:
            self._terminated(pod, 143)
        else:
            self.api.remove(PODS, metadata["namespace"], metadata["name"])

    def _terminated(self, pod: Json, code: int) -> None:
        self._status(pod, states.pod_ended(pod, code, at=self.api.stamp()))

    def _status(self, pod: Json, status: Json) -> None:
        self.api.patch(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], {"status": status})
