"""What a probe says of a Delta output on which others work: compaction, DELETE, overwrite, VACUUM, RESTORE, deletion vectors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from harness.arrow_stage import table_of
from harness.delta_entries import add_entry, added, hide_first_row, vector_of_first_row
from harness.delta_stage import delta_stage, numbers_in
from harness.delta_tables import ORDERS, later, sink_on, staged
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputCorrupt
from sparkonce.model.spec import OnRerun, WriteMode
from sparkonce.sink.delta import evidence
from sparkonce.sink.delta.removals import traced
from sparkonce.sink.delta.sink import DeltaTableSink, digest_of, open_delta
from sparkonce.sink.delta.snapshot import DeltaSnapshot, Log
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import APPEND_INSTEAD, Committed, Evidence, Found, SinkKey, Slot, WriteOptions
from sparkonce.sink.trace import LOOK_BACK

OTHER = SinkKey(key_hash="ffff" * 5, output="orders", generation=1)


@pytest.fixture
def delta(table: Path) -> DeltaTableSink:
    return sink_on(table)


@pytest.fixture
def slot(delta: DeltaTableSink, key: SinkKey) -> Slot:
    """The committed rows 1, 2, 3 in two files, as version 1 of the table."""
    slot = staged(delta, key, 1, 1, 2, 3)
    assert isinstance(run(delta.commit(key, slot)), Committed)
    return slot


def compact(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()


def delete(table: Path, predicate: str | None) -> None:
    DeltaTable(str(table)).delete(predicate)


def overwrite(table: Path) -> None:
    write_deltalake(str(table), table_of(100), mode="overwrite")


def vacuum(table: Path) -> None:
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def commits(found: Found) -> list[tuple[str, str]]:
    return [(each.commit, each.operation) for each in found.changes]


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a row": (lambda table: delete(table, "n = 1"), "DELETE"),
    "all rows": (lambda table: delete(table, None), "DELETE"),
    "an overwrite": (overwrite, "WRITE"),
    "an update": (
        lambda table: DeltaTable(str(table)).update(predicate="n = 2", updates={"n": "7"}),
        "UPDATE",
    ),
    "a restore": (lambda table: DeltaTable(str(table)).restore(0), "RESTORE"),
}


@pytest.mark.parametrize("after", ["nothing", "one compaction", "two compactions"])
@pytest.mark.parametrize("how", list(CHANGES))
def test_rows_that_others_changed(key: SinkKey, slot: Slot, table: Path, how: str, after: str) -> None:
    """The result is `changed`, and the commit is named, also where the rows had been compacted before, and after VACUUM."""
    delta = sink_on(table)
    if after != "nothing":
        compact(table)
    if after == "two compactions":
        write_deltalake(str(table), table_of(50), mode="append")
        compact(table)
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    version = DeltaTable(str(table)).version() + 1
    act, operation = CHANGES[how]
    act(table)
    for _ in range(2):
        found = run(delta.probe(key, digest_of(slot)))
        assert found.verdict is Evidence.CHANGED
        assert commits(found) == [(f"version {version}", operation)]
        assert f"version {version} ({operation})" in found.why
        assert ("compacted into files with others" in found.why) == (after != "nothing")
        vacuum(table)


def test_what_is_restored_is_there_again(delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path) -> None:
    """RESTORE to the commit puts its files back: the result is present."""
    delete(table, "n = 1")
    assert run(delta.probe(key, digest_of(slot))).verdict is Evidence.CHANGED
    DeltaTable(str(table)).restore(1)
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT


def test_a_delete_in_another_partition_changes_nothing(key: SinkKey, table: Path) -> None:
    """Two partitions are compacted together, and rows of one are deleted: the commit whose rows are in the other is present."""
    sink = open_delta(ORDERS, FolderObjects(table, durable=False), stage=delta_stage)
    slots = {}
    for of, day in ((key, "a"), (OTHER, "b")):
        frame: Any = pa.table({"n": [1, 2], "day": [day, day]})
        slots[of] = sink.stage(frame, of, 1, fingerprint="f", options=WriteOptions(partition_by=("day",)))
        run(sink.commit(of, slots[of]))
    compact(table)
    delete(table, "day = 'b' and n = 1")
    assert run(sink.probe(key, digest_of(slots[key]))) is Evidence.PRESENT
    assert run(sink.probe(OTHER, digest_of(slots[OTHER]))).verdict is Evidence.CHANGED


def test_another_key_of_sparkonce_is_named(delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path) -> None:
    """A commit of another key that removed the rows is named with the start of that key's hash, by which `sparkonce keys` finds it."""
    removes = [
        {"remove": {"path": file.path, "dataChange": True, "deletionTimestamp": 1, "size": file.bytes}}
        for file in slot.files
    ]
    add_entry(
        table, {"commitInfo": {"operation": "WRITE"}}, {"txn": {"appId": f"idem:{OTHER}", "version": 5}}, *removes
    )
    found = run(delta.probe(key, digest_of(slot)))
    assert found.verdict is Evidence.CHANGED
    assert found.changes[0].key == str(OTHER)
    assert found.why == f"rows of it were removed or rewritten by version 2 (WRITE, key {OTHER.key_hash[:12]})"


