"""The same defects in each kind of table: an audit's findings do not depend on how a kind stores its evidence.

Where planting a defect would need detailed knowledge of a format, the ledger is made wrong instead: its record is Failed although the run
is committed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from audit.scene import WEEK, Kinds, kinds, only, scene
from harness.arrow_stage import table_of
from sparkonce.attempt.decide import Finalize, Observation
from sparkonce.attempt.outcome import failed, succeeded
from sparkonce.audit.cleanup import sweep
from sparkonce.audit.files import with_threads
from sparkonce.audit.findings import Kind, Severity
from sparkonce.audit.inspection import Audit
from sparkonce.audit.places import AuditedTable, open_place
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput
from sparkonce.model.record import Outcome, Why
from sparkonce.sink.protocol import Committed, SinkKey
from sparkonce.sink.transaction import settle
from sparkonce.store.protocol import Finalized

SLOT_FILES = {"slotLog": "_idem/*-g1/*.json", "delta": "_sparkonce/**/slot.json", "iceberg": "data/so-*/*/_slot-*.json"}


def test_a_clean_table(full: Kinds) -> None:
    """Three jobs: three effects, eight rows and no finding, audited by the specs in the ledger."""
    report = full.store.audit(deep=True)
    assert kinds(report) == []
    [table] = report.tables
    assert (table.kind, table.effects, table.visible, table.rows, table.files) == (full.kind, 3, 3, 8, 6)
    assert report.cost.files == (5 if full.kind == "iceberg" else 6)  # Iceberg leaves out the file without rows
    assert report.complete


def test_a_table_that_is_named(full: Kinds) -> None:
    """A table given by name and kind is audited without a ledger."""
    named = {"slotLog": "orders", "delta": "orders", "iceberg": "iceberg:lake.sales.orders"}[full.kind]
    report = full.store.audit(named, ledger=False)
    assert (kinds(report), report.tables[0].kind, report.rows) == ([], full.kind, 8)


@pytest.mark.parametrize("how", ["missing", "truncated", "rewritten"])
def test_a_file_that_is_not_as_it_was(full: Kinds, how: str) -> None:
    """A missing, truncated or rewritten data file of a visible commit is reported with its path."""
    path = full.files(full.store.written[1])[0]
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        from pyarrow import parquet

        parquet.write_table(pa.table({"n": pa.array([99, 98], pa.int64())}), path)
    found = only(full.store.audit())
    assert found.kind is (Kind.MISSING_FILE if how == "missing" else Kind.CHANGED_FILE)
    assert path.match(found.subject)
    assert str(full.store.written[1].key("orders")) in found.what


def test_staging_that_was_left_behind(full: Kinds) -> None:
    """Staging of a barred token is an orphan and is swept; that of an open token is kept and can still be committed."""
    barred = full.granted("barred")
    full.stage(barred, 50)
    barred.next_attempt()
    running = full.granted("running")
    sink, key = running.sinks()["orders"], running.key("orders")
    slot = sink.stage(table_of(60), key, 1, fingerprint=running.record.fingerprint)
    report = full.store.audit()
    assert kinds(report) == [Kind.ORPHAN_STAGING, Kind.OPEN_STAGING]
    assert str(barred.key("orders")) in report.findings[0].subject
    assert report.clean
    [dry] = sweep([AuditedTable(sink)], dry_run=True)
    [done] = sweep([AuditedTable(sink)], dry_run=False)
    assert (dry.folders, done.folders, done.left, done.bytes) == (1, 1, 1, dry.bytes)
    assert isinstance(run(sink.commit(key, slot)), Committed)
    full.store.finalize(running)
    assert kinds(full.store.audit()) == []
    assert full.store.audit().rows == 9


def test_a_commit_of_another_ledger(full: Kinds, tmp_path: Path) -> None:
    """A commit whose key this ledger never had is reported as lacking a record."""
    with scene(tmp_path) as other:
        other.folder = full.store.folder
        stranger = full.ran("stranger", 70, at=other)
    found = only(full.store.audit())
    assert (found.kind, found.subject) == (Kind.SLOT_WITHOUT_RECORD, str(stranger.key("orders")))


def test_a_table_that_is_gone(full: Kinds) -> None:
    """After a table was deleted, each of its records lacks its commit."""
    if full.kind == "iceberg":
        from harness.iceberg_tables import TABLE, catalog

        catalog().drop_table(TABLE)
    else:
        shutil.rmtree(full.folder)
    report = full.store.audit()
    assert kinds(report) == [Kind.RECORD_WITHOUT_SLOT] * 3, report.findings


def test_a_ledger_that_lies(full: Kinds) -> None:
    """The record of a committed run is Failed, or a success has another digest than was recorded: each is a broken promise."""
    lies = full.granted("lies")
    lies.job().write(table_of(80), "orders")
    now = lies.now()
    result = failed(now, Finalize(Outcome.FAILED, Why.EXITED, ""), Observation(seen=None), None, 0.0)
    assert isinstance(run(full.store.store.finalize(now, lies.claim, result, retention=WEEK)), Finalized)
    wrong = full.granted("wrong")
    wrong.job().write(table_of(81), "orders")
    now, sinks = wrong.now(), tuple(wrong.sinks().values())
    known = {"key_hash": now.key_hash, "generation": 1, "attempt": 1, "fingerprint": now.fingerprint}
    settlement = run(settle(sinks, intent=None, by="owner", **known))  # type: ignore[arg-type]
    told = succeeded(now, Finalize(Outcome.SUCCEEDED, Why.COMPLETED, ""), settlement, sinks=sinks, reports=[], now=0.0)
    other = told.outputs[0].model_copy(update={"digest": "0" * 64})
    told = told.model_copy(update={"outputs": (other,)})
    assert isinstance(run(full.store.store.finalize(now, wrong.claim, told, retention=WEEK)), Finalized)
    report = full.store.audit()
    assert [(each.kind, each.subject) for each in report.findings] == [
        (Kind.DIGEST_DIFFERS, str(wrong.key("orders"))),
        (Kind.EFFECT_OF_FAILED, str(lies.key("orders"))),
    ]


def test_one_write_under_two_keys(full: Kinds) -> None:
    """One write that was committed again under another key is reported as duplicate rows."""
    job = full.store.written[0]
    sink, slot = job.sinks()["orders"], job.committed("orders")
    assert slot is not None
    other = SinkKey(key_hash="e" * 64, output="orders", generation=1)
    folder = next(folder.path for folder in full.inventory().staged if str(job.key("orders")) in folder.path)
    copy = folder.replace(str(job.key("orders")), str(other))
    shutil.copytree(full.folder / folder, full.folder / copy)
    files = tuple(file.model_copy(update={"path": file.path.replace(folder, copy)}) for file in slot.files)
    forged = slot.model_copy(update={"sink_key": str(other), "files": files})
    assert isinstance(run(sink.commit(other, forged)), Committed)
    report = Audit(places=[AuditedTable(sink)], read_files=with_threads(open_place)).run()
    found = only(report)
    assert (found.kind, found.severity) == (Kind.DUPLICATE_ROWS, Severity.DEFECT)
    assert str(other) in found.what
    assert str(job.key("orders")) in found.what


def test_evidence_that_cannot_be_read(full: Kinds) -> None:
    """A damaged slot is named, and its consequences are not reported beside it."""
    damaged = min(full.folder.glob(SLOT_FILES[full.kind]))
    damaged.write_bytes(b"{")
    assert set(kinds(full.store.audit())) == {Kind.UNREADABLE}


def test_other_writers_are_no_defect(full: Kinds) -> None:
    """Rows that another program appends to a Delta or an Iceberg table are legal, and so is a compaction of a Delta table."""
    if full.kind == "slotLog":
        return  # only slots add rows there; test_planted.py has rows without a slot
    rows = pa.table({"n": pa.array([1000], pa.int64())})
    if full.kind == "delta":
        from deltalake import DeltaTable, write_deltalake

        write_deltalake(str(full.folder), rows, mode="append")
        assert kinds(full.store.audit()) == [Kind.FOREIGN_FILES]
        DeltaTable(str(full.folder)).optimize.compact()
        report = full.store.audit()
        assert set(kinds(report)) == {Kind.FOREIGN_FILES, Kind.REWRITTEN}
    else:
        from harness.iceberg_tables import table

        table().append(rows)
        report = full.store.audit()
    assert report.clean


def test_rows_that_somebody_put_back(full: Kinds) -> None:
    """A rerun's rows replace the earlier ones; if a user restores the table, its readers see rows that belong to no result."""
    if full.kind == "slotLog":
        return  # its readers see exactly what the slots say
    job = full.store.written[0]
    sink, key = job.sinks()["orders"], job.key("orders").model_copy(update={"generation": 2})
    undo = _delta_undo(full.folder) if full.kind == "delta" else _iceberg_undo()
    assert isinstance(run(sink.commit(key, sink.stage(table_of(5), key, 1, fingerprint="f"))), Committed)
    audit = Audit(places=[AuditedTable(sink)], read_files=with_threads(open_place))
    assert kinds(audit.run()) == []
    undo()
    report = audit.run()
    hidden = Kind.REMOVED_ROWS if full.kind == "delta" else Kind.HIDDEN_ROWS
    assert kinds(report) == [Kind.UNKNOWN_ROWS, hidden]
    assert report.findings[0].subject == str(job.key("orders"))
    assert ("(RESTORE)" if full.kind == "delta" else "is not in the history of main") in report.findings[1].what


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_that_somebody_removed(full: Kinds, compacted: bool) -> None:
    """A table without one of our rows is not clean, also where the rows had been compacted before; the finding names the commit. Jobs that
    the commit did not touch have a note at most."""
    if full.kind == "slotLog":
        return  # its readers see exactly what the slots say
    if full.kind == "delta":
        from deltalake import DeltaTable

        if compacted:
            DeltaTable(str(full.folder)).optimize.compact()
        assert full.store.audit().clean
        DeltaTable(str(full.folder)).delete("n = 2")
        named = f"version {DeltaTable(str(full.folder)).version()} (DELETE)"
    else:
        from harness.iceberg_tables import compact, table

        if compacted:
            compact()
        assert full.store.audit().clean
        table().delete("n = 2")
        named = f"snapshot {table().metadata.current_snapshot_id} (overwrite)"
    report = full.store.audit()
    assert not report.clean
    removed = [each for each in report.findings if each.kind is Kind.REMOVED_ROWS]
    assert all(named in each.what for each in removed)
    assert {each.severity for each in removed} == {Severity.DEFECT}
    own = str(full.store.written[0].key("orders"))
    assert own in {each.subject for each in removed}
    assert compacted or [each.subject for each in removed] == [own], "after a compaction the rows cannot be told apart"


