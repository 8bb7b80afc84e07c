"""Measures the CPU used meanwhile by the benchmark and by other programs, and memory, from /proc; describes the disk. Linux only.

Our CPU is utime + stime of this process and all of its descendants (the JVM, Python workers, commands), including their ended children.
`resource.getrusage` was not taken: it counts children only after they have ended, and the JVM keeps running. Work that the kernel does
later on its own threads (writing back dirty pages) counts as that of others.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Used:
    """CPU used in one interval; all values in seconds."""

    wall: float
    cpu: float
    """CPU of the benchmark's own processes."""
    others: float
    """CPU of all other programs, and of the kernel's own threads."""
    stolen: float
    """CPU time that the host gave to other machines."""

    @property
    def share(self) -> float:
        """Share of the machine that others used, 0 to 1."""
        return (self.others + self.stolen) / (self.wall * cores())

    def sentence(self) -> str:
        ours, others = f"{self.cpu:.1f} CPU s of ours", f"{self.others:.1f} of others"
        stolen = f" and {self.stolen:.1f} stolen by the host" if self.stolen >= 0.1 else ""
        return f"{self.wall:.0f} s, {ours}, {others}{stolen} ({self.share:.0%} of {cores()} cores)"

    def dump(self) -> dict[str, float]:
        return {**asdict(self), "share": self.share}


def used_text(used: Mapping[str, Used]) -> str:
    """What progress says of the runs of a pair."""
    return ", ".join(f"{name} {each.wall:.2f} s ({each.cpu:.2f} CPU s)" for name, each in used.items())


class Meter:
    """Measures CPU from its creation on."""

    def __init__(self) -> None:
        self._started = self._look()

    def read(self) -> Used:
        wall, cpu, busy, stolen = (now - then for now, then in zip(self._look(), self._started, strict=True))
        return Used(wall=wall, cpu=cpu, others=max(0.0, busy - cpu), stolen=stolen)

    def _look(self) -> tuple[float, float, float, float]:
        busy, stolen = _machine()
        return perf_counter(), cpu_of_ours(), busy, stolen


def metered(work: Callable[[], T]) -> tuple[T, Used]:
    """Reads the meter only if the block succeeds: failed runs are not measured."""
    meter = Meter()
    done = work()
    return done, meter.read()


def cpu_of_ours() -> float:
    """CPU seconds of this process and its descendants since it started."""
    parents: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[1-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile; its parent counts its time
            fields, pid = stat.read_text().rpartition(")")[2].split(), int(stat.parent.name)
            parents.setdefault(int(fields[1]), []).append(pid)
            used[pid] = sum(map(int, fields[11:15]))  # utime, stime, and those of ended children
    family = [os.getpid()]
    for each in family:  # the list grows while it is walked
        family += parents.get(each, [])
    return sum(used.get(each, 0) for each in family) / _TICK


def _machine() -> tuple[float, float]:
    """Busy and stolen CPU seconds of the whole machine since it started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq) / _TICK, steal / _TICK


def resident(pid: int, *, peak: bool = False) -> float:
    """Resident memory of a process in MiB, now or at its peak."""
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def cores() -> int:
    return os.cpu_count() or 1  # all of the machine's cores, as in /proc/stat, not those that this process may use


@dataclass(frozen=True)
class FileSystem:
    kind: str
    device: str

    @property
    def in_memory(self) -> bool:
        return self.kind in ("tmpfs", "ramfs")

    def __str__(self) -> str:
        return (
            f"{self.kind}, in memory: fsync costs nothing here" if self.in_memory else f"{self.kind} on {self.device}"
        )


def file_system(folder: Path) -> FileSystem:
    """The mount of the folder: the longest mount point above it, the last of equal ones."""
    found, longest = FileSystem("unknown", "unknown"), -1
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        place = mount.replace("\\040", " ")
        if folder.is_relative_to(place) and len(place) >= longest:
            found, longest = FileSystem(kind, device), len(place)
    return found


def described(root: Path) -> dict[str, Any]:
    """Describes the machine: versions, processor, load at the start."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "sparkonce": version("sparkonce"),
        "commit": _commit(root),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "kernel": platform.release(),
        "processor": model[0].partition(":")[2].strip() if model else platform.machine(),
        "cores": cores(),
        "load": os.getloadavg()[0],
    }


def _commit(root: Path) -> str:
    """The current commit; empty without git or a repository."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
