"""Native blocks without a JVM: delta-rs plays Spark's engine (`harness.delta_engine`). The real one is in tests/crash/long."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from driver.streamed import LIVES, next_attempt, settled
from harness.arrow_stage import table_of
from harness.delta_engine import Engine, numbers, rows_of
from harness.granted import Granted, granted
from sparkonce.attempt.settle_runs import settle_run_reported
from sparkonce.audit.findings import SEVERITY, Severity
from sparkonce.audit.tables import of_table
from sparkonce.blocking import run
from sparkonce.driver.channel import Written
from sparkonce.driver.native import Native
from sparkonce.driver.statements import Statement
from sparkonce.errors import Fenced, InvalidInput, OutputChanged, OutputUnsupported, StatementsDiffer
from sparkonce.local.notebook import ReplayedNative
from sparkonce.model.record import Report, Verdict
from sparkonce.model.spec import OnRerun
from sparkonce.sink.protocol import Evidence
from sparkonce.sink.transaction import Settlement


@pytest.fixture
def table(tmp_path: Path) -> Path:
    where = tmp_path / "orders"
    write_deltalake(str(where), rows_of(0))
    return where


@pytest.fixture
def engine(table: Path) -> Engine:
    return Engine(table)


def begun(folder: Path, **output: Any) -> Granted:
    return granted(folder, outputs=[{"name": "orders", "delta": {"path": "orders"}, **output}])


def block_of(attempt: Granted, **options: Any) -> Native:
    return Native(attempt.job(), "orders", **options)


def issue(block: Native, engine: Engine, *numbers: int, **options: Any) -> None:
    for number in numbers:
        block.statement(engine.statement(number, **options))


class Died(Exception):
    """Ends a driver inside its block."""


def dying(attempt: Granted, engine: Engine, *numbers: int) -> None:
    with pytest.raises(Died), block_of(attempt) as block:  # noqa: PT012 - a block of statements
        issue(block, engine, *numbers)
        raise Died


def test_each_statement_is_once_and_the_settings_are_removed(tmp_path: Path, table: Path, engine: Engine) -> None:
    """Two statements, then the end: the session's settings are as they were, and settling finds all committed."""
    attempt = begun(tmp_path)
    with block_of(attempt) as block:
        issue(block, engine, 1, 2)

    assert numbers(table) == [0, 1, 2]
    assert engine.conf.values == {"spark.user": "kept"}
    assert block.written is not None
    assert (block.done, block.written.fresh) == (2, True)
    assert settled(attempt).verdict is Verdict.ALL


def test_the_next_attempt_skips_what_is_done_and_goes_on(tmp_path: Path, table: Path, engine: Engine) -> None:
    """A driver dies after two of three statements: settling bars it and says how many are done; the next one runs the third only."""
    attempt = begun(tmp_path)
    dying(attempt, engine, 1, 2)
    settlement = settled(attempt)
    assert (settlement.verdict, "2 statement(s) of a native block are in the table" in settlement.note) == (
        Verdict.SOME,
        True,
    )
    next_attempt(attempt)
    with block_of(attempt) as block:
        issue(block, engine, 1, 2, 3)

    assert (numbers(table), engine.ran) == ([0, 1, 2, 3], [1, 2, 3])
    assert settled(attempt).verdict is Verdict.ALL


def test_a_cancellation_never_calls_half_a_block_the_result(tmp_path: Path, engine: Engine) -> None:
    """Nobody but its driver knows whether a block has run to its end: with statements in the table it stays partly committed."""
    attempt = begun(tmp_path)
    dying(attempt, engine, 1)
    assert settled(attempt, end=True).verdict is Verdict.SOME


@pytest.mark.parametrize("end", [False, True])
def test_a_settle_run_reports_a_block(tmp_path: Path, engine: Engine, end: bool) -> None:
    """What a settle run reports of a block that is partly done, and of a complete one, is accepted as its verdict."""
    attempt = begun(tmp_path)
    dying(attempt, engine, 1)
    assert reported(attempt, end=end) == settled(attempt, end=end)
    next_attempt(attempt)
    with block_of(attempt) as block:
        issue(block, engine, 1)
    assert reported(attempt, end=end) == settled(attempt, end=end)


