"""Helm, as a person calls it, on the chart of this checkout.

A Helm that was built from its module takes itself for one of years ago and so it takes the cluster: the version of Kubernetes is said.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.binaries import KUBE
from harness.store_parts import HELM, program

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "sparkonce"
RELEASE, NAMESPACE = "spark", "platform"
TIMEOUT = 120.0
"""Seconds: it renders in a tenth of one, on a core of its own."""


def helm(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What it said, however it ended. Skips the test where there is no Helm."""
    command = [str(program(HELM)), *map(str, arguments)]
    return subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def template(*values: Path, sets: Sequence[str] = (), chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """`helm template` with these files and settings."""
    command: list[str | Path] = ["template", RELEASE, chart, "--namespace", NAMESPACE, "--kube-version", KUBE.version]
    command += [part for file in values for part in ("--values", file)]
    command += [part for each in sets for part in ("--set", each)]
    return helm(*command)


def rendered(*values: Path, sets: Sequence[str] = (), chart: Path = CHART) -> list[dict[str, Any]]:
    """The objects of a release with these values."""
    done = template(*values, sets=sets, chart=chart)
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for each in yaml.load_all(done.stdout, Loader=loader) if each]


def rule_groups() -> list[dict[str, Any]]:
    """Of rules for Prometheus, that a release with everything gets."""
    objects = rendered(sets=["etcd.bundled.enabled=true", "metrics.prometheusRule.enabled=true"])
    groups: list[dict[str, Any]] = one(objects, "PrometheusRule", "")["spec"]["groups"]
    return groups


def one(objects: Sequence[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The object of this kind whose name ends so."""
    found = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} are called ...{name}"
    return found[0]