def test_rows_that_another_job_replaced_are_a_note(full: Kinds) -> None:
    """Where every commit that removed the rows is one of sparkonce's, that is what those jobs are for: the table is clean, and a note has
    the key."""
    if full.kind != "delta":
        return  # a Delta entry can be written by hand; the verdict is the same code for both kinds
    from deltalake import DeltaTable

    own, other = (job.key("orders") for job in full.store.written[:2])
    version = DeltaTable(str(full.folder)).version() + 1
    [effect] = [each for each in full.inventory().effects if each.slot.sink_key == str(own)]
    actions = [
        {"commitInfo": {"operation": "WRITE"}},
        {"txn": {"appId": f"idem:{other}", "version": committed(full.folder, other)}},
        *({"remove": {"path": each.path, "dataChange": True, "deletionTimestamp": 1}} for each in effect.files),
    ]
    text = "".join(json.dumps(each) + "\n" for each in actions)
    (full.folder / "_delta_log" / f"{version:020d}.json").write_text(text)
    report = full.store.audit()
    assert report.clean
    [found] = [each for each in report.findings if each.kind is Kind.REWRITTEN]
    assert found.subject == str(own)
    assert f"version {version} (WRITE, key {other.key_hash[:12]})" in found.what


@pytest.mark.parametrize(
    "location", ["file://[lake/orders", "file:///lake/\0/orders", "s3://[lake/orders", "lake/orders", ""]
)
def test_a_table_whose_location_is_no_path(full: Kinds, location: str) -> None:
    """Metadata that places an Iceberg table nowhere is a finding of that table; the other outputs are audited, and no job writes to it."""
    if full.kind != "iceberg":
        return  # the other kinds are placed by their specs
    from harness.iceberg_tables import table

    full.store.ran("beside", 1, 2)
    file = Path(table().metadata_location.removeprefix("file://"))
    good = file.read_bytes()
    file.write_text(json.dumps(json.loads(good) | {"location": location}))
    report = full.store.audit()
    found = only(report)
    assert (found.kind, found.subject) == (Kind.NOT_SEEN, "lake.sales.orders")
    assert f"location {location!r}" in found.what
    assert ([each.kind for each in report.tables], report.complete) == (["slotLog"], False)
    late = full.granted("late")
    with pytest.raises(InvalidInput, match=r"lake\.sales\.orders"):
        late.job().write(table_of(3), "orders")
    file.write_bytes(good)
    late.job().write(table_of(3), "orders")
    assert full.store.audit().complete


