"""The formats' own engines read the matrix's tables as they were written: plain Spark with Delta's jars and with Iceberg's runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from harness import iceberg_tables, matrix, matrix_engines
from harness.delta_jars import delta_jars
from harness.effort import size
from harness.iceberg_rest import spark_runtime
from harness.spark import facts_of, needed_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("kind", matrix_engines.KINDS)
def test_the_formats_engine_reads_what_was_written(
    spark: SparkSession, tmpfs_path: Path, kind: str, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine reads every row as it was written, and a filter on the partition column finds its rows."""
    needed_java()  # before minutes are spent on the jars
    jars = ",".join(map(str, [*delta_jars(), spark_runtime()]))
    tables: list[matrix_engines.Listed] = []

    def writes(case: matrix.Case) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmpfs_path))
        with monkeypatch.context() as patch:
            for name, value in iceberg_tables.sql_catalog(folder).items():
                patch.setenv(name, value)
            refused = matrix.write(case, spark, folder).refused
            table = folder / kind if kind == "delta" else None if refused else _metadata()
        if not refused:
            texts = pa.types.is_string(case.columns[0].type)
            listed = (str(case), kind, str(folder / "source.parquet"), str(table), case.partition, texts)
            tables.append(matrix_engines.Listed(*listed))

    for case in matrix.known(kind):
        writes(case)
    odd = [HealthCheck.too_slow, HealthCheck.data_too_large]
    drawn = given(case=matrix.cases(kind, matrix.WRITERS[kind]))(writes)
    settings(max_examples=size("matrix cases of engines"), deadline=None, suppress_health_check=odd)(drawn)()
    matrix_engines.write_list(tmpfs_path, tables)
    facts = facts_of("harness.matrix_engines", tmpfs_path, jars)
    assert facts["wrong"] == []
    assert facts["read"] == len(tables) > len(matrix.known(kind))
    say(f"{kind}: {len(tables)} tables")


def test_what_a_stream_wrote_is_read(spark: SparkSession, tmpfs_path: Path) -> None:
    """Rows that a stream wrote to a slot log are read back; no engine of a format reads slot logs."""

    def plays(case: matrix.Case) -> None:
        verdict = matrix.play(case, spark, Path(tempfile.mkdtemp(dir=tmpfs_path)))
        assert not verdict.wrong, f"{verdict.case}\n" + "\n".join(verdict.wrong)

    odd = [HealthCheck.too_slow, HealthCheck.data_too_large]
    drawn = given(case=matrix.cases("slotLog", ("stream",)))(plays)
    settings(max_examples=size("matrix cases of engines"), deadline=None, suppress_health_check=odd)(drawn)()


def _metadata() -> Path:
    return Path(iceberg_tables.catalog().load_table(matrix.TABLE).metadata_location.removeprefix("file://"))
