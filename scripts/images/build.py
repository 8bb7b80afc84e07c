"""Builds an image of the list as an OCI archive."""

from __future__ import annotations

from pathlib import Path

from images import archive, contents, go, jars, own, python, system
from images.contents import Image
from images.layers import Layer


def build(image: str, out: Path, *, tag: str, fresh: bool = False) -> Path:
    """Writes the archive of `image` (operator, spark, etcd) to `out`, under the full name `tag`; returns `out`.

    Layers are cached outside the checkout: the first build takes minutes, one after a change of sparkonce's code seconds. `fresh` rebuilds
    Debian's layer with its updates. Images on Debian need root. Raises NotBuilt with the cause and what to do.
    """
    found = contents.image(image)
    archive.checked(tag)
    return archive.write(found, list(layers_of(found, fresh=fresh)), out, tag=tag)


def layers_of(image: Image, *, fresh: bool = False) -> list[Layer]:
    """The image's layers from the bottom up; the one that changes most is on top."""
    found: list[Layer] = []
    if image.packages:
        found.append(system.layer(image, fresh=fresh))
    if image.extras:
        found.append(python.packages(image))
    if image.maven:
        found.append(jars.layer(image))
    if image.gomodule:
        found.append(go.layer(image))
    if image.extras or image.files:
        found.append(own.layer(image))
    return found
