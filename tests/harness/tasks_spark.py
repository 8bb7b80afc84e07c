"""Failed tasks and tasks that run twice at the same time, on every kind of table: `python -m harness.tasks_spark FOLDER`.

Its Spark is a cluster of two workers with their own addresses, because Spark never runs a speculative copy on the host of the first one (so
neither `local` nor `local-cluster` ever does). Each kind's table is written twice: by a job one of whose tasks fails twice in the middle of
its rows, and by a job one of whose tasks waits until a speculative copy runs beside it, so that both write. The results are written to
FOLDER/facts.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import iceberg_tables
from harness.child import Child, free_port
from sparkonce.blocking import run
from sparkonce.model.spec import OnRerun
from sparkonce.sink.open import Declared, open_sink
from sparkonce.sink.protocol import Sink, SinkKey
from sparkonce.sink.slotlog.snapshot import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOUBLE = 60.0
"""Seconds for Spark to start a speculative task; it takes tenths of one on free cores."""


WORKERS = ("127.0.0.2", "127.0.0.3")


@contextlib.contextmanager
def cluster(scratch: Path) -> Iterator[str]:
    """The address of Spark's own cluster manager, with two workers of one core each."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {"SPARK_HOME": str(home), "SPARK_WORKER_DIR": str(scratch / "work"), "SPARK_DAEMON_MEMORY": "128m"}
    master = f"spark://127.0.0.1:{(port := free_port())}"
    start = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy"]
    web = ["--webui-port", "0"]
    commands = {"master": [start[0], f"{start[1]}.master.Master", "--host", "127.0.0.1", "--port", str(port), *web]}
    for host in WORKERS:
        worker = ["--host", host, "--cores", "1", "--memory", "700m", *web, master]
        commands[f"worker-{host}"] = [start[0], f"{start[1]}.worker.Worker", *worker]
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            child = Child(name, command, scratch / f"{name}.log", environment)
            child.start()
            stack.callback(child.kill)
        yield master


def session(scratch: Path, master: str) -> SparkSession:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(master)
        .appName("sparkonce-task-tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .config("spark.executor.memory", "512m")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.minTaskRuntime", "300ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .getOrCreate()
    )


def fails_twice(marks: str) -> Any:
    """A UDF that fails in the middle of a partition, in two attempts of its task."""
    from pyspark.sql.functions import udf

    def given(number: int) -> int:
        if number % 100 == 77:
            for attempt in ("first", "second"):
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(f"{marks}/{attempt}", os.O_CREAT | os.O_EXCL))
                    raise RuntimeError(attempt)
        return number

    return udf(given, "long")


def waits_for_its_double(marks: str) -> Any:
    """A UDF with which a task's first attempt waits until a speculative one runs beside it; then both write."""
    from pyspark.sql.functions import udf

    def given(number: int) -> int:
        if number % 100 == 77:
            try:
                os.close(os.open(f"{marks}/first", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                open(f"{marks}/second", "w").close()  # noqa: PTH123 - in an executor, as short as can be
                return number
            until = time.monotonic() + DOUBLE
            while not os.path.exists(f"{marks}/second") and time.monotonic() < until:  # noqa: PTH110 - as above
                time.sleep(0.02)
        return number

    return udf(given, "long")


WAYS = {"failed": fails_twice, "speculated": waits_for_its_double}


def opened(kind: str, folder: Path) -> Sink:
    if kind == "iceberg":
        iceberg_tables.use(iceberg_tables.sql_catalog(folder))
        return iceberg_tables.opened(stage=None)
    declared = Declared(name="orders", kind=kind, location=str(folder / kind), on_rerun=OnRerun.APPEND)
    return open_sink(declared, base=None, durable=False)


def numbers(kind: str, folder: Path, spark: SparkSession) -> list[int]:
    """The numbers that readers see."""
    if kind == "iceberg":
        return sorted(iceberg_tables.rows())
    if kind == "delta":
        from deltalake import DeltaTable

        return sorted(int(n or 0) for n in DeltaTable(str(folder / kind)).to_pyarrow_table()["n"].to_pylist())
    return sorted(row["n"] for row in spark.read.parquet(*Table(folder / kind).files()).collect())


def play(spark: SparkSession, folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for kind in ("slotLog", "delta", "iceberg"):
        sink = opened(kind, folder)
        for number, (way, change) in enumerate(WAYS.items()):
            marks = folder / "marks" / kind / way
            marks.mkdir(parents=True)
            key = SinkKey(key_hash=way, output="orders", generation=1)
            frame = spark.range(number * 100, (number + 1) * 100, 1, 2).select(change(str(marks))("id").alias("n"))
            slot = sink.stage(frame, key, 1, fingerprint="f")
            decision = type(run(sink.commit(key, slot))).__name__
            facts[f"{kind} {way}"] = [decision, slot.rows, (marks / "second").exists()]
        facts[kind] = numbers(kind, folder, spark)
    return facts


def main() -> None:
    folder = Path(sys.argv[1])
    with cluster(folder) as master:
        spark = session(folder, master)
        try:
            facts = play(spark, folder)
        finally:
            spark.stop()
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
