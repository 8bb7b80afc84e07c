"""Enforces NetworkPolicies: the cluster's own network does not support them, so a controller of another network runs beside it.

kube-router's controller writes iptables rules into the cluster's network namespace. It lets traffic from the node itself through, as nearly
all networks do: probes, and the API server's proxy.
"""

from __future__ import annotations

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
from harness.patience import completed
from sparkonce.launch.kubernetes import PODS

LONG = 120.0
"""Seconds for a pod to run, or for rules to follow a change; usually two."""
CONNECTS = 2.0
"""Seconds for a connection, which takes a millisecond; a dropped one is never established."""
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
    """An idle pod, from whose network connections are tried."""

    cluster: RealCluster
    pod: Json

    def reaches(self, address: str, port: int) -> bool:
        inside = ["nsenter", f"--net=/proc/{self.cluster.containers.process(self.pod)}/ns/net", "--"]
        command = [*inside, sys.executable, "-c", TRY, address, str(port)]
        return completed(command, 60).returncode == 0


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
        ],  # its network is all that is used; no test waits for it
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
    cluster.api.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace)

    def running() -> Json:
        found = cluster.api.get(PODS, name, namespace)
        assert found is not None
        assert found["status"].get("phase") == "Running", found["status"]
        return found

    return Caller(cluster, assert_eventually(running, LONG))
