"""A Java job whose one statement on a Delta table takes effect once, by settings of Delta alone: docs/capture.md, "Scala and Java"."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from crash.scene import PATIENCE, Scene, gate_of
from harness.delta_jars import SESSION, delta_jars
from harness.patience import until_ended

pytestmark = pytest.mark.spark

APPLICATION, VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
OLD = dict.fromkeys(range(10), 0)
MERGED = {**OLD, **dict.fromkeys(range(5, 10), 1), **dict.fromkeys(range(10, 15), 100)}


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Load.java, compiled against the Spark that the tests install."""
    folder, javac, spark = tmp_path_factory.mktemp("java"), shutil.which("javac"), importlib.util.find_spec("pyspark")
    assert javac, "javac is not on the PATH; install the JDK that has the java in use"
    assert spark and spark.origin
    jars = Path(spark.origin).parent / "jars"
    source = Path(__file__).with_name("Load.java")
    subprocess.run([javac, "-classpath", f"{jars}/*", "-d", str(folder), str(source)], check=True)
    with zipfile.ZipFile(folder / "load.jar", "w") as made:
        made.write(folder / "Load.class", "Load.class")
    return folder / "load.jar"


def scene_of(folder: Path, jar: Path, *further: str, attempts: int = 3) -> Scene:
    """A Java job on a table of ten rows. further: where each write behind the first one is made."""
    table = pa.table({"id": pa.array(OLD, pa.int64()), "v": pa.array(OLD.values(), pa.int64())})
    write_deltalake(str(folder / "table"), table)
    return Scene.in_spark(
        folder,
        str(jar),
        str(folder / "table"),
        str(gate_of(folder)),
        *further,
        conf={**SESSION, **numbered(1)},
        outputs=[],
        template={"type": "Java", "mainClass": "Load", "deps": {"jars": [str(each) for each in delta_jars()]}},
        retry={"maxAttempts": attempts, "backoff": {"initial": "0s", "max": "0s"}},
        onUnknown="Retry",
        heartbeatTimeoutSeconds=None,
    )


def numbered(version: int) -> dict[str, str]:
    return {APPLICATION: "crash-test", VERSION: str(version), f"{VERSION}.autoReset.enabled": "true"}


def rows(scene: Scene) -> list[tuple[int, int]]:
    found = DeltaTable(str(scene.folder / "table")).to_pyarrow_table().to_pydict()
    return sorted(zip(found["id"], found["v"], strict=True))


def commits(scene: Scene) -> int:
    return DeltaTable(str(scene.folder / "table")).version()


def test_a_job_that_dies_behind_its_statement_runs_again_and_the_statement_does_not(
    tmpfs_path: Path, jar: Path
) -> None:
    """Driver and runner are killed when the MERGE is committed. The next attempt skips it; sent once more, the job is replayed; a rerun
    with the next number makes it again."""
    scene = scene_of(tmpfs_path, jar)
    try:
        scene.signal_at_gate(signal.SIGKILL, patience=PATIENCE)
        assert (rows(scene), commits(scene)) == (sorted(MERGED.items()), 1)
        assert scene.finish(tries=1)["attempt"] == 2
        assert scene.finish(tries=1)["replayed"]
        assert (rows(scene), commits(scene)) == (sorted(MERGED.items()), 1)

        job = yaml.safe_load((scene.folder / "job.yaml").read_text())
        job["spec"]["template"]["spec"]["sparkConf"].update(numbered(2))
        (scene.folder / "job.yaml").write_text(yaml.safe_dump(job))
        rerun = scene.run(command=("rerun", "-f", "job.yaml", "--reason", "the source was corrected"))
        assert until_ended(rerun, PATIENCE) == 0, scene.last_output()
        assert rows(scene) == sorted((n, v + (n >= 5)) for n, v in MERGED.items())
    finally:
        scene.clear()


def test_a_second_statement_is_refused_and_one_of_a_second_session_is_skipped(tmpfs_path: Path, jar: Path) -> None:
    """The first statement has used the number up. A new session has it again, and on the same table that is a number that was used."""
    scene = scene_of(tmpfs_path, jar, "in a new session", "in the same session", attempts=1)
    try:
        assert until_ended(scene.run(), PATIENCE) != 0
        [folder] = Path(f"{scene.ledger}.attempts").glob("so-*")
        told = (folder / "stdout").read_text(), (folder / "stderr").read_text()
        assert told[0] == "inserted in a new session\n"
        assert "DELTA_INVALID_IDEMPOTENT_WRITES_OPTIONS" in told[1]
        assert (rows(scene), commits(scene)) == (sorted(MERGED.items()), 1)
    finally:
        scene.clear()
