"""Real processes on one Delta table: killed, frozen and resumed at random and at every named point, while other writers append. Effects are
counted in the table, by another reader."""

from __future__ import annotations

import signal
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from harness import delta_attempts, effort
from harness.arrow_stage import table_of
from harness.contest import frozen, wake
from harness.delta_attempts import sink_in
from harness.delta_contest import COMMIT_POINTS, FENCE_POINTS, TABLE_POINTS
from harness.delta_stage import numbers_in, transactions
from harness.eventually import assert_eventually
from harness.patience import until_ended
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, rows_of
from sparkonce.blocking import run
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.delta.sink import DeltaTableSink
from sparkonce.sink.protocol import AlreadyCommitted, FencedOff, Slot, SlotState

LONG = 60  # seconds: a process of these tests needs a second at most; only a defect takes this long
TOKENS = (1, 2, 3, 4, 5, 6)
INTERVAL = "2"
"""Versions between checkpoints, small so that the tests meet many checkpoints."""


def made(folder: Path) -> None:
    """An existing table with frequent checkpoints and one row of another writer."""
    write_deltalake(str(folder / "table"), table_of(-100), configuration={"delta.checkpointInterval": INTERVAL})


def ours(folder: Path) -> list[int]:
    """Rows of jobs in the table."""
    if not (folder / "table" / "_delta_log").exists():
        return []
    return [number for number in numbers_in(folder / "table") if number >= 0]


def with_table(point: str) -> bool:
    """Whether the table already exists when the point is reached."""
    return point not in TABLE_POINTS


def reached_the_log(point: str) -> bool:
    return point in ("sink.delta.commit.after", "sink.delta.checkpoint.before")


# --- one process dies, or freezes, at a named point --------------------------------------------------------------------------


