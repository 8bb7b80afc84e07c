"""Native blocks on an Iceberg table: a branch that Spark's engine writes, and the one commit that publishes it.

pyiceberg plays the engine here; the real one is in tests/driver/jvm and tests/crash/long.
"""

from __future__ import annotations

import pytest

from harness import iceberg_tables
from harness.iceberg_block import Block, foreign_table, left
from harness.iceberg_tables import digest_of, opened, rows
from sparkonce.audit.findings import Severity
from sparkonce.audit.tables import of_table
from sparkonce.blocking import run
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.protocol import (
    Committed,
    Evidence,
    FencedOff,
    SinkKey,
    Slot,
)


@pytest.fixture
def table(iceberg_sink: IcebergTableSink) -> IcebergTableSink:
    """On a table of another user with the rows 0 and 1."""
    foreign_table()
    return iceberg_sink


def test_a_block_is_visible_at_its_end_and_not_before(table: IcebergTableSink, key: SinkKey) -> None:
    """Statements move a branch; one commit makes it the table's state and drops it. Any process finds the result, a probe knows its files,
    and an audit has nothing against it."""
    block = Block(table, key)
    block.append(2)
    block.replace(0, 10)
    assert rows() == [0, 1]
    slot = block.slot()
    assert run(table.commit(key, slot)) == Committed(slot)
    assert run(opened().commit(key, Slot.model_validate(slot.dump()))) == Committed(slot)

    assert (rows(), left()) == ([1, 2, 10], [])
    assert run(opened().find(key)) == slot
    assert run(opened().probe(key, digest_of(slot))) is Evidence.PRESENT
    assert iceberg_tables.table().properties["write.wap.enabled"] == "true"
    found = of_table(run(opened().inventory()), now=0)
    assert [each for each in found if each.severity is not Severity.NOTE] == []


def test_a_barred_block_publishes_nothing(table: IcebergTableSink, key: SinkKey) -> None:
    """A zombie's commit is refused, before and after its successor's; its branch is dropped when the successor begins, and one that its
    late statement makes anew, by a sweep. It opens no further one."""
    zombie = Block(table, key)
    zombie.append(2)
    late = zombie.slot()
    assert run(table.fence(key, 2, fingerprint="f", by="settle")) is None
    assert isinstance(run(table.commit(key, late)), FencedOff)
    assert isinstance(run(table.open_branch(key, 1, nonce="ab")), FencedOff)
    successor = Block(table, key, 2)
    assert left() == [successor.opened.mark.name]
    zombie.append(3)  # the engine makes a branch that is not there
    assert zombie.opened.mark.name in left()
    successor.append(4)
    assert isinstance(successor.commit(), Committed)
    assert isinstance(run(table.commit(key, late)), FencedOff)
    found = run(table.inventory())
    assert found.commits == {}, "a snapshot that never came into main's history counts as a second commit of the key"
    staged = [each for each in found.staged if each.path.startswith("branch ")]
    assert [(each.unreachable, each.token, each.files) for each in staged] == [(True, 1, 1)]
    assert run(table.sweep(key)).folders >= 1
    assert (rows(), left()) == ([0, 1, 4], [])
