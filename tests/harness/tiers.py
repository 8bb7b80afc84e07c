"""Selects the tests of a run by their folders.

The *quick* tier needs `.venv`, Java and packages of the system. The *full* tier adds tests whose programs must be built or that take
minutes: API server, object stores, PostgreSQL, dozens of Spark sessions, chart, cluster, benchmarks. Pytest's `--tier` decides during
collection, so that tests of another tier do not count as skipped. Markers per test were not taken: a path shows its tier, and a new test
gets one by its location.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TIERS = ("quick", "full", "all")
VARIABLE = "SPARKONCE_TEST_TIER"
"""Set by `--tier`, so that processes started by tests see the same tier."""
ROOMS = frozenset({"api", "bench", "chart", "cluster"})
"""Folders of tests/ that belong to the full tier as a whole."""
PARTS = frozenset({"campaigns", "jvm", "servers"})
"""Folders inside a room that belong to the full tier: minutes of races, many Spark sessions, and servers that are built or
slow."""
SERVERS = frozenset({"bucket", "etcd-3", "postgres"})
"""Parameters of tests that belong to the full tier in any folder: the same fact on one more backend."""
MIXED = frozenset({"audit", "store"})
"""Rooms with such parameters: the full tier collects only those from them."""
BOTH = frozenset({"etcd"})
"""Rooms that both tiers run, each with its own release of etcd (harness/etcd.py)."""


def tier() -> str:
    """The tier of this run; "all" outside pytest."""
    return os.environ.get(VARIABLE, "all")


def full_folder(path: Path, tests: Path) -> bool:
    """Whether this folder or file of `tests` belongs to the full tier as a whole."""
    parts = _parts(path, tests)
    return bool(parts) and (parts[0] in ROOMS or not PARTS.isdisjoint(parts))


def collects(path: Path, tests: Path, chosen: str) -> bool:
    """Whether a run of the chosen tier collects this folder or file at all."""
    if chosen == "all" or (path.is_dir() and chosen == "full"):
        return True
    full = full_folder(path, tests)
    return not full if chosen == "quick" else full or _parts(path, tests)[:1] in {(room,) for room in MIXED | BOTH}


def runs(path: Path, tests: Path, parameters: Iterable[object], chosen: str) -> bool:
    """Whether a run of the chosen tier includes this test of this file. Raises ValueError if the full tier would not find it."""
    server = any(isinstance(each, str) and each in SERVERS for each in parameters)
    room = next(iter(_parts(path, tests)), "")
    full = full_folder(path, tests)
    if server and not full and room not in MIXED:
        raise ValueError(f"{path} has parameters of the full tier: add {room} to MIXED in harness/tiers.py")
    if chosen == "all" or (not full and room in BOTH):
        return True
    return (full or server) == (chosen == "full")


def _parts(path: Path, tests: Path) -> tuple[str, ...]:
    return path.relative_to(tests).parts if path.is_relative_to(tests) else ()
