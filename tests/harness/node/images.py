"""The images of a cluster's node: ours, made from the list in scripts/images, and the pause image that holds a pod's network."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from harness.binaries import PAUSE as PAUSE_MODULE
from harness.binaries import PartMissing, binary, cache, one_at_a_time, to_stderr
from images import archive, contents, layers
from images.build import layers_of

PAUSE = "localhost/sparkonce/pause:tests"
OPERATOR, SPARK, ETCD = (f"localhost/sparkonce/{name}:tests" for name in ("operator", "spark", "etcd"))
OURS = {"operator": OPERATOR, "spark": SPARK, "etcd": ETCD}


def archives() -> Mapping[str, Path]:
    """Archives by image name, made if they are not cached: minutes the first time, seconds after a change of our code. Raises
    PartMissing."""
    try:
        return {PAUSE: _pause(), **{tag: _ours(name, tag) for name, tag in OURS.items()}}
    except contents.NotBuilt as problem:
        raise PartMissing(str(problem)) from None


def _ours(name: str, tag: str) -> Path:
    image = contents.image(name)
    made = layers_of(image)
    return _archived(image, made, tag)


def _pause() -> Path:
    with layers.work_folder() as folder:
        shutil.copy(binary(PAUSE_MODULE), folder / "pause")
        image = contents.Image(
            name="pause", title="pause", user=contents.User(name="pause", uid=65535), entrypoint=["/pause"]
        )
        made = layers.packed(folder, layers.place() / f"pause-{PAUSE_MODULE.digest}.tar", "pause", as_root=True)
        return _archived(image, [made], PAUSE)


def _archived(image: contents.Image, made: list[layers.Layer], tag: str) -> Path:
    """Stores the archive under a name derived from its contents; removes older ones of the image."""
    digest = hashlib.sha256(f"{image} {[each.digest for each in made]}".encode()).hexdigest()[:16]
    place = cache() / "images" / f"{image.name}-{digest}.tar"
    place.parent.mkdir(exist_ok=True)
    with one_at_a_time(f"image-{image.name}.lock", to_stderr):
        for other in place.parent.glob(f"{image.name}-*.tar"):
            if other != place:
                other.unlink()
        if not place.exists():
            archive.write(image, made, place, tag=tag)
    return place


def main() -> int:
    began = time.monotonic()
    try:
        made = archives()
    except PartMissing as missing:
        to_stderr(str(missing))
        return 1
    to_stderr(f"ready: {', '.join(made)} in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
