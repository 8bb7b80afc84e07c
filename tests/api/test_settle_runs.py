"""Operators cannot reach the outputs: settle runs, which run as separate processes here, find out what an attempt committed."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.arrow_stage import table_of
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import Fleet, rows_of, writing
from harness.kubeflow import Driver, FakeKubeflow, Script
from harness.kubeflow.drivers import assignment_in, job_of, settles, writes_outputs
from harness.kubeflow.script import Code
from harness.operators import OperatorProcess
from harness.patience import until_ended
from harness.stage import Stage, rows, staged
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.launch.kubeflow.labels import ROLE_LABEL, Role
from sparkonce.launch.kubernetes import JOBS, PODS, SPARK_APPLICATIONS
from sparkonce.sink.transaction import intent_of, sink_key
from sparkonce.store.open import open_blocking
from sparkonce.store.protocol import Sealed

GATEWAY = ("--gateway-url", "http://gateway.invalid")
"""The settle runs of these tests reach the ledger directly."""
OPTIONS = ("--settle", "run", "--settle-after", "0.5", *GATEWAY)
SETTLES = {ROLE_LABEL: Role.SETTLE.value}
WITHIN = 20.0


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=2, options=OPTIONS) as one:
        yield one


def url(stage: Stage) -> str:
    return f"etcd://{stage.etcd.one.address}"


def play(stage: Stage, key: str, driver: Script, *runs: Script) -> None:
    """Sets the scripts of a key's attempts and of its settle runs; settle runs without one settle."""
    stage.play(key, driver, attempt="g*-a?")
    log = stage.folder / f"{key}.log"
    stage.play(key, Script(code=settles(url(stage), log)), attempt="g*-a*-s*")
    for number, each in enumerate(runs, start=1):
        stage.play(key, each, attempt=f"g*-a*-s{number}")


def settle_runs(stage: Stage, key: str) -> list[str]:
    """The settle runs of a key, as "a1-s1"."""
    found = stage.applications(key, placeholders=True)
    labels = {each["metadata"]["name"]: each["metadata"]["labels"][ROLE_LABEL] for each in found}
    return sorted("-".join(name.split("-")[3:]) for name, role in labels.items() if role == Role.SETTLE)


def slots_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("_idem/*-g*/*.json"))


# --- findings


@pytest.mark.operator
def test_what_an_attempt_committed_is_found_by_a_settle_run(stage: Stage, tmp_path: Path) -> None:
    """No operator touches the output: the result, with its rows, comes from the report. One attempt, one settle run, one effect."""
    play(stage, "found", Script(code=writes_outputs(1, 2, 3)))
    stage.send("found", "found", outputs=rows(tmp_path))
    status = stage.until("found", "Succeeded", attempt=1)
    assert status["result"]["outputs"][0]["rows"] == 3
    assert status["result"]["outputs"][0]["uri"] == tmp_path.as_uri()
    assert (stage.attempts("found"), settle_runs(stage, "found")) == (["g1-a1"], ["a1-s1"])
    assert rows_of(tmp_path) == {1: 1, 2: 1, 3: 1}
    told = stage.record("found")["record"]
    assert (told["settleRuns"], told["attempt"]) == (1, 1)


@pytest.mark.operator
def test_what_never_started_needs_no_settle_run(stage: Stage, tmp_path: Path) -> None:
    """Its image cannot be pulled, and no settle run with that image could start either. The corrected job takes the key at once: the pod's
    history proves that nothing ran."""
    play(stage, "unplaced", Script(pending_seconds=600.0, pending_reason="ErrImagePull"), Script(pending_seconds=600.0))
    stage.play("unplaced", Script(code=writes_outputs(7)), attempt="g2-a1")
    stage.play("unplaced", Script(code=settles(url(stage), stage.folder / "unplaced.log")), attempt="g2-a1-s1")
    stage.send("unplaced", "unplaced", outputs=rows(tmp_path))
    assert_eventually(lambda: stage.pods(f"so-{stage.hash20('unplaced')}-g1-a1"), WITHIN)
    stage.arguments("unplaced", "--corrected")
    stage.until("unplaced", "Succeeded", generation=2, attempt=1)
    assert settle_runs(stage, "unplaced") == ["a1-s1"]  # of generation 2 alone: the first would be another
    assert rows_of(tmp_path) == {7: 1}


