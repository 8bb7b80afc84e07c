"""Each defect, planted in an otherwise correct store, is found and reported with its place; nothing else is reported."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from audit.scene import Scene, kinds, only
from harness.arrow_stage import arrow_stage, table_of
from sparkonce.audit import entry
from sparkonce.audit.findings import Kind, Severity
from sparkonce.blocking import run
from sparkonce.model.record import Outcome
from sparkonce.model.spec import OnRerun
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Declared
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.snapshot import write_snapshot


def test_a_clean_store_has_no_finding(clean: Scene) -> None:
    """After real runs, one with two outputs and one that failed, nothing is found and everything was checked."""
    report = clean.audit()
    assert kinds(report) == []
    assert (report.clean, report.complete) == (True, True)
    assert {Path(table.uri).name: (table.effects, table.rows, table.files) for table in report.tables} == {
        "orders": (4, 23, 8),
        "totals": (1, 2, 2),
    }
    assert (report.keys, report.cost.files) == (5, 10)
    assert kinds(clean.audit(deep=True)) == []
    assert kinds(clean.audit("orders", "totals", ledger=False)) == []


def test_an_effect_that_was_copied_to_another_key(clean: Scene) -> None:
    """One write under two keys is reported as duplicate rows, whatever its files are called; the second key has no record."""
    job = clean.written[0]
    clean.copied(job, f"{'e' * 64}-orders-g1")
    report = clean.audit()
    assert kinds(report) == [Kind.DUPLICATE_ROWS, Kind.SLOT_WITHOUT_RECORD]
    assert str(job.key("orders")) in report.findings[0].subject
    assert "e" * 64 in report.findings[0].subject
    assert [each.kind for each in clean.audit("orders", ledger=False).findings] == [Kind.DUPLICATE_ROWS]


def test_two_committed_slots_of_one_key(clean: Scene) -> None:
    """A second committed slot of a sink key is a double commit, with both slots named."""
    job = clean.written[1]
    copy = clean.copied(job, str(job.key("orders")), token=2, nonce="a" * 32)
    report = clean.audit()
    assert kinds(report) == [Kind.DOUBLE_COMMIT, Kind.LEDGER_BEHIND]
    found = report.findings[0]
    assert (found.severity, found.subject) == (Severity.DEFECT, str(job.key("orders")))
    assert copy in found.what
    assert f"{1:010d}.json" in found.what


def test_one_file_in_two_effects(clean: Scene) -> None:
    """A file that two commits list is read twice by readers, and is named."""
    job, path = clean.written[0], clean.files(clean.written[0])[0]
    slot = clean.slot(clean.written[1])
    slot["files"].append(clean.slot(job)["files"][0])
    slot["rows"] += slot["files"][-1]["rows"]
    clean.slot_file(clean.written[1]).write_bytes(json.dumps(slot).encode())
    report = clean.audit()
    assert kinds(report) == [Kind.DUPLICATE_ROWS, Kind.DIGEST_DIFFERS]
    assert report.findings[0].where.endswith(str(path.relative_to(clean.folder)))


def test_the_same_rows_of_two_keys_are_only_worth_a_look(clean: Scene) -> None:
    """Equal rows that two keys wrote, each by its own write, are pointed out but are no defect: they may be intended."""
    clean.ran("day-0-again", *range(7))
    report = clean.audit()
    assert kinds(report) == [Kind.SAME_ROWS]
    assert report.clean


def test_a_missing_file(clean: Scene) -> None:
    """A missing data file is named with its path and its owner."""
    path = clean.files(clean.written[2])[1]
    path.unlink()
    found = only(clean.audit())
    assert (found.kind, found.severity) == (Kind.MISSING_FILE, Severity.DEFECT)
    assert found.where == f"file://{path}"
    assert str(clean.written[2].key("orders")) in found.what


@pytest.mark.parametrize("how", ["truncated", "rewritten", "other", "grown", "footer", "padded"])
def test_a_changed_file(clean: Scene, how: str) -> None:
    """A file that was truncated, rewritten, replaced, or extended at its end or before its footer is a changed file; so is one with another
    byte in its footer."""
    path, other = clean.files(clean.written[0])[0], clean.files(clean.written[1])[0]
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[:-9])
    elif how == "rewritten":
        from pyarrow import parquet

        parquet.write_table(table_of(5, 5, 5, 5), path)
    elif how == "other":
        shutil.copy(other, path)
    elif how == "grown":
        path.write_bytes(data + b"\0" * 8)
    elif how == "footer":  # of the same length
        path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    else:  # longer, with the committed footer
        path.write_bytes(data[:4] + b"\0" * 8 + data[4:])
    found = only(clean.audit())
    assert (found.kind, found.where) == (Kind.CHANGED_FILE, f"file://{path}")


def test_a_file_whose_digest_this_version_cannot_check_is_not_clean(clean: Scene) -> None:
    """A digest of an unknown kind proves nothing about its file: that is said, also after the second look."""
    path = clean.files(clean.written[0])[0]
    slot = clean.slot(clean.written[0])
    slot["files"][0]["digest"] = "sha3-of-a-later-release:00ff"
    clean.slot_file(clean.written[0]).write_text(json.dumps(slot))
    found = only(clean.audit("orders", ledger=False))
    assert (found.kind, found.where, found.todo) == (Kind.UNREADABLE, f"file://{path}", "upgrade sparkonce")


def test_bytes_that_rotted_inside_a_page_are_found_by_reading_deep(clean: Scene) -> None:
    """A flipped byte in a data page does not change the footer: the quick audit cannot see it, `deep` does."""
    path = clean.files(clean.written[0])[0]
    data = bytearray(path.read_bytes())
    data[8] ^= 0xFF
    path.write_bytes(data)
    assert kinds(clean.audit()) == []
    assert [(f.kind, f.where) for f in clean.audit(deep=True).findings] == [(Kind.CHANGED_FILE, f"file://{path}")]


def test_a_slot_that_counts_other_rows_than_its_files(clean: Scene) -> None:
    """Rows that a slot claims and its files lack are reported as missing; a file's rows are counted in its footer."""
    job = clean.written[0]
    slot = clean.slot(job)
    clean.slot_file(job).write_text(json.dumps(slot | {"rows": slot["rows"] + 1}))
    assert kinds(clean.audit("orders", ledger=False)) == [Kind.WRONG_ROW_COUNT]
    slot["files"][0]["rows"] += 1
    clean.slot_file(job).write_text(json.dumps(slot | {"rows": slot["rows"] + 1}))
    found = only(clean.audit("orders", ledger=False))
    assert (found.kind, found.where) == (Kind.WRONG_ROW_COUNT, f"file://{clean.files(job)[0]}")


