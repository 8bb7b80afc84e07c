"""Faults that hit a job and a plain SparkApplication alike, aimed as in the baseline's measurements of kubeflow's Spark operator.

Each strikes at a moment that is known to hurt, since a kill at a random second nearly always misses the window of a submission. Where
that moment cannot be guaranteed (the driver pod exists, and its ConfigMaps do not yet), the strike checks afterwards whether it hit,
and records a miss in the run's note. As in `faults.py`, a strike leaves the cluster working and judges nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import ssl
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from urllib.parse import urlsplit

from harness.apiserver import ADMIN
from harness.eventually import assert_eventually
from harness.kube_api import CONFIG_MAPS, ApiError, Json, path_of
from harness.node.faults import Hit, cut, processes
from harness.node.plain import OnceScene, PlainScene
from harness.node.release import NAMESPACE
from harness.node.scene import LONG
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS

QUICK = 0.003
"""Poll interval in seconds, for a moment that lasts a few hundred milliseconds."""
AWAY = 30.0
"""Seconds for which an API server, or a driver's network, is down."""
BLINK = 5.0
"""Seconds without a kubelet, short enough for its node to stay Ready."""
SEEN = 60.0
"""Seconds for a platform to react to a change, if it reacts at all."""


@dataclass(frozen=True)
class Blow(Hit):
    """One hit, with its random draws and the other jobs that the same strike hits."""

    scene: OnceScene
    draw: Random
    job: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    others: list[Blow] = field(default_factory=list)

    def open(self) -> None:
        for each in (self, *self.others):
            each.scene.open(each.name)

    def driver_names(self) -> list[str]:
        return [*super().driver_names(), *(name for each in self.others for name in each.driver_names())]

    @property
    def plain(self) -> bool:
        return isinstance(self.scene, PlainScene)

    def until_began(self) -> None:
        """Waits until a driver of the job has begun."""
        assert_eventually(lambda: bool(self.scene.marks(self.name)), LONG)

    def until_written(self, timeout: float = LONG) -> None:
        everybody = (self, *self.others)
        assert_eventually(lambda: all(each.scene.marks(each.name, "wrote") for each in everybody), timeout)

    def end(self) -> None:
        """Opens the gate before the end, for jobs that have one."""
        for each in (self, *self.others):
            each.scene.gate(f"{each.name}.end").touch()


def pause(seconds: float) -> None:
    time.sleep(seconds)  # the duration of the fault itself, not a wait for a condition


def none(blow: Blow) -> None:
    blow.open()


# --- the Spark operator


def submission_killed(blow: Blow, *, children: bool = True) -> None:
    """Kills the Spark operator and the spark-submit that it has started, and restarts the operator at once."""
    child = blow.scene.cluster.children["spark-operator"]
    if children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    blow.scene.cluster.restart("spark-operator")
    blow.open()


def killed_some_time(blow: Blow) -> None:
    pause(blow.draw.uniform(1.0, 4.0))
    submission_killed(blow)


def controller_killed(blow: Blow) -> None:
    """Kills the controller's process alone; its spark-submit keeps running."""
    pause(blow.draw.uniform(1.0, 3.0))
    submission_killed(blow, children=False)


def killed_before_config(blow: Blow) -> None:
    pod = _driver_pod(blow)
    submission_killed(blow)
    if _has_config(blow, pod):
        blow.notes.append("missed: the ConfigMaps were there")


def killed_with_config(blow: Blow) -> None:
    pod = _driver_pod(blow)
    assert_eventually(lambda: _has_config(blow, pod), SEEN, interval=QUICK)
    submission_killed(blow)


def killed_while_it_writes(blow: Blow) -> None:
    blow.open()
    killed_with_config(blow)


def _driver_pod(blow: Blow) -> Json:
    return assert_eventually(lambda: blow.scene.drivers(blow.name), LONG, interval=QUICK)[0]


