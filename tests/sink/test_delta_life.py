"""A Delta output under reruns, other engines and time: replaced, rewritten, dropped, vacuumed and swept, and what is reported then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from harness.arrow_stage import table_of
from harness.delta_stage import delta_stage, numbers_in
from harness.delta_tables import ORDERS, later, sink_on, staged
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, OutputCorrupt, OutputUnsafe, OutputUnsupported
from sparkonce.model.record import Intent, Verdict
from sparkonce.model.spec import OnRerun
from sparkonce.sink.delta import evidence
from sparkonce.sink.delta.inventory import staging_folder
from sparkonce.sink.delta.numbering import slot_number
from sparkonce.sink.delta.sink import DeltaTableSink, digest_of, open_delta
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Committed, DataFile, Declared, Evidence, SinkKey, Slot, SlotState, Stuck
from sparkonce.sink.transaction import intent_of, settle


@pytest.fixture
def delta(table: Path) -> DeltaTableSink:
    return sink_on(table)


# --- reruns -------------------------------------------------------------------------------------------------------------------


def test_replace_removes_the_older_rows_in_the_same_entry(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """No version of the table shows both generations, or neither of them."""
    run(delta.commit(key, staged(delta, key, 1, 1, 2)))
    run(delta.commit(later(key, 2), staged(delta, later(key, 2), 1, 3)))
    assert numbers_in(table) == [3]
    versions = [numbers_in(table, version) for version in (0, 1, 2)]
    assert versions == [[], [1, 2], [3]]
    assert run(delta.probe(key, None)) is Evidence.REPLACED
    run(delta.commit(later(key, 3), staged(delta, later(key, 3), 1, 4)))
    assert numbers_in(table) == [4]


def test_append_keeps_the_older_rows(key: SinkKey, table: Path) -> None:
    """`onRerun: Append` adds rows; a later Replace removes all earlier ones."""
    appending, replacing = sink_on(table, OnRerun.APPEND), sink_on(table)
    for generation in (1, 2):
        each = later(key, generation)
        run(appending.commit(each, staged(appending, each, 1, generation)))
    assert numbers_in(table) == [1, 2]
    assert run(appending.probe(key, None)) is Evidence.PRESENT
    run(replacing.commit(later(key, 3), staged(replacing, later(key, 3), 1, 3)))
    assert numbers_in(table) == [3]


def test_other_keys_and_writers_are_never_replaced(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A rerun replaces only files of its own key and output."""
    other = SinkKey(key_hash="ffff", output="orders", generation=1)
    run(delta.commit(key, staged(delta, key, 1, 1)))
    run(delta.commit(other, staged(delta, other, 1, 50)))
    write_deltalake(str(table), table_of(100), mode="append")
    run(delta.commit(later(key, 2), staged(delta, later(key, 2), 1, 2)))
    assert numbers_in(table) == [2, 50, 100]


