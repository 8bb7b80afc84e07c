"""What a release builds on this machine: images of its architecture with their bills of materials, and workflows that GitHub will
accept."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from harness.patience import completed
from harness.store_parts import ACTIONLINT, program
from images import archive, contents
from publishing.test_bills import checked
from release.version import ROOT, current

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a Debian system is made as root; run these tests as root")
EXPECTED = {
    "operator": {"pkg:deb/debian/python3@", "pkg:pypi/kopf@", "pkg:pypi/sparkonce@"},
    "spark": {"pkg:deb/debian/openjdk-17-jre-headless@", "pkg:pypi/pyspark@", "pkg:maven/com.google.code.gson/gson@"},
    "etcd": {"pkg:golang/go.etcd.io/etcd/server/v3@", "pkg:golang/google.golang.org/grpc@", "pkg:golang/stdlib@"},
}
"""Parts that an image cannot be without, from each source that its bill is read from."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param("operator", marks=needs_root), pytest.param("spark", marks=needs_root), "etcd"],
)
def test_an_image_comes_with_its_bill(tmp_path: Path, name: str) -> None:
    """The step makes the archive for this machine's architecture, and a valid bill of what is in it.

    The other architecture is built on a machine of that kind: Debian's layers are made by running Debian's own programs."""
    command = [sys.executable, str(ROOT / "scripts" / "release"), "images", str(tmp_path), "--image", name]
    done = completed(command, 1500)
    assert done.returncode == 0, done.stderr
    made = [f"{name}-{archive.architecture()}{end}" for end in (".cdx.json", ".tar")]
    assert [Path(line).name for line in done.stdout.splitlines()] == made
    bill = checked((tmp_path / made[0]).read_text())
    assert bill["metadata"]["component"]["version"] == current()
    urls = [each.get("purl", "") for each in bill["components"]]
    assert [start for start in EXPECTED[name] if not any(url.startswith(start) for url in urls)] == []
    if name == "etcd":
        (version,) = (
            line.split()[1]
            for line in (contents.HERE / "etcd" / "go.mod").read_text().splitlines()
            if line.strip().startswith("go.etcd.io/etcd/server/v3 ")
        )
        assert f"pkg:golang/go.etcd.io/etcd/server/v3@{version}" in urls
    assert len(urls) == len({json.dumps(each, sort_keys=True) for each in bill["components"]})


def test_actionlint_finds_nothing() -> None:
    """Syntax, expressions, contexts, inputs of jobs and names of runners are those that GitHub knows."""
    done = completed([str(program(ACTIONLINT)), "-no-color", "-shellcheck=", "-pyflakes="], 60, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_actionlint_would_find_something(tmp_path: Path) -> None:
    """A job that needs one that does not exist, and a variable that has no context, are both found."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    wrong = text.replace("needs: index", "needs: indexes").replace("vars.REGISTRY", "variables.REGISTRY")
    assert wrong.count("indexes") == 1
    (tmp_path / "wrong.yml").write_text(wrong)
    done = completed([str(program(ACTIONLINT)), "-no-color", "-shellcheck=", str(tmp_path / "wrong.yml")], 60)
    assert done.returncode == 1
    assert '"indexes" which does not exist' in done.stdout
    assert 'undefined variable "variables"' in done.stdout
