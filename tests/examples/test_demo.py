"""`make demo` and the quickstart, as a reader of the README runs them, in a copy of the checkout's examples.

The demo prints how long the second answer took. The tests do not check that, since it means little on a machine that runs other tests;
instead a Java that fails proves that a replay needs no JVM.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.sender import needs_spark
from harness.patience import completed

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240  # seconds; a demo starts one JVM, and other tests may share the two cores


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The examples without their data, with this environment linked as the `.venv` that they expect."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("data", "__pycache__"))
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def answers(said: str) -> list[str]:
    """The first word of each answer: succeeded or replayed."""
    return re.findall(r"^(succeeded|replayed): ", said, re.MULTILINE)


def run(*command: str, checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs one command in the checkout and returns its output."""
    return completed(command, PATIENCE, cwd=checkout, env={**os.environ, **environment})


def broken_java(folder: Path) -> Path:
    """A JAVA_HOME whose java fails."""
    home = folder / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    return home


@pytest.mark.spark
@pytest.mark.slow
@needs_spark
def test_demo_runs_once_replays_and_tells_the_truth(checkout: Path) -> None:
    """The first demo runs the job and replays it, the next one replays both times and says why. Each shows a table of January's 27,004
    flights and writes only to the folder that it names. With FRESH=1 there is nothing to replay: it needs a Java again."""
    demo = "examples/flights/demo.sh"
    first = run("sh", demo, checkout=checkout)
    assert (first.returncode, answers(first.stdout)) == (0, ["succeeded", "replayed"]), first.stderr
    assert "27,004 rows in" in first.stdout
    assert "An earlier demo" not in first.stdout

    no_java = str(broken_java(checkout))
    second = run("sh", demo, checkout=checkout, JAVA_HOME=no_java)
    assert (second.returncode, answers(second.stdout)) == (0, ["replayed", "replayed"]), second.stderr
    assert "An earlier demo" in second.stdout
    assert "27,004 rows in" in second.stdout

    third = run("sh", demo, checkout=checkout, FRESH="1", JAVA_HOME=no_java)
    assert (third.returncode, answers(third.stdout)) == (2, []), third.stderr
    assert "install Java 17 or later" in third.stderr
    written = {path.name for path in checkout.iterdir()} | {path.name for path in (checkout / "examples").iterdir()}
    assert written == {
        ".venv",
        "java",
        "examples",
        ".gitignore",
        *(path.name for path in (ROOT / "examples").iterdir()),
    }


@pytest.mark.spark
def test_demo_fails_when_the_job_cannot_run(checkout: Path) -> None:
    """Without a working Java a new demo ends with the command's own sentence and exit code, and shows no table."""
    failed = run("sh", "examples/flights/demo.sh", checkout=checkout, JAVA_HOME=str(broken_java(checkout)))
    assert failed.returncode == 2
    assert "install Java 17 or later" in failed.stderr
    assert "rows in" not in failed.stdout
