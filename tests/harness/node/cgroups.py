"""The control group of all pods: created before the kubelet starts, and emptied and removed after it in every case."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from harness.patience import Patience

FOLDER = Path("/sys/fs/cgroup")
PATIENCE = 20.0
"""Seconds until killed processes are gone."""
SHARE = 8
"""CPU weight of all pods together, in processes of the machine. With a weight of one they would starve beside a dozen others."""


class Cgroups:
    root = "/sparkonce-node"

    def __init__(self) -> None:
        whole = (FOLDER / "cgroup.controllers").exists()  # cgroup v2 has one hierarchy, v1 one per controller
        trees = [FOLDER] if whole else [each for each in FOLDER.iterdir() if each.is_dir() and not each.is_symlink()]
        self._trees = [tree / self.root.strip("/") for tree in trees]
        for tree in self._trees:
            tree.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # in v1 a new group has none until they are written
                mine, parents = tree / name, tree.parent / name
                if mine.exists() and parents.exists() and not mine.read_text().strip():
                    mine.write_text(parents.read_text())
            for name, of_one in (("cpu.shares", 1024), ("cpu.weight", 100)):  # in v1, and in v2
                if (tree / name).exists():
                    (tree / name).write_text(str(SHARE * of_one))

    def kill(self) -> None:
        """Kills every process in the group."""
        patience = Patience(PATIENCE)
        while (pids := self._pids()) and not patience.over():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)  # a process may fork between reading the list and the kill: again, until none is left

    def processes_of(self, pod: str) -> list[int]:
        """Processes in the containers of a pod, by the pod's UID."""
        found: set[int] = set()
        for tree in self._trees:
            for group in tree.rglob(f"pod{pod}"):
                for listed in group.glob("*/cgroup.procs"):
                    found.update(map(int, listed.read_text().split()))
        return sorted(found)

    def close(self) -> None:
        """Kills all processes in the group and removes it."""
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
