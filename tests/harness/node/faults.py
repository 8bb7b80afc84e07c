"""Faults that hit a cluster while a job runs, each with the moment at which it strikes.

A fault gets a running job and restores the cluster: it restarts what it killed, thaws what it froze, and reconnects what it cut. It opens
the job's gate itself, because that moment is part of the fault. It judges nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.eventually import assert_eventually
from harness.node.release import NAMESPACE, Release
from harness.node.scene import LONG, Scene
from harness.patience import completed
from sparkonce.launch.kubernetes import PODS

BEAT = 6
"""Seconds: the heartbeat timeout of jobs whose driver stops sending heartbeats."""
COMMIT = "sink.slots.create"


@dataclass(frozen=True)
class Hit:
    """A job that a fault will hit."""

    scene: Scene
    release: Release
    name: str

    def open(self) -> None:
        self.scene.open(self.name)

    def driver_names(self) -> list[str]:
        """Names of the driver pods."""
        return [str(self.scene.driver(self.name)["metadata"]["name"])]

    def delete_driver(self) -> None:
        """`kubectl delete pod --force`: the object is gone at once, the process when the kubelet notices."""
        for name in self.driver_names():
            self.scene.cluster.api.delete(PODS, name, self.scene.namespace, grace=0)


@dataclass(frozen=True, kw_only=True)
class Fault:
    strike: Callable[[Hit], None]
    job: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for `Scene.job`."""
    attempts: tuple[int, ...] = (1,)
    """Allowed numbers of attempts in the end."""
    at_once: bool = False
    """Strikes as soon as the job is applied, otherwise when its driver waits at the gate."""
    alone: bool = False
    """Hits every job on the cluster, so no other one may run beside it."""


# --- the operator


def operator_killed(hit: Hit) -> None:
    """Kills both operators, so that the owner is one of them, with SIGKILL; the kubelet restarts them."""
    for pod in hit.release.pods("operator"):
        os.kill(hit.release.process(pod), signal.SIGKILL)
    hit.open()
    hit.release.until_ready()


def operator_frozen(hit: Hit) -> None:
    """Freezes one operator with SIGSTOP past its lease while the other continues; then wakes it."""
    owner = hit.scene.status(hit.name).get("owner", "").partition("/")[0]
    pod = next((each for each in hit.release.pods("operator") if each["metadata"]["name"] == owner), None)
    assert pod is not None, f"the owner is {owner!r}, which is no operator"
    process = hit.release.process(pod)
    os.kill(process, signal.SIGSTOP)
    try:
        hit.open()
        hit.scene.until(hit.name, "Succeeded", timeout=LONG)
    finally:
        with contextlib.suppress(ProcessLookupError):  # its liveness probe may have ended it
            os.kill(process, signal.SIGCONT)


# --- the driver and its executors


def driver_deleted_before(hit: Hit) -> None:
    hit.delete_driver()
    hit.scene.until_marked(hit.name, "began", attempt=2)
    hit.open()


def driver_deleted_during(hit: Hit) -> None:
    """Deletes the driver while it is frozen between its files and its slot."""
    hit.open()
    assert_eventually(lambda: any(hit.scene.hits(hit.name).iterdir()), LONG)
    hit.delete_driver()


def driver_deleted_after(hit: Hit) -> None:
    hit.open()
    hit.scene.until_marked(hit.name, "wrote")
    hit.delete_driver()


def driver_hung(hit: Hit) -> None:
    """Freezes all processes of the driver with SIGSTOP: it sends no heartbeat, and its pod keeps running."""
    pids = processes(hit)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        hit.scene.until_marked(hit.name, "began", attempt=2)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    hit.open()


def driver_cut_off(hit: Hit) -> None:
    """Cuts the driver's network until its successor has begun."""
    with cut(hit):
        hit.scene.until_marked(hit.name, "began", attempt=2)
    hit.open()


def executor_deleted(hit: Hit) -> None:
    pods = assert_eventually(lambda: hit.scene.executors(hit.name), LONG)
    hit.scene.delete_pod(pods[0])
    hit.open()


# --- the platform: kubelet, Spark operator, etcd, gateways


def kubelet_stopped(hit: Hit) -> None:
    """Stops the kubelet until the node is NotReady and its pods are evicted; their processes keep running."""
    kubelet, api = hit.scene.cluster.children["kubelet"], hit.scene.cluster.api
    drivers = hit.driver_names()

    def evicted() -> bool:
        pods = [api.get(PODS, driver, hit.scene.namespace) for driver in drivers]
        return all(pod is None or pod["metadata"].get("deletionTimestamp") for pod in pods)

    kubelet.kill()
    try:
        assert_eventually(lambda: not hit.scene.cluster.node_ready(), LONG)
        assert_eventually(evicted, LONG)
    finally:
        kubelet.start()
    hit.open()
    assert_eventually(hit.scene.cluster.node_ready, LONG)
    hit.release.until_ready()


