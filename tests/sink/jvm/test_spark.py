"""The slot log with a real Spark: the files that it stages, the effect of failed tasks, and the result of `read`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from harness.arrow_stage import table_of
from sparkonce.blocking import run
from sparkonce.errors import FilesMissing, InvalidInput, NothingCommitted, OutputUnsupported
from sparkonce.model.spec import OnRerun
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import Committed, Evidence, FencedOff, SinkKey, Slot
from sparkonce.sink.slotlog.reader import read
from sparkonce.sink.slotlog.sink import SlotLogSink, digest_of
from sparkonce.sink.slotlog.snapshot import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def spark_sink(table: Path) -> SlotLogSink:
    """Stages with Spark."""
    return SlotLogSink(FolderObjects(table), name="orders")


def numbers(spark: SparkSession, start: int, end: int, partitions: int = 2) -> DataFrame:
    return spark.range(start, end, 1, partitions)


def write(sink: SlotLogSink, key: SinkKey, frame: DataFrame, token: int = 1) -> Slot:
    slot = sink.stage(frame, key, token, fingerprint="f")
    assert run(sink.commit(key, slot)) == Committed(slot)
    return slot


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def generation(key: SinkKey, number: int) -> SinkKey:
    return key.model_copy(update={"generation": number})


def test_stage_commit_read(spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """Rows that were staged and committed are read back; the slot has their number, their files and the application id; nothing else is
    visible."""
    slot = write(spark_sink, key, numbers(spark, 0, 1000, 3))
    assert (slot.rows, len(slot.files)) == (1000, 3)
    assert slot.application == spark.sparkContext.applicationId
    assert sum(parquet.read_metadata(table / file.path).num_rows for file in slot.files) == 1000
    spark_sink.stage(numbers(spark, 5000, 6000), key, 2, fingerprint="f")
    assert ids(read(spark, str(table))) == list(range(1000))
    assert run(spark_sink.probe(key, digest_of(slot))) is Evidence.PRESENT


def test_read_takes_paths_and_uris(
    spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path, a relative path, a Path and a file URI open the same table."""
    write(spark_sink, key, numbers(spark, 0, 10))
    monkeypatch.chdir(table.parent)
    for path in (str(table), "orders", table, table.as_uri()):
        assert read(spark, path).count() == 10


