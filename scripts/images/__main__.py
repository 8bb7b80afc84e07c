"""`python scripts/images build IMAGE OUT [--tag NAME] [--fresh]` and `python scripts/images dockerfiles|requirements`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# Python puts the folder that it executes on its path; the package is found in the folder above.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from images import contents, dockerfile, jars  # noqa: E402 # after the path
from images.build import build  # noqa: E402 # as above
from images.contents import NotBuilt  # noqa: E402 # as above


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/images", description="Make the images of images.toml, or their Dockerfiles."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    building = verbs.add_parser("build", help="an OCI archive, without a container engine")
    building.add_argument("image", choices=list(contents.images()))
    building.add_argument("out", type=Path, help="file to write the archive to")
    building.add_argument("--tag", help="the full name; default: localhost/sparkonce/IMAGE:dev")
    building.add_argument("--fresh", action="store_true", help="fetch Debian's packages anew, for their updates")
    verbs.add_parser("dockerfiles", help="write the Dockerfiles from the list")
    locked = verbs.add_parser("requirements", help="print the locked packages of an image, for its Dockerfile")
    locked.add_argument("image", choices=[*(name for name, each in contents.images().items() if each.extras), "build"])
    fetching = verbs.add_parser("jars", help="fetch an image's jars, for its Dockerfile")
    fetching.add_argument("image", choices=[name for name, each in contents.images().items() if each.maven])
    fetching.add_argument("out", type=Path, help="the folder to create")
    asked = parser.parse_args()
    try:
        if asked.verb == "build":
            tag = asked.tag or f"localhost/sparkonce/{asked.image}:dev"
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            sys.stdout.write(f"{build(asked.image, asked.out, tag=tag, fresh=asked.fresh)}\n")
        elif asked.verb == "dockerfiles":
            dockerfile.write_all()
        elif asked.verb == "jars":
            jars.fetch(contents.image(asked.image), asked.out)
        elif asked.image == "build":
            sys.stdout.write(contents.locked(contents.BACKEND))
        else:
            sys.stdout.write(contents.requirements(contents.image(asked.image).extras))
    except NotBuilt as failed:
        sys.stderr.write(f"images: {failed}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
