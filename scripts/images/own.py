"""The top layer, small and rebuilt each time: sparkonce's wheel, its command, and the image's own files."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

from images import layers
from images.command import run
from images.contents import APP, HERE, ROOT, Image
from images.layers import Layer
from images.python import compiled

LAUNCHER = '#!/bin/sh\nexec python3 -m sparkonce "$@"\n'


def layer(image: Image) -> Layer:
    name = f"ours-{image.name}"
    with layers.one_at_a_time(f"{name}.lock"), layers.work_folder() as folder:
        root = folder / "root"
        app = root / APP.lstrip("/")
        app.mkdir(parents=True)
        if image.extras:
            environment = {**os.environ, "SOURCE_DATE_EPOCH": str(layers.EPOCH)}
            build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
            run(build, environment, cwd=ROOT)
            (wheel,) = folder.glob("*.whl")
            zipfile.ZipFile(wheel).extractall(app)
            compiled(app, APP)
            _executable(root / "usr/local/bin/sparkonce", LAUNCHER)
        for path, source in image.files.items():
            _executable(root / path.lstrip("/"), (HERE / source).read_text())
        made = layers.packed(root, layers.place() / f"{name}.new", "sparkonce", as_root=True)
        made = layers.under_its_digest(made, name)
    layers.prune()
    return made


def _executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
