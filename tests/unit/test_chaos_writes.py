"""How `make chaos WRITES=1` counts and shows its runs: on planted results, without Spark."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

import chaos_writes as chaos
from chaos_writes import BEFORE, FAULTS, WRITES, Run, document, truth


@pytest.mark.parametrize(
    ("write", "rows", "kept"),
    [("Parquet, append", 15, 10), ("Delta, replaceWhere", 10, 5), ("Iceberg, MERGE", 13, 8)],
)
def test_the_rows_of_one_effect(write: str, rows: int, kept: int) -> None:
    """An append keeps all rows, an overwrite those of other days, and a MERGE changes two."""
    found = truth(write)
    assert (found.total(), (found & Counter(BEFORE)).total()) == (rows, kept)


def test_the_page_shows_what_is_wrong_and_what_is_missing() -> None:
    """A wrong run says how many rows are too many and lost; a run that was not made is a dash."""
    fault, other = list(FAULTS)[:2]
    page = document(
        [
            Run(WRITES[0], fault, "plain", duplicates=5, losses=1, measured="2026-01-02", commit="abc"),
            Run(WRITES[0], other, "plain", duplicates=0, losses=0, measured="2026-01-01", commit="abc"),
        ]
    )
    assert f"| {WRITES[0]} | plain | **5 too many, 1 lost** | right | - | - | - |" in page
    assert "made 2026-01-01, 2026-01-02, of commits abc." in page


def test_a_session_makes_the_missing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on record is not made again, and the exit code is 1 if a run of ours is wrong."""
    monkeypatch.setattr(chaos, "RUNS", tmp_path / "writes.jsonl")
    monkeypatch.setattr(chaos, "DOCUMENT", tmp_path / "writes.md")
    known = {"measured": "2026-01-01", "commit": "abc"}
    runs = [Run(WRITES[0], fault, "plain", duplicates=5, losses=0, **known) for fault in FAULTS]
    chaos.RUNS.write_text("".join(f"{json.dumps(asdict(run))}\n" for run in runs))
    assert chaos.main(["--only", f"{WRITES[0]}; {next(iter(FAULTS))}; plain"]) == 0
    assert chaos.DOCUMENT.read_text() == document(runs)
    wrong = Run(WRITES[0], next(iter(FAULTS)), "sparkonce", duplicates=0, losses=1, **known)
    chaos.RUNS.write_text(f"{json.dumps(asdict(wrong))}\n")
    assert chaos.main(["--only", f"{WRITES[0]}; {next(iter(FAULTS))}; sparkonce"]) == 1
