"""The examples of kubeflow's Spark operator, converted and sent twice to a real cluster with its webhook on."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from harness.binaries import or_skip
from harness.eventually import assert_eventually
from harness.kube_api import Json
from harness.node import upstream
from harness.node.cluster import RealCluster
from harness.node.release import Release
from harness.node.scene import LONG, Scene, remove, scene_of
from harness.patience import completed
from sparkonce.launch.kubernetes import PODS

pytestmark = [pytest.mark.slow, pytest.mark.spark]

RUN = (
    "spark-pi.yaml",
    "spark-pi-configmap.yaml",
    "spark-pi-custom-resource.yaml",
    "spark-pi-dynamic-allocation.yaml",
    "spark-pi-emptydir.yaml",
    "spark-pi-pod-template.yaml",
    "spark-pi-prometheus-servlet.yaml",
    "spark-pi-python.yaml",
    "spark-pi-ttl.yaml",
)
CONVERTED = {
    "spark-pi-kube-scheduler.yaml": "IdempotentJob",
    "spark-pi-scheduled.yaml": "CronJob",
    "spark-pi-volcano.yaml": "IdempotentJob",
    "spark-pi-yunikorn.yaml": "IdempotentJob",
}
"""Converted, and not run: they need a scheduler that the tests' node does not have, or a tick of the clock."""
REFUSED = {
    "spark-pi-prometheus.yaml": "is not readable as YAML",  # its image is a pair of placeholders in braces
    "sparkconnect/spark-connect.yaml": "has no SparkApplication; it has SparkConnect",
}
"""What is no SparkApplication, with the sentence."""
AT_ONCE = 5
"""Jobs side by side on two cores, each with a driver and an executor."""
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "test-configmap"},
    "data": {"KEY1": "VALUE1"},
}
"""The one that spark-pi-configmap.yaml expects to be there."""
ADDED = {"spark-pi-configmap.yaml": {"config-vol"}, "spark-pi-emptydir.yaml": {"spark-local-dir-1"}}
"""Volumes by which a driver's pod shows that the webhook was asked. spark-submit mounts a `spark-local-dir-` itself as well."""
CORES = {"spark-pi-custom-resource.yaml": {"driver": ("50m", "800m"), "executor": ("120m", "1500m")}}
"""Requests for cores, a tenth of those published (`harness.node.upstream`), and limits, of each role's pods."""
IN_TEMPLATE = "        serviceAccountName: spark-operator-spark\n", "    serviceAccount: spark-operator-spark\n"
"""What spark-pi-pod-template.yaml has to change: only the pod template names the driver's account."""


