"""Apache Iceberg's own REST catalog server (Jetty, over SQLite), and its runtime for Spark: from Maven, once per machine.

The jars are kept outside the checkout, in a folder named by their versions and the text below; Maven decides where it downloads them from.
Without Java or Maven, or if Maven cannot reach its repository, the tests that need them are skipped with that reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from harness.binaries import cache
from harness.child import Child, free_port
from harness.spark import needed_java
from harness.spark_archive import SHORT_LIVED

ICEBERG = "1.10.0"
SPARK_RUNTIME = "iceberg-spark-runtime-4.1_2.13", "1.11.0"
"""The first version made for Spark 4.1."""
KEYED_RUNTIME = "1.12.0"
"""The first version that repeats a request with its key."""
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
DOWNLOAD = 900.0
"""Seconds for eighty megabytes, from wherever the machine's Maven downloads them."""
START = 60.0
"""Seconds for a Java server on a busy machine; usually it takes two."""

_SERVER = (
    ("org.apache.iceberg", "iceberg-core", ICEBERG, ""),
    ("org.apache.iceberg", "iceberg-core", ICEBERG, "tests"),
    ("org.apache.iceberg", "iceberg-open-api", ICEBERG, "test-fixtures"),
    ("org.apache.hadoop", "hadoop-client-api", "3.4.1", ""),
    ("org.apache.hadoop", "hadoop-client-runtime", "3.4.1", ""),
    ("org.eclipse.jetty", "jetty-server", "11.0.26", ""),
    ("org.eclipse.jetty", "jetty-servlet", "11.0.26", ""),
    ("org.xerial", "sqlite-jdbc", "3.50.3.0", ""),
    ("org.slf4j", "slf4j-nop", "2.0.17", ""),
)


def spark_runtime(version: str = SPARK_RUNTIME[1]) -> Path:
    """The jar with which Spark reads Iceberg tables. Skips the test if it cannot be had."""
    name = SPARK_RUNTIME[0]
    return next(_jars("iceberg-spark", (("org.apache.iceberg", name, version, ""),)).glob(f"{name}-*.jar"))


def sqlite_driver() -> Path:
    """The jar of SQLite's JDBC driver. Skips the test if it cannot be had."""
    return next(_jars("iceberg-rest", _SERVER).glob("sqlite-jdbc-*.jar"))


def lake_at(url: str) -> dict[str, str]:
    """Settings of a Spark whose catalog `lake` is on this server."""
    return {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": url,
    }


@contextmanager
def rest_server(folder: Path) -> Iterator[str]:
    """Starts a server with its catalog and warehouse in the folder; its URL. Skips the test if the server cannot be had."""
    home = needed_java()
    jars = _jars("iceberg-rest", _SERVER)
    port = free_port()
    command = [home, "-Xmx512m", *SHORT_LIVED.split(), "-cp", f"{jars}/*", "org.apache.iceberg.rest.RESTCatalogServer"]
    server = Child(
        "iceberg-rest",
        command,
        folder / "rest.log",
        {
            "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
            "CATALOG_URI": f"jdbc:sqlite:{folder}/rest.db",
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
            "CATALOG_REST_PORT": str(port),
        },
    )
    server.start()
    url = f"http://127.0.0.1:{port}"
    try:
        server.until(lambda: _answers(f"{url}/v1/config"), START)
        yield url
    finally:
        server.kill()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError, TimeoutError):
        return False


def _jars(name: str, parts: tuple[tuple[str, str, str, str], ...]) -> Path:
    """A folder with these artifacts and their dependencies."""
    pom = _pom(parts)
    place = cache().parent / f"{name}-{hashlib.sha256(pom.encode()).hexdigest()[:12]}"
    if place.is_dir():
        return place
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"{name} comes from Maven and there is no mvn; install Maven")
    with (cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            part = Path(f"{place}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            (part / "pom.xml").write_text(pom)
            done = subprocess.run(
                [maven, "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=jars"],
                cwd=part, capture_output=True, text=True, timeout=DOWNLOAD, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                pytest.skip(
                    f"Maven could not get {name}: {(done.stdout.strip().splitlines() or ['no word'])[-1][:200]}"
                )
            (part / "jars").rename(place)
            shutil.rmtree(part)
    return place


def _pom(parts: tuple[tuple[str, str, str, str], ...]) -> str:
    needed = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        + (f"<classifier>{classifier}</classifier>" if classifier else "")
        + "</dependency>"
        for group, name, version, classifier in parts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>sparkonce.tests</groupId>'
        f"<artifactId>iceberg</artifactId><version>1</version><dependencies>{needed}</dependencies></project>"
    )
