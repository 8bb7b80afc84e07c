"""A stream of 20 batches whose driver dies or freezes at each step: real processes, the complete engine, and rows counted in the table."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from crash.scene import HERE, Scene
from driver.streamed import Dies, settled
from harness import effort
from harness.child import frozen
from harness.eventually import assert_eventually
from harness.granted import granted
from harness.patience import output_of, until_ended
from harness.stream_source import Source, installed
from sparkonce.model.record import ENVIRONMENT, Settling, Verdict, Why
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.store.open import open_store

BATCHES = 20
ROWS = 7
LONG = 120  # seconds for 13 interpreters, one after another, on a machine that others use
STEPS = {
    "driver.stream.open.before": "kill",
    "sink.slots.create.before": "kill",  # creating the opening, since each process counts its own hits
    "sink.slots.create.after": "1*off->kill",
    "driver.stream.opened": "kill",
    "driver.stage.before": "2*off->kill",
    "driver.stage.after": "3*off->kill",
    "driver.commit.after": "1*off->kill",
    "driver.stream.batch": "2*off->kill",
    "driver.stream.end.before": "kill",
    "driver.stream.ended": "kill",
}
"""Every failpoint on the way of a stream's driver, and at which hit in one process it dies."""
FREEZES = (
    ("driver.stream.open.before=1*stop", 0),
    ("driver.stream.opened=1*stop", 0),
    ("driver.stage.after=6*off->1*stop", 6),
    ("sink.slots.create.before=7*off->1*stop", 6),
    ("sink.slots.create.after=7*off->1*stop", 7),
    ("driver.stream.batch=6*off->1*stop", 7),
    ("driver.stream.end.before=1*stop", BATCHES),
)
"""Where a stream's driver freezes, and how many batches it has committed by then."""


def stream_of(folder: Path, *options: str, shape: str = "one", spec: dict[str, Any] | None = None) -> Scene:
    return Scene(folder, shape=shape, options=(str(BATCHES), *options), script=HERE / "stream_job.py", spec=spec or {})


def rows(scene: Scene, output: str = "a") -> list[int]:
    """The rows that a reader gets."""
    files = Table(str(scene.folder / "lake" / output)).files()
    return sorted(
        int(n) for file in files for n in parquet.read_table(file, partitioning=None)["n"].to_pylist() if n is not None
    )


def one_commit_per_place(scene: Scene, output: str = "a") -> list[dict[str, Any]]:
    """The committed slots; asserts that each place has one."""
    committed = [slot for slot in scene.slots(output) if slot["state"] == "committed"]
    assert set(Counter(slot["sinkKey"] for slot in committed).values()) == {1}
    return committed


def test_a_driver_that_is_killed_at_each_step_writes_every_row_once(tmpfs_path: Path) -> None:
    """One stream of 20 batches, ten drivers killed at ten steps, each followed by the next attempt: every row once, the totals in the
    result."""
    scene = stream_of(tmpfs_path)
    try:
        plan = ";".join(f"{point}={terms}" for point, terms in STEPS.items())
        assert until_ended(scene.run(plan), LONG) == 0, scene.last_output()

        said = scene.said()
        assert {f"{point}=kill" for point in STEPS} <= set(scene.hits())
        assert rows(scene) == list(range(BATCHES * ROWS))
        committed = one_commit_per_place(scene)
        assert len(committed) == BATCHES + 2
        assert len({slot["token"] for slot in committed}) > 4
        (output,) = said["result"]["outputs"]
        assert (said["phase"], output["rows"]) == ("Succeeded", BATCHES * ROWS)
        assert scene.staged() == []
    finally:
        scene.clear()


