"""A team's namespace on a real cluster: an account for drivers, a shared folder, jobs that wait at gates.

The shared folder is on this machine, mounted into drivers and executors, which read scripts from it and write tables into it; tests look at
the same files. Effects are counted there, never in logs.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import parquet

from harness.eventually import assert_eventually
from harness.kube_api import SERVICE_ACCOUNTS, Json
from harness.node.cluster import RealCluster
from harness.node.images import SPARK
from harness.spark_archive import SHORT_LIVED
from sparkonce.launch.kubernetes import JOBS, NAMESPACES, PODS, SPARK_APPLICATIONS
from sparkonce.sink.slotlog.snapshot import Table

SCRIPTS = Path(__file__).resolve().parent / "jobs"
SHARED = "/shared"
"""Where drivers and executors see the folder."""
ENDED = ("Succeeded", "Failed", "Cancelled", "Held", "Mismatch", "Expired")
LONG = 300.0
"""Seconds for a driver to start, write and end; usually twenty, but the cores are shared with other tests."""
SOON = {"initial": "1s", "max": "2s"}
"""Backoff between attempts."""


@dataclass
class Scene:
    cluster: RealCluster
    namespace: str
    names: list[str] = field(default_factory=list)

    @property
    def shared(self) -> Path:
        return self.cluster.folder / "shared" / self.namespace

    # --- requests of a team

    def gate(self, name: str) -> Path:
        return self.shared / "gates" / name

    def hits(self, name: str) -> Path:
        """The folder that records which failpoints of this job were hit."""
        return self.shared / "once" / name

    def open(self, name: str) -> None:
        self.gate(name).touch()

    def job(
        self,
        name: str,
        *,
        executors: int = 0,
        end: bool = False,
        rows: int = 100,
        failpoints: str = "",
        **spec: Any,
    ) -> Json:
        """A job that writes `rows` numbers into its own table when the gate of its name opens, and then ends or waits for `<name>.end`."""
        arguments = ["--gate", f"{SHARED}/gates/{name}", "--rows", str(rows)]
        arguments += ["--end", f"{SHARED}/gates/{name}.end"] if end else []
        arguments += ["--tasks", str(max(1, executors)), *([] if executors else ["--local"])]
        arguments += ["--failpoints", failpoints, "--once", f"{SHARED}/once/{name}"] if failpoints else []
        conf = {
            "spark.kubernetes.executor.useDriverPodIP": "true",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        for role in ("driver", "executor"):
            conf[f"spark.{role}.defaultJavaOptions"] = SHORT_LIVED
            volume = f"spark.kubernetes.{role}.volumes.hostPath.shared"
            conf[f"{volume}.mount.path"], conf[f"{volume}.options.path"] = SHARED, str(self.shared)
        pod = {"cores": 1, "coreRequest": "50m", "memory": "512m", "memoryOverhead": "128m"}
        return {
            "apiVersion": "sparkonce.dev/v1alpha1",
            "kind": "IdempotentJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "operation": "write-numbers",
                "resource": name,
                "template": {
                    "apiVersion": "sparkoperator.k8s.io/v1beta2",
                    "kind": "SparkApplication",
                    "spec": {
                        "type": "Python",
                        "mode": "cluster",
                        "sparkVersion": "4.1.1",
                        "image": SPARK,
                        "imagePullPolicy": "Never",
                        "mainApplicationFile": f"local://{SHARED}/jobs/gated.py",
                        "arguments": arguments,
                        "sparkConf": conf,
                        "driver": {**pod, "serviceAccount": "spark"},
                        "executor": {**pod, "instances": max(1, executors)},
                    },
                },
                "outputs": [{"name": "rows", "slotLog": {"path": f"{SHARED}/lake/{name}"}}],
                "retry": {"maxAttempts": 4, "backoff": SOON},
                "applicationTTL": {"succeeded": "1s", "failed": "1s"},
                **spec,
            },
        }

    def send(self, name: str, **more: Any) -> str:
        """Applies the job; returns its name."""
        self.hits(name).mkdir(exist_ok=True)
        self.hits(name).chmod(0o777)  # drivers run as a user of the image
        self.cluster.api.apply(self.job(name, **more))
        self.names.append(name)
        return name

    # --- observations

    def status(self, name: str) -> Json:
        found = self.cluster.api.get(JOBS, name, self.namespace) or {}
        status = found.get("status") or {}
        assert isinstance(status, dict)
        return status

    def until(self, name: str, *phases: str, timeout: float = LONG) -> Json:
        """The status, as soon as it is in one of these phases. Raises AssertionError, at once if the job ended in another phase."""

        def look() -> Json:
            status = self.status(name)
            phase = status.get("phase")
            if phase in ENDED and phase not in phases:
                raise RuntimeError(f"{name} is {phase}: {status.get('message')}")
            assert phase in phases, f"{name} is {phase}: {status.get('message')}"
            return status

        return assert_eventually(look, timeout)

    def until_generation(self, name: str, generation: int, phase: str, timeout: float = LONG) -> Json:
        """Its status, once this generation is in this phase."""

        def look() -> Json:
            status = self.status(name)
            assert (status.get("generation"), status.get("phase")) == (generation, phase), status.get("message")
            return status

        return assert_eventually(look, timeout)

    def until_marked(self, name: str, what: str, *, attempt: int = 1, timeout: float = LONG) -> None:
        """Waits until a driver of this attempt has left the mark `began` or `wrote`."""

        def look() -> bool:
            status = self.status(name)
            if not (found := self.marks(name, f"{what}-{attempt}")) and status.get("phase") in ENDED:
                raise RuntimeError(f"{name} is {status['phase']} without: {status.get('message')}")
            return bool(found)

        assert_eventually(look, timeout)

    def marks(self, name: str, what: str = "began") -> list[str]:
        """Marks, one for each driver process that came this far."""
        return sorted(each.name for each in self.gate(name).parent.glob(f"{name}.{what}*"))

    def rows(self, name: str) -> Counter[int]:
        """How often each number is in the table, as a reader sees it."""
        counted: Counter[int] = Counter()
        for path in Table(self.shared / "lake" / name).files():
            counted.update(int(each) for each in parquet.read_table(path).column("n").to_pylist() if each is not None)
        return counted

    def once(self, name: str, rows: int = 100) -> None:
        """Every row of the job is in the table exactly once."""
        assert self.rows(name) == Counter(range(rows)), f"{name} has {sum(self.rows(name).values())} rows"

    def applications(self, name: str) -> Sequence[Json]:
        """Applications of this job, by the names of their attempts."""
        found = self.cluster.api.list(SPARK_APPLICATIONS, self.namespace)
        mine = [each for each in found if f"{SHARED}/gates/{name}" in (each["spec"].get("arguments") or [])]
        return sorted(mine, key=lambda each: str(each["metadata"]["name"]))

    def driver(self, name: str) -> Json:
        """The driver pod of the newest attempt."""

        def look() -> Json:
            applications = self.applications(name)
            assert applications, f"no application of {name}"
            pod = self.cluster.api.get(PODS, f"{applications[-1]['metadata']['name']}-driver", self.namespace)
            assert pod is not None, f"no driver of {name}"
            return pod

        return assert_eventually(look, LONG)

    def delete_pod(self, pod: Json) -> None:
        """`kubectl delete pod --force`: the object is gone at once, the process when the kubelet notices."""
        self.cluster.api.delete(PODS, pod["metadata"]["name"], self.namespace, grace=0)

    def executors(self, name: str) -> Sequence[Json]:
        labels = f"sparkoperator.k8s.io/app-name={self.applications(name)[-1]['metadata']['name']},spark-role=executor"
        return self.cluster.api.list(PODS, self.namespace, labels=labels)


def scene_of(cluster: RealCluster) -> Scene:
    """A fresh namespace; the caller removes it with `remove`."""
    scene = Scene(cluster, f"team-{uuid.uuid4().hex[:8]}")
    for folder in ("gates", "lake", "once"):
        (scene.shared / folder).mkdir(parents=True)
        (scene.shared / folder).chmod(0o777)  # drivers run as a user of the image
    for place in (cluster.folder, cluster.folder / "shared", scene.shared):
        place.chmod(0o755)
    shutil.copytree(SCRIPTS, scene.shared / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    cluster.api.create(NAMESPACES, {"metadata": {"name": scene.namespace}})
    for body in account(scene.namespace):
        cluster.api.apply(body)
    assert_eventually(lambda: cluster.api.get(SERVICE_ACCOUNTS, "default", scene.namespace) is not None, LONG)
    return scene


def account(namespace: str) -> Sequence[Json]:
    """The rights with which a driver creates its executors, as in Spark's documentation."""
    metadata = {"name": "spark", "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    rule = {
        "apiGroups": [""],
        "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
        "verbs": ["create", "get", "list", "watch", "delete", "deletecollection", "patch", "update"],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "spark"},
            "subjects": [{"kind": "ServiceAccount", "name": "spark", "namespace": namespace}],
        },
    ]


def remove(scene: Scene) -> None:
    """Deletes the namespace without waiting until it is empty."""
    scene.cluster.api.delete(NAMESPACES, scene.namespace)
