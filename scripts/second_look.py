"""Runs the gate's tests, and runs what failed once more: `scripts/second_look.py FLAKY PYTEST-ARGUMENTS...`.

A test that fails in the gate is run again after all others, in one process and with nothing beside it. If it passes, it is green and named
under FLAKY, with its first failure. The gate is red if a test fails again, and if more than `MOST` tests of all its tiers were flaky: FLAKY
is a file to which each tier adds the names of its own. A run that ends for another reason (an error at collection, an interrupt) is not
repeated, nor is one with so many failures that a second run could not make it green.

pytest-rerunfailures was not taken: it repeats a test at once, under the load under which it failed. Only the gate (`.ci/run`) repeats
tests; every other run reports each failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MOST = 3
"""Maximum number of flaky tests in one gate, all tiers together. More mean that something is wrong with the tests or the machine."""
TESTS_FAILED = 1
"""Pytest's exit code when all tests ran and some failed."""
ENDS = 2400.0
"""Seconds for one run of pytest: twice the time allowed for the whole gate, so that a run that hangs outside its tests is ended, too."""


def main(arguments: list[str]) -> int:
    flaky_file, options = Path(arguments[0]), arguments[1:]
    known = flaky_file.read_text().splitlines() if flaky_file.exists() else []
    code, first = looked(options)
    failures: dict[str, str] = first["failed"]
    if code != TESTS_FAILED or not failures:
        return code
    if len(known) + len(failures) > MOST:
        print(
            f"{len(failures)} tests failed, and {len(known)} were flaky before: more than {MOST}, so none is run again.",
            flush=True,
        )
        return code
    print(f"\nSecond look, alone: {', '.join(failures)}", flush=True)
    again, second = looked([*without_workers(options), *failures])
    if again != 0 or second["passed"] < len(failures):
        return again or code
    flaky_file.write_text("".join(f"{name}\n" for name in [*known, *failures]))
    for name, text in failures.items():
        print(f"\nFLAKY {name}: passed when it was run again. Its first failure:\n{text}")
    print(f"\n{len(failures)} FLAKY: {', '.join(failures)}")
    print(f"{first['passed'] + len(failures)} passed, 0 failed", flush=True)
    return 0


def looked(options: list[str]) -> tuple[int, dict[str, Any]]:
    """Pytest's exit code, and what tests/conftest.py wrote: the number of passed tests, and the failed ones with their reports."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", "pytest", "--outcome", str(written), *options]
        try:
            code = subprocess.run(command, cwd=ROOT, check=False, timeout=ENDS).returncode
        except subprocess.TimeoutExpired:
            print(f"pytest was ended after {ENDS:.0f} s", file=sys.stderr)
            return 2, {"passed": 0, "failed": {}}
        outcome = json.loads(written.read_text()) if written.exists() else {"passed": 0, "failed": {}}
    return code, outcome


def without_workers(options: list[str]) -> list[str]:
    """The same options for a single process: without those of xdist, each of which has a value."""
    kept: list[str] = []
    left = iter(options)
    for option in left:
        if option in ("-n", "--dist"):
            next(left)
        else:
            kept.append(option)
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