@pytest.mark.parametrize("point", effort.sampled(["engine.finalize.before", "engine.settle.fenced"]))
def test_a_runner_that_is_killed_while_it_settles_a_stream(tmpfs_path: Path, point: str) -> None:
    """The driver died in batch 5, and its owner while it settled: the next run settles again, and the stream continues."""
    scene = stream_of(tmpfs_path)
    try:
        until_ended(scene.run(f"driver.stage.after=5*off->kill;{point}=kill"), LONG)
        scene.finish()

        assert f"{point}=kill" in scene.hits()
        assert rows(scene) == list(range(BATCHES * ROWS))
        one_commit_per_place(scene)
    finally:
        scene.clear()


@pytest.mark.parametrize(
    ("point", "committed", "successor"),
    effort.sampled([(*frozen_at, successor) for frozen_at in FREEZES for successor in ("ends", "dies")]),
)
def test_a_driver_that_wakes_after_a_takeover_is_refused(
    tmp_path: Path, point: str, committed: int, successor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It froze at a step while its successor continued, to the end or for two batches: after it resumes it commits nothing and reports
    why."""
    installed(monkeypatch)
    attempt = granted(tmp_path, "a", store=open_store(str(tmp_path / "ledger.db")))
    told = {name: value for name, value in os.environ.items() if not name.startswith("SPARKONCE_")}
    # Its copy of the ledger always says that it may run: only the output can stop it (and it may freeze inside a write).
    with sqlite3.connect(tmp_path / "ledger.db") as ledger, sqlite3.connect(tmp_path / "copy.db") as copy:
        ledger.backup(copy)
    assignment = attempt.assignment.model_copy(update={"store": str(tmp_path / "copy.db")})
    told |= {
        ENVIRONMENT: assignment.model_dump_json(by_alias=True, exclude_none=True),
        "SPARKONCE_FAILPOINTS": point,
        "PYTHONPATH": str(HERE.parent),
    }
    command = [sys.executable, str(HERE / "stream_job.py"), "one", str(ROWS), str(BATCHES)]
    zombie = subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert_eventually(lambda: frozen(zombie.pid), timeout=LONG)
        verdict = settled(attempt).verdict
        assert verdict is (Verdict.SOME if committed else Verdict.NONE)
        attempt.update(settling=Settling(attempt=1, why=Why.STALE), attempt=2, nonce="nonce-2")
        numbers: Any = Source([list(range(at * ROWS, (at + 1) * ROWS)) for at in range(BATCHES)])

        def write(batch: Any, frame: Any) -> None:
            if successor == "dies" and batch.number == min(committed + 2, BATCHES - 1):
                raise Dies
            batch.write(frame, "a")

        with contextlib.suppress(Dies):
            attempt.job().stream(numbers).foreach_batch(write)
        before = slots_in(tmp_path / "a")
        zombie.send_signal(signal.SIGCONT)
        said, _ = output_of(zombie, LONG)
    finally:
        zombie.kill()
        zombie.wait()

    assert slots_in(tmp_path / "a") == before
    assert zombie.returncode == 1
    assert re.search(r"Fenced: attempt 1 of load-may can commit nothing more to a|AttemptEnded: the stream of", said), (
        said
    )
    assert sum(json.loads(slot)["state"] == "committed" for slot in before.values()) >= committed


def slots_in(table: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in table.glob("_idem/*-g*/*.json")}


def test_a_stream_that_is_cancelled_ends_with_its_last_batch(tmpfs_path: Path) -> None:
    """Effects exist, so the job is not Cancelled: the end is written after the last batch, the result has the totals, and a duplicate
    replays it."""
    scene = stream_of(tmpfs_path, "endless", spec={"heartbeatTimeoutSeconds": 60})
    try:
        runner = scene.run()
        assert_eventually(lambda: rows(scene) == list(range(BATCHES * ROWS)), timeout=LONG)
        until_ended(scene.run(command=("cancel", "crash-test")), LONG)
        assert until_ended(runner, LONG) == 0, scene.last_output()

        until_ended(scene.run(), LONG)
        said = scene.said()
        assert (said["phase"], said["replayed"]) == ("Succeeded", True)
        assert said["result"]["outputs"][0]["rows"] == BATCHES * ROWS
        assert rows(scene) == list(range(BATCHES * ROWS))
        assert sum(slot.get("stream", {}).get("part") == "end" for slot in one_commit_per_place(scene)) == 1
    finally:
        scene.clear()


def test_a_stream_that_is_cancelled_before_its_first_batch_is_cancelled(tmpfs_path: Path) -> None:
    """No effect exists and none can follow: Cancelled."""
    scene = stream_of(tmpfs_path, spec={"heartbeatTimeoutSeconds": 60})
    try:
        runner = scene.run("driver.stream.opened=sleep(60000)")
        assert_eventually(lambda: "driver.stream.opened=sleep" in scene.hits(), timeout=LONG)
        until_ended(scene.run(command=("cancel", "crash-test")), LONG)
        assert until_ended(runner, LONG) != 0

        assert scene.said()["phase"] == "Cancelled"
        assert rows(scene) == []
    finally:
        scene.clear()


@pytest.mark.further
def test_two_outputs_of_a_stream_whose_driver_dies_between_them(tmpfs_path: Path) -> None:
    """A batch that only one output has is delivered again: both outputs have every row once."""
    scene = stream_of(tmpfs_path, shape="two")
    try:
        assert until_ended(scene.run("driver.commit.after=7*off->kill;driver.stream.ended=kill"), LONG) == 0, (
            scene.last_output()
        )

        assert {"driver.commit.after=kill", "driver.stream.ended=kill"} <= set(scene.hits())
        for output in "ab":
            assert rows(scene, output) == list(range(BATCHES * ROWS))
            one_commit_per_place(scene, output)
    finally:
        scene.clear()


def test_a_stream_whose_attempts_are_used_up_is_a_persons_to_end(tmpfs_path: Path) -> None:
    """The key is held, since batches are committed. It cannot be resolved as failed; resolved as succeeded, the stream ends with the
    batches that it has."""
    scene = stream_of(tmpfs_path, spec={"retry": {"maxAttempts": 1}})
    try:
        until_ended(scene.run("driver.stage.after=5*off->kill"), LONG)
        assert (scene.said()["phase"], scene.slots("a")[-1]["state"]) == ("Held", "closed")

        failed = ("keys", "resolve", "crash-test", "--failed", "--yes", "--reason", "x")
        assert until_ended(scene.run(command=failed), LONG) != 0
        assert "cannot be resolved as failed: a is committed" in scene.last_output()
        succeeded = ("keys", "resolve", "crash-test", "--succeeded", "--yes", "--reason", "x")
        assert until_ended(scene.run(command=succeeded), LONG) == 0, scene.last_output()

        assert scene.finish()["result"]["outputs"][0]["rows"] == 5 * ROWS
        assert rows(scene) == list(range(5 * ROWS))
    finally:
        scene.clear()


@pytest.mark.further
def test_a_rerun_of_a_stream_writes_it_anew_and_replaces_it_at_its_end(tmpfs_path: Path) -> None:
    """Each generation has a checkpoint of its own. While the rerun runs readers see the old rows; before and after, each row once."""
    scene = stream_of(tmpfs_path)
    try:
        assert until_ended(scene.run(), LONG) == 0, scene.last_output()
        runner = scene.run("driver.stage.after=3*off->1*sleep(1500)->off", command=("rerun", "crash-test"))
        assert_eventually(lambda: "driver.stage.after=sleep" in scene.hits(), timeout=LONG)
        assert rows(scene) == list(range(BATCHES * ROWS))
        assert until_ended(runner, LONG) == 0, scene.last_output()

        assert rows(scene) == list(range(BATCHES * ROWS))
        files = Table(str(scene.folder / "lake" / "a")).files()
        assert {re.findall(r"-g(\d+)-b\d+/", path)[-1] for path in files} == {"2"}
        assert len(one_commit_per_place(scene)) == 2 * (BATCHES + 2)
        assert len(list((scene.folder / "lake" / "a" / "_streams").iterdir())) == 2
    finally:
        scene.clear()
