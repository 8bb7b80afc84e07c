"""Changes that others make to an Iceberg table between our commits, and tables that are refused from the start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from harness import iceberg_tables
from harness.arrow_stage import table_of
from harness.iceberg_lossy import Lossy
from harness.iceberg_tables import (
    digest_of,
    folders,
    generation,
    opened,
    rest_catalog,
    rows,
    staged,
    written,
)
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputCorrupt, OutputUnavailable, OutputUnsafe, OutputUnsupported
from sparkonce.model.spec import OnRerun
from sparkonce.sink.iceberg.sink import IcebergTableSink
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared, Evidence, FencedOff, SinkKey, Stuck, WriteOptions

# --- changes to a table -----------------------------------------------------------------------------------------------


def test_expiry_of_snapshots_keeps_the_evidence_and_nothing_else(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """After all snapshots that no branch or tag refers to expired, commit and fence are still known, and none of the kept ones but the head
    has files."""
    slot = written(iceberg_sink, key, 1, 1)
    assert run(iceberg_sink.fence(generation(key, 3), 2, fingerprint="f", by="settle")) is None
    written(iceberg_sink, generation(key, 2), 1, 2)
    table = iceberg_tables.table()
    head = table.current_snapshot()
    assert head is not None
    assert {ref.max_ref_age_ms for name, ref in table.metadata.refs.items() if name != "main"} == {2**63 - 1}
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    table.maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]
    ).commit()
    table = iceberg_tables.table()
    assert [each.snapshot_id for each in table.metadata.snapshots if each.manifests(table.io)] == [head.snapshot_id]
    assert run(opened().find(key)) == slot
    assert run(opened().fence(key, 9, fingerprint="f", by="settle")) == slot
    assert isinstance(
        run(opened().commit(generation(key, 3), staged(opened(), generation(key, 3), 1, 9))), Stuck | FencedOff
    )
    assert rows() == [2]


def test_rerun_replaces_in_one_commit(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """Generation 2 removes generation 1's files in the commit that adds its own; other keys' and foreign rows stay."""
    other = SinkKey(key_hash="c3d4", output="orders", generation=1)
    first = written(iceberg_sink, key, 1, 1, 2)
    written(iceberg_sink, other, 1, 10)
    iceberg_tables.table().append(table_of(20))
    before = len(iceberg_tables.table().history())
    second = written(iceberg_sink, generation(key, 2), 1, 3)
    assert rows() == [3, 10, 20]
    assert len(iceberg_tables.table().history()) == before + 1
    assert run(iceberg_sink.probe(key, digest_of(first))) is Evidence.REPLACED
    assert run(iceberg_sink.probe(generation(key, 2), digest_of(second))) is Evidence.PRESENT
    written(iceberg_sink, generation(key, 3), 1, 4)
    assert rows() == [4, 10, 20]


def test_rerun_appends(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """With `onRerun: Append` both generations stay; a later Replace removes both."""
    appending = opened(on_rerun=OnRerun.APPEND)
    first = written(appending, key, 1, 1)
    written(appending, generation(key, 2), 1, 2)
    assert rows() == [1, 2]
    assert run(iceberg_sink.probe(key, digest_of(first))) is Evidence.PRESENT
    written(iceberg_sink, generation(key, 3), 1, 3)
    assert rows() == [3]


def test_a_late_commit_of_a_replaced_generation_is_stuck(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """Generation 1 resumes after generation 2 is committed: its rows never appear beside the ones that replaced them."""
    late = staged(sql_sink, key, 1, 1)
    written(sql_sink, generation(key, 2), 1, 2)
    decision = run(sql_sink.commit(key, late))
    assert isinstance(decision, Stuck)
    assert "generation 2" in decision.why
    assert rows() == [2]


def test_what_was_rewritten_cannot_be_replaced(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """After another user rewrote the earlier generation's files a rerun is refused before any row is written; with Append it is
    committed."""
    slot = written(sql_sink, key, 1, 1, 2)
    iceberg_tables.table().delete("n = 1")
    with pytest.raises(InvalidInput, match=r"no longer in lake\.sales\.orders as it wrote them"):
        staged(sql_sink, generation(key, 2), 1, 3)
    assert run(sql_sink.probe(key, digest_of(slot))).verdict is Evidence.CHANGED
    written(opened(on_rerun=OnRerun.APPEND), generation(key, 2), 1, 3)
    assert rows() == [2, 3]


def test_a_dropped_table_is_stuck_and_so_is_one_made_anew(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """A slot that was staged for one table is never committed to another table of the same name, and the probe reports its earlier rows as
    gone."""
    first = written(iceberg_sink, key, 1, 1)
    slot = staged(iceberg_sink, generation(key, 2), 1, 2)
    iceberg_tables.catalog().drop_table(iceberg_tables.TABLE)
    decision = run(iceberg_sink.commit(generation(key, 2), slot))
    assert isinstance(decision, Stuck)
    assert "was dropped" in decision.why
    assert run(iceberg_sink.probe(key, digest_of(first))) is Evidence.GONE
    iceberg_tables.catalog().create_table(iceberg_tables.TABLE, schema=pa.schema([("n", pa.int64())]))
    decision = run(iceberg_sink.commit(generation(key, 2), slot))
    assert isinstance(decision, Stuck)
    assert "recreated" in decision.why
    assert rows() == []
    run(iceberg_sink.fence(key, 2, fingerprint="f", by="settle"))
    run(iceberg_sink.sweep(key))
    assert len(list(iceberg_tables.folder_of().glob("data/so-a1b2-orders-g1/*"))) == 1, (
        "the dropped table's rows are not ours"
    )


def test_a_table_that_changed_under_the_rows_is_stuck(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A column was dropped or retyped between staging and commit: nothing is visible, and the sentence names the column."""
    written(sql_sink, key, 1, 1)
    slot = staged(sql_sink, generation(key, 2), 1, 2)
    with iceberg_tables.table().update_schema() as schema:
        schema.rename_column("n", "m")
    decision = run(sql_sink.commit(generation(key, 2), slot))
    assert isinstance(decision, Stuck)
    assert "no column n" in decision.why


