"""`kubectl sparkonce` against a real gateway behind a real API server that issued the tokens; a fake replaces kubectl's port-forward.

This tier has no kubelet that could forward a port or return a log: the fake forwards to the gateway's address, prints what kubectl prints,
and records its arguments.
"""

from __future__ import annotations

import http.server
import io
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from harness.apiserver import ADMIN, STRANGER, Cluster
from harness.binaries import find
from harness.child import alive
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.gateways import ROLE_BINDINGS, ROLES, Attempt, Attempts, GatewayProcess, a_gateway, finish, may
from harness.kube_api import SERVICE_ACCOUNTS, Json
from harness.patience import completed, output_of, until_ended
from sparkonce.attempt.decide import held_remedy
from sparkonce.attempt.request import for_kubectl
from sparkonce.blocking import run
from sparkonce.cli.app import main as command_line
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.kubectl.app import NAME, app, hoisted
from sparkonce.cli.kubectl.gateway import GatewayClient, GatewayRefused, driver_of
from sparkonce.cli.kubectl.release import ACCOUNT
from sparkonce.commands.describe import identity
from sparkonce.launch.kubernetes import Resource
from sparkonce.model.record import Failure, HeldReason, Outcome, Settling, State, Why, gateway_audience
from sparkonce.store.protocol import Updated

