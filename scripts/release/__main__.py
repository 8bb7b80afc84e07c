"""`python scripts/release check|notes TAG`, `distributions|images|chart OUT`, and `publish REGISTRY FOLDER`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# Python puts the executed folder itself on its path; the packages are found in the folder above.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from images import contents  # noqa: E402 # after the path
from images.contents import NotBuilt  # noqa: E402 # as above
from release import artifacts, publish, version  # noqa: E402 # as above
from release.version import NotReleased  # noqa: E402 # as above


def main(arguments: list[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    try:
        for line in asked.run(asked):
            sys.stdout.write(f"{line}\n")
    except (NotReleased, NotBuilt) as failed:
        sys.stderr.write(f"release: {failed}\n")
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="scripts/release", description="The steps of a release.")
    steps = made.add_subparsers(dest="step", required=True)
    for name, of, said in (
        ("check", version.released, "print the version that a tag releases, or say why it releases none"),
        ("notes", version.notes, "print what the changelog says of a tag's version"),
    ):
        step = steps.add_parser(name, help=said)
        step.add_argument("tag", help="such as v0.1.0")
        step.set_defaults(run=lambda asked, of=of: [of(asked.tag)])
    step = steps.add_parser("distributions", help="wheel and source archive, with their bill of materials")
    step.add_argument("out", type=Path)
    step.set_defaults(run=lambda asked: artifacts.distributions(asked.out))
    step = steps.add_parser(
        "images", help="OCI archives for this machine's architecture, with their bills of materials"
    )
    step.add_argument("out", type=Path)
    step.add_argument(
        "--image", action="append", choices=list(contents.images()), help="only this one; may be repeated"
    )
    step.set_defaults(run=lambda asked: artifacts.images(asked.out, asked.image or list(contents.images())))
    step = steps.add_parser("chart", help="the chart, with the registry that its images are published in as default")
    step.add_argument("out", type=Path)
    step.add_argument("--registry", required=True, help="HOST or HOST/PATH, in front of every image's name")
    step.set_defaults(run=lambda asked: [artifacts.chart(asked.out, registry=asked.registry)])
    step = steps.add_parser("publish", help="push images and chart of a folder, sign them, and list what was published")
    step.add_argument("registry", help="as for chart; log in beforehand: `crane auth login`")
    step.add_argument("folder", type=Path, help="with the files of the steps above, for all architectures")
    step.set_defaults(run=lambda asked: publish.all_of(asked.folder, registry=asked.registry))
    return made


if __name__ == "__main__":
    raise SystemExit(main())