@pytest.mark.parametrize("name", ["n", "m"])
def test_a_reused_name_is_refused_where_files_have_no_ids(sql_sink: IcebergTableSink, key: SinkKey, name: str) -> None:
    """Files of an earlier version have no field ids and are read by name: the values of a renamed or dropped column would appear in a new
    column of that name."""
    frame: Any = pa.table({"n": [1], "m": [1], "k": [1]})
    slot = sql_sink.stage(frame, key, 1, fingerprint="f")
    run(sql_sink.commit(key, slot))
    with iceberg_tables.table().update_schema(allow_incompatible_changes=True) as change:
        change.rename_column("n", "number")
        change.delete_column("m")
    again: Any = pa.table({name: [2], "k": [2]})
    other = key.model_copy(update={"key_hash": "c3d4"})
    with pytest.raises(
        InvalidInput,
        match=f"it had a column {name} before, which was renamed or dropped, .*; rename the column in the rows",
    ):
        sql_sink.stage(again, other, 1, fingerprint="f", options=WriteOptions(merge_schema=True))
    renamed: Any = pa.table({f"{name}2": [2], "k": [2]})
    slot = sql_sink.stage(renamed, other, 1, fingerprint="f", options=WriteOptions(merge_schema=True))
    run(sql_sink.commit(other, slot))
    assert rows("k") == [1, 2]


