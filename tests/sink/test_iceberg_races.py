"""Real processes on one Iceberg table: killed, frozen and resumed at random and at every named point. Effects are counted in the table."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from harness import effort, iceberg_attempts, iceberg_tables
from harness.arrow_stage import table_of
from harness.contest import frozen, wake
from harness.eventually import assert_eventually
from harness.iceberg_contest import COMMIT_POINTS, FENCE_POINTS, IcebergContest, commits
from harness.iceberg_tables import opened, rows, sql_catalog
from harness.patience import until_ended
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, rows_of
from sparkonce.blocking import run
from sparkonce.sink.protocol import AlreadyCommitted, FencedOff, Slot, SlotState

LONG = 60  # seconds: a process of these tests needs a second; only a defect takes this long
TOKENS = (1, 2, 3, 4, 5, 6)


@pytest.fixture
def lake(tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a SQL catalog that does not have the table yet."""
    for name, value in sql_catalog(tmpfs_path).items():
        monkeypatch.setenv(name, value)
    return tmpfs_path


def staged() -> list[Path]:
    return sorted(iceberg_tables.folder_of().glob("data/so-*/*"))


# --- one process dies, or freezes, at a named point -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "fault"), effort.sampled([(point, fault) for fault in ("kill", "1*stop") for point in COMMIT_POINTS])
)
def test_a_writer_that_stops_at_a_step_then_a_fence(
    point: str, fault: str, lake: Path, started: list[ForkServerProcess]
) -> None:
    """Attempt 2 dies, or freezes, at the step; the answer of the fence that follows is final: it never changes later, not even when the
    attempt resumes, and duplicates get the same."""
    plan = Plan(folder=str(lake), process="p", token=2, keys=("k1",), verb="commit", failpoints=f"{point}={fault}")
    started.append(process := iceberg_attempts.start(plan))
    if fault == "kill":
        until_ended(process, LONG)
        assert process.exitcode == -signal.SIGKILL
    else:
        assert_eventually(lambda: frozen(process), LONG)
    sink, key = opened(), key_of("k1")
    verdict = run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle"))
    assert (verdict is not None) == (point == "sink.iceberg.commit.after")
    if fault != "kill":
        wake(process)
        until_ended(process, LONG)
        assert [each["what"] for each in answers(plan)] == ["begin", "Committed" if verdict else "FencedOff"]
    for token in (1, 2):
        slot = Slot(
            state=SlotState.COMMITTED, sink_key=str(key), token=token, nonce="zombie", fingerprint=FINGERPRINT,
            table=str(iceberg_tables.table().metadata.table_uuid),
        )  # fmt: skip
        decision = run(sink.commit(key, slot))
        if verdict is None or token < 2:
            assert isinstance(decision, FencedOff)
        else:
            assert decision == AlreadyCommitted(verdict)
    assert run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle")) == verdict == run(sink.find(key))
    run(sink.sweep(key))
    assert commits() == ({str(key): 1} if verdict is not None else {})
    if verdict is not None:
        assert rows() == rows_of("k1")
    assert len(staged()) == (1 if verdict else 0)


@pytest.mark.parametrize("point", effort.sampled([*FENCE_POINTS, "sink.iceberg.created"]))
def test_a_fence_killed_at_a_step_is_repeated(point: str, lake: Path, started: list[ForkServerProcess]) -> None:
    """An owner that dies inside a fence, or while it creates the table for one, leaves nothing half done: the next owner's fence bars."""
    plan = Plan(folder=str(lake), process="p", token=3, keys=("k1",), verb="fence", failpoints=f"{point}=kill")
    started.append(process := iceberg_attempts.start(plan))
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    sink, key = opened(), key_of("k1")
    assert run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle")) is None
    late = Plan(folder=str(lake), process="q", token=2, keys=("k1",), verb="commit")
    started.append(process := iceberg_attempts.start(late))
    until_ended(process, LONG)
    assert [each["what"] for each in answers(late)] == ["begin", "FencedOff"]


def test_an_abort_killed_at_its_step_leaves_nothing_to_commit(lake: Path, started: list[ForkServerProcess]) -> None:
    """Its token is barred before its files are deleted; files are never deleted under a token that could still commit."""
    plan = Plan(
        folder=str(lake), process="p", token=1, keys=("k1",), verb="abort", failpoints="driver.abort.closed=kill"
    )
    started.append(process := iceberg_attempts.start(plan))
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    sink, key = opened(), key_of("k1")
    assert len(staged()) == 1
    assert run(sink.fence(key, 2, fingerprint=FINGERPRINT, by="settle")) is None
    assert run(sink.sweep(key)).folders == 1


