"""How deployment tools judge a job: kstatus (Flux, kpt, Helm) and Argo CD judge each version of an object that the API server served, for
each way in which a job lives and ends."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.kubeflow import Moment, Script
from harness.kubeflow.drivers import writes_outputs
from harness.stage import IN_TIME, Stage, held, rows, staged
from harness.verdicts import Recorder, Verdict, judged
from sparkonce.blocking import run
from sparkonce.cli.session import person
from sparkonce.launch.kubernetes import JOBS
from sparkonce.store.open import open_blocking
from sparkonce.store.roster import Replica, Roster

Json = dict[str, Any]

CURRENT, FAILED, IN_PROGRESS, TERMINATING = "Current", "Failed", "InProgress", "Terminating"
OF_PHASE = {
    "Pending": IN_PROGRESS,
    "Running": IN_PROGRESS,
    "Recovering": IN_PROGRESS,
    "Succeeded": CURRENT,
    "Failed": FAILED,
    "Cancelled": FAILED,
    "Held": FAILED,
    "Mismatch": FAILED,
}
"""The verdict of each phase that has always the same one; tests name their exceptions."""
HEALTHS = {CURRENT: {"Healthy"}, FAILED: {"Degraded"}, IN_PROGRESS: {"Progressing", "Suspended"}}
STANDARD = ("Ready", "Reconciling", "Stalled")


@dataclass(frozen=True)
class Lives:
    stage: Stage
    recorder: Recorder

    def of(self, name: str, **exceptions: str) -> list[Verdict]:
        """The verdicts over an object's life, after checking that each is right and consistent with the others. `exceptions`: other
        verdicts, by phase."""
        assert_eventually(lambda: self._recorded(name), IN_TIME)
        life = judged(self.recorder.versions[name])
        for one in life:
            self._right(one, OF_PHASE | exceptions)
        for before, after in itertools.pairwise(life):
            gone_back = before.kstatus == CURRENT and after.kstatus not in (CURRENT, TERMINATING)
            assert not gone_back or _asked_anew(before, after), (before.of, after.of)
        return life

    def _recorded(self, name: str) -> bool:
        found = self.stage.object(name)
        seen = self.recorder.versions.get(name, [])
        return bool(seen) and (found is None or found["metadata"]["resourceVersion"] == _version(seen[-1]))

    def _right(self, one: Verdict, of_phase: dict[str, str]) -> None:
        metadata = one.of["metadata"]
        if "deletionTimestamp" in metadata:
            assert one.kstatus == TERMINATING, one.of
            return  # Argo CD does not run the health check then
        seen = one.status.get("observedGeneration") == metadata["generation"]
        invalid = any(each["reason"] == "InvalidSpec" for each in one.status.get("conditions", ()))
        assert one.kstatus == (IN_PROGRESS if not seen else FAILED if invalid else of_phase[one.phase]), one.of
        assert one.argocd in HEALTHS[one.kstatus], one.of
        if seen:
            conditions = {each["type"]: each["status"] for each in one.status["conditions"]}
            assert [conditions[kind] for kind in STANDARD].count("True") == 1, one.of
            assert {each["observedGeneration"] for each in one.status["conditions"]} == {metadata["generation"]}, one.of
            assert one.argocd_message == one.status["message"], one.of
            assert one.kstatus == CURRENT or one.kstatus_message == one.status["message"], one.of


def _version(found: Json) -> str:
    return str(found["metadata"]["resourceVersion"])


def _asked_anew(before: Verdict, after: Verdict) -> bool:
    """Whether the object was edited, or its key got another generation, between the two."""
    edited = after.of["metadata"]["generation"] > before.of["metadata"]["generation"]
    return bool(edited or after.status.get("generation", 0) > before.status.get("generation", 0))


def turns(life: list[Verdict]) -> list[str]:
    """kstatus' verdicts over a life, without repetitions."""
    return [each for each, _ in itertools.groupby(one.kstatus for one in life)]


