"""Results whose table others worked on, through the command line: what is replayed and said, and that the advice works."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from harness.delta_stage import numbers_in
from harness.desk import Desk, Said
from sparkonce.cli.exits import ExitCode

KEY = "write/numbers@1"
WRITES = """
    from harness.{stager} import {function}
    from harness.arrow_stage import table_of
    from sparkonce.driver.current import current

    job = current(stager={function})
    job.write(table_of(1, 2, 3), "numbers")
"""
DELTA_SCRIPT = WRITES.format(stager="delta_stage", function="delta_stage")
DELTA: dict[str, Any] = {"name": "numbers", "delta": {"path": "lake/numbers"}}


def sent(desk: Desk, *, append: bool = False, **spec: Any) -> str:
    """Writes the file of a job whose output is a Delta table."""
    output = {**DELTA, "onRerun": "Append"} if append else DELTA
    return desk.job(DELTA_SCRIPT, outputs=[output], **spec)


@pytest.fixture
def table(desk: Desk) -> Path:
    """The table after the job has run: its rows are 1, 2 and 3, committed by version 1."""
    assert desk.here("run", sent(desk)).code == ExitCode.SUCCEEDED
    table = desk.folder / "lake" / "numbers"
    assert numbers_in(table) == [1, 2, 3]
    return table


def output_of(said: Said) -> dict[str, Any]:
    [output] = said.told["result"]["outputs"]
    assert isinstance(output, dict)
    return output


def test_a_changed_result_is_replayed_with_the_commits_that_changed_it(desk: Desk, table: Path) -> None:
    """After OPTIMIZE and DELETE the duplicate exits with 0 and nothing runs; text and JSON name the commit, and so do `keys show` and `keys
    explain`."""
    DeltaTable(str(table)).optimize.compact()
    assert output_of(desk.here("run", "job.yaml", "--json"))["found"] == "present"
    DeltaTable(str(table)).delete("n = 1")
    replayed = desk.here("run", "job.yaml")
    assert replayed.code == ExitCode.SUCCEEDED
    assert replayed.first.startswith("replayed: generation 1 succeeded")
    compacted = "rows of it were compacted into files with others, some of which were removed or rewritten by version 3"
    assert f"(changed: {compacted} (DELETE))" in replayed.out
    told = desk.here("run", "job.yaml", "--json")
    assert (told.told["replayed"], told.told["phase"], told.told["exitCode"]) == (True, "Succeeded", 0)
    output = output_of(told)
    assert (output["found"], output["rows"]) == ("changed", 3)
    assert output["changedBy"] == [{"commit": "version 3", "operation": "DELETE", "key": ""}]
    assert "version 3 (DELETE)" in output["foundWhy"] and "version 3 (DELETE)" in told.told["reason"]
    shown = desk.here("keys", "show", KEY)
    assert "numbers is changed: rows of it were compacted" in shown.out
    explained = desk.here("keys", "explain", KEY, "--json").told
    assert explained["row"] == "result changed"
    assert desk.attempts() == 1
    assert numbers_in(table) == [2, 3]


def test_a_changed_result_is_withheld_where_the_job_says_so(desk: Desk, table: Path) -> None:
    """`onResultChanged: Gone` is no part of what the job is: the same job with it gets ResultGone, exit code 7, and the commit."""
    DeltaTable(str(table)).delete("n = 1")
    withheld = desk.here("run", sent(desk, onResultChanged="Gone"))
    assert withheld.code == ExitCode.RESULT_GONE
    assert "numbers is changed (rows of it were removed or rewritten by version 2 (DELETE))" in withheld.first
    assert desk.here("run", "job.yaml", "--json").told["phase"] == "ResultGone"
    assert desk.here("run", sent(desk)).code == ExitCode.SUCCEEDED


def test_the_advice_where_rows_were_changed_works(desk: Desk, table: Path) -> None:
    """A plain rerun, which is not advised, is refused by the table; what is advised writes the rows anew, each once."""
    DeltaTable(str(table)).delete("n = 1")
    replayed = desk.here("run", "job.yaml")
    advice = (
        "numbers: delete what is left of its rows, declare onRerun: Append for it and run `sparkonce rerun -f FILE`"
    )
    assert replayed.out.splitlines()[-1] == f"  to write the rows anew: {advice}"
    DeltaTable(str(table)).delete("n = 2 or n = 3")
    assert desk.here("rerun", "-f", sent(desk, append=True)).code == ExitCode.SUCCEEDED
    assert numbers_in(table) == [1, 2, 3]
    again = desk.here("run", "job.yaml", "--json")
    assert (again.told["generation"], output_of(again)["found"]) == (2, "present")


@pytest.mark.further
def test_what_is_not_advised_is_refused(desk: Desk, table: Path) -> None:
    """A plain rerun after others changed the rows fails, and leaves the table as it is."""
    DeltaTable(str(table)).delete("n = 1")
    refused = desk.here("rerun", KEY)
    assert refused.code == ExitCode.FAILED
    assert "another writer rewrote or deleted 1 file(s) of the generation before" in refused.out
    assert "delete them yourself and declare onRerun: Append" in refused.out
    assert numbers_in(table) == [2, 3]


@pytest.mark.further
def test_the_advice_after_a_restore_works(desk: Desk, table: Path) -> None:
    """The table is put back to before the job's commit: a plain rerun names the restore, and what it advises writes the rows anew."""
    DeltaTable(str(table)).restore(0)
    refused = desk.here("rerun", KEY)
    assert refused.code == ExitCode.FAILED
    assert "the table was restored to an earlier state (version 2), which took" in refused.out
    assert "delete what is left of its rows, if any, and declare onRerun: Append" in refused.out
    assert numbers_in(table) == []
    assert desk.here("rerun", "-f", sent(desk, append=True)).code == ExitCode.SUCCEEDED
    assert numbers_in(table) == [1, 2, 3]


