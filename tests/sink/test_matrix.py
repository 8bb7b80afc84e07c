"""Rows are read back as they were written, or refused by name: every type and odd value, as a column, nested and as a partition."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded

from harness import iceberg_tables, matrix
from harness.effort import seed, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("part", range(size("matrix parts")))
@pytest.mark.parametrize("kind", matrix.KINDS)
def test_what_is_read_is_what_was_written(
    spark: SparkSession,
    tmpfs_path: Path,
    say: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    kind: str,
    part: int,
) -> None:
    """A job writes a table of this kind; Spark, Arrow, DuckDB, delta-rs and pyiceberg find each value as it was, and a filter on the
    partition finds its rows. What is refused names a column and leaves nothing."""
    played: Counter[str] = Counter()

    def plays(case: matrix.Case) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmpfs_path))
        with monkeypatch.context() as patch:
            for name, value in iceberg_tables.sql_catalog(folder).items():
                patch.setenv(name, value)
            verdict = matrix.play(case, spark, folder)
        played[verdict.refused] += 1
        shutil.rmtree(folder)
        assert not verdict.wrong, f"{verdict.case}\n" + "\n".join(verdict.wrong)

    for case in matrix.known(kind) if part == 0 else ():
        plays(case)
        assert set(played) == {""}, f"refused: {case}"
    # Streams are in jvm/test_matrix_engines.py: py4j calls back through select(), which fails in a process with over 1,024 open files.
    drawn = given(case=matrix.cases(kind, ("job", "notebook")))(plays)
    if part > 0:  # or else it would draw what the first one drew
        drawn = seeded(seed(f"matrix/{kind}/{part}"))(drawn)
    odd = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings(max_examples=size("matrix cases"), deadline=None, suppress_health_check=odd)(drawn)()
    refused = "".join(f"\n  {count} refused: {why}" for why, count in played.most_common() if why)
    say(f"{kind}: {played.total()} cases{refused}")


@pytest.mark.parametrize("values", [[[], [], []], [[], [None], []], [[[]], [], [None, [{"a": b""}]]]])
def test_lists_of_lists_that_are_empty_are_written(spark: SparkSession, tmpfs_path: Path, values: list[Any]) -> None:
    """Spark sends the inner ones without offsets where all outer ones are empty, over which Arrow's `nbytes` crashes."""
    nested = pa.list_(pa.list_(pa.struct([("a", pa.binary())])))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in iceberg_tables.sql_catalog(tmpfs_path).items():
            patch.setenv(name, value)
        column = matrix.Column("c0", nested, values, nullable=False)
        verdict = matrix.play(matrix.Case("iceberg", (column,), None, "identity", hostile=False), spark, tmpfs_path)
    assert (verdict.refused, verdict.wrong) == ("", [])


@pytest.mark.parametrize(("value", "refused"), [("-1.500000", True), ("-0.000001", True), ("-7.000000", False)])
def test_a_delta_partition_by_a_negative_decimal_with_a_fraction_is_refused(
    spark: SparkSession, tmpfs_path: Path, value: str, refused: bool
) -> None:
    """By the column's name, before anything is visible; whole ones are read back."""
    column = matrix.Column("c0", pa.decimal128(18, 6), [Decimal(value), Decimal("2.500000"), None], nullable=True)
    verdict = matrix.play(matrix.Case("delta", (column,), "c0", "identity", hostile=False), spark, tmpfs_path)
    assert verdict.wrong == []
    assert ("holds a negative value with a fraction" in verdict.refused) is refused
