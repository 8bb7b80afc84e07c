"""The workflows: each job has no more rights than it needs, what they run is fixed, and the steps they call exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.store_parts import CRANE, HELM
from release.__main__ import parser
from release.version import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
PINNED = re.compile(r"uses: (?:\./\S+|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$")
WRITES = {
    "release/registry": {"packages", "id-token", "attestations"},
    "release/index": {"id-token"},
    "release/page": {"contents"},
}
"""The only jobs that may write anything, and what."""


def read(path: Path) -> dict[Any, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def commands(path: Path) -> Iterator[str]:
    """Every command line of the workflow."""
    for job in read(path)["jobs"].values():
        for step in job.get("steps", ()):
            yield from re.sub(r"\\\n\s*", "", step.get("run", "")).splitlines()


@every_workflow
def test_what_runs_is_fixed(path: Path) -> None:
    """An action is named by its commit, with the release that this is: a tag can be moved to other code."""
    used = [line.strip().removeprefix("- ") for line in path.read_text().splitlines() if "uses:" in line]
    assert len(used) > 2 or path.stem == "test"
    assert [line for line in used if not PINNED.match(line)] == []


def test_one_action_has_one_commit() -> None:
    """No workflow uses another version of an action than the others do."""
    found: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for action, commit in re.findall(r"uses: ([\w.-]+/\S+)@(.*)$", path.read_text(), re.MULTILINE):
            found.setdefault(action, set()).add(commit)
    assert len(found) > 5
    assert {action: commits for action, commits in found.items() if len(commits) > 1} == {}


@every_workflow
def test_a_job_may_do_what_it_needs(path: Path) -> None:
    """A workflow has no right of its own, each job names its rights, and only what publishes may write."""
    document = read(path)
    assert document["permissions"] == {}
    for name, job in document["jobs"].items():
        assert {right for right, level in job["permissions"].items() if level != "read"} == WRITES.get(
            f"{path.stem}/{name}", set()
        )
        assert "timeout-minutes" in job or "uses" in job, f"{name} could run for six hours"


@every_workflow
def test_there_is_no_secret_and_no_host(path: Path) -> None:
    """The workflow's own token and identity are all it has, and registries are variables of the repository."""
    text = path.read_text()
    assert "secrets." not in text
    assert re.findall(r"\b[\w-]+\.(?:io|com|dev|org|cloud)\b(?!/)", re.sub(r"#.*|go install \S+", "", text)) == []
    assert "pull_request_target" not in text
    checkouts = text.count("actions/checkout@")
    assert text.count("persist-credentials: false") == checkouts > 0


def test_a_pushed_text_is_never_part_of_a_command() -> None:
    """Commands take names of branches and tags from the environment: `${{ }}` in a shell line would run what a name contains."""
    assert [line for path in WORKFLOWS for line in commands(path) if "${{" in line] == []


def test_the_steps_of_a_release_exist() -> None:
    """Each call of scripts/release is one that the program understands, and each of its steps is called by the workflow."""
    calls = [shlex.split(line) for path in WORKFLOWS for line in commands(path) if "scripts/release" in line]
    called = set()
    for words in calls:
        arguments = words[words.index("scripts/release") + 1 :]
        arguments = arguments[: next((at for at, each in enumerate(arguments) if each.startswith(">")), None)]
        called.add(parser().parse_args(arguments).step)
    assert called == {"check", "notes", "distributions", "images", "chart", "publish"}


def test_the_documented_steps_exist() -> None:
    """Calls of scripts/release in the pages are ones that the program understands."""
    pages = [ROOT / "docs" / "install.md", ROOT / "CONTRIBUTING.md"]
    calls = [each for page in pages for each in re.findall(r"python scripts/release ([^`\n]+)", page.read_text())]
    assert {parser().parse_args(shlex.split(each)).step for each in calls} == {"check", "chart"}


def test_tools_are_those_of_the_tests() -> None:
    """Helm and crane have the versions that the tests of a release run."""
    installed = {
        line.split()[-1] for path in WORKFLOWS for line in commands(path) if line.strip().startswith("go install")
    }
    assert installed == {"@".join(HELM), "@".join(CRANE)}


def test_the_gate_is_the_repositorys() -> None:
    """Pushes, pull requests and releases run .ci/run and nothing instead of it; each night, all tests run, and none may be skipped."""
    test, nightly, release = (
        read(ROOT / ".github" / "workflows" / f"{name}.yml") for name in ("test", "nightly", "release")
    )
    triggers = test[True]  # YAML 1.1 reads the key `on` as true
    assert {"push", "pull_request", "workflow_call"} == set(triggers)
    assert test["jobs"]["gate"]["steps"][-1]["run"].endswith("bash .ci/run")
    last = nightly["jobs"]["all"]["steps"][-2]
    assert last["run"].splitlines()[-1] == "make test TIER=all"
    assert last["env"]["CI"] == "true"
    assert "schedule" in nightly[True]
    assert release["jobs"]["test"]["uses"] == "./.github/workflows/test.yml"
    assert "test" in release["jobs"]["registry"]["needs"]