@pytest.mark.operator
def test_what_is_deleted_before_it_started_needs_no_settle_run(stage: Stage, tmp_path: Path) -> None:
    """Application and pod are garbage-collected with the object. The record keeps where the history of the pod's name begins, which
    proves that nothing has run, and the corrected object takes the key."""
    play(stage, "anew", Script(pending_seconds=600.0, pending_reason="ErrImagePull"), Script(pending_seconds=600.0))
    stage.play("anew", Script(code=writes_outputs(9)), attempt="g2-a1")
    stage.play("anew", Script(code=settles(url(stage), stage.folder / "anew.log")), attempt="g2-a1-s1")
    stage.send("anew", "anew", outputs=rows(tmp_path))
    assert_eventually(lambda: "image" in str(stage.status("anew").get("message")), WITHIN)
    stage.delete("anew")
    stage.until_record("anew", phase="Cancelled")
    assert settle_runs(stage, "anew") == []
    stage.send("anew", "anew", "--corrected", outputs=rows(tmp_path))
    stage.until("anew", "Succeeded", generation=2, attempt=1)
    assert rows_of(tmp_path) == {9: 1}


def test_a_submission_that_fails_needs_no_settle_run(stage: Stage, tmp_path: Path) -> None:
    """Nor does one that fails again. Since nothing ran, the corrected job takes the key of the failed one by itself."""
    play(stage, "refused", Script(submission_error="failed to run spark-submit: forbidden"))
    stage.send("refused", "refused", outputs=rows(tmp_path), retry={"maxAttempts": 2})
    stage.until("refused", "Failed", attempt=2)
    assert settle_runs(stage, "refused") == []
    stage.play("refused", Script(code=writes_outputs(8)), attempt="g2-a1")
    stage.play("refused", Script(code=settles(url(stage), stage.folder / "refused.log")), attempt="g2-a1-s1")
    stage.arguments("refused", "--corrected")
    stage.until("refused", "Succeeded", generation=2, attempt=1)
    assert rows_of(tmp_path) == {8: 1}


def test_an_attempt_after_one_that_ran_is_settled_at_the_outputs(stage: Stage, tmp_path: Path) -> None:
    """The second attempt never starts; what the first one committed is known to the outputs alone, so a settle run looks."""
    play(stage, "second", Script(pending_seconds=600.0, pending_reason="ErrImagePull"))
    stage.play("second", Script(exit_code=3), attempt="g1-a1")
    stage.send("second", "second", outputs=rows(tmp_path), retry={"maxAttempts": 2})
    assert_eventually(lambda: stage.pods(f"so-{stage.hash20('second')}-g1-a2"), WITHIN)
    assert stage.cli("cancel", "second", "--reason", "wrong image").returncode == 0
    stage.until("second", "Cancelled", attempt=2)
    assert settle_runs(stage, "second") == ["a1-s1", "a2-s1"]


@pytest.mark.operator
def test_an_attempt_that_committed_nothing_is_closed_before_the_next(stage: Stage, tmp_path: Path) -> None:
    """Slot 1 is closed by the settle run and attempt 2 writes the rows; settle runs do not count as attempts."""
    play(stage, "closed", Script(code=writes_outputs(4)))
    stage.play("closed", Script(exit_code=3), attempt="g1-a1")
    stage.send("closed", "closed", outputs=rows(tmp_path), retry={"maxAttempts": 2})
    stage.until("closed", "Succeeded", attempt=2)
    assert settle_runs(stage, "closed") == ["a1-s1", "a2-s1"]
    assert rows_of(tmp_path) == {4: 1}
    assert slots_in(tmp_path) == ["0000000001.json", "0000000002.json"]


