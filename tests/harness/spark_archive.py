"""An archive of the classes that Spark loads, with which each JVM of the tests starts in half the time: class data sharing of the JVM.

`python tests/harness/spark_archive.py` makes it in the environment of this Python, unless it is there for this Java and this Spark; two
calls at once make it once. tests/conftest.py gives it to each Spark. The JVM compares it with its own classpath, and goes on without it
where the two differ, so that it changes how fast tests are and nothing else: with `spark.driver.extraClassPath`, but not with `spark.jars`,
which leaves the classpath alone. With a Java that cannot make one, tests run without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ARCHIVE = Path(sys.prefix, "spark.jsa")
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for seconds: without the second compiler, which would take longer than such a job itself. An archive is for one
collector."""
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""So that a JVM does not write into the output of a test that it does without the archive."""

TRAINING = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession, Window, functions as F

folder = Path(sys.argv[1])
spark = SparkSession.builder.master("local[2]").getOrCreate()
df = spark.range(100).select(F.col("id"), (F.col("id") % 3).alias("part"), F.lit("x").alias("text"))
df.write.partitionBy("part").parquet(str(folder / "parquet"))
df.write.json(str(folder / "json"))
df.write.csv(str(folder / "csv"))
read = spark.read.parquet(str(folder / "parquet"))
read.createOrReplaceTempView("numbers")
spark.sql("SELECT part, count(*) AS n, max(text) FROM numbers GROUP BY part ORDER BY n").collect()
ranked = read.withColumn("rank", F.row_number().over(Window.partitionBy("part").orderBy("id")))
ranked.join(df, "id").where("rank < 5").toPandas()
spark.createDataFrame([(1, "a")], "id int, text string").write.mode("overwrite").parquet(str(folder / "parquet"))
spark.read.csv(str(folder / "csv"), schema="id long, text string").collect()
stream = spark.readStream.schema("id long, text string").json(str(folder / "json"))
query = stream.writeStream.foreachBatch(lambda batch, _: batch.collect() and None)
query.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
spark.stop()
"""


def options() -> str:
    """Options for a JVM that use the archive; empty if there is none."""
    return f"-XX:SharedArchiveFile={ARCHIVE} {QUIET}" if ARCHIVE.exists() else ""


def made() -> bool:
    """Makes the archive unless it is there. False if this machine cannot."""
    stamp = ARCHIVE.with_suffix(".stamp")
    with ARCHIVE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        inputs = _inputs()
        if inputs is None:
            return False
        if stamp.exists() and stamp.read_text() == inputs:
            return ARCHIVE.exists()
        ARCHIVE.unlink(missing_ok=True)
        done = _make()
        stamp.write_text(inputs)  # also if it failed: it would fail again
    return done


def _inputs() -> str | None:
    """A digest of what an archive is for: this file, Java and Spark's jars. None without Java or Spark."""
    spec = find_spec("pyspark")
    home = os.environ.get("JAVA_HOME")
    try:
        version = subprocess.run(
            [Path(home, "bin", "java") if home else "java", "-version"], capture_output=True, check=True
        ).stderr
    except (OSError, subprocess.CalledProcessError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    digest = hashlib.sha256(version + Path(__file__).read_bytes())
    for jar in sorted(Path(spec.submodule_search_locations[0], "jars").glob("*.jar")):
        found = jar.stat()
        digest.update(f"{jar} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _make() -> bool:
    """Runs a Spark application that does a little of everything; its JVM writes the archive when it ends."""
    with tempfile.TemporaryDirectory(prefix="sparkonce-archive-") as folder:
        script, new = Path(folder, "training.py"), ARCHIVE.with_suffix(".new")
        script.write_text(TRAINING)
        new.unlink(missing_ok=True)
        flags = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={new}"
        done = subprocess.run(
            [Path(sys.prefix, "bin", "spark-submit"), "--conf", "spark.ui.enabled=false", script, folder],
            env={**os.environ, "SPARK_SUBMIT_OPTS": flags, "PYSPARK_PYTHON": sys.executable},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0 or not new.exists():
        print(f"no archive of Spark's classes, tests start slower: {done.stderr[-2000:]}", file=sys.stderr)
        return False
    new.rename(ARCHIVE)
    return True


if __name__ == "__main__":
    made()
