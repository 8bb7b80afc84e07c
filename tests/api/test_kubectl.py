"""`kubectl sparkonce` at a real gateway, behind a real API server that knows the tokens; a stand-in plays kubectl's port-forward.

There is no kubelet in this tier, so nothing could forward a port or hand out a log: the stand-in forwards to where the gateway listens,
prints what kubectl prints, and notes what it was asked for.
"""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from harness.apiserver import ADMIN, STRANGER, Cluster
from harness.child import alive
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.gateways import Attempt, Attempts, GatewayProcess, a_gateway, may
from harness.kube_api import Json
from sparkonce.blocking import run
from sparkonce.cli.app import main as command_line
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.kubectl import NAME, app, hoisted
from sparkonce.cli.kubectl_logs import driver_of
from sparkonce.engine.telling import identity
from sparkonce.launch.kubernetes import Resource
from sparkonce.model.record import HeldReason, Outcome, Settling, State, Why
from sparkonce.model.result import Failure, Result
from sparkonce.store.protocol import Finalized, Updated

SERVICES = Resource("", "v1", "services", "Service")
SERVICE: Json = {
    "metadata": {"name": "so-gateway", "labels": {"app.kubernetes.io/component": "gateway"}},
    "spec": {"ports": [{"name": "http", "port": 8080}]},
}
KUBECTL = """#!{python}
import os, pathlib, socket, sys, time

asked = sys.argv[1:]
with pathlib.Path({asked!r}).open("a") as told:
    print(os.getpid(), *asked, file=told, flush=True)
if "port-forward" in asked:
    if {broken!r}:
        sys.exit({broken!r})
    print("Forwarding from 127.0.0.1:{port} -> 8080", flush=True)
    time.sleep(600)  # a port-forward stays until it is ended
log = pathlib.Path({log!r})
if not log.exists():
    sys.exit("Error from server (NotFound): no such pod")
print(log.read_text(), end="")
"""