def spark_operator_killed(hit: Hit) -> None:
    """Kills the Spark operator once the driver pod exists and the status does not show it yet: its successor submits again."""
    cluster = hit.scene.cluster
    assert_eventually(
        lambda: cluster.api.list(PODS, hit.scene.namespace, labels="spark-role=driver"), LONG, interval=0.005
    )
    cluster.restart("spark-operator")
    hit.open()


def etcd_killed(hit: Hit) -> None:
    """Kills the ledger's etcd; the kubelet restarts it."""
    os.kill(hit.release.process(hit.release.pods("etcd")[0]), signal.SIGKILL)
    hit.open()
    hit.release.until_ready()


def api_server_killed(hit: Hit) -> None:
    child = hit.scene.cluster.children["kube-apiserver"]
    child.kill()
    try:
        hit.open()
        assert_eventually(lambda: bool(hit.scene.marks(hit.name, "wrote")), LONG)
    finally:
        child.start()
    assert_eventually(hit.scene.cluster.serves, LONG)
    hit.release.until_ready()


def gateways_gone(hit: Hit) -> None:
    """Stops the gateways for three times the heartbeat timeout: no heartbeat can arrive, so the driver must not be replaced for its
    silence."""
    kubectl, scale = hit.scene.cluster.kubectl, ("scale", "-n", NAMESPACE, "deployment/sparkonce-gateway")
    kubectl(*scale, "--replicas=0")
    try:
        assert_eventually(lambda: not hit.release.pods("gateway"), LONG)
        time.sleep(3 * BEAT)  # the duration of the outage itself
    finally:
        kubectl(*scale, "--replicas=2")
        hit.release.until_ready()
    hit.open()


def everything_killed(hit: Hit) -> None:
    """Kills every part of the cluster and every container at once."""
    cluster = hit.scene.cluster
    for child in cluster.children.values():
        os.kill(child.pid, signal.SIGKILL)
    cluster.cgroups.kill()
    for child in cluster.children.values():
        child.kill()
    cluster.start_again()
    hit.open()
    hit.release.until_ready()


SILENT = {"heartbeatTimeoutSeconds": BEAT}
FAULTS: Mapping[str, Fault] = {
    "operator killed": Fault(strike=operator_killed, alone=True),
    "operator frozen past its lease": Fault(strike=operator_frozen, alone=True),
    "driver deleted before its commit": Fault(strike=driver_deleted_before, attempts=(2,)),
    "driver deleted during its commit": Fault(
        strike=driver_deleted_during, attempts=(1, 2), job={"failpoints": f"{COMMIT}.before=stop"}
    ),
    "driver deleted at its commit": Fault(
        strike=driver_deleted_during, attempts=(1,), job={"failpoints": f"{COMMIT}.after=stop"}
    ),
    "driver deleted after its commit": Fault(strike=driver_deleted_after, job={"end": True}),
    "driver hung": Fault(strike=driver_hung, attempts=(2,), job=SILENT),
    "driver cut off": Fault(strike=driver_cut_off, attempts=(2,), job=SILENT),
    "executor deleted": Fault(strike=executor_deleted, job={"executors": 1}),
    "kubelet stopped until eviction": Fault(strike=kubelet_stopped, attempts=(1, 2, 3), alone=True),
    "Spark operator killed at submission": Fault(
        strike=spark_operator_killed, at_once=True, attempts=(1, 2), alone=True
    ),
    "etcd killed": Fault(strike=etcd_killed, alone=True),
    "API server killed": Fault(strike=api_server_killed, alone=True),
    "gateways gone": Fault(strike=gateways_gone, alone=True, job=SILENT),
    "everything killed": Fault(strike=everything_killed, attempts=(1, 2, 3), alone=True),
}


def send(scene: Scene, release: Release, name: str, fault: Fault) -> Hit:
    """Applies a job for this fault, which waits at its gate unless the fault strikes earlier."""
    scene.send(name, **fault.job)
    if not fault.at_once:
        scene.until_marked(name, "began")
    return Hit(scene, release, name)


def processes(hit: Hit) -> list[int]:
    """Processes of the driver's container: those in the control group of its first process."""
    uid = hit.scene.driver(hit.name)["metadata"]["uid"]
    return hit.scene.cluster.cgroups.processes_of(uid)


@contextlib.contextmanager
def cut(hit: Hit) -> Iterator[None]:
    """Takes down the node's end of the driver pod's virtual cable during the block."""
    pid = min(processes(hit))
    inside = ["nsenter", f"--net=/proc/{pid}/ns/net", "--", "ip", "-o", "link", "show", "eth0"]
    shown = completed(inside, 30)
    found = re.search(r"eth0@if(\d+)", shown.stdout)
    assert found is not None, shown.stderr
    links = hit.scene.cluster.network.run("ip", "-o", "link")
    interface = re.search(rf"^{found[1]}: ([^@:]+)", links, re.MULTILINE)
    assert interface is not None, f"no interface {found[1]} in {links}"
    hit.scene.cluster.network.cut(interface[1])
    try:
        yield
    finally:
        hit.scene.cluster.network.heal(interface[1])
