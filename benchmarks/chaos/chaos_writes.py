"""Runs `make chaos WRITES=1`: what people write tables with today, and the same script under sparkonce, when its driver dies.

The script is an unmodified one (`write_script.py`). *Plain* sends it by `spark-submit`, and again after its end, as a scheduler would.
*sparkonce* runs the same file by `sparkonce run` with `capture: true` on the output. The driver is killed or frozen at a known step, not
at a random moment, and rows are counted by a reader that is not Spark where there is one. Each run makes its table anew.

Each run is a line of docs/writes.jsonl, so that a session may be ended at any time; the next one makes the runs that are missing. The
table of all runs is docs/writes.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import sparkonce
from crash.iceberg_scene import engine
from crash.scene import Scene
from harness import iceberg_tables, spark_archive
from harness.delta_jars import SESSION, resolved
from harness.eventually import assert_eventually
from harness.iceberg_rest import rest_server, spark_runtime
from harness.patience import until_ended
from harness.spark import as_options

SCRIPT = Path(__file__).with_name("write_script.py")
ROOT = Path(__file__).resolve().parents[2]
RUNS, DOCUMENT = ROOT / "docs" / "writes.jsonl", ROOT / "docs" / "writes.md"
PATIENCE = 300.0
"""Seconds for a step: two starts of a JVM on a busy machine."""
WRITES = (
    "Parquet, append",
    "Parquet, dynamic overwrite",
    "Delta, append",
    "Delta, append with txnAppId",
    "Delta, replaceWhere",
    "Delta, MERGE",
    "Iceberg, append",
    "Iceberg, overwritePartitions",
    "Iceberg, MERGE",
)
OPTIONS = "Delta, append with txnAppId"
"""It has no sparkonce arm: a captured script leaves the option out."""
FAULTS = {
    "killed during the write": "its driver is killed while tasks run, and sent again",
    "killed after the write": "its driver is killed behind the write, before its end, and sent again",
    "killed, others append": "the same, and another job appends one row to the partition before it is sent again. The row stays, unless "
    "an overwrite had not taken effect yet when it came",
    "frozen during the write": "its driver is frozen while tasks run, is sent again, and goes on after the second one has ended",
    "sent twice": "two senders at once",
}
Row = tuple[int, int, int]
BEFORE: list[Row] = [(1 if number < 5 else 2, number, 0) for number in range(10)]
FOREIGN: Row = (2, 900, 5)


def truth(write: str) -> Counter[Row]:
    """The rows that the write leaves if it takes effect once, and nobody else writes."""
    new: list[Row] = [(2, number, 1) for number in range(100, 105)]
    if "MERGE" in write:
        changed = [(day, number, 1 if number in (8, 9) else value) for day, number, value in BEFORE]
        return Counter([*changed, *((2, number, 1) for number in range(10, 13))])
    kept = BEFORE if "append" in write else [row for row in BEFORE if row[0] == 1]
    return Counter([*kept, *new])


@dataclass(frozen=True)
class Run:
    """What one run left: of rows that should be there once, how many are there more often, and how many are not."""

    write: str
    fault: str
    arm: str
    duplicates: int
    losses: int
    measured: str
    """Date."""
    commit: str

    @property
    def right(self) -> bool:
        return not self.duplicates and not self.losses


@dataclass
class Table:
    """The table of one run, made with `BEFORE`."""

    kind: str
    folder: Path
    spark: SparkSession
    ours: bool
    """Whether Parquet is a slot log."""
    foreign: bool = False
    """Whether `FOREIGN` is to be there in the end."""

    @property
    def place(self) -> str:
        return "lake.sales.orders" if self.kind == "Iceberg" else str(self.folder / "lake" / "orders")

    def make(self) -> None:
        if self.kind == "Iceberg":
            catalog = iceberg_tables.catalog()
            catalog.create_namespace_if_not_exists("sales")
            with contextlib.suppress(Exception):
                catalog.drop_table("sales.orders")
            table = catalog.create_table("sales.orders", _rows([]).schema)
            with table.update_spec() as spec:
                spec.add_identity("day")
        elif self.kind == "Delta":
            # Spark's engine cannot read checkpoints of Delta 4.1 with this Spark: it calls a removed method.
            options = {"delta.checkpointInterval": "1000"}
            write_deltalake(self.place, _rows([]), partition_by=["day"], configuration=options)
        self.add("first", BEFORE)

    def add(self, name: str, rows: list[Row]) -> None:
        """Appends rows as another job, or another program, does."""
        if self.kind == "Iceberg":
            iceberg_tables.catalog().load_table("sales.orders").append(_rows(rows))
        elif self.kind == "Delta":
            write_deltalake(self.place, _rows(rows), mode="append")
        elif self.ours:
            frame = self.spark.createDataFrame(rows, "day int, id long, v int")
            with sparkonce.job(name, outputs={"orders": self.place}, store=str(self.folder / "seed.db")) as block:
                block.write(frame, "orders", partition_by=("day",))
        else:
            frame = self.spark.createDataFrame(rows, "day int, id long, v int")
            frame.write.mode("append").partitionBy("day").parquet(self.place)

    def add_foreign(self, write: str) -> None:
        """Another job's row, in the partition that an overwrite replaces: of the two, the one that takes effect later decides."""
        self.foreign = self.rows() == truth(write) or "append" in write or "MERGE" in write
        self.add("foreign", [FOREIGN])

    def rows(self) -> Counter[Row]:
        if self.kind == "Iceberg":
            found = iceberg_tables.catalog().load_table("sales.orders").scan().to_arrow().to_pylist()
        elif self.kind == "Delta":
            found = DeltaTable(self.place).to_pyarrow_table().to_pylist()
        else:
            frame = sparkonce.read(self.spark, self.place) if self.ours else self.spark.read.parquet(self.place)
            found = [row.asDict() for row in frame.select("day", "id", "v").collect()]
        return Counter((row["day"], row["id"], row["v"]) for row in found)


def _rows(rows: list[Row]) -> pa.Table:
    days, ids, values = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {"day": pa.array(days, pa.int32()), "id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.int32())}
    )


@dataclass
class Driver:
    """A script that was sent without sparkonce."""

    process: subprocess.Popen[bytes]

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ended(self) -> int:
        return until_ended(self.process, PATIENCE)


@dataclass
class Plain:
    """The script, sent by `spark-submit`."""

    folder: Path
    write: str
    table: Table
    conf: dict[str, str]
    sent: list[Driver] = field(default_factory=list)

    def gate(self, number: int) -> Path:
        return self.folder / f"gate{number}"

    def send(self) -> int:
        number = len(self.sent)
        words = [part for name, value in self.conf.items() for part in ("--conf", f"{name}={value}")]
        command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", *words, str(SCRIPT)]
        with (self.folder / f"plain-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, self.write, self.table.place, str(self.gate(number))],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            )
        self.sent.append(Driver(process))
        return number

    def reached(self, number: int, suffix: str) -> None:
        there = Path(f"{self.gate(number)}.{suffix}")
        assert_eventually(lambda: there.exists() or self.sent[number].process.poll() is not None, PATIENCE)
        if not there.exists():
            raise RuntimeError((self.folder / f"plain-{number}.log").read_text()[-3000:])

    def play(self, fault: str) -> None:
        suffix = ".after" if fault.startswith("killed a") or "others" in fault else ""
        Path(f"{self.gate(0)}{suffix}").touch()
        first = self.sent[self.send()]
        self.reached(0, "behind" if suffix else "inside")
        if fault == "sent twice":
            self.gate(1).touch()
            self.send()
            self.reached(1, "inside")
            self.gate(0).unlink()
            self.gate(1).unlink()
            for each in self.sent:
                each.ended()
            return
        first.signal(signal.SIGSTOP if fault.startswith("frozen") else signal.SIGKILL)
        Path(f"{self.gate(0)}{suffix}").unlink()
        if "others" in fault:
            self.table.add_foreign(self.write)
        self.sent[self.send()].ended()
        first.signal(signal.SIGCONT)
        first.ended()

    def clear(self) -> None:
        for each in self.sent:
            each.signal(signal.SIGKILL)
            each.process.wait()


@dataclass
class Ours:
    """The same script, by `sparkonce run`."""

    folder: Path
    write: str
    table: Table
    conf: dict[str, str]

    def __post_init__(self) -> None:
        kinds = {
            "Parquet": {"slotLog": {"path": "lake/orders"}},
            "Delta": {"delta": {"path": "lake/orders"}},
            "Iceberg": {"iceberg": {"catalog": "lake", "table": "sales.orders"}},
        }
        self.gate = self.folder / "gate"
        self.scene = Scene.in_spark(
            self.folder,
            str(SCRIPT),
            self.write,
            self.table.place,
            str(self.gate),
            conf=self.conf,
            outputs=[{"name": "orders", **kinds[self.table.kind], "capture": True}],
        )

    def reached(self, suffix: str, runner: subprocess.Popen[bytes]) -> None:
        there = Path(f"{self.gate}.{suffix}")
        assert_eventually(lambda: there.exists() or runner.poll() is not None, PATIENCE)
        if not there.exists():
            raise RuntimeError(self.scene.last_output()[-3000:])

    def play(self, fault: str) -> None:
        suffix = ".after" if fault.startswith("killed a") or "others" in fault else ""
        gate = Path(f"{self.gate}{suffix}")
        gate.touch()
        runner = self.scene.run()
        self.reached("behind" if suffix else "inside", runner)
        if fault == "sent twice":
            second = self.scene.run()
            time.sleep(3.0)  # it has attached by then; if not, it is late, which is no easier for it
            gate.unlink()
            for each in (runner, second):
                until_ended(each, PATIENCE)
            return
        runner.kill()
        runner.wait()
        frozen = fault.startswith("frozen")
        self.scene.signal_attempts(signal.SIGSTOP if frozen else signal.SIGKILL)
        gate.unlink()
        if "others" in fault:
            self.table.add_foreign(self.write)
        if frozen:
            self.scene.finish_beside_zombie()
            self.scene.signal_attempts(signal.SIGCONT)
            assert_eventually(lambda: not self.scene.attempts(), PATIENCE)
        else:
            self.scene.finish()

    def clear(self) -> None:
        self.scene.clear()


class Session:
    def __init__(self, folder: Path, server: str) -> None:
        self.folder = folder
        self.spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "OFF")
            .config("spark.sql.shuffle.partitions", "1")
            .getOrCreate()
        )
        common = {"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"}
        self.conf = {
            "Parquet": common,
            "Delta": {**SESSION, "spark.jars": ",".join(map(str, resolved()))},
            "Iceberg": engine(str(spark_runtime()), server),
        }

    def run(self, write: str, fault: str, arm: str) -> Run:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        kind = write.partition(",")[0]
        table = Table(kind, folder, self.spark, ours=arm == "sparkonce")
        table.make()
        player = (Ours if arm == "sparkonce" else Plain)(folder, write, table, self.conf[kind])
        try:
            player.play(fault)
        finally:
            player.clear()
        wanted = truth(write)
        if table.foreign:
            wanted[FOREIGN] += 1
        found = table.rows()
        shutil.rmtree(folder)
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return Run(
            write,
            fault,
            arm,
            duplicates=(found - wanted).total(),
            losses=(wanted - found).total(),
            measured=f"{datetime.now(UTC):%Y-%m-%d}",
            commit=commit.stdout.strip(),
        )


@contextlib.contextmanager
def session() -> Iterator[Session]:
    os.environ["SPARK_SUBMIT_OPTS"] = f"{spark_archive.SHORT_LIVED} {spark_archive.options()} {as_options()}"
    with tempfile.TemporaryDirectory() as name, rest_server(Path(name)) as server:
        os.environ.update(iceberg_tables.rest_catalog(server))
        made = Session(Path(name), server)
        try:
            yield made
        finally:
            made.spark.stop()


def document(runs: list[Run]) -> str:
    """The page with the table of these runs."""
    of = {(run.write, run.fault, run.arm): run for run in runs}
    dates, commits = (
        ", ".join(sorted(found)) for found in ({run.measured for run in runs}, {run.commit for run in runs})
    )

    def cell(write: str, fault: str, arm: str) -> str:
        run = of.get((write, fault, arm))
        if run is None:
            return "-"
        if run.right:
            return "right"
        found = [f"{number} {what}" for number, what in ((run.duplicates, "too many"), (run.losses, "lost")) if number]
        return f"**{', '.join(found)}**"

    lines = [
        "# What people write tables with today, under the same kills",
        "",
        "An unmodified PySpark script makes one write of a few rows into a table that has ten. Its driver dies or freezes at a step,",
        "and the script is sent again, as a scheduler would. *Plain* is `spark-submit`; *sparkonce* is the same file by `sparkonce",
        "run`, with `capture: true` on the output ([capture.md](capture.md)). `make chaos WRITES=1` makes this page.",
        "",
        f"One run for each cell, since each fault has a fixed step; made {dates}, of commits {commits}. A row counts as *too many* if",
        'it is there and should not be, or is there again, and as *lost* if it should be there and is not. A cell with "-" has not',
        "been run.",
        "",
        *(f"* **{fault}**: {text}." for fault, text in FAULTS.items()),
        "",
        "| write | arm | " + " | ".join(FAULTS) + " |",
        "| --- | --- |" + " --- |" * len(FAULTS),
    ]
    lines.extend(
        f"| {write} | {arm} | {' | '.join(cell(write, fault, arm) for fault in FAULTS)} |"
        for write in WRITES
        for arm in ("plain", "sparkonce")
        if arm == "plain" or write != OPTIONS
    )
    return "\n".join([*lines, ""])


def read(path: Path) -> list[Run]:
    return [Run(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make chaos WRITES=1", description=__doc__)
    parser.add_argument("--only", default="", help="runs whose `write; fault; arm` contains this text")
    only = parser.parse_args(arguments).only
    runs = read(RUNS)
    made = {(run.write, run.fault, run.arm) for run in runs}
    missing = [
        (write, fault, arm)
        for write in WRITES
        for fault in FAULTS
        for arm in ("plain", "sparkonce")
        if (write, arm) != (OPTIONS, "sparkonce")
        if (write, fault, arm) not in made and only in f"{write}; {fault}; {arm}"
    ]
    with contextlib.ExitStack() as stack:
        playing = stack.enter_context(session()) if missing else None
        for write, fault, arm in missing:
            assert playing is not None
            runs.append(run := playing.run(write, fault, arm))
            line = json.dumps(asdict(run))
            with RUNS.open("a") as file:
                file.write(f"{line}\n")
            print(line, flush=True)
    DOCUMENT.write_text(document(runs))
    return int(any(run.arm == "sparkonce" and not run.right for run in runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
