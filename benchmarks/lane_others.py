"""What becomes of rows whose writer is killed, doubled or frozen: `PYTHONPATH=tests python benchmarks/lane_others.py` prints a table.

The writers are in `lane_other_taps.py`, on local folders, on one broker of Kafka, and on a Fluss of one node. Afterwards one undisturbed
run brings each table to its end; what is missing then is lost, and what is there more than once is doubled. Where moments are drawn, a few
kills may all miss the milliseconds between a commit and the position that is saved after it: in the column "after a commit" every kill is
there.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from lane_fluss import fluss
from lane_other_taps import WRITERS, Servers, prepare, rows

from harness.kafka import cluster

PROGRAM = Path(__file__).resolve().parent / "lane_other_taps.py"
COUNT = 2_000
"""Numbers to be written: some seconds without faults."""
WAKES = 0.25
"""Seconds for which a process that was woken may go on."""


def start(which: str, folder: Path, *, dies_after: int = 0) -> subprocess.Popen[str]:
    """A process that knows its position."""
    command = [sys.executable, str(PROGRAM), which, str(folder), str(COUNT)]
    environment = {**os.environ, "DIES_AFTER": str(dies_after)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
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


def after_commit(which: str, folder: Path, dice: random.Random, kills: int) -> None:
    """One process after another dies right after one of its commits."""
    for _ in range(kills):
        end(start(which, folder, dies_after=dice.randint(1, 5)))


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
    "after a commit": after_commit,
    "killed": killed,
    "two at once": two,
    "frozen": frozen,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--only", default="", help="writers with this in their name")
    arguments = parser.parse_args()
    print("| writer | " + " | ".join(FAULTS) + " |\n| --- |" + " --- |" * len(FAULTS))
    with (
        tempfile.TemporaryDirectory() as place,
        tempfile.TemporaryDirectory() as other,
        cluster(Path(place), brokers=1) as kafka,
        fluss(Path(other)) as address,
    ):
        servers = Servers(kafka, address)
        for which in (each for each in WRITERS if arguments.only in each):
            cells = []
            for name, fault in FAULTS.items():
                with tempfile.TemporaryDirectory() as base:
                    folder = Path(base) / "tap"
                    prepare(which, folder, servers)
                    fault(which, folder, random.Random(f"{arguments.seed} {name}"), arguments.kills)
                    code = end(start(which, folder))
                    found = Counter(rows(which, folder, servers))
                lost = sum(n not in found for n in range(1, COUNT + 1))
                doubled = sum(times - 1 for times in found.values())
                cells.append(f"{lost} lost, {doubled} doubled" + (f", the last run ended with {code}" if code else ""))
            print(f"| {which} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
