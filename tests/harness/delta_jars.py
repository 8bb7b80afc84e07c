"""The jars with which Spark itself reads and writes Delta tables, fetched from Maven by Spark's resolver and cached by version.

Only for tests that compare with another engine: the product needs none of them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from harness.binaries import cache, one_at_a_time, or_skip, to_stderr
from harness.store_parts import IVY, RESOLVE, _do, _fresh

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
    place = cache() / DELTA_SPARK.replace(":", "-")
    if not place.is_dir():
        with one_at_a_time("delta-spark.lock", to_stderr):
            if not place.is_dir():
                to_stderr(f"fetching {DELTA_SPARK} from Maven")
                part = _fresh(place)
                ivy = part / "ivy"
                ivy.mkdir()
                (ivy / "settings.xml").write_text(IVY)
                _do([sys.executable, "-c", RESOLVE, DELTA_SPARK, str(ivy)], part, {})
                for jar in (ivy / "jars").glob("*.jar"):
                    jar.rename(part / jar.name)
                shutil.rmtree(ivy)
                part.rename(place)
    return sorted(place.glob("io.delta_*.jar"))  # Spark has the other dependencies
