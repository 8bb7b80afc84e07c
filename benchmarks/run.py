"""Measures what exactly-once costs: `make bench`, or `python benchmarks/run.py --only reserve`.

Each of PARTS is in a module that describes what it times. This module has the options, the scratch folder, the table, and the results
file. Progress goes to standard error, one line per pair; a progress bar was not taken, because its drawing thread would be measured, too.
The exit code is 0 when everything was measured and every effect was right, whether or not goals were met: missing a goal on a busy machine
is not a defect of the build. Some parts need servers (etcd, PostgreSQL, a Kubernetes API server), as the tests do; where these can be
neither found nor built, the parts are skipped, and the output names the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

from command import Commands
from formats import Formats
from measure import LEAST_PAIRS, Row, Verdict, WrongEffect
from output import Output
from replay import Replay
from reserve import Reserve
from rich.console import Console
from rich.table import Table

from machine import cores, described, file_system, metered
from sparkonce.errors import SparkonceError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
HTTP = ("http", "http-postgres", "http-etcd", "http-outstanding", "http-proxy", "http-keys")
"""Parts in benchmarks/http."""
PARTS = (
    "output",
    "formats",
    "statements",
    "command",
    "reserve",
    "replay",
    "etcd",
    "operator",
    "operator-postgres",
    "lanes",
    "lanes-kafka",
    *HTTP,
)
SERVERS = {
    "etcd": "kube-apiserver",
    "operator": "kube-apiserver",
    "operator-postgres": "kube-apiserver",
    "http-postgres": "postgres",
    "http-etcd": "etcd",
    "http-outstanding": "etcd",
}
"""Parts that start the same servers as the tests, and the program that decides whether they can be had."""
sys.path[1:1] = [str(ROOT / "benchmarks" / "http"), str(ROOT / "tests")]
WIDTH = 200
"""Width of the table, in characters, if the output is not a terminal."""


class Part(Protocol):
    def measure(self) -> list[Row]: ...

    def dump(self) -> dict[str, Any]: ...


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description="What exactly-once costs.")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (may be given again)")
    parser.add_argument(
        "--rows",
        type=_number,
        default=10_000_000,
        help="of the output part (10,000,000); formats writes a twentieth and two fifths, statements and command two fifths",
    )
    parser.add_argument(
        "--pairs", type=_number, default=10, help=f"counted ones (10); below {LEAST_PAIRS} nothing is met"
    )
    parser.add_argument(
        "--first-writes", type=_count, default=5, help="processes per variant that write once, in formats (5)"
    )
    parser.add_argument(
        "--places",
        type=_number,
        default=100_000,
        help="behind which the part lanes opens a writer (100,000); it reads a tenth of that",
    )
    parser.add_argument("--jobs", type=_number, default=300, help="of each run of the operator part (300)")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="the operator's memory at 10,000 finished and 1,000 active jobs, instead of at 1,000 and 100: half an hour",
    )
    parser.add_argument(
        "--keys",
        type=_keys,
        default=100_000,
        help="that each process of http-keys answers (100,000; 1,000,000: 15 minutes)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="where everything is written (benchmarks/results/DATE.json)"
    )
    asked = parser.parse_args(arguments)
    asked.finished, asked.active = (10_000, 1_000) if asked.memory else (1_000, 100)
    return asked


def _number(text: str, least: int = 1) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdecimal() or int(digits) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} on")
    return int(digits)


def _count(text: str) -> int:
    return _number(text, 0)


def _keys(text: str) -> int:
    return _number(text, 1000)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def part(name: str, scratch: Path, asked: argparse.Namespace) -> Part:
    scratch.mkdir()
    if name == "output":
        return Output(scratch, asked.rows, asked.pairs, say)
    if name == "formats":
        small, large = max(1, asked.rows // 20), max(2, asked.rows * 2 // 5)
        return Formats(scratch, small, large, asked.pairs, say, asked.first_writes)
    if name == "statements":
        from statements import Statements

        from harness.delta_jars import resolved

        jars = ",".join(map(str, resolved()))
        return Statements(scratch, max(2, asked.rows * 2 // 5), asked.pairs, jars, say)
    if name == "command":
        return Commands(scratch, max(2, asked.rows * 2 // 5), asked.pairs, say)
    if name in ("reserve", "replay"):
        return Reserve(scratch, asked.pairs, say) if name == "reserve" else Replay(scratch, asked.pairs, say)
    if name in HTTP:
        return http_part(name, scratch, asked)
    if name == "lanes":
        from lane_costs import DAY, LaneCosts

        lengths = {
            "places": asked.places,
            "read_places": max(10, asked.places // 10),
            "day": max(100, asked.places * DAY // 100_000),
        }
        return LaneCosts(scratch, asked.pairs, say, rows=max(10_000, asked.rows // 20), **lengths)
    if name == "lanes-kafka":
        from lane_kafka import LaneKafka

        return LaneKafka(scratch, asked.pairs, say, rows=max(1_000, asked.rows // 50))
    if name == "etcd":
        from operator_reserve import OperatorReserve

        return OperatorReserve(scratch, asked.pairs, say)
    if name == "operator-postgres":
        from operator_ledgers import OperatorLedgers

        return OperatorLedgers(scratch, asked.pairs, say, jobs=asked.jobs)
    from operator_jobs import OperatorJobs

    return OperatorJobs(scratch, asked.pairs, say, jobs=asked.jobs, finished=asked.finished, active=asked.active)


def http_part(name: str, scratch: Path, asked: argparse.Namespace) -> Part:
    from http_costs import HttpCosts
    from http_keys import HttpKeys
    from http_outstanding import HttpOutstanding
    from http_proxy import HttpProxy

    match name:
        case "http-outstanding":
            return HttpOutstanding(scratch, asked.pairs, say)
        case "http-proxy":
            return HttpProxy(scratch, asked.pairs, say)
        case "http-keys":
            return HttpKeys(scratch, asked.keys, say)
    stores = {"http": ("memory", "sqlite"), "http-postgres": ("postgres",), "http-etcd": ("etcd",)}
    return HttpCosts(name, stores[name], scratch, asked.pairs, say)


def missing(name: str) -> str:
    """Why the part cannot be measured here; empty if it can."""
    if name not in (*SERVERS, "statements", "lanes-kafka"):
        return ""
    from harness.binaries import PartMissing, find  # found through the path set above
    from harness.delta_jars import resolved
    from harness.postgres import PACKAGE, binaries
    from harness.store_parts import kafka_resolved

    if name.endswith("-postgres") and not binaries():
        return f"no PostgreSQL server here: install the package {PACKAGE} (initdb and postgres)"
    if name == "http-postgres":
        return ""
    try:
        if name == "statements":
            resolved()
        elif name == "lanes-kafka":
            kafka_resolved()
        elif SERVERS[name] != "etcd" or shutil.which("etcd") is None:
            find(SERVERS[name])
    except PartMissing as absent:
        return str(absent)
    return ""


def main(arguments: list[str]) -> int:
    asked = options(arguments)
    names = [name for name in PARTS if name in (asked.only or PARTS)]
    began = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    where = Path(os.environ.get("TMPDIR") or RESULTS)
    found: dict[str, Any] = {"schema": 1, "date": began.isoformat(timespec="seconds"), "machine": described(ROOT)}
    rows: list[Row] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="sparkonce-bench-", dir=where) as scratch:
        disk = file_system(Path(scratch).resolve())
        found |= {"fileSystem": {"kind": disk.kind, "device": disk.device, "inMemory": disk.in_memory}, "parts": {}}
        say(f"writing to {disk}, {cores()} cores, load {os.getloadavg()[0]:.1f}")
        for name in names:
            if why := missing(name):
                notes.append(f"{name}: not measured: {why}")
                continue
            chosen = part(name, Path(scratch, name), asked)
            table, used = metered(chosen.measure)
            rows += table
            notes.append(f"{name}: {used.sentence()}")
            found["parts"][name] = {**chosen.dump(), "noise": used.dump(), "table": [row.dump() for row in table]}
    found["pairs"] = asked.pairs
    show(rows, notes, f"{found['machine']['processor']}, {cores()} cores; files on {disk}")
    path = asked.json or RESULTS / f"{began:%Y-%m-%dT%H-%M-%SZ}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"Everything that was measured: {path}")
    return 0


def show(rows: list[Row], notes: list[str], machine: str) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    whole = console.width >= WIDTH  # a narrow terminal folds cells instead of cutting them
    table = Table(title="Medians of interleaved pairs", caption=_caption(rows), caption_justify="left")
    table.add_column("what", no_wrap=whole)
    for name in ("ours", "raw", "ratio median", "spread", "pairs"):
        table.add_column(name, justify="right", no_wrap=whole)
    for name in ("goal", "met?"):
        table.add_column(name, no_wrap=whole)
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
    print(f"Machine: {machine}")
    for note in notes:
        print(f"Noise, {note}")


def cells(row: Row) -> list[str]:
    told = row.dump()
    ratio, raw = told["ratioMedian"], told["raw"]
    least, greatest = told["spread"]
    return [
        row.what,
        _text(told["ours"], row.unit),
        "-" if raw is None else _text(raw, row.unit),
        "-" if ratio is None else _text(ratio),
        f"{_text(least)} - {_text(greatest, told['spreadOf'])}",
        str(told["pairs"]),
        told["goal"] or "-",
        told["verdict"] or "-",
    ]


def _text(number: float, unit: str = "ratio") -> str:
    digits = f"{number:.0f}" if number >= 100 else f"{number:.2f}"
    return digits if unit == "ratio" else f"{digits} {unit}"


def _caption(rows: list[Row]) -> str:
    lines = ["spread: least to greatest; of the ratios, of ours where a unit stands; met: all of it is within the goal"]
    for row in rows:
        if row.verdict is Verdict.NOT_TOLD_APART and (inner := row.dump()["intervalOfMedian"]) is not None:
            low, high = (f"{each:.2f}" for each in inner)
            lines.append(
                f"{row.what}, {row.unit}: the median itself is in {low} - {high} with at least 95 % confidence"
            )
    return "\n".join(lines)


def _ended(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)  # runs every `finally`, so that files on disk are deleted


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _ended)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except (WrongEffect, SparkonceError, OSError) as problem:
        sys.exit(f"benchmarks: {problem}")
