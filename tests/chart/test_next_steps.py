"""Everything that demos and examples name as next steps exists: commands with their options, values of the chart, a role, pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from chart.test_monitoring import unknown_command
from harness.helm import CHART, ROOT, helm
from harness.node.demo import next_steps
from harness.node.release import NAME, NAMESPACE

DEMO, EXAMPLE = ROOT / "examples" / "flights" / "demo.sh", ROOT / "examples" / "kubernetes" / "README.md"
TEXTS = {
    "the cluster that stays": "\n".join(next_steps("flights", keeps=True)),
    "the cluster that goes": "\n".join(next_steps("flights", keeps=False)),
    "make demo": DEMO.read_text().rpartition("<<'END'")[2],
    "examples/kubernetes": EXAMPLE.read_text().rpartition("## Next")[2],
}


def commands(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if re.match(r"(helm|kubectl) ", line):
            yield shlex.split(line.replace("$NS", "team"))
    yield from (shlex.split(found) for found in re.findall(r"`(helm [^`]*)`", text))


@pytest.mark.parametrize("place", TEXTS)
def test_next_steps_name_both_programs(place: str) -> None:
    """The next steps name helm and the kubectl plugin, with options that the plugin has, and pages that exist."""
    named = list(commands(TEXTS[place]))
    assert any(words[0] == "helm" for words in named)
    plugin = [words for words in named if words[:2] == ["kubectl", "sparkonce"]]
    assert plugin
    for words in plugin:
        assert unknown_command(shlex.join(words)) is None, words
    for page in re.findall(r"(?:docs|examples)/[a-z/-]+\.md|(?<=/)README\.md", TEXTS[place]):
        assert (ROOT / page).is_file() or page == "README.md", page


@pytest.mark.parametrize("place", TEXTS)
def test_helm_takes_its_next_steps(place: str) -> None:
    """The subcommands of helm exist, and the chart renders with the values of the installation."""
    for _, verb, *words in (each for each in commands(TEXTS[place]) if each[0] == "helm"):
        assert helm(verb, "--help").returncode == 0, verb
        if verb == "install":
            kept = [
                str(CHART) if word == "charts/sparkonce" else word for word in words if word != "--create-namespace"
            ]
            rendered = helm("template", *kept, "--kube-version", "1.34.0")
            assert rendered.returncode == 0, rendered.stderr


def test_the_role_of_the_next_steps_is_the_charts() -> None:
    """The role that they bind to the user's service account is one that the chart makes."""
    roles = {
        words[words.index("--clusterrole") + 1]
        for text in TEXTS.values()
        for words in commands(text)
        if "--clusterrole" in words
    }
    rendered = helm(
        "template",
        NAME,
        CHART,
        "--namespace",
        NAMESPACE,
        "--set",
        "etcd.bundled.enabled=true",
        "--kube-version",
        "1.34.0",
    )
    objects = [each for each in yaml.safe_load_all(rendered.stdout) if each]
    assert roles == {f"{NAMESPACE}-{NAME}-edit"}
    assert roles <= {each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"}


def test_the_readme_says_where_the_next_steps_are() -> None:
    """The README points to them where it describes the cluster demo, naming both programs."""
    [told] = [part for part in (ROOT / "README.md").read_text().split("\n\n") if "make cluster-demo` (Linux" in part]
    assert "`helm`" in told
    assert "`kubectl sparkonce`" in told
    assert Path(ROOT / "docs" / "kubernetes-cli.md").is_file()
