"""The layer of Python packages: what an image's extras are locked to.

They are compiled here, by content: a file's time is one moment in a layer, and a compiled file that is compared by time would be made
again at each start of a process, in memory, since the root file system is read-only.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from images import layers
from images.command import run
from images.contents import LIB, Image, debian, requirements
from images.layers import Layer

GLIBC = "2_36"
"""Debian 12's, for which binary packages are chosen."""


def packages(image: Image) -> Layer:
    """Everything that the image's extras are locked to; not sparkonce itself."""
    wanted = requirements(image.extras)
    name = f"packages-{layers.key(Path(__file__).read_text(), debian().python, platform.machine(), wanted)}"

    def fill(root: Path) -> None:
        target = root / LIB.lstrip("/")
        target.mkdir(parents=True)
        listed = root / "requirements.txt"
        listed.write_text(wanted)
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(target), "--no-deps"]
        command += ["--python-version", debian().python, "--python-platform", f"{platform.machine()}-manylinux_{GLIBC}"]
        run([*command, "--require-hashes", "-r", str(listed)], {"UV_HTTP_TIMEOUT": "180", **os.environ})
        listed.unlink()
        shutil.rmtree(target / "bin", ignore_errors=True)  # commands that name this machine's interpreter
        (target / ".lock").unlink(missing_ok=True)
        compiled(target, LIB)

    return layers.cached(name, f"the locked packages of sparkonce[{','.join(image.extras)}]", fill, as_root=True)


def compiled(folder: Path, seen_as: str) -> None:
    """By an interpreter of the image's version, as if the folder stood where the image has it."""
    python = sys.executable if f"{sys.version_info.major}.{sys.version_info.minor}" == debian().python else None
    python = python or shutil.which(f"python{debian().python}")
    if python is None:
        layers.say(
            f"there is no Python {debian().python} here: modules stay uncompiled, processes start a second later"
        )
        return
    command = [python, "-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash"]
    try_all = [*command, "-s", str(folder), "-p", seen_as, str(folder)]
    # A package may carry templates and tests that are no Python: they stay as they are, as pip leaves them.
    run(["/bin/sh", "-c", '"$@" >/dev/null 2>&1 || true', "sh", *try_all], {**os.environ, "PYTHONHASHSEED": "0"})
