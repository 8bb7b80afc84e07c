"""`sparkonce.job`: a block of code that is both owner and driver. However it ends, running it again leaves one effect."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import sparkonce
from harness import effort
from harness.arrow_stage import arrow_stage, table_of
from harness.delta_stage import delta_stage, numbers_in
from harness.eventually import assert_eventually
from harness.patience import until_ended
from sparkonce.blocking import run
from sparkonce.commands import operate
from sparkonce.errors import (
    Busy,
    HeldForPerson,
    InvalidInput,
    JobFailed,
    JobMismatch,
    LateInSeries,
    LaunchUnavailable,
    ResultChanged,
    ResultGone,
    StoreUnavailable,
    UndeclaredOutput,
)
from sparkonce.launch.local import locked
from sparkonce.local import notebook
from sparkonce.local.prepare import Prepared
from sparkonce.local.runner import LocalRunner, attempts_folder
from sparkonce.model.record import Outcome, Record, State
from sparkonce.sink.protocol import Evidence, Probed
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.store.open import open_store
from sparkonce.store.sqlite.lease import FileLease
from sparkonce.store.sqlite.store import SqliteStore

PATIENCE = 30  # seconds to start another interpreter
NEVER: Any = object()
"""A frame that cannot be staged."""
SCRIPT = """
import sys, time
from pathlib import Path
from harness.arrow_stage import arrow_stage, table_of
from sparkonce.sink.slotlog import sink as slots
slots.stage_with_spark = arrow_stage
import sparkonce
with sparkonce.job("load", outputs={"orders": "lake/orders"}, store="ledger.db") as job:
    Path("began").touch()
    while "wait" in sys.argv and not Path("go").exists():
        time.sleep(0.02)
    job.write(table_of(1, 2, 3), "orders")
"""


@pytest.fixture(autouse=True)
def _in_a_folder_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARKONCE_PATIENCE", "1")
    monkeypatch.setattr("sparkonce.sink.slotlog.sink.stage_with_spark", arrow_stage)


def job(**named: Any) -> Any:
    return sparkonce.job("load", **{"outputs": {"orders": "lake/orders"}, "store": "ledger.db", **named})


def write(*rows: int, **named: Any) -> Any:
    with job(**named) as held:
        held.write(table_of(*rows), "orders")
    return held


def two(**named: Any) -> Any:
    return job(outputs={"a": "lake/a", "b": "lake/b"}, **named)


def record(key: str = "load") -> Record:
    store = open_store("ledger.db")
    try:
        return run(operate.find(store, key))
    finally:
        run(store.close())


def forget() -> None:
    store = open_store("ledger.db")
    try:
        run(operate.forget(store, run(operate.find(store, "load")), by="ann", reason="again"))
    finally:
        run(store.close())


def rows(output: str = "orders") -> list[int]:
    """The rows of every committed slot of the table."""
    slots = [json.loads(path.read_text()) for path in Path("lake", output).glob("_idem/*-g*/*.json")]
    files = [Path("lake", output, f["path"]) for slot in slots if slot["state"] == "committed" for f in slot["files"]]
    columns: list[Any] = [parquet.read_table(file, partitioning=None)["n"].to_pylist() for file in files]
    return sorted(number for column in columns for number in column)


def script(*arguments: str, failpoints: str = "") -> subprocess.Popen[bytes]:
    told: Mapping[str, str] = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "SPARKONCE_FAILPOINTS": failpoints,
    }
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], env=told)


def test_a_fresh_block_runs_and_its_writes_are_committed() -> None:
    """The block is attempt 1 of generation 1 and not replayed; it is Succeeded when it has ended, and leaves nothing open."""
    with job() as held:
        assert (held.key, held.generation, held.attempt, held.replayed) == ("load", 1, 1, False)
        written = held.write(table_of(1, 2), "orders")
        assert written.fresh
        assert record().state is State.IN_PROGRESS

    assert (rows(), record().outcome) == ([1, 2], "Succeeded")
    (folder,) = attempts_folder(f"sqlite:///{Path('ledger.db').absolute()}").iterdir()
    assert not locked(folder)


def test_a_block_that_has_its_result_does_not_run_its_frames() -> None:
    """`replayed` is set from the start; writes, also in a transaction, return the record's results; values stay as they were."""
    with job() as held:
        held.write(table_of(1, 2), "orders")
        held.result(source="may")

    with job() as held:
        assert (held.replayed, held.outputs) == (True, ("orders",))
        written = held.write(NEVER, "orders")
        with held.transaction() as tx:
            tx.write(NEVER, "orders")
        assert tx.written == {"orders": written}
        held.result(source="june")
        held.report("note", text="twice")
        with pytest.raises(UndeclaredOutput):
            held.write(NEVER, "totals")

    assert (written.rows, written.fresh, held.recorded.values) == (2, False, {"source": "may"})
    assert rows() == [1, 2]


