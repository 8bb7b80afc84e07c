"""Wheel and source archive: complete, and the same bytes from each build of one commit."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

from images import layers
from images.command import run
from release import artifacts
from release.version import ROOT, NotReleased, current


def test_a_second_build_is_the_same(tmp_path: Path) -> None:
    """Wheel, source archive and bill of materials have the same bytes, and nothing else is left in the folder."""
    first, second = (list(artifacts.distributions(tmp_path / name)) for name in ("1", "2"))
    version = current()
    names = [f"sparkonce-{version}{end}" for end in ("-py3-none-any.whl", ".cdx.json", ".tar.gz")]
    assert [each.name for each in first] == names == sorted(each.name for each in (tmp_path / "1").iterdir())
    assert [each.read_bytes() for each in first] == [each.read_bytes() for each in second]


@pytest.mark.further
@pytest.mark.slow
def test_the_source_archive_builds_the_same_wheel(tmp_path: Path) -> None:
    """It holds all that a build needs: whoever builds from it gets the published wheel."""
    wheel, _, source = artifacts.distributions(tmp_path / "out")
    with tarfile.open(source) as tar:
        tar.extractall(tmp_path, filter="data")
    folder = tmp_path / source.name.removesuffix(".tar.gz")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "again")]
    run(command, {"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": str(layers.EPOCH)}, cwd=folder)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_build_that_makes_something_else_is_no_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that the backend spells differently would be published under a name that no later step finds."""
    monkeypatch.setattr(artifacts, "current", lambda: "9.9.9")
    with pytest.raises(NotReleased, match=r"made sparkonce-.* instead of sparkonce-9\.9\.9"):
        list(artifacts.distributions(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "registry", ["", "https://registry.example.com", "Registry.example.com/team", "registry.example.com/"]
)
def test_a_registry_that_no_image_can_be_in_is_refused(tmp_path: Path, registry: str) -> None:
    """Before anything is made: an unset variable of the workflow, a URL, capitals."""
    with pytest.raises(NotReleased, match="is no registry: give HOST or HOST/PATH in lower case"):
        artifacts.chart(tmp_path, registry=registry)


def test_the_chart_has_one_line_for_the_registry() -> None:
    """The line that a packaged chart has its registry in is the chart's `image.registry`, the default of all images."""
    import yaml

    text = (ROOT / "charts" / "sparkonce" / "values.yaml").read_text()
    made = yaml.safe_load(artifacts.REGISTRY.sub('  registry: "registry.example.com/team"', text, count=1))
    assert made["image"].pop("registry") == "registry.example.com/team"
    usual = yaml.safe_load(text)
    del usual["image"]["registry"]
    assert made == usual