def _has_config(blow: Blow, pod: Json) -> bool:
    """Whether the ConfigMaps that the pod mounts exist; spark-submit creates them after the pod."""
    wanted = {volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume}
    assert wanted, "the driver pod mounts no ConfigMap"
    return wanted <= {
        each["metadata"]["name"] for each in blow.scene.cluster.api.list(CONFIG_MAPS, blow.scene.namespace)
    }


# --- the client


def sent_twice(blow: Blow, *, generate: bool) -> None:
    """Loses the answer to the create, and sends it again: with generateName, or under the same name."""
    body = blow.scene.job(blow.name, **blow.job)
    if generate:
        body["metadata"] = {"namespace": body["metadata"]["namespace"], "generateName": f"{blow.name}-"}
    api, resource = blow.scene.cluster.api, blow.scene.resource
    _unheard(blow, body)
    try:
        api.create(resource, body, blow.scene.namespace)
    except ApiError as problem:
        if generate or problem.code != http.client.CONFLICT:
            raise
    blow.until_began()
    blow.open()


def sent_twice_generated(blow: Blow) -> None:
    sent_twice(blow, generate=True)


def sent_twice_named(blow: Blow) -> None:
    sent_twice(blow, generate=False)


def _unheard(blow: Blow, body: Json) -> None:
    """Creates the object and drops the answer without reading it."""
    cluster = blow.scene.cluster
    address = urlsplit(cluster.url)
    context = ssl.create_default_context(cafile=str(cluster.folder / "ca.crt"))
    line = http.client.HTTPSConnection(str(address.hostname), address.port, timeout=SEEN, context=context)
    headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
    line.request("POST", path_of(blow.scene.resource, blow.scene.namespace), json.dumps(body), headers)
    try:
        assert_eventually(lambda: blow.scene.objects(blow.name), SEEN)
    finally:
        line.close()


# --- edits


def label(blow: Blow) -> None:
    """Patches a label on all objects of the job: the job itself and its application."""
    found = [(blow.scene.resource, each) for each in blow.scene.objects(blow.name)]
    if not blow.plain:
        found += [(SPARK_APPLICATIONS, each) for each in blow.scene.applications(blow.name)]
    for resource, each in found:
        patch = {"metadata": {"labels": {"team": uuid.uuid4().hex[:8]}}}
        blow.scene.cluster.api.patch(resource, each["metadata"]["name"], patch, namespace=blow.scene.namespace)


def labelled_at_submission(blow: Blow) -> None:
    """Patches the label 1.5 s after the application was created, while spark-submit runs."""
    assert_eventually(lambda: blow.scene.applications(blow.name), SEEN, interval=QUICK)
    pause(1.5)
    label(blow)
    blow.open()


def labelled_and_late(blow: Blow) -> None:
    """As `labelled_at_submission`, but the driver writes only once the platform has reported a failure, or after 10 s."""
    assert_eventually(lambda: blow.scene.applications(blow.name), SEEN, interval=QUICK)
    pause(1.5)
    label(blow)
    blow.until_began()
    with contextlib.suppress(AssertionError):
        assert_eventually(lambda: set(blow.scene.states(blow.name)) & {"FAILED", "Failed"}, 10.0)
    blow.open()


def labelled_while_running(blow: Blow) -> None:
    label(blow)
    blow.open()


def labelled_when_done(blow: Blow) -> None:
    blow.open()
    _until_done(blow)
    label(blow)
    pause(BLINK)


def argument_while_running(blow: Blow) -> None:
    """Edits an argument after the job's effect and before its end."""
    blow.open()
    blow.until_written()
    _edit(blow)


def argument_when_done(blow: Blow) -> None:
    blow.open()
    _until_done(blow)
    _edit(blow)


def argument_behind_our_back(blow: Blow) -> None:
    """Edits the job's application as another client would, past the operator."""
    blow.open()
    blow.until_written()
    (application,) = blow.scene.applications(blow.name)
    arguments = [*application["spec"]["arguments"], "--tasks", "2"]
    patch = {"spec": {"arguments": arguments}}
    name = application["metadata"]["name"]
    blow.scene.cluster.api.patch(SPARK_APPLICATIONS, name, patch, namespace=blow.scene.namespace)