RESOURCES = ["idempotentjobs", *(f"idempotentjobs/{verb}" for verb in ("rerun", "cancel", "resolve", "forget"))]
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
    """A user with a kubeconfig, kubectl and the plugin."""

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
        self.told(gateway)
        self.account(ACCOUNT, verbs=["get", "list", "update"], resources=RESOURCES)

    def told(self, gateway: GatewayProcess, **more: str) -> None:
        """Writes the ConfigMap in which the chart describes the gateway, in the release's namespace; here in the test's."""
        url = f"{gateway.url.partition(':')[0]}://localhost:8080"
        data = {"url": url, "audience": gateway_audience(gateway.install), **more}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": SERVICE["metadata"]["name"]},
            "data": data,
        }
        self.cluster.api.apply(body, self.namespace)

    def account(self, name: str, *, verbs: Sequence[str], resources: Sequence[str]) -> None:
        """A service account with these rights."""
        self.cluster.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, self.namespace)
        user = f"system:serviceaccount:{self.namespace}:{name}"
        may(self.cluster, self.namespace, user, verbs=verbs, resources=resources)

    def kubectl(self, *, broken: str = "") -> None:
        path = self.folder / "kubectl"
        fields = {"python": sys.executable, "asked": str(self.asked), "log": str(self.log), "port": self.gateway.port}
        path.write_text(KUBECTL.format(**fields, broken=broken))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def arguments(self, *arguments: str, kubeconfig: Path | None = None) -> list[str]:
        where = ["-n", self.namespace, "--gateway-namespace", self.namespace]
        return [*where, "--kubeconfig", str(kubeconfig or self.cluster.kubeconfig), *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts a process of its own, for tests of signals and children."""
        command = [
            sys.executable,
            "-c",
            "from sparkonce.cli.kubectl.app import main; main()",
            *self.arguments(*arguments),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def say(self, *arguments: str, kubeconfig: Path | None = None) -> Said:
        """Runs the command line in this process. Returns its output, including kubectl's."""
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


def hold(attempt: Attempt) -> None:
    now = run(attempt.store.load(attempt.record.address)).record
    assert now is not None
    settling = Settling(attempt=1, why=Why.LOST, note="it vanished")
    held = now.changed(state=State.HELD, held=HeldReason.UNKNOWN, note="nobody can tell", settling=settling)
    done = run(attempt.store.update(now, attempt.claim, held))
    assert isinstance(done, Updated)


@pytest.mark.operator
def test_what_is_read(desk: Desk, attempts: Attempts) -> None:
    """list, show, history and explain answer in the words of `sparkonce keys`, and with `--json` like the gateway."""
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
    """rerun opens the next generation, cancel requests a stop, resolve settles a held key, and forget removes a finished one; resolve and
    forget need --yes."""
    finish(attempts.granted("done"))
    again = desk.say("rerun", "done", "--reason", "the source was wrong")
    assert (again.code, "done, generation 2, attempt 1" in again.out) == (0, True), again.err
    same = desk.say("rerun", "done", "--generation", "1", "--json")
    assert (same.code, same.told["generation"]) == (0, 2)
    why = desk.say("explain", "done").out
    assert "opened again" in why
    assert "the source was wrong" in why
    attempts.granted("runs")
    asked = desk.say("cancel", "runs", "--reason", "no more")
    assert (asked.code, "it is asked to stop" in asked.out) == (0, True), asked.err
    hold(attempts.granted("held", outputs=[]))
    printed = for_kubectl(held_remedy("held", "--failed"), attempts.namespace)  # as the object's status has it
    command = printed.replace("TEXT", "r").split()[2:]
    unmeant = desk.say(*command)
    assert (unmeant.code, "add --yes" in unmeant.err) == (ExitCode.INVALID, True)
    resolved = desk.say(*command, "--yes")
    assert (resolved.code, resolved.out.splitlines()[0].startswith("failed: held")) == (0, True), resolved.err
    gone = desk.say("forget", "held", "--reason", "r", "--yes")
    assert (gone.code, "forgotten: held" in gone.out) == (0, True), gone.err
    assert desk.say("show", "held").code == ExitCode.INVALID


def test_the_gateway_decides_who_may(desk: Desk, attempts: Attempts) -> None:
    """The gateway authorizes the named service account: one that may read may not decide, and one without rights sees nothing."""
    finish(attempts.granted("done"))
    desk.account("reader", verbs=["get", "list"], resources=["idempotentjobs"])
    desk.account("nobody", verbs=["get"], resources=["other"])
    refused = desk.say("list", "--service-account", "nobody")
    assert (refused.code, refused.out) == (ExitCode.INVALID, "")
    assert f"system:serviceaccount:{desk.namespace}:nobody may not list idempotentjobs" in refused.err
    seen = desk.say("list", "--service-account", f"{desk.namespace}/reader")
    assert (seen.code, "done" in seen.out) == (0, True)
    forget = desk.say("forget", "done", "--reason", "r", "-y", "--service-account", "reader")
    assert "reader may not update idempotentjobs/forget" in forget.err


VERBS = {
    "show": (),
    "history": (),
    "explain": (),
    "logs": (),
    "rerun": (),
    "cancel": (),
    "resolve": ("--failed", "--reason", "r", "-y"),
    "forget": ("--reason", "r", "-y"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_key_that_is_not_there(desk: Desk, attempts: Attempts, verb: str) -> None:
    """Each command says so in a sentence that names a command of the plugin, and that command lists the keys."""
    attempts.granted("k")
    refused = desk.say(verb, "other", *VERBS[verb])
    assert (refused.code, refused.out) == (ExitCode.INVALID, "")
    assert len(refused.err.splitlines()) == 1
    assert "/v1/" not in refused.err
    [remedy] = re.findall(r"`kubectl sparkonce (.*?)`", refused.err)
    listed = desk.say(*shlex.split(remedy))
    assert (listed.code, "k" in listed.out) == (0, True), listed.err


def test_an_older_gateway_names_a_request() -> None:
    """The plugin replaces the request in the gateway's sentence by its own command."""
    detail = "there is no such key in namespace team-a; GET /v1/namespaces/team-a/keys lists them"

    class Old(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"status": 404, "detail": detail}).encode()
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http.server.HTTPServer(("127.0.0.1", 0), Old) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = GatewayClient(url=f"http://127.0.0.1:{server.server_port}", token=lambda: "t", namespace="team-a")
        with pytest.raises(GatewayRefused) as refused:
            client.get("other")
        server.shutdown()
    told = "there is no such key in namespace team-a; `kubectl sparkonce list -n team-a` lists them"
    assert str(refused.value) == told


def test_a_log_that_is_there_and_one_that_is_kept(desk: Desk, attempts: Attempts) -> None:
    """For a running attempt kubectl reads the driver pod's log; once that is gone, the part that the result kept is printed. Below the log
    of a failed driver one line gives the cause."""
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
    desk.log.write_text("line 1\n")
    for options in ((), ("-f",)):
        there = desk.say("logs", *options, "logged")
        assert (there.code, there.out) == (0, "line 1\n")
        assert there.err.splitlines()[-1] == "logged: DriverFailed: exit code 1"


def test_following_ends_with_the_key(desk: Desk, attempts: Attempts) -> None:
    """`logs -f` waits for a driver that is not there yet, prints its log once, and ends when the key has its result."""
    attempt = attempts.granted("followed")
    process = desk.start("logs", "-f", "followed")
    try:
        assert_eventually(lambda: " logs -f " in f" {desk.asked.read_text()}", 30)
        desk.log.write_text("it runs\n")
        looked = len(desk.children())
        assert_eventually(lambda: len(desk.children()) > looked, 30)
        finish(attempt)
        out, err = output_of(process, 30)
    finally:
        process.kill()
        until_ended(process, 30)
    assert (process.returncode, out) == (0, "it runs\n"), err
    assert "followed, generation 1: Succeeded" in err


def test_no_port_forward_stays(desk: Desk, attempts: Attempts) -> None:
    """After an answer, a refusal or a SIGTERM the child that forwarded the port is gone."""
    attempts.granted("k")
    assert desk.say("show", "k").code == 0
    assert desk.say("show", "other").code == ExitCode.INVALID
    process = desk.start("logs", "-f", "k")
    try:
        assert_eventually(lambda: "logs -f" in desk.asked.read_text(), 30)
        process.send_signal(signal.SIGTERM)
        output_of(process, 30)
        assert process.returncode == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert len(desk.children()) >= 3
    assert_eventually(lambda: not any(alive(pid) for pid in desk.children()), 10)


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
    """However the user authenticates at the API server, the gateway gets a service account's token: the user's own account, if the user is
    one."""
    attempts.granted("k")
    program = with_credential_program(desk.cluster, tmp_path)
    said = desk.say("list", kubeconfig=program)
    assert (said.code, "k" in said.out) == (0, True), said.err
    desk.account("ann", verbs=["get", "list", "update"], resources=RESOURCES)
    user = f"system:serviceaccount:{desk.namespace}:ann"
    rule = {
        "apiGroups": [""],
        "resources": ["serviceaccounts/token", "services", "configmaps"],
        "verbs": ["create", "get", "list"],
    }
    desk.cluster.api.create(ROLES, {"metadata": {"name": "ann"}, "rules": [rule]}, desk.namespace)
    binding = {
        "metadata": {"name": "ann"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ann"},
        "subjects": [{"kind": "ServiceAccount", "name": "ann", "namespace": desk.namespace}],
    }
    desk.cluster.api.create(ROLE_BINDINGS, binding, desk.namespace)
    ann = desk.cluster.kubeconfig_for(desk.cluster.url, token=attempts.token(None, account="ann", audiences=()))
    cancelled = desk.say("cancel", "k", "--reason", "r", kubeconfig=ann)
    assert cancelled.code == 0, cancelled.err
    now = run(attempts.store.load(attempts.wanted("k").address)).record
    assert now is not None
    assert now.stop_wanted is not None
    assert now.stop_wanted.by == user


def test_a_missing_account_is_made_as_the_sentence_says(desk: Desk) -> None:
    """The command in the sentence, as kubectl runs it, makes the account that is missing: the next call succeeds."""
    desk.cluster.api.delete(SERVICE_ACCOUNTS, ACCOUNT, desk.namespace)
    said = desk.say("list")
    assert said.code == ExitCode.INVALID
    [words] = [shlex.split(each) for each in said.err.split("`") if each.startswith("kubectl ")]
    done = completed([*find("kubectl"), "--kubeconfig", str(desk.cluster.kubeconfig), *words[1:]], 60)
    assert done.returncode == 0, done.stderr
    assert desk.say("list").code == 0


def test_what_goes_wrong_is_one_sentence(desk: Desk, cluster: Cluster) -> None:
    """No gateway, several, a port-forward that fails, an address without a listener, plain HTTP to another host: each error says what to
    do."""
    cases = {
        "name another with --service": desk.say("list", "--service", "other"),
        "would send a token in plain text": desk.say("list", "--gateway-url", "http://gateway.example:80"),
        "does not answer": desk.say("list", "--gateway-url", "http://127.0.0.1:1"),
        "there is no service account": desk.say("list", "--service-account", "missing"),
        "write NAME or NAMESPACE/NAME": desk.say("list", "--service-account", "a/b/c"),
        "is not a gateway's audience": desk.say("list", "--gateway-url", desk.gateway.url, "--audience", "vault"),
    }
    stranger = cluster.kubeconfig_for(cluster.url, token=STRANGER)
    cases["no token for the gateway can be made"] = desk.say(
        "list", "--gateway-url", desk.gateway.url, "--audience", gateway_audience("kubectl"), kubeconfig=stranger
    )
    cases["cannot be read"] = desk.say("list", kubeconfig=stranger)
    desk.kubectl(broken="error: unable to forward port because pod is not running")
    cases["no port-forward to"] = desk.say("list")
    cluster.api.create(SERVICES, {**SERVICE, "metadata": {**SERVICE["metadata"], "name": "second"}}, desk.namespace)
    cases["there are several gateways"] = desk.say("list")
    for told, said in cases.items():
        assert told in said.err, said
        assert (len(said.err.splitlines()), said.out) == (1, ""), said
        assert said.code in (ExitCode.INVALID, ExitCode.UNAVAILABLE)


def test_whose_certificate_is_accepted(desk: Desk, ledger_server: Etcd, tmp_path: Path) -> None:
    """One by the release's CA for the gateway's own name is accepted, at a URL and through a port-forward; --gateway-ca names another
    CA."""
    certificates = desk.cluster.certificates
    ledger, kubeconfig = f"http://{ledger_server.one.address}", desk.cluster.kubeconfig
    (tmp_path / "other.crt").write_bytes(trustme.CA().cert_pem.bytes())
    ca, other = certificates.ca.read_text(), (tmp_path / "other.crt").read_text()
    named = ("--gateway-ca", str(certificates.ca))
    with a_gateway(ledger, "kubectl-tls", kubeconfig, tmp_path, certificates=certificates) as gateway:
        desk.gateway = gateway
        desk.kubectl()
        at = ("--gateway-url", gateway.url)
        for told, options in ((ca, ()), (other, named), (ca, at), (other, (*named, *at))):
            desk.told(gateway, **{"ca.crt": told})
            said = desk.say("list", *options)
            assert (said.code, said.out) == (0, f"no keys in namespace {desk.namespace}\n"), said.err
        wrong = ("--gateway-ca", str(tmp_path / "other.crt"))
        for told, options in ((other, ()), (ca, wrong), (other, at), (ca, (*wrong, *at))):
            desk.told(gateway, **{"ca.crt": told})
            refused = desk.say("list", *options)
            assert (refused.code, refused.out) == (ExitCode.INVALID, ""), refused
            assert "was sent nothing; name the CA that signs the gateway's with --gateway-ca" in refused.err
        desk.told(gateway, **{"ca.crt": ca, "url": "https://another-name:8080"})
        assert "is not valid for 'another-name'" in desk.say("list").err
