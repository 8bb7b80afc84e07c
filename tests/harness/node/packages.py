"""System packages that a node needs: containerd, runc, CNI plugins, iptables, ipset. Debian packages, installed if allowed.

They are installed for the same reason for which `scripts/setup` installs Java: on a fresh machine the tests set themselves up. If this
process may not install them, the tier is skipped (which is a failure in CI) with a sentence that names what to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from harness.binaries import PartMissing, last_words, one_at_a_time, to_stderr

CNI = Path("/usr/lib/cni")
"""Debian's folder for the plugins."""
PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ipset": "ipset",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
"""Programs, and the packages that contain them."""
TIMEOUT = 600.0
"""Seconds for apt: half a minute from a fast mirror."""


def needed() -> None:
    """Installs what is missing. Raises PartMissing if something cannot be had, or if this process may not use it."""
    if os.geteuid() != 0:
        raise PartMissing("a real node needs root (containers, a network namespace); run these tests as root")
    if not missing():
        return
    with one_at_a_time("node-packages.lock", to_stderr):
        if packages := missing():
            _install(packages)
    if packages := missing():
        raise PartMissing(f"a real node needs {', '.join(packages)}; install them with the system's package manager")


def missing() -> list[str]:
    packages = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if not (CNI / "bridge").exists():
        packages.add("containernetworking-plugins")
    return sorted(packages)


def _install(packages: list[str]) -> None:
    if shutil.which("apt-get") is None:
        return
    to_stderr(f"installing {', '.join(packages)} with apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", *arguments], env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if done.returncode != 0:
            raise PartMissing(f"apt-get could not install {', '.join(packages)}: {last_words(done.stderr)}")