def _until_done(blow: Blow) -> None:
    """Waits until all objects report success."""

    def done() -> bool:
        states = blow.scene.states(blow.name)
        return bool(states) and set(states) <= {"COMPLETED", "Succeeded"}

    assert_eventually(done, LONG)


def _edit(blow: Blow) -> None:
    """Edits an argument. A plain application may be run again for it; a job becomes Mismatch, and its first manifest is sent once more
    under another name."""
    api, scene = blow.scene.cluster.api, blow.scene
    name = scene.objects(blow.name)[0]["metadata"]["name"]
    api.patch(scene.resource, name, scene.edited(blow.name), namespace=scene.namespace)
    if blow.plain:
        with contextlib.suppress(AssertionError):
            assert_eventually(lambda: len(scene.marks(blow.name)) > 1, SEEN)
        return
    assert_eventually(lambda: scene.status(blow.name).get("phase") == "Mismatch", SEEN)
    again = scene.job(blow.name, **blow.job)
    again["metadata"]["name"] = f"{blow.name}-again"
    api.apply(again)


# --- drivers of a platform that does not notice


def plain_deleted_during(blow: Blow) -> None:
    """Deletes the driver as soon as its committer has created its temporary folder."""
    blow.open()
    folder = blow.scene.shared / "lake" / blow.name / "_temporary"
    assert_eventually(folder.exists, LONG, interval=QUICK)
    blow.delete_driver()


def plain_hung(blow: Blow) -> None:
    """Freezes the driver for `AWAY` seconds: the platform does not replace it, so nothing else would end the freeze."""
    pids = processes(blow)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    pause(AWAY)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    blow.open()


def plain_cut_off(blow: Blow) -> None:
    with cut(blow):
        pause(AWAY)
    blow.open()


# --- the platform: API server, kubelet


def api_away_at_submission(blow: Blow) -> None:
    for each in (blow, *blow.others):
        assert_eventually(partial(each.scene.applications, each.name), SEEN, interval=QUICK)
    pause(1.0)
    _api_away(blow)
    blow.open()


def api_away_while_running(blow: Blow) -> None:
    """Stops the API server while the driver writes and ends."""
    blow.open()
    _api_away(blow)


def _api_away(blow: Blow) -> None:
    cluster = blow.scene.cluster
    server = cluster.children["kube-apiserver"]
    server.kill()
    pause(AWAY)
    server.start()
    assert_eventually(cluster.serves, LONG)
    assert_eventually(cluster.node_ready, LONG)
    blow.release.until_ready()


def kubelet_away(blow: Blow) -> None:
    """Stops the kubelet, too briefly for its node to become NotReady, while the driver writes and ends."""
    kubelet = blow.scene.cluster.children["kubelet"]
    kubelet.kill()
    blow.open()
    pause(BLINK)
    kubelet.start()
    assert_eventually(blow.scene.cluster.node_ready, LONG)


def zombie(blow: Blow) -> None:
    """Deletes the driver's pod by force while its kubelet is stopped: the driver still writes, and its successor waits."""
    cluster = blow.scene.cluster
    kubelet = cluster.children["kubelet"]
    kubelet.kill()
    try:
        blow.delete_driver()
        blow.open()
        with contextlib.suppress(AssertionError):  # sparkonce may have barred it from writing
            blow.until_written(SEEN)
    finally:
        kubelet.start()
    assert_eventually(cluster.node_ready, LONG)
    blow.release.until_ready()


# --- our own operators


def rolled(blow: Blow) -> None:
    """Runs `kubectl rollout restart` and waits until the rollout is complete."""
    kubectl = blow.scene.cluster.kubectl
    kubectl("rollout", "restart", "-n", NAMESPACE, "deployment", "--selector=app.kubernetes.io/component=operator")
    kubectl("rollout", "status", "-n", NAMESPACE, "deployment/sparkonce-operator", "--timeout=300s")
    blow.open()
