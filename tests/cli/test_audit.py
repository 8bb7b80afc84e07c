"""`sparkonce audit` and `sparkonce sweep` as a person uses them: exit codes, tables, JSON and the HTML page."""

from __future__ import annotations

import json
import shutil

from harness.desk import FAILS, Desk
from sparkonce.cli.exits import ExitCode


def test_a_clean_ledger(desk: Desk) -> None:
    """After real runs all outputs of the ledger are checked and no defect is found: exit 0, one line per output with its cost."""
    assert desk.here("run", desk.job()).code == 0
    said = desk.here("audit")
    assert said.code == ExitCode.SUCCEEDED
    table = next(line for line in said.out.splitlines() if line.startswith("file://"))
    assert table.split()[:5] == [f"file://{desk.folder}/lake/numbers", "slotLog", "1", "1", "234"]
    assert "no defect in 1 table(s), 1 commits, 1234 rows in 2 files, 1 keys" in said.out
    assert "peak memory" in said.out
    named = desk.here("audit", "lake/numbers")
    assert named.code == 0
    assert "no ledger was named" in named.out


def test_a_missing_file_is_a_defect(desk: Desk) -> None:
    """Exit 1; the file is named with what to do; JSON and HTML files are written, and JSON on standard output has the exit code."""
    desk.here("run", desk.job())
    lost = next((desk.folder / "lake" / "numbers").glob("_data/*/*/*.parquet"))
    lost.unlink()
    said = desk.here("audit", "--json", "audit.json", "--html", "audit.html")
    assert said.code == ExitCode.FAILED
    assert "missing file" in said.out
    assert f"file://{lost}" in said.out.replace("\n", "")
    told = json.loads((desk.folder / "audit.json").read_text())
    assert [(each["severity"], each["kind"]) for each in told["findings"]] == [("defect", "missing file")]
    assert (told["defects"], told["clean"], told["complete"]) == (1, False, True)
    assert told["tables"][0]["rows"] == 1234
    assert "1 defect(s)" in (desk.folder / "audit.html").read_text()
    printed = desk.here("audit", "lake/numbers", "--store", str(desk.ledger), "--json", "-")
    assert printed.told["exitCode"] == printed.code == ExitCode.FAILED


def test_what_a_killed_attempt_left_is_swept(desk: Desk) -> None:
    """Its folder is an orphan and no defect; a dry run counts it and deletes nothing, a sweep deletes exactly that folder."""
    desk.here("run", desk.job())
    [slot] = desk.commits()
    beside = desk.folder / "lake" / "numbers" / "_data" / slot.sink_key / f"{2:010d}-{'b' * 32}"
    shutil.copytree(next((desk.folder / "lake" / "numbers").glob("_data/*/*")), beside)
    assert desk.here("audit").code == 0
    assert "orphan staging" in desk.here("audit").out
    dry = desk.here("sweep", "--dry-run", "--json").told
    assert (dry["folders"], dry["dryRun"], dry["problems"]) == (1, True, [])
    done = desk.here("sweep", "--json").told
    assert (done["folders"], done["bytes"]) == (1, dry["bytes"])
    assert done["bytes"] > 0
    assert not beside.exists()
    assert desk.here("run", "job.yaml", "--json").told["result"]["outputs"][0]["found"] == "present"
    again = desk.here("sweep", "lake/numbers")
    assert (again.code, again.out) == (0, "removed 0 folder(s), 0 bytes\n")
    assert "orphan" not in desk.here("audit").out


def test_a_failed_job_is_clean(desk: Desk) -> None:
    """The outputs of a job that failed without an effect agree with its record."""
    desk.here("run", desk.job(FAILS))
    said = desk.here("audit")
    assert (said.code, "no defect" in said.out) == (0, True)


def test_what_cannot_be_looked_at(desk: Desk) -> None:
    """An empty path, a file in place of a table, and an invalid ledger are reported with exit 3, never as clean."""
    nothing = desk.here("audit", "lake/typo")
    assert nothing.code == ExitCode.UNAVAILABLE
    assert "nothing there" in nothing.out
    desk.here("run", desk.job())
    shutil.rmtree(desk.folder / "lake" / "numbers")
    (desk.folder / "lake" / "numbers").write_text("a file")
    refused = desk.here("audit")
    assert refused.code == ExitCode.UNAVAILABLE
    assert "not seen" in refused.out
    assert desk.here("sweep").code == ExitCode.UNAVAILABLE
    (desk.folder / "none.db").write_text("no ledger" * 100)
    assert desk.here("audit", "--store", "none.db").code == ExitCode.UNAVAILABLE


def test_a_location_that_is_none(desk: Desk) -> None:
    """A location that cannot be a table is refused in one sentence."""
    said = desk.here("audit", "lake/*")
    assert said.code == ExitCode.INVALID
    assert said.err.startswith("sparkonce: ")
    assert len(said.err.splitlines()) == 1