def test_a_block_that_raises_is_the_next_attempt_when_it_runs_again() -> None:
    """Its own error is raised, none of its rows is committed, and attempt 2 writes."""
    with pytest.raises(ZeroDivisionError), job():
        raise ZeroDivisionError
    assert (record().attempt, record().state) == (2, State.IN_PROGRESS)

    assert write(1, 2).attempt == 2
    assert rows() == [1, 2]


def test_a_block_that_raises_after_its_writes_has_its_result() -> None:
    """Committed rows count: the error is raised, and the next run is a replay."""
    with pytest.raises(ZeroDivisionError):
        fails_after_its_write()
    assert write(7).replayed
    assert rows() == [1]


def fails_after_its_write() -> None:
    with job() as held:
        held.write(table_of(1), "orders")
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "point",
    effort.sampled(
        [
            "engine.reserve.after",
            "engine.launch.before",
            "engine.note.after",
            "driver.commit.after",
            "driver.stage.after",
            "engine.settling.after",
            "engine.finalize.before",
            "engine.finalize.after",
        ]
    ),
)
def test_a_block_whose_process_is_killed_ends_when_it_runs_again(point: str) -> None:
    """After SIGKILL at any step the next process takes over at once, and the rows are there once."""
    killed = script(failpoints=f"{point}=kill")
    assert until_ended(killed, PATIENCE) == -signal.SIGKILL

    write(1, 2, 3)

    assert (rows(), record().outcome) == ([1, 2, 3], "Succeeded")


def test_other_parameters_or_outputs_under_the_key_are_refused() -> None:
    """JobMismatch is raised before anything is written."""
    write(1, parameters={"month": 5})
    for other in ({"parameters": {"month": 6}}, {"parameters": {"month": 5}, "outputs": {"orders": "lake/others"}}):
        with pytest.raises(JobMismatch, match="load: generation 1 is for another job"):
            write(2, **other)
    assert write(3, parameters={"month": 5}).replayed
    assert not Path("lake/others").exists()


def numbers(**output: Any) -> Any:
    """A block of its own key for each number, on a Delta table, and what the table holds afterwards."""

    def written(number: int, series: Any = None) -> list[int]:
        with sparkonce.job(f"day-{number}", outputs={"orders": output}, store="ledger.db", series=series) as held:
            held.write(table_of(number), "orders")
        return numbers_in(Path("lake/delta"))

    return written


@pytest.fixture
def _delta_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkonce.sink.delta.sink.stage_with_spark", delta_stage)


@pytest.mark.usefixtures("_delta_without_spark")
def test_an_output_may_be_declared_as_in_a_job_file() -> None:
    """A Delta table with a mode: each key's rows replace those before, and a repeated block replays."""
    written = numbers(delta={"path": "lake/delta"}, mode="Overwrite")
    assert [written(1), written(2), written(2)] == [[1], [2], [2]]

    with pytest.warns(ResultChanged):
        assert written(1) == [2]