def test_a_log_that_was_cleaned_names_nothing(delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path) -> None:
    """Once the entry that removed the rows is gone, nothing is claimed: not checked. A change that can still be named is named."""
    delete(table, "n = 3")
    delete(table, "n = 1")
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / f"{2:020d}.json").unlink()
    assert commits(run(delta.probe(key, digest_of(slot)))) == [("version 3", "DELETE")]
    (table / "_delta_log" / f"{3:020d}.json").unlink()
    found = run(delta.probe(key, digest_of(slot)))
    assert found.verdict is Evidence.NOT_CHECKED
    assert "does not show any more what became of 2 of its file(s)" in found.why


@pytest.mark.parametrize("damage", ["{", "[]", '{"remove": {}}', '{"remove": 5}', '{"add": null}', "\\xff"])
def test_an_entry_that_does_not_parse_ends_the_history(
    delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path, damage: str
) -> None:
    """Readers do not read entries before a checkpoint, so a damaged one harms nobody; the probe claims nothing beyond it."""
    delete(table, "n = 1")
    write_deltalake(str(table), table_of(50), mode="append")
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / f"{2:020d}.json").write_text(damage)
    assert run(delta.probe(key, digest_of(slot))).verdict is Evidence.NOT_CHECKED


def test_the_work_of_a_probe_is_bounded(delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path) -> None:
    """While every file is visible no entry of the log is read, however many there are; else one for each version back to the removal, and
    `LOOK_BACK` at most."""
    objects = Counting(table)
    sink = open_delta(ORDERS, objects, stage=delta_stage)
    for _ in range(3):
        write_deltalake(str(table), table_of(50), mode="append")
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert objects.entries == 0
    delete(table, "n = 1")
    write_deltalake(str(table), table_of(51), mode="append")
    assert run(sink.probe(key, digest_of(slot))).verdict is Evidence.CHANGED
    assert objects.entries == 2
    snapshot = run(Log(objects).load())
    assert snapshot is not None
    objects.entries = 0
    run(traced(objects, snapshot, {"never there"}, back=3))
    assert objects.entries == 3
    assert LOOK_BACK <= 200, "each entry is one request before a replay"


