"""Runs Helm on the chart of this checkout, as a user would.

Kubernetes' version is passed explicitly: a Helm that was built from its module reports an old version for itself and assumes an old
cluster.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.binaries import KUBE
from harness.patience import completed
from harness.store_parts import HELM, program

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "sparkonce"
RELEASE, NAMESPACE = "spark", "platform"
TIMEOUT = 120.0
"""Seconds; rendering takes a tenth of a second on a free core."""
BACKUPS = "etcd.bundled.backup.enabled=true"
PROXY = ("proxy.enabled=true", "proxy.upstream=http://orders:3000")

_TEMPLATES: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = {}
"""What `helm template` answered, by its arguments and the texts of its values: half a second of processor time each."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a user gives to `helm install`."""

    values: str = ""
    """YAML of one values file."""
    sets: tuple[str, ...] = ()

    def template(self, folder: Path, *, sets: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """`helm template` with these values, which are written to a file in `folder`, and more settings."""
        file = folder / "values.yaml"
        file.write_text(self.values)
        return template(file, sets=(*self.sets, *sets))


def helm(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The completed command, whatever its exit code. Skips the test if Helm cannot be had."""
    command = [str(program(HELM)), *map(str, arguments)]
    return completed(command, TIMEOUT, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL)


def template(
    *values: Path,
    sets: Sequence[str] = (),
    chart: Path = CHART,
    release: tuple[str, str] = (NAMESPACE, RELEASE),
    apis: Sequence[str] = (),
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`helm template` with these files and settings, rendered once for each process. `release`: its namespace and name; `apis`: what the
    cluster serves besides Kubernetes' own; `fresh`: rendered anew, so that the certificates that Helm draws are another release's."""
    namespace, name = release
    command: list[str | Path] = ["template", name, chart, "--namespace", namespace, "--kube-version", KUBE.version]
    command += [part for each in apis for part in ("--api-versions", each)]
    command += [part for each in sets for part in ("--set", each)]
    asked = (*map(str, command), *(file.read_text() for file in values))
    if fresh or asked not in _TEMPLATES or chart != CHART:  # a test changes a copy of the chart, never the chart
        _TEMPLATES[asked] = helm(*command, *(part for file in values for part in ("--values", file)))
    return _TEMPLATES[asked]


def rendered(*values: Path, sets: Sequence[str] = (), **how: Any) -> list[dict[str, Any]]:
    """The objects of a release with these values; `how` is that of `template`."""
    done = template(*values, sets=sets, **how)
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for each in yaml.load_all(done.stdout, Loader=loader) if each]


def everything() -> list[str]:
    """Settings with which every template renders something."""
    sets = ["etcd.bundled.enabled=true", "etcd.bundled.replicas=3", "jobs.serviceAccount.create=true"]
    sets += [BACKUPS, *PROXY]
    sets += ["networkPolicy.enabled=true", "outputs.allowed[0].prefixes={s3://lake}"]
    return sets + [f"metrics.{each}.enabled=true" for each in ("serviceMonitor", "prometheusRule", "grafanaDashboard")]


def documented() -> dict[str, Release]:
    """The releases of docs/helm.md by name: "to try it" is its `helm install` command, "platform" its first block of values, and those
    of gateways with an address outside the cluster and of the proxy, on an etcd of the release, are called by the value that they
    enable."""
    text = (ROOT / "docs" / "helm.md").read_text()
    (command,) = re.findall(r"^helm install (?:.*\\\n)*.*", text, re.MULTILINE)
    words = shlex.split(command.replace("\\\n", " "))
    platform, *more = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    sets = [value for option, value in itertools.pairwise(words) if option == "--set"]
    found = {"to try it": Release(sets=tuple(sets)), "platform": Release(values=platform)}
    for values in more:
        given = yaml.safe_load(values)
        (enabled,) = (
            name for name in ("ingress", "httpRoute", "proxy") if name in {**given, **given.get("gateway", {})}
        )
        found[enabled] = Release(values=values, sets=("etcd.bundled.enabled=true",))
    return found


def rule_groups() -> list[dict[str, Any]]:
    """Groups of Prometheus rules that a release with all components gets."""
    objects = rendered(sets=["etcd.bundled.enabled=true", BACKUPS, *PROXY, "metrics.prometheusRule.enabled=true"])
    groups: list[dict[str, Any]] = one(objects, "PrometheusRule", "")["spec"]["groups"]
    return groups


def one(objects: Sequence[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The single object of this kind whose name ends with `name`."""
    found = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} are called ...{name}"
    return found[0]


def component_of(made: dict[str, Any]) -> str:
    """The value of its label; empty without one."""
    return str((made["metadata"].get("labels") or {}).get("app.kubernetes.io/component", ""))


def pod_of(made: dict[str, Any]) -> dict[str, Any] | None:
    """The pod, or its template."""
    if made["kind"] == "CronJob":
        made = made["spec"]["jobTemplate"]
    pod: dict[str, Any] | None = made if made.get("kind") == "Pod" else made.get("spec", {}).get("template")
    return pod if made.get("kind", "Job") in {"Pod", "Job", "Deployment", "StatefulSet"} else None


def notes(folder: Path, sets: list[str]) -> str:
    """What Helm prints after an installation, rendered as an object, because it prints it only when it installs; on one line."""
    chart = folder / "sparkonce"
    shutil.copytree(CHART, chart)
    shown = (
        'kind: Notes\nmetadata: {name: notes}\ntext: {{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}\n'
    )
    (chart / "templates" / "shown.yaml").write_text(shown)
    return " ".join(one(rendered(sets=sets, chart=chart), "Notes", "notes")["text"].split())