@pytest.mark.usefixtures("_delta_without_spark")
def test_the_keys_of_a_block_may_be_ordered() -> None:
    """A key that is late in its series is refused, and what a later key has written stays."""
    written = numbers(delta={"path": "lake/delta"}, mode="Overwrite")
    assert written(2, {"name": "daily", "position": "2"}) == [2]
    with pytest.raises(LateInSeries):
        written(1, {"name": "daily", "position": "1"})
    assert numbers_in(Path("lake/delta")) == [2]


def test_an_output_that_no_job_file_could_declare_is_refused_by_field() -> None:
    """Nothing is reserved or written; the sentence names the field as in a job file."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"delta": {"path": "lake/delta"}, "mode": "Upsert"}, r"spec\.outputs\[0\]\.mode"),
        ({"slotLog": {"path": "lake/orders"}, "delta": {"path": "lake/delta"}}, r"spec\.outputs\[0\]"),
        ({"slotLog": {"path": "lake/orders"}, "name": "other"}, "has a name already"),
        ({"delta": "lake/delta"}, r"spec\.outputs\[0\]\.delta"),
        ({"delta": {"path": 7}}, r"spec\.outputs\[0\]\.delta\.path"),
    ]
    for output, why in wrong:
        with pytest.raises(InvalidInput, match=why), job(outputs={"orders": output}):
            raise AssertionError("the block ran")
    assert list(Path().iterdir()) == []


def test_a_key_that_another_process_runs_is_busy() -> None:
    """The block never waits for another process: the error names the owner. Once that has ended, its result is replayed."""
    other = script("wait")
    try:
        assert_eventually(Path("began").exists, PATIENCE)
        with pytest.raises(Busy, match=rf"load: generation 1, attempt 1 is owned by pid {other.pid} "):
            write(9)
        Path("go").touch()
        assert until_ended(other, PATIENCE) == 0
    finally:
        other.kill()
        other.wait()

    assert write(9).replayed
    assert rows() == [1, 2, 3]


def test_a_key_that_this_process_runs_is_busy_too() -> None:
    """Two blocks of one process count as two callers; the first is not disturbed."""
    with job() as held:
        with pytest.raises(Busy):
            write(9)
        held.write(table_of(1), "orders")
    assert rows() == [1]


def test_inside_a_running_event_loop() -> None:
    """As in a notebook's cell, the block runs inside a running event loop."""

    async def cell() -> Any:
        return write(1, 2)

    assert not asyncio.run(cell()).replayed
    assert asyncio.run(cell()).replayed
    assert rows() == [1, 2]


def test_a_block_that_writes_nothing_failed_and_says_how_to_run_it_anew() -> None:
    """NoEffect, at once and for every duplicate; once forgotten, the key runs as generation 2."""
    with (
        pytest.raises(
            JobFailed, match=r"load failed: .* committed nothing; .*`sparkonce keys forget load --reason TEXT`"
        ),
        job(),
    ):
        pass
    with pytest.raises(JobFailed, match="committed nothing"):
        write(1)
    forget()
    assert write(1).generation == 2
    assert rows() == [1]


def test_a_block_that_writes_half_of_its_outputs_is_completed_by_the_next_run() -> None:
    """The error names the missing outputs; committed ones stay and are not run again."""
    with (
        pytest.raises(
            JobFailed, match=r"attempt 1 of load ended without all of its outputs \(a, b\); run the cell again"
        ),
        two() as held,
    ):
        held.write(table_of(1), "a")

    with two() as held:
        assert not held.write(NEVER, "a").fresh
        held.write(table_of(2), "b")

    assert (held.attempt, rows("a"), rows("b")) == (2, [1], [2])


def test_a_transaction_of_a_block() -> None:
    """Both outputs are committed by one seal."""
    with two() as held, held.transaction() as tx:
        tx.write(table_of(1), "a")
        tx.write(table_of(2), "b")
    assert (rows("a"), rows("b")) == ([1], [2])


def test_a_block_that_says_it_can_never_succeed_failed_for_good() -> None:
    """`job.fail` ends the block; every later run gets its message."""
    with pytest.raises(SystemExit), job() as held:
        held.fail("no such column: fare")
    with pytest.raises(JobFailed, match="load failed: no such column: fare"):
        write(1)
    assert record().attempt == 1


