"""The annotation `sparkonce.dev/rerun`, and edits of onMismatch: the object's current spec runs once more, once for each text."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import Cluster
from harness.binaries import find
from harness.child import frozen
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import rows_of
from harness.kubeflow import Script
from harness.kubeflow.drivers import writes_outputs
from harness.kubelet_logs import served_logs
from harness.operators import OperatorProcess
from harness.patience import completed
from harness.stage import IN_TIME, Json, Stage, held, rows, staged
from sparkonce.attempt.rerun import ANNOTATION
from sparkonce.cli.app import main as command_line
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.kubectl.app import NAME, app, hoisted
from sparkonce.launch.kubernetes import JOBS, PODS, SPARK_APPLICATIONS

SWEEP = 1.0
LOGS = Path(__file__).parents[1] / "launch" / "driver_logs"


@pytest.fixture(scope="module")
def stage(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, ledger_server, tmp_path_factory.mktemp("stage"), operators=2, sweep=SWEEP) as one:
        yield one


def annotate(stage: Stage, name: str, text: str | None) -> None:
    stage.cluster.api.patch(JOBS, name, {"metadata": {"annotations": {ANNOTATION: text}}}, namespace=stage.namespace)


def history(stage: Stage, key: str, what: str = "Reopened") -> list[str]:
    """The reasons of the reopenings in the key's history."""
    told = json.loads(stage.cli("keys", "history", key, "--json").stdout)["events"]
    return [each.get("why", "") for each in told if each["what"] == what]


def arguments(stage: Stage, key: str) -> dict[str, list[str]]:
    """The arguments of each application, by attempt."""
    found = stage.applications(key)
    return {"-".join(each["metadata"]["name"].split("-")[2:]): each["spec"]["arguments"] for each in found}


def as_printed(stage: Stage, message: str) -> None:
    """Applies the effect of the `kubectl annotate` command in a message, after checking its words, with a reason in place of REASON."""
    words = shlex.split(message[message.index("kubectl annotate") :].partition("`")[0])
    assert words[:4] == ["kubectl", "annotate", "--overwrite", "idempotentjobs"] and words[4] == "-n"
    namespace, name, (annotation, _, text) = words[5], words[6], words[7].partition("=")
    assert (namespace, text) == (stage.namespace, "REASON")
    patch = {"metadata": {"annotations": {annotation: "as it was printed"}}}
    stage.cluster.api.patch(JOBS, name, patch, namespace=namespace)


@pytest.mark.operator
def test_each_new_text_runs_what_stands_in_the_object_now(stage: Stage) -> None:
    """A success is run again with the same spec, then with an edited one. A text used before opens nothing, nor does a restart of both
    operators; the history has the object and the text."""
    stage.send("again", "again", "a")
    stage.until("again", "Succeeded", generation=1)
    annotate(stage, "again", 'the "source" was mended')
    status = stage.until("again", "Succeeded", generation=2, role="Leader", replayed=False)
    assert status["rerun"] == 'the "source" was mended'

    stage.arguments("again", "b")
    message = stage.until("again", "Mismatch")["message"]
    as_printed(stage, message)
    stage.until("again", "Succeeded", generation=3, role="Leader")
    annotate(stage, "again", 'the "source" was mended')
    for each in stage.operators:
        each.kill()
        each.start()
    stage.settled("again")
    annotate(stage, "again", None)
    stage.settled("again")
    annotate(stage, "again", "as it was printed")
    stage.settled("again")

    assert arguments(stage, "again") == {"g1-a1": ["a"], "g2-a1": ["a"], "g3-a1": ["b"]}
    assert len(stage.runs("again")) == 3
    asked = f"IdempotentJob {stage.namespace}/again (metadata.generation"
    first, second = history(stage, "again")
    assert first == f'{asked} 1) asks for it by {ANNOTATION}: "the \\"source\\" was mended"'
    assert second == f'{asked} 2) asks for it by {ANNOTATION}: "as it was printed"'
    explained = stage.cli("keys", "explain", "again").stdout
    assert "as it was printed" in explained


