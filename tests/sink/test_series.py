"""Series on Delta and Iceberg tables: a key that is late commits nothing, however it comes to be late."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from harness import iceberg_tables
from harness.lakes import DeltaLake, IcebergLake, Lake, days, lake_of
from sparkonce.blocking import run
from sparkonce.errors import LateInSeries, OutputCorrupt, OutputUnsafe
from sparkonce.model.spec import POSITION_PATTERN, OnLate, Series, WriteMode, order_of
from sparkonce.sink.delta.log import FORMS, position_of, spelled
from sparkonce.sink.protocol import LATE_INSTEAD, REPLACING_SCHEMA, Committed, Evidence, Late, SinkKey, Slot
from sparkonce.sink.series import place_of

YESTERDAY, TODAY = "2024-05-01", "2024-05-02"
KEYS = {
    day: SinkKey(key_hash=hash_ * 4, output="orders", generation=1) for day, hash_ in ((YESTERDAY, "a"), (TODAY, "b"))
}
NEVER: Any = object()
"""A frame that cannot be staged."""


def daily(position: str, on_late: OnLate = OnLate.FAIL, name: str = "daily") -> Series:
    return Series(name=name, position=position, on_late=on_late)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return lake_of(request.param, tmp_path, monkeypatch)


def load(lake: Lake, day: str, number: int, *, on_late: OnLate = OnLate.FAIL, key: SinkKey | None = None) -> Slot:
    """Overwrites the table as the job of that day."""
    sink = lake.sink(WriteMode.OVERWRITE, daily(day, on_late))
    key = key or KEYS[day]
    slot = lake.stage(sink, key, days(mon=number))
    assert run(sink.commit(key, slot)) == Committed(slot)
    return slot


def test_keys_commit_in_their_order(lake: Lake) -> None:
    """A later position replaces an earlier one, and the same position may be written by two keys."""
    load(lake, YESTERDAY, 1)
    load(lake, TODAY, 2)
    load(lake, TODAY, 3, key=SinkKey(key_hash="cccc", output="orders", generation=1))
    assert lake.rows() == {"mon": [3]}


def test_a_late_key_is_refused_before_its_rows_run(lake: Lake) -> None:
    """A retry of yesterday cannot replace today: the sentence names both positions and the remedy, and nothing is staged."""
    load(lake, TODAY, 2)
    sink = lake.sink(WriteMode.OVERWRITE, daily(YESTERDAY))
    with pytest.raises(
        LateInSeries,
        match=r"position 2024-05-01 of the series daily is late: 2024-05-02 has been committed; .*`series.onLate: Allow`",
    ):
        lake.stage(sink, KEYS[YESTERDAY], NEVER)
    assert lake.rows() == {"mon": [2]}


def test_a_key_that_becomes_late_after_it_was_staged_commits_nothing(lake: Lake) -> None:
    """Yesterday's driver was slow, or frozen, and nobody took it over: its commit is refused by the table itself."""
    sink = lake.sink(WriteMode.OVERWRITE, daily(YESTERDAY))
    slot = lake.stage(sink, KEYS[YESTERDAY], days(mon=1))
    load(lake, TODAY, 2)
    before = lake.commits()
    decided = run(sink.commit(KEYS[YESTERDAY], slot))
    assert isinstance(decided, Late)
    assert "2024-05-02 has been committed" in decided.why
    assert (lake.rows(), lake.commits()) == ({"mon": [2]}, before)


def test_what_was_committed_in_time_is_still_committed(lake: Lake) -> None:
    """A repeated commit of yesterday is answered with its slot, today's rows stay, and nothing is written."""
    slot = load(lake, YESTERDAY, 1)
    load(lake, TODAY, 2)
    before = lake.commits()
    assert run(lake.sink(WriteMode.OVERWRITE, daily(YESTERDAY)).commit(KEYS[YESTERDAY], slot)) == Committed(slot)
    assert (lake.rows(), lake.commits()) == ({"mon": [2]}, before)