@pytest.fixture(scope="module")
def lives(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with (
        staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), sweep=1.0) as stage,
        Recorder(cluster, stage.namespace) as recorder,
    ):
        yield Lives(stage, recorder)


def test_a_job_that_succeeds(lives: Lives) -> None:
    """Leader, follower, refused duplicate and replay are InProgress from the first moment, before the operator has seen the object, and
    then Current."""
    stage, done = lives.stage, threading.Event()
    stage.play("good", Script(code=held(done)))
    stage.send("good-1", "good", onDuplicate="Reject")
    stage.until("good-1", "Running")
    stage.send("good-2", "good")
    stage.until("good-2", "Pending")
    stage.play("shared", Script(code=held(done)))
    stage.send("shared-1", "shared")
    stage.send("shared-2", "shared")
    for name in ("shared-1", "shared-2"):
        stage.until(name, "Running")
    done.set()
    stage.until_all("good", "Succeeded")
    stage.until_all("shared", "Succeeded")
    stage.send("good-3", "good")
    stage.until("good-3", "Succeeded")
    for name in ("good-1", "good-2", "good-3", "shared-1", "shared-2"):
        life = lives.of(name)
        assert life[0].status == {"observedGeneration": -1}
        assert turns(life) == [IN_PROGRESS, CURRENT]
    assert lives.of("shared-1")[-1].argocd_message.startswith("generation 1 succeeded")


def test_a_job_that_fails(lives: Lives) -> None:
    """With a lost attempt a job is InProgress; without attempts left it is Failed, with the sentence that says what to do. After a rerun it
    is Current."""
    stage = lives.stage
    stage.play("late", Script(exit_code=1), attempt="g1-a1")
    stage.send("late", "late", retry={"maxAttempts": 2})
    stage.play("bad", Script(exit_code=3), attempt="g1-*")
    stage.send("bad", "bad")
    assert stage.until("late", "Succeeded")["attempt"] == 2
    assert turns(lives.of("late")) == [IN_PROGRESS, CURRENT]
    stage.until("bad", "Failed")
    life = lives.of("bad")
    assert turns(life) == [IN_PROGRESS, FAILED]
    assert "sparkonce.dev/rerun=REASON" in life[-1].kstatus_message
    assert stage.condition("bad", "Stalled")["reason"] == "Failed"
    assert stage.condition("bad", "Ready")["status"] == "False"
    assert stage.cli("rerun", "bad").returncode == 0
    stage.until("bad", "Succeeded", generation=2)
    assert turns(lives.of("bad")) == [IN_PROGRESS, FAILED, IN_PROGRESS, CURRENT]


def test_a_job_that_is_cancelled(lives: Lives) -> None:
    """It is Failed, with the name of the person who cancelled it and the reason, and Terminating while it is deleted."""
    stage = lives.stage
    stage.play("stopped", Script(code=held(threading.Event())), attempt="g1-*")
    body = stage.job("stopped", "stopped")
    body["metadata"]["finalizers"] = ["tests.sparkonce.dev/held"]
    stage.apply(body)
    stage.until("stopped", "Running")
    assert stage.cli("cancel", "stopped", "--reason", "wrong month").returncode == 0
    stage.until("stopped", "Cancelled")
    assert f"cancelled by {person()}: wrong month" in lives.of("stopped")[-1].kstatus_message
    stage.delete("stopped")
    assert turns(lives.of("stopped")) == [IN_PROGRESS, FAILED, TERMINATING]
    stage.cluster.api.patch(JOBS, "stopped", {"metadata": {"finalizers": None}}, namespace=stage.namespace)


def test_a_job_that_is_held(lives: Lives) -> None:
    """It is Failed as long as it waits for a person, and Current once that person says that it succeeded."""
    stage = lives.stage
    stage.play("held", Script(vanishes=Moment.RUNNING), attempt="g1-a1")
    stage.send("held", "held")
    stage.until("held", "Held")
    assert "--reason TEXT --succeeded | --failed | --retry" in lives.of("held")[-1].kstatus_message
    done = stage.cli("keys", "resolve", "held", "--succeeded", "--reason", "the rows are there", "--yes")
    assert done.returncode == 0, done.stderr
    stage.until("held", "Succeeded")
    assert turns(lives.of("held")) == [IN_PROGRESS, FAILED, CURRENT]


