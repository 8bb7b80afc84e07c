"""Faults that hit a job and a plain SparkApplication alike, aimed as in the baseline's measurements of kubeflow's Spark operator.

Each strikes at a moment that is known to hurt; a kill at a random second misses the window of a submission nearly always. Where
an aim cannot be had for certain (the driver pod is there, and its ConfigMaps are not yet), the strike looks afterwards whether it
hit, and says so in the run's note. As in `faults.py`, it leaves the cluster whole and judges nothing.
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
"""Seconds between two looks for a moment that lasts some hundred milliseconds."""
AWAY = 30.0
"""Seconds that an API server, or a driver's network, is away."""
BLINK = 5.0
"""Seconds without a kubelet in which its node stays Ready."""
SEEN = 60.0
"""Seconds for a platform to do something about a change, if it does."""


@dataclass(frozen=True)
class Blow(Hit):
    """A hit with what is drawn for it, and with those that the same strike hits."""

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
        """Some driver of it."""
        assert_eventually(lambda: bool(self.scene.marks(self.name)), LONG)

    def until_written(self, timeout: float = LONG) -> None:
        everybody = (self, *self.others)
        assert_eventually(lambda: all(each.scene.marks(each.name, "wrote") for each in everybody), timeout)

    def end(self) -> None:
        """The gate before the end of those that have one."""
        for each in (self, *self.others):
            each.scene.gate(f"{each.name}.end").touch()


def pause(seconds: float) -> None:
    time.sleep(seconds)  # the length of the fault itself: nothing is waited for


def none(blow: Blow) -> None:
    blow.open()


# --- the Spark operator


def submission_killed(blow: Blow, *, children: bool = True) -> None:
    """SIGKILL of the Spark operator, and of the spark-submit that it has started; the operator is started at once."""
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
    """Its spark-submit lives on."""
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
    """The ConfigMaps that the pod mounts; spark-submit makes them after it."""
    wanted = {volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume}
    assert wanted, "the driver pod mounts no ConfigMap"
    return wanted <= {
        each["metadata"]["name"] for each in blow.scene.cluster.api.list(CONFIG_MAPS, blow.scene.namespace)
    }


# --- the client


def sent_twice(blow: Blow, *, generate: bool) -> None:
    """The answer to the create is lost, so the client sends it again: under a name of the server's, or of its own."""
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
    """A create that is done, and its answer read by nobody."""
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
    """On everything that bears the work's name: the job and its application."""
    found = [(blow.scene.resource, each) for each in blow.scene.objects(blow.name)]
    if not blow.plain:
        found += [(SPARK_APPLICATIONS, each) for each in blow.scene.applications(blow.name)]
    for resource, each in found:
        patch = {"metadata": {"labels": {"team": uuid.uuid4().hex[:8]}}}
        blow.scene.cluster.api.patch(resource, each["metadata"]["name"], patch, namespace=blow.scene.namespace)


def labelled_at_submission(blow: Blow) -> None:
    """1.5 s after its application was made: spark-submit is at work."""
    assert_eventually(lambda: blow.scene.applications(blow.name), SEEN, interval=QUICK)
    pause(1.5)
    label(blow)
    blow.open()


def labelled_and_late(blow: Blow) -> None:
    """The driver writes when the platform has said what it thinks of it."""
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
    """After its effect, before its end."""
    blow.open()
    blow.until_written()
    _edit(blow)


def argument_when_done(blow: Blow) -> None:
    blow.open()
    _until_done(blow)
    _edit(blow)


def argument_behind_our_back(blow: Blow) -> None:
    """In the application of a job, by somebody else."""
    blow.open()
    blow.until_written()
    (application,) = blow.scene.applications(blow.name)
    arguments = [*application["spec"]["arguments"], "--tasks", "2"]
    patch = {"spec": {"arguments": arguments}}
    name = application["metadata"]["name"]
    blow.scene.cluster.api.patch(SPARK_APPLICATIONS, name, patch, namespace=blow.scene.namespace)


def _until_done(blow: Blow) -> None:
    """Somebody asks for the state, and sees it."""

    def done() -> bool:
        states = blow.scene.states(blow.name)
        return bool(states) and set(states) <= {"COMPLETED", "Succeeded"}

    assert_eventually(done, LONG)


def _edit(blow: Blow) -> None:
    """An argument. A plain application is run again for it, or is not; a job says Mismatch, and its first manifest is sent once more under
    another name."""
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
    """As soon as its committer has made a folder for what is to be written."""
    blow.open()
    folder = blow.scene.shared / "lake" / blow.name / "_temporary"
    assert_eventually(folder.exists, LONG, interval=QUICK)
    blow.delete_driver()


def plain_hung(blow: Blow) -> None:
    """As long as an API server is away: nobody replaces it, so nothing else would end the freeze."""
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


# --- what it all stands on


def api_away_at_submission(blow: Blow) -> None:
    for each in (blow, *blow.others):
        assert_eventually(partial(each.scene.applications, each.name), SEEN, interval=QUICK)
    pause(1.0)
    _api_away(blow)
    blow.open()


def api_away_while_running(blow: Blow) -> None:
    """The driver writes meanwhile, and ends."""
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
    """Too short for its node to be given up; the driver writes meanwhile, and ends."""
    kubelet = blow.scene.cluster.children["kubelet"]
    kubelet.kill()
    blow.open()
    pause(BLINK)
    kubelet.start()
    assert_eventually(blow.scene.cluster.node_ready, LONG)


def zombie(blow: Blow) -> None:
    """The driver's pod is deleted by force while no kubelet is there to end it: it writes, and its successor waits."""
    cluster = blow.scene.cluster
    kubelet = cluster.children["kubelet"]
    kubelet.kill()
    try:
        blow.delete_driver()
        blow.open()
        with contextlib.suppress(AssertionError):  # it may be barred from it
            blow.until_written(SEEN)
    finally:
        kubelet.start()
    assert_eventually(cluster.node_ready, LONG)
    blow.release.until_ready()


# --- our own operators


def rolled(blow: Blow) -> None:
    """`kubectl rollout restart`, until it is through."""
    kubectl = blow.scene.cluster.kubectl
    kubectl("rollout", "restart", "-n", NAMESPACE, "deployment", "--selector=app.kubernetes.io/component=operator")
    kubectl("rollout", "status", "-n", NAMESPACE, "deployment/sparkonce-operator", "--timeout=300s")
    blow.open()