def test_the_command_in_a_message_runs_the_job_again(stage: Stage, tmp_path: Path) -> None:
    """As it is printed: of a job that failed, of one that was cancelled, and of one whose output is gone."""
    stage.play("failed", Script(exit_code=3), attempt="g1-*")
    stage.send("failed", "failed")
    stage.play("stopped", Script(code=held(threading.Event())), attempt="g1-*")
    stage.send("stopped", "stopped")
    stage.play("missing", Script(code=writes_outputs(1, 2)))
    stage.send("written", "missing", outputs=rows(tmp_path / "table"))
    stage.until("written", "Succeeded")
    shutil.rmtree(tmp_path / "table")
    stage.send("missing", "missing", outputs=rows(tmp_path / "table"))
    stage.until("stopped", "Running")
    assert stage.cli("cancel", "stopped", "--reason", "the wrong month").returncode == 0
    for name, phase in (("failed", "Failed"), ("stopped", "Cancelled"), ("missing", "Succeeded")):
        as_printed(stage, stage.until(name, phase, generation=1)["message"])
        stage.until(name, "Succeeded", generation=2, role="Leader")
        assert len(stage.runs(name)) == 2


def test_a_running_generation_ends_first_and_is_not_stopped(stage: Stage) -> None:
    """The object still shows the run and says what follows; two texts meanwhile give one further generation, with the last text."""
    done = threading.Event()
    stage.play("busy", Script(code=held(done)), attempt="g1-*")
    stage.send("busy", "busy")
    stage.until("busy", "Running")
    for text in ("first thought", "second thought"):
        annotate(stage, "busy", text)
    assert_eventually(lambda: "the next generation follows its end" in stage.status("busy").get("message", ""), IN_TIME)
    assert stage.status("busy")["role"] == "Leader"
    assert not stage.runs("busy")[0].stop.is_set()
    done.set()
    stage.until("busy", "Succeeded", generation=2)
    stage.settled("busy")
    assert stage.attempts("busy") == ["g1-a1", "g2-a1"]
    assert ["second thought" in why for why in history(stage, "busy")] == [True]


def test_a_job_with_the_text_waits_for_another_one_of_its_key(stage: Stage) -> None:
    """It waits for the other job's end and, if that is held, for a person to run the command that the message prints."""
    done = threading.Event()
    stage.play("other", Script(code=held(done)), attempt="g1-*")
    stage.send("one", "other", "a")
    stage.until("one", "Running")
    body = stage.job("two", "other", "b")
    body["metadata"]["annotations"] = {ANNOTATION: "the better one"}
    stage.apply(body)
    assert_eventually(lambda: "ends first" in stage.status("two").get("message", ""), IN_TIME)
    assert stage.status("two")["phase"] == "Pending"
    name = stage.applications("other")[0]["metadata"]["name"]
    for pod in stage.pods(name):
        stage.cluster.api.delete(PODS, pod, stage.namespace)
    stage.cluster.api.delete(SPARK_APPLICATIONS, name, stage.namespace)
    stage.until("one", "Held")
    message = assert_eventually(lambda: _has(stage.status("two")["message"], "held"), IN_TIME)
    assert (
        f"kubectl sparkonce resolve -n {stage.namespace} other --reason TEXT --succeeded | --failed | --retry"
        in message
    )
    resolved = stage.cli("keys", "resolve", "other", "--failed", "--reason", "it was deleted", "--yes")
    assert resolved.returncode == 0, resolved.stderr
    stage.until("two", "Succeeded", generation=2, role="Leader")
    stage.settled("one", "two")
    assert stage.attempts("other")[-1] == "g2-a1"
    done.set()


def _has(text: str, word: str) -> str:
    assert word in text, text
    return text


