"""A team's people and nothing but the chart's rights: each command of the documented table, with real kubectl, operator and gateway.

Kubernetes' own roles `view` and `edit` are aggregated by its own controller from what the chart adds to them. The release has an address
outside the cluster, so that nobody needs a right in its namespace.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from harness.apiserver import EDITOR, LEAD, VIEWER, Cluster
from harness.binaries import component, find
from harness.child import Child, free_port
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.gateways import ROLE_BINDINGS, GatewayProcess
from harness.helm import rendered
from harness.kube_api import Json, path_of
from harness.kubeflow import Moment, Script
from harness.kubelet_logs import Logs, served_logs
from harness.patience import completed
from harness.plugin_rights import DocumentedCommand, documented_commands
from harness.stage import Stage, held, staged
from sparkonce.cli.app import main as command_line
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.kubectl.app import NAME, app, hoisted
from sparkonce.cli.kubectl.release import ACCOUNT, READER
from sparkonce.gateway.keys import RIGHTS
from sparkonce.kube.review import ACCESS_REVIEWS
from sparkonce.launch.kubernetes import NAMESPACES, Resource

CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
APPLIED = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ConfigMap", "Service")
VANISHES = Script(code=held(threading.Event()), vanishes=Moment.RUNNING)
"""Nobody can tell what this driver did: its key is held."""
COMMANDS = documented_commands()
EDITS = [each for each in COMMANDS if each.is_for("edit")]
READS = [each for each in COMMANDS if each.is_for("view")]
LEADS = [each for each in COMMANDS if not each.is_for("edit")]


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """What it refused with. Fails if it is anything but one line and exit code 2."""
        assert (self.code, self.out, len(self.err.splitlines())) == (ExitCode.INVALID, "", 1), self
        return self.err


@dataclass
class Team:
    """Two namespaces of teams on one release, and a person's terminal."""

    stage: Stage
    other: str
    release: str
    """The namespace of the release."""
    logs: Logs
    folder: Path
    capture: pytest.CaptureFixture[str] | None = None
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def own(self) -> str:
        return self.stage.namespace

    def kubeconfig(self, token: str) -> Path:
        if token not in self.files:
            self.files[token] = self.stage.cluster.kubeconfig_for(self.stage.cluster.url, token=token)
        return self.files[token]

    def kubectl(self, *words: str, token: str = EDITOR) -> subprocess.CompletedProcess[str]:
        where = ["--kubeconfig", str(self.kubeconfig(token)), "-n", self.own]
        return completed([*component("kubectl"), *where, *words], 60, stdin=subprocess.DEVNULL)

    def say(self, *words: str, token: str = EDITOR, namespace: str = "") -> Said:
        """`kubectl sparkonce`, in this process."""
        assert self.capture is not None
        self.capture.readouterr()
        reach = ["--kubeconfig", str(self.kubeconfig(token)), "-n", namespace or self.own]
        code = command_line(hoisted([*words, *reach]), commands=app, name=NAME)
        return Said(int(code), *self.capture.readouterr())

    def file(self, name: str, key: str, *arguments: str) -> str:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(self.stage.job(name, key, *arguments)))
        return str(path)

    def words(self, command: DocumentedCommand, key: str) -> list[str]:
        """A call of a documented command for this key, or for a file of this job."""
        options = {"resolve": ["--failed", "-y"], "forget": ["-y"]}
        file = self.file(key, key, "corrected") if command.by_file else ""
        filled = {"KEY": key, "TEXT": f"because {uuid.uuid4().hex[:6]}", "FILE": file}
        words = command.text.replace("[-f] ", "").split()
        return [filled.get(word, word) for word in words] + options.get(command.name, [])


def people(cluster: Cluster, namespace: str) -> None:
    """The editor has `edit` in the namespace, the viewer `view`, the lead (of the group `leads`) `edit`."""
    for user, role in (("editor", "edit"), ("viewer", "view"), ("lead", "edit")):
        binding = {
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        }
        cluster.api.create(ROLE_BINDINGS, binding, namespace)


def applied(cluster: Cluster, release: str, values: Path) -> list[Json]:
    """The release's accounts, rights and what it tells the plugin, as the chart renders them."""
    objects = [each for each in rendered(values, release=(release, "sparkonce")) if each["kind"] in APPLIED]
    for each in objects:
        cluster.api.apply(each, each["metadata"].get("namespace"))
    return objects