def test_the_advice_where_a_file_is_missing_works(desk: Desk, table: Path) -> None:
    """A file that the table still names was deleted: ResultGone, and the plain rerun that it advises replaces the rows."""
    next(table.glob("so-*/**/*.parquet")).unlink()
    gone = desk.here("run", "job.yaml")
    assert (gone.code, f"what to do: sparkonce rerun {KEY}" in gone.out) == (ExitCode.RESULT_GONE, True)
    assert desk.here("rerun", KEY).code == ExitCode.SUCCEEDED
    assert numbers_in(table) == [1, 2, 3]
    assert output_of(desk.here("run", "job.yaml", "--json"))["found"] == "present"


@pytest.mark.further
def test_the_advice_where_the_evidence_is_missing_works(desk: Desk, table: Path, tmp_path: Path) -> None:
    """The slot was deleted, or all evidence of the job: ResultGone names the folder to restore, and a rerun, which is not advised, adds no
    row; once the folder is back the job is replayed, and a rerun replaces its rows."""
    [folder] = (table / "_sparkonce").glob("*/g1")
    shutil.move(folder, tmp_path / "backup")
    folder.parent.rmdir()
    gone = desk.here("run", "job.yaml")
    assert gone.code == ExitCode.RESULT_GONE
    named = re.search(r"what to do: numbers: restore (\S+) in file://(\S+) from a backup", gone.out)
    assert named is not None
    assert "sparkonce rerun" not in gone.out
    refused = desk.here("rerun", KEY)
    assert (refused.code, "restore that folder from a backup" in refused.out) == (ExitCode.FAILED, True)
    assert numbers_in(table) == [1, 2, 3]
    Path(named[2], named[1]).parent.mkdir(exist_ok=True)
    shutil.move(tmp_path / "backup", Path(named[2], named[1]))
    assert desk.here("rerun", KEY).code == ExitCode.SUCCEEDED
    assert numbers_in(table) == [1, 2, 3]
    assert desk.here("run", "job.yaml").code == ExitCode.SUCCEEDED


@pytest.mark.further
def test_a_rollback_of_an_iceberg_table(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`main` is set back before the commit: ResultGone says so, and its advice writes the rows anew."""
    from harness.iceberg_tables import rows, sql_catalog, table

    for name, value in sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)

    script = WRITES.format(stager="arrow_stage", function="arrow_stage")
    where = {"name": "numbers", "iceberg": {"catalog": "lake", "table": "sales.orders"}}
    assert desk.here("run", desk.job(script, outputs=[where])).code == ExitCode.SUCCEEDED
    head = table().current_snapshot()
    assert head is not None and head.parent_snapshot_id is not None
    table().manage_snapshots().set_current_snapshot(snapshot_id=head.parent_snapshot_id).commit()
    gone = desk.here("run", "job.yaml")
    assert gone.code == ExitCode.RESULT_GONE
    assert f"snapshot {head.snapshot_id}, its commit, is not in the history of main" in gone.first
    assert f"what to do: sparkonce rerun {KEY}" in gone.out
    assert desk.here("rerun", KEY).code == ExitCode.SUCCEEDED
    assert rows() == [1, 2, 3]
    table().delete("n = 3")
    changed = desk.here("run", "job.yaml", "--json")
    assert (changed.code, output_of(changed)["found"]) == (ExitCode.SUCCEEDED, "changed")
    assert output_of(changed)["changedBy"][0]["operation"] == "delete"
