"""The lowest layer: Debian's smallest system, with an image's packages, made by debootstrap and apt in a folder.

The mirror is whichever this machine's apt uses for that suite, security updates included; a machine that knows none (another distribution)
leaves the choice to debootstrap. The layer is kept by what is asked for, not by the day: `--fresh` makes it anew, for updates.

It is made as root, in a mount namespace of its own: a /proc that Java's set-up wants is gone with the process, however that ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from images import layers
from images.command import run
from images.contents import Image, NotBuilt, debian
from images.layers import Layer

DOCUMENTS = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian")
LEFT = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "var/cache/debconf",
    "var/cache/ldconfig",
    "tmp",
    "run",
    "dev",
    "root",
)
"""Folders that are emptied: what installing leaves behind."""
FILES = ("etc/hostname", "etc/resolv.conf", "etc/machine-id", "var/lib/dbus/machine-id")
"""Of this machine, or drawn by chance."""
PYTHON_HOMES = ("/usr/lib/python3", "/usr/lib/python{}")


def layer(image: Image, *, fresh: bool = False) -> Layer:
    """Debian with the image's packages and its user. NotBuilt."""
    name = f"system-{layers.key(_made_by(), repr(sorted(image.packages)), repr(image.user), repr(image.folders))}"

    def fill(root: Path) -> None:
        _unpack_minimal(root, fresh=fresh)
        _install(root, image.packages)
        _user(root, image)
        _clean(root)

    return layers.cached(
        name, f"Debian {debian().suite} with {' '.join(image.packages)}", fill, as_root=False, fresh=fresh
    )


def _unpack_minimal(root: Path, *, fresh: bool) -> None:
    archive = layers.place() / f"minimal-{debian().suite}-{layers.key(_made_by())}.tar"
    with layers.one_at_a_time(f"{archive.name}.lock"):
        if fresh or not archive.exists():
            _need_debootstrap()
            layers.say(f"fetching Debian {debian().suite}")
            with layers.work_folder() as folder:
                mirrors = _mirrors()
                run(["debootstrap", "--variant=minbase", debian().suite, str(folder), *[uri for uri, _ in mirrors][:1]])
                if mirrors:
                    lines = [f"deb {uri} {release} main\n" for uri, release in mirrors]
                    (folder / "etc/apt/sources.list").write_text("".join(lines))
                part = archive.with_suffix(".part")
                run(["tar", "-C", str(folder), "--numeric-owner", "-cf", str(part), "."])
                part.rename(archive)
    run(["tar", "-C", str(root), "--numeric-owner", "-xpf", str(archive)])


def _need_debootstrap() -> None:
    if os.geteuid() != 0:
        raise NotBuilt(
            "a Debian system is made as root: run this as root, or build the Dockerfile with a container engine"
        )
    if shutil.which("debootstrap") and Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        return
    if shutil.which("apt-get") is None:
        raise NotBuilt(
            "debootstrap was not found and there is no apt-get: install debootstrap and Debian's archive keyring"
        )
    layers.say("installing debootstrap with apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"])
    wanted = ["debootstrap", "debian-archive-keyring"]
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted], environment)


def _mirrors() -> list[tuple[str, str]]:
    """(address, release) of what this machine's apt knows of the suite, the suite itself first; empty if it knows another distribution."""
    if shutil.which("apt-get") is None:
        return []
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout
    suite = debian().suite
    releases = [suite, f"{suite}-updates", f"{suite}-security"]
    found = {(uri, release) for uri, release, component in map(str.split, told.splitlines()) if component == "main"}
    ours = sorted({each for each in found if each[1] in releases}, key=lambda each: (releases.index(each[1]), each[0]))
    return ours if ours and ours[0][1] == suite else []


def _install(root: Path, packages: Sequence[str]) -> None:
    resolver = Path("/etc/resolv.conf")
    if resolver.exists():
        (root / "etc/resolv.conf").write_bytes(resolver.read_bytes())
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # nothing is started in a folder
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    steps = [
        "mount -t proc proc /proc",
        "export DEBIAN_FRONTEND=noninteractive LC_ALL=C",
        "apt-get update -qq",
        "apt-get upgrade -y -qq",
        f"apt-get install -y -qq --no-install-recommends {' '.join(packages)}",
        "apt-get clean",
    ]
    if "python3" in packages:
        homes = " ".join(each.format(debian().python) for each in PYTHON_HOMES)
        # By content, not by time: the times in a layer are all one.
        steps += [f"find {homes} -name __pycache__ -prune -exec rm -rf {{}} +"]
        steps += [f"PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash {homes}"]
    script = " && ".join(steps)
    run(["unshare", "--mount", "--propagation", "private", "--", "chroot", str(root), "/bin/sh", "-c", script])
    (root / "usr/sbin/policy-rc.d").unlink()


def _user(root: Path, image: Image) -> None:
    """By name as well as by number: Java asks for the name, and Spark does not start without an answer."""
    user = image.user
    with (root / "etc/passwd").open("a") as passwd, (root / "etc/group").open("a") as group:
        passwd.write(f"{user.name}:x:{user.uid}:{user.uid}::{image.workdir}:/usr/sbin/nologin\n")
        group.write(f"{user.name}:x:{user.uid}:\n")
    for each in image.folders:
        folder = root / each.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, user.uid, user.uid)


def _clean(root: Path) -> None:
    for each in DOCUMENTS:
        shutil.rmtree(root / each, ignore_errors=True)
    for each in LEFT:
        for path in (root / each).glob("*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for each in FILES:
        (root / each).unlink(missing_ok=True)
    for path in (*root.glob("etc/*-"), *root.glob("var/lib/dpkg/*-old")):
        path.unlink()


def _made_by() -> str:
    """Another text of this module, or another suite or machine, is another system."""
    return f"{Path(__file__).read_text()}{debian()}{os.uname().machine}"
