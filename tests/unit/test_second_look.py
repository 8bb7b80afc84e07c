"""The gate's second look, on planted tests: what fails once is green but named; what fails twice, or too many that fail once, is red."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.patience import completed

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60.0
"""Seconds for two runs of pytest with two workers."""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A project with this one's settings and no tests."""
    for name in ("pyproject.toml", "tests/conftest.py", "scripts/second_look.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(
        ROOT / "tests" / "harness", tmp_path / "tests" / "harness", ignore=shutil.ignore_patterns("gomodules")
    )
    (tmp_path / "tests" / "unit").mkdir()
    return tmp_path


def gate(project: Path, text: str, *, workers: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs the gate on one file of tests, which may call `again(name)`: whether it was called with this name before."""
    head = f"""
import os
import time
from pathlib import Path

import pytest

def again(name):
    seen = Path({str(project)!r}) / name
    before = seen.exists()
    seen.touch()
    return before
"""
    (project / "tests" / "unit" / "test_planted.py").write_text(head + text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "scripts/second_look.py", "flaky", "--tier", "quick", "-p", "xdist", "-p", "timeout"]
    command += ["-n", "2", "--dist", "worksteal"] if workers else []
    environment |= {"CI": "true", "EFFORT": "gate", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return completed(command, LIMIT, cwd=project, env=environment)


def flaky(project: Path) -> list[str]:
    file = project / "flaky"
    return file.read_text().splitlines() if file.exists() else []


def test_what_passes_is_green_at_once(planted: Path) -> None:
    """There is no second run and no flaky test."""
    done = gate(planted, "def test_one(): pass\n")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout.splitlines()[-1]
    assert "look" not in done.stdout
    assert flaky(planted) == []


def test_a_failure_that_stays_is_red(planted: Path) -> None:
    """An assertion that fails again in a run of its own is red."""
    done = gate(planted, "def test_one(): assert 1 == 2\ndef test_two(): pass\n")
    assert done.returncode == 1
    assert done.stdout.count("assert 1 == 2") >= 2
    assert "1 failed" in done.stdout.splitlines()[-1]
    assert flaky(planted) == []


def test_a_failure_that_goes_is_green_and_named(planted: Path) -> None:
    """Name and first failure are printed, the closing line counts the test as passed, and the next tier knows of it."""
    done = gate(planted, "def test_one(): assert again('one')\ndef test_two(): pass\n", workers=True)
    assert done.returncode == 0, done.stdout
    name = "tests/unit/test_planted.py::test_one"
    assert flaky(planted) == [name]
    said = done.stdout.partition("FLAKY")[2]
    assert said.startswith(f" {name}")
    assert "assert again('one')" in said
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed"


def test_four_that_fail_once_are_red(planted: Path) -> None:
    """Three are green; those of an earlier tier count as well."""
    done = gate(planted, "".join(f"def test_{n}(): assert again('{n}')\n" for n in range(3)))
    assert done.returncode == 0, done.stdout
    assert len(flaky(planted)) == 3
    done = gate(planted, "def test_fourth(): assert again('fourth')\n")
    assert done.returncode == 1
    assert "1 failed" in done.stdout.splitlines()[-2]
    assert done.stdout.splitlines()[-1].startswith("1 tests failed, and 3 were flaky before")


def test_a_test_that_hangs_is_red_with_its_stack(planted: Path) -> None:
    """It reaches its limit in both looks; the file and line where it hung are printed."""
    done = gate(planted, "@pytest.mark.timeout(1)\ndef test_one(): time.sleep(600)  # a planted hang\n")
    assert done.returncode == 1
    assert "time.sleep(600)  # a planted hang" in done.stdout
    assert "Timeout" in done.stdout


def test_a_dead_worker_is_looked_at_again(planted: Path) -> None:
    """A test that kills its process is a failure like any other."""
    done = gate(planted, "def test_one(): again('one') or os.abort()\ndef test_two(): pass\n", workers=True)
    assert done.returncode == 0, done.stdout
    assert "crashed while running" in done.stdout.partition("FLAKY")[2]
    assert flaky(planted) == ["tests/unit/test_planted.py::test_one"]


def test_an_error_at_collection_is_red_at_once(planted: Path) -> None:
    """There is no test that could be run again."""
    done = gate(planted, "import nothing_of_this_name\n")
    assert done.returncode != 0
    assert "Second look" not in done.stdout