def test_a_commit_whose_location_is_no_path(full: Kinds) -> None:
    """A tag that places one commit nowhere is a finding of that commit; the others are audited."""
    if full.kind != "iceberg":
        return  # slots of the other kinds are where the table is
    from harness.iceberg_tables import table

    file = Path(table().metadata_location.removeprefix("file://"))
    metadata, own = json.loads(file.read_bytes()), str(full.store.written[1].key("orders"))
    for snapshot in metadata["snapshots"]:
        if snapshot["summary"].get("sparkonce.sink-key") == own:
            snapshot["summary"]["sparkonce.location"] = "file://[lake/orders"
    file.write_text(json.dumps(metadata))
    report = full.store.audit()
    [found] = [each for each in report.findings if each.kind is Kind.UNREADABLE]
    assert own in found.what
    assert report.tables[0].effects == 2


def committed(folder: Path, key: SinkKey) -> int:
    from deltalake import DeltaTable

    number = DeltaTable(str(folder)).transaction_version(f"idem:{key}")
    assert number is not None
    return number


def _delta_undo(folder: Path) -> Callable[[], object]:
    from deltalake import DeltaTable

    version = DeltaTable(str(folder)).version()
    return lambda: DeltaTable(str(folder)).restore(version)


def _iceberg_undo() -> Callable[[], object]:
    from harness.iceberg_tables import table

    snapshot = table().metadata.current_snapshot_id
    assert snapshot is not None
    return lambda: table().manage_snapshots().rollback_to_snapshot(snapshot).commit()