def reported(attempt: Granted, *, end: bool) -> Settlement | None:
    """The verdict of a settle run, as the operator reads it."""
    found = settled(attempt, end=end)
    slots = {name: slot.dump() if slot else None for name, slot in found.slots.items()}
    body = {"verdict": found.verdict, "note": found.note, "slots": slots, "run": 1, "end": end}
    report = Report(attempt=attempt.record.attempt, reporter="settle-1", kind="verdict", body=body)
    return settle_run_reported(attempt.record, ["orders"], [report], end=end)


def test_a_block_without_statements_took_no_effect(tmp_path: Path, engine: Engine) -> None:
    """A driver that dies before its first statement leaves an opening, which is no effect."""
    attempt = begun(tmp_path)
    dying(attempt, engine)
    assert settled(attempt).verdict is Verdict.NONE


def test_a_statement_that_is_barred_while_it_runs_takes_no_effect(tmp_path: Path, table: Path, engine: Engine) -> None:
    """The attempt is settled between the statement's reading and its commit: the engine refuses it, and nothing of it is visible."""
    attempt = begun(tmp_path)
    with pytest.raises(RuntimeError, match="ConcurrentTransactionException"), block_of(attempt) as block:  # noqa: PT012 - a block of statements
        issue(block, engine, 1)
        issue(block, engine, 2, during=lambda: settled(attempt))
    assert numbers(table) == [0, 1]


def test_a_statement_that_was_barred_before_is_refused(tmp_path: Path, table: Path, engine: Engine) -> None:
    """A frozen driver wakes after it was settled: its next statement is not run, and says who took over."""
    attempt = begun(tmp_path)
    with pytest.raises(Fenced, match=r"ended by owner.* 1 statement\(s\) of the"), block_of(attempt) as block:  # noqa: PT012 - a block
        issue(block, engine, 1)
        settled(attempt)
        issue(block, engine, 2)
    assert (numbers(table), engine.ran) == ([0, 1], [1])


def test_a_skipped_statement_is_never_taken_for_done(tmp_path: Path, table: Path, engine: Engine) -> None:
    """The attempt is barred after its driver looked and before the engine read the table: Delta skips the statement without a word, and the
    driver says that it was barred."""
    attempt = begun(tmp_path)
    statement = engine.statement(2)

    def barred_first() -> None:
        settled(attempt)
        engine.insert(2)

    late = Statement(**{**vars(statement), "run": barred_first})
    with pytest.raises(Fenced), block_of(attempt) as block:  # noqa: PT012 - a block of statements
        issue(block, engine, 1)
        block.statement(late)
    assert numbers(table) == [0, 1]


def test_a_statement_that_writes_no_entry_is_done(tmp_path: Path, table: Path, engine: Engine) -> None:
    """An UPDATE that matches nothing makes no entry: its place is committed by the driver, so that the next attempt skips it."""
    attempt = begun(tmp_path)
    with pytest.raises(Died), block_of(attempt) as block:  # noqa: PT012 - a block of statements
        issue(block, engine, 1, empty=True)
        raise Died
    settled(attempt)
    next_attempt(attempt)
    with block_of(attempt) as block:
        issue(block, engine, 1, 2)
    assert (numbers(table), engine.ran) == ([0, 2], [1, 2])


def test_a_statement_may_be_repeated_after_an_error(tmp_path: Path, table: Path, engine: Engine) -> None:
    """Its reply was lost: the table has it, so the loop in the job's code runs it no second time."""

    class Lost(Exception):
        pass

    def lost() -> None:
        engine.insert(1)
        raise Lost

    attempt = begun(tmp_path)
    with block_of(attempt) as block:
        statement = engine.statement(1)
        with pytest.raises(Lost):
            block.statement(Statement(**{**vars(statement), "run": lost}))
        with pytest.raises(InvalidInput, match="repeat the same one"):
            block.statement(engine.statement(2))
        block.statement(statement)
        block.statement(engine.statement(2))
    assert (numbers(table), engine.ran) == ([0, 1, 2], [1, 2])


def test_a_failed_statement_that_was_swallowed_ends_no_block(tmp_path: Path, engine: Engine) -> None:
    """The code caught the error and went on: the block is not complete."""

    def failing() -> None:
        raise Died

    attempt = begun(tmp_path)
    with (
        pytest.raises(InvalidInput, match="failed, and the block went on without it"),
        block_of(attempt) as block,
        pytest.raises(Died),
    ):
        block.statement(Statement(**{**vars(engine.statement(1)), "run": failing}))