def test_orphan_staging_that_is_closed(clean: Scene) -> None:
    """The folder of a closed token is unreachable: `sweep` may delete it, and it is no defect."""
    job = clean.granted("killed")
    job.sinks()["orders"].stage(table_of(1, 2), job.key("orders"), 1, fingerprint=job.record.fingerprint)
    job.next_attempt()
    report = clean.audit()
    found = only(report)
    assert (found.kind, found.severity, report.clean) == (Kind.ORPHAN_STAGING, Severity.ATTENTION, True)
    [folder] = (clean.table() / "_data" / str(job.key("orders"))).iterdir()
    assert found.where == f"file://{folder}"
    assert "sparkonce sweep" in found.todo


def test_staging_of_an_attempt_that_may_be_writing(clean: Scene) -> None:
    """The folder of an open token is reported with its age and kept, however old it is."""
    job = clean.granted("running")
    job.sinks()["orders"].stage(table_of(1, 2), job.key("orders"), 1, fingerprint=job.record.fingerprint)
    for path in (clean.table() / "_data" / str(job.key("orders"))).rglob("*"):
        os.utime(path, (1e9, 1e9))
    found = only(clean.audit())
    assert (found.kind, found.severity) == (Kind.OPEN_STAGING, Severity.NOTE)
    assert " d old" in found.what


def test_what_lies_beside_a_commit_of_the_key_is_unreachable(clean: Scene) -> None:
    """After a key is committed, another write of it never can be: its files are orphans although its token is not closed."""
    job = clean.written[0]
    job.sinks()["orders"].stage(table_of(1, 2), job.key("orders"), 1, fingerprint=job.record.fingerprint)
    assert kinds(clean.audit()) == [Kind.ORPHAN_STAGING]