def test_staged_files_that_vanished_are_stuck(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A staged file was deleted or truncated: the slot is Stuck, and another attempt can commit."""
    for slot, damage in ((staged(sql_sink, key, 1, 1), "delete"), (staged(sql_sink, key, 2, 2), "cut")):
        file = iceberg_tables.folder_of() / slot.files[0].path
        if damage == "delete":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-1])
        decision = run(sql_sink.commit(key, slot))
        assert isinstance(decision, Stuck)
        assert "1 staged file(s)" in decision.why
    written(sql_sink, key, 3, 3)


@pytest.mark.parametrize("damage", ["delete", "change"])
def test_a_slot_that_is_gone_is_not_an_empty_one(sql_sink: IcebergTableSink, key: SinkKey, damage: str) -> None:
    """The tag shows that the key is committed: without the slot's bytes find, fence and commit raise OutputCorrupt, and never report an
    open key; the probe says gone."""
    slot = written(sql_sink, key, 1, 1)
    file = next(iceberg_tables.folder_of().glob("data/so-*/*/_slot-*.json"))
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes().replace(b'"rows":1', b'"rows":2'))
    for verb in (sql_sink.find(key), sql_sink.fence(key, 2, fingerprint="f", by="x"), sql_sink.commit(key, slot)):
        with pytest.raises(OutputCorrupt, match="restore it from a backup"):
            run(verb)
    assert run(sql_sink.probe(key, digest_of(slot))).verdict is Evidence.GONE
    assert len(run(sql_sink.inventory()).unreadable) == 1


def test_a_tag_of_ours_that_somebody_moved_is_an_error(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """A tag `idem.<key>` on a snapshot without evidence raises OutputCorrupt; the key does not count as open."""
    written(sql_sink, generation(key, 2), 1, 1)
    table = iceberg_tables.table()
    head = table.current_snapshot()
    assert head is not None
    update = SetSnapshotRefUpdate(
        ref_name=f"idem.{key}", type=SnapshotRefType.TAG, snapshot_id=head.snapshot_id,
        max_ref_age_ms=None, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
    )  # fmt: skip
    table.catalog.commit_table(table, (), (update,))
    with pytest.raises(OutputCorrupt, match=r"idem\.a1b2-orders-g1"):
        run(sql_sink.find(key))


@pytest.mark.parametrize("damage", ["delete", "cut"])
def test_probe_misses_a_file(sql_sink: IcebergTableSink, key: SinkKey, damage: str) -> None:
    """A file that is missing or has another size makes the result gone, and so does another digest."""
    slot = written(sql_sink, key, 1, 1, 2, 3)
    assert run(sql_sink.probe(key, "0" * 64)) is Evidence.GONE
    file = iceberg_tables.folder_of() / slot.files[1].path
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    assert run(sql_sink.probe(key, digest_of(slot))).verdict is Evidence.GONE


def test_probe_of_a_table_that_does_not_exist_makes_none(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """The probe of a deleted table says gone and does not recreate it; neither do find, sweep, inventory and check."""
    assert run(iceberg_sink.probe(key, None)) is Evidence.GONE
    assert run(iceberg_sink.find(key)) is None
    assert run(iceberg_sink.sweep(key)).folders == 0
    assert run(iceberg_sink.inventory()).effects == ()
    run(iceberg_sink.check())
    assert not iceberg_tables.catalog().table_exists(iceberg_tables.TABLE)


def test_sweep_deletes_only_what_can_never_be_committed(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """Before any commit the files of barred tokens are deleted; after a commit, all files but the committed ones."""
    for token in (1, 2, 3):
        staged(sql_sink, key, token, token)
    assert run(sql_sink.sweep(key)).folders == 0
    run(sql_sink.fence(key, 2, fingerprint="f", by="settle"))
    assert run(sql_sink.sweep(key)).folders == 1
    assert [folder.name[:10] for folder in folders()] == ["0000000002", "0000000003"]
    slot = written(sql_sink, key, 4, 4)
    assert run(sql_sink.sweep(key)).folders == 2
    assert [folder.name for folder in folders()] == [f"0000000004-{slot.nonce}"]
    assert rows() == [4]


def test_inventory_names_effects_staging_and_live_files(iceberg_sink: IcebergTableSink, key: SinkKey) -> None:
    """The inventory has effects with their files, visible or replaced, and staging that can never be committed; foreign rows are not
    listed."""
    first = written(iceberg_sink, key, 1, 1)
    second = written(iceberg_sink, generation(key, 2), 1, 2)
    hopeless = staged(iceberg_sink, key, 2, 9)
    iceberg_tables.table().append(table_of(7))
    found = run(iceberg_sink.inventory())
    assert {each.slot.sink_key: (each.slot, each.visible) for each in found.effects} == {
        str(key): (first, False),
        str(generation(key, 2)): (second, True),
    }
    assert set(found.live) == {file.path for file in second.files if file.rows}
    assert [each.nonce for each in found.staged if each.unreachable] == [hopeless.nonce]
    assert found.unreadable == ()


# --- refused tables and locations ---------------------------------------------------------------------------------------


def test_a_catalog_that_ignores_requirements_is_refused(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """It is refused by the start-up check and when the table is created, in one sentence, before anything is staged."""

    class Careless(Lossy):
        def commit_table(self, table: Any, _requirements: Any, updates: Any) -> Any:
            return self._catalog.commit_table(table, (), updates)

    written(sql_sink, key, 1, 1)
    run(sql_sink.check())
    sql_sink._place.__dict__["catalog"] = Careless(sql_sink._place.catalog, times=0, lands=False)
    with pytest.raises(OutputUnsafe, match="makes changes whose requirements do not hold"):
        run(sql_sink.check())


def test_evidence_that_would_expire_is_refused(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """The start-up check notices a tag of ours whose retention another user shortened."""
    written(sql_sink, key, 1, 1)
    table = iceberg_tables.table()
    name = f"idem.{key}"
    update = SetSnapshotRefUpdate(
        ref_name=name, type=SnapshotRefType.TAG, snapshot_id=table.metadata.refs[name].snapshot_id,
        max_ref_age_ms=86_400_000, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
    )  # fmt: skip
    table.catalog.commit_table(table, (), (update,))
    with pytest.raises(OutputUnsafe, match=f"the tag {name} of lake.sales.orders would expire"):
        run(sql_sink.check())


def test_a_catalog_that_is_not_configured_is_one_sentence(tmp_path: Path) -> None:
    """The sentence names the variable to set."""
    with pytest.raises(InvalidInput, match=r"nowhere is not configured here .* set PYICEBERG_CATALOG__NOWHERE__URI"):
        run(open_sink(Declared(name="orders", kind="iceberg", location="nowhere.a.b"), base=None).check())


@pytest.mark.parametrize("location", ["lake", "lake.orders", "lake..orders", ".sales.orders"])
def test_a_location_without_a_namespace_is_refused(location: str) -> None:
    """A location has a catalog, a namespace and a table name; opening it does not contact the catalog."""
    with pytest.raises(InvalidInput, match=r"spec\.outputs\[orders\]\.iceberg"):
        open_sink(Declared(name="orders", kind="iceberg", location=location), base=None)


def test_a_catalog_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch, key: SinkKey) -> None:
    """For a closed port every verb that reads says in one sentence that the outcome is unknown."""
    for name, value in rest_catalog("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    for verb in (opened().find(key), opened().check(), opened().fence(key, 2, fingerprint="f", by="x")):
        with pytest.raises(OutputUnavailable, match="lake"):
            run(verb)


def test_a_format_version_that_cannot_be_written_is_refused(sql_sink: IcebergTableSink, key: SinkKey) -> None:
    """Version 1 tables have no sequence numbers: refused by the start-up check and before rows are written."""
    iceberg_tables.catalog().create_namespace("sales")
    iceberg_tables.catalog().create_table(
        iceberg_tables.TABLE, schema=pa.schema([("n", pa.int64())]), properties={"format-version": "1"}
    )
    with pytest.raises(OutputUnsupported, match="format version 1"):
        run(sql_sink.check())
    with pytest.raises(OutputUnsupported, match="format version 1"):
        staged(sql_sink, key, 1, 1)


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an Iceberg output without pyiceberg, the sentence says what to install."""
    for name in [name for name in sys.modules if name == "pyiceberg" or name.startswith("sparkonce.sink.iceberg.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(
        OutputUnsupported, match=r"^spec\.outputs\[orders\]\.iceberg: .* `pip install sparkonce\[iceberg\]`$"
    ):
        open_sink(Declared(name="orders", kind="iceberg", location="lake.sales.orders"), base=None)