def test_a_job_that_is_refused(lives: Lives) -> None:
    """A mismatch and an invalid spec are Failed at once. After an edit that makes the spec valid the object is InProgress and then Current;
    after one that makes it invalid it is Failed, although its phase is Pending."""
    stage = lives.stage
    stage.send("first", "taken")
    stage.until("first", "Succeeded")
    stage.send("other", "taken", "something else")
    stage.until("other", "Mismatch")
    life = lives.of("other")
    assert turns(life) == [IN_PROGRESS, FAILED]
    assert "spec.template.spec.arguments[0]" in life[-1].kstatus_message
    stage.send("invalid", "invalid", tunableArguments=["--threads"])
    stage.until("invalid", "Failed")
    assert turns(lives.of("invalid")) == [IN_PROGRESS, FAILED]
    stage.edit("invalid", tunableArguments=None)
    stage.until("invalid", "Succeeded")
    stage.edit("invalid", tunableArguments=["--threads"])
    stage.until("invalid", "Pending", observedGeneration=3)
    life = lives.of("invalid")
    assert turns(life)[-4:] == [IN_PROGRESS, CURRENT, IN_PROGRESS, FAILED]
    assert stage.condition("invalid", "Stalled")["reason"] == "InvalidSpec"


def test_a_suspended_job(lives: Lives) -> None:
    """It is InProgress, and Suspended in Argo CD, until it is started."""
    stage = lives.stage
    stage.send("asleep", "asleep", suspend=True)
    assert_eventually(lambda: "suspended" in stage.status("asleep").get("message", ""), IN_TIME)
    assert lives.of("asleep")[-1].argocd == "Suspended"
    stage.edit("asleep", suspend=False)
    stage.until("asleep", "Succeeded")
    life = lives.of("asleep")
    assert turns(life) == [IN_PROGRESS, CURRENT]
    assert {each.argocd for each in life} == {"Progressing", "Suspended", "Healthy"}


def test_an_edit_after_the_end(lives: Lives) -> None:
    """After an edit that is no request it is InProgress until the operator has seen the edit, then Current again."""
    stage = lives.stage
    stage.send("edited", "edited")
    stage.until("edited", "Succeeded")
    stage.edit("edited", retention={"failed": "9d"})
    stage.until("edited", "Succeeded", observedGeneration=2)
    assert turns(lives.of("edited")) == [IN_PROGRESS, CURRENT, IN_PROGRESS, CURRENT]


def test_a_job_whose_key_goes_to_another(lives: Lives) -> None:
    """One that was running is Failed, one that had its result stays Current: after a supersede, after an edit that is no request, and after
    its record was forgotten. If a record is forgotten without a result, its object is Failed."""
    stage = lives.stage
    stage.play("key", Script(code=held(threading.Event())), attempt="g1-*")
    stage.send("runs", "key", "a")
    stage.until("runs", "Running")
    stage.send("next", "key", "b", onMismatch="Supersede")
    stage.until("next", "Succeeded", generation=2)
    stage.until("runs", "Mismatch")
    assert turns(lives.of("runs")) == [IN_PROGRESS, FAILED]
    stage.send("last", "key", "c", onMismatch="Supersede")
    stage.until("last", "Succeeded", generation=3)
    assert_eventually(lambda: stage.condition("next", "Mismatch").get("reason") == "Superseded", IN_TIME)
    assert turns(lives.of("next")) == [IN_PROGRESS, CURRENT]
    stage.edit("next", retention={"failed": "9d"})
    stage.until("next", "Succeeded", observedGeneration=2)
    assert turns(lives.of("next")) == [IN_PROGRESS, CURRENT, IN_PROGRESS, CURRENT]
    stage.play("failed", Script(exit_code=1))
    stage.send("failed", "failed")
    stage.until("failed", "Failed")
    for key, name, ends in (("key", "last", CURRENT), ("failed", "failed", FAILED)):
        config = ("--kubeconfig", str(stage.cluster.kubeconfig))
        done = stage.cli("keys", "forget", key, "--reason", "by mistake", "--yes", *config)
        assert done.returncode == 0, done.stderr
        stage.until(name, "Expired")
        assert turns(lives.of(name, Expired=ends)) == [IN_PROGRESS, ends]


