"""NetworkPolicies in force: the cluster's own network knows none, so a controller of another one is started beside it, and ended.

kube-router's writes iptables rules into the cluster's network namespace. What comes from the node itself it lets through, as nearly all
networks do: probes, the API server's proxy.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.binaries import NETWORK_POLICIES, binary
from harness.child import Child
from harness.eventually import assert_eventually
from harness.kube_api import Json
from harness.node.cluster import NAME, RealCluster
from harness.node.images import OPERATOR
from harness.node.network import SERVICE_NETWORK
from sparkonce.launch.kubernetes import PODS

LONG = 120.0
"""Seconds for a pod to run, or for rules to follow a change: two are the rule."""
CONNECTS = 2.0
"""Seconds for a connection, which takes a millisecond; what a policy drops never comes."""
TRY = f"import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), {CONNECTS})"


@contextmanager
def enforced(cluster: RealCluster) -> Iterator[None]:
    program = str(binary(NETWORK_POLICIES))
    flags = [f"-kubeconfig={cluster.kubeconfig}", f"-node={NAME}", f"-services={SERVICE_NETWORK}"]
    child = Child(
        "network-policies", cluster.network.inside([program, *flags]), cluster.folder / "network-policies.log"
    )
    child.start()
    try:
        yield
        assert child.running, f"network-policies ended: {child.last_words()}"
    finally:
        child.kill()
        cluster.network.run(program, "-clean")


@dataclass(frozen=True)
class Caller:
    """A pod that does nothing, in whose name connections are tried."""

    cluster: RealCluster
    pod: Json

    def reaches(self, address: str, port: int) -> bool:
        inside = ["nsenter", f"--net=/proc/{self.cluster.containers.process(self.pod)}/ns/net", "--"]
        command = [*inside, sys.executable, "-c", TRY, address, str(port)]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def caller(cluster: RealCluster, namespace: str) -> Caller:
    name = "caller"
    container = {
        "name": name,
        "image": OPERATOR,
        "imagePullPolicy": "Never",
        "command": [
            "python3",
            "-c",
            "import time; time.sleep(3600)",
        ],  # what the pod is for: to be there; no test waits for it
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
    cluster.api.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace)

    def running() -> Json:
        found = cluster.api.get(PODS, name, namespace)
        assert found is not None
        assert found["status"].get("phase") == "Running", found["status"]
        return found

    return Caller(cluster, assert_eventually(running, LONG))