def converted(example: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `sparkonce convert`."""
    done = completed([sys.executable, "-m", "sparkonce", "convert", str(example)], 60)
    return done.returncode, done.stdout, done.stderr


def test_each_example_is_converted_or_refused_with_a_reason(tmp_path: Path) -> None:
    """All that the Spark operator ships, none left out. The remedy of the one that has to be changed is carried out."""
    folder = or_skip(upstream.folder)
    shipped = {str(each.relative_to(folder)) for each in folder.rglob("*.yaml")}
    assert shipped == {*RUN, *CONVERTED, *REFUSED}
    for name, sentence in REFUSED.items():
        code, out, said = converted(folder / name)
        assert (code, out) == (2, "")
        assert sentence in said
    for name in shipped - REFUSED.keys():
        code, out, said = converted(prepared(folder / name, tmp_path))
        kinds = [each["kind"] for each in yaml.safe_load_all(out)]
        assert CONVERTED.get(name, "IdempotentJob") in kinds, said
        assert (code == 0) == ("CronJob" not in kinds)
    code, _, said = converted(folder / "spark-pi-pod-template.yaml")
    assert code == 2
    assert "spec.driver.template.spec.serviceAccountName: must be absent" in said


def prepared(example: Path, place: Path) -> Path:
    """The example, or a copy of it that can be converted."""
    if example.name != "spark-pi-pod-template.yaml":
        return example
    text = example.read_text()
    assert IN_TEMPLATE[0] in text
    changed = place / example.name
    changed.write_text(text.replace(*IN_TEMPLATE, 1))
    return changed


@dataclass
class Sent:
    """An example in a namespace of its own, sent twice."""

    scene: Scene
    file: str
    names: tuple[str, str]
    drivers: set[str] = field(default_factory=set)
    """UIDs of all driver pods that were ever seen."""
    volumes: set[str] = field(default_factory=set)
    """Names of their volumes."""
    cores: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Role of a pod -> request and limit of its container."""

    def ended(self) -> bool:
        for pod in self.scene.cluster.api.list(PODS, self.scene.namespace, labels="spark-role in (driver,executor)"):
            role, resources = pod["metadata"]["labels"]["spark-role"], pod["spec"]["containers"][0].get("resources", {})
            self.cores[role] = tuple(resources.get(kind, {}).get("cpu", "") for kind in ("requests", "limits"))
            if role == "driver":
                self.drivers.add(pod["metadata"]["uid"])
                self.volumes |= {each["name"] for each in pod["spec"].get("volumes") or ()}
        phases = [self.scene.status(name).get("phase") for name in self.names]
        bad = {"Failed", "Held", "Mismatch", "Cancelled"} & set(phases)
        if bad:
            raise RuntimeError(f"{self.file}: {[self.scene.status(name).get('message') for name in self.names]}")
        return phases == ["Succeeded", "Succeeded"]


@pytest.mark.timeout(900)  # eighteen pods with a JVM each on two cores
def test_the_examples_run_once_although_they_are_sent_twice(
    cluster: RealCluster, release: Release, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """Each has one driver pod in all, and the second object of its key is answered with the first one's result. What only the webhook of
    the Spark operator can give a pod (volumes, a ConfigMap) is in the driver's pod."""
    folder = or_skip(upstream.folder)
    programs = tmp_path / upstream.PROGRAMS
    or_skip(upstream.make_programs, programs)
    release.until_ready()
    with contextlib.ExitStack() as stack:
        for first in range(0, len(RUN), AT_ONCE):
            ready = []  # before the first is sent, because a pod that has ended is removed 30 s later
            for file in RUN[first : first + AT_ONCE]:
                example = prepared(folder / file, tmp_path)
                scene = scene_of(cluster)
                stack.callback(remove, scene)
                shutil.copytree(programs, scene.shared / upstream.PROGRAMS)
                ready.append((scene, example, job_of(example)))
            sent = [send(*each) for each in ready]
            assert_eventually(lambda these=tuple(sent): all([each.ended() for each in these]), LONG, interval=0.2)  # type: ignore[misc] # noqa: C419 - a default in a lambda has no type; each is looked at
            for each in sent:
                assert len(each.drivers) == 1, each
                assert ADDED.get(each.file, set()) <= each.volumes
                assert CORES.get(each.file, {}).items() <= each.cores.items()
                roles = [each.scene.status(name)["role"] for name in each.names]
                say(f"{each.file}: {' and '.join(roles)}, one driver")


def job_of(example: Path) -> Json:
    """The example as `sparkonce convert` writes it."""
    _, out, _ = converted(example)
    [job] = yaml.safe_load_all(out)
    return dict(job)


def send(scene: Scene, example: Path, job: Json) -> Sent:
    """Applies the converted example, and its key again under another name."""
    made = upstream.here(job, scene.namespace, scene.shared)
    for body in (CONFIG_MAP, *theirs(example)):
        scene.cluster.api.apply({**body, "metadata": {**body["metadata"], "namespace": scene.namespace}})
    name = made["metadata"]["name"]
    again = f"{name}-again"
    for each in (name, again):
        scene.cluster.api.apply({**made, "metadata": {**made["metadata"], "name": each}})
    return Sent(scene, example.name, (name, again))


def theirs(example: Path) -> list[Json]:
    """The ConfigMaps and Secrets beside an application in its file."""
    return [each for each in yaml.safe_load_all(example.read_text()) if each["kind"] != "SparkApplication"]
