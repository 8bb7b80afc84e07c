"""`sparkonce doctor` reports everything that is wrong at once, each with what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from harness.desk import Desk, Said
from sparkonce.cli.exits import ExitCode


def checks(said: Said) -> dict[str, dict[str, Any]]:
    return {check["what"]: check for check in said.told["checks"]}


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JAVA_HOME whose java only reports version 21."""
    binary = tmp_path / "java" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n")
    binary.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return tmp_path / "java"


def test_all_is_well(desk: Desk, java_home: Path) -> None:
    """Exit 0; versions and locations are listed, and with a job file its key and outputs, too."""
    desk.job()
    said = desk.here("doctor", "job.yaml", "--json")
    assert said.code == 0
    found = checks(said)
    assert found["Java"]["said"] == f"Java 21 at {java_home}/bin/java (from JAVA_HOME)"
    assert found["PySpark"]["said"].startswith("4.")
    assert found["ledger"]["said"] == f"sqlite:///{desk.ledger}: 0 keys, not damaged"
    assert "key write/numbers@1" in found["job"]["said"]
    assert str(desk.folder / "lake" / "numbers") in found["output numbers"]["said"]
    table = desk.here("doctor", "job.yaml")
    assert "WRONG" not in table.out
    assert "Java 21" in table.out


def test_everything_is_wrong(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java, spark-submit, ledger and output are all reported at once; the exit code is that of the worst (3)."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("SPARKONCE_SPARK_SUBMIT", "/nowhere/spark-submit")
    desk.job()
    (desk.folder / "lake").write_text("a file where a folder should be")
    desk.ledger.write_text("no database\n" * 100)
    said = desk.here("doctor", "job.yaml", "--json")
    assert said.code == ExitCode.UNAVAILABLE
    found = checks(said)
    wrong = {what for what, check in found.items() if not check["ok"]}
    assert wrong == {"Java", "spark-submit", "ledger", "output numbers"}
    assert "install Java 17 or later" in found["Java"]["todo"]
    assert "damaged" in found["ledger"]["said"]
    table = desk.here("doctor", "job.yaml")
    assert table.out.count("WRONG") == 4


def test_a_machine_without_java_and_a_bad_job_file(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only makes requests invalid ends with exit 2."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    desk.job(onDuplicte="Attach")
    said = desk.here("doctor", "job.yaml", "--json")
    assert said.code == ExitCode.INVALID
    assert "spec.onDuplicte" in checks(said)["job"]["said"]


def test_a_damaged_page_is_found(desk: Desk, java_home: Path) -> None:
    """A ledger that opens but has a damaged page is reported as damaged."""
    desk.job()
    with desk.owned_elsewhere():
        pass
    with sqlite3.connect(desk.ledger) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [[root]] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchall()
        [[size]] = database.execute("PRAGMA page_size").fetchall()
    database.close()
    with desk.ledger.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * 64)
    said = desk.here("doctor", "--json")
    assert said.code == ExitCode.UNAVAILABLE
    assert not checks(said)["ledger"]["ok"]
    assert "backup" in checks(said)["ledger"]["said"] + checks(said)["ledger"]["todo"]
