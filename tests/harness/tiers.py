"""Selects the tests of a run: by their folders, and for the operator tier by one marker.

*quick*, which is `make test`, needs `.venv`, Java and packages of the system. *full* has the rest, whose programs must be built or which
take minutes: API server, object stores, PostgreSQL, dozens of Spark sessions, chart, cluster, benchmarks. *operator* is the part of full
that the gate runs after quick: tests marked `operator`, one for each promise of the operator, and the chart's templates, which need one Go
build and Helm. *all* is quick and full.

Pytest's `--tier` decides during collection, so that tests of another tier do not count as skipped. Markers for all tiers were rejected: a
path shows its tier, and a new test gets one by its location. It is `--tier=operator`: in two words pytest takes the second, which is also
the name of a folder, for what to test.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

TIERS = ("quick", "operator", "full", "all")
VARIABLE = "SPARKONCE_TEST_TIER"
"""Set by `--tier`, so that processes started by tests see the same tier."""
OPERATOR = "operator"
"""The marker of the operator tier's tests."""
ROOMS = frozenset({"api", "bench", "chart", "cluster"})
"""Folders of tests/ that belong to the full tier as a whole."""
GATE_ROOMS = frozenset({"api", "chart"})
"""Folders that the operator tier collects from."""
PARTS = frozenset({"campaigns", "jvm", "long", "servers"})
"""Folders inside a room that belong to the full tier: minutes of races, many Spark sessions, waits of half a minute, and servers that are
built or slow."""
SERVERS = frozenset({"bucket", "etcd-3", "postgres", "rest"})
"""Parameters of tests that belong to the full tier in any folder, whatever their markers: the same fact on one more backend."""
MIXED = frozenset({"audit", "lanes", "replies", "sink", "store"})
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
    room = next(iter(_parts(path, tests)), "")
    if chosen == "operator":
        return room in GATE_ROOMS or not room
    full = full_folder(path, tests)
    return not full if chosen == "quick" else full or room in MIXED | BOTH


def runs(path: Path, tests: Path, parameters: Iterable[object], chosen: str, *, marked: bool = False) -> bool:
    """Whether a run of the chosen tier includes this test of this file; `marked`: with the marker of the operator tier.

    Raises:
        ValueError: no run would find this test: the full tier does not look into its room, or it is marked and the operator tier does not.
    """
    server = any(isinstance(each, str) and each in SERVERS for each in parameters)
    room = next(iter(_parts(path, tests)), "")
    full = full_folder(path, tests)
    if server and not full and room not in MIXED:
        raise ValueError(f"{path} has parameters of the full tier: add {room} to MIXED in harness/tiers.py")
    if marked and room not in GATE_ROOMS:
        raise ValueError(f"{path} is marked for the operator tier: add {room} to GATE_ROOMS in harness/tiers.py")
    if chosen == "operator":
        return marked and not server
    if chosen == "all" or (not full and room in BOTH):
        return True
    return (full or server) == (chosen == "full")


def left_out(chosen: str) -> str:
    """What a run of the chosen tier does not show, and how to run it; empty for "all"."""
    rest = "`make test TIER=all` runs every test"
    return {
        "quick": f"not run: the operator on a real API server (`make test TIER=operator`), servers, clusters and campaigns; {rest}",
        "operator": f"not run: the quick tests (`make test`), servers, clusters and campaigns; {rest}",
        "full": "not run: the quick tests (`make test`)",
    }.get(chosen, "")


@functools.cache
def _parts(path: Path, tests: Path) -> tuple[str, ...]:
    return path.relative_to(tests).parts if path.is_relative_to(tests) else ()
