"""Real processes on many streams of one table, killed and frozen at random: every row once, and no word that was given is broken."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from harness import sink_attempts, stream_attempts
from harness.contest import COMMIT_POINTS, Contest, rows_in
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, sink_in
from harness.stream_attempts import BATCHES, rows_of
from sparkonce.blocking import run
from sparkonce.sink import layout, stream
from sparkonce.sink.protocol import Slot, SlotState, StreamPart
from sparkonce.sink.stream import mark

STREAMS, TOKENS = 25, 3


class Streams(Contest):
    """Six processes, two twins per token, over the same streams in nearly the same order; killed, frozen and started again."""

    ways = ("kill", "stop", "sleep(20)")

    def armed(self) -> list[str]:
        """Anywhere in the many commits of a process's streams."""
        return [
            f"{point}={self.dice.randrange(30)}*off->1*{self.dice.choice(self.ways)}->off" for point in COMMIT_POINTS
        ]

    def begin(self, plan: Plan) -> ForkServerProcess:
        return stream_attempts.start(replace(plan, token=(plan.token + 1) // 2))


def chain_of(folder: Path, name: str) -> list[Slot]:
    """The committed slots, in order: read from the files, with one per place."""
    found: dict[int, Slot] = {}
    for path in folder.glob(f"table/_idem/{key_of(name)}*/*.json"):
        token = layout.numbered(path.name) or 0
        slot = layout.decode(path.read_bytes(), where=str(path), sink_key=path.parent.name, token=token)
        if slot.state is SlotState.COMMITTED:
            number = layout.batch_of(slot.sink_key)
            assert found.setdefault(-1 if number is None else number, slot) is slot
    assert sorted(found) == list(range(-1, len(found) - 1))
    return [slot for _, slot in sorted(found.items())]


def test_six_processes_race_for_25_streams(tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """Each place of each stream has one commit, without gaps, by tokens that never fall; what was settled stays; rows are there once."""
    seed = int(os.environ.get("SPARKONCE_TEST_SEED") or random.randrange(2**32))
    print(f"SPARKONCE_TEST_SEED={seed}")
    first = Plan(folder=str(tmpfs_path), process="first", token=1, keys=())
    started.append(sink_attempts.start(first))  # the server of forks, with everything imported
    contest = Streams(tmpfs_path, f"{tmpfs_path}/table", started, seed=seed, keys=STREAMS, processes=6)
    contest.run()

    sink: Any = sink_in(str(tmpfs_path))
    outcome, expected = Counter[str](), list[int]()
    told = [(each, plan) for plan in contest.plans for each in answers(plan)]
    for name in contest.keys:
        key = key_of(name)
        opening = run(sink.fence(key, TOKENS + 1, fingerprint=FINGERPRINT, by="settle"))
        if opening is not None:
            run(stream.settled(sink, key, opening, TOKENS, fingerprint=FINGERPRINT, by="settle", end=True))
        chain = chain_of(tmpfs_path, name)
        tokens = [slot.token for slot in chain]
        assert tokens == sorted(tokens)
        batches = [slot for slot in chain if mark(slot).part is StreamPart.BATCH]
        assert not batches or mark(chain[-1]).part is StreamPart.END
        nonces = {slot.nonce for slot in chain}
        for each, _ in told:
            if each["key"] != name:
                continue
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
    assert rows_in(f"{tmpfs_path}/table") == sorted(expected)
    assert len(list(tmpfs_path.glob("table/_data/*/*"))) == len(expected) // 4

    print(f"{dict(contest.faults)} {dict(outcome)}")
    assert contest.faults["died"] >= 5
    assert [what for what in ("Committed", "AlreadyCommitted", "Ended") if not outcome[what]] == []
    # Which of the three it mostly finds is luck: each has tests of its own.
    assert sum(outcome[what] for what in ("settled none", "settled some", "settled end")) >= 5
    assert outcome["batch refused"] + outcome["staging Fenced"] + outcome["opening refused"] > 0
    assert sum(len(chain_of(tmpfs_path, name)) > BATCHES for name in contest.keys) > STREAMS // 2
