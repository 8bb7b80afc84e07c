"""Audits of tables on which others work: compaction, deletes, rollback, an expired history, files that no commit names.

What readers see is compared with delta-rs, pyiceberg and pyarrow, which read the rows. Each remedy that is printed is carried out.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import dataset, parquet

import sparkonce
from audit.scene import ROWS, Kinds, kinds, only
from harness import iceberg_tables
from harness.arrow_stage import table_of
from harness.delta_entries import add_entry, added, forget_entries, hide_first_row
from harness.delta_tables import sink_on
from sparkonce.audit.files import with_threads
from sparkonce.audit.findings import Finding, Kind, Severity
from sparkonce.audit.inspection import Audit
from sparkonce.audit.known import KnownRemoval, covered, read
from sparkonce.audit.places import AuditedTable, open_place
from sparkonce.audit.report import AuditReport
from sparkonce.blocking import run
from sparkonce.cli.audit import print_report
from sparkonce.sink.protocol import Change, Committed, SinkKey

OWN = sum(map(len, ROWS))
formats = pytest.mark.parametrize("full", ["delta"], indirect=True)
"""Of tests that `audit/long/test_iceberg_writers.py` runs on Iceberg, where they take ten times as long."""


def printed(report: AuditReport, capsys: pytest.CaptureFixture[str], *, every: bool = False) -> list[str]:
    """The lines about findings, as a person sees them."""
    capsys.readouterr()
    print_report(report, every=every)
    lines = capsys.readouterr().out.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith(tuple(Severity))), len(lines))
    return lines[first : lines.index("", first) if first < len(lines) else first]


def audited(full: Kinds, known: Sequence[KnownRemoval] = ()) -> AuditReport:
    return Audit(store=full.store.store, read_files=with_threads(open_place), known=known).run()


def acknowledged(*entries: Mapping[str, object]) -> tuple[KnownRemoval, ...]:
    """A file of `--known`, as a person writes it."""
    return read(json.dumps({"known": [{"reason": "asked for", **each} for each in entries]}).encode(), source="known")


def append(full: Kinds, *rows: int) -> None:
    if full.kind == "delta":
        write_deltalake(str(full.folder), table_of(*rows), mode="append")
    else:
        iceberg_tables.table().append(table_of(*rows))


def compact(full: Kinds) -> None:
    if full.kind == "delta":
        DeltaTable(str(full.folder)).optimize.compact()
    else:
        iceberg_tables.compact()


def delete(full: Kinds, predicate: str | None) -> None:
    if full.kind == "delta":
        DeltaTable(str(full.folder)).delete(predicate)
    elif predicate is None:
        iceberg_tables.table().delete()
    else:
        iceberg_tables.table().delete(predicate)


def forget_history(full: Kinds) -> None:
    """Removes what the table's history shows of earlier commits, as retention does."""
    if full.kind == "iceberg":
        iceberg_tables.forget()
    else:
        forget_entries(full.folder)


def rows_of_a_reader(full: Kinds) -> int:
    """Rows that a reader which is not ours reads."""
    if full.kind == "delta":
        return int(DeltaTable(str(full.folder)).to_pyarrow_table().num_rows)
    if full.kind == "iceberg":
        return len(iceberg_tables.rows())
    files = [path.removeprefix("file://") for path in sparkonce.files(str(full.folder))]
    return int(dataset.dataset(files).to_table().num_rows)


@formats
def test_a_compaction_is_one_finding(full: Kinds, capsys: pytest.CaptureFixture[str]) -> None:
    """After one compaction of twelve commits three lines are printed, with keys in place of hashes; the JSON has twelve findings, each with
    its key, and `--all` prints each."""
    for number in range(len(ROWS), 12):
        full.ran(f"day-{number}", number * 10)
    compact(full)
    report = audited(full)
    assert report.clean
    lines = printed(report, capsys)
    told = report.dump()
    foreign = [each for each in told["findings"] if each["kind"] == "foreign files"]
    assert len(lines) == 3 + 3 * len(foreign), lines
    assert len(foreign) == (full.kind == "delta"), "what the compaction wrote"
    [uri] = {each.table for each in report.findings}
    rewritten = lines[-3:]
    assert re.fullmatch(rf"note: rewritten: 12 in {re.escape(uri)}: day-\d+, day-\d+, day-\d+ and 9 more", rewritten[0])
    assert re.match(r"  the first: day-\d+ = [0-9a-f]{12}-orders-g1, attempt 1: .* and kept the rows", rewritten[1])
    assert len(printed(report, capsys, every=True)) == 36 + 3 * len(foreign)
    assert {each["key"] for each in told["findings"] if each not in foreign} == {
        f"day-{number}" for number in range(12)
    }
    assert [(each["count"], each["realm"]) for each in told["groups"]][-1] == (12, "local")
    [table] = report.tables
    assert table.rows_seen == table.rows == rows_of_a_reader(full)