def test_other_statements_than_before_are_refused(tmp_path: Path, table: Path, engine: Engine) -> None:
    """Another text in the place of a committed statement, and fewer statements than are committed."""
    attempt = begun(tmp_path)
    dying(attempt, engine, 1, 2)
    settled(attempt)
    next_attempt(attempt)
    with pytest.raises(StatementsDiffer, match="statement 2 is INSERT now"), block_of(attempt) as block:
        issue(block, engine, 1, 7)
    with (
        pytest.raises(StatementsDiffer, match=r"ended after 1 statement\(s\), and 2 are in the table"),
        block_of(attempt) as block,
    ):
        issue(block, engine, 1)
    assert numbers(table) == [0, 1, 2]


def test_an_ended_block_runs_nothing(tmp_path: Path, table: Path, engine: Engine) -> None:
    """A driver dies after the end: the same attempt's twin skips all, and one statement more is refused."""
    attempt = begun(tmp_path)
    with block_of(attempt) as block:
        issue(block, engine, 1)
    with block_of(attempt) as twin:
        issue(twin, engine, 1)
    assert twin.written is not None
    assert not twin.written.fresh
    with pytest.raises(StatementsDiffer, match="one more"), block_of(attempt) as block:
        issue(block, engine, 1, 2)
    assert numbers(table) == [0, 1]


def test_two_drivers_of_one_attempt_run_each_statement_once(tmp_path: Path, table: Path, engine: Engine) -> None:
    """Twins: the second one runs a statement and the end while the first is inside the same statement."""
    attempt = begun(tmp_path)

    def twin() -> None:
        other = Engine(table)
        with Native(attempt.job(), "orders") as block:
            block.statement(other.statement(1))

    with pytest.raises(RuntimeError, match="ConcurrentTransactionException"), block_of(attempt) as block:
        issue(block, engine, 1, during=twin)
    with block_of(attempt) as block:
        issue(block, engine, 1)
    assert numbers(table) == [0, 1]


def test_what_a_block_refuses(tmp_path: Path, table: Path, engine: Engine) -> None:
    """A second statement of an atomic block, another table, another thread, a block in a block, a transaction: nothing of it is run."""
    attempt, job = begun(tmp_path), None
    other = tmp_path / "other"
    write_deltalake(str(other), rows_of(9))
    job = attempt.job()
    with Native(job, "orders", atomic=True) as block:
        with pytest.raises(InvalidInput, match="another table"):
            block.statement(engine.statement(1, table=other))
        raised: list[BaseException] = []

        def threaded() -> None:
            try:
                block.statement(engine.statement(1))
            except InvalidInput as error:
                raised.append(error)

        thread = threading.Thread(target=threaded)
        thread.start()
        thread.join()
        assert "another thread" in str(raised[0])
        with pytest.raises(InvalidInput, match="is open already"), Native(job, "orders"):
            pass
        with pytest.raises(InvalidInput, match="close it first"), job.transaction():
            pass
        issue(block, engine, 1)
        with pytest.raises(InvalidInput, match="is atomic"):
            issue(block, engine, 2)
    assert (numbers(table), numbers(other), engine.ran) == ([0, 1], [9], [1])


def test_outputs_that_take_no_statements(tmp_path: Path, table: Path) -> None:
    """A slot log, a declared mode, a missing table, a table on S3: refused by field before anything is opened."""
    outputs = [
        {"name": "log", "slotLog": {"path": "log"}},
        {"name": "orders", "delta": {"path": "orders"}, "mode": "Overwrite"},
        {"name": "none", "delta": {"path": "none"}},
        {"name": "far", "delta": {"path": "s3://lake/orders"}},
    ]
    job = granted(tmp_path, outputs=outputs).job()
    with pytest.raises(OutputUnsupported, match=r"spec.outputs\[log\].slotLog"):
        job.native("log")
    with pytest.raises(InvalidInput, match=r"spec.outputs\[orders\].mode is Overwrite"):
        job.native("orders")
    with pytest.raises(
        OutputUnsupported, match=r"spec.outputs\[far\].delta.path: Spark's Delta engine may overwrite .* on S3"
    ):
        job.native("far")
    with pytest.raises(InvalidInput, match="create it first"), job.native("none"):
        pass
    assert DeltaTable(str(table)).version() == 0


