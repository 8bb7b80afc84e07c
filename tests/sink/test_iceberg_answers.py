"""Replies of an Iceberg catalog that are lost, late, or sent after another writer's commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO

from harness import iceberg_tables
from harness.arrow_stage import table_of
from harness.iceberg_lossy import Lossy, lossy
from harness.iceberg_tables import (
    CATALOG,
    generation,
    opened,
    rows,
    sql_catalog,
    staged,
    written,
)
from sparkonce.blocking import run
from sparkonce.errors import OutputUnavailable
from sparkonce.sink.iceberg import commit as table_commit
from sparkonce.sink.iceberg.catalog import CatalogTable
from sparkonce.sink.iceberg.objects import objects_at
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.protocol import Committed, FencedOff, SinkKey, SlotState, Stuck
from sparkonce.sink.slotlog.sink import RESEND_AFTER

STEPS = (
    "sink.iceberg.commit.before", "sink.iceberg.commit.after", "sink.iceberg.fence.before", "sink.iceberg.fence.after",
)  # fmt: skip


# --- lost replies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("times", [1, len(RESEND_AFTER)])
def test_a_lost_answer_is_resolved(iceberg_sink: IcebergTableSink, key: SinkKey, times: int, lands: bool) -> None:
    """Whether or not the commit took effect, the table is read, the commit is resent if it is missing, and the rows are there once."""
    slot = staged(iceberg_sink, key, 1, 1, 2)
    catalog = lossy(iceberg_sink, times=times, lands=lands)
    assert run(iceberg_sink.commit(key, slot)) == Committed(slot)
    assert catalog.sent == (1 if lands else times + 1)
    assert rows() == [1, 2]


@pytest.mark.parametrize("lands", [True, False])
def test_a_lost_answer_of_a_fence_is_resolved(iceberg_sink: IcebergTableSink, key: SinkKey, lands: bool) -> None:
    """The fence is found in the table, or set again."""
    zombie = staged(iceberg_sink, key, 1, 9)
    lossy(iceberg_sink, times=1, lands=lands)
    assert run(iceberg_sink.fence(key, 2, fingerprint="f", by="settle")) is None
    assert isinstance(run(opened().commit(key, zombie)), FencedOff)


def test_no_answer_at_all_is_unknown(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """After a bounded number of attempts one sentence says that the commit may still have taken effect; an abort then decides."""
    slot = staged(sql_sink, key, 1, 1)
    catalog = lossy(sql_sink, times=99, lands=False)
    with pytest.raises(
        OutputUnavailable, match=r"no answer; whether slot 1 of a1b2-orders-g1 is committed to lake\S+ is unknown$"
    ):
        run(sql_sink.commit(key, slot))
    assert catalog.sent == len(RESEND_AFTER) + 1
    assert run(opened().abort(key, slot)).state is SlotState.CLOSED


def test_a_commit_that_arrives_after_its_successor_is_refused(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A request that was delayed in the network, and arrives after the key was fenced or committed, is refused by the catalog itself."""
    held: list[tuple[Any, ...]] = []

    class Hung(Lossy):
        def commit_table(self, *arguments: Any) -> Any:
            held.append(arguments)
            raise ConnectionError("no answer")

    slot = staged(sql_sink, key, 1, 1)
    sql_sink._place.__dict__["catalog"] = Hung(sql_sink._place.catalog, times=0, lands=False)
    with pytest.raises(OutputUnavailable):
        run(sql_sink.commit(key, slot))
    assert run(opened().fence(key, 2, fingerprint="f", by="settle")) is None
    for request in held:
        with pytest.raises(CommitFailedException):
            iceberg_tables.catalog().commit_table(*request)
    assert rows("n") == [] if iceberg_tables.table().schema().fields else True
    assert run(opened().find(key)) is None


@pytest.mark.parametrize("point", STEPS)
def test_a_step_that_fails_once_is_repeated(
    sql_sink: IcebergTableSink, key: SinkKey, point: str, failpoint: Callable[[str], None]
) -> None:
    """A failure before or after either change does not change the outcome of a commit."""
    failpoint(f"{point}=1*raise->off")
    assert run(sql_sink.fence(key, 2, fingerprint="f", by="settle")) is None
    written(sql_sink, key, 2, 1)
    assert rows() == [1]


