"""Blocks on a branch of an Iceberg table, beside other writers, reruns, lost replies and other processes.

pyiceberg plays the engine here; the real one is in tests/driver/jvm and tests/crash/long.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import iceberg_tables
from harness.iceberg_block import Block, foreign_table, left, table_of
from harness.iceberg_tables import NUMBERS, catalog, compact, generation, opened, rows, written
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputUnavailable, OutputUnsupported
from sparkonce.model.spec import OnRerun
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    Committed,
    Evidence,
    Overtaken,
    Probed,
    SinkKey,
    Stuck,
)


def other(number: int) -> SinkKey:
    return SinkKey(key_hash=f"c{number}", output="orders", generation=1)


@pytest.fixture
def table(iceberg_sink: IcebergTableSink) -> IcebergTableSink:
    """On a table of another user with the rows 0 and 1."""
    foreign_table()
    return iceberg_sink


def test_a_block_without_effect_is_a_result(table: IcebergTableSink, key: SinkKey) -> None:
    """No statement, or none that changed rows: the key is committed, and `main` stays where it is, whoever moved it meanwhile."""
    head = iceberg_tables.table().current_snapshot()
    first = Block(table, key)
    assert isinstance(first.commit(), Committed)
    assert iceberg_tables.table().current_snapshot() == head
    second = Block(table, other(1))
    iceberg_tables.table().append(table_of(7))
    assert isinstance(second.commit(), Committed)
    assert (rows(), left()) == ([0, 1, 7], [])
    assert run(table.probe(other(1), None)) is Evidence.PRESENT


def test_appends_are_put_on_top_of_what_others_committed(table: IcebergTableSink, key: SinkKey) -> None:
    """`main` moved under a block that only appended: both are there, once, and compaction and another overwrite are followed as ever."""
    block = Block(table, key)
    block.append(2)
    block.append(3)
    iceberg_tables.table().overwrite(table_of(9), "n == 0")
    assert isinstance(block.commit(), Committed)
    assert (rows(), left()) == ([1, 2, 3, 9], [])
    compact()
    assert run(table.probe(key, None)) is Evidence.PRESENT
    iceberg_tables.table().delete("n == 2")
    found = run(table.probe(key, None))
    assert isinstance(found, Probed)
    assert found.verdict is Evidence.CHANGED


def test_a_block_that_read_rows_is_overtaken(table: IcebergTableSink, key: SinkKey) -> None:
    """`main` moved under an UPDATE: nothing of the block becomes visible, and the next run of it is right."""
    block = Block(table, key)
    block.replace(0, 10)
    iceberg_tables.table().append(table_of(7))
    slot = block.slot()
    found = run(table.commit(key, slot))
    assert isinstance(found, Overtaken)
    assert "another writer changed lake.sales.orders while the block ran" in found.why
    assert rows() == [0, 1, 7]
    run(table.discard(key, slot))
    assert left() == []
    again = Block(table, key)
    again.replace(0, 10)
    assert isinstance(again.commit(), Committed)
    assert rows() == [1, 7, 10]


def test_two_blocks_of_one_attempt_commit_once(table: IcebergTableSink, key: SinkKey) -> None:
    """Twins have a branch each: the first commit is the result, the second one finds it."""
    first, second = Block(table, key), Block(table, key)
    first.append(2)
    second.append(2)
    slot = first.slot()
    assert run(table.commit(key, slot)) == Committed(slot)
    loser = second.slot()
    assert run(table.commit(key, loser)) == AlreadyCommitted(slot)
    run(table.discard(key, loser))
    assert (rows(), left()) == ([0, 1, 2], [])


def test_an_open_branch_is_not_swept(table: IcebergTableSink, key: SinkKey) -> None:
    """Of a key that is neither committed nor barred."""
    block = Block(table, key)
    block.append(2)
    run(table.sweep(key))
    assert isinstance(block.commit(), Committed)
    assert rows() == [0, 1, 2]


@pytest.mark.parametrize("how", ["dropped", "moved"])
def test_a_branch_that_others_touched_is_not_published(table: IcebergTableSink, key: SinkKey, how: str) -> None:
    """Dropped, or moved after the block had ended: its commit is Stuck, never an empty success."""
    block = Block(table, key)
    block.append(2)
    slot = block.slot()
    if how == "dropped":
        run(table.drop_branch(block.opened.mark))
    else:
        block.append(3)
    assert isinstance(run(table.commit(key, slot)), Stuck)
    if how == "dropped":
        assert isinstance(block.commit(), Stuck)
    assert rows() == [0, 1]


def test_a_rerun_of_a_block_is_refused_or_runs_on_top(table: IcebergTableSink, key: SinkKey) -> None:
    """What statements did cannot be taken back: neither a block nor a write of a later generation replaces it. The remedy works."""
    block = Block(table, key)
    block.replace(0, 10)
    assert isinstance(block.commit(), Committed)
    second = generation(key, 2)
    with pytest.raises(InvalidInput, match=r"statements of a native block wrote .* declare onRerun: Append"):
        Block(table, second)
    with pytest.raises(InvalidInput, match="statements of a native block wrote the generation before"):
        iceberg_tables.staged(table, second, 1, 5)
    onto = opened(on_rerun=OnRerun.APPEND)
    again = Block(onto, second)
    again.replace(10, 11)
    assert isinstance(again.commit(), Committed)
    assert rows() == [1, 11]
    written(onto, generation(key, 3), 1, 5)
    assert rows() == [1, 5, 11]
    written(table, other(1), 1, 6)
    with pytest.raises(InvalidInput, match="an earlier generation wrote it, and statements replace no files of it"):
        Block(table, generation(other(1), 2))


def test_tables_without_a_block_are_refused(iceberg_sink: IcebergTableSink, key: SinkKey, tmp_path: Path) -> None:
    """No table, which a block does not make; files outside of the table's location, which no slot can name. The remedy works."""
    with pytest.raises(InvalidInput, match=r"there is no table lake\.sales\.orders yet"):
        Block(iceberg_sink, key)
    assert not catalog().table_exists(iceberg_tables.TABLE)
    catalog().create_namespace_if_not_exists("sales")
    catalog().create_table(
        iceberg_tables.TABLE, NUMBERS, properties={"write.data.path": f"file://{tmp_path}/elsewhere"}
    )
    with pytest.raises(OutputUnsupported, match=r"has the property write\.data\.path.*unset the property"):
        Block(iceberg_sink, key)
    with iceberg_tables.table().transaction() as change:
        change.remove_properties("write.data.path")
    block = Block(iceberg_sink, key)
    block.append(1)
    assert isinstance(block.commit(), Committed)
    assert rows() == [1]


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("request_", ["open", "publish"])
def test_lost_replies_are_resolved(
    table: IcebergTableSink, key: SinkKey, monkeypatch: pytest.MonkeyPatch, request_: str, lands: bool
) -> None:
    """Of the request that makes the branch, and of the one that publishes it: one branch, one effect."""
    place: Any = table._place
    sent: Callable[..., Any] = place.catalog.commit_table
    lost: list[int] = []

    def losing(*arguments: Any) -> Any:
        if not lost:
            lost.append(1)
            if lands:
                sent(*arguments)
            raise OutputUnavailable("no answer")
        return sent(*arguments)

    if request_ == "open":
        monkeypatch.setattr(place.catalog, "commit_table", losing)
    block = Block(table, key)
    assert left() == [block.opened.mark.name]
    block.append(2)
    if request_ == "publish":
        monkeypatch.setattr(place.catalog, "commit_table", losing)
    assert isinstance(block.commit(), Committed)
    assert (lost, rows(), left()) == ([1], [0, 1, 2], [])
    history = [each.summary for each in iceberg_tables.table().metadata.snapshots]
    assert sum(each is not None and "sparkonce.snapshot" in each.additional_properties for each in history) == 1
