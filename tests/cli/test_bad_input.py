"""Whatever is wrong with a request or its surroundings: one sentence with the place of the fault, the right exit code, no traceback,
and nothing started."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from harness.desk import OUTPUT, PATIENCE, WRITES, Desk, Said
from sparkonce.cli.exits import ExitCode


def refused(desk: Desk, *arguments: str) -> Said:
    """Runs, and checks what every refusal has in common."""
    said = desk.here(*arguments)
    sentence = said.err.splitlines()[-1]
    assert sentence.startswith("sparkonce: ")
    assert said.err.count("sparkonce: ") == 1
    assert said.out == ""
    told = desk.here(*arguments, "--json")
    assert (told.told["phase"], told.told["exitCode"], told.code) == (None, said.code, said.code)
    assert f"sparkonce: {told.told['reason']}" in told.err
    assert desk.attempts() == 0
    return Said(said.code, said.out, sentence)


def edit(desk: Desk, change: Callable[[dict[str, object]], None]) -> None:
    """Changes `spec` in job.yaml."""
    path = desk.folder / "job.yaml"
    document = yaml.safe_load(path.read_text())
    change(document["spec"])
    path.write_text(yaml.safe_dump(document))


def test_broken_yaml(desk: Desk) -> None:
    """The sentence has file and line."""
    (desk.folder / "job.yaml").write_text("apiVersion: sparkonce.dev/v1alpha1\nkind: [IdempotentJob\n")
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.INVALID
    assert "job.yaml:" in said.err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"onDuplicte": "Attach"}, ["spec.onDuplicte", "did you mean onDuplicate?"]),
        ({"retry": {"maxAttempts": 0}}, ["spec.retry.maxAttempts", "at least 1"]),
        ({"resource": None}, ["spec.resource", "is required"]),
        (
            {"outputs": [{"name": "numbers", "delta": {"path": "gopher://lake/x"}}]},
            ["spec.outputs[numbers].delta.path", "`gopher:` is no place"],
        ),
        (
            {"outputs": [{"name": "numbers", "iceberg": {"catalog": "c", "table": "t"}}]},
            ["spec.outputs[numbers].iceberg", "a table in a namespace"],
        ),
        (
            {"outputs": [{"name": "numbers", "slotLog": {"path": "s3://"}}]},
            ["spec.outputs[numbers].slotLog.path", "s3://"],
        ),
        ({"resource": "numbers/${params.month}"}, ["spec.resource", "--param month=VALUE"]),
    ],
)
def test_a_field_that_is_wrong(desk: Desk, change: dict[str, object], told: list[str]) -> None:
    """The sentence has the field's path."""
    desk.job()
    edit(desk, lambda spec: spec.update(change))
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.INVALID
    for part in told:
        assert part in said.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--param", "month=1"], "--param month"),
        (["--param", "month"], "--param NAME=VALUE"),
        (["--param", "a=1", "--param", "a=2"], "given twice"),
        (["--output", "orders=x"], "--output orders"),
        (["--output", "numbers"], "--output NAME=DIR"),
        (["--store", "redis://here"], "redis://here"),
        (["--store", "mysql://user:hidden@here/db"], "mysql://here/db"),
        (["--wrong"], "`sparkonce run --help` shows how"),
    ],
)
def test_an_option_that_is_wrong(desk: Desk, arguments: list[str], told: str) -> None:
    """The sentence names the option; no password is repeated."""
    desk.job()
    said = refused(desk, "run", "job.yaml", *arguments)
    assert said.code == ExitCode.INVALID
    assert told in said.err
    assert "hidden" not in said.err


def test_files_that_are_not_there(desk: Desk) -> None:
    """Job file, script, and the file of --application: each is named."""
    assert "nothing.yaml" in refused(desk, "run", "nothing.yaml").err
    assert "is a folder" in refused(desk, "run", ".").err
    desk.job()
    (desk.folder / "job.py").unlink()
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.INVALID
    assert "spec.template.spec.mainApplicationFile" in said.err
    assert str(desk.folder / "job.py") in said.err
    desk.job(template={"mainApplicationFile": "local:///opt/job.py"})
    assert "--application FILE" in refused(desk, "run", "job.yaml").err
    assert "other.py" in refused(desk, "run", "job.yaml", "--application", "other.py").err


