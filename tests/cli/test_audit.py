"""`sparkonce audit` and `sparkonce sweep` as a person uses them: exit codes, tables, JSON and the HTML page."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest

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


@pytest.mark.parametrize("table", ["records", "specs"])
def test_a_sweep_names_the_keys_whose_tables_it_cannot_know(desk: Desk, table: str) -> None:
    """A record or a job that cannot be read names no table: the sweep exits with 3 and says so; it does not pass the key over."""
    desk.here("run", desk.job())
    with sqlite3.connect(desk.ledger) as ledger:
        ledger.execute(f"UPDATE {table} SET body = '{{'")
    said = desk.here("sweep")
    assert (said.code, said.out) == (ExitCode.UNAVAILABLE, "removed 0 folder(s), 0 bytes\n")
    assert "cannot be read" in said.err
    assert len(said.err.splitlines()) == 1


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


def test_a_file_of_known_removals(desk: Desk) -> None:
    """`--known` reads YAML with comments; an entry that covers nothing is named, on the terminal and in the JSON, and hides no defect."""
    desk.here("run", desk.job())
    known = desk.folder / "known.yaml"
    known.write_text("""
# asked for by the owner of the data
known:
  - {table: "file:///lake", commit: version 7@3f2a9c81d0e4, reason: request 4711}
  - {table: "file:///lake", rows: 3, reason: request 4712}
""")
    said = desk.here("audit", "--known", "known.yaml")
    assert said.code == ExitCode.SUCCEEDED
    for name in ("version 7@3f2a9c81d0e4", "3 rows"):
        assert f"--known: nothing was found that {name} of file:///lake would cover" in said.out
    next((desk.folder / "lake" / "numbers").glob("_data/*/*/*.parquet")).unlink()
    told = desk.here("audit", "--known", "known.yaml", "--json", "-")
    assert (told.code, told.told["defects"]) == (ExitCode.FAILED, 1)
    assert [(each.get("commit"), each.get("rows"), each["findings"]) for each in told.told["known"]] == [
        ("version 7@3f2a9c81d0e4", None, 0),
        (None, 3, 0),
    ]
    assert told.told["findings"][0]["key"], "with the ledger every finding has its key"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "must hold one list, `known:`"),
        ("known: {}", "must hold one list, `known:`"),
        ("known: []\nmore: 1", "must hold one list, `known:`"),
        ("known: [{table: t, commit: c}]", "known[0].reason: Field required"),
        ("known: [{table: t, commit: c, reason: ''}]", "known[0].reason: "),
        ("known: [{table: t, commit: c, rows: 1, reason: r}]", "known[0]: Value error, give either commit or rows"),
        ("known: [{table: t, reason: r}]", "known[0]: Value error, give either commit or rows"),
        ("known: [{table: t, rows: 0, reason: r}]", "known[0].rows: "),
        ("known: [{table: t, commit: c, reason: r, until: never}]", "known[0].until: "),
        ("known: [7]", "known[0]: "),
        ("known: [", "known.yaml"),
        ("#" * ((1 << 20) + 1), "known.yaml is longer than 1048576 bytes"),
        (None, "known.yaml cannot be read: No such file or directory"),
    ],
)
def test_a_file_of_known_removals_that_is_none(desk: Desk, text: str | None, said: str) -> None:
    """Refused in one sentence with the entry and the field, before anything is read."""
    if text is not None:
        (desk.folder / "known.yaml").write_text(text)
    refused = desk.here("audit", "lake/numbers", "--known", "known.yaml")
    assert refused.code == ExitCode.INVALID
    assert said in refused.err
    assert len(refused.err.splitlines()) == 1