def test_a_key_that_is_held_is_for_a_person() -> None:
    """One output is committed and the other one can never be: HeldForPerson, with the command that resolves the key."""
    with pytest.raises(SystemExit):
        fails_for_good_after_half()
    with pytest.raises(HeldForPerson, match=r"load: Partial: .*sparkonce keys resolve load"), two():
        pass


def fails_for_good_after_half() -> None:
    with two() as held:
        held.write(table_of(1), "a")
        held.fail("no such column: fare")


def test_a_result_whose_output_is_gone_says_how_to_run_it_anew() -> None:
    """The block does not run by itself. Without a job file that could be rerun, the remedy is to forget the key, and `sparkonce rerun` says
    the same."""
    write(1)
    shutil.rmtree("lake")
    with pytest.raises(ResultGone, match="orders is gone; `sparkonce keys forget load"):
        write(1)

    store = open_store("ledger.db")
    embedded = LocalRunner(store=store, attempts=Path("attempts"))
    with pytest.raises(InvalidInput, match=r"load is a block of code .* no command can run"):
        run(operate.stored(embedded, run(operate.find(store, "load"))))
    run(store.close())
    forget()
    assert write(1).generation == 2
    assert rows() == [1]


@pytest.mark.parametrize("lost", ["_idem/*-g1/*.json", "_data/**/*.parquet"])
def test_the_remedy_works_where_only_a_part_is_gone(lost: str) -> None:
    """A slot, or a file of rows, was deleted: once the key is forgotten, its block writes the rows anew, and they are read once."""
    write(1, 2)
    next(Path("lake/orders").glob(lost)).unlink()
    with pytest.raises(ResultGone, match="orders is gone"):
        write(1, 2)
    forget()
    assert write(1, 2).generation == 2
    shown: list[Any] = [parquet.read_table(file)["n"].to_pylist() for file in sparkonce.files("lake/orders")]
    assert sorted(number for column in shown for number in column) == [1, 2]


def test_a_result_that_others_changed_is_replayed_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block replays, `job.changed` has the sentence of each such output, and a warning at the `with` statement shows it."""
    write(1)

    async def probe(*_: object) -> Probed:
        return Probed(verdict=Evidence.CHANGED, why="rows of it were removed or rewritten by version 7 (DELETE)")

    monkeypatch.setattr(SlotLogSink, "probe", probe)  # nobody else writes to a slot log: its own probe never says so
    with pytest.warns(ResultChanged, match=r"load: generation 1 succeeded, .* version 7 \(DELETE\)") as warned:
        held = write(1)
    assert isinstance(held, notebook.Replayed)
    assert held.changed == {"orders": "rows of it were removed or rewritten by version 7 (DELETE)"}
    assert held.written["orders"].rows == 1
    assert warned[0].filename == __file__


def test_a_block_that_cannot_begin_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger stops answering after the attempt was placed: the error is raised, no lock stays, and the next run is attempt 2."""

    def silent(*_: object) -> bool:
        raise StoreUnavailable("the ledger is locked")

    with monkeypatch.context() as patch:
        patch.setattr(notebook._InlineHeartbeat, "renew", silent)
        with pytest.raises(StoreUnavailable):
            write(1)

    assert write(1, 2).attempt == 2
    assert rows() == [1, 2]


def test_an_attempt_that_cannot_be_recorded_keeps_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the process is to be recorded in the attempt's folder: the error names both, and the cell may be run again at
    once, in the same process."""

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(notebook, "record_process", full)
        with pytest.raises(LaunchUnavailable, match="No space left on device; fix that and run the cell again"):
            write(1)
    (folder,) = attempts_folder(f"sqlite:///{Path('ledger.db').absolute()}").iterdir()
    assert not locked(folder)
    assert write(1).attempt == 2


def test_a_child_that_lives_on_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child by fork, such as a pool's, has a copy of the attempt's lock: the block ends without waiting for the child."""

    async def wait(_: float) -> None:
        raise AssertionError("it waits for the child")

    monkeypatch.setattr(notebook, "_wait", wait)
    copies = []
    try:
        with job() as held:
            held.write(table_of(1), "orders")
            files = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
            copies += [os.dup(int(path.name)) for path in files if path.readlink().name == "lock"]
        assert len(copies) == 1
    finally:
        for copy in copies:
            os.close(copy)
    assert record().outcome is Outcome.SUCCEEDED


