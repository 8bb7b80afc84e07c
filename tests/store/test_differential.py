"""Memory and SQLite answer any sequence of calls alike: outcomes, records, what stands beside them, history, and changes.

An answer of one store is compared with that of the other; only lease ids are unlike, and are replaced by their numbers.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkonce.blocking import run
from sparkonce.store.lease_files import FileLease
from sparkonce.store.memory import MemoryLease, MemoryStore
from sparkonce.store.sql import SqlStore
from store.drawn import CARRIED_OUT, KEYS, Side, Step, answer, drawn, everything, known, pick

EXAMPLES = 80
"""Of up to 60 calls each: some seconds."""


def compare(folder: Path, calls: list[Step], reached: Counter[tuple[str, str]]) -> None:
    """Carries the calls out on both stores."""
    seconds = 0.0
    limits: dict[str, Any] = {
        "clock": lambda: seconds,
        "monotonic": lambda: seconds,
        "max_live_keys": 2,
    }
    sql = SqlStore(folder / "ledger.db", stale_after=1e9, synchronous="OFF", **limits)
    memory = MemoryStore(**limits)
    sides = one, other = Side(memory, MemoryLease.expire), Side(sql, FileLease.let_go)
    for side in sides:
        side.open_lease()
    for step in calls:
        seconds += 0.5
        answers = [answer(side, step) for side in sides]
        assert answers[0] == answers[1], step
        assert known(one, pick(KEYS, step.key)) == known(other, pick(KEYS, step.key)), step
        reached[step.verb, answers[0][0] if isinstance(answers[0], tuple) else str(answers[0])] += 1
    assert everything(one) == everything(other)
    assert [memory._changes(since) for since in (0, 10)] == [sql._changes(since) for since in (0, 10)]
    run(sql.close())
    for opened in other.leases:
        run(opened.revoke())


def test_both_stores_answer_alike(tmpfs_path: Path) -> None:
    """Whatever is called in whatever order, both stores give the same answers and hold the same; and every verb has been carried out."""
    reached: Counter[tuple[str, str]] = Counter()
    numbers = itertools.count()

    @settings(max_examples=EXAMPLES)
    @given(st.integers(0, 2**32))
    def examples(seed: int) -> None:
        folder = tmpfs_path / f"{next(numbers)}"
        compare(folder, drawn(seed), reached)
        shutil.rmtree(folder)

    examples()
    print(sorted(reached.items()))
    assert {pair for pair in CARRIED_OUT if not reached[pair]} == set()
