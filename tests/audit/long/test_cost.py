"""The benchmark of audits runs, and reports its results."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.patience import completed

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "audit.py"


def test_the_benchmark_tells_time_memory_and_the_slope_to_a_million() -> None:
    """Each size has its median and spread; the slope is given per 1,000 files and extrapolated to 1,000,000."""
    command = [sys.executable, str(BENCHMARK), "--times", "2", "--files", "5", "--files", "120"]
    done = completed(command, 180)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert [line.split("|")[1].strip() for line in lines] == ["5", "120", "per 1,000 more", "1,000,000 (extrapolated)"]
    for line in lines:
        for cell in line.split("|")[2:4]:
            median, spread = cell.strip(" )").split(" (")
            least, most = spread.split(" to ")
            assert float(least) <= float(median) <= float(most)
