"""A release is published to a registry on loopback by the very steps of the workflow.

cosign alone is played, since it needs the runner's identity.

crane is the registry and, beside Helm, the client: what was pushed is read back with them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.apiserver import yaml_document
from harness.binaries import KUBE, SPARK_OPERATOR, or_skip, spark_operator_crds
from harness.child import Child, free_port
from harness.helm import CHART, one, rendered
from harness.patience import completed
from harness.store_parts import CRANE, HELM, program
from images import contents
from publishing.archives import small
from release import artifacts
from release.version import ROOT, current

VERSION = current()
ARCHITECTURES = ("amd64", "arm64")
COSIGN = """#!/bin/sh
echo "$*" >>{log}
! grep -qxF -- "$1" {fails}
"""
"""Notes what it is asked to do; fails at the verbs in a file."""
START = 30.0
"""Seconds for the registry to serve: a tenth of one on a free core."""
TIMEOUT = 120.0
"""Seconds for a step: a few on free cores."""


@dataclass(frozen=True)
class Scene:
    folder: Path
    """With the files of a release."""
    registry: str
    path: str
    signed: Path
    fails: Path

    def step(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts" / "release"), *map(str, arguments)]
        return completed(command, TIMEOUT, env={**os.environ, "PATH": self.path}, stdin=subprocess.DEVNULL)

    def publish(self) -> list[str]:
        done = self.step("publish", self.registry, self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def refused(self) -> str:
        done = self.step("publish", self.registry, self.folder)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr

    def crane(self, *arguments: str) -> str:
        done = completed([str(program(CRANE)), *arguments], TIMEOUT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def published(self) -> dict[str, str]:
        """Digest by name of everything in the registry."""
        names = self.crane("catalog", self.registry.partition("/")[0]).split()
        host = self.registry.partition("/")[0]
        tagged = [f"{host}/{name}:{tag}" for name in names for tag in self.crane("ls", f"{host}/{name}").split()]
        return {each: self.crane("digest", each).strip() for each in tagged}

    def acts(self) -> list[str]:
        return self.signed.read_text().splitlines() if self.signed.exists() else []


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel, source archive and their bill, from the step itself."""
    folder = tmp_path_factory.mktemp("distributions")
    command = [sys.executable, str(ROOT / "scripts" / "release"), "distributions", str(folder)]
    done = completed(command, TIMEOUT)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def scene(tmp_path: Path, distributions: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A folder with all files, whose images are small, and an empty registry."""
    port = free_port()
    made, tools = tmp_path / "dist", tmp_path / "tools"
    for each in (made, tools):
        each.mkdir()
    for file in distributions.iterdir():
        (made / file.name).hardlink_to(file)
    for name in contents.images():
        for architecture in ARCHITECTURES:
            small(made, name, architecture, {"etc/kind": f"{name} {architecture}".encode()}, monkeypatch)
            (made / f"{name}-{architecture}.cdx.json").write_text("{}")
    (tools / "cosign").write_text(COSIGN.format(log=tmp_path / "signed", fails=tmp_path / "fails"))
    (tools / "cosign").chmod(0o755)
    (tmp_path / "fails").touch()
    path = ":".join(map(str, [tools, program(CRANE).parent, program(HELM).parent, os.environ["PATH"]]))
    command = [str(program(CRANE)), "registry", "serve", f"--address=127.0.0.1:{port}"]
    registry = Child("registry", command, tmp_path / "registry.log")
    registry.start()
    try:
        found = Scene(made, f"127.0.0.1:{port}/team", path, tmp_path / "signed", tmp_path / "fails")
        registry.until(lambda: b"serving" in registry.log.read_bytes(), START)
        done = found.step("chart", made, "--registry", found.registry)
        assert done.returncode == 0, done.stderr
        yield found
    finally:
        registry.end()


def sums(file: Path) -> dict[str, str]:
    """Digest by name, of a list as sha256sum writes it."""
    return {name: digest for digest, name in (line.split("  ") for line in file.read_text().splitlines())}


def test_a_release_is_published(scene: Scene) -> None:
    """Each image has both architectures under one name, the chart is beside them, everything is signed by digest, every image has a signed
    bill of materials, and the two lists have the digests of all that people can download."""
    references = scene.publish()
    published = scene.published()
    names = [f"{scene.registry}/sparkonce/{name}:{VERSION}" for name in contents.images()]
    names.append(f"{scene.registry}/charts/sparkonce:{VERSION}")
    assert set(published) == set(names)
    assert references == [f"{name.removesuffix(f':{VERSION}')}@{published[name]}" for name in names]
    expected: list[str] = []
    for name, image in zip(names, contents.images(), strict=False):
        index: dict[str, Any] = json.loads(scene.crane("manifest", name))
        for entry, architecture in zip(index["manifests"], ARCHITECTURES, strict=True):
            assert entry["platform"]["architecture"] == architecture
            plain = name.removesuffix(f":{VERSION}")
            config = json.loads(scene.crane("config", f"{plain}@{entry['digest']}"))
            assert config["architecture"] == architecture
            bill = scene.folder / f"{image}-{architecture}.cdx.json"
            expected.append(f"attest --yes --type cyclonedx --predicate {bill} {plain}@{entry['digest']}")
        expected.append(f"sign --yes --recursive {name.removesuffix(f':{VERSION}')}@{published[name]}")
    expected.append(f"sign --yes --recursive {references[-1]}")
    files = [f"sparkonce-{VERSION}{end}" for end in (".tgz", "-py3-none-any.whl", ".tar.gz", ".cdx.json")]
    expected += [
        f"sign-blob --yes --bundle {scene.folder / each}.sigstore.json {scene.folder / each}" for each in files
    ]
    assert scene.acts() == expected
    listed = sums(scene.folder / "SHA256SUMS")
    assert listed == {name: hashlib.sha256((scene.folder / name).read_bytes()).hexdigest() for name in listed}
    assert set(files) < set(listed)
    provenance = sums(scene.folder / "published.txt")
    assert provenance == {name.removesuffix(f":{VERSION}"): published[name].removeprefix("sha256:") for name in names}


def test_the_published_chart_takes_the_published_images(scene: Scene, tmp_path: Path) -> None:
    """Pulled from the registry, it has the release's version, and installs the images of the same registry without a value that says so."""
    scene.publish()
    command = [
        str(program(HELM)),
        "pull",
        f"oci://{scene.registry}/charts/sparkonce",
        "--version",
        VERSION,
        "--plain-http",
    ]
    done = completed([*command, "--untar", "--untardir", str(tmp_path / "pulled")], TIMEOUT)
    assert done.returncode == 0, done.stderr
    chart = tmp_path / "pulled" / "sparkonce"
    said = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (said["version"], said["appVersion"]) == (VERSION, VERSION)
    objects = rendered(sets=["etcd.bundled.enabled=true"], chart=chart)
    used = {
        box["image"]
        for each in objects
        if each["kind"] in {"Deployment", "StatefulSet"}
        for box in each["spec"]["template"]["spec"]["containers"]
    }
    assert used == {f"{scene.registry}/sparkonce/{name}:{VERSION}" for name in ("operator", "etcd")}
    assert used <= set(scene.published())
    theirs = {
        each.relative_to(chart)
        for each in chart.rglob("*")
        if each.is_file() and "charts" not in each.relative_to(chart).parts
    }
    assert theirs == {each.relative_to(CHART) for each in CHART.rglob("*") if each.is_file()}


def test_the_chart_of_a_release_can_bring_the_spark_operator(scene: Scene, tmp_path: Path) -> None:
    """Off, it renders nothing of kubeflow's, and no CRD. On, kubeflow's controller and webhook come with its CRDs at the version that the
    tests run; they watch every namespace, as our operator does; and kubeflow's own values are reached. Its licence is in the package."""
    chart = tmp_path / "sparkonce"
    with tarfile.open(scene.folder / f"sparkonce-{VERSION}.tgz") as tar:
        tar.extractall(tmp_path, filter="data")
    assert "Apache License" in (chart / "charts" / "spark-operator" / "LICENSE").read_text()
    sets = ["etcd.bundled.enabled=true", "jobs.serviceAccount.create=true"]

    def made(*more: str) -> list[dict[str, Any]]:
        words = [
            "template",
            "spark",
            str(chart),
            "--include-crds",
            "--kube-version",
            KUBE.version,
            "--set",
            ",".join([*sets, *more]),
        ]
        done = completed([str(program(HELM)), *words], TIMEOUT)
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]

    def crds(objects: list[dict[str, Any]]) -> set[str]:
        return {each["metadata"]["name"] for each in objects if each["kind"] == "CustomResourceDefinition"}

    def names(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
        return {
            (each["kind"], each["metadata"]["name"]) for each in objects if each["kind"] != "CustomResourceDefinition"
        }

    without, both = made(), made("kubeflow.enabled=true")
    assert crds(without) == {"idempotentjobs.sparkonce.dev"}
    theirs = {yaml_document(each)["metadata"]["name"] for each in or_skip(spark_operator_crds)}
    assert crds(both) == crds(without) | theirs
    assert names(without) < names(both)
    added = [each for each in both if (each["kind"], each["metadata"]["name"]) in names(both) - names(without)]
    deployments = {each["metadata"]["name"]: each for each in added if each["kind"] == "Deployment"}
    assert set(deployments) == {"spark-kubeflow-controller", "spark-kubeflow-webhook"}
    (box,) = deployments["spark-kubeflow-controller"]["spec"]["template"]["spec"]["containers"]
    assert box["image"].endswith(f":{SPARK_OPERATOR[1].lstrip('v')}")
    assert [each for each in box["args"] if each.startswith("--namespaces=")] in (
        ['--namespaces=""'],
        ["--namespaces="],
    )
    more = made("kubeflow.enabled=true", "kubeflow.controller.replicas=3")
    assert one(more, "Deployment", "kubeflow-controller")["spec"]["replicas"] == 3
    assert artifacts.SPARK_OPERATOR == SPARK_OPERATOR


def test_the_documented_installations_render(scene: Scene, tmp_path: Path) -> None:
    """Each `helm install` of docs/install.md for the chart of a release has values that this chart takes."""
    with tarfile.open(scene.folder / f"sparkonce-{VERSION}.tgz") as tar:
        tar.extractall(tmp_path, filter="data")
    page = (ROOT / "docs" / "install.md").read_text()
    commands = re.findall(r"^helm install sparkonce (?:.*\\\n)*.*", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        words = shlex.split(command.replace("\\\n", " "))
        sets = [value for option, value in itertools.pairwise(words) if option == "--set"]
        objects = rendered(sets=sets, chart=tmp_path / "sparkonce")
        assert one(objects, "Deployment", "kubeflow-controller")
        assert one(objects, "ServiceAccount", "spark")


@pytest.mark.parametrize("verb", ["attest", "sign ", "sign-blob"])
def test_a_step_that_failed_is_repeated(scene: Scene, verb: str) -> None:
    """Ended between the pushes and the signatures, wherever that is: the same command again pushes nothing new, and signs what is
    missing."""
    scene.fails.write_text(f"{verb.strip()}\n")
    assert "release: cosign" in scene.refused()
    before = scene.published()
    assert not (scene.folder / "published.txt").exists(), "nothing says that it is complete"
    scene.fails.write_text("")
    references = scene.publish()
    after = scene.published()
    assert before.items() <= after.items()
    assert len(after) == 4
    signed = {line.split()[-1] for line in scene.acts() if line.startswith("sign ")}
    assert set(references) <= signed
    assert scene.publish() == references, "and a third time, when all is done"
    assert scene.published() == after


def test_a_version_never_changes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image or a chart with other contents under a published name is refused before anything is pushed, with what to do."""
    scene.publish()
    before, acts = scene.published(), scene.acts()
    small(scene.folder, "spark", "arm64", {"etc/kind": b"other"}, monkeypatch)
    told = scene.refused()
    assert f"{scene.registry}/sparkonce/spark:{VERSION} is published already with other contents" in told
    assert "re-run failed jobs" in told
    small(scene.folder, "spark", "arm64", {"etc/kind": b"spark arm64"}, monkeypatch)
    chart = scene.folder / f"sparkonce-{VERSION}.tgz"
    chart.unlink()
    assert scene.step("chart", scene.folder, "--registry", f"{scene.registry}/other").returncode == 0
    assert f"{scene.registry}/charts/sparkonce:{VERSION} is published already with other contents" in scene.refused()
    assert (scene.published(), scene.acts()) == (before, acts)


def test_an_incomplete_release_is_not_begun(scene: Scene) -> None:
    """Without the archive of one architecture, or a bill of materials, nothing is pushed: users of that architecture would find no
    image."""
    for name in ("operator-arm64.tar", "etcd-amd64.cdx.json"):
        (scene.folder / name).unlink()
    told = scene.refused()
    assert "lacks etcd-amd64.cdx.json, operator-arm64.tar" in told
    assert scene.published() == {}
    assert scene.acts() == []


def test_a_registry_that_does_not_answer_is_no_empty_one(scene: Scene) -> None:
    """Whether a name is published is unknown then: nothing is pushed."""
    done = scene.step("publish", f"127.0.0.1:{free_port()}/team", scene.folder)
    assert done.returncode == 1
    assert "connection refused" in done.stderr
    assert scene.acts() == []