def until_aggregated(cluster: Cluster, namespace: str) -> None:
    """Waits until the authorizer knows the aggregated roles and the bindings."""

    def may(user: str, groups: list[str], **attributes: str) -> bool:
        spec = {"user": user, "groups": groups, "resourceAttributes": {"namespace": namespace, **attributes}}
        return bool(cluster.api.create(ACCESS_REVIEWS, {"spec": spec})["status"]["allowed"])

    token = {"resource": "serviceaccounts", "subresource": "token", "verb": "create"}
    job = {"group": "sparkonce.dev", "resource": "idempotentjobs"}
    account = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    assert_eventually(lambda: may("viewer", [], **token, name=READER), 60)
    assert_eventually(lambda: may("editor", [], **job, verb="patch"), 60)
    assert_eventually(lambda: may(account, [], **job, subresource="rerun", verb="update"), 60)


@pytest.fixture(scope="module")
def shared(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    folder = tmp_path_factory.mktemp("team")
    release, other = f"t-{uuid.uuid4().hex[:8]}-release", f"t-{uuid.uuid4().hex[:8]}-other"
    with ExitStack() as stack:
        stage = stack.enter_context(staged(cluster, ledger_server, folder))
        for name in (release, other):
            cluster.api.create(NAMESPACES, {"metadata": {"name": name}})
            stack.callback(cluster.api.delete, NAMESPACES, name)
        port, authority = free_port(), cluster.certificates.ca.read_text()
        teams = [{"namespace": stage.namespace, "admins": [{"kind": "Group", "name": "leads"}]}, {"namespace": other}]
        values = {
            "install": stage.install,
            "crds": {"install": False},
            "etcd": {"bundled": {"enabled": True}},
            "rbac": {"teams": teams},
            "gateway": {
                "public": {"host": "127.0.0.1", "port": port, "ca": authority},
                "ingress": {"enabled": True},
            },
        }
        (folder / "values.yaml").write_text(yaml.safe_dump(values))
        for made in applied(cluster, release, folder / "values.yaml"):
            if not made["metadata"].get("namespace"):
                kind = Resource(
                    "rbac.authorization.k8s.io", "v1", f"{made['kind'].lower()}s", made["kind"], namespaced=False
                )
                stack.callback(cluster.api.delete, kind, made["metadata"]["name"])
        people(cluster, stage.namespace)
        flags = [f"--kubeconfig={cluster.kubeconfig}", "--controllers=clusterrole-aggregation-controller"]
        flags += ["--leader-elect=false", "--secure-port=0"]
        aggregator = Child("aggregator", [*component("kube-controller-manager"), *flags], folder / "aggregator.log")
        aggregator.start()
        stack.callback(aggregator.kill)
        account = path_of(
            Resource("", "v1", "serviceaccounts", "ServiceAccount"), release, "sparkonce-gateway", "token"
        )
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        token = str(cluster.api.request("POST", account, asked)["status"]["token"])
        gateway = GatewayProcess(
            f"http://{ledger_server.one.address}",
            stage.install,
            cluster.kubeconfig_for(cluster.url, token=token),
            folder,
            certificates=cluster.certificates,
            port=port,
        )
        stack.callback(gateway.kill)
        gateway.start(wait=False)
        until_aggregated(cluster, stage.namespace)
        gateway.wait_ready()
        logs = stack.enter_context(served_logs(cluster))
        yield Team(stage, other, release, logs, folder)


@pytest.fixture
def team(shared: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Team:
    """The terminal of a person who has set what the chart's notes say."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").write_text(f'#!/bin/sh\nexec {shlex.join(find("kubectl"))} "$@"\n')
    (programs / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SPARKONCE_GATEWAY_NAMESPACE", shared.release)
    shared.capture = capfd
    return shared


def prepare(team: Team, command: DocumentedCommand, key: str) -> None:
    """Brings a key into the state in which the command has an effect, by the editor's own `kubectl apply`."""
    state = {"cancel": "Running", "resolve": "Held", "logs": "Running"}.get(command.name, "Succeeded")
    if state == "Running":
        team.stage.play(key, Script(code=held(threading.Event())))
    elif state == "Held":
        team.stage.play(key, VANISHES)
    done = team.kubectl("apply", "-f", team.file(key, key))
    assert done.returncode == 0, done.stderr
    team.stage.until(key, state)


def proves(team: Team, command: DocumentedCommand, key: str, said: Said) -> None:
    """What the command did is in its output or in the ledger."""
    assert said.code == 0, said
    match command.name:
        case "list" | "show" | "history" | "explain":
            assert {"history": "Finalized"}.get(command.name, key) in said.out, said
        case "logs":
            assert said.out == team.logs.text, said
        case "rerun":
            team.stage.until_history(key, "Reopened", 1)
            team.stage.until(key, "Succeeded", generation=2)
        case "cancel":
            team.stage.until(key, "Cancelled")
        case "resolve":
            team.stage.until(key, "Failed")
        case "forget":
            assert team.say("show", key, token=LEAD).code == ExitCode.INVALID


def test_a_team_users_day(team: Team) -> None:
    """With `edit` in one namespace and no other right: kubectl applies jobs, and every command that the page gives this user works on them
    and has its effect. What it gives to admins is refused, by the name of the right."""
    team.logs.text = "line 1\nline 2\n"
    assert {each.name for each in EDITS} >= {"list", "show", "history", "explain", "logs", "rerun", "cancel"}
    for number, command in enumerate(EDITS):
        key = f"day-{number}"
        prepare(team, command, key)
        proves(team, command, key, team.say(*team.words(command, key)))
        team.stage.delete(key)
    told = json.loads(team.say("history", "day-0", "--json").out)["events"]
    assert told
    for command in LEADS:
        refused = team.say(*team.words(command, "day-0")).sentence
        account = f"system:serviceaccount:{team.own}:{ACCOUNT}"
        assert f"{account} may not {RIGHTS[command.name]} in namespace {team.own}" in refused
    pods = team.kubectl("get", "pods", "-n", team.release)
    assert (pods.returncode, "forbidden" in pods.stderr) == (1, True), (
        "the team has no right in the release's namespace"
    )


@pytest.mark.parametrize("command", EDITS, ids=lambda each: each.text)
def test_another_namespace_is_refused(team: Team, command: DocumentedCommand) -> None:
    """Each command, with the account of the other team and with one's own: one sentence that names the right that is missing there. The API
    server refuses the first, the gateway the second, and nothing of the other team's is read or done."""
    words = team.words(command, "theirs")
    if command.by_file:
        refused = team.say(*words, namespace=team.other).sentence
        assert re.search(
            r"kubectl apply: .*cannot get resource \"idempotentjobs\" .* in the namespace \"" + team.other, refused
        )
        return
    refused = team.say(*words, namespace=team.other).sentence
    assert re.search(
        rf"create serviceaccounts/token .*{team.other}|serviceaccounts/token.* in the namespace \"{team.other}\"",
        refused,
    )
    mine = team.say(*words, "--service-account", f"{team.own}/{ACCOUNT}", namespace=team.other).sentence
    needed = [str(right) for right in command.rights]
    account = f"system:serviceaccount:{team.own}:{ACCOUNT}"
    assert any(f"{account} may not {right} in namespace {team.other}" in mine for right in needed), mine


def generation_of(team: Team, key: str) -> tuple[object, ...]:
    """What a decision would change."""
    told = team.stage.record(key)
    return told["generation"], told["attempt"], told["phase"]


def test_a_viewer_reads(team: Team) -> None:
    """With `view`: every command that the page gives it works, without an account being named; each other one is refused by the name of
    the right and changes nothing."""
    team.logs.text = "line 1\n"
    key = "seen"
    prepare(team, next(each for each in READS if each.name == "logs"), key)
    for command in READS:
        said = team.say(*team.words(command, key), token=VIEWER)
        expected = {"logs": team.logs.text, "history": "Reserved"}.get(command.name, key)
        assert (said.code, expected in said.out) == (0, True), said
    before = generation_of(team, key)
    for command in COMMANDS:
        if command.is_for("view"):
            continue
        refused = team.say(*team.words(command, key), token=VIEWER).sentence
        if command.by_file:
            assert 'cannot patch resource "idempotentjobs"' in refused
        else:
            right = RIGHTS[command.name]
            assert f"system:serviceaccount:{team.own}:{READER} may not {right} in namespace {team.own}" in refused
    assert generation_of(team, key) == before
    own = team.kubectl("auth", "can-i", "create", "serviceaccounts", "--subresource=token", token=VIEWER)
    assert own.stdout.strip() == "no", own
    team.stage.delete(key)


def test_those_who_are_named_decide(team: Team) -> None:
    """The lead, by the account in the release's namespace: every command. Its tokens are made for nobody else, also not for others with
    `edit`."""
    account = ["--service-account", f"{team.release}/{team.own}-admin"]
    for number, command in enumerate(LEADS):
        key = f"led-{number}"
        prepare(team, command, key)
        refused = team.say(*team.words(command, key), *account).sentence
        assert "serviceaccounts/token" in refused
        proves(team, command, key, team.say(*team.words(command, key), *account, token=LEAD))
        if command.name == "resolve":
            events = json.loads(team.say("history", key, "--json").out)["events"]
            assert any(str(each.get("by")).endswith(f"{team.release}:{team.own}-admin") for each in events), events