def test_the_evidence_of_a_block(tmp_path: Path, table: Path, engine: Engine) -> None:
    """Present after the block and after compaction, changed when others delete, gone with the table; a file that vanished is gone."""
    attempt = begun(tmp_path)
    with block_of(attempt) as block:
        issue(block, engine, 1, 2)
    sink, key = attempt.sinks()["orders"], attempt.key("orders")
    assert run(sink.probe(key, None)).verdict is Evidence.PRESENT
    DeltaTable(str(table)).optimize.compact()
    assert run(sink.probe(key, None)).verdict is Evidence.PRESENT
    DeltaTable(str(table)).delete("n = 2")
    found = run(sink.probe(key, None))
    assert (found.verdict, found.changes[0].operation) == (Evidence.CHANGED, "DELETE")
    for file in table.glob("*.parquet"):
        file.unlink()
    for file in (table / "_delta_log").iterdir():
        file.unlink()
    write_deltalake(str(table), rows_of(0))
    assert run(sink.probe(key, None)).verdict is Evidence.GONE


def test_a_table_that_was_recreated_takes_no_further_statement(tmp_path: Path, table: Path, engine: Engine) -> None:
    """Its identifiers are gone with it, and so are the statements before."""
    attempt = begun(tmp_path)
    with pytest.raises((OutputChanged, InvalidInput)), block_of(attempt) as block:  # noqa: PT012 - a block of statements
        issue(block, engine, 1)
        for file in (table / "_delta_log").iterdir():
            file.unlink()
        write_deltalake(str(table), rows_of(0))
        issue(block, engine, 2)
    assert numbers(table) == [0]


def test_an_audit_finds_nothing_wrong_with_a_block(tmp_path: Path, table: Path, engine: Engine) -> None:
    """Two attempts' statements and an end: no defect, and no file of the table belongs to two commits."""
    attempt = begun(tmp_path)
    dying(attempt, engine, 1)
    next_attempt(attempt)
    with block_of(attempt) as block:
        issue(block, engine, 1, 2)
    inventory = run(attempt.sinks()["orders"].inventory())
    assert len(inventory.effects) == 4
    assert inventory.unreadable == ()
    assert [finding for finding in of_table(inventory, now=0.0) if SEVERITY[finding.kind] is Severity.DEFECT] == []


def test_a_rerun_replaces_no_statement(tmp_path: Path, table: Path, engine: Engine) -> None:
    """A second generation, by statements or by a plain write, cannot take back what the first one's statements did, and says so; with
    `onRerun: Append` its statements run again."""
    attempt = begun(tmp_path)
    with block_of(attempt) as block:
        issue(block, engine, 1)
    attempt.record = attempt.record.changed(generation=2, attempt=1, nonce="nonce-of-2")
    with pytest.raises(InvalidInput, match=r"cannot be taken back.*onRerun: Append"), block_of(attempt):
        pass
    with pytest.raises(InvalidInput, match=r"cannot be taken back.*onRerun: Append"):
        attempt.job().write(table_of(5), "orders")
    sinks: dict[str, Any] = dict(attempt.sinks())
    sinks["orders"].on_rerun = OnRerun.APPEND
    with Native(attempt.job(channel=LIVES, sinks=sinks), "orders") as block:
        issue(block, engine, 1)
    assert numbers(table) == [0, 1, 1]


def test_a_replayed_block_runs_nothing(engine: Engine) -> None:
    """In a notebook whose key has a result, statements inside a block are not run."""
    written = Written("orders", "file:///orders", 1, 1, fresh=False)
    block = ReplayedNative(written)
    assert block.statement(engine.statement(1)) == ([], "num_affected_rows long")
    assert (engine.ran, block.written) == ([], written)
    with pytest.raises(InvalidInput, match="not VACUUM"):
        block.refuse("VACUUM")


def test_a_rerun_that_overwrites_partitions_replaces_no_statement(tmp_path: Path, engine: Engine) -> None:
    """It would remove files that the first generation's statements wrote in other partitions, with rows of others in them."""

    def on(day: str, number: int) -> pa.Table:
        return rows_of(number).append_column("day", pa.array([day]))

    where = tmp_path / "orders"
    shutil.rmtree(where)
    write_deltalake(str(where), on("a", 0), partition_by=["day"])
    engine.rows = lambda number: on("a", number)
    attempt = begun(tmp_path)
    with block_of(attempt) as block:
        issue(block, engine, 1)
    attempt.record = attempt.record.changed(generation=2, attempt=1, nonce="nonce-of-2")
    with pytest.raises(OutputChanged, match="cannot be taken back"):
        attempt.job(channel=LIVES).write(on("b", 2), "orders", mode="overwritePartitions")  # type: ignore[arg-type]
    assert numbers(where) == [0, 1]