def test_a_text_that_cannot_be_shown_opens_nothing_and_is_named(stage: Stage) -> None:
    """Status and event name the character by its number and do not contain the text; with a text as the sentence asks, the job runs."""
    stage.send("bad", "bad")
    stage.until("bad", "Succeeded")
    annotate(stage, "bad", "red\u001b[31m")
    assert "U+001B; write it without" in stage.until_event("bad", "RerunRefused")
    assert_eventually(lambda: "U+001B" in stage.status("bad")["message"], IN_TIME)
    stage.settled("bad")
    assert stage.status("bad")["phase"] == "Succeeded"
    assert "\u001b" not in json.dumps(stage.status("bad"), ensure_ascii=False)
    assert len(stage.runs("bad")) == 1
    body = stage.job("bad-at-first", "bad-at-first")
    body["metadata"]["annotations"] = {ANNOTATION: "x" * 257}
    stage.apply(body)
    assert "write at most 256" in stage.until("bad-at-first", "Failed")["message"]
    annotate(stage, "bad", "red")
    annotate(stage, "bad-at-first", "x" * 256)
    stage.until("bad", "Succeeded", generation=2)
    stage.until("bad-at-first", "Succeeded", generation=1)
    assert "U+001B" not in stage.status("bad")["message"]


def test_copies_of_one_manifest_run_once_more_together(stage: Stage) -> None:
    """Ten objects of one key that get the same text at once open one generation."""
    names = stage.flood("copies", clients=2, names=5, times=1)
    stage.until_all("copies", "Succeeded")
    threads = [threading.Thread(target=annotate, args=(stage, name, "all of them")) for name in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert_eventually(lambda: {each.get("generation") for each in stage.statuses("copies").values()} == {2}, IN_TIME)
    stage.until_all("copies", "Succeeded")
    stage.settled(*names)
    assert stage.attempts("copies") == ["g1-a1", "g2-a1"]


@pytest.mark.operator
def test_an_edit_of_on_mismatch_asks_again(stage: Stage) -> None:
    """A mismatch whose onMismatch becomes Supersede takes the key once; other edits are no request. With RejectAlways it stays a mismatch
    even of a job that never ran, until that field is edited, too."""
    stage.send("mine", "taken", "a")
    stage.until("mine", "Succeeded")
    stage.send("theirs", "taken", "b")
    assert stage.until("theirs", "Mismatch")["onMismatch"] == "Reject"
    stage.edit("theirs", retention={"failed": "9d"})
    stage.settled("theirs")
    assert stage.attempts("taken") == ["g1-a1"]
    stage.edit("theirs", onMismatch="Supersede")
    stage.until("theirs", "Succeeded", generation=2, role="Leader")
    stage.settled("mine", "theirs")
    assert arguments(stage, "taken") == {"g1-a1": ["a"], "g2-a1": ["b"]}

    stage.play("strict", Script(pending_seconds=600.0, pending_reason="InvalidImageName"), attempt="g1-*")
    stage.send("strict", "strict", "a", retry={"submissionRetries": 0}, onMismatch="RejectAlways")
    stage.until("strict", "Failed")
    stage.arguments("strict", "b")
    assert stage.until("strict", "Mismatch")["onMismatch"] == "RejectAlways"
    stage.edit("strict", onMismatch="Reject")
    stage.until("strict", "Succeeded", generation=2)
    stage.edit("strict", onMismatch="RejectAlways")
    stage.settled("strict")
    assert [each for each in arguments(stage, "strict") if each.startswith(("g2", "g3"))] == ["g2-a1"]


@pytest.mark.parametrize("place", ["replica.reserve.before", "replica.reserve.after", "store.etcd.request.after"])
def test_an_operator_that_dies_while_it_opens_opens_one(
    cluster: Cluster, ledger_server: Etcd, tmp_path: Path, place: str
) -> None:
    """Killed before its write, after it, or before it had the reply: another operator finds one request and one generation."""
    with staged(cluster, ledger_server, tmp_path, sweep=SWEEP) as stage:
        stage.send("dies", "dies", "a")
        stage.until("dies", "Succeeded")
        [first] = stage.operators
        first.kill()
        stage.arguments("dies", "b")
        annotate(stage, "dies", "the operator dies")
        armed = OperatorProcess(
            first.ledger,
            first.install,
            first.kubeconfig,
            first.namespaces,
            tmp_path,
            name="armed",
            sweep_seconds=SWEEP,
            environment={"SPARKONCE_FAILPOINTS": f"{place}={'6*off->' if 'request' in place else ''}1*kill"},
        ).start(wait=False)
        assert armed.process is not None
        process = armed.process
        assert_eventually(lambda: process.poll() is not None, IN_TIME)
        first.start()
        stage.until("dies", "Succeeded", generation=2, role="Leader")
        stage.settled("dies")
        assert arguments(stage, "dies") == {"g1-a1": ["a"], "g2-a1": ["b"]}
        assert len(history(stage, "dies")) == 1


def test_an_operator_that_froze_before_its_write_opens_nothing_later(
    cluster: Cluster, ledger_server: Etcd, tmp_path: Path
) -> None:
    """It has read the object and is about to write when another operator opens generation 2 for the text and generation 3 for the next one.
    When it continues, its request is outdated and opens nothing."""
    with staged(cluster, ledger_server, tmp_path, sweep=SWEEP) as stage:
        stage.send("froze", "froze", "a")
        stage.until("froze", "Succeeded")
        [steady] = stage.operators
        steady.kill()
        annotate(stage, "froze", "first")
        environment = {"SPARKONCE_FAILPOINTS": "replica.reserve.before=1*stop"}
        armed = replace(steady, name="armed", environment=environment, process=None).start(wait=False)
        try:
            assert_eventually(lambda: frozen(armed.pid), IN_TIME)
            steady.start()
            stage.until("froze", "Succeeded", generation=2)
            annotate(stage, "froze", "second")
            stage.until("froze", "Succeeded", generation=3)
            armed.thaw()
            armed.wait_ready()
            stage.settled("froze")
        finally:
            armed.end()
        assert stage.attempts("froze") == ["g1-a1", "g2-a1", "g3-a1"]
        assert len(history(stage, "froze")) == 2


@pytest.fixture
def plugin(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs `kubectl sparkonce rerun` in this process, with the real kubectl on PATH. Returns the exit code and the output."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").write_text(f'#!/bin/sh\nexec {shlex.join(find("kubectl"))} "$@"\n')
    (programs / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    reach = ["--kubeconfig", str(stage.cluster.kubeconfig), "-n", stage.namespace]

    def say(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            sys.exit(command_line(hoisted(["rerun", *arguments, *reach]), commands=app, name=NAME))
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return say


def test_the_plugin_runs_what_the_file_says(
    stage: Stage, tmp_path: Path, plugin: Callable[..., tuple[int, str]]
) -> None:
    """The file is applied with the reason as annotation, and the changed job runs. The same command again opens nothing, nor does the plain
    file when kubectl applies it afterwards; another reason runs the job once more."""
    file = tmp_path / "job.json"
    stage.send("from-file", "from-file", "a")
    stage.until("from-file", "Succeeded")
    file.write_text(json.dumps(stage.job("from-file", "from-file", "b")))
    refused = stage.cli("rerun", "-f", str(file))
    assert refused.returncode == ExitCode.INVALID
    printed = refused.stderr[refused.stderr.index("kubectl sparkonce rerun") :].split("`")[0].split()[3:]
    words = [{"FILE": str(file), "TEXT": 'the "b" was forgotten'}.get(word, word) for word in printed]
    for _ in range(2):
        code, said = plugin(*words)
        assert code == ExitCode.SUCCEEDED and 'asked: "the \\"b\\" was forgotten"' in said, said
        stage.until("from-file", "Succeeded", generation=2)
        stage.settled("from-file")
    plain = ["kubectl", "--kubeconfig", str(stage.cluster.kubeconfig), "-n", stage.namespace, "apply", "-f", str(file)]
    assert completed(plain, 60).returncode == 0
    stage.settled("from-file")
    found = stage.object("from-file")
    assert found is not None and ANNOTATION not in (found["metadata"].get("annotations") or {})
    assert arguments(stage, "from-file") == {"g1-a1": ["a"], "g2-a1": ["b"]}
    assert plugin("-f", str(file), "--reason", "and once more")[0] == ExitCode.SUCCEEDED
    stage.until("from-file", "Succeeded", generation=3)
    assert ['the \\"b\\" was forgotten' in why or "and once more" in why for why in history(stage, "from-file")] == [
        True
    ] * 2


def test_the_command_in_the_message_on_an_error_of_the_script(
    stage: Stage, tmp_path: Path, plugin: Callable[..., tuple[int, str]]
) -> None:
    """The error ends each generation after one attempt. The command in its message runs the same file again, once what it misses may exist,
    then with the error in `retryOn`, and the changed one: one generation each."""

    def rerun(key: str, generation: int, phase: str, *arguments: str, **retry: Any) -> Json:
        message = stage.status(key)["result"]["failure"]["message"]
        assert message.split("`")[1] == "kubectl sparkonce rerun -f FILE --reason TEXT"
        file = tmp_path / f"{key}.json"
        file.write_text(json.dumps(stage.job(key, key, *arguments, outputs=rows(tmp_path / key), retry=retry)))
        words = {"FILE": str(file), "TEXT": f"for generation {generation}"}
        code, said = plugin(*(words.get(word, word) for word in message.split("`")[1].split()[3:]))
        assert code == ExitCode.SUCCEEDED, said
        return stage.until(key, phase, generation=generation)

    with served_logs(stage.cluster) as logs:
        logs.text = (LOGS / "path.txt").read_text()
        for key in ("corrected", "repeated"):
            stage.play(key, Script(exit_code=1))
            stage.send(key, key, "a", outputs=rows(tmp_path / key))
            stage.until(key, "Failed", generation=1)
        rerun("corrected", 2, "Failed", "a")
        stage.play("corrected", Script(code=writes_outputs(7)))
        rerun("corrected", 3, "Succeeded", "b")
        assert stage.attempts("corrected") == ["g1-a1", "g2-a1", "g3-a1"]
        assert rows_of(tmp_path / "corrected") == {7: 1}
        status = rerun("repeated", 2, "Failed", "a", retryOn=["PATH_NOT_FOUND"])
        assert status["result"]["failure"]["class"] == "Exited"
        assert stage.attempts("repeated") == ["g1-a1", "g2-a1", "g2-a2", "g2-a3"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-f", "FILE"), "--reason TEXT is required"),
        (("-f", "FILE", "--reason", "red\u001b[31m"), "U+001B; write it without"),
        (("-f", "FILE", "--reason", "x" * 257), "write at most 256"),
        (("-f", "FILE", "--reason", "x", "--generation", "1"), "--generation and --json go with a key"),
        (("-f", "no-such-file.yaml", "--reason", "x"), "does not exist"),
        (("KEY", "-f", "FILE"), "either by its key or by its file"),
        ((), "either by its key or by its file"),
    ],
)
def test_what_the_plugin_refuses_is_not_applied(
    stage: Stage, tmp_path: Path, plugin: Callable[..., tuple[int, str]], words: tuple[str, ...], why: str
) -> None:
    """Exit code 2 with one sentence, and no object is created."""
    file = tmp_path / "job.json"
    file.write_text(json.dumps(stage.job("refused", "refused")))
    code, said = plugin(*(str(file) if word == "FILE" else word for word in words))
    assert code == ExitCode.INVALID
    assert why in said and "\u001b" not in said
    assert stage.object("refused") is None