def test_processes_that_meet_at_a_table_that_does_not_exist_make_one(
    lake: Path, started: list[ForkServerProcess]
) -> None:
    """The first writers of six keys meet: one table, one namespace, all rows."""
    plans = [
        Plan(folder=str(lake), process=f"p{number}", token=1, keys=(f"k{number}",), verb="commit")
        for number in range(1, 7)
    ]
    processes = [iceberg_attempts.start(plan) for plan in plans]
    started += processes
    for process in processes:
        until_ended(process, LONG)
    assert [answers(plan)[-1]["what"] for plan in plans] == ["Committed"] * 6
    assert rows() == sorted(row for number in range(1, 7) for row in rows_of(f"k{number}"))
    assert len(list((lake / "warehouse").glob("*/*"))) == 1


def test_two_drivers_of_one_attempt_meet_at_the_commit(lake: Path, started: list[ForkServerProcess]) -> None:
    """Two drivers of one attempt have staged, have read the table, and are about to send their change: one commits, the other gets that
    commit, and its own files can be deleted."""
    first = opened()
    run(first.commit(key_of("k9"), first.stage(table_of(0), key_of("k9"), 1, fingerprint="f")))
    plans = [
        Plan(folder=str(lake), process=f"{n}", token=1, keys=("k1",), verb="commit",
             failpoints="sink.iceberg.commit.before=1*stop->off") for n in (1, 2)
    ]  # fmt: skip
    started += (iceberg_attempts.start(plan) for plan in plans)
    assert_eventually(lambda: all(frozen(process) for process in started), LONG)
    for process in started:
        wake(process)
    for process in started:
        until_ended(process, LONG)
        assert process.exitcode == 0
    told = [answers(plan)[-1] for plan in plans]
    assert sorted(each["what"] for each in told) == ["AlreadyCommitted", "Committed"]
    assert len({each["nonce"] for each in told}) == 1
    assert commits()[str(key_of("k1"))] == 1
    assert rows() == [0, *rows_of("k1")]
    assert run(opened().sweep(key_of("k1"))).folders == 1


# --- pyiceberg's own commit, and ours -----------------------------------------------------------------------------------


def _racer(folder: str, number: int, name: str, ours: bool, meet: str) -> None:
    iceberg_tables.use(sql_catalog(folder))
    key, sink = key_of(name), opened()
    if ours:
        slot = sink.stage(table_of(number), key, 1, fingerprint=FINGERPRINT)
        Path(meet, str(number)).touch()
        assert_eventually(lambda: len(list(Path(meet).iterdir())) == 3, LONG)
        run(sink.commit(key, slot))
        return
    table = iceberg_tables.table()
    said = [each.summary.additional_properties for each in table.metadata.snapshots if each.summary]
    absent = not any(each.get("sparkonce.sink-key") == str(key) for each in said)
    Path(meet, str(number)).touch()
    assert_eventually(lambda: len(list(Path(meet).iterdir())) == 3, LONG)
    if absent:
        said_now = {"sparkonce.sink-key": str(key), "sparkonce.nonce": str(number)}
        table.append(table_of(number), snapshot_properties=said_now)


@pytest.mark.further
@pytest.mark.parametrize("ours", [False, True])
def test_check_then_append_commits_thrice_and_ours_once(ours: bool, lake: Path) -> None:
    """Three writers of one key have read the table and then commit at once. pyiceberg's own append resends its commit after a conflict
    without reading again: three commits. Ours: one. If the first half fails, pyiceberg changed its retries: read what its commit does now
    before raising the pinned version."""
    first = opened()
    run(first.commit(key_of("k9"), first.stage(table_of(0), key_of("k9"), 1, fingerprint="f")))
    meet = lake / "meet"
    meet.mkdir()
    context = multiprocessing.get_context("forkserver")
    racers = [context.Process(target=_racer, args=(str(lake), number, "k1", ours, str(meet))) for number in (1, 2, 3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        until_ended(racer, LONG)
        assert racer.exitcode == 0
    assert commits()[str(key_of("k1"))] == (1 if ours else 3)


# --- many processes, many keys ----------------------------------------------------------------------------------------


def contest_in(folder: Path, started: list[ForkServerProcess], *, keys: int, processes: int) -> IcebergContest:
    seed = effort.seed("iceberg races")
    print(f"SEED={effort.base()}")
    return IcebergContest(folder, "", started, seed=seed, keys=keys, processes=processes)