def test_a_result_that_is_gone(lives: Lives, tmp_path: Path) -> None:
    """An object that had the result stays Current; one that is created after the table was deleted is Failed until a rerun."""
    stage = lives.stage
    stage.play("gone", Script(code=writes_outputs(1, 2)))
    stage.send("gone-1", "gone", outputs=rows(tmp_path / "table"))
    stage.until("gone-1", "Succeeded")
    shutil.rmtree(tmp_path / "table")
    stage.send("gone-2", "gone", outputs=rows(tmp_path / "table"))
    stage.until("gone-2", "Succeeded")
    life = lives.of("gone-2", Succeeded=FAILED)
    assert turns(life) == [IN_PROGRESS, FAILED]
    assert "sparkonce.dev/rerun=REASON" in life[-1].kstatus_message
    assert turns(lives.of("gone-1")) == [IN_PROGRESS, CURRENT]
    assert stage.cli("rerun", "gone").returncode == 0
    stage.until_all("gone", "Succeeded")
    assert_eventually(lambda: judged(lives.recorder.versions["gone-2"][-1:])[0].kstatus == CURRENT, IN_TIME)
    assert turns(lives.of("gone-1")) == [IN_PROGRESS, CURRENT, IN_PROGRESS, CURRENT]


def test_an_operator_that_dies(lives: Lives) -> None:
    """A job that the next process takes over is InProgress all the time, and one that has ended stays Current."""
    stage, done = lives.stage, threading.Event()
    stage.send("ended", "ended")
    stage.until("ended", "Succeeded")
    stage.play("survives", Script(code=held(done)))
    stage.send("survives", "survives")
    owner = stage.until("survives", "Running")["owner"]
    (operator,) = stage.operators
    operator.kill()
    operator.start()
    assert_eventually(lambda: stage.status("survives").get("owner") not in (None, owner), IN_TIME)
    done.set()
    stage.until("survives", "Succeeded", attempt=1)
    assert turns(lives.of("survives")) == turns(lives.of("ended")) == [IN_PROGRESS, CURRENT]


def test_beside_an_operator_that_does_not_know_them(lives: Lives) -> None:
    """While a process of a version runs that would remove the standard conditions, none are written; once it is gone every object gets
    them, even those that had ended."""
    stage = lives.stage
    older = Replica(nonce="older", owner="older", clock=0.0, schema=1, slots=1)
    store = open_blocking(f"etcd://{stage.etcd.one.address}", install=stage.install)
    lease = run(store.open_lease(owner="older"))
    try:
        run(cast(Roster, store).announce(older, lease=lease))
        assert_eventually(lambda: not stage.condition(some_ended(stage), "Ready"), IN_TIME)
        stage.send("beside", "beside")
        stage.until("beside", "Succeeded")
        stage.settled("beside")
        assert [each["type"] for each in stage.status("beside")["conditions"]] == ["Complete", "Reserved"]
    finally:
        run(lease.revoke())
        run(store.close())
    assert_eventually(lambda: turns(judged(lives.recorder.versions["beside"][-1:])) == [CURRENT], IN_TIME)
    assert_eventually(lambda: stage.condition("beside", "Ready").get("status") == "True", IN_TIME)
    assert_eventually(lambda: stage.condition(some_ended(stage), "Ready").get("status") == "True", IN_TIME)


def some_ended(stage: Stage) -> str:
    """An object that ended earlier."""
    name = "ended-before"
    if stage.object(name) is None:
        stage.send(name, name)
        stage.until(name, "Succeeded")
    return name
