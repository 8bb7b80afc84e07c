"""The verbs of an Iceberg output, one process at a time, on a SQL catalog and on Apache Iceberg's own REST catalog server.

What several processes do to each other is in test_iceberg_races.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import iceberg_tables
from harness.iceberg_tables import (
    digest_of,
    folders,
    generation,
    opened,
    rows,
    sql_catalog,
    staged,
    tags,
    written,
)
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.sink.iceberg.evidence import evidence_of
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.protocol import (
    AlreadyCommitted,
    Committed,
    Conflicting,
    Evidence,
    FencedOff,
    SinkKey,
    Slot,
    SlotState,
)

# --- the facts of the slot log, on a table ----------------------------------------------------------------------------


def test_commit_then_find(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """Any later call finds the committed slot, complete; its rows are in the table, and before the commit nothing was."""
    assert run(iceberg_sink.find(key)) is None
    slot = staged(iceberg_sink, key, 1, 1, 2, 3)
    assert iceberg_tables.table().scan().to_arrow().num_rows == 0
    assert run(iceberg_sink.commit(key, slot)) == Committed(slot)
    assert run(opened().find(key)) == slot
    assert rows() == [1, 2, 3]


def test_commit_twice_is_one_commit(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """A commit that is sent again (after a lost reply, or rolled forward from a sealed slot's JSON) recognises itself by its nonce."""
    slot = written(iceberg_sink, key, 1, 1)
    assert run(iceberg_sink.commit(key, slot)) == Committed(slot)
    assert run(opened().commit(key, Slot.model_validate(slot.dump()))) == Committed(slot)
    assert rows() == [1]


def test_a_commit_bars_every_lower_token(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """Rule R: after a commit of token 4, lower tokens are refused as closed."""
    low = [staged(iceberg_sink, key, token, 9) for token in (1, 3)]
    written(iceberg_sink, key, 4, 1)
    for slot in low:
        assert isinstance(run(iceberg_sink.commit(key, slot)), FencedOff)
    assert rows() == [1]


def test_commit_above_a_committed_slot_is_already_committed(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """A lower token's commit decides the key for a higher attempt, and for a second driver with the same token."""
    later, twin = staged(iceberg_sink, key, 3, 9), staged(iceberg_sink, key, 1, 8)
    first = written(iceberg_sink, key, 1, 1)
    assert run(iceberg_sink.commit(key, later)) == AlreadyCommitted(first)
    assert run(iceberg_sink.commit(key, twin)) == AlreadyCommitted(first)
    assert rows() == [1]


@pytest.mark.parametrize("token", [1, 2])
def test_commit_of_another_job_is_a_conflict(sql_sink: IcebergTableSink, key: SinkKey, token: int) -> None:
    """A commit under another fingerprint is a KeyConflict, never this job's result."""
    foreign = written(sql_sink, key, 1, 1)
    assert run(sql_sink.commit(key, staged(sql_sink, key, token, 2, fingerprint="other"))) == Conflicting(foreign)


def test_commit_under_another_key_is_refused(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A slot names its key, so it cannot be committed under another one by mistake."""
    slot = staged(sql_sink, key, 1, 1)
    with pytest.raises(ValueError, match="is not a commit of a1b2-orders-g2"):
        run(sql_sink.commit(generation(key, 2), slot))


def test_fence_bars_what_is_below(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """A fence that answers None bars every lower token at the table; a later, lower fence lowers nothing; readers see no change."""
    zombie, next_one = staged(iceberg_sink, key, 2, 9), staged(iceberg_sink, key, 3, 1)
    head = iceberg_tables.table().current_snapshot()
    assert run(iceberg_sink.fence(key, 3, fingerprint="f", by="settle of attempt 2")) is None
    assert run(iceberg_sink.fence(key, 2, fingerprint="f", by="somebody late")) is None
    assert iceberg_tables.table().current_snapshot() == head
    decision = run(iceberg_sink.commit(key, zombie))
    assert isinstance(decision, FencedOff)
    assert decision.slot.closed_by == "settle of attempt 2"
    assert run(iceberg_sink.commit(key, next_one)) == Committed(next_one)
    assert rows() == [1]


def test_fence_returns_the_commit_of_any_token(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """Every later fence returns the commit, also a fence below the commit's token (attempts count from 1 again after the ledger was
    wiped)."""
    slot = written(iceberg_sink, key, 5, 1)
    for token in (1, 2, 6, 9):
        assert run(iceberg_sink.fence(key, token, fingerprint="f", by="settle")) == slot


def test_the_fence_of_token_1_bars_nobody_and_writes_nothing(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """No token is below 1: the first attempt's fence creates no table."""
    assert run(iceberg_sink.fence(key, 1, fingerprint="f", by="attempt 1")) is None
    assert not iceberg_tables.catalog().table_exists(iceberg_tables.TABLE)


def test_a_fence_on_a_table_that_does_not_exist_bars(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """The fence creates the table, without columns, so that there is something that bars: a zombie's commit is refused. The first commit
    adds the columns."""
    assert run(iceberg_sink.fence(key, 2, fingerprint="f", by="settle")) is None
    assert iceberg_tables.table().schema().fields == ()
    assert isinstance(run(iceberg_sink.commit(key, staged(iceberg_sink, key, 1, 9))), FencedOff)
    written(iceberg_sink, key, 2, 1)
    assert rows() == [1]


def test_abort_bars_the_token_and_deletes_the_files(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """An aborted write can never be committed, and its files are deleted; the next attempt may commit."""
    slot = staged(iceberg_sink, key, 1, 1)
    assert len(folders()) == 1
    assert run(iceberg_sink.abort(key, slot)).state is SlotState.CLOSED
    assert folders() == []
    assert isinstance(run(iceberg_sink.commit(key, slot)), FencedOff)
    written(iceberg_sink, key, 2, 2)


def test_abort_after_the_commit_landed_keeps_the_data(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """An abort may follow a commit whose reply was lost: the committed rows stay."""
    slot = written(iceberg_sink, key, 1, 1, 2)
    assert run(iceberg_sink.abort(key, slot)) == slot
    assert run(iceberg_sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert rows() == [1, 2]


def test_abort_bars_before_it_deletes(
    sql_sink: IcebergTableSink, key: SinkKey, failpoint: Callable[[str], None]
) -> None:
    """If the process dies inside an abort, its token is barred and nothing is deleted, never the reverse."""
    slot = staged(sql_sink, key, 1, 1)
    failpoint("driver.abort.closed=raise")
    with pytest.raises(RuntimeError, match=r"driver\.abort\.closed"):
        run(sql_sink.abort(key, slot))
    assert evidence_of(iceberg_tables.table().metadata, key).barred_below == 2
    assert len(folders()) == 1


def test_discard_deletes_the_files_and_decides_nothing(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A write that never sent a commit leaves no files and no mark, and its attempt may write again."""
    slot = staged(sql_sink, key, 1, 1)
    run(sql_sink.discard(key, slot))
    run(sql_sink.discard(key, slot))
    assert (folders(), tags()) == ([], set())
    written(sql_sink, key, 1, 1)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "warehouse", ["file://warehouse", "warehouse", "file:warehouse", "./warehouse", "file://localhost/warehouse"]
)
def test_a_warehouse_that_is_no_absolute_location_is_refused(
    tmp_path: Path, key: SinkKey, monkeypatch: pytest.MonkeyPatch, warehouse: str
) -> None:
    """Spark and pyiceberg would resolve it to different folders: the check and the first write refuse it in one sentence, and no table is
    created."""
    for name, value in (sql_catalog(tmp_path) | {"PYICEBERG_CATALOG__LAKE__WAREHOUSE": warehouse}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    sentence = (
        f"the warehouse of the Iceberg catalog lake is {re.escape(warehouse)}, where .* give an absolute location"
    )
    with pytest.raises(InvalidInput, match=sentence):
        run(opened().check())
    with pytest.raises(InvalidInput, match=sentence):
        staged(opened(), key, 1, 1)
    assert [each.name for each in tmp_path.iterdir()] == ["catalog.db"]
    assert iceberg_tables.catalog().list_namespaces() == []


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_every_form_of_an_absolute_warehouse_works(
    tmp_path: Path, key: SinkKey, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A path and two forms of its URL: the rows are read back."""
    warehouse = form.format(tmp_path / "warehouse")
    for name, value in (sql_catalog(tmp_path) | {"PYICEBERG_CATALOG__LAKE__WAREHOUSE": warehouse}).items():
        monkeypatch.setenv(name, value)
    written(opened(), key, 1, 1, 2)
    assert rows() == [1, 2]
    assert {each.name for each in tmp_path.iterdir()} == {"catalog.db", "warehouse"}
