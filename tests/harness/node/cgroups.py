"""The control group that holds every pod: made before the kubelet starts, and emptied and removed after it, whatever happened."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

FOLDER = Path("/sys/fs/cgroup")
PATIENCE = 20.0
"""Seconds for killed processes to be gone."""
SHARE = 8
"""As how many processes of the machine all pods together count when cores are short. As one, they starve beside a dozen others."""


class Cgroups:
    root = "/sparkonce-node"

    def __init__(self) -> None:
        whole = (FOLDER / "cgroup.controllers").exists()  # one hierarchy, or one for each controller
        trees = [FOLDER] if whole else [each for each in FOLDER.iterdir() if each.is_dir() and not each.is_symlink()]
        self._trees = [tree / self.root.strip("/") for tree in trees]
        for tree in self._trees:
            tree.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # the first version's have none until they are told
                mine, parents = tree / name, tree.parent / name
                if mine.exists() and parents.exists() and not mine.read_text().strip():
                    mine.write_text(parents.read_text())
            for name, of_one in (("cpu.shares", 1024), ("cpu.weight", 100)):  # of the first version, and of the second
                if (tree / name).exists():
                    (tree / name).write_text(str(SHARE * of_one))

    def kill(self) -> None:
        """Every process in it."""
        deadline = time.monotonic() + PATIENCE
        while (pids := self._pids()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)  # a process may fork between the look and its end: killed again until none is left

    def processes_of(self, pod: str) -> list[int]:
        """Of the containers of a pod, by its UID."""
        found: set[int] = set()
        for tree in self._trees:
            for group in tree.rglob(f"pod{pod}"):
                for listed in group.glob("*/cgroup.procs"):
                    found.update(map(int, listed.read_text().split()))
        return sorted(found)

    def close(self) -> None:
        """Nothing runs in it, and it is gone."""
        self.kill()
        for tree in self._trees:
            for group in sorted((each for each in tree.rglob("*") if each.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()
            with contextlib.suppress(OSError):
                tree.rmdir()

    def _pids(self) -> set[int]:
        found: set[int] = set()
        for tree in self._trees:
            for listed in tree.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found.update(map(int, listed.read_text().split()))
        return found
