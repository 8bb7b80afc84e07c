"""Audits of Iceberg tables on which others work: what `audit/test_other_writers.py` shows of Delta, and delete files.

pyiceberg takes some hundred milliseconds for each commit and each audit, so these are no quick tests.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyarrow import parquet

from audit import test_other_writers as writers
from audit.scene import Kinds, kinds
from harness import iceberg_tables
from sparkonce.audit.findings import Kind

Capture = pytest.CaptureFixture[str]
SCENARIOS: dict[str, Callable[[Kinds, Capture], None]] = {
    "compaction": writers.test_a_compaction_is_one_finding,
    "rows seen": lambda full, _: writers.test_rows_that_readers_see(full),
    "emptied": lambda full, capsys: writers.test_an_emptied_table_is_a_defect(full, False, capsys),
    "emptied, history expired": lambda full, capsys: writers.test_an_emptied_table_is_a_defect(full, True, capsys),
    "commits gone": lambda full, _: writers.test_a_table_whose_commits_are_gone_is_not_called_clean(full),
    "missing and meant": lambda full, _: writers.test_missing_rows_that_are_meant(full),
    "nothing lost": lambda full, _: writers.test_a_table_that_lost_nothing_has_no_missing_rows(full),
    "removed and meant": writers.test_a_removal_that_is_meant,
    "changed several times": lambda full, _: writers.test_a_commit_that_was_changed_several_times_needs_all_names(full),
    "removed and undone": lambda full, _: writers.test_a_removal_that_is_not_meant_is_undone(full),
    "rollback": writers.test_a_rollback,
}


@pytest.mark.parametrize("full", ["iceberg"], indirect=True)
@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_what_holds_for_delta_holds_for_iceberg(full: Kinds, scenario: str, capsys: Capture) -> None:
    """Each test of Delta tables passes on an Iceberg table, with its own compaction, deletes, rollback and expiry."""
    SCENARIOS[scenario](full, capsys)


@pytest.mark.parametrize("full", ["iceberg"], indirect=True)
def test_rows_that_delete_files_hide_are_not_seen(full: Kinds) -> None:
    """Rows that position deletes of Iceberg hide are not counted, with more delete files than a probe reads. Deletes by value cannot be
    counted: the audit does not call the table clean."""
    [file] = [path for path in full.files(full.store.written[0]) if parquet.read_metadata(path).num_rows == 2][:1]
    for _ in range(25):
        iceberg_tables.hide({f"file://{file}": 0}, bounds=False)
    assert writers.seen(full) == (writers.OWN, writers.OWN - 1)
    report = writers.audited(full)
    assert kinds(report) == [Kind.REMOVED_ROWS]
    assert len(report.findings[0].changes) == 25, "each snapshot that hides rows is named"
    iceberg_tables.hide({f"file://{file}": 1}, equality=True)
    report = writers.audited(full)
    assert (report.tables[0].rows_seen, report.complete, report.clean) == (None, False, False)
    assert "delete files hide rows by their values" in " ".join(each.what for each in report.findings)