def test_a_failure_is_said_after_a_settle_run_alone(stage: Stage, tmp_path: Path) -> None:
    """Once attempts are used up the job is Failed, and the last slot is closed, so that nothing can be committed any more."""
    play(stage, "failed", Script(exit_code=3))
    stage.send("failed", "failed", outputs=rows(tmp_path), retry={"maxAttempts": 1})
    stage.until("failed", "Failed", attempt=1)
    assert (slots_in(tmp_path), rows_of(tmp_path)) == (["0000000001.json"], {})


def seals_and_dies(store: str, install: str) -> Code:
    """A driver that dies after sealing its transaction and before the first slot."""

    def code(driver: Driver) -> int:
        assignment = assignment_in(driver)
        ledger = open_blocking(store, install=install)
        job = job_of(driver, DirectChannel(ledger, assignment))
        slots = {}
        for name, sink in job._sinks.items():
            key = sink_key(assignment.key_hash, assignment.generation, sink)
            slots[name] = sink.stage(table_of(7), key, assignment.attempt, fingerprint=assignment.fingerprint)
        answer = job.channel.seal(intent_of(assignment.attempt, slots))
        assert isinstance(answer, Sealed), answer
        run(ledger.close())
        return 1

    return code


def test_a_sealed_transaction_is_rolled_forward_by_a_settle_run(stage: Stage, tmp_path: Path) -> None:
    """Its driver died after the seal: both outputs have the staged rows once, and there was no other attempt."""
    two = [{"name": name, "slotLog": {"path": str(tmp_path / name)}} for name in ("a", "b")]
    play(stage, "sealed", Script(code=seals_and_dies(url(stage), stage.install)))
    stage.send("sealed", "sealed", outputs=two)
    stage.until("sealed", "Succeeded", attempt=1)
    assert (rows_of(tmp_path / "a"), rows_of(tmp_path / "b")) == ({7: 1}, {7: 1})
    assert len(stage.runs("sealed")) == 2, "one driver, one settle run"


# --- settle runs that are lost


def test_a_lost_settle_run_is_followed_by_another(stage: Stage, tmp_path: Path) -> None:
    """The first ends without a report and the second never gets a driver: the third one's report counts, and the attempt is still the
    first."""
    lost = [Script(exit_code=75), Script(submission_error="no room")]
    play(stage, "lost", Script(code=writes_outputs(5)), *lost)
    stage.send("lost", "lost", outputs=rows(tmp_path))
    stage.until("lost", "Succeeded", attempt=1)
    assert settle_runs(stage, "lost") == ["a1-s1", "a1-s2", "a1-s3"]
    assert rows_of(tmp_path) == {5: 1}


def test_three_lost_settle_runs_are_for_a_person(stage: Stage, tmp_path: Path) -> None:
    """The job is Held(CannotSettle) with the reason, and nothing more is tried. After `keys resolve --retry` an operator tries three
    more."""
    play(stage, "three", Script(code=writes_outputs(6)), *[Script(exit_code=75)] * 3)
    stage.send("three", "three", outputs=rows(tmp_path))
    stage.until("three", "Held", attempt=1)
    condition = stage.condition("three", "Held")
    assert condition["reason"] == "CannotSettle"
    assert "exit code 75" in condition["message"]
    stage.settled("three")
    assert settle_runs(stage, "three") == ["a1-s1", "a1-s2", "a1-s3"]
    done = stage.cli("keys", "resolve", "three", "--retry", "--reason", "the volume is back", "--yes", settle="run")
    assert done.returncode == 0, done.stderr
    stage.until("three", "Succeeded", timeout=WITHIN, attempt=1)
    assert settle_runs(stage, "three") == ["a1-s1", "a1-s2", "a1-s3", "a1-s4"]
    assert rows_of(tmp_path) == {6: 1}


