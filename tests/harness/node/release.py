"""The chart on a real cluster, installed as a platform team would: `helm install`, two operators, two gateways, the bundled etcd.

The values shorten periods (a lease of 3 s, a sweep of 10 s), so that a takeover takes seconds of a test; everything else is as the chart
has it by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.eventually import assert_eventually
from harness.kube_api import Json, holds
from harness.node.cluster import RealCluster
from harness.node.images import ETCD, OPERATOR
from harness.node.network import HOST
from harness.patience import completed
from harness.store_parts import HELM, installed
from harness.store_servers import s3_environment
from sparkonce.launch.kubernetes import NAMESPACES, PODS, Resource

CHART = Path(__file__).resolve().parents[3] / "charts" / "sparkonce"
NAMESPACE = "sparkonce"
NAME = "sparkonce"
VOLUMES = "tests"
"""Storage class of the only volume, a folder of the node."""
VOLUME = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
STORE = f"{HOST}:7070"
"""Address of the S3-compatible server, if a test starts one; operators have its address and credentials."""
KEYS = "outputs"
"""The Secret with the credentials."""
LEASE = 3
"""Seconds."""
TIMEOUT = 300.0
"""Seconds for helm, which waits until all pods are ready: twenty on free cores."""


def values() -> dict[str, Any]:
    """Values for a small cluster with local images and without volumes."""

    def image(tag: str) -> Json:
        repository, _, version = tag.rpartition(":")
        return {"repository": repository, "tag": version, "pullPolicy": "Never"}

    small = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    return {
        "image": image(OPERATOR),
        "operator": {
            "leaseSeconds": LEASE,
            "sweepSeconds": 10,
            "resources": small,
            "terminationGracePeriodSeconds": 20,
            "outputCredentials": [KEYS],
        },
        # All namespaces are watched; the flights' bucket, and the folders of other tests.
        "outputs": {"allowed": [{"prefixes": ["s3://flights", "/"]}]},
        "gateway": {"resources": small, "terminationGracePeriodSeconds": 10},
        "etcd": {
            "bundled": {
                "enabled": True,
                "image": image(ETCD),
                # Eviction of an etcd pod with an emptyDir would lose the ledger, and StoreRewound would rightly stop everything.
                "persistence": {"size": "1Gi", "storageClass": VOLUMES},
                "resources": small,
            }
        },
    }


@dataclass
class Release:
    cluster: RealCluster
    chart: Path = CHART
    values: Mapping[str, Any] = field(default_factory=values)
    namespace: str = NAMESPACE
    members: int = 1
    """Members of its etcd, as in `values`."""

    def install(self) -> None:
        """Installs the chart; all pods are ready when this returns."""
        if self.cluster.api.get(NAMESPACES, self.namespace) is None:
            self.cluster.api.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        for member in range(self.members):
            self._volume(f"ledger-{self.namespace}-{member}")
        metadata = {"name": KEYS, "namespace": self.namespace}
        self.cluster.api.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": s3_environment(STORE)}
        )
        self._helm("upgrade", "--install", "--wait", f"--timeout={TIMEOUT:.0f}s", NAME, str(self.chart), "--values=-")

    def _volume(self, name: str) -> None:
        if self.cluster.api.get(VOLUME, name) is not None:
            return
        folder = self.cluster.folder / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        self.cluster.api.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "storageClassName": VOLUMES,
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": str(folder)},
                },
            }
        )

    def uninstall(self) -> None:
        self._helm("uninstall", "--wait", NAME)

    def remove(self) -> None:
        """Removes the release with its ledger, for a cluster that is used further."""
        self.uninstall()
        self.cluster.api.delete(NAMESPACES, self.namespace)
        for member in range(self.members):
            self.cluster.api.delete(VOLUME, f"ledger-{self.namespace}-{member}")

    def test(self) -> str:
        """Output of `helm test`."""
        return self._helm("test", NAME)

    def pods(self, component: str) -> Sequence[Json]:
        """Pods that are not being deleted; `component`: operator, gateway, etcd."""
        found = self.cluster.api.list(PODS, self.namespace, labels=f"app.kubernetes.io/component={component}")
        return [each for each in found if not each["metadata"].get("deletionTimestamp")]

    def ready(self, component: str, count: int) -> bool:
        """Whether exactly this many pods exist and are ready."""
        pods = self.pods(component)
        return len(pods) == count and all(holds(each, "Ready") for each in pods)

    def until_ready(self) -> None:
        for component, count in (("etcd", self.members), ("operator", 2), ("gateway", 2)):
            assert_eventually(lambda c=component, n=count: self.ready(c, n), TIMEOUT)  # type: ignore[misc] # a default in a lambda has no type

    def process(self, pod: Json) -> int:
        """Pid of a pod's first container, as seen by this machine."""
        return self.cluster.containers.process(pod)

    def logs(self, component: str) -> str:
        selector = f"--selector=app.kubernetes.io/component={component}"
        return self.cluster.kubectl("logs", "-n", self.namespace, selector, "--tail=-1", "--prefix", check=False)

    def _helm(self, *arguments: str) -> str:
        command = [
            str(installed(HELM)),
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--namespace={self.namespace}",
            *arguments,
        ]
        done = completed(command, TIMEOUT + 60, given=yaml.safe_dump(dict(self.values)))
        assert done.returncode == 0, f"helm {arguments[0]}: {done.stderr.strip()}"
        return done.stdout