def test_a_slot_without_record(clean: Scene, tmp_path: Path) -> None:
    """A commit whose key the ledger never had is found; one whose record was forgotten is correct."""
    from audit.scene import scene
    from sparkonce.model.record import Event

    forgotten = clean.written[0].now()
    run(clean.store.forget(forgotten, Event(what="Forgotten")))
    report = clean.audit()
    assert (kinds(report), report.unconfirmed) == ([], 0)  # its generation is known, so nothing needs a second look
    shutil.copy(clean.folder / "ledger.db", tmp_path / "before")
    with scene(tmp_path) as other:
        other.folder = clean.folder
        stranger = other.ran("stranger", 500, 501)
    found = only(clean.audit())
    assert (found.kind, found.subject) == (Kind.SLOT_WITHOUT_RECORD, str(stranger.key("orders")))
    assert found.table == f"file://{clean.table()}"


def test_commits_of_a_realm_without_records(store: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a realm were all removed: the generation floors that are left say that its commits are right."""
    from sparkonce.model.record import Event

    monkeypatch.setattr("sparkonce.local.prepare.REALM", "team-a")
    for day in range(2):
        job = store.ran(f"day-{day}", day)
        assert job.record.realm == "team-a"
        run(store.store.forget(job.now(), Event(what="Forgotten")))
    monkeypatch.undo()
    store.ran("day-2", 2)
    report = store.audit()
    assert (kinds(report), report.unconfirmed) == ([], 0)


def test_a_record_without_slot(clean: Scene) -> None:
    """A recorded success whose slot is missing is reported with the slot's name; the files of that slot are not reported separately."""
    job = clean.written[1]
    shutil.rmtree(clean.slot_file(job).parent)
    for _ in ("with its files", "without"):
        assert kinds(clean.audit()) == [Kind.RECORD_WITHOUT_SLOT]
        shutil.rmtree(clean.table() / "_data" / str(job.key("orders")), ignore_errors=True)
    found = only(clean.audit())
    assert (found.kind, found.subject) == (Kind.RECORD_WITHOUT_SLOT, str(job.key("orders")))
    assert "day-1" in found.what


def test_a_rerun_that_has_no_result_does_not_hide_the_loss_of_the_one_before(clean: Scene) -> None:
    """While a rerun runs, and after it failed, the recorded success before it still counts; once it has succeeded, its own result does."""
    job = clean.written[1]
    shutil.rmtree(clean.slot_file(job).parent)
    shutil.rmtree(clean.table() / "_data" / str(job.key("orders")))
    lost = str(job.key("orders"))
    for outcome in (Outcome.FAILED, Outcome.SUCCEEDED):
        clean.rerun(job)
        found = only(clean.audit())
        assert (found.kind, found.subject) == (Kind.RECORD_WITHOUT_SLOT, lost)
        if outcome is Outcome.SUCCEEDED:
            job.job().write(table_of(30, 31), "orders")
        clean.finalize(job, outcome)
        assert [each.subject for each in clean.audit().findings] == ([lost] if outcome is Outcome.FAILED else [])


@pytest.mark.parametrize("table", ["specs", "results"])
def test_a_damaged_value_beside_a_record_is_one_finding(clean: Scene, table: str) -> None:
    """The job or the result of one key cannot be read: that is said of this key, and the others are audited as before."""
    job, gone = clean.written[0], clean.slot_file(clean.written[1])
    with sqlite3.connect(clean.folder / "ledger.db") as ledger:
        assert ledger.execute(f"UPDATE {table} SET body = '{{' WHERE key_hash = ?", (job.record.key_hash,)).rowcount
    shutil.rmtree(gone.parent)
    report = clean.audit()
    assert kinds(report) == [Kind.UNREADABLE, Kind.RECORD_WITHOUT_SLOT]
    assert report.findings[0].subject == job.record.key_hash
    assert f"the {'specbody' if table == 'specs' else 'result'} beside the record" in report.findings[0].what


def test_a_table_that_is_gone(clean: Scene) -> None:
    """All records of a table whose folder was deleted lack their slots."""
    shutil.rmtree(clean.table("totals"))
    found = only(clean.audit())
    assert (found.kind, found.table) == (Kind.RECORD_WITHOUT_SLOT, f"file://{clean.table('totals')}")


def test_a_slot_that_was_changed_after_the_fact(clean: Scene) -> None:
    """The record keeps the slot's digest: a changed slot is found even if it is consistent in itself."""
    job = clean.written[0]
    clean.slot_file(job).write_text(json.dumps(clean.slot(job) | {"application": "somebody else's"}))
    found = only(clean.audit())
    assert (found.kind, found.subject) == (Kind.DIGEST_DIFFERS, str(job.key("orders")))


def test_a_failed_record_with_a_commit(clean: Scene) -> None:
    """A record may be Failed only if no row of the run exists: a commit under a failed run is a broken promise."""
    job = clean.granted("said-failed")
    slot = job.sinks()["orders"].stage(table_of(77), job.key("orders"), 1, fingerprint=job.record.fingerprint)
    clean.finalize(job, Outcome.FAILED)
    path = clean.slot_file(job)
    path.unlink()  # the tombstone, which would bar the commit
    path.write_bytes(layout.encode(slot))
    found = only(clean.audit())
    assert (found.kind, found.subject) == (Kind.EFFECT_OF_FAILED, str(job.key("orders")))
    assert "said-failed" in found.what


def test_another_jobs_commit(clean: Scene) -> None:
    """A commit with another fingerprint than its record's belongs to another job."""
    job = clean.granted("mine")
    sink = job.sinks()["orders"]
    run(sink.commit(job.key("orders"), sink.stage(table_of(5), job.key("orders"), 1, fingerprint="another")))
    assert only(clean.audit()).kind is Kind.OTHER_JOB


def test_a_ledger_that_is_older_than_its_tables(clean: Scene) -> None:
    """A commit of a generation that the ledger has not opened shows that the ledger was restored to an older state."""
    job = clean.written[0]
    key = job.key("orders").model_copy(update={"generation": 2})
    sink = job.sinks()["orders"]
    run(sink.commit(key, sink.stage(table_of(5), key, 1, fingerprint=job.record.fingerprint)))
    found = only(clean.audit())
    assert (found.kind, found.subject) == (Kind.LEDGER_BEHIND, str(key))


def test_a_slot_that_cannot_be_read(clean: Scene) -> None:
    """A slot that cannot be parsed is named; what follows from it (a record without slot, files without owner) is not reported again."""
    path = clean.slot_file(clean.written[2])
    path.write_text("{")
    report = clean.audit()
    assert kinds(report) == [Kind.UNREADABLE]
    assert str(path) in report.findings[0].what
    assert kinds(clean.audit("orders", ledger=False)) == [Kind.UNREADABLE]


def test_a_list_of_files_that_was_changed(clean: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot's files may be in a list beside it: the list is read, and a changed one is reported as unreadable evidence."""
    monkeypatch.setattr("sparkonce.sink.slotlog.layout.FILES_IN_SLOT", 1)
    job = clean.ran("many", 900, 901)
    assert kinds(clean.audit()) == []
    [listed] = clean.table().glob(f"_data/{job.key('orders')}/*/_files.json")
    listed.write_text("[]")
    report = clean.audit()
    assert kinds(report) == [Kind.UNREADABLE]
    assert str(listed) in report.findings[0].what


def test_held_and_due(clean: Scene) -> None:
    """Held keys and records past their retention are listed for attention and are no defects."""
    clean.hold(clean.granted("held"))
    clean.ran("old", 1000, retention=0.0)
    report = clean.audit()
    assert kinds(report) == [Kind.HELD, Kind.RETENTION_DUE]
    assert report.clean
    assert "sparkonce keys resolve held" in report.findings[0].todo


def test_rows_that_readers_see_without_a_slot(clean: Scene) -> None:
    """Readers trust a snapshot: if a slot that it lists is deleted, they still read its rows, which then have no commit."""
    job = clean.written[0]
    sink = job.sinks()["orders"]
    assert run(write_snapshot(sink._objects, after=1))  # type: ignore[attr-defined]
    assert kinds(clean.audit()) == []
    clean.slot_file(job).unlink()
    report = clean.audit()
    assert kinds(report) == [Kind.UNKNOWN_ROWS, Kind.UNKNOWN_ROWS, Kind.RECORD_WITHOUT_SLOT]
    [folder] = (clean.table() / "_data" / str(job.key("orders"))).iterdir()
    assert {finding.where for finding in report.findings[:2]} == {
        f"file://{folder}/part-{part:05d}.parquet" for part in (0, 1) for part in (0, 1)
    }


def test_a_commit_that_readers_do_not_see(clean: Scene) -> None:
    """A snapshot that lists a committed slot as closed hides its rows from readers."""
    job = clean.written[0]
    run(write_snapshot(job.sinks()["orders"]._objects, after=1))  # type: ignore[attr-defined]
    [snapshot] = clean.table().glob("_idem/_snapshot/*.json")
    body = json.loads(snapshot.read_text())
    body["committed"] = [slot for slot in body["committed"] if slot["sinkKey"] != str(job.key("orders"))]
    body["closed"].append(layout.slot_path(job.key("orders"), 1))
    snapshot.write_text(json.dumps(body))
    found = only(clean.audit())
    assert (found.kind, found.subject) == (Kind.HIDDEN_ROWS, str(job.key("orders")))


def test_a_table_that_was_copied(clean: Scene) -> None:
    """A copy of a table that is audited with its original has each effect twice; audited alone, it is not where the ledger says the table
    is."""
    shutil.copytree(clean.table("totals"), clean.table("copy"))
    assert kinds(clean.audit("totals", "copy")) == [Kind.DOUBLE_COMMIT, Kind.MOVED]
    alone = clean.audit("copy")
    assert kinds(alone) == [Kind.MOVED]
    assert alone.clean


def test_two_kinds_of_table_in_one_folder(store: Scene) -> None:
    """A Delta table was begun in the folder of a slot log: each key's commit is found in its own."""
    for key, kind in (("before", "slotLog"), ("after", "delta")):
        job = store.granted(key, outputs=[{"name": "orders", kind: {"path": "orders"}}])
        job.job().write(table_of(1, 2), "orders")
        store.finalize(job)
    assert kinds(store.audit()) == [Kind.UNCOMMITTED_FILES]


def test_a_page_that_cannot_be_written_is_no_defect(clean: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m sparkonce.audit` exits with 2 and a sentence; 1 would say that the tables have defects."""
    page = clean.folder / "none" / "page.html"
    assert entry.leave([str(clean.table()), "--html", str(page)]) == 2
    assert capsys.readouterr().err == (
        f"sparkonce: --html {page} cannot be written: No such file or directory; name another file\n"
    )
    page.parent.mkdir()
    assert entry.leave([str(clean.table()), "--html", str(page)]) == 0
    assert "no defect" in page.read_text()


def test_reruns_are_right(clean: Scene) -> None:
    """Generations that replaced each other, or exist side by side with Append, are one effect each; files of a replaced one may be
    deleted."""
    job = clean.written[0]
    for on_rerun, generation in ((OnRerun.REPLACE, 1), (OnRerun.REPLACE, 2), (OnRerun.APPEND, 3)):
        declared = Declared(name="orders", kind="slotLog", location=str(clean.table()), on_rerun=on_rerun)
        sink = open_sink(declared, base=None, stage=arrow_stage)
        key = job.key("orders").model_copy(update={"key_hash": "c" * 64, "generation": generation})
        run(sink.commit(key, sink.stage(table_of(generation, 60 + generation), key, 1, fingerprint="f")))
    assert kinds(clean.audit("orders", ledger=False)) == []
    shutil.rmtree(clean.table() / "_data" / f"{'c' * 64}-orders-g1")
    assert kinds(clean.audit("orders", ledger=False)) == []
    shutil.rmtree(clean.table() / "_data" / f"{'c' * 64}-orders-g2")
    assert kinds(clean.audit("orders", ledger=False)) == [Kind.MISSING_FILE, Kind.MISSING_FILE]


def test_what_cannot_be_looked_at_is_not_clean(clean: Scene) -> None:
    """A table that cannot be listed, or that does not exist, makes an audit incomplete, and never clean."""
    nothing = clean.audit("typo")
    assert kinds(nothing) == [Kind.NOTHING_THERE]
    assert (nothing.clean, nothing.complete) == (False, False)
    path = clean.table("totals")
    shutil.rmtree(path)
    path.write_text("a file")
    refused = clean.audit()
    assert Kind.NOT_SEEN in kinds(refused)
    assert not refused.complete