def test_replace_after_optimize_is_refused_before_the_rows_run(
    delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """Rows that were rewritten into files with other rows cannot be removed by file: refused in one sentence before anything is staged; the
    old rows stay."""
    run(delta.commit(key, staged(delta, key, 1, 1, 2)))
    DeltaTable(str(table)).optimize.compact()
    with pytest.raises(InvalidInput, match=r"another writer rewrote or deleted 2 file\(s\).*declare onRerun: Append"):
        staged(delta, later(key, 2), 1, 3)
    assert not (table / f"so-{later(key, 2)}").exists()
    appending = sink_on(table, OnRerun.APPEND)
    run(appending.commit(later(key, 2), staged(appending, later(key, 2), 1, 3)))
    assert numbers_in(table) == [1, 2, 3]


def test_optimize_between_staging_and_commit_makes_a_replacing_slot_stuck(
    delta: DeltaTableSink, key: SinkKey, table: Path
) -> None:
    """No version shows both generations or neither: none of the new rows becomes visible."""
    run(delta.commit(key, staged(delta, key, 1, 1, 2)))
    slot = staged(delta, later(key, 2), 1, 3)
    DeltaTable(str(table)).optimize.compact()
    decision = run(delta.commit(later(key, 2), slot))
    assert isinstance(decision, Stuck)
    assert "another writer rewrote" in decision.why
    assert numbers_in(table) == [1, 2]


def test_replace_whose_older_slot_is_lost_is_corrupt(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Missing evidence is never taken for "nothing to replace"."""
    slot = staged(delta, key, 1, 1, 2)
    run(delta.commit(key, slot))
    (table / evidence.slot_path(slot)).unlink()
    with pytest.raises(OutputCorrupt, match="is gone or cannot be read; restore that folder"):
        staged(delta, later(key, 2), 1, 3)


# --- tables that change under a job ------------------------------------------------------------------------------------------


def test_a_table_that_was_dropped_is_stuck(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A slot is committed only to the table that it was staged for, not to a missing one and not to another one of the same name."""
    write_deltalake(str(table), table_of(100))
    slot = staged(delta, key, 1, 1)
    for path in (table / "_delta_log").iterdir():
        path.unlink()
    decision = run(delta.commit(key, slot))
    assert isinstance(decision, Stuck)
    assert "was dropped after the rows were staged" in decision.why
    write_deltalake(str(table), table_of(7), mode="overwrite")
    decision = run(delta.commit(key, slot))
    assert isinstance(decision, Stuck)
    assert "recreated" in decision.why
    assert numbers_in(table) == [7]


def test_staged_files_that_vanished_are_stuck(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """VACUUM without retention deletes files that no version references: the slot is Stuck, and no row that cannot be read is committed."""
    write_deltalake(str(table), table_of(100))
    slot = staged(delta, key, 1, 1, 2)
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    decision = run(delta.commit(key, slot))
    assert isinstance(decision, Stuck)
    assert "2 staged file(s) are gone" in decision.why
    assert numbers_in(table) == [100]


def test_vacuum_leaves_evidence_and_committed_rows(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """After VACUUM the table can be read, its slot is found complete, and replaced files are deleted."""
    many = open_delta(ORDERS, FolderObjects(table, durable=False), stage=delta_stage)
    slot = staged(many, key, 1, 1, 2)
    run(many.commit(key, slot))
    second = later(key, 2)
    newer = staged(many, second, 1, 3)
    run(many.commit(second, newer))
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert numbers_in(table) == [3]
    assert (run(many.find(key)), run(many.find(second))) == (slot, newer)
    assert run(many.probe(second, digest_of(newer))) is Evidence.PRESENT
    assert not (table / slot.files[0].path).exists()


@pytest.mark.parametrize(("dropped", "verdict"), [(False, Verdict.ALL), (True, Verdict.STUCK)])
def test_a_sealed_slot_is_rolled_forward_or_stuck(
    delta: DeltaTableSink, key: SinkKey, table: Path, dropped: bool, verdict: Verdict
) -> None:
    """Settling commits what the driver had sealed; if the table no longer exists, the attempt is Stuck with a reason, and no new table is
    created."""
    write_deltalake(str(table), table_of(100))
    sealed = intent_of(1, {"orders": staged(delta, key, 1, 1, 2)})
    if dropped:
        for path in (table / "_delta_log").iterdir():
            path.unlink()
    found = run(
        settle(
            (sink_on(table),),
            key_hash=key.key_hash,
            generation=1,
            attempt=1,
            fingerprint="f",
            intent=Intent.model_validate(sealed.dump()),
            by="settle run",
        )
    )
    assert found.verdict is verdict
    if dropped:
        assert "was dropped after the rows were staged" in found.note
    else:
        assert numbers_in(table) == [1, 2, 100]


# --- probe, sweep, inventory ---------------------------------------------------------------------------------------------


def test_probe_sees_what_is_there(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Present means that the slot has the recorded digest and that its files are live and complete; the probe writes nothing."""
    slot = staged(delta, key, 1, 1, 2, 3)
    assert run(delta.probe(key, None)) is Evidence.GONE
    run(delta.commit(key, slot))
    before = {path: path.read_bytes() for path in table.rglob("*") if path.is_file()}
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert run(delta.probe(key, None)) is Evidence.PRESENT
    assert run(delta.probe(key, "0" * 64)) is Evidence.GONE
    assert {path: path.read_bytes() for path in table.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", ["delete", "shorten", "slot"])
def test_probe_misses_what_is_lost(delta: DeltaTableSink, key: SinkKey, table: Path, damage: str) -> None:
    """A file that is missing or has another size, or a slot that is not there, makes the result gone."""
    slot = staged(delta, key, 1, 1, 2, 3)
    run(delta.commit(key, slot))
    file = table / (evidence.slot_path(slot) if damage == "slot" else slot.files[1].path)
    if damage == "shorten":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    assert run(delta.probe(key, digest_of(slot))).verdict is Evidence.GONE


def test_probe_tells_rewritten_rows_from_deleted_ones(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """OPTIMIZE moves rows and the result stays present; a DELETE or an overwrite changes it; once the log no longer shows which, the
    answer is "not checked"."""
    slot = staged(delta, key, 1, 1, 2, 3)
    run(delta.commit(key, slot))
    DeltaTable(str(table)).optimize.compact()
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    DeltaTable(str(table)).create_checkpoint()
    newest = max((table / "_delta_log").glob("*.json"))
    aside = newest.with_name("aside")
    newest.rename(aside)
    assert run(delta.probe(key, digest_of(slot))).verdict is Evidence.NOT_CHECKED
    aside.rename(newest)
    other = later(SinkKey(key_hash="ffff", output="orders", generation=1), 1)
    gone = staged(delta, other, 1, 9)
    run(delta.commit(other, gone))
    DeltaTable(str(table)).delete("n = 9")
    assert run(delta.probe(other, digest_of(gone))).verdict is Evidence.CHANGED


def test_sweep_deletes_only_what_can_never_be_committed(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """Before any commit the files of barred tokens are deleted and those of an open token stay; after a commit only the committed files
    stay."""
    fenced, open_, newer = (staged(delta, key, token, 1, 2) for token in (1, 2, 3))
    assert run(delta.sweep(key)).folders == 0
    run(delta.fence(key, 2, fingerprint="f", by="settle"))
    swept = run(delta.sweep(key))
    assert (swept.folders, swept.bytes) == (1, fenced.bytes)
    run(delta.commit(key, open_))
    assert run(delta.sweep(key)).folders == 1
    assert not (table / newer.files[0].path).exists()
    assert run(delta.probe(key, digest_of(open_))) is Evidence.PRESENT
    assert run(delta.sweep(key)).folders == 0


def test_inventory_names_effects_staging_and_live_files(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """The inventory has what an audit needs: commits with their files and visibility, staging folders, and every live file."""
    write_deltalake(str(table), table_of(100))
    first, lost = staged(delta, key, 1, 1, 2), staged(delta, key, 1, 1, 2)
    run(delta.commit(key, first))
    second = staged(delta, later(key, 2), 1, 3)
    run(delta.commit(later(key, 2), second))
    found = run(delta.inventory())
    assert {(effect.slot.sink_key, effect.visible) for effect in found.effects} == {
        (str(key), False),
        (str(later(key, 2)), True),
    }
    assert {folder.nonce: folder.unreachable for folder in found.staged} == {
        first.nonce: False,
        lost.nonce: True,
        second.nonce: False,
    }
    live = {file.path for file in second.files}
    assert live < set(found.live)
    assert len(found.live) == len(live) + 1
    assert found.unreadable == ()
    (table / evidence.slot_path(first)).unlink()
    assert len(run(delta.inventory()).unreadable) == 1


# --- opening ----------------------------------------------------------------------------------------------------------------


def test_many_files_stand_in_a_list_that_vacuum_leaves(
    delta: DeltaTableSink, key: SinkKey, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long list of a slot's files lies beside the table, outside the folders that VACUUM searches."""
    monkeypatch.setattr("sparkonce.sink.slotlog.layout.FILES_IN_SLOT", 1)
    slot = staged(delta, key, 1, 1, 2)
    assert slot.listing is not None
    run(delta.commit(key, slot))
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert run(delta.probe(key, digest_of(slot))) is Evidence.PRESENT
    run(delta.commit(later(key, 2), staged(delta, later(key, 2), 1, 3)))
    assert numbers_in(table) == [3]


def test_check_finds_a_place_that_replaces_what_is_there(
    delta: DeltaTableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place where the same object can be created twice is refused before anything runs."""

    async def careless(path: str, data: bytes) -> bool:
        return True

    run(delta.check())
    monkeypatch.setattr(delta._objects, "create", careless)
    with pytest.raises(OutputUnsafe, match="does not honour create-if-absent"):
        run(delta.check())


def test_check_refuses_a_table_that_forgets(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A table whose evidence expires is refused at the start-up check, before rows are staged, and by a fence, whose answer would not be
    final."""
    slot = staged(delta, key, 2, 1)
    write_deltalake(
        str(table), table_of(100), configuration={"delta.setTransactionRetentionDuration": "interval 7 days"}
    )
    forgets = "forgets who committed after interval 7 days"
    with pytest.raises(OutputUnsupported, match=forgets):
        run(delta.check())
    with pytest.raises(OutputUnsupported, match=forgets):
        staged(delta, key, 1, 1)
    with pytest.raises(OutputUnsupported, match=forgets):
        run(delta.fence(key, 2, fingerprint="f", by="settle"))
    assert isinstance(run(delta.commit(key, slot)), Stuck)


def test_open_sink_knows_delta(tmp_path: Path) -> None:
    """A declared Delta output is a Delta sink, and opening it touches nothing."""
    sink = open_sink(Declared(name="orders", kind="delta", location="lake/orders"), base=str(tmp_path))
    assert (sink.kind, sink.uri) == ("delta", (tmp_path / "lake" / "orders").as_uri())
    assert list(tmp_path.iterdir()) == []


def test_without_deltalake_the_sentence_says_what_to_install(tmp_path: Path) -> None:
    """The core can be imported without the extra; a job that declares a Delta output is refused with the field and what to install."""
    code = (
        "import sys; sys.modules['deltalake'] = None\n"
        "from sparkonce.sink.open import open_sink\n"
        "from sparkonce.sink.protocol import Declared\n"
        "open_sink(Declared(name='orders', kind='delta', location='/lake/orders'), base=None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "LibraryMissing: spec.outputs[orders].delta: " in done.stderr
    assert "pip install sparkonce[delta]" in done.stderr


def test_a_percent_sign_in_the_path_is_refused(tmp_path: Path) -> None:
    """delta-rs decodes such a path twice, so it is refused when the output is opened, not after the rows were computed."""
    with pytest.raises(InvalidInput, match="paths with a percent sign"):
        open_sink(Declared(name="orders", kind="delta", location=str(tmp_path / "a%20b")), base=None)


def test_a_path_with_odd_characters_works(tmp_path: Path, key: SinkKey) -> None:
    """Folder names may contain spaces, hashes, colons and letters beyond ASCII."""
    table = tmp_path / "my lake #1" / "a:b=c~ü" / "orders"
    sink = sink_on(table)
    slot = staged(sink, key, 1, 1, 2, 3)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    assert numbers_in(table) == [1, 2, 3]


def test_slots_without_rows_are_committed(delta: DeltaTableSink, key: SinkKey, table: Path) -> None:
    """A stream's opening has no columns and no files: it is committed to the log, and the first rows define the table's columns."""
    opening = Slot(state=SlotState.COMMITTED, sink_key=str(key), token=1, nonce="a1", fingerprint="f")
    assert run(delta.commit(key, opening)) == Committed(opening)
    batch = key.model_copy(update={"batch": 0})
    slot = staged(delta, batch, 1, 1, 2)
    assert slot.files[0].path.startswith(staging_folder(batch, 1, slot.nonce))
    assert run(delta.commit(batch, slot)) == Committed(slot)
    assert numbers_in(table) == [1, 2]


def test_the_number_of_a_slot_is_golden() -> None:
    """Logs written by any version identify slots by this number: it never changes, and fits a signed 64-bit integer."""
    slot = Slot(
        state=SlotState.COMMITTED,
        sink_key="a-o-g1",
        token=1,
        nonce="n",
        files=(DataFile(path="p", rows=1, bytes=2, digest="d"),),
    )
    assert slot_number(slot) == int(digest_of(slot)[:16], 16) >> 1
    assert 0 <= slot_number(slot) < 2**63
