"""Marks of deployment tools stay on the job; labels that people set are passed on to its applications."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkonce.model.application.deployers import MARKS, mark_of, on_applications, on_pods

PAGE = Path(__file__).resolve().parents[4] / "docs" / "templates.md"


@pytest.mark.parametrize(
    ("label", "tool"),
    [
        ("argocd.argoproj.io/tracking-id", "Argo CD"),
        ("argocd.argoproj.io/hook", "Argo CD"),
        ("argocd.argoproj.io/sync-wave", "Argo CD"),
        ("app.kubernetes.io/instance", "Argo CD and Helm"),
        ("app.kubernetes.io/managed-by", "Helm"),
        ("helm.sh/hook-delete-policy", "Helm"),
        ("helm.sh/resource-policy", "Helm"),
        ("meta.helm.sh/release-name", "Helm"),
        ("kustomize.toolkit.fluxcd.io/name", "Flux"),
        ("kustomize.toolkit.fluxcd.io/prune", "Flux"),
        ("helm.toolkit.fluxcd.io/namespace", "Flux"),
        ("internal.config.kubernetes.io/previousNames", "kustomize and kpt"),
        ("kubectl.kubernetes.io/last-applied-configuration", "kubectl"),
        ("applyset.kubernetes.io/part-of", "kubectl apply --prune"),
    ],
)
def test_a_tools_mark_is_for_no_application(label: str, tool: str) -> None:
    """Tools find, order, hook and prune what they manage by these names."""
    mark = mark_of(label)
    assert mark is not None and mark.tool == tool
    assert not on_applications(label)


@pytest.mark.parametrize(
    "label",
    [
        "team",
        "example.com/owner",
        "app.kubernetes.io/name",
        "app.kubernetes.io/part-of",
        "app.kubernetes.io/instances",
        "kueue.x-k8s.io/queue-name",
        "argocd.argoproj.io",
        "helm.sh",
        "x.helm.sh/chart",
    ],
)
def test_a_label_of_people_goes_on(label: str) -> None:
    """So is one that only resembles a tool's mark, or that a queue or a dashboard reads."""
    assert mark_of(label) is None
    assert on_applications(label) and on_pods(label)


def test_labels_that_pods_are_selected_by_stay_on_pods() -> None:
    """Network policies and services select pods by the recommended labels; marks with a tool's own prefix are not passed on."""
    assert on_pods("app.kubernetes.io/instance") and on_pods("helm.sh/chart")
    assert not on_pods("argocd.argoproj.io/instance") and not on_pods("helm.sh/hook")


def test_the_page_has_every_mark() -> None:
    """docs/templates.md lists each name with tool and source, in the order that decides, and no other."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.split("\n## Marks of deployment tools\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)`( \(\*on pods\*\))? \| (.+) \| \[[^]]+\]\((.+)\) \|$", section, re.MULTILINE)
    assert rows == [(each.name, " (*on pods*)" if each.on_pods else "", each.tool, each.source) for each in MARKS]