def test_rows_hidden_by_deletion_vectors(delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path) -> None:
    """A deletion vector hides a row of a file that stays in the table: changed, by the commit that added it, also once a compaction has
    removed file and vector. A vector on another writer's file changes nothing."""
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    add_entry(table, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
    write_deltalake(str(table), table_of(50, 51), mode="append")
    foreign = next(each["path"] for each in added(table, 3))
    hide_first_row(table, foreign)
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    hide_first_row(table, slot.files[0].path)
    masks = pa.table(DeltaTable(str(table)).deletion_vectors().read_all()).to_pylist()
    assert sorted(each["selection_vector"][0] for each in masks) == [False, False], "delta-rs reads these vectors"
    found = run(delta.probe(key, digest_of(slot)))
    assert (found.verdict, commits(found)) == (Evidence.CHANGED, [("version 5", "DELETE")])
    vector = vector_of_first_row()
    moved = {"path": slot.files[0].path, "dataChange": False, "deletionTimestamp": 1, "partitionValues": {}}
    add_entry(
        table,
        {"commitInfo": {"operation": "OPTIMIZE"}},
        {"remove": {**moved, "deletionVector": vector, "size": slot.files[0].bytes}},
        {"add": {**added(table, 3)[0], "path": "compacted.parquet", "dataChange": False}},
    )
    found = run(delta.probe(key, digest_of(slot)))
    assert (found.verdict, commits(found)) == (Evidence.CHANGED, [("version 5", "DELETE")])


# --- what to do


def test_the_remedy_where_rows_were_changed(delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path) -> None:
    """A plain rerun is refused, so it is not advised; deleting the rest and appending works, and the new result is present."""
    write_deltalake(str(table), table_of(50), mode="append")
    delete(table, "n = 1")
    found = run(delta.probe(key, digest_of(slot)))
    assert found.remedy == APPEND_INSTEAD
    with pytest.raises(InvalidInput, match="another writer rewrote or deleted"):
        staged(delta, later(key, 2), 1, 1, 2, 3)
    delete(table, "n = 2 or n = 3")
    appending = sink_on(table, OnRerun.APPEND)
    assert run(appending.probe(key, digest_of(slot))).remedy == "", "a rerun that appends is not refused"
    again = staged(appending, later(key, 2), 1, 1, 2, 3)
    assert isinstance(run(appending.commit(later(key, 2), again)), Committed)
    assert run(appending.probe(later(key, 2), digest_of(again))) is Evidence.PRESENT
    assert numbers_in(table) == [1, 2, 3, 50]


def test_a_refusal_names_a_restore_only_where_nothing_else_changed_the_rows(
    delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path
) -> None:
    """A DELETE before the restore rewrote the file, so the restore did not take it out; an expired history names nothing."""
    delete(table, "n = 1")
    DeltaTable(str(table)).restore(0)
    with pytest.raises(InvalidInput, match="another writer rewrote or deleted"):
        staged(delta, later(key, 2), 1, 1)
    DeltaTable(str(table)).restore(1)
    DeltaTable(str(table)).restore(0)
    with pytest.raises(InvalidInput, match=r"was restored to an earlier state \(version 5\)"):
        staged(delta, later(key, 2), 1, 1)
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / f"{5:020}.json").unlink()
    with pytest.raises(InvalidInput, match="another writer rewrote or deleted"):
        staged(delta, later(key, 2), 1, 1)


def test_the_remedy_where_the_slot_is_gone(delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path) -> None:
    """Without its evidence a rerun cannot tell what it replaces, and would add the rows a second time: the folder to restore is named, and
    once it is back the result is present."""
    folder = table / evidence.folder_of(key)
    shutil.move(folder, table.parent / "backup")
    found = run(delta.probe(key, digest_of(slot)))
    assert (found.verdict, found.why) == (Evidence.GONE, "its slot is gone")
    assert found.remedy == f"restore {evidence.folder_of(key)} in {delta.uri} from a backup"
    shutil.move(table.parent / "backup", folder)
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT


@pytest.mark.parametrize("lost", ["the generation", "the lineage"])
def test_a_rerun_without_the_evidence_of_the_run_before_is_refused(
    delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path, lost: str
) -> None:
    """The log alone shows that rows were committed: neither staging nor a commit that was staged before adds them a second time. Once the
    folder is back both replace them."""
    assert slot.rows == 3
    early = staged(delta, later(key, 2), 1, 1, 2, 3)
    folder = (table / evidence.folder_of(key)).parent if lost == "the lineage" else table / evidence.folder_of(key)
    shutil.move(folder, table.parent / "backup")
    with pytest.raises(OutputCorrupt, match=rf"holds a commit of {key}, .* restore that folder from a backup"):
        staged(delta, later(key, 2), 2, 1, 2, 3)
    with pytest.raises(OutputCorrupt, match=rf"holds a commit of {key}, .* restore that folder from a backup"):
        run(delta.commit(later(key, 2), early))
    assert numbers_in(table) == [1, 2, 3]
    shutil.copytree(table.parent / "backup", folder, dirs_exist_ok=True)
    assert isinstance(run(delta.commit(later(key, 2), early)), Committed)
    assert numbers_in(table) == [1, 2, 3]


def test_evidence_of_runs_that_were_replaced_is_not_needed(
    delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path
) -> None:
    """Generation 2 replaced generation 1, so the third does not ask for the first one's files."""
    assert isinstance(run(delta.commit(later(key, 2), staged(delta, later(key, 2), 1, 4))), Committed)
    shutil.rmtree(table / evidence.folder_of(slot.sink_key))
    assert isinstance(run(delta.commit(later(key, 3), staged(delta, later(key, 3), 1, 5))), Committed)
    assert numbers_in(table) == [5]


def test_partition_values_are_read_where_partitions_are_overwritten_only(
    key: SinkKey, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends, reruns and probes of a partitioned table do without those of its files, of which it may have a million."""
    read: list[str] = []
    partitions: Callable[[DeltaSnapshot], dict[str, Mapping[str, Any]]] = vars(DeltaSnapshot)["partitions"].func

    def counted(table: DeltaSnapshot) -> dict[str, Mapping[str, Any]]:
        read.append("")
        return partitions(table)

    monkeypatch.setattr(DeltaSnapshot, "partitions", property(counted))
    frame: Any = pa.table({"n": [1, 2], "day": ["a", "b"]})
    options = WriteOptions(partition_by=("day",))
    sink = sink_on(table)
    for of in (key, later(key, 2)):
        slot = sink.stage(frame, of, 1, fingerprint="f", options=options)
        assert isinstance(run(sink.commit(of, slot)), Committed)
        assert run(sink.probe(of, digest_of(slot))) is Evidence.PRESENT
    assert read == []
    slot = sink.stage(frame, OTHER, 1, fingerprint="f", options=replace(options, mode=WriteMode.OVERWRITE_PARTITIONS))
    assert isinstance(run(sink.commit(OTHER, slot)), Committed)
    assert read != []


@pytest.mark.parametrize("lost", ["a file", "the table"])
def test_a_rerun_where_it_is_advised_works(
    delta: DeltaTableSink, key: SinkKey, slot: Slot, table: Path, lost: str
) -> None:
    """Where a file that the table names, or the whole table, is missing, a plain rerun replaces the rows."""
    if lost == "a file":
        (table / slot.files[0].path).unlink()
    else:
        shutil.rmtree(table)
    found = run(delta.probe(key, digest_of(slot)))
    assert (found.verdict, found.remedy) == (Evidence.GONE, "")
    again = staged(delta, later(key, 2), 1, 1, 2, 3)
    assert isinstance(run(delta.commit(later(key, 2), again)), Committed)
    assert numbers_in(table) == [1, 2, 3]


class Counting(FolderObjects):
    """Counts the entries of the log that are read."""

    def __init__(self, table: Path) -> None:
        super().__init__(table, durable=False)
        self.entries = 0

    async def get(self, path: str) -> bytes | None:
        self.entries += path.startswith("_delta_log/")
        return await super().get(path)