def test_advice_on_a_superseded_result_is_a_backfill(lake: Lake) -> None:
    """A plain rerun would be late; the one that is advised commits."""
    load(lake, YESTERDAY, 1)
    load(lake, TODAY, 2)
    found = run(lake.sink(WriteMode.OVERWRITE, daily(YESTERDAY)).probe(KEYS[YESTERDAY], None))
    assert (found.verdict, found.remedy) == (Evidence.SUPERSEDED, LATE_INSTEAD)
    assert [each.key for each in found.changes] == [str(KEYS[TODAY])]
    assert f"(WRITE, key bbbb, position {TODAY} of the series daily)" in found.why.replace("overwrite", "WRITE")
    again = KEYS[YESTERDAY].model_copy(update={"generation": 2})
    with pytest.raises(LateInSeries):
        lake.stage(lake.sink(WriteMode.OVERWRITE, daily(YESTERDAY)), again, NEVER)
    load(lake, YESTERDAY, 3, on_late=OnLate.ALLOW, key=again)
    assert lake.rows() == {"mon": [3]}


def test_a_backfill_on_purpose_commits_and_does_not_turn_the_series_back(lake: Lake) -> None:
    """After it, a late key is still late."""
    load(lake, TODAY, 2)
    load(lake, YESTERDAY, 1, on_late=OnLate.ALLOW)
    assert lake.rows() == {"mon": [1]}
    with pytest.raises(LateInSeries):
        lake.stage(lake.sink(None, daily(YESTERDAY)), SinkKey(key_hash="cccc", output="orders", generation=1), NEVER)


def test_other_series_and_keys_without_one_are_not_late(lake: Lake) -> None:
    """The order is that of one name."""
    load(lake, TODAY, 2)
    for series, number in ((daily(YESTERDAY, name="hourly"), 3), (None, 4)):
        sink = lake.sink(None, series)
        key = SinkKey(key_hash=str(number) * 4, output="orders", generation=1)
        slot = lake.stage(sink, key, days(tue=number))
        assert run(sink.commit(key, slot)) == Committed(slot)
    assert lake.rows() == {"mon": [2], "tue": [3, 4]}


def test_an_append_has_its_place_too(lake: Lake) -> None:
    """A slot with a place is refused by releases that do not know places: they would commit it late."""
    sink = lake.sink(None, daily(TODAY))
    slot = lake.stage(sink, KEYS[TODAY], days(mon=1))
    assert (slot.schema_, slot.place and slot.place.position) == (REPLACING_SCHEMA, TODAY)
    run(sink.commit(KEYS[TODAY], slot))
    with pytest.raises(LateInSeries):
        lake.stage(lake.sink(None, daily(YESTERDAY)), KEYS[YESTERDAY], NEVER)


def test_the_order_outlives_the_entries_of_the_log(tmp_path: Path) -> None:
    """Delta: a checkpoint keeps the latest position when the entry that set it is gone."""
    lake = DeltaLake(tmp_path)
    load(lake, TODAY, 2)
    table = DeltaTable(str(lake.folder))
    table.create_checkpoint()
    for entry in (lake.folder / "_delta_log").glob("*.json"):
        if int(entry.stem) < table.version():
            entry.unlink()
    with pytest.raises(LateInSeries):
        lake.stage(lake.sink(None, daily(YESTERDAY)), KEYS[YESTERDAY], NEVER)


def test_the_order_outlives_the_expiry_of_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg: the tag of the series keeps its evidence, and a table whose tags would expire is refused."""
    lake = IcebergLake(tmp_path, monkeypatch)
    load(lake, TODAY, 2)
    lake.add(days(tue=3))
    table = iceberg_tables.table()
    evidence = {ref.snapshot_id for name, ref in table.metadata.refs.items()}
    for snapshot in table.metadata.snapshots:
        if snapshot.snapshot_id not in evidence:
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    assert "idem-series.daily" in iceberg_tables.tags()
    with pytest.raises(LateInSeries):
        lake.stage(lake.sink(None, daily(YESTERDAY)), KEYS[YESTERDAY], NEVER)
    manage = iceberg_tables.table().manage_snapshots()
    manage.create_tag(
        iceberg_tables.table().metadata.refs["main"].snapshot_id, "idem-series.weekly", max_ref_age_ms=1
    ).commit()
    with pytest.raises(OutputUnsafe, match=r"tag idem-series.weekly of .* would expire"):
        run(lake.sink().check())


def test_a_tag_of_a_series_that_cannot_be_read_is_never_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody moved it to a snapshot of their own: nothing is written in this series."""
    lake = IcebergLake(tmp_path, monkeypatch)
    lake.add(days(mon=1))
    table = iceberg_tables.table()
    table.manage_snapshots().create_tag(table.metadata.refs["main"].snapshot_id, "idem-series.daily").commit()
    with pytest.raises(OutputCorrupt, match=r"the tag idem-series\.daily of the table"):
        lake.stage(lake.sink(None, daily(YESTERDAY)), KEYS[YESTERDAY], NEVER)