@pytest.mark.parametrize("full", ["slotLog", "delta"], indirect=True)
def test_rows_that_readers_see(full: Kinds) -> None:
    """The report has the rows that readers see beside those that are committed: foreign rows are more, deleted ones less."""
    assert seen(full) == (OWN, OWN)
    if full.kind == "slotLog":
        return
    append(full, 100, 101, 102)
    assert seen(full) == (OWN, OWN + 3)
    delete(full, "n = 2")
    assert seen(full) == (OWN, OWN + 2)
    compact(full)
    assert seen(full) == (OWN, OWN + 2)
    delete(full, None)
    assert seen(full) == (OWN, 0)


def seen(full: Kinds) -> tuple[int, int | None]:
    [table] = audited(full).tables
    assert table.rows_seen == rows_of_a_reader(full)
    return table.rows, table.rows_seen


@pytest.mark.parametrize("full", ["delta"], indirect=True)
def test_rows_that_deletion_vectors_hide_are_not_seen(full: Kinds) -> None:
    """Rows that deletion vectors of Delta hide in our files and in others' are not counted."""
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    add_entry(full.folder, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
    append(full, 100, 101)
    live = run(full.store.written[0].sinks()["orders"].inventory())
    own, [foreign] = live.effects[0].files[0].path, live.others
    for path in (own, foreign):
        hide_first_row(full.folder, path)
    masks = pa.table(DeltaTable(str(full.folder)).deletion_vectors().read_all()).to_pylist()
    hidden = sum(each["selection_vector"].count(False) for each in masks)
    assert hidden == 2, "as delta-rs reads the vectors"
    [table] = audited(full).tables
    assert table.rows_seen == OWN + 2 - hidden
    [add] = [each for each in added(full.folder, DeltaTable(str(full.folder)).version() - 1) if each["path"] == own]
    removed = {"path": own, "dataChange": True, "deletionVector": add["deletionVector"], "deletionTimestamp": 1}
    add_entry(full.folder, {"commitInfo": {"operation": "UPDATE"}}, {"remove": removed}, {"add": add})
    [found] = audited(full).defects
    newest = DeltaTable(str(full.folder)).version()
    assert [each.commit for each in found.changes] == [f"version {newest}", f"version {newest - 2}"], "both are named"


@formats
@pytest.mark.parametrize("expired", [False, True])
def test_an_emptied_table_is_a_defect(full: Kinds, expired: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """All rows are deleted after a compaction: a defect, also once the history does not show it any more, when the rows are counted."""
    compact(full)
    delete(full, None)
    if expired:
        forget_history(full)
    report = audited(full)
    assert rows_of_a_reader(full) == 0
    assert (report.tables[0].rows_seen, report.clean) == (0, False)
    assert "no defect" not in report.verdict
    found = [each for each in report.findings if each.severity is Severity.DEFECT]
    if not expired:
        assert {each.kind for each in found} == {Kind.REMOVED_ROWS}
        assert len([line for line in printed(report, capsys) if line.startswith("defect")]) == 1
        return
    assert [(each.kind, each.rows) for each in found] == [(Kind.MISSING_ROWS, OWN)]


@pytest.mark.parametrize("full", ["delta"], indirect=True)
@pytest.mark.parametrize("damage", [b'{"txn":{"appId":"idem-', b'{"txn":[7]}\n', b'["txn"]\n'])
def test_a_damaged_entry_before_a_checkpoint_is_one_finding(full: Kinds, damage: bytes) -> None:
    """No reader meets such an entry, so only the audit finds it; it names the entry and goes on with the other tables."""
    lost = full.store.ran("other", 7, outputs=("totals",))
    shutil.rmtree(full.store.table("totals"))
    DeltaTable(str(full.folder)).create_checkpoint()
    entry = full.folder / "_delta_log" / f"{1:020d}.json"
    entry.write_bytes(damage)
    report = audited(full)
    assert kinds(report) == [Kind.UNREADABLE, Kind.RECORD_WITHOUT_SLOT]
    assert str(entry) in report.findings[0].what
    assert report.findings[1].key_hash == lost.record.key_hash
    assert rows_of_a_reader(full) == report.tables[0].rows_seen == OWN


@pytest.mark.parametrize("full", ["slotLog", "delta"], indirect=True)
def test_a_table_whose_commits_are_gone_is_not_called_clean(full: Kinds) -> None:
    """Without a ledger nothing shows that commits are missing from a table with staged files: the audit says that it compared nothing. With
    the ledger, as the remedy says, each is found."""
    empty_evidence(full)
    named = {"slotLog": "orders", "delta": "delta:orders", "iceberg": "iceberg:lake.sales.orders"}[full.kind]
    report = full.store.audit(named, ledger=False)
    assert (report.complete, report.clean) == (False, False)
    assert report.verdict.startswith("nothing is committed, so nothing was compared, in 1 table(s)")
    assert Kind.NOTHING_THERE in kinds(report)
    assert "name the ledger (--store)" in " ".join(each.todo for each in report.findings)
    assert kinds(full.store.audit(named)).count(Kind.RECORD_WITHOUT_SLOT) == len(ROWS)


def empty_evidence(full: Kinds) -> None:
    """Puts an empty table in place of the one with the commits; the data files stay."""
    if full.kind == "slotLog":
        shutil.rmtree(full.folder / "_idem")
    elif full.kind == "delta":
        folder = full.folder
        shutil.rmtree(folder / "_delta_log")
        write_deltalake(str(folder), table_of())
    else:
        location, catalog = iceberg_tables.table().location(), iceberg_tables.catalog()
        catalog.drop_table(iceberg_tables.TABLE)
        catalog.create_table(iceberg_tables.TABLE, schema=iceberg_tables.NUMBERS, location=location)


@formats
def test_missing_rows_that_are_meant(full: Kinds) -> None:
    """Where the history has expired, the number that the remedy gives acknowledges so many missing rows and no more."""
    compact(full)
    delete(full, "n = 2")
    forget_history(full)
    [missing] = [each for each in audited(full).findings if each.severity is Severity.DEFECT]
    assert (missing.kind, missing.rows) == (Kind.MISSING_ROWS, 1)
    told = re.search(r"list `rows: (\d+)`", missing.todo)
    assert told is not None
    known = acknowledged({"table": missing.table, "rows": int(told[1])})
    report = audited(full, known)
    assert (report.clean, [each["findings"] for each in report.dump()["known"]]) == (True, [1])
    assert "1 known finding(s)" in report.verdict
    delete(full, "n = 3")
    forget_history(full)
    report = audited(full, known)
    assert [(each.kind, each.rows) for each in report.defects] == [(Kind.MISSING_ROWS, 2)]


@formats
def test_a_table_that_lost_nothing_has_no_missing_rows(full: Kinds) -> None:
    """After compactions and foreign rows nothing is missing, with and without the history."""
    append(full, 100, 101)
    compact(full)
    forget_history(full)
    report = audited(full)
    assert report.clean
    assert {each.severity for each in report.findings} == {Severity.NOTE}
    assert seen(full) == (OWN, OWN + 2)


@formats
def test_a_removal_that_is_meant(full: Kinds, capsys: pytest.CaptureFixture[str]) -> None:
    """The name that is printed with a removal acknowledges that commit: the audit passes, and the JSON has the finding, the entry and the
    reason. A later removal, a damaged file and the same entry for another table are not covered."""
    delete(full, "n = 2")
    report = audited(full)
    assert [each.kind for each in report.defects] == [Kind.REMOVED_ROWS]
    [table] = {each.table for each in report.findings}
    told = re.search(r"if it was, list (.+) in the file", " ".join(printed(report, capsys)))
    assert told is not None
    known = acknowledged({"table": table, "commit": told[1]})
    report = audited(full, known)
    body = report.dump()
    assert (report.clean, body["clean"], body["defects"]) == (True, True, 0)
    [found] = [each for each in body["findings"] if each["kind"] == "removed rows"]
    assert (found["severity"], found["known"], found["key"]) == ("note", "asked for", "day-0")
    assert [each["commit"] for each in found["commits"]] == [told[1]]
    assert body["known"] == [{"table": table, "commit": told[1], "reason": "asked for", "findings": 1}]
    assert "(known: asked for)" in " ".join(printed(report, capsys))

    elsewhere = audited(full, acknowledged({"table": f"{table}2", "commit": told[1]}))
    assert [each.kind for each in elsewhere.defects] == [Kind.REMOVED_ROWS]
    print_report(elsewhere)
    assert f"nothing was found that {told[1]} of {table}2 would cover" in capsys.readouterr().out

    delete(full, "n = 11")
    report = audited(full, known)
    assert [(each.kind, each.key_hash) for each in report.defects] == [
        (Kind.REMOVED_ROWS, full.store.written[1].record.key_hash)
    ]
    full.files(full.store.written[2])[0].unlink(missing_ok=True)
    full.files(full.store.written[2])[1].unlink(missing_ok=True)
    assert Kind.MISSING_FILE in [each.kind for each in audited(full, known).defects]


@formats
def test_a_commit_that_was_changed_several_times_needs_all_names(full: Kinds) -> None:
    """Each DELETE copies what it leaves of a file, so a later one does not touch the file that was committed: the finding names both, also
    after a compaction, and is covered once all are named, and not before, however many there are."""
    full.ran("many", *range(200, 220))
    for number in range(200, 207):
        delete(full, f"n = {number}")
        if number == 203:
            compact(full)
    [found] = [
        each
        for each in audited(full).findings
        if each.kind is Kind.REMOVED_ROWS and each.key_hash == full.store.written[-1].record.key_hash
    ]
    names = [each.name for each in found.changes]
    assert len(names) == 7, "more than a probe names"
    for left_out in (names[0], names[-1]):
        entries = ({"table": found.table, "commit": name} for name in names if name != left_out)
        defects = audited(full, acknowledged(*entries)).defects
        assert found.subject in [each.subject for each in defects if each.kind is Kind.REMOVED_ROWS]
    report = audited(full, acknowledged(*({"table": found.table, "commit": name} for name in names)))
    assert report.clean


def test_a_table_that_was_created_again_has_other_names(tmp_path: Path) -> None:
    """The same version of a table that was dropped and created again is another commit: an entry does not cover it."""
    names = []
    for reason in ("first", "second"):
        shutil.rmtree(tmp_path / "orders", ignore_errors=True)
        sink, key = sink_on(tmp_path / "orders"), SinkKey(key_hash="a" * 64, output="orders", generation=1)
        assert isinstance(run(sink.commit(key, sink.stage(table_of(1, 2), key, 1, fingerprint=reason))), Committed)
        DeltaTable(str(tmp_path / "orders")).delete("n = 1")
        report = Audit(places=[AuditedTable(sink)], read_files=with_threads(open_place)).run()
        [change] = only(report).changes
        names.append(change.name)
    assert names[0].partition("@")[0] == names[1].partition("@")[0] == "version 2"
    assert names[0] != names[1]


@formats
def test_a_removal_that_is_not_meant_is_undone(full: Kinds) -> None:
    """Restoring the table to the commit before, as the remedy says, leaves no defect."""
    before = version_of(full)
    delete(full, "n = 2")
    [found] = audited(full).defects
    assert "restore the table to the commit before, by its own history" in found.todo
    restore(full, before)
    assert kinds(audited(full)) == []


def version_of(full: Kinds) -> int:
    if full.kind == "delta":
        return int(DeltaTable(str(full.folder)).version())
    snapshot = iceberg_tables.table().metadata.current_snapshot_id
    assert snapshot is not None
    return snapshot


def restore(full: Kinds, version: int) -> None:
    if full.kind == "delta":
        DeltaTable(str(full.folder)).restore(version)
    else:
        iceberg_tables.table().manage_snapshots().set_current_snapshot(version).commit()


@formats
def test_a_rollback(full: Kinds, capsys: pytest.CaptureFixture[str]) -> None:
    """A rollback over two commits is one finding that is marked as such and names where the table went back to; going forward again, as
    the remedy says, leaves no defect."""
    before = version_of(full)
    for number in range(2):
        full.ran(f"late-{number}", 50, 51 + number)
    after = version_of(full)
    restore(full, before)
    report = audited(full)
    lines = printed(report, capsys)
    defects = [each for each in report.dump()["groups"] if each["severity"] == "defect"]
    if full.kind == "delta":
        assert "(RESTORE)" in lines[1]
        assert {each["kind"] for each in defects if each["rollback"]} <= {"removed rows", "record without slot"}
        assert Kind.REMOVED_ROWS in kinds(report)
    else:
        assert [(each["kind"], each["count"], each["rollback"]) for each in defects] == [("hidden rows", 2, True)]
        assert f"went back to snapshot {before}" in lines[1]
        assert "late-0, late-1" in lines[0]
        assert len(lines) == 3
    restore(full, after)
    assert kinds(audited(full)) == []


STRAYS: dict[str, Callable[[Path], Path]] = {
    "beside the log": lambda table: table / "part-00000.parquet",
    "in partitions": lambda table: table / "day=1" / "part-00000.parquet",
    "among the data": lambda table: table / "_data" / "part-00000.parquet",
    "beside committed files": lambda table: next(table.glob("_data/*/*")) / "part-00777.parquet",
}


@pytest.mark.parametrize("full", ["slotLog"], indirect=True)
@pytest.mark.parametrize("where", list(STRAYS))
def test_files_that_no_commit_names(full: Kinds, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A Parquet file that another program wrote into a slot log's folder is pointed out with its path and size, and is not read by our
    readers; once it is moved elsewhere, nothing is found."""
    path = STRAYS[where](full.folder)
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(table_of(900, 901), path)
    found = only(audited(full))
    assert (found.kind, found.severity) == (Kind.UNCOMMITTED_FILES, Severity.ATTENTION)
    assert f"1 file(s), {path.stat().st_size} bytes" in found.what
    assert str(path.relative_to(full.folder)) in found.what
    assert seen(full) == (OWN, OWN)
    assert "move them elsewhere" in found.todo
    shutil.move(path, full.folder.parent / "elsewhere.parquet")
    assert kinds(audited(full)) == []


@pytest.mark.parametrize("full", ["slotLog"], indirect=True)
def test_what_belongs_to_a_slot_log(full: Kinds) -> None:
    """Markers, checksums, checkpoints of streams and other hidden files are no foreign files."""
    folder = next(full.folder.glob("_data/*/*"))
    for path in (
        full.folder / "_SUCCESS",
        folder / "_SUCCESS",
        folder / ".part-0.parquet.crc",
        folder / "_temporary" / "0" / "part-9.parquet",
        full.folder / "_streams" / "x" / "offsets" / "0",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if path.name == "_SUCCESS" else b"x")
    assert kinds(audited(full)) == []


@pytest.mark.parametrize("full", ["slotLog"], indirect=True)
def test_rows_of_a_deleted_slot_are_seen_and_not_committed(full: Kinds) -> None:
    """Readers trust a snapshot: rows of a slot that was deleted are seen by them, more than are committed."""
    from sparkonce.sink.slotlog.snapshot import write_snapshot

    assert run(write_snapshot(full.store.written[0].sinks()["orders"]._objects, after=1))  # type: ignore[attr-defined]
    full.store.slot_file(full.store.written[0]).unlink()
    assert seen(full) == (OWN - len(ROWS[0]), OWN)


def test_many_findings_of_one_tenant_do_not_hide_those_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    """A thousand findings in as many tables of one realm, and one of the same kind in another realm: few lines, and the second realm's is
    among the first; all are counted, and the JSON has each."""
    from audit.test_page import COST
    from sparkonce.audit.groups import KeyName

    flood = [finding(f"file:///a/{number:04}", f"{number:064x}") for number in range(1000)]
    names = {each.key_hash: KeyName("team-a", f"a-{at}") for at, each in enumerate(flood)}
    single = finding("file:///z", "f" * 64)
    names[single.key_hash] = KeyName("team-b", "b-0")
    report = AuditReport(started=0.0, tables=(), findings=(*flood, single), cost=COST, ledger="x", names=names)
    lines = printed(report, capsys)
    assert len(lines) <= 50 * 3 + 1
    assert "b-0 = ffffffffffff" in lines[3]
    assert lines[-1] == "defect: missing file: 951 more; --all prints them, --json FILE has them"
    assert len(report.dump()["findings"]) == 1001


def test_a_long_sentence_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Text from a table is bounded on the terminal, and whole in the JSON and with `--all`."""
    from audit.test_page import COST

    long = Finding(kind=Kind.HELD, subject="x", what="y" * 5000, todo="z" * 5000)
    report = AuditReport(started=0.0, tables=(), findings=(long,), cost=COST, ledger="x")
    assert max(map(len, printed(report, capsys))) == 500
    assert max(map(len, printed(report, capsys, every=True))) > 5000


def finding(table: str, key_hash: str) -> Finding:
    what = f"it is not there; committed by {key_hash}-orders-g1, attempt 1"
    return Finding(
        kind=Kind.MISSING_FILE, table=table, subject="_data/x.parquet", what=what, todo="-", key_hash=key_hash
    )


def test_an_entry_covers_no_other_kind() -> None:
    """A file, a hidden row or a double commit that names the same commits stays a defect; what other jobs of sparkonce changed needs no
    entry."""
    change = Change(commit="version 7", digest="ab")
    own = Change(commit="version 6", key="k-orders-g1")
    entries = acknowledged({"table": "t", "commit": "version 7@ab"}, {"table": "t", "rows": 5})
    for kind in Kind:
        one = Finding(kind=kind, table="t", subject="s", what="w", todo="-", changes=(change, own), rows=6)
        [found], uses = covered([one], entries)
        assert bool(found.known) == (kind is Kind.REMOVED_ROWS), kind
        assert [use.findings for use in uses] == [int(kind is Kind.REMOVED_ROWS), 0]