def test_a_lease_that_cannot_be_revoked_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger stops answering once the block is settled: the block has succeeded, and the ledger is closed."""
    closed = []
    close = SqliteStore.close

    async def silent(_: FileLease) -> None:
        raise StoreUnavailable("no answer")

    async def counted(store: SqliteStore) -> None:
        closed.append(store)
        await close(store)

    monkeypatch.setattr(FileLease, "revoke", silent)
    monkeypatch.setattr(SqliteStore, "close", counted)
    write(1, 2)
    assert len(closed) == 1
    assert record().outcome is Outcome.SUCCEEDED


def test_a_block_whose_lease_ended_before_it_began_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store gave the lease up while the outputs were checked, as for a machine that sleeps: an error, not a wait without end; the next
    run has a new lease."""
    checks = []

    async def check(_: Prepared) -> None:
        checks.append(1)
        assert len(checks) < 50, "it never ends"
        shutil.rmtree("ledger.db.leases", ignore_errors=True)

    with monkeypatch.context() as patch:
        patch.setattr(Prepared, "check", check)
        with pytest.raises(StoreUnavailable, match="lost its lease on the ledger; nothing is lost, run the cell again"):
            write(1)
    assert write(1).attempt == 1
    assert rows() == [1]


def loses_its_lease_after_its_write() -> None:
    with job() as held:
        held.write(table_of(1), "orders")
        shutil.rmtree("ledger.db.leases")


def test_a_block_that_lost_its_lease_is_no_failure() -> None:
    """The process lost its lease after the block's commit: the error does not say that outputs are missing, and the next run gets the
    result."""
    with pytest.raises(
        StoreUnavailable, match=r"lost its lease on the ledger while the block of load ran, .* run the cell again"
    ):
        loses_its_lease_after_its_write()
    assert write(2).replayed
    assert rows() == [1]


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_clusters_ledger_is_refused(monkeypatch: pytest.MonkeyPatch, *, by_variable: bool) -> None:
    """Its operators run its jobs: the error names the ledger without its password, and what to give instead."""
    url = "etcd://127.0.0.1:1?user=ann"
    monkeypatch.setenv("SPARKONCE_STORE", url)
    with (
        pytest.raises(InvalidInput, match=r"etcd://127\.0\.0\.1:1 is a cluster's ledger, .* give `store` a file"),
        job(store=None if by_variable else url),
    ):
        raise AssertionError("it ran")


def test_a_block_that_was_taken_over_before_it_began_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that froze between its launch and its first line, and was taken over, raises Busy; the successor's attempt is not touched."""
    to_launch = notebook._to_launch
    ran = []

    def frozen(embedded: LocalRunner, owned: Any) -> Any:
        begun = to_launch(embedded, owned)
        run(embedded.store.drop(owned.claim))  # so that its claim is lost when it resumes
        return begun

    monkeypatch.setattr(notebook, "_to_launch", frozen)
    with pytest.raises(Busy, match="load was taken over before this block began; run the cell again"), job():
        ran.append("it ran")
    monkeypatch.undo()
    assert ran == []


def test_a_name_that_somebody_else_has_taken_costs_no_attempt() -> None:
    """A foreign folder beside the ledger has the attempt's name: the next attempt runs in this same block."""
    write(1)
    name = next(attempts_folder(f"sqlite:///{Path('ledger.db').absolute()}").iterdir()).name
    folder = Path("other.db.attempts", name)
    folder.mkdir(parents=True)
    (folder / "mine").touch()

    assert write(1, store="other.db", outputs={"orders": "lake/elsewhere"}).attempt == 2
    assert [path.name for path in folder.iterdir()] == ["mine"]
