"""Memory, SQLite and PostgreSQL give the same answers to any sequence of calls: outcomes, records, values stored beside them, history, and
changes.

Each store is compared with another, answer by answer; only lease ids differ, and are replaced by numbers.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import effort
from harness.memory_store import MemoryLease, MemoryStore
from sparkonce.blocking import run
from sparkonce.store.ledger import Changes, Ledger
from sparkonce.store.protocol import Lease
from sparkonce.store.sqlite.lease import FileLease
from sparkonce.store.sqlite.store import SqliteStore
from store.backends import Postgres
from store.drawn import CARRIED_OUT, KEYS, Side, Step, answer, drawn, everything, known, pick

EXAMPLES = {
    "sqlite": effort.size("differential examples"),
    "postgres": effort.size("differential examples on servers"),
}
MORE = 60
"""Maximum number of further examples, run until every verb has been called."""


def sqlite_side(folder: Path, limits: dict[str, Any]) -> tuple[Side, Callable[[], None]]:
    store = SqliteStore(folder / "ledger.db", stale_after=1e9, synchronous="OFF", **limits)
    return Side(store, FileLease.let_go), lambda: run(store.close())


def postgres_side(folder: Path, limits: dict[str, Any]) -> tuple[Side, Callable[[], None]]:
    backend = Postgres(folder)

    def expire(lease: Lease) -> None:
        backend.expire(lease)
        run(lease.keep_alive())  # so that its holder knows that it ended, as in the other stores

    return Side(backend.open(**limits), expire), backend.close


SIDES = {"sqlite": sqlite_side, "postgres": postgres_side}


def changes(side: Side, since: int) -> Changes:
    """The changes, without fields that only a store with timed leases can report."""
    assert isinstance(side.store, Ledger)
    return replace(side.store._changes(since), unowned=frozenset(), ended=frozenset())


def compare(folder: Path, name: str, calls: list[Step], reached: Counter[tuple[str, str]]) -> None:
    """Makes the calls on both stores and compares."""
    seconds = 0.0
    limits: dict[str, Any] = {
        "clock": lambda: seconds,
        "monotonic": lambda: seconds,
        "max_live_keys": 2,
    }
    one = Side(MemoryStore(**limits), MemoryLease.expire)
    other, close = SIDES[name](folder, limits)
    sides = one, other
    for side in sides:
        side.open_lease()
    for step in calls:
        seconds += 0.5
        answers = [answer(side, step) for side in sides]
        assert answers[0] == answers[1], step
        assert known(one, pick(KEYS, step.key)) == known(other, pick(KEYS, step.key)), step
        reached[step.verb, answers[0][0] if isinstance(answers[0], tuple) else str(answers[0])] += 1
    assert everything(one) == everything(other)
    assert [changes(one, since) for since in (0, 10)] == [changes(other, since) for since in (0, 10)]
    for opened in other.leases:
        run(opened.revoke())
    close()


@pytest.mark.parametrize("name", SIDES)
def test_both_stores_answer_alike(tmpfs_path: Path, name: str) -> None:
    """For any calls in any order both stores give the same answers and have the same content, and every verb has been called."""
    reached: Counter[tuple[str, str]] = Counter()
    numbers = itertools.count()

    @settings(max_examples=EXAMPLES[name])
    @given(st.integers(0, 2**32))
    def examples(seed: int) -> None:
        folder = tmpfs_path / f"{next(numbers)}"
        compare(folder, name, drawn(seed), reached)
        shutil.rmtree(folder, ignore_errors=True)

    def missing() -> set[tuple[str, str]]:
        return {pair for pair in CARRIED_OUT if not reached[pair]}

    examples()
    for seed in range(MORE):  # a few examples may miss a rare verb
        if missing():
            compare(tmpfs_path / f"more-{seed}", name, drawn(seed), reached)
    print(sorted(reached.items()))
    assert missing() == set()