def test_a_task_that_fails_is_not_counted_twice(
    spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path
) -> None:
    """A UDF fails twice in the middle of a partition: the third attempt's rows are there, each once, and the counts agree."""
    from pyspark.sql.functions import udf

    marks = table.parent
    marks.mkdir(parents=True)

    def fails_twice(number: int) -> int:
        if number == 700:
            for attempt in ("first", "second"):
                try:
                    os.close(os.open(f"{marks}/{attempt}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                raise RuntimeError(attempt)
        return number

    frame = numbers(spark, 0, 1000).withColumn("copy", udf(lambda n: fails_twice(n), "long")("id"))  # noqa: PLW0108 - Spark takes text annotations amiss
    slot = write(spark_sink, key, frame)
    assert (marks / "second").exists()
    assert slot.rows == 1000
    assert ids(read(spark, table)) == list(range(1000))


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path
) -> None:
    """The job gets Spark's own error; there is no slot and no file."""
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import col, raise_error, when

    broken = numbers(spark, 0, 100).withColumn("x", when(col("id") == 77, raise_error("no")).otherwise(col("id")))
    with pytest.raises(PySparkException):
        spark_sink.stage(broken, key, 1, fingerprint="f")
    assert list(table.rglob("*.parquet")) == []
    assert run(spark_sink.find(key)) is None


def test_what_parquet_has_not_is_sparks_own_error(
    spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path
) -> None:
    """Duplicate column names give Spark's own error, and nothing is written."""
    from pyspark.errors import AnalysisException

    frame = numbers(spark, 0, 10)
    with pytest.raises(AnalysisException, match="COLUMN_ALREADY_EXISTS"):
        spark_sink.stage(frame.select("id", "id"), key, 1, fingerprint="f")
    assert not list(table.rglob("*.parquet"))


def test_rerun_replaces(spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """Generation 2 with `onRerun: Replace` replaces generation 1; another key's rows stay."""
    other = SinkKey(key_hash="c3d4", output="orders", generation=1)
    write(spark_sink, key, numbers(spark, 0, 10))
    write(spark_sink, other, numbers(spark, 100, 110))
    assert ids(read(spark, table)) == [*range(10), *range(100, 110)]
    write(spark_sink, generation(key, 2), numbers(spark, 20, 25))
    assert ids(read(spark, table)) == [*range(20, 25), *range(100, 110)]
    assert run(spark_sink.probe(key, None)) is Evidence.REPLACED


def test_rerun_appends(spark: SparkSession, key: SinkKey, table: Path) -> None:
    """Generation 2 with `onRerun: Append` is added."""
    sink = SlotLogSink(FolderObjects(table), name="orders", on_rerun=OnRerun.APPEND)
    write(sink, key, numbers(spark, 0, 10))
    write(sink, generation(key, 2), numbers(spark, 10, 15))
    assert ids(read(spark, table)) == list(range(15))


def test_an_empty_result_is_a_result(spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """No rows, because of a filter or because the source is empty: committed, and read as an empty table with its columns."""
    frame = numbers(spark, 0, 10).selectExpr("id", "cast(id as string) as name", "named_struct('a', id) as s")
    for number, empty in enumerate((frame.where("id > 99"), frame.where("false"), frame.limit(0)), start=1):
        slot = write(spark_sink, generation(key, number), empty)
        assert slot.rows == 0
        found = read(spark, table)
        assert found.count() == 0
        assert found.columns == ["id", "name", "s"]


def test_a_slot_without_files_still_has_a_schema(spark: SparkSession, key: SinkKey, table: Path) -> None:
    """If the writer creates no file for zero rows, the schema comes from the slot."""
    from sparkonce.sink.staging import StagedRows

    def nothing(frame: Any, folder: str, _: Sequence[str] = ()) -> StagedRows:
        return StagedRows(rows=0, data_schema=frame.schema.json())

    sink = SlotLogSink(FolderObjects(table), name="orders", stage=nothing)
    write(sink, key, numbers(spark, 0, 0).selectExpr("id", "'x' as name"))
    found = read(spark, table)
    assert (found.count(), found.columns) == (0, ["id", "name"])


def test_schemas_that_differ_are_merged(
    spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path
) -> None:
    """A later job adds a column: older rows have null there. A column that is nullable in one slot is nullable in the table."""
    write(spark_sink, key, numbers(spark, 0, 3))
    other = SinkKey(key_hash="c3d4", output="orders", generation=1)
    write(spark_sink, other, numbers(spark, 3, 5).selectExpr("id", "'x' as name"))
    rows = {row.id: row.name for row in read(spark, table).collect()}
    assert rows == {0: None, 1: None, 2: None, 3: "x", 4: "x"}
    third = SinkKey(key_hash="e5f6", output="orders", generation=1)
    write(spark_sink, third, numbers(spark, 5, 6).selectExpr("if(id > 9, null, id) as id"))
    assert {row.id: row.name for row in read(spark, table).collect()} == rows | {5: None}


def test_a_zombie_is_fenced_and_swept(spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """Attempt 1 staged and froze; attempt 2 took over and committed; attempt 1 resumes, is refused, and its files are deleted."""
    zombie = spark_sink.stage(numbers(spark, 0, 10), key, 1, fingerprint="f")
    assert run(spark_sink.fence(key, 2, fingerprint="f", by="settle of attempt 1")) is None
    slot = write(spark_sink, key, numbers(spark, 0, 10), token=2)
    assert isinstance(run(spark_sink.commit(key, zombie)), FencedOff)
    assert run(spark_sink.sweep(key)).folders == 1
    assert sorted(str(path.relative_to(table)) for path in table.rglob("*.parquet")) == [
        file.path for file in slot.files
    ]
    assert ids(read(spark, table)) == list(range(10))


def test_the_sessions_configuration_does_not_matter_and_is_not_changed(
    spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path
) -> None:
    """Other committers, no page checksums, summary files, readers that ignore errors: rows are staged and read exactly, and the session's
    settings are unchanged."""
    settings = {
        "mapreduce.fileoutputcommitter.algorithm.version": "2",
        "mapreduce.outputcommitter.factory.scheme.file": (
            "org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitterFactory"
        ),
        "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.sql.files.maxRecordsPerFile": "30",
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.files.ignoreMissingFiles": "true",
        "spark.sql.parquet.compression.codec": "uncompressed",
        "parquet.page.write-checksum.enabled": "false",
        "parquet.summary.metadata.level": "ALL",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        during = dict(spark.conf.getAll)
        slot = write(spark_sink, key, numbers(spark, 0, 100))
        assert ids(read(spark, table)) == list(range(100))
        assert dict(spark.conf.getAll) == during
        assert len(slot.files) == 4
        flip_a_data_byte(table / slot.files[0].path)
        with pytest.raises(OSError, match="CRC"):
            parquet.read_table(table / slot.files[0].path, page_checksum_verification=True)
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def flip_a_data_byte(path: Path) -> None:
    """Flips one byte in the middle of the first page."""
    data = bytearray(path.read_bytes())
    column = parquet.read_metadata(path).row_group(0).column(0)
    data[column.data_page_offset + column.total_compressed_size - 5] ^= 0xFF
    path.write_bytes(data)


def test_a_missing_file_is_one_sentence(
    spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path
) -> None:
    """The read fails with one sentence, without Spark's traceback and without returning the remaining rows, also if the session ignores
    missing files."""
    slot = write(spark_sink, key, numbers(spark, 0, 10))
    (table / slot.files[1].path).unlink()
    with pytest.raises(
        FilesMissing,
        match=rf"^1 committed file\(s\) of {table} are missing or changed, .* {slot.files[1].path}; restore",
    ):
        read(spark, table)


def test_a_broken_file_is_never_skipped(
    spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path
) -> None:
    """A file of the right size with wrong content: the read fails, even if the session ignores corrupt files."""
    slot = write(spark_sink, key, numbers(spark, 0, 10))
    file = table / slot.files[0].path
    file.write_bytes(bytes(file.stat().st_size))
    file.with_name(f".{file.name}.crc").unlink()
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(Exception, match="is not a Parquet file"):
            read(spark, table).collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_nothing_committed_is_one_sentence(
    spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path
) -> None:
    """Reading a missing table, or one without a commit, fails with one sentence."""
    with pytest.raises(NothingCommitted, match=rf"^no job has committed anything to {table} yet; run one"):
        read(spark, table)
    spark_sink.stage(numbers(spark, 0, 10), key, 1, fingerprint="f")
    run(spark_sink.fence(key, 2, fingerprint="f", by="settle"))
    with pytest.raises(NothingCommitted):
        read(spark, table)


def test_bad_paths_are_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """Locations that cannot be the path of a table are refused."""
    with pytest.raises(OutputUnsupported, match=r"^path: unsupported scheme `hdfs:`"):
        read(spark, "hdfs://name/orders")
    with pytest.raises(InvalidInput, match="reads as patterns"):
        read(spark, tmp_path / "*")


def test_a_folder_with_odd_characters(spark: SparkSession, key: SinkKey, tmp_path: Path) -> None:
    """Spark takes no partition column from special characters in the table's folder name."""
    folder = tmp_path / "my lake %20 #1" / "month=2" / "a:b ü"
    sink = SlotLogSink(FolderObjects(folder), name="orders")
    write(sink, key, numbers(spark, 0, 10))
    found = read(spark, folder)
    assert found.columns == ["id"]
    assert ids(found) == list(range(10))


def test_a_table_of_many_slots(spark: SparkSession, sink: SlotLogSink, table: Path) -> None:
    """With more files than Spark lists in the driver (it starts a job for that), each row is read once."""
    for number in range(40):
        key = SinkKey(key_hash=f"k{number}", output="orders", generation=1)
        run(sink.commit(key, sink.stage(table_of(2 * number, 2 * number + 1), key, 1, fingerprint="f")))
    assert len(Table(table).files()) == 80
    assert sorted(row.n for row in read(spark, table).collect()) == list(range(80))


def test_types_survive(spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """Decimals, dates, timestamps, nested values and nulls are read back unchanged."""
    frame = spark.sql(
        "select cast(1.10 as decimal(10,2)) d, date'2024-02-29' day, timestamp'2024-02-29 12:00:00' at, array(1, null) list,"
        " map('k', 1.5D) m, named_struct('x', cast(null as int)) s, cast('b' as binary) b, cast(1 as tinyint) t"
    )
    write(spark_sink, key, frame)
    found = read(spark, table)
    assert found.collect() == frame.collect()
    assert [field.dataType.simpleString() for field in found.schema] == [
        field.dataType.simpleString() for field in frame.schema
    ]


def test_arrow_reads_what_spark_staged(spark: SparkSession, spark_sink: SlotLogSink, key: SinkKey, table: Path) -> None:
    """The staged files are plain Parquet: other readers read them from the list of files, without Spark."""
    write(spark_sink, key, numbers(spark, 0, 10))
    found = pa.concat_tables(parquet.read_table(file) for file in Table(table).files())
    assert set(found["id"].to_pylist()) == set(range(10))
    assert found.num_rows == 10
