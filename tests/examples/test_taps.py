"""The example of a tap: killed at random, and started again, it writes every row once."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyarrow import parquet

import sparkonce
from harness import effort
from harness.patience import completed

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "taps"


def flights(table: Path) -> list[tuple[str, int]]:
    """Flight and delay of each row, in order."""
    found = []
    for file in sparkonce.files(table):
        columns = parquet.read_table(file.removeprefix("file://")).to_pydict()
        found += list(zip(columns["flight"], columns["delay"], strict=True))
    return found


@pytest.mark.slow
def test_the_tap_is_killed_and_started_again(tmp_path: Path) -> None:
    """Three times at random, while files arrive; afterwards the table has the rows of all files, in order."""
    dice = random.Random(effort.seed("taps"))
    landing, table = tmp_path / "landing", tmp_path / "table"
    landing.mkdir()
    command = [sys.executable, str(EXAMPLE / "tap.py"), str(landing), str(table)]
    shutil.copy(EXAMPLE / "landing" / "2013-01-01.csv", landing)
    for number in range(3, 6):
        lines = "".join(f"F{number}{n},A,B,{n}\n" for n in range(200))
        (landing / f"2013-01-0{number}.csv").write_text(f"flight,origin,dest,delay\n{lines}")
        tap = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(dice.uniform(0.2, 1.5))  # the moment of the kill, which is drawn; the result may not depend on it
        tap.send_signal(signal.SIGKILL)
        tap.wait()
    done = completed(command, 60)
    assert done.returncode == 0, done.stderr
    expected = [("UA1545", 2), ("UA1714", 4), ("AA1141", 2), ("B6725", -1)]
    expected += [(f"F{number}{n}", n) for number in range(3, 6) for n in range(200)]
    assert flights(table) == expected
    assert "has written up to {'file': '2013-01-05.csv', 'line': 200}" in done.stdout
