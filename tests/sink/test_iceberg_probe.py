"""What a probe says of an Iceberg output on which others work: compaction, deletes, overwrites, rollback, expiry; and what to do then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from harness import iceberg_tables
from harness.arrow_stage import table_of
from harness.iceberg_tables import compact, digest_of, expire, generation, hide, opened, rows, staged, written
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputCorrupt
from sparkonce.model.spec import OnRerun
from sparkonce.sink.iceberg import files
from sparkonce.sink.iceberg.files import history_of, traced
from sparkonce.sink.iceberg.masks import READ, Masks
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.protocol import APPEND_INSTEAD, Evidence, Found, SinkKey, Slot, WriteOptions
from sparkonce.sink.trace import Step

OTHER = SinkKey(key_hash="ffff" * 5, output="orders", generation=1)


def head() -> int:
    snapshot = iceberg_tables.table().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def go_to(snapshot: int) -> None:
    """Sets `main`, as a rollback does."""
    iceberg_tables.table().manage_snapshots().set_current_snapshot(snapshot_id=snapshot).commit()


def probed(sink: IcebergTableSink, key: SinkKey, slot: Slot) -> Found:
    return run(sink.probe(key, digest_of(slot)))


CHANGES: dict[str, tuple[Callable[[], Any], str]] = {
    "a row": (lambda: iceberg_tables.table().delete("n = 1"), "overwrite"),
    "all rows": (lambda: iceberg_tables.table().delete("n > 0"), "delete"),
    "an overwrite": (lambda: iceberg_tables.table().overwrite(table_of(100)), "delete"),
}


@pytest.mark.parametrize("after", ["nothing", "one compaction", "two compactions"])
@pytest.mark.parametrize("how", list(CHANGES))
def test_rows_that_others_changed(iceberg_sink: IcebergTableSink, key: SinkKey, how: str, after: str) -> None:
    """The result is `changed`, and the snapshot is named, also where the rows had been compacted before; a foreign append and the
    compactions alone leave it present."""
    slot = written(iceberg_sink, key, 1, 1, 2, 3)
    iceberg_tables.table().append(table_of(50))
    for _ in range(["nothing", "one compaction", "two compactions"].index(after)):
        compact()
        iceberg_tables.table().append(table_of(51))
    assert probed(iceberg_sink, key, slot) is Evidence.PRESENT
    act, operation = CHANGES[how]
    known = {each.snapshot_id for each in iceberg_tables.table().metadata.snapshots}
    act()
    made = {each.snapshot_id for each in iceberg_tables.table().metadata.snapshots} - known
    found = probed(iceberg_sink, key, slot)
    assert found.verdict is Evidence.CHANGED
    [change] = found.changes
    assert change.commit in {f"snapshot {each}" for each in made}
    assert (change.operation, change.key) == (operation, "")
    assert ("compacted into files with others" in found.why) == (after != "nothing")


def test_a_delete_in_another_partition_changes_nothing(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """Two partitions are compacted in one snapshot, and rows of one are deleted: the commit whose rows are in the other is present."""
    slots = {}
    for of, day in ((key, "a"), (OTHER, "b")):
        frame: Any = pa.table({"n": [1, 2], "day": [day, day]})
        slots[of] = sql_sink.stage(frame, of, 1, fingerprint="f", options=WriteOptions(partition_by=("day",)))
        run(sql_sink.commit(of, slots[of]))
    compact()
    iceberg_tables.table().delete("day = 'b' and n = 1")
    assert probed(sql_sink, key, slots[key]) is Evidence.PRESENT
    assert probed(sql_sink, OTHER, slots[OTHER]).verdict is Evidence.CHANGED


def test_another_key_of_sparkonce_is_named(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A commit of another key that removed the rows is named with the start of that key's hash."""
    slot = written(sql_sink, key, 1, 1)
    everything = [task.file for task in iceberg_tables.table().scan().plan_files()]
    with pytest.MonkeyPatch.context() as patch:  # a commit that replaces another key's files
        patch.setattr("sparkonce.sink.iceberg.snapshot.TableView.removed", lambda *_: everything)
        written(sql_sink, OTHER, 1, 2)
    assert rows() == [2]
    found = probed(sql_sink, key, slot)
    assert found.verdict is Evidence.CHANGED
    assert found.changes[0].key == str(OTHER)
    assert f"(overwrite, key {OTHER.key_hash[:12]})" in found.why