def test_a_settle_run_that_comes_late_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    """The first one's pod is lost while its process lives on, and settles attempt 1 after attempt 2 has committed: one effect, the same
    result, and its report is ignored."""
    wakes, done = threading.Event(), threading.Event()
    real = settles(url(stage), stage.folder / "late.log")

    def late(driver: Driver) -> int | None:
        wakes.wait()
        try:
            return real(driver)
        finally:
            done.set()

    play(stage, "late", Script(code=writes_outputs(8)))
    stage.play("late", Script(exit_code=1), attempt="g1-a1")
    stage.play("late", Script(code=late), attempt="g1-a1-s1")
    stage.send("late", "late", outputs=rows(tmp_path))
    first = stage.until_runs("late", 2)[1]
    assert first.application.endswith("g1-a1-s1")
    stage.cluster.api.delete(PODS, first.pod, stage.namespace, grace=0)
    status = stage.until("late", "Succeeded", attempt=2)
    wakes.set()
    assert_eventually(done.is_set, WITHIN)
    stage.settled("late")
    assert stage.status("late") == status
    assert rows_of(tmp_path) == {8: 1}
    assert slots_in(tmp_path) == ["0000000001.json", "0000000002.json"]


# --- operators that die, and operators that see another disk


@pytest.fixture
def fleet(cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path, options=OPTIONS) as started:
        yield started


@pytest.mark.parametrize("point", ["counted", "before", "after"])
def test_an_operator_that_dies_beside_a_settle_run_sends_no_second_one(
    fleet: Fleet, kubeflow: FakeKubeflow, tmp_path: Path, point: str
) -> None:
    """It is killed after the run was counted, or before or after its application was created: the next operator continues with the same
    number. One settle run, one effect, one attempt."""
    table = tmp_path / "table"
    kubeflow.on(Script(code=writes_outputs(1, 2, 3)))
    kubeflow.on(Script(code=settles(fleet.url, tmp_path / "settle.log")), labels=SETTLES)
    first = fleet.add(SPARKONCE_FAILPOINTS=f"engine.settle-run.{point}=kill")
    first.wait_ready()
    fleet.apply(writing(1, table))
    assert first.process is not None
    until_ended(first.process, WITHIN)
    fleet.start(1)
    fleet.until_ended(WITHIN + 10)
    fleet.audit()
    assert rows_of(table) == {1: 1, 2: 1, 3: 1}
    names = [each["metadata"]["name"] for each in fleet.cluster.api.list(SPARK_APPLICATIONS, fleet.namespace)]
    assert sorted("-".join(name.split("-")[2:]) for name in names) == ["g1-a1", "g1-a1-s1"]
    assert len(kubeflow.runs) == 2


def blind(fleet: Fleet, folder: Path, *options: str) -> OperatorProcess:
    """An operator in a pod without the volume: it sees another, empty disk at that path."""
    hidden = f"mount -t tmpfs none {shlex.quote(str(folder))}"
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{hidden} && exec "$0" "$@"']
    process = fleet.add(program=[*alone[1:], sys.executable, "-m", "sparkonce"], options=options, python=alone[0])
    process.wait_ready()
    return process


def test_a_folder_that_only_drivers_see_is_left_to_settle_runs(
    fleet: Fleet, kubeflow: FakeKubeflow, tmp_path: Path
) -> None:
    """With `--settle auto` the operator's own disk has a folder of that name, whose content proves nothing. The rows are found once, and
    nothing is written to the wrong disk, where a fence would have made a committed job Failed."""
    volume = tmp_path / "volume"
    volume.mkdir()
    kubeflow.on(Script(code=writes_outputs(1, 2, 3)))
    kubeflow.on(Script(code=settles(fleet.url, tmp_path / "settle.log")), labels=SETTLES)
    operator = blind(fleet, volume, "--settle", "auto", "--settle-after", "0.5", *GATEWAY)
    fleet.apply(writing(2, volume / "table"))
    fleet.until_ended(WITHIN + 10)
    fleet.audit()
    assert list(Path(f"/proc/{operator.pid}/root{volume}").iterdir()) == []
    again = writing(1, volume / "table")[0].body
    fleet.cluster.api.create(JOBS, {**again, "metadata": {"name": "again"}}, fleet.namespace)
    assert_eventually(lambda: phase(fleet, "again") == "Succeeded", WITHIN)  # not ResultGone
    assert rows_of(volume / "table") == {1: 2, 2: 2, 3: 2}
    assert len(kubeflow.runs) == 4


def phase(fleet: Fleet, name: str) -> object:
    found = fleet.cluster.api.get(JOBS, name, fleet.namespace) or {}
    return (found.get("status") or {}).get("phase")
