"""A tag releases what the package, the chart and the changelog have under its version, or nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from harness.patience import completed
from release import version
from release.version import CHART, MODULE, ROOT, NotReleased


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that have the version, with a changelog of two releases."""
    (tmp_path / CHART).mkdir(parents=True)
    (tmp_path / MODULE).parent.mkdir(parents=True)
    for name in ("pyproject.toml", MODULE, CHART / "Chart.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    entries = f"## [{version.current()}] - 2026-01-02\n\n### Added\n\n- This.\n\n## [0.0.1] - 2025-01-02\n\n- That.\n"
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [Unreleased]\n\n{entries}")
    return tmp_path


def changed(checkout: Path, name: str | Path, old: str, new: str) -> None:
    file = checkout / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_a_tag_that_all_agree_with_is_a_release(checkout: Path) -> None:
    """Its version is that of the package; its notes are its own section of the changelog, without the heading."""
    now = version.current(checkout)
    assert version.released(f"v{now}", checkout) == now
    assert version.notes(f"v{now}", checkout) == "### Added\n\n- This."
    assert version.notes("v0.0.1", checkout) == "- That."


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("pyproject.toml", 'version = "{}"', 'version = "9.9.9"', "tag v9.9.9, or change the version first"),
        ("pyproject.toml", 'version = "{}"', 'version = "0.2.0rc1"', "a release has three numbers"),
        (MODULE, '__version__ = "{}"', '__version__ = "9.9.9"', "__init__.py has the version 9.9.9"),
        (MODULE, '__version__ = "{}"', "", "__init__.py has the version None"),
        (CHART / "Chart.yaml", "\nversion: {}", "\nversion: 9.9.9", "has version 9.9.9"),
        (CHART / "Chart.yaml", 'appVersion: "{}"', 'appVersion: "9.9.9"', "has appVersion 9.9.9"),
        ("CHANGELOG.md", "[{}] - 2026-01-02", "[{}]", "give the section \\[Unreleased\\] that name"),
        ("CHANGELOG.md", "### Added\n\n- This.\n", "", "has no entries under"),
    ],
)
def test_a_file_that_disagrees_is_named(checkout: Path, name: str, old: str, new: str, said: str) -> None:
    """Each file that has the version can stop the release, with what to do."""
    now = version.current()
    changed(checkout, name, old.format(now), new.format(now))
    with pytest.raises(NotReleased, match=said):
        version.released(f"v{now}", checkout)


@pytest.mark.parametrize("tag", ["0.1.0", "v0.1", "v99.0.0", "latest"])
def test_another_tag_is_refused_by_the_command(tag: str) -> None:
    """In one sentence on stderr, and with exit code 1."""
    done = completed([sys.executable, str(ROOT / "scripts" / "release"), "check", tag], 60)
    assert (done.returncode, done.stdout) == (1, "")
    now = version.current()
    remedy = f"tag v{now}, or change the version first"
    assert done.stderr == f"release: the tag is {tag} and pyproject.toml has the version {now}: {remedy}\n"