def test_a_rollback_is_seen(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """Once `main` is back before the commit the result is gone, also after other commits and after the snapshot expired; set forward again
    it is present."""
    written(iceberg_sink, OTHER, 1, 9)
    before = head()
    slot = written(iceberg_sink, key, 1, 1, 2)
    committed = head()
    go_to(before)
    found = probed(iceberg_sink, key, slot)
    assert found.verdict is Evidence.GONE
    assert (
        found.why
        == f"snapshot {committed}, its commit, is not in the history of main, which went back to snapshot {before}"
    )
    iceberg_tables.table().append(table_of(50))
    assert probed(iceberg_sink, key, slot).verdict is Evidence.GONE
    go_to(committed)
    assert probed(iceberg_sink, key, slot) is Evidence.PRESENT
    go_to(before)
    expire()
    assert probed(iceberg_sink, key, slot).verdict is Evidence.GONE


def test_the_rollback_of_a_commit_without_rows_is_seen(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """Generation 2 replaced rows by none: `main` set back before it shows them again, so its result is gone."""
    written(sql_sink, key, 1, 1)
    before = head()
    second = written(sql_sink, generation(key, 2), 1)
    assert rows() == []
    assert probed(sql_sink, generation(key, 2), second) is Evidence.PRESENT
    go_to(before)
    assert probed(sql_sink, generation(key, 2), second).verdict is Evidence.GONE
    empty = written(sql_sink, OTHER, 1)
    assert probed(sql_sink, OTHER, empty) is Evidence.PRESENT, "it never moved main"


@pytest.mark.parametrize("what", ["the removal", "the commit"])
def test_expiry_proves_nothing(iceberg_sink: IcebergTableSink, key: SinkKey, what: str) -> None:
    """Where the snapshot that removed the rows has expired the answer is "not checked"; where only the commit's own has, the change is
    still named. Neither is taken for a rollback."""
    slot = written(iceberg_sink, key, 1, 1, 2)
    iceberg_tables.table().delete("n = 1")
    removal = head()
    iceberg_tables.table().append(table_of(50))
    if what == "the removal":
        expire()
        assert probed(iceberg_sink, key, slot).verdict is Evidence.NOT_CHECKED
    else:
        expire(but=(removal,))
        assert [each.commit for each in probed(iceberg_sink, key, slot).changes] == [f"snapshot {removal}"]


def paths(slot: Slot) -> list[str]:
    """The slot's files, as the table names them."""
    return [f"{iceberg_tables.table().location()}/{file.path}" for file in slot.files]


@pytest.mark.parametrize("bounds", ["of one file", "of several", "none"])
def test_rows_hidden_by_delete_files(sql_sink: IcebergTableSink, key: SinkKey, bounds: str) -> None:
    """A position delete hides a row of a file that stays in the table: changed, by the snapshot that added it; a commit whose files it does
    not name stays present. Once a compaction has dropped the row for good, the snapshot is still named."""
    slot, other = written(sql_sink, key, 1, 1, 2, 3), written(sql_sink, OTHER, 1, 7, 8)
    both = written(sql_sink, OTHER.model_copy(update={"key_hash": "00" * 20}), 1, 50)
    named = {paths(slot)[0]: 0, **({paths(both)[0]: 0} if bounds == "of several" else {})}
    hidden = hide(named, bounds=bounds != "none")
    assert rows() == sorted({2, 3, 7, 8, 50} - ({50} if bounds == "of several" else set())), "pyiceberg reads it so"
    for _ in range(2):
        found = probed(sql_sink, key, slot)
        assert found.verdict is Evidence.CHANGED
        assert [(each.commit, each.operation) for each in found.changes] == [(f"snapshot {hidden}", "delete")]
        assert probed(sql_sink, OTHER, other) is Evidence.PRESENT
        compact()


def test_delete_files_that_cannot_be_read_are_not_checked(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """Deletes by value, and more delete files than a probe may read: nothing is claimed, by the probe or by the audit's inventory."""
    slot = written(sql_sink, key, 1, 1, 2)
    for _ in range(READ + 1):
        hide({paths(slot)[1] + "x": 0}, bounds=False)
    found = probed(sql_sink, key, slot)
    assert (found.verdict, found.why) == (Evidence.NOT_CHECKED, f"more than {READ} delete files may hide rows of it")
    hide({paths(slot)[0]: 0}, equality=True)
    found = probed(sql_sink, key, slot)
    assert (found.verdict, found.why) == (Evidence.NOT_CHECKED, "delete files of the table hide rows by their values")
    assert run(sql_sink.inventory()).hidden == {}


def test_the_work_of_a_probe_is_bounded(
    sql_sink: IcebergTableSink, key: SinkKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While every file is visible no older snapshot is read; else each one back to the removal, and at most as many as allowed."""
    slot = written(sql_sink, key, 1, 1)
    read: list[int] = []
    step = files._step

    def counted(table: Table, snapshot: Snapshot, *, every: bool) -> tuple[Step, Masks]:
        assert not every, "one change is enough for a probe"
        read.append(snapshot.snapshot_id)
        return step(table, snapshot)

    monkeypatch.setattr(files, "_step", counted)
    for _ in range(3):
        iceberg_tables.table().append(table_of(50))
    lists: list[str] = []
    manifests = Snapshot.manifests

    def listed(snapshot: Snapshot, io: FileIO) -> list[ManifestFile]:
        lists.append(snapshot.manifest_list)
        return manifests(snapshot, io)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Snapshot, "manifests", listed)
        assert probed(sql_sink, key, slot) is Evidence.PRESENT
    assert len(lists) == 1, "the newest snapshot's list of manifests, once"
    assert read == []
    iceberg_tables.table().delete("n = 1")
    iceberg_tables.table().append(table_of(50))
    assert probed(sql_sink, key, slot).verdict is Evidence.CHANGED
    assert len(read) == 2
    traced(iceberg_tables.table(), {"never there"}, (), Masks(), back=3)
    assert len(read) == 5
    assert len(list(history_of(iceberg_tables.table().metadata))) > 3


# --- what to do


def test_the_remedy_where_rows_were_changed(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A plain rerun is refused, so it is not advised; deleting the rest and appending works, and the new result is present."""
    slot = written(sql_sink, key, 1, 1, 2, 3)
    iceberg_tables.table().delete("n = 1")
    assert probed(sql_sink, key, slot).remedy == APPEND_INSTEAD
    with pytest.raises(InvalidInput, match="so a rerun cannot replace them"):
        staged(sql_sink, generation(key, 2), 1, 1, 2, 3)
    iceberg_tables.table().delete("n = 2 or n = 3")
    again = written(opened(on_rerun=OnRerun.APPEND), generation(key, 2), 1, 1, 2, 3)
    assert probed(sql_sink, generation(key, 2), again) is Evidence.PRESENT
    assert rows() == [1, 2, 3]


def test_the_remedy_after_a_rollback(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """Nothing of the rows is left, so a plain rerun, which is what no other remedy means, is not refused; the new result is present."""
    written(sql_sink, OTHER, 1, 9)
    before = head()
    slot = written(sql_sink, key, 1, 1)
    go_to(before)
    found = probed(sql_sink, key, slot)
    assert (found.verdict, found.remedy) == (Evidence.GONE, "")
    again = written(sql_sink, generation(key, 2), 1, 1)
    assert probed(sql_sink, generation(key, 2), again) is Evidence.PRESENT
    assert rows() == [1, 9]


def test_the_remedy_after_a_rollback_and_its_undoing(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """`main` was set back and then forward again: the rows are there, and a rerun replaces them."""
    written(sql_sink, OTHER, 1, 9)
    before = head()
    written(sql_sink, key, 1, 1)
    after = head()
    go_to(before)
    go_to(after)
    written(sql_sink, generation(key, 2), 1, 2)
    assert rows() == [2, 9]


def test_rows_that_came_back_after_a_rollback_are_not_doubled(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A cherry-pick of the commit brought its file back, and a compaction rewrote that: files no longer show which rows are the key's, so
    a rerun is refused, as it is where nothing was rolled back."""
    written(sql_sink, OTHER, 1, 9)
    before = head()
    slot = written(sql_sink, key, 1, 1)
    picked = head()
    go_to(before)
    table = iceberg_tables.table()
    named = {"source-snapshot-id": str(picked)}
    table.add_files([f"{table.location()}/{file.path}" for file in slot.files], snapshot_properties=named)
    assert rows() == [1, 9]
    compact()
    assert probed(sql_sink, key, slot).remedy == APPEND_INSTEAD
    with pytest.raises(InvalidInput, match="of an earlier generation of this job are no longer in"):
        staged(sql_sink, generation(key, 2), 1, 1)
    assert rows() == [1, 9]


def test_the_remedy_where_the_slot_is_gone(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A rerun cannot tell what it replaces: the slot to restore is named, and once it is back the result is present."""
    slot = written(sql_sink, key, 1, 1)
    file = next(iceberg_tables.folder_of().glob("data/so-*/*/_slot-*.json"))
    data = file.read_bytes()
    file.unlink()
    found = probed(sql_sink, key, slot)
    assert (found.verdict, found.remedy) == (Evidence.GONE, found.why)
    assert str(file) in found.remedy and "restore it from a backup" in found.remedy
    with pytest.raises(OutputCorrupt):
        staged(sql_sink, generation(key, 2), 1, 1)
    file.write_bytes(data)
    assert probed(sql_sink, key, slot) is Evidence.PRESENT


@pytest.mark.parametrize("lost", ["a file", "the table"])
def test_a_rerun_where_it_is_advised_works(sql_sink: IcebergTableSink, key: SinkKey, lost: str) -> None:
    """Where a file that the table names, or the whole table, is missing, a plain rerun replaces the rows."""
    slot = written(sql_sink, key, 1, 1, 2)
    if lost == "a file":
        (iceberg_tables.folder_of() / slot.files[0].path).unlink()
    else:
        iceberg_tables.catalog().drop_table(iceberg_tables.TABLE)
    found = probed(sql_sink, key, slot)
    assert (found.verdict, found.remedy) == (Evidence.GONE, "")
    written(sql_sink, generation(key, 2), 1, 1, 2)
    assert rows() == [1, 2]
