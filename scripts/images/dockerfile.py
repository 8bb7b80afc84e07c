"""Generates a Dockerfile for each image from the same list, for users with a container engine; a test checks that they are up to date.

Run `docker build -f scripts/images/spark.Dockerfile .` in the repository's root. These builds have not been run.
"""

from __future__ import annotations

import json
from pathlib import Path

from images.contents import APP, HERE, LIB, ROOT, Image, debian, images
from images.own import LAUNCHER

BUILT_WITH = ("pyproject.toml", "requirements.lock", "README.md", "CHANGELOG.md", "LICENSE")
GO = "1.26"


def path_of(image: Image) -> Path:
    return HERE / f"{image.name}.Dockerfile"


def write_all() -> None:
    for each in images().values():
        path_of(each).write_text(text(each))


def text(image: Image) -> str:
    """The whole file."""
    head = [
        "# Generated from images.toml by `python scripts/images dockerfiles`; edit that file, not this one.",
        f"# {image.title}. In the repository's root: docker build -f {path_of(image).relative_to(ROOT)} .",
    ]
    stages = [_programs(image)] if image.gomodule else [_python_stage(image), *_jars_stage(image)]
    return "\n\n".join(["\n".join(head), *("\n".join(stage) for stage in [*stages, _final(image)])]) + "\n"


def _programs(image: Image) -> list[str]:
    builds = [
        f"    CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w -buildid=' -o /programs/{name} {package}"
        for name, package in image.programs.items()
    ]
    return [
        f"FROM golang:{GO} AS programs",
        "WORKDIR /build",
        f"COPY scripts/images/{image.gomodule}/go.mod ./",
        "RUN \\\n" + " && \\\n".join([*builds, "    mkdir /empty"]),
    ]


def _python_stage(image: Image) -> list[str]:
    compile_all = "python3 -m compileall -q --invalidation-mode unchecked-hash"
    install = "python3 -m pip install --quiet --no-cache-dir --no-deps"
    return [
        f"FROM debian:{debian().suite}-slim AS packages",
        "RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates python3 python3-pip",
        "WORKDIR /build",
        f"COPY {' '.join(BUILT_WITH[:2])} ./",
        "COPY scripts/images scripts/images",
        "RUN \\\n"
        + " && \\\n".join(
            [
                f"    python3 scripts/images requirements {image.name} >packages.txt",
                "    python3 scripts/images requirements build >build.txt",
                f"    {install} --require-hashes --break-system-packages -r build.txt",
                f"    {install} --require-hashes --target {LIB} -r packages.txt",
                f"    rm -rf {LIB}/bin",
                f"    ({compile_all} {LIB} || true)",
            ]
        ),
        f"COPY {' '.join(BUILT_WITH[2:])} ./",
        "COPY operator operator",
        f"RUN {install} --no-build-isolation --target {APP} . && rm -rf {APP}/bin && {compile_all} {APP}",
        f"RUN printf '{_escaped(LAUNCHER)}' >/usr/local/bin/sparkonce && chmod 755 /usr/local/bin/sparkonce",
    ]


def _jars_stage(image: Image) -> list[list[str]]:
    if not image.maven:
        return []
    return [
        [
            "FROM packages AS jars",
            "RUN mkdir -p /usr/share/man/man1 && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless",
            f"RUN PYTHONPATH={LIB} JAVA_HOME=/usr python3 scripts/images jars {image.name} /jars",
        ]
    ]


def _final(image: Image) -> list[str]:
    user = image.user
    lines = ["FROM scratch"] if image.gomodule else [f"FROM debian:{debian().suite}-slim"]
    if image.packages:
        steps = [
            "mkdir -p /usr/share/man/man1",  # Java's installation links its man pages there, and -slim lacks the folder
            "apt-get update -qq",
            "apt-get upgrade -y -qq",
            f"apt-get install -y -qq --no-install-recommends {' '.join(image.packages)}",
            "rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /usr/share/man /usr/share/doc",
            f"groupadd --gid {user.uid} {user.name}",
            f"useradd --uid {user.uid} --gid {user.uid} --no-create-home --home-dir {image.workdir} {user.name}",
        ]
        lines.append("RUN " + " && \\\n    ".join(steps))
    if image.folders:
        lines.append(f"RUN install -d -o {user.uid} -g {user.uid} {' '.join(image.folders)}")
    if image.gomodule:
        lines += ["COPY --from=programs /programs/ /usr/local/bin/", "COPY --from=programs /empty/ /tmp/"]
    if image.extras:
        lines.append(f"COPY --from=packages {LIB} {LIB}")
    if image.maven:
        lines.append(f"COPY --from=jars /jars/ {LIB}/pyspark/jars/")
    if image.extras:
        lines += [
            f"COPY --from=packages {APP} {APP}",
            "COPY --from=packages /usr/local/bin/sparkonce /usr/local/bin/sparkonce",
        ]
    lines += [f"COPY --chmod=755 scripts/images/{source} {path}" for path, source in image.files.items()]
    lines += [f'ENV {name}="{value}"' for name, value in image.settings().items()]
    lines += [
        f"USER {user.uid}:{user.uid}",
        f"WORKDIR {image.workdir}",
        f"ENTRYPOINT {json.dumps(list(image.entrypoint))}",
    ]
    lines += [f"CMD {json.dumps(list(image.command))}"] if image.command else []
    return [*lines, f'LABEL org.opencontainers.image.title="{image.title}"']


def _escaped(text: str) -> str:
    return text.replace("%", "%%").replace("\n", "\\n")