@pytest.mark.parametrize("point", effort.rotated(COMMIT_POINTS, "killed"))
def test_a_writer_killed_at_a_step_then_a_fence(point: str, tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """Attempt 2 dies at the step; the answer of the fence that follows is final: it never changes later, and duplicates get the same."""
    if with_table(point):
        made(tmpfs_path)
        write_deltalake(str(tmpfs_path / "table"), table_of(-101), mode="append")  # the next version wants a checkpoint
    plan = Plan(folder=str(tmpfs_path), process="p", token=2, keys=("k1",), verb="commit", failpoints=f"{point}=kill")
    started.append(process := delta_attempts.start(plan))
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    sink, key = sink_in(plan.folder), key_of("k1")
    verdict = run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle"))
    assert (verdict is not None) == reached_the_log(point)
    for token in (1, 2):
        slot = Slot(state=SlotState.COMMITTED, sink_key=str(key), token=token, nonce="zombie", fingerprint=FINGERPRINT)
        decision = run(sink.commit(key, slot))
        assert isinstance(decision, FencedOff) if verdict is None else decision == AlreadyCommitted(verdict)
    assert run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle")) == verdict == run(sink.find(key))
    run(sink.sweep(key))
    assert ours(tmpfs_path) == (rows_of("k1") if verdict else [])
    assert len(list(tmpfs_path.glob("table/so-*/*"))) == (1 if verdict else 0)


@pytest.mark.parametrize("point", effort.rotated(COMMIT_POINTS, "frozen"))
def test_a_writer_frozen_at_a_step_wakes_after_the_fence(
    point: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """A zombie that resumes after the takeover gets the fence's answer: that it is fenced, or that its commit had taken effect."""
    if with_table(point):
        made(tmpfs_path)
        write_deltalake(str(tmpfs_path / "table"), table_of(-101), mode="append")
    plan = Plan(folder=str(tmpfs_path), process="p", token=2, keys=("k1",), verb="commit", failpoints=f"{point}=1*stop")
    started.append(process := delta_attempts.start(plan))
    assert_eventually(lambda: frozen(process), LONG)
    sink, key = sink_in(plan.folder), key_of("k1")
    verdict = run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle"))
    assert (verdict is not None) == reached_the_log(point)
    wake(process)
    until_ended(process, LONG)
    assert [each["what"] for each in answers(plan)] == ["begin", "Committed" if verdict else "FencedOff"]
    assert run(sink.find(key)) == verdict
    run(sink.sweep(key))
    assert ours(tmpfs_path) == (rows_of("k1") if verdict else [])
    assert len(list(tmpfs_path.glob("table/so-*/*"))) == (1 if verdict else 0)


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("point", FENCE_POINTS)
def test_a_fence_killed_at_a_step_is_repeated(
    point: str, exists: bool, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """An owner that dies inside a fence has barred the lower tokens or not; the next owner's fence bars them, and neither bars a higher
    one."""
    if exists:
        made(tmpfs_path)
    plan = Plan(folder=str(tmpfs_path), process="p", token=3, keys=("k1",), verb="fence", failpoints=f"{point}=kill")
    started.append(process := delta_attempts.start(plan))
    until_ended(process, LONG)
    assert process.exitcode == (-signal.SIGKILL if exists or point == "sink.delta.noted" else 0)
    sink, key = sink_in(plan.folder), key_of("k1")
    assert run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle")) is None
    low, high = (sink.stage(table_of(*rows_of("k1")), key, token, fingerprint=FINGERPRINT) for token in (2, 3))
    assert isinstance(run(sink.commit(key, low)), FencedOff)
    assert run(sink.commit(key, high)).slot == high
    assert ours(tmpfs_path) == rows_of("k1")


def test_an_attempt_completes_a_fence_that_died_half_way(tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """An attempt that finds only the fence's note writes the log entry itself before it answers Fenced, so that a second driver of it is
    barred as well."""
    made(tmpfs_path)
    plan = Plan(
        folder=str(tmpfs_path), process="p", token=3, keys=("k1",), verb="fence", failpoints="sink.delta.noted=kill"
    )
    started.append(process := delta_attempts.start(plan))
    until_ended(process, LONG)
    assert transactions(tmpfs_path / "table") == []
    sink, key = sink_in(plan.folder), key_of("k1")
    assert isinstance(run(sink.commit(key, sink.stage(table_of(1), key, 2, fingerprint=FINGERPRINT))), FencedOff)
    assert [(each["appId"], each["version"]) for each in transactions(tmpfs_path / "table")] == [
        (delta_log.fence(key), 3)
    ]


@pytest.mark.parametrize("point", ["driver.abort.closed", *FENCE_POINTS])
def test_an_abort_killed_at_a_step_leaves_nothing_to_commit(
    point: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """The abort itself or the fence bars its token, and then its files can be swept; files are never deleted while their token is open."""
    made(tmpfs_path)
    plan = Plan(folder=str(tmpfs_path), process="p", token=1, keys=("k1",), verb="abort", failpoints=f"{point}=kill")
    started.append(process := delta_attempts.start(plan))
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    sink, key = sink_in(plan.folder), key_of("k1")
    assert len(list(tmpfs_path.glob("table/so-*/*/*.parquet"))) == 2
    assert run(sink.fence(key, 2, fingerprint=FINGERPRINT, by="settle")) is None
    assert run(sink.sweep(key)).folders == 1


def test_a_sweep_killed_at_its_step_is_repeated(tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """The files that it had not deleted are still there, and the next sweep deletes them."""
    sink, key = sink_in(str(tmpfs_path)), key_of("k1")
    sink.stage(table_of(1), key, 1, fingerprint=FINGERPRINT)
    run(sink.fence(key, 2, fingerprint=FINGERPRINT, by="settle"))
    plan = Plan(
        folder=str(tmpfs_path),
        process="q",
        token=1,
        keys=("k1",),
        verb="sweep",
        failpoints="sink.delta.sweep.before=kill",
    )
    started.append(process := delta_attempts.start(plan))
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    assert len(list(tmpfs_path.glob("table/so-*/*"))) == 1
    assert run(sink.sweep(key)).folders == 1
    assert list(tmpfs_path.glob("table/so-*/*")) == []


def test_a_table_is_created_once_by_racers(tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """Six jobs make their first commit to a missing table: one version 0, and every job's rows once."""
    plans = [
        Plan(folder=str(tmpfs_path), process=f"{n}", token=1, keys=(f"k{n}",), verb="commit",
             failpoints="sink.delta.table.before=1*stop->off") for n in range(1, 7)
    ]  # fmt: skip
    started += (delta_attempts.start(plan) for plan in plans)
    assert_eventually(lambda: all(frozen(process) for process in started), LONG)
    for process in started:
        wake(process)
    for process in started:
        until_ended(process, LONG)
        assert process.exitcode == 0
    assert [each["what"] for plan in plans for each in answers(plan)] == ["begin", "Committed"] * 6
    assert ours(tmpfs_path) == sorted(row for n in range(1, 7) for row in rows_of(f"k{n}"))
    hits = Path(plans[0].hits).read_text().split()
    assert hits.count("sink.delta.table.after") == 6


def test_two_drivers_of_one_attempt_meet_at_the_commit(tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """Two drivers of one attempt have staged, have read the table, and are about to send their log entry: one commits, the other gets that
    commit, and its own files can be deleted."""
    made(tmpfs_path)
    plans = [
        Plan(folder=str(tmpfs_path), process=f"{n}", token=1, keys=("k1",), verb="commit",
             failpoints="sink.delta.commit.before=1*stop->off") for n in (1, 2)
    ]  # fmt: skip
    started += (delta_attempts.start(plan) for plan in plans)
    assert_eventually(lambda: all(frozen(process) for process in started), LONG)
    for process in started:
        wake(process)
    for process in started:
        until_ended(process, LONG)
        assert process.exitcode == 0
    told = [answers(plan)[-1] for plan in plans]
    assert sorted(each["what"] for each in told) == ["AlreadyCommitted", "Committed"]
    assert len({each["nonce"] for each in told}) == 1
    assert ours(tmpfs_path) == rows_of("k1")
    assert run(sink_in(str(tmpfs_path)).sweep(key_of("k1"))).folders == 1


# --- the library that others write with --------------------------------------------------------------------------------------


def test_the_librarys_writer_starts_over_after_our_entry(tmpfs_path: Path) -> None:
    """delta-rs, holding the version before our entry, rebases an append onto it and refuses an overwrite of rows that it has not read. The
    test fails if a release changes that."""
    made(tmpfs_path)
    table = tmpfs_path / "table"
    stale = DeltaTable(str(table))
    sink, key = sink_in(str(tmpfs_path)), key_of("k1")
    run(sink.commit(key, sink.stage(table_of(1), key, 1, fingerprint=FINGERPRINT)))
    write_deltalake(stale, table_of(-5), mode="append")
    assert numbers_in(table) == [-100, -5, 1]
    assert run(sink.find(key)) is not None


def test_the_librarys_conflicts_are_as_they_were(tmpfs_path: Path) -> None:
    """Two delta-rs writers that loaded the same version and use the same transaction identifier: the second is refused. Our protocol does
    not rely on it; a foreign job that writes our identifier does."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    made(tmpfs_path)
    table = str(tmpfs_path / "table")
    stale = DeltaTable(table)
    sink, key = sink_in(str(tmpfs_path)), key_of("k1")
    run(sink.commit(key, sink.stage(table_of(1), key, 1, fingerprint=FINGERPRINT)))
    same = CommitProperties(app_transactions=[Transaction(delta_log.idem(key), 1)])
    with pytest.raises(CommitFailedError, match="Concurrent transaction failed"):
        write_deltalake(stale, table_of(2), mode="append", commit_properties=same)
    assert numbers_in(tmpfs_path / "table") == [-100, 1]


def test_a_stranger_in_between_means_looking_again(tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our entry is created only as the version right after the one that was read: if another writer takes that number first, the table is
    read again."""
    made(tmpfs_path)
    table = tmpfs_path / "table"
    sink, key = sink_in(str(tmpfs_path)), key_of("k1")
    assert isinstance(sink, DeltaTableSink)
    slot = sink.stage(table_of(1), key, 1, fingerprint=FINGERPRINT)
    create = sink._objects.create
    tried: list[str] = []

    async def overtaken(path: str, data: bytes) -> bool:
        if path.startswith("_delta_log"):
            tried.append(path)
            if len(tried) <= 3:
                write_deltalake(str(table), table_of(-len(tried)), mode="append")
        return await create(path, data)

    monkeypatch.setattr(sink._objects, "create", overtaken)
    run(sink.commit(key, slot))
    assert tried == [delta_log.entry_path(version) for version in (1, 2, 3, 4)]
    assert numbers_in(table) == [-100, -3, -2, -1, 1]