TIMES_AS = ["%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%MZ", "%Y-%m-%dT%H:%M:%SZ"]


TIMES = st.datetimes().filter(lambda time: time.year >= 1000)


@given(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1))
def test_numbers_are_ordered_as_numbers(one: int, other: int) -> None:
    """Not as texts: 9 is before 10."""
    assert (order_of(place(str(one))) < order_of(place(str(other)))) == (one < other)


@given(TIMES, TIMES, st.sampled_from(TIMES_AS))
def test_times_of_one_form_are_ordered_as_times(one: dt.datetime, other: dt.datetime, form: str) -> None:
    """In every form, down to what the form shows; and the order fits into a Delta log's number."""
    first, second = sorted((one, other))
    orders = [order_of(place(each.strftime(form))) for each in (first, second)]
    assert orders[0] <= orders[1] < 2**63
    assert (orders[0] == orders[1]) == (first.strftime(form) == second.strftime(form))


def place(position: str) -> str:
    """The position as a valid series has it."""
    return Series(name="x", position=position).position


@given(st.from_regex(re.compile(POSITION_PATTERN, re.ASCII), fullmatch=True).filter(lambda text: "\n" not in text))
def test_a_delta_log_keeps_a_position_as_it_was_written(position: str) -> None:
    """Two signed 64-bit numbers have it to the letter: every form, zeros in front, and numbers that look like times."""
    at = place_of(daily(place(position)))
    assert at is not None and spelled(at) < 2**63
    assert position_of(at.order, spelled(at)) == position


@given(st.integers(0, 10**15 - 1), st.one_of(st.none(), st.integers(0, 2**63 - 1)))
def test_an_order_without_its_text_keeps_its_place(order: int, text: int | None) -> None:
    """In a table of a release that wrote the order alone, and also if it moved the series after a text was written."""
    assert order_of(position_of(order, text)) == order
    if text is None or text // FORMS != order:
        assert position_of(order, text) == position_of(order, None)


@pytest.mark.parametrize("position", ["2024-05", "2024-05-01", "2024-05-01T06:00:00Z", "20240501", "123456789012345"])
def test_an_order_without_its_text_reads_as_a_time_where_it_can_be_one(position: str) -> None:
    """15 digits, or a month 78, are a number."""
    assert position_of(order_of(position), None) == position
    assert position_of(20247801000000, None) == "20247801000000"


@pytest.mark.parametrize("position", ["123456789012345", "0100", "2024-05-01T06:30"])
def test_the_refusal_of_a_late_key_names_the_position_as_it_was_written(lake: Lake, position: str) -> None:
    """On both formats, and after a late key was let through, which does not move the series."""
    load(lake, position, 2, key=KEYS[TODAY])
    load(lake, "7", 1, on_late=OnLate.ALLOW, key=SinkKey(key_hash="cccc", output="orders", generation=1))
    with pytest.raises(LateInSeries, match=rf"position 9 of the series daily is late: {position} has been committed"):
        lake.stage(lake.sink(None, daily("9")), KEYS[YESTERDAY], NEVER)


def test_a_delta_table_of_a_release_that_wrote_the_order_alone(tmp_path: Path) -> None:
    """Its order holds, whether the series was first moved by that release or after this one wrote the text of an earlier position."""
    lake = DeltaLake(tmp_path)
    load(lake, YESTERDAY, 1)
    log = lake.folder / "_delta_log"
    moved = {"txn": {"appId": "series:daily", "version": order_of(TODAY), "lastUpdated": 1}}
    (log / f"{DeltaTable(str(lake.folder)).version() + 1:020d}.json").write_text(json.dumps(moved) + "\n")
    with pytest.raises(LateInSeries, match=f"late: {TODAY} has been committed"):
        lake.stage(lake.sink(None, daily(YESTERDAY)), SinkKey(key_hash="cccc", output="orders", generation=1), NEVER)
    load(lake, TODAY, 2)
    assert lake.rows() == {"mon": [2]}


def test_what_a_slot_stores_of_its_place() -> None:
    """The words of the stored form; an absent place leaves a slot's bytes as they were."""
    slot = Slot(state="closed", sink_key="k", token=1)  # type: ignore[arg-type]  # as JSON has it
    assert "place" not in slot.dump()
    placed = slot.model_copy(update={"place": place_of(daily(TODAY, OnLate.ALLOW))})
    assert placed.dump()["place"] == {"series": "daily", "position": TODAY, "allowLate": True}
