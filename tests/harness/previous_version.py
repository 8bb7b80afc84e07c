"""The operator that is in use before this one: its wheel, built from git and unpacked outside the checkout.

It is a wheel and not an installation: its dependencies are installed anyway, and `PYTHONPATH` puts it before the checkout. A clone without
history has no earlier commit: the newest is used, two processes of one version.
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
IN_USE = "82e61acff91effae887fc21b2b933dbc20b36530"
"""The newest commit of the main branch that others may run. A series of commits that lands together moves it once, at its beginning: the
commit before the last would be one of the series itself, which no one runs."""


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
    """`IN_USE`, or the newest commit if the clone does not have it."""
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{IN_USE}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    return IN_USE if known.returncode == 0 else _git("rev-parse", "HEAD").decode().strip()


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout
