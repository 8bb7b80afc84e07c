"""Small image archives for tests of a release, written by the builder's own code."""

from __future__ import annotations

import io
import platform
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from images import archive, contents, layers

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def small(folder: Path, name: str, architecture: str, files: Mapping[str, bytes], patch: pytest.MonkeyPatch) -> Path:
    """`folder/NAME-ARCHITECTURE.tar`: an image with one layer of these files, as a machine of that kind would write it."""
    root = folder / f"{name}-{architecture}"
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    layer = layers.packed(root, folder / f"{name}-{architecture}.layer.tar", "test", as_root=True)
    with patch.context() as on_that_machine:
        on_that_machine.setattr(platform, "machine", lambda: MACHINES[architecture])
        return archive.write(
            contents.image(name),
            [layer],
            folder / f"{name}-{architecture}.tar",
            tag=f"localhost/sparkonce/{name}:tests",
        )


def jar(**coordinates: str) -> bytes:
    """A jar whose build wrote these coordinates into it; none: a jar without."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("A.class", b"")
        if coordinates:
            text = "#Created by a build\r\n" + "".join(f"{name}={value}\r\n" for name, value in coordinates.items())
            file.writestr(f"META-INF/maven/{coordinates['groupId']}/{coordinates['artifactId']}/pom.properties", text)
    return made.getvalue()
