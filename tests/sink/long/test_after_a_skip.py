"""Runs after one that was skipped, and what is said of a run whose rows later keys of its series replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from harness import iceberg_tables
from harness.lakes import DeltaLake, Lake, days, lake_of
from harness.late_keys import KEYS, LATE, TODAY, TOMORROW, YESTERDAY, load, sink_of
from sparkonce.blocking import run
from sparkonce.model.spec import OnLate, Series, WriteMode
from sparkonce.sink.protocol import Committed, Evidence, SinkKey, Slot


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return lake_of(request.param, tmp_path, monkeypatch)


# --- what follows ----------------------------------------------------------------------------------------------------------------


def later(key: SinkKey, generation: int) -> SinkKey:
    return key.model_copy(update={"generation": generation})


def test_a_backfill_of_a_skipped_key_writes_its_rows(lake: Lake) -> None:
    """As the advice says; a plain rerun is skipped again."""
    load(lake, TODAY, 2)
    load(lake, YESTERDAY, 1)
    assert load(lake, YESTERDAY, 1, key=later(LATE, 2)).skipped == TODAY
    assert lake.rows() == {"mon": [2]}
    load(lake, YESTERDAY, 1, OnLate.ALLOW, key=later(LATE, 3))
    assert lake.rows() == {"mon": [1]}


def test_a_skipped_rerun_keeps_the_rows_of_the_run_before(lake: Lake) -> None:
    """In a table that appends: the rows of generation 1 stay when generation 2 comes late, and the one after it, a backfill, replaces
    them."""

    def append(day: str, number: int, key: SinkKey, on_late: OnLate = OnLate.SKIP) -> Slot:
        sink = lake.sink(None, Series(name="daily", position=day, on_late=on_late))
        decided = run(sink.commit(key, lake.stage(sink, key, days(mon=number))))
        assert isinstance(decided, Committed)
        return decided.slot

    append(YESTERDAY, 1, LATE)
    append(TODAY, 2, KEYS[TODAY])
    assert append(YESTERDAY, 3, later(LATE, 2)).skipped == TODAY
    assert lake.rows() == {"mon": [1, 2]}
    sink = lake.sink(None, Series(name="daily", position=YESTERDAY))
    assert run(sink.probe(LATE, None)).verdict is Evidence.PRESENT
    append(YESTERDAY, 4, later(LATE, 3), OnLate.ALLOW)
    assert lake.rows() == {"mon": [2, 4]}


# --- superseded ------------------------------------------------------------------------------------------------------------------


def compact(lake: Lake) -> None:
    if isinstance(lake, DeltaLake):
        DeltaTable(str(lake.folder)).optimize.compact()
    else:
        iceberg_tables.compact()


def delete(lake: Lake, predicate: str) -> None:
    if isinstance(lake, DeltaLake):
        DeltaTable(str(lake.folder)).delete(predicate)
    else:
        iceberg_tables.table().delete(predicate)


def probed(lake: Lake, day: str = YESTERDAY) -> Any:
    return run(sink_of(lake, day, OnLate.FAIL).probe(KEYS[day], None))


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("day", [YESTERDAY, TODAY], ids=["the same position", "a later position"])
def test_rows_that_a_later_key_of_the_series_replaced_are_superseded(lake: Lake, day: str, compacted: bool) -> None:
    """Its commit is named with key and position, whether or not the rows had been compacted with others before."""
    load(lake, YESTERDAY, 1)
    lake.add(days(tue=5))
    if compacted:
        compact(lake)
    load(lake, day, 2, key=KEYS[TODAY])
    found = probed(lake)
    assert found.verdict is Evidence.SUPERSEDED
    assert [each.key for each in found.changes] == [str(KEYS[TODAY])]
    assert f"key bbbb, position {day} of the series daily" in found.why
    assert probed(lake, TODAY) is Evidence.PRESENT or day == YESTERDAY


def test_rows_that_a_key_of_no_series_replaced_are_changed(lake: Lake) -> None:
    """So are those that a key of another series replaced, and a backfill, which is before them."""
    for number, series in enumerate((None, Series(name="hourly", position="9"))):
        key = SinkKey(key_hash=f"{number}" * 4, output="orders", generation=1)
        first = SinkKey(key_hash=f"{number}aaa", output="orders", generation=1)
        load(lake, TODAY, 1, key=first)
        sink = lake.sink(WriteMode.OVERWRITE, series)
        run(sink.commit(key, lake.stage(sink, key, days(mon=2))))
        assert run(sink_of(lake, TODAY).probe(first, None)).verdict is Evidence.CHANGED
    load(lake, TODAY, 1)
    load(lake, YESTERDAY, 2, OnLate.ALLOW)
    assert probed(lake, TODAY).verdict is Evidence.CHANGED


def test_rows_of_which_others_removed_some_are_changed(lake: Lake) -> None:
    """The series did not want those removed: a DELETE before today's overwrite, and none after it."""
    sink = sink_of(lake, YESTERDAY)
    run(sink.commit(LATE, lake.stage(sink, LATE, days(mon=1, tue=2))))
    delete(lake, "n = 1")
    assert probed(lake).verdict is Evidence.CHANGED
    load(lake, TODAY, 3)
    found = probed(lake)
    assert found.verdict is Evidence.CHANGED
    assert {each.key for each in found.changes} == {"", str(KEYS[TODAY])}


def test_rows_of_which_a_later_key_replaced_some_are_changed(lake: Lake) -> None:
    """Another partition of it is still there; once that is replaced, too, nothing is left of it."""
    lake.partition_by = ("day",)
    lake.add(days(sun=0))

    def write(day: str, key: SinkKey, **numbers: int) -> None:
        sink = lake.sink(WriteMode.OVERWRITE_PARTITIONS, Series(name="daily", position=day))
        assert isinstance(run(sink.commit(key, lake.stage(sink, key, days(**numbers)))), Committed)

    write(YESTERDAY, LATE, mon=1, tue=2)
    write(TODAY, KEYS[TODAY], tue=3)
    assert probed(lake).verdict is Evidence.CHANGED
    write(TOMORROW, KEYS[TOMORROW], mon=4)
    found = probed(lake)
    assert (found.verdict, lake.rows()) == (Evidence.SUPERSEDED, {"sun": [0], "mon": [4], "tue": [3]})
    assert {each.key for each in found.changes} == {str(KEYS[TODAY]), str(KEYS[TOMORROW])}


def test_the_commits_of_a_release_that_noted_no_place_change(tmp_path: Path) -> None:
    """Delta: they said nothing of their series in the history, so what they replaced is changed, as it was."""
    lake = DeltaLake(tmp_path)
    load(lake, YESTERDAY, 1)
    load(lake, TODAY, 2)
    newest = max((lake.folder / "_delta_log").glob("*.json"))
    newest.write_text(newest.read_text().replace('\\"series\\"', '\\"other\\"'))
    assert probed(lake).verdict is Evidence.CHANGED
