"""Which version a tag releases: refuses a tag that the package, the chart and the changelog do not agree with. Reads files only.

Versions are three numbers. A pre-release would need two spellings, Python's (0.2.0rc1) and Helm's (0.2.0-rc.1), and one image tag for both.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = Path("charts") / "sparkonce"
MODULE = Path("operator") / "sparkonce" / "__init__.py"


class NotReleased(Exception):
    """A step of a release cannot be done; one sentence with the cause and what to do."""


def current(root: Path = ROOT) -> str:
    """The version in pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def released(tag: str, root: Path = ROOT) -> str:
    """The version that this tag releases.

    Raises:
        NotReleased: the tag is not `v` and the version of pyproject.toml, or the package, the chart or the changelog has another one.
    """
    version = current(root)
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReleased(f"pyproject.toml has the version {version}: a release has three numbers, such as 1.0.2")
    if tag != f"v{version}":
        raise NotReleased(
            f"the tag is {tag} and pyproject.toml has the version {version}: tag v{version}, or change the version first"
        )
    own = re.search(r'^__version__ = "(.*)"$', (root / MODULE).read_text(), re.MULTILINE)
    if own is None or own[1] != version:
        raise NotReleased(
            f"{MODULE} has the version {own and own[1]}, and the release is {version}: they are always equal"
        )
    chart = yaml.safe_load((root / CHART / "Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if str(chart[field]) != version:
            raise NotReleased(
                f"{CHART}/Chart.yaml has {field} {chart[field]}, and the release is {version}: they are always equal"
            )
    notes(tag, root)
    return version


def notes(tag: str, root: Path = ROOT) -> str:
    """The changelog's section of this tag's version, without its heading. Raises NotReleased if there is none, or an empty one."""
    version = tag.removeprefix("v")
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if found is None or not found[1].strip():
        raise NotReleased(
            f"CHANGELOG.md has no entries under '## [{version}] - YYYY-MM-DD': give the section [Unreleased] that name, and begin a new one"
        )
    return found[1].strip()
