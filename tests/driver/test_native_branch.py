"""Native blocks on an Iceberg table without a JVM: pyiceberg plays Spark's engine, which writes to the branch in the session's settings.
The real one is in tests/crash/long and tests/driver/jvm; the branch itself is in tests/sink.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from driver.streamed import next_attempt, settled
from harness import iceberg_tables
from harness.granted import Granted, granted
from harness.iceberg_engine import WAP, Engine, look
from harness.iceberg_tables import NUMBERS, catalog, rows, sql_catalog
from sparkonce.driver.branch import MERGE_SCHEMA, BranchBlock
from sparkonce.errors import Fenced, InvalidInput, OutputChanged, TableMoved
from sparkonce.model.record import Verdict
from sparkonce.model.spec import Expect


class Died(Exception):
    """Ends a driver inside its block."""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    for name, value in sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    catalog().create_namespace("sales")
    catalog().create_table(iceberg_tables.TABLE, NUMBERS).append(pa.table({"n": pa.array([0], pa.int64())}))
    return Engine()


def begun(folder: Path, **output: Any) -> Granted:
    table = {"catalog": "lake", "table": iceberg_tables.TABLE}
    return granted(folder, outputs=[{"name": "orders", "iceberg": table, **output}])


def block_of(attempt: Granted, engine: Engine) -> BranchBlock:
    session: Any = engine
    return BranchBlock(attempt.job(), "orders", session=session, look=look)


def test_a_killed_block_is_gone_and_a_complete_one_is_not_run_again(tmp_path: Path, engine: Engine) -> None:
    """A driver dies in its block: settling finds no effect, and nothing is visible. The next attempt runs all statements; its twin none.
    The settings are as they were."""
    attempt = begun(tmp_path)
    with pytest.raises(Died), block_of(attempt, engine) as block:  # noqa: PT012 - a block of statements
        block.statement(engine.statement(1))
        raise Died
    assert settled(attempt).verdict is Verdict.NONE
    assert rows() == [0]
    next_attempt(attempt)
    with block_of(attempt, engine) as block:
        block.statement(engine.statement(1))
        block.statement(engine.statement(2))
        assert rows() == [0]
    with block_of(attempt, engine) as twin:
        twin.statement(engine.statement(1))
    assert (rows(), engine.ran) == ([0, 1, 2], [1, 1, 2])
    assert engine.values == {"spark.user": "kept"}
    assert [each.written is not None and (each.written.rows, each.written.fresh) for each in (block, twin)] == [
        (2, True),
        (2, False),
    ]
    assert settled(attempt).verdict is Verdict.ALL
    with pytest.raises(
        InvalidInput, match=r"holds a native block in this generation.* job\.native\(\) or job\.sql\(\)"
    ):
        attempt.job().write(engine, "orders")  # type: ignore[arg-type]  # it is not run


def test_a_barred_block_is_fenced_and_an_overtaken_one_runs_again(tmp_path: Path, engine: Engine) -> None:
    """Settled while it ran: `Fenced` at its end. Another writer while it ran: `TableMoved`, and the next run of the block is right."""
    attempt = begun(tmp_path)
    with pytest.raises(Fenced), block_of(attempt, engine) as block:  # noqa: PT012 - a block of statements
        block.statement(engine.statement(1))
        settled(attempt)
    with pytest.raises(Fenced):
        block_of(attempt, engine).__enter__()
    next_attempt(attempt)
    with pytest.raises(TableMoved, match="another writer changed"), block_of(attempt, engine) as block:  # noqa: PT012 - a block
        block.statement(engine.statement(2, run=engine.rewrite))
        iceberg_tables.table().append(pa.table({"n": pa.array([7], pa.int64())}))
    assert rows() == [0, 7]
    assert list(iceberg_tables.table().metadata.refs) == ["main", f"idem-fence.{attempt.key('orders')}"]
    with block_of(attempt, engine) as block:
        block.statement(engine.statement(2, run=engine.rewrite))
    assert rows() == [7, 10]


@pytest.mark.parametrize("kind", ["INSERT", "MERGE"])
def test_a_merge_that_only_inserts_is_no_append(tmp_path: Path, engine: Engine, kind: str) -> None:
    """Its snapshot is that of an append. An INSERT's rows are put on top of what another writer committed meanwhile; a MERGE has read the
    table, so it is not published."""
    attempt = begun(tmp_path)
    moved = pytest.raises(TableMoved, match="another writer changed") if kind == "MERGE" else contextlib.nullcontext()
    with moved, block_of(attempt, engine) as block:
        block.statement(engine.statement(1, kind=kind))
        iceberg_tables.table().append(pa.table({"n": pa.array([7], pa.int64())}))
    assert rows() == ([0, 7] if kind == "MERGE" else [0, 1, 7])


def test_a_statement_that_raised_ends_its_block(tmp_path: Path, engine: Engine) -> None:
    """Whether its commit landed is not known: no other one follows it, and a block that swallowed its error publishes nothing."""

    def failing() -> None:
        engine.insert(1)
        raise Died

    attempt = begun(tmp_path)
    with pytest.raises(InvalidInput, match="the block went on without it"), block_of(attempt, engine) as block:  # noqa: PT012 - a block
        with pytest.raises(Died):
            block.statement(engine.statement(1, run=failing))
        with pytest.raises(InvalidInput, match="no other one follows it"):
            block.statement(engine.statement(1))
    assert (rows(), engine.ran) == ([0], [1])


def test_a_statement_that_spark_refused_before_it_ran_is_no_failed_one(tmp_path: Path, engine: Engine) -> None:
    """An AnalysisException leaves the branch where it was, and another statement may follow. One after a commit to the branch ends the
    block."""

    def refused(*written: int) -> None:
        for number in written:
            engine.insert(number)
        raise AnalysisException("no such column")

    attempt = begun(tmp_path)
    with block_of(attempt, engine) as block:
        with pytest.raises(AnalysisException):
            block.statement(engine.statement(1, run=refused))
        block.statement(engine.statement(2))
    assert (rows(), block.done) == ([0, 2], 1)
    session: Any = engine
    other = BranchBlock(begun(tmp_path, name="other").job(), "other", session=session, look=look)
    with pytest.raises(InvalidInput, match="the block went on"), other:  # noqa: PT012 - a block of statements
        with pytest.raises(AnalysisException):
            other.statement(engine.statement(3, run=lambda: refused(3)))
        with pytest.raises(InvalidInput, match="no other one follows it"):
            other.statement(engine.statement(4))
    assert rows() == [0, 2]


def test_what_is_not_for_the_branch_is_refused(tmp_path: Path, engine: Engine) -> None:
    """Other tables, other branches, calls that make the table anew or change its columns, a table that lost the property or the branch."""
    attempt = begun(tmp_path)
    with block_of(attempt, engine) as block:
        refused: list[tuple[dict[str, Any], str]] = [
            ({"table": "sales.other"}, "is no Iceberg table"),
            ({"table": f"{iceberg_tables.TABLE}.branch_main"}, "names a branch"),
            ({"call": "saveAsTable", "kind": "overwrite"}, "make the table anew"),
            ({"call": "save", "kind": "ignore"}, "make the table anew"),
            ({"kind": "MERGE", "evolves": "WITH SCHEMA EVOLUTION"}, "changes the table's columns"),
        ]
        for given, said in refused:
            with pytest.raises(InvalidInput, match=said):
                block.statement(engine.statement(1, **given))
        engine.set(MERGE_SCHEMA, "True")
        with pytest.raises(InvalidInput, match=r"spark\.sql\.iceberg\.merge-schema, which changes"):
            block.statement(engine.statement(1))
        engine.unset(MERGE_SCHEMA)
        with iceberg_tables.table().transaction() as change:
            change.set_properties({"write.wap.enabled": "false"})
        with pytest.raises(OutputChanged, match=r"run it again, which sets the property"):
            block.statement(engine.statement(1))
    assert (rows(), engine.ran) == ([0], [])
    engine.values[WAP] = "mine"
    with pytest.raises(InvalidInput, match=r"the session sets spark\.wap\.branch"):
        block_of(attempt, engine).__enter__()


def test_what_a_block_does_not_keep_is_refused(tmp_path: Path, engine: Engine) -> None:
    """A mode, an expectation; one sentence each, before anything is made."""
    session: Any = engine
    with pytest.raises(InvalidInput, match="mode is Overwrite"):
        block_of(begun(tmp_path / "mode", mode="Overwrite"), engine)
    job = begun(tmp_path / "expect").job()
    job._expected["orders"] = Expect(min_rows=1)
    with pytest.raises(InvalidInput, match="expect is checked before"):
        BranchBlock(job, "orders", session=session)
    assert list(iceberg_tables.table().metadata.refs) == ["main"]