def test_foreign_appends_come_in_between(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """Another writer's commit between our read and our commit costs one more read; neither loses a row."""
    written(iceberg_sink, key, 1, 1)
    slot = staged(iceberg_sink, generation(key, 2), 1, 2)
    left = [3]

    class Busy(Lossy):
        def commit_table(self, *arguments: Any) -> Any:
            if left:
                iceberg_tables.table().append(table_of(left.pop()))
            return self._catalog.commit_table(*arguments)

    iceberg_sink._place.__dict__["catalog"] = Busy(iceberg_sink._place.catalog, times=0, lands=False)
    assert run(iceberg_sink.commit(generation(key, 2), slot)) == Committed(slot)
    assert rows() == [2, 3]


def test_what_was_sent_and_never_answered_is_not_called_stuck(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """The staged files disappear after the commit was sent. It may still take effect, so the outcome is unknown, never Stuck."""
    slot = staged(sql_sink, key, 1, 1)

    class Swept(Lossy):
        def commit_table(self, *arguments: Any) -> Any:
            (iceberg_tables.folder_of() / slot.files[0].path).unlink(missing_ok=True)
            raise ConnectionError("no answer")

    sql_sink._place.__dict__["catalog"] = Swept(sql_sink._place.catalog, times=0, lands=False)
    with pytest.raises(OutputUnavailable, match=r"is unknown$"):
        run(sql_sink.commit(key, slot))


@pytest.mark.parametrize(
    ("lost", "said"),
    [(False, r"gave way to 2 other commits to lake\S+ .*nothing was committed"), (True, r"no answer; .* is unknown$")],
)
def test_a_commit_that_is_overtaken_too_often_says_what_is_known(
    sql_sink: IcebergTableSink, key: SinkKey, monkeypatch: pytest.MonkeyPatch, lost: bool, said: str
) -> None:
    """A commit that was refused each time committed nothing. If one reply was lost, that request may still take effect, so the outcome is
    unknown."""
    monkeypatch.setattr(table_commit, "CONFLICTS", 2)
    slot = staged(sql_sink, key, 1, 1)

    class Busy(Lossy):
        def commit_table(self, *arguments: Any) -> Any:
            self.sent += 1
            if lost and self.sent == 1:
                raise ConnectionError("no answer")
            raise CommitFailedException("another commit came first")

    sql_sink._place.__dict__["catalog"] = Busy(sql_sink._place.catalog, times=0, lands=False)
    with pytest.raises(OutputUnavailable, match=said):
        run(sql_sink.commit(key, slot))


@pytest.mark.parametrize("error", [KeyError("tags.list.element"), OverflowError("value too large")], ids=repr)
def test_an_error_of_our_own_is_no_lost_answer(
    sql_sink: IcebergTableSink, key: SinkKey, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A commit that cannot be built was not sent: the error itself is raised at once, and no slot is closed for it."""
    slot = staged(sql_sink, key, 1, 1)
    catalog = lossy(sql_sink, times=0, lands=True)

    def broken(*_: object) -> object:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(table_commit, "data_files", broken)
        stuck = run(sql_sink.commit(key, slot))
    assert isinstance(stuck, Stuck)
    assert f"({type(error).__name__}: {str(error).splitlines()[0]})" in stuck.why
    assert catalog.sent == 0
    assert run(opened().commit(key, slot)) == Committed(slot)


def test_a_store_that_does_not_answer_before_the_commit_is_sent(
    sql_sink: IcebergTableSink, key: SinkKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the staged files is retried; if it keeps failing, the sentence says that nothing was sent."""
    slot = staged(sql_sink, key, 1, 1)
    catalog = lossy(sql_sink, times=0, lands=True)
    asked: list[object] = []

    def silent(*given: object) -> object:
        asked.append(given)
        raise OSError("the store does not answer")

    monkeypatch.setattr(table_commit, "data_files", silent)
    with pytest.raises(
        OutputUnavailable, match=r"the store does not answer; slot 1 of a1b2-orders-g1 was not sent to lake\S+$"
    ):
        run(sql_sink.commit(key, slot))
    assert (len(asked), catalog.sent) == (len(RESEND_AFTER) + 1, 0)


class Overtaken:
    """A catalog in which another key is fenced before each of the next commits; that moves neither `main` nor our key's tags."""

    def __init__(self, sink: IcebergTableSink, *, times: int) -> None:
        self._catalog, self.times = sink._place.catalog, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *given: Any) -> Any:
        if self.times > 0:
            self.times -= 1
            other = SinkKey(key_hash=f"c{self.times}", output="orders", generation=1)
            assert run(opened().fence(other, 2, fingerprint="f", by="settle")) is None
        return self._catalog.commit_table(*given)


def test_others_that_come_in_between_are_no_lost_answers(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """However often other writers come first, the commit is resent: its outcome is never unknown, and the rows are there once."""
    slot = staged(iceberg_sink, key, 1, 1, 2)
    overtaken = Overtaken(iceberg_sink, times=len(RESEND_AFTER) + 3)
    iceberg_sink._place.__dict__["catalog"] = overtaken
    assert run(iceberg_sink.commit(key, slot)) == Committed(slot)
    assert overtaken.times == 0
    assert rows() == [1, 2]


def test_a_location_whose_file_system_cannot_be_opened() -> None:
    """pyarrow's file systems fail in their own ways, Azure's without an account with a TypeError: the sentence names the location."""
    with pytest.raises(OutputUnavailable, match="cannot open the location of the table, abfss://lake/orders: "):
        objects_at("abfss://lake/orders", PyArrowFileIO({}), durable=False)


def test_a_new_sql_catalog_that_somebody_else_opens_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg checks whether its own tables exist and then creates them: a process that finds them created in between can still use the
    catalog."""
    for name, value in sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    making = SqlCatalogBaseTable.metadata.create_all
    others: list[object] = []

    def somebody_was_faster(engine: Any, **more: Any) -> None:
        making(engine, **more)
        if not others:
            others.append(engine)
            making(engine, checkfirst=False)

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalogBaseTable.metadata, "create_all", somebody_was_faster)
        assert CatalogTable(CATALOG, ("sales", "orders")).load() is None
    assert len(others) == 1
