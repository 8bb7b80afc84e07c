"""Real processes on many streams of one table, killed and frozen at random: every row exists once, and no answer is later contradicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from harness import delta_attempts, effort, iceberg_tables, sink_attempts, stream_attempts, stream_tables
from harness.contest import COMMIT_POINTS, Contest, rows_in
from harness.delta_stage import numbers_in, transactions
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of
from harness.stream_attempts import BATCHES, rows_of
from sparkonce.blocking import run
from sparkonce.sink import stream
from sparkonce.sink.protocol import Slot, SlotState, StreamPart
from sparkonce.sink.slotlog import layout
from sparkonce.sink.stream import mark

PROCESSES, TOKENS = 6, 3
"""Two processes share each token."""
ANSWERS = (
    *("Committed", "AlreadyCommitted", "Ended", "settled none", "settled some", "settled end"),
    *("batch refused", "staging Fenced", "opening refused"),
)
"""The answers that processes can get. Chance decides which of them occur in a round; each has a test of its own."""


@dataclass(frozen=True)
class Kind:
    """What differs between the tables that streams are written to."""

    streams: int
    points: tuple[str, ...]
    pace: tuple[float, float] = Contest.pace
    wakes: int = Contest.wakes


def _commit_points(kind: str) -> tuple[str, ...]:
    return tuple(f"sink.{kind}.{step}.{side}" for step in ("commit", "fence") for side in ("before", "after"))


KINDS = {
    "slotlog": Kind(25, COMMIT_POINTS),
    "delta": Kind(20, _commit_points("delta"), pace=(0.05, 0.3), wakes=18),
    "iceberg": Kind(10, _commit_points("iceberg"), pace=(0.05, 0.3), wakes=18),  # a commit takes six times as long
}


class Streams(Contest):
    """All processes work through the same streams in nearly the same order; they are killed, frozen and restarted."""

    kind = ""
    ways = ("kill", "stop", "sleep(20)")

    def armed(self) -> list[str]:
        """A fault for each failpoint, at a random one of the many commits of a process's streams."""
        return [
            f"{point}={self.dice.randrange(30)}*off->1*{self.dice.choice(self.ways)}->off"
            for point in KINDS[self.kind].points
        ]

    def begin(self, plan: Plan) -> ForkServerProcess:
        twin = replace(plan, token=(plan.token + 1) // 2)
        return stream_attempts.start(twin) if self.kind == "slotlog" else stream_tables.start(self.kind, twin)


def sink_of(kind: str, folder: Path) -> Any:
    match kind:
        case "delta":
            return delta_attempts.sink_in(str(folder))
        case "iceberg":
            return iceberg_tables.opened()
        case _:
            return sink_attempts.sink_in(str(folder))


def chain_of(kind: str, sink: Any, folder: Path, name: str) -> list[Slot]:
    """The committed slots of a stream, in order. For a slot log they are read from the files, which have one slot per place."""
    if kind != "slotlog":
        opening = run(sink.find(key_of(name)))
        return [] if opening is None else [opening, *run(stream.recorded(sink, key_of(name), opening))]
    found: dict[int, Slot] = {}
    for path in folder.glob(f"table/_idem/{key_of(name)}*/*.json"):
        token = layout.numbered(path.name) or 0
        slot = layout.decode(path.read_bytes(), where=str(path), sink_key=path.parent.name, token=token)
        if slot.state is SlotState.COMMITTED:
            number = layout.batch_of(slot.sink_key)
            assert found.setdefault(-1 if number is None else number, slot) is slot
    assert sorted(found) == list(range(-1, len(found) - 1))
    return [slot for _, slot in sorted(found.items())]


def commits_in(kind: str, folder: Path) -> Counter[str]:
    """How often each place was committed, by the history of a Delta or Iceberg table; `chain_of` counts the files of a slot log."""
    if kind == "delta":
        names = (each["appId"] for each in transactions(folder / "table"))
        return Counter(name.removeprefix("idem:") for name in names if name.startswith("idem:"))
    summaries = [each.summary for each in iceberg_tables.table().metadata.snapshots if each.summary]
    properties = [each.additional_properties for each in summaries]
    return Counter(each["sparkonce.sink-key"] for each in properties if "sparkonce.snapshot" in each)


def rows_of_table(kind: str, folder: Path) -> list[int]:
    """Every row that a reader of the table sees."""
    match kind:
        case "delta":
            return numbers_in(folder / "table")
        case "iceberg":
            return iceberg_tables.rows()
        case _:
            return rows_in(f"{folder}/table")


def staged_folders(kind: str, folder: Path) -> int:
    """How many writes left files, one folder each."""
    if kind == "slotlog":
        return len(list(folder.glob("table/_data/*/*")))
    return len({path.parent for path in folder.glob("**/so-*/*/*.parquet")})


@pytest.mark.parametrize("kind", KINDS)
def test_six_processes_race_for_streams(
    kind: str, tmpfs_path: Path, started: list[ForkServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place of each stream has one commit, without gaps, by tokens that never decrease; what a settler answered stays true; each row
    exists once."""
    for name, value in iceberg_tables.sql_catalog(tmpfs_path).items():
        monkeypatch.setenv(name, value)
    print(f"SEED={effort.base()}")
    here = KINDS[kind]
    streams = here.streams * effort.size("race streams") // 100
    if kind == "slotlog":  # starts the fork server, which has imported everything
        started.append(sink_attempts.start(Plan(folder=str(tmpfs_path), process="first", token=1, keys=())))
    contest = Streams(
        tmpfs_path,
        f"{tmpfs_path}/table",
        started,
        seed=effort.seed(f"stream races {kind}"),
        keys=streams,
        processes=PROCESSES,
    )
    contest.kind, contest.pace, contest.wakes = kind, here.pace, here.wakes
    rare = contest.run({"died": 5, **dict.fromkeys(ANSWERS, 1)})

    sink = sink_of(kind, tmpfs_path)
    outcome, expected = Counter[str](), list[int]()
    reported = [each for plan in contest.plans for each in answers(plan)]
    for name in contest.keys:
        key = key_of(name)
        opening = run(sink.fence(key, TOKENS + 1, fingerprint=FINGERPRINT, by="settle"))
        if opening is not None:
            run(stream.settled(sink, key, opening, TOKENS, fingerprint=FINGERPRINT, by="settle", end=True))
        chain = chain_of(kind, sink, tmpfs_path, name)
        tokens = [slot.token for slot in chain]
        assert tokens == sorted(tokens)
        batches = [slot for slot in chain if mark(slot).part is StreamPart.BATCH]
        assert not batches or mark(chain[-1]).part is StreamPart.END
        nonces = {slot.nonce for slot in chain}
        for each in (each for each in reported if each["key"] == name):
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
    if kind != "slotlog":
        assert set(commits_in(kind, tmpfs_path).values()) == {1}
    assert rows_of_table(kind, tmpfs_path) == sorted(expected)
    assert staged_folders(kind, tmpfs_path) == len(expected) // 4

    print(f"{dict(contest.faults)} {dict(outcome)}; rare: {rare}")
    assert expected, "no stream has a row"
