"""What becomes of rows whose writer is killed, doubled or frozen: `python benchmarks/lane_others.py` prints a table.

The writers are in `lane_other_taps.py`, on local folders. Afterwards one undisturbed run brings each table to its end; what is missing then
is lost, and what is there more than once is doubled. Moments are drawn: a few kills may all miss the milliseconds between a commit and the
position that is saved after it, so a zero in the first and last column proves nothing of the others.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from lane_other_taps import WRITERS, prepare, rows

PROGRAM = Path(__file__).resolve().parent / "lane_other_taps.py"
COUNT = 2_000
"""Numbers to be written: some seconds without faults."""
WAKES = 0.25
"""Seconds for which a process that was woken may go on."""


def start(which: str, folder: Path) -> subprocess.Popen[str]:
    """A process that knows its position."""
    command = [sys.executable, str(PROGRAM), which, str(folder), str(COUNT)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=300)
    return process.returncode


def killed(which: str, folder: Path, dice: random.Random, kills: int) -> None:
    """One process after another is killed."""
    for _ in range(kills):
        process = start(which, folder)
        time.sleep(dice.uniform(0.0, 0.3))  # the moment of the kill is drawn
        process.kill()
        end(process)


def two(which: str, folder: Path, _dice: random.Random, _kills: int) -> None:
    """Two processes of one name run at once."""
    both = [start(which, folder) for _ in range(2)]
    for each in both:
        end(each)


def frozen(which: str, folder: Path, dice: random.Random, kills: int) -> None:
    """A process is frozen, another one takes its place and is killed half-way, and the first is woken."""
    for _ in range(max(1, kills // 10)):
        first = start(which, folder)
        time.sleep(dice.uniform(0.0, 0.3))  # the moment is drawn
        first.send_signal(signal.SIGSTOP)
        second = start(which, folder)
        time.sleep(dice.uniform(0.2, 0.5))  # the moment is drawn
        second.kill()
        end(second)
        first.send_signal(signal.SIGCONT)
        time.sleep(WAKES)  # it appends meanwhile, if it may
        first.kill()
        end(first)


FAULTS: dict[str, Callable[[str, Path, random.Random, int], None]] = {
    "killed": killed,
    "two at once": two,
    "frozen": frozen,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    print("| writer | " + " | ".join(FAULTS) + " |\n| --- |" + " --- |" * len(FAULTS))
    for which in WRITERS:
        cells = []
        for name, fault in FAULTS.items():
            with tempfile.TemporaryDirectory() as base:
                folder = Path(base) / "tap"
                prepare(which, folder)
                fault(which, folder, random.Random(f"{arguments.seed} {name}"), arguments.kills)
                code = end(start(which, folder))
                found = Counter(rows(which, folder))
            lost = sum(n not in found for n in range(1, COUNT + 1))
            doubled = sum(times - 1 for times in found.values())
            cells.append(f"{lost} lost, {doubled} doubled" + (f", the last run ended with {code}" if code else ""))
        print(f"| {which} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
