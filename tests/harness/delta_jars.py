"""The jars with which Spark itself reads and writes Delta tables, fetched from Maven by Spark's resolver and cached by version.

Only for tests that compare with another engine: the product needs none of them.
"""

from __future__ import annotations

from pathlib import Path

from harness.binaries import or_skip
from harness.store_parts import jars

DELTA_SPARK = "io.delta:delta-spark_4.1_2.13:4.1.0"
"""The version for the Spark that the tests install."""

SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}
"""Settings of a session that writes small Delta tables by this engine."""


def delta_jars() -> list[Path]:
    """The jars. Skips the test if they cannot be had."""
    return or_skip(resolved)


def resolved() -> list[Path]:
    """As `delta_jars`, for callers outside a test. Raises PartMissing."""
    found = jars(DELTA_SPARK.replace(":", "-"), [DELTA_SPARK])
    return [jar for jar in found if jar.name.startswith("io.delta_")]  # Spark has the other dependencies
