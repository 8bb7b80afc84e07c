"""Real processes on many streams of one Delta or Iceberg table, killed and frozen at random: every row once, no word broken."""

from __future__ import annotations

import os
import random
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from harness import delta_attempts, iceberg_tables, stream_tables
from harness.contest import Contest
from harness.delta_stage import numbers_in, transactions
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of
from harness.stream_attempts import BATCHES, rows_of
from sparkonce.blocking import run
from sparkonce.sink import stream
from sparkonce.sink.protocol import Slot, StreamPart
from sparkonce.sink.stream import mark

STREAMS = {"delta": 20, "iceberg": 10}
"""A commit of Iceberg takes six times as long."""
PROCESSES, TOKENS = 6, 3
POINTS = {
    kind: tuple(f"sink.{kind}.{step}.{side}" for step in ("commit", "fence") for side in ("before", "after"))
    for kind in ("delta", "iceberg")
}


class Streams(Contest):
    """Six processes, two twins per token, over the same streams in nearly the same order; killed, frozen and started again."""

    kind = ""
    ways = ("kill", "stop", "sleep(20)")
    pace = (0.05, 0.3)
    wakes = 18

    def armed(self) -> list[str]:
        """Anywhere in the many commits of a process's streams."""
        return [
            f"{point}={self.dice.randrange(30)}*off->1*{self.dice.choice(self.ways)}->off"
            for point in POINTS[self.kind]
        ]

    def begin(self, plan: Plan) -> ForkServerProcess:
        told = {name: value for name, value in vars(plan).items() if name != "token"}
        return stream_tables.start(self.kind, Plan(token=(plan.token + 1) // 2, **told))


def chain_of(sink: Any, name: str) -> list[Slot]:
    """The committed places, in order."""
    opening = run(sink.find(key_of(name)))
    return [] if opening is None else [opening, *run(stream.recorded(sink, key_of(name), opening))]


def commits_in(kind: str, folder: Path) -> Counter[str]:
    """How often each place was committed, by the table's own history."""
    if kind == "delta":
        names = (each["appId"] for each in transactions(folder / "table"))
        return Counter(name.removeprefix("idem:") for name in names if name.startswith("idem:"))
    said = [each.summary.additional_properties for each in iceberg_tables.table().metadata.snapshots if each.summary]
    return Counter(each["sparkonce.sink-key"] for each in said if "sparkonce.snapshot" in each)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_six_processes_race_for_streams(
    kind: str, tmpfs_path: Path, started: list[ForkServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place of each stream has one commit in the table's history, without gaps, by tokens that never fall; what was settled stays;
    rows are there once."""
    for name, value in iceberg_tables.sql_catalog(tmpfs_path).items():
        monkeypatch.setenv(name, value)
    seed = int(os.environ.get("SPARKONCE_TEST_SEED") or random.randrange(2**32))
    print(f"SPARKONCE_TEST_SEED={seed}")
    contest = Streams(tmpfs_path, f"{tmpfs_path}/table", started, seed=seed, keys=STREAMS[kind], processes=PROCESSES)
    contest.kind = kind
    contest.run()

    sink: Any = delta_attempts.sink_in(str(tmpfs_path)) if kind == "delta" else iceberg_tables.opened()
    outcome, expected = Counter[str](), list[int]()
    told = [(each, plan) for plan in contest.plans for each in answers(plan)]
    for name in contest.keys:
        key = key_of(name)
        opening = run(sink.fence(key, TOKENS + 1, fingerprint=FINGERPRINT, by="settle"))
        if opening is not None:
            run(stream.settled(sink, key, opening, TOKENS, fingerprint=FINGERPRINT, by="settle", end=True))
        chain = chain_of(sink, name)
        tokens = [slot.token for slot in chain]
        assert tokens == sorted(tokens)
        batches = [slot for slot in chain if mark(slot).part is StreamPart.BATCH]
        assert not batches or mark(chain[-1]).part is StreamPart.END
        nonces = {slot.nonce for slot in chain}
        for each in (each for each, _ in told if each["key"] == name):
            outcome[each["what"]] += 1
            if each["nonce"] is not None:
                assert each["nonce"] in nonces
            if each["what"] == "settled none":
                assert not any(slot.token <= each["attempt"] for slot in batches)
            if each["what"] == "settled some":
                assert not any(
                    slot.token <= each["attempt"] and (mark(slot).last_batch or 0) > each["last"] for slot in batches
                )
        for number in range(len(batches)):
            expected += rows_of(name, number)
        run(sink.sweep(key))
        outcome["whole"] += len(batches) == BATCHES
    print(f"{dict(contest.faults)} {dict(outcome)}")
    assert set(commits_in(kind, tmpfs_path).values()) == {1}
    shown = numbers_in(tmpfs_path / "table") if kind == "delta" else iceberg_tables.rows()
    assert shown == sorted(expected)
    staged = {path.parent for path in tmpfs_path.glob("**/so-*/*/*.parquet")}
    assert len(staged) == len(expected) // 4
    assert contest.faults["died"] >= 3
    # Which refusal, and which end of a settle, is luck: each has a test of its own.
    assert [what for what in ("Committed", "Ended") if not outcome[what]] == []
    assert outcome["whole"] > STREAMS[kind] // 2