def test_a_text_that_is_no_text(desk: Desk) -> None:
    """A job file in another encoding is told as such."""
    (desk.folder / "job.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not text in UTF-8" in refused(desk, "run", "job.yaml").err


def test_an_output_that_cannot_be_written(desk: Desk) -> None:
    """Exit 3 before anything is reserved: a folder that cannot be made is a store that cannot be reached."""
    (desk.folder / "lake").write_text("a file where a folder should be")
    desk.job()
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.UNAVAILABLE
    assert str(desk.folder / "lake") in said.err
    assert desk.here("keys", "list", "--json").told["keys"] == []


def damaged(path: Path) -> None:
    path.write_bytes(b"this is not a database, and has never been one\n" * 50)


def another_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE accounts (id INTEGER)")
    database.close()


def newer_layout(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET layout = 99")
    database.close()


def folder_instead(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (damaged, "damaged"),
        (another_database, "not a ledger"),
        (newer_layout, "upgrade sparkonce"),
        (folder_instead, "is a folder"),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_ledger_that_cannot_be_used(desk: Desk, command: str, spoil: Callable[[Path], None], told: str) -> None:
    """Exit 3, and the ledger is left as it is."""
    desk.job()
    if spoil is newer_layout:
        assert desk.here("keys", "list").code == 0
    spoil(desk.ledger)
    before = desk.ledger.read_bytes() if desk.ledger.is_file() else b""
    said = refused(desk, command, "job.yaml")
    assert said.code == ExitCode.UNAVAILABLE
    assert str(desk.ledger) in said.err
    assert told in said.err
    assert (desk.ledger.read_bytes() if desk.ledger.is_file() else b"") == before


def test_a_record_of_a_newer_version(desk: Desk) -> None:
    """A record that asks for a newer reader is neither run nor overwritten, and `keys list` shows it as one that cannot be read."""
    desk.job()
    with desk.owned_elsewhere():
        pass
    with sqlite3.connect(desk.ledger) as database:
        [[body]] = database.execute("SELECT body FROM records").fetchall()
        newer = body.replace('"minReader":1', '"minReader":9')
        assert newer != body
        database.execute("UPDATE records SET body = ?", [newer])
    database.close()
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.UNAVAILABLE
    assert "upgrade sparkonce" in said.err
    listed = desk.here("keys", "list", "--json").told
    assert listed["keys"] == []
    assert "upgrade sparkonce" in listed["unreadable"][0]["reason"]
    assert "cannot be read" in desk.here("keys", "list").out
    shown = desk.here("keys", "show", listed["unreadable"][0]["keyHash"][:12])
    assert (shown.code, "upgrade sparkonce" in shown.err) == (ExitCode.UNAVAILABLE, True)


def test_no_java_is_found_before_an_attempt_is_used_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A new job is refused with exit 2 where Java is missing, fails or is too old; nothing is recorded."""
    monkeypatch.delenv("SPARKONCE_SPARK_SUBMIT")
    desk.job()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    said = refused(desk, "run", "job.yaml")
    assert said.code == ExitCode.INVALID
    assert "cannot be started" in said.err
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for script, told in (
        ("#!/bin/sh\nexit 1\n", "fails (exit code 1)"),
        ("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n", "Java 11 at"),
    ):
        binary.write_text(script)
        binary.chmod(0o755)
        said = refused(desk, "run", "job.yaml")
        assert told in said.err
        assert "install Java 17 or later" in said.err
    assert desk.here("keys", "list", "--json").told["keys"] == []


def test_an_output_that_is_not_declared(desk: Desk) -> None:
    """A job that writes an undeclared output fails with a sentence about spec.outputs in its log; nothing is written."""
    desk.job(WRITES.replace('"numbers"', '"orders"'))
    said = desk.here("run", "job.yaml")
    assert said.code == ExitCode.FAILED
    assert "output 'orders' is not declared under spec.outputs" in said.out
    assert desk.commits() == []


def test_a_reader_that_has_gone(desk: Desk) -> None:
    """`sparkonce keys list | true` ends without a word."""
    desk.job()
    with desk.owned_elsewhere():
        pass
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sparkonce", "keys", "list"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=PATIENCE, check=False)
    os.close(write)
    assert done.stderr == b""


def test_unused_fields_are_named_once(desk: Desk) -> None:
    """What only Kubernetes understands is named on standard error, and does nothing."""
    desk.job(template={"image": "registry.example/job:1"}, outputs=[OUTPUT])
    said = desk.here("plan", "job.yaml")
    assert said.err.count("only for Kubernetes, not used here: spec.template.spec.image") == 1


def test_a_full_disk_under_the_ledger(desk: Desk) -> None:
    """What cannot be written is said with exit 3; nothing is lost: with room again the same command goes through."""
    desk.job()
    assert desk.here("keys", "list").code == 0
    command = f"ulimit -f 8; exec {sys.executable} -m sparkonce run job.yaml"  # no file may grow beyond 8 blocks
    full = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert full.returncode == ExitCode.UNAVAILABLE, full
    assert full.stderr.splitlines()[-1].startswith(f"sparkonce: the ledger {desk.ledger} could not be")
    assert "Traceback" not in full.stderr
    assert desk.attempts() == 0
    assert desk.here("run", "job.yaml").code == 0
    assert [slot.rows for slot in desk.commits()] == [1234]
