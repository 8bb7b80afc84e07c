"""The operator of the commit before this one: its wheel, built from git and unpacked outside the checkout.

It is a wheel and not an installation: its dependencies are installed anyway, and `PYTHONPATH` puts it before the checkout. If the history
has no earlier operator (at the first commit that has one, or in a clone without history), the newest commit is used: two processes of one
version.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "operator/sparkonce"
OPERATOR = f"{PACKAGE}/kube/operator.py"


@dataclass(frozen=True)
class Version:
    commit: str
    folder: Path
    """Folder of the unpacked wheel."""

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.folder)}


def previous(folder: Path) -> Version:
    """Builds the previous version into `folder`."""
    commit = _commit()
    source, wheel, unpacked = folder / "source", folder / "wheel", folder / "unpacked"
    with tarfile.open(fileobj=BytesIO(_git("archive", "--format=tar", commit))) as archive:
        archive.extractall(source, filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheel)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    [built] = wheel.glob("sparkonce-*.whl")
    with zipfile.ZipFile(built) as file:
        file.extractall(unpacked)
    version = Version(commit, unpacked)
    where = "import sparkonce; print(sparkonce.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], env={**os.environ, **version.environment}, check=True, capture_output=True
    )
    assert Path(found.stdout.decode().strip()).is_relative_to(unpacked), "the checkout would run in the wheel's place"
    return version


def _commit() -> str:
    """The last commit but one that changed the package, if it has an operator."""
    changed = _git("log", "--format=%H", "--", PACKAGE).decode().split()
    for commit in changed[1:]:
        if _git("ls-tree", "--name-only", commit, "--", OPERATOR):
            return commit
        break
    return changed[0]


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout
