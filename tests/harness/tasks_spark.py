"""One Spark for facts of every kind of table, tasks that fail or run twice and odd settings: `python -m harness.tasks_spark FOLDER`.

Its Spark is a cluster of two workers with their own addresses, because Spark never runs a speculative copy on the host of the first one (so
neither `local` nor `local-cluster` ever does). Each kind's table is written twice: by a job one of whose tasks fails twice in the middle of
its rows, and by a job one of whose tasks waits until a speculative copy runs beside it, so that both write. A third job writes values that
its session's settings would change (`HOSTILE`), and readers other than Spark read them. The results are written to FOLDER/facts.json.
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

import pytest
from pyiceberg.types import StringType

from harness import iceberg_tables
from harness.child import Child, free_port
from sparkonce.blocking import run
from sparkonce.model.spec import OnRerun
from sparkonce.sink import staging
from sparkonce.sink.iceberg.catalog import CatalogTable
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Committed, Declared, Sink, SinkKey, WriteOptions
from sparkonce.sink.slotlog.snapshot import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOUBLE = 60.0
"""Seconds for Spark to start a speculative task; it takes tenths of one on free cores."""


WORKERS = ("127.0.0.2", "127.0.0.3")

HOSTILE = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.sources.useV1SourceList": "",
}
"""Settings of jobs that also write for other readers."""
OLDER = """select * from values
    (0, timestamp'2024-05-01 12:00:00Z', date'2024-05-01', cast(1 as decimal(4, 2)), array('x'))
    as t(n, at, day, amount, tags)"""
"""A row that the version before wrote, with a timestamp as INT96."""
VALUES = """select * from values
    (1, timestamp'9999-12-31 00:00:00Z', date'1000-03-01', 12.50, array('a', null)),
    (2, timestamp'0001-01-01 00:00:00Z', date'0001-01-01', -0.01, array()),
    (3, timestamp'1883-11-18 12:00:00Z', date'1582-10-10', null, null)
    as t(n, at, day, amount, tags)"""
"""Values at which calendars, time zones, types of timestamps and layouts differ."""


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

    os.environ["PYSPARK_PYTHON"] = sys.executable  # of executors; it has what they need
    return (
        SparkSession.builder.master(master)
        .appName("sparkonce-task-tests")
        .config("spark.driver.host", "127.0.0.1")
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


def values_in(kind: str, folder: Path) -> list[list[Any]]:
    """The rows of `VALUES` as readers on Arrow see them: microseconds and days since 1970, and text."""
    from deltalake import DeltaTable
    from pyarrow import parquet

    if kind == "iceberg":
        found = CatalogTable(iceberg_tables.CATALOG, ("sales", "values")).load()
        assert found is not None
        tables = [found.scan().to_arrow()]
    elif kind == "delta":
        tables = [DeltaTable(str(folder / "values-delta")).to_pyarrow_table()]
    else:  # file by file: with INT96 the type is another one
        paths = Table(folder / "values-slotLog").files()
        tables = [parquet.read_table(path, coerce_int96_timestamp_unit="us") for path in paths]
    return sorted((row for table in tables for row in plain_rows(table)), key=lambda row: row[0])


def plain_rows(table: Any) -> list[list[Any]]:
    import pyarrow as pa

    assert table.schema.field("at").type.unit == "us"
    columns = [
        table["n"].to_pylist(),
        table["at"].cast(pa.int64()).to_pylist(),
        table["day"].cast(pa.int32()).to_pylist(),
        [None if each is None else str(each) for each in table["amount"].to_pylist()],
        table["tags"].to_pylist(),
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def values_sink(kind: str, folder: Path) -> Sink:
    location = str(folder / f"values-{kind}") if kind != "iceberg" else "lake.sales.values"
    declared = Declared(name="values", kind=kind, location=location, on_rerun=OnRerun.APPEND)
    return open_sink(declared, base=None, durable=False)


def as_before(spark: SparkSession, kind: str, folder: Path) -> str:
    """Writes `OLDER` as the version before did, which pinned nothing for these kinds; the physical type of its timestamp."""
    from pyarrow import parquet

    key = SinkKey(key_hash="older", output="values", generation=1)
    sink = values_sink(kind, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "PINNED", {})
        slot = sink.stage(spark.sql(OLDER), key, 1, fingerprint="f")
    run(sink.commit(key, slot))
    [path] = folder.glob(f"values-{kind}/**/*.parquet")
    return str(parquet.ParquetFile(path).schema.column(1).physical_type)


def play_settings(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """What readers find after a job whose session has the settings in `HOSTILE`, in a table that the version before wrote to, and whether
    the session has them still."""
    facts: dict[str, Any] = {}
    older = {kind: as_before(spark, kind, folder) for kind in ("slotLog", "delta")}
    for name, value in HOSTILE.items():
        spark.conf.set(name, value)
    facts["older"] = older
    for kind in ("slotLog", "delta", "iceberg"):
        sink = values_sink(kind, folder)
        key = SinkKey(key_hash="values", output="values", generation=1)
        slot = sink.stage(spark.sql(VALUES), key, 1, fingerprint="f")
        facts[f"{kind} committed"] = type(run(sink.commit(key, slot))).__name__
        facts[f"{kind} values"] = values_in(kind, folder)
    facts["kept"] = {name: spark.conf.get(name) for name in HOSTILE} == HOSTILE
    return facts


def play_columns(spark: SparkSession) -> dict[str, Any]:
    """What readers of an Iceberg table find after another user renamed one column and replaced another, and a job wrote under the old name:
    the rows as pyiceberg reads them, by the table's number of rows. Once written by Spark and once, with one more column, by Arrow."""
    facts: dict[str, Any] = {}
    for writer, more in (("Spark", []), ("Arrow", ["map('k', struct(id as a, array(id) as b)) as more"])):
        name = f"sales.columns_{writer.lower()}"
        sink = open_sink(
            Declared(name="values", kind="iceberg", location=f"lake.{name}", on_rerun=OnRerun.APPEND),
            base=None,
            durable=False,
        )
        rows = ["id", "'old' as note", "id * 10 as qty", "struct(id as a, 'x' as b) as s", *more]
        _write(sink, 1, spark.range(1, 2).selectExpr(*rows))
        table = CatalogTable(iceberg_tables.CATALOG, tuple(name.split("."))).load()
        assert table is not None
        with table.update_schema(allow_incompatible_changes=True) as change:
            change.delete_column("note")
            change.rename_column("qty", "quantity")
            change.rename_column("s.b", "c")
        with table.update_schema() as change:
            change.add_column("note", StringType())
        _write(sink, 2, spark.range(2, 3).selectExpr(*rows), merge_schema=True)
        table.refresh()
        found = table.scan().to_arrow().drop_columns(["more"] if more else []).to_pylist()
        facts[f"columns by {writer}"] = sorted(found, key=lambda row: row["id"])
        facts[f"mapping by {writer}"] = "schema.name-mapping.default" in table.properties
    return facts


def _write(sink: Sink, number: int, frame: Any, **options: Any) -> None:
    key = SinkKey(key_hash=f"columns{number}", output="values", generation=1)
    slot = sink.stage(frame, key, 1, fingerprint="f", options=WriteOptions(**options))
    assert isinstance(run(sink.commit(key, slot)), Committed)


def play(spark: SparkSession, folder: Path) -> dict[str, Any]:
    from pyspark.sql.functions import expr

    facts: dict[str, Any] = {}
    for kind in ("slotLog", "delta", "iceberg"):
        sink = opened(kind, folder)
        for number, (way, change) in enumerate(WAYS.items()):
            marks = folder / "marks" / kind / way
            marks.mkdir(parents=True)
            key = SinkKey(key_hash=way, output="orders", generation=1)
            rows = spark.range(number * 100, (number + 1) * 100, 1, 2)
            columns = [change(str(marks))("id").alias("n")]
            if kind == "iceberg":
                columns.append(expr("array(id)").alias("tags"))  # Arrow writes lists, not Spark
            slot = sink.stage(rows.select(*columns), key, 1, fingerprint="f")
            decision = type(run(sink.commit(key, slot))).__name__
            facts[f"{kind} {way}"] = [decision, slot.rows, (marks / "second").exists()]
        facts[kind] = numbers(kind, folder, spark)
    return facts


def main() -> None:
    folder = Path(sys.argv[1])
    with cluster(folder) as master:
        spark = session(folder, master)
        try:
            facts = play(spark, folder) | play_columns(spark) | play_settings(spark, folder)
        finally:
            spark.stop()
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