@pytest.fixture(scope="module")
def shared(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with a_gateway(f"http://{ledger_server.one.address}", "kubectl", cluster.kubeconfig, folder) as process:
        yield process


@pytest.fixture
def attempts(cluster: Cluster, namespace: str, ledger: str, shared: GatewayProcess) -> Iterator[Attempts]:
    made = Attempts(cluster, namespace, ledger, shared.install, shared.url)
    yield made
    made.close()


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def told(self) -> Any:
        return json.loads(self.out)


class Desk:
    """Somebody with a kubeconfig, kubectl and the plugin."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        gateway: GatewayProcess,
        folder: Path,
        capture: pytest.CaptureFixture[str],
    ) -> None:
        self._capture = capture
        self.cluster, self.namespace, self.gateway, self.folder = cluster, namespace, gateway, folder
        self.log, self.asked = folder / "driver.log", folder / "asked"
        self.asked.touch()
        self.kubectl()
        cluster.api.create(SERVICES, SERVICE, namespace)

    def kubectl(self, *, broken: str = "") -> None:
        path = self.folder / "kubectl"
        fields = {"python": sys.executable, "asked": str(self.asked), "log": str(self.log), "port": self.gateway.port}
        path.write_text(KUBECTL.format(**fields, broken=broken))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def arguments(self, *arguments: str, kubeconfig: Path | None = None) -> list[str]:
        where = ["-n", self.namespace, "--gateway-namespace", self.namespace]
        return [*where, "--kubeconfig", str(kubeconfig or self.cluster.kubeconfig), *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A process of its own, for what only processes show."""
        command = [sys.executable, "-c", "from sparkonce.cli.kubectl import main; main()", *self.arguments(*arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def say(self, *arguments: str, kubeconfig: Path | None = None) -> Said:
        """The command line inside this process, and what it wrote, kubectl's output included."""
        self._capture.readouterr()
        asked = hoisted(self.arguments(*arguments, kubeconfig=kubeconfig))
        code = command_line(asked, commands=app, name=NAME)
        out, err = self._capture.readouterr()
        return Said(code, out, err)

    def children(self) -> list[int]:
        return [int(line.split()[0]) for line in self.asked.read_text().splitlines()]


@pytest.fixture
def desk(
    *,
    cluster: Cluster,
    namespace: str,
    shared: GatewayProcess,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Desk:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return Desk(cluster, namespace, shared, tmp_path, capfd)


def finish(attempt: Attempt, outcome: Outcome = Outcome.SUCCEEDED, failure: Failure | None = None) -> None:
    now = run(attempt.store.load(attempt.record.address)).record
    assert now is not None
    result = Result(
        generation=now.generation,
        outcome=outcome,
        evidence="a test",
        attempts=1,
        started_at=1.0,
        finished_at=2.0,
        failure=failure,
    )
    done = run(attempt.store.finalize(now, attempt.claim, result, retention=3600.0))
    assert isinstance(done, Finalized)
    attempt.record = done.record


def hold(attempt: Attempt) -> None:
    now = run(attempt.store.load(attempt.record.address)).record
    assert now is not None
    settling = Settling(attempt=1, why=Why.LOST, note="it vanished")
    held = now.changed(state=State.HELD, held=HeldReason.UNKNOWN, note="nobody can tell", settling=settling)
    done = run(attempt.store.update(now, attempt.claim, held))
    assert isinstance(done, Updated)


def test_what_is_read(desk: Desk, attempts: Attempts) -> None:
    """list, show, history and explain answer in the words of `sparkonce keys`, and `--json` as the gateway does."""
    finish(attempts.granted("a/done"))
    hold(attempts.granted("held"))
    listed = desk.say("list")
    assert listed.code == 0, listed.err
    assert listed.out.split("\n")[0].split() == ["KEY", "HASH", "GENERATION", "PHASE", "AGE", "EXPIRES"]
    assert sorted(line.split()[0] for line in listed.out.splitlines()[1:]) == ["a/done", "held"]
    assert [each["key"] for each in desk.say("list", "--phase", "Held", "--json").told["keys"]] == ["held"]
    shown = desk.say("show", "a/done")
    assert "Succeeded" in shown.out
    assert desk.say("show", "a/done", "--json").told["phase"] == "Succeeded"
    assert "Reserved" in desk.say("history", "held").out
    why = desk.say("explain", "held")
    assert "a person" in why.out
    assert "kubectl sparkonce resolve held" in why.out


def test_what_is_decided(desk: Desk, attempts: Attempts) -> None:
    """rerun opens the next generation, cancel asks, resolve settles a held key, forget removes a finished one; each only when meant."""
    finish(attempts.granted("done"))
    again = desk.say("rerun", "done")
    assert (again.code, "done, generation 2, attempt 1" in again.out) == (0, True), again.err
    same = desk.say("rerun", "done", "--generation", "1", "--json")
    assert (same.code, same.told["generation"]) == (0, 2)
    attempts.granted("runs")
    asked = desk.say("cancel", "runs", "--reason", "no more")
    assert (asked.code, "it is asked to stop" in asked.out) == (0, True), asked.err
    hold(attempts.granted("held", outputs=[]))
    unmeant = desk.say("resolve", "held", "--failed", "--reason", "r")
    assert (unmeant.code, "add --yes" in unmeant.err) == (ExitCode.INVALID, True)
    resolved = desk.say("resolve", "held", "--failed", "--reason", "r", "--yes")
    assert (resolved.code, resolved.out.splitlines()[0].startswith("failed: held")) == (0, True), resolved.err
    gone = desk.say("forget", "held", "--reason", "r", "--yes")
    assert (gone.code, "forgotten: held" in gone.out) == (0, True), gone.err
    assert desk.say("show", "held").code == ExitCode.INVALID


def test_the_gateway_decides_who_may(desk: Desk, attempts: Attempts, cluster: Cluster) -> None:
    """The token of the kubeconfig is what the gateway hears: who may read may not decide, who is nobody sees nothing."""
    finish(attempts.granted("done"))
    stranger = cluster.kubeconfig_for(cluster.url, token=STRANGER)
    refused = desk.say("list", "--gateway-url", desk.gateway.url, kubeconfig=stranger)
    assert (refused.code, refused.out) == (ExitCode.INVALID, "")
    assert "stranger may not list idempotentjobs" in refused.err
    may(cluster, desk.namespace, "stranger", verbs=["get", "list"], resources=["idempotentjobs"])
    seen = desk.say("list", "--gateway-url", desk.gateway.url, kubeconfig=stranger)
    assert (seen.code, "done" in seen.out) == (0, True)
    forget = desk.say("forget", "done", "--reason", "r", "-y", "--gateway-url", desk.gateway.url, kubeconfig=stranger)
    assert "stranger may not update idempotentjobs/forget" in forget.err
    unseen = desk.say("list", kubeconfig=stranger)
    assert (unseen.code, "name it with --gateway-namespace and --service" in unseen.err) == (ExitCode.INVALID, True)


def test_a_log_that_is_there_and_one_that_is_kept(desk: Desk, attempts: Attempts) -> None:
    """Of a running attempt kubectl reads its driver pod; when that is gone, the end of the log in the result is printed."""
    attempt = attempts.granted("logged")
    desk.log.write_text("line 1\nline 2\n")
    said = desk.say("logs", "logged")
    assert (said.code, said.out) == (0, "line 1\nline 2\n"), said.err
    pod = driver_of(identity(attempt.record), desk.namespace)
    assert f"logs -n {desk.namespace} {pod} -c spark-kubernetes-driver" in desk.asked.read_text()
    desk.log.unlink()
    lost = desk.say("logs", "logged")
    assert (lost.code, "its driver's log cannot be read" in lost.err) == (ExitCode.INVALID, True)
    failure = Failure(class_="DriverFailed", message="exit code 1", log_tail="Traceback\nValueError: no rows\n")
    finish(attempt, Outcome.FAILED, failure)
    kept = desk.say("logs", "-f", "logged")
    assert (kept.code, "ValueError: no rows" in kept.out) == (0, True), kept.err


def test_following_ends_with_the_key(desk: Desk, attempts: Attempts) -> None:
    """`logs -f` waits for a driver that is still to come, prints its log once, and ends when the key has its result."""
    attempt = attempts.granted("followed")
    process = desk.start("logs", "-f", "followed")
    try:
        assert_eventually(lambda: " logs -f " in f" {desk.asked.read_text()}", 30)
        desk.log.write_text("it runs\n")
        looked = len(desk.children())
        assert_eventually(lambda: len(desk.children()) > looked, 30)
        finish(attempt)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait(30)
    assert (process.returncode, out) == (0, "it runs\n"), err
    assert "followed, generation 1: Succeeded" in err


def test_no_port_forward_stays(desk: Desk, attempts: Attempts) -> None:
    """After an answer, a refusal and a SIGTERM alike, the child that forwarded is gone."""
    attempts.granted("k")
    assert desk.say("show", "k").code == 0
    assert desk.say("show", "other").code == ExitCode.INVALID
    process = desk.start("logs", "-f", "k")
    try:
        assert_eventually(lambda: "logs -f" in desk.asked.read_text(), 30)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert len(desk.children()) >= 3
    assert_eventually(lambda: not any(alive(pid) for pid in desk.children()), 10)


def without_token(cluster: Cluster) -> Path:
    path = cluster.kubeconfig_for(cluster.url)
    document: Json = json.loads(path.read_text())
    document["users"][0]["user"] = {"username": "u", "password": "p"}
    path.write_text(json.dumps(document))
    return path


def with_credential_program(cluster: Cluster, folder: Path) -> Path:
    said = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": ADMIN},
    }
    (folder / "credential.json").write_text(json.dumps(said))
    path = cluster.kubeconfig_for(cluster.url)
    document: Json = json.loads(path.read_text())
    program = {"apiVersion": said["apiVersion"], "command": "cat", "args": [str(folder / "credential.json")]}
    document["users"][0]["user"] = {"exec": {**program, "interactiveMode": "Never"}}
    document["contexts"].append({"name": "other", "context": {"cluster": "tests", "user": "nobody"}})
    document["users"].append({"name": "nobody", "user": {"username": "u", "password": "p"}})
    path.write_text(json.dumps(document))
    return path


def test_whose_token_it_is(desk: Desk, attempts: Attempts, tmp_path: Path) -> None:
    """A credential program's token is as good as one in the file, of the context that is named; without any, it is said what to do."""
    attempts.granted("k")
    program = with_credential_program(desk.cluster, tmp_path)
    said = desk.say("list", kubeconfig=program)
    assert (said.code, "k" in said.out) == (0, True), said.err
    for said in (
        desk.say("list", "--context", "other", kubeconfig=program),
        desk.say("list", kubeconfig=without_token(desk.cluster)),
    ):
        assert (said.code, "kubectl create token" in said.err) == (ExitCode.INVALID, True), said
        assert len(said.err.splitlines()) == 1


def test_what_goes_wrong_is_one_sentence(desk: Desk, cluster: Cluster) -> None:
    """No gateway, several, a port-forward that fails, nobody behind the address, plain HTTP to elsewhere: each says what to do."""
    cases = {
        "name it with --gateway-namespace and --service": desk.say("list", "--service", "other"),
        "would send your token in plain text": desk.say("list", "--gateway-url", "http://gateway.example:80"),
        "does not answer": desk.say("list", "--gateway-url", "http://127.0.0.1:1"),
    }
    desk.kubectl(broken="error: unable to forward port because pod is not running")
    cases["no port-forward to"] = desk.say("list")
    cluster.api.create(SERVICES, {**SERVICE, "metadata": {**SERVICE["metadata"], "name": "second"}}, desk.namespace)
    cases["there are several gateways"] = desk.say("list")
    for told, said in cases.items():
        assert told in said.err, said
        assert (len(said.err.splitlines()), said.out) == (1, ""), said
        assert said.code in (ExitCode.INVALID, ExitCode.UNAVAILABLE)


def test_whose_certificate_is_accepted(desk: Desk, ledger_server: Etcd, tmp_path: Path) -> None:
    """At a URL always one that is vouched for; through a port-forward that of the Service's name when --gateway-ca says who signs."""
    certificates = desk.cluster.certificates
    ledger, kubeconfig = f"http://{ledger_server.one.address}", desk.cluster.kubeconfig
    trusted = ("--gateway-ca", str(certificates.ca))
    (tmp_path / "other.crt").write_bytes(trustme.CA().cert_pem.bytes())
    named = (
        "--gateway-namespace",
        "default",
        "--service",
        "kubernetes",
    )  # its certificate is for kubernetes.default.svc
    with a_gateway(ledger, "kubectl-tls", kubeconfig, tmp_path, certificates=certificates) as gateway:
        desk.gateway = gateway
        desk.kubectl()
        for options in ((*named, *trusted), named, ("--gateway-url", gateway.url, *trusted)):
            said = desk.say("list", *options)
            assert (said.code, said.out) == (0, f"no keys in namespace {desk.namespace}\n"), said.err
        others: Sequence[str] = ("--gateway-ca", str(tmp_path / "other.crt"))
        wrong: Sequence[Sequence[str]] = (
            (*named, *others),
            ("--gateway-url", gateway.url),
            ("--gateway-url", gateway.url, *others),
        )
        for refused in wrong:
            said = desk.say("list", *refused)
            assert (said.code, said.out, "does not answer" in said.err) == (ExitCode.UNAVAILABLE, "", True), said
