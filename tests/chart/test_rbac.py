"""The chart's RBAC rules, compared with the calls that are made: the operator runs as its service account, and the API server's audit log
names the caller of each request. An unneeded rule fails the test as a missing one does."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import ADMIN, ApiServer, Cluster, started_cluster
from harness.binaries import PartMissing, find
from harness.etcd import Etcd, running
from harness.eventually import assert_eventually
from harness.gateways import Attempt, Attempts, a_gateway
from harness.helm import NAMESPACE, PROXY, RELEASE, one, rendered
from harness.jobs import job as job_document
from harness.kube_api import Json
from harness.kubeflow import Driver, FakeKubeflow, Script
from harness.kubeflow.drivers import assignment_in, runs_until_stopped
from harness.operators import OperatorProcess
from harness.stage import IN_TIME, Stage
from sparkonce.blocking import run
from sparkonce.controller.objects import ObjectRef
from sparkonce.launch.kubernetes import JOBS, NAMESPACES, PODS
from sparkonce.model.record import Outcome, Result
from sparkonce.store.protocol import Finalized

pytestmark = pytest.mark.operator

ACCOUNT, GATEWAY = f"{RELEASE}-sparkonce-operator", f"{RELEASE}-sparkonce-gateway"
USERS = f"system:serviceaccount:{NAMESPACE}:"
USER = USERS + ACCOUNT
RBAC = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],  # a long-running watch is logged when it starts
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
Call = tuple[str, str, str]
"""Group, resource (with its subresource) and verb."""


@dataclass
class Audited:
    """A cluster whose API server logs the requests of service accounts."""

    cluster: Cluster
    server: ApiServer
    log: Path

    def entries(self, user: str) -> list[Json]:
        """The user's requests for objects. Requests open to every client (versions, discovery) are left out."""
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [each for each in found if each["user"]["username"] == user and "resource" in each.get("objectRef", {})]

    def calls(self, user: str) -> set[Call]:
        return {call_of(each) for each in self.entries(user)}

    def denied(self, user: str) -> list[str]:
        return [
            f"{each['verb']} {each['requestURI']}"
            for each in self.entries(user)
            if each.get("responseStatus", {}).get("code") == 403
        ]


def call_of(entry: Json) -> Call:
    of = entry["objectRef"]
    resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
    return of.get("apiGroup", ""), resource, entry["verb"]


@pytest.fixture(scope="module")
def audited(pytestconfig: pytest.Config) -> Iterator[Audited]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():  # a build takes minutes: show its progress
            find("kube-apiserver")
    except PartMissing as missing:
        pytest.skip(str(missing))
    with started_cluster() as cluster:
        policy, log = cluster.folder / "audit.json", cluster.folder / "audit.log"
        policy.write_text(json.dumps(POLICY))
        etcd_url = f"http://{cluster.etcd.one.address}"
        server = ApiServer(cluster.folder, etcd_url=etcd_url, certificates=cluster.certificates, name="audited")
        server.child.command += [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]
        server.start()
        cluster.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        try:
            yield Audited(cluster, server, log)
        finally:
            server.close()


@pytest.fixture(scope="module")
def ledger_server(audited: Audited, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("ledger")) as etcd:
        yield etcd


@contextmanager
def installed(
    audited: Audited, etcd: Etcd, folder: Path, *, all_namespaces: bool
) -> Iterator[tuple[Stage, list[Json]]]:
    """An operator that runs as the chart's service account, and the objects that grant its rights."""
    cluster, namespace, install = audited.cluster, f"t-{uuid.uuid4().hex[:10]}", f"i-{uuid.uuid4().hex[:10]}"
    with ExitStack() as stack:
        cluster.api.create(NAMESPACES, {"metadata": {"name": namespace}})
        stack.callback(cluster.api.delete, NAMESPACES, namespace)
        rights = given(audited, *([] if all_namespaces else [f"watch.namespaces={{{namespace}}}"]))
        kubeconfig = cluster.kubeconfig_for(audited.server.url, token=token_of(cluster, ACCOUNT))
        fake = FakeKubeflow(cluster.url, ca=cluster.certificates.ca, token=ADMIN, namespace=namespace)
        stage = Stage(cluster, etcd, namespace, install, folder, stack.enter_context(fake))
        watched = [] if all_namespaces else [namespace]
        options = ["--all-namespaces"] if all_namespaces else []
        process = OperatorProcess(
            f"http://{etcd.one.address}", install, kubeconfig, watched, folder, sweep_seconds=1.0, options=options
        )
        stack.callback(process.end)
        stage.operators.append(process.start())
        yield stage, rights


def given(audited: Audited, *sets: str) -> list[Json]:
    """Applies the accounts, roles and bindings that the chart renders with these settings."""
    objects = rendered(sets=["etcd.bundled.enabled=true", "crds.install=false", *sets])
    rights = [each for each in objects if each["kind"] in RBAC]
    for each in rights:
        audited.cluster.api.apply(each, each["metadata"].get("namespace"))
    return rights


def token_of(cluster: Cluster, account: str) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    return str(cluster.api.request("POST", path, body)["status"]["token"])


def allowed(objects: Sequence[dict[str, Any]], component: str) -> set[Call]:
    """The requests that this component's roles allow."""
    found = set()
    for each in objects:
        if each["kind"] in {"Role", "ClusterRole"} and each["metadata"]["name"].endswith(f"-{component}"):
            for rule in each["rules"]:
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                groups, resources = rule["apiGroups"], rule["resources"]
                found |= {
                    (group, resource, verb) for group in groups for resource in resources for verb in rule["verbs"]
                }
    return found


def everything_it_does(stage: Stage) -> None:
    """Scenes that together make the operator use each of its calls."""
    stage.play("stopped", Script(code=runs_until_stopped))
    # Its volume cannot be mounted; the pod's Events say why.
    stage.play("unmounted", Script(pending_seconds=600.0, unmounted='volume "settings": configmap "none" not found'))
    stage.send("unmounted", "unmounted")

    def fails_once_shown(driver: Driver) -> int:
        """On a busy machine an attempt that ends at once is never seen running."""
        attempt = assignment_in(driver).attempt

        def shown() -> bool:
            status = (stage.object("fails") or {}).get("status", {})
            return (status.get("phase"), status.get("attempt")) == ("Running", attempt)

        assert_eventually(shown, IN_TIME)
        return 1

    stage.play("fails", Script(code=fails_once_shown))
    # It runs, fails and runs again: the second event of a kind increases the count of the first.
    stage.send("fails", "fails", retry={"maxAttempts": 3, "backoff": {"initial": "1s", "max": "1s"}})
    # It ends and is removed: the object by its TTL, the application by its own, which leaves a stub for an opaque job.
    stage.send("brief", "brief", ttlSecondsAfterFinished=1, applicationTTL={"succeeded": "1s"})
    # It is deleted while it runs: the application is suspended, its pods are deleted, and an inert pod keeps the driver's name.
    stage.send("stopped", "stopped")
    stage.until("stopped", "Running")
    (application,) = (each["metadata"]["name"] for each in stage.applications("stopped"))
    stage.kubeflow.kill_operator()  # which would delete the pods of a suspended application as well
    stage.delete("stopped")
    assert_eventually(lambda: stage.pods(application) == [], IN_TIME)
    stage.kubeflow.restart_operator()
    stage.until("fails", "Failed")
    stage.until_events("fails", "Running", 2)
    assert_eventually(lambda: "cannot be mounted" in str(stage.status("unmounted").get("message")), IN_TIME)
    assert_eventually(lambda: stage.object("brief") is None, IN_TIME)
    assert_eventually(lambda: stage.applications("brief", placeholders=True), IN_TIME)
    stage.until_record("stopped", phase="Cancelled")
    assert stage.cluster.api.list(PODS, stage.namespace)


@pytest.mark.slow
def test_the_operators_role_is_what_it_uses(audited: Audited, ledger_server: Etcd, tmp_path: Path) -> None:
    """With a list of namespaces: no call is denied, and each verb on each kind that the chart grants is used by some call."""
    before = len(audited.entries(USER))
    with installed(audited, ledger_server, tmp_path, all_namespaces=False) as (stage, rights):
        everything_it_does(stage)
        assert audited.denied(USER) == []
        mine = audited.entries(USER)[before:]
        assert {call_of(each) for each in mine} == allowed(rights, "operator")
        named = {
            each["objectRef"]["name"] for each in mine if each["objectRef"]["resource"] == "customresourcedefinitions"
        }
        assert named == {"idempotentjobs.sparkonce.dev"}
        assert {each["objectRef"].get("namespace") for each in mine} <= {stage.namespace, None}


@pytest.mark.slow
def test_the_gateways_role_is_what_it_uses(audited: Audited, ledger_server: Etcd, tmp_path: Path) -> None:
    """With a list of namespaces: a driver's heartbeat, a user's list of keys and an attempt to forget one need each right that the chart
    grants to the gateway; the only other requests are reviews of its own rights, which every user may create."""
    cluster, namespace, install = audited.cluster, f"t-{uuid.uuid4().hex[:10]}", f"i-{uuid.uuid4().hex[:10]}"
    cluster.api.create(NAMESPACES, {"metadata": {"name": namespace}})
    rights = given(audited, f"watch.namespaces={{{namespace}}}")
    kubeconfig = cluster.kubeconfig_for(audited.server.url, token=token_of(cluster, GATEWAY))
    ledger = f"http://{ledger_server.one.address}"
    with a_gateway(ledger, install, kubeconfig, tmp_path, accept_api_tokens=True) as gateway:
        attempts = Attempts(cluster, namespace, ledger, install, gateway.url)
        try:
            attempt = attempts.granted("key")
            beat = {"nonce": attempt.record.nonce, "progress": {"rows": 1}}
            token = attempts.token(attempt.driver())
            assert gateway.ask("POST", f"{attempt.path}/renew", token=token, body=beat).body == {"current": True}
            keys = f"/v1/namespaces/{namespace}/keys"
            assert gateway.ask("GET", keys, token=ADMIN).status == 200
            stored = cluster.api.create(JOBS, job_document("waits", key="key"), namespace)
            run(attempts.store.attach(attempt.record, str(ObjectRef.of(stored))))
            finish(attempt)
            assert gateway.ask("POST", f"{keys}/key/forget", token=ADMIN, body={"reason": "r"}).status == 409
        finally:
            attempts.close()
    assert audited.denied(USERS + GATEWAY) == []
    everybody = {("authorization.k8s.io", "selfsubjectaccessreviews", "create")}
    assert audited.calls(USERS + GATEWAY) - everybody == allowed(rights, "gateway")


def finish(attempt: Attempt) -> None:
    """Finalizes the attempt as its owner would."""
    now = run(attempt.store.load(attempt.record.address)).record
    assert now is not None
    result = Result(
        generation=1, outcome=Outcome.SUCCEEDED, evidence="a test", attempts=1, started_at=1.0, finished_at=2.0
    )
    assert isinstance(run(attempt.store.finalize(now, attempt.claim, result, retention=3600.0)), Finalized)


@pytest.mark.slow
def test_the_cluster_role_does_for_all_namespaces(audited: Audited, ledger_server: Etcd, tmp_path: Path) -> None:
    """Without a list of namespaces: jobs run and are deleted in a namespace that the chart does not name, and no call is denied."""
    api = audited.cluster.api
    for each in api.list(
        JOBS
    ):  # jobs of other ledgers, of which an operator for all namespaces would conclude that its own was rewound
        api.delete(JOBS, each["metadata"]["name"], each["metadata"]["namespace"])
    assert_eventually(lambda: not api.list(JOBS), 60)
    before = len(audited.entries(USER))
    with installed(audited, ledger_server, tmp_path, all_namespaces=True) as (stage, rights):
        stage.play("stopped", Script(code=runs_until_stopped))
        stage.send("runs", "runs")
        stage.until("runs", "Succeeded")
        stage.send("stopped", "stopped")
        stage.until("stopped", "Running")
        stage.delete("stopped")
        stage.until_record("stopped", phase="Cancelled")
        assert audited.denied(USER) == []
        assert {call_of(each) for each in audited.entries(USER)[before:]} <= allowed(rights, "operator")
        assert one(rights, "ClusterRole", "operator")["rules"]


def test_named_namespaces_get_no_cluster_wide_rights() -> None:
    """With a list of namespaces the operator's only cluster-wide right is to read our CRD, and the gateway's are reviews."""
    objects = rendered(sets=["etcd.bundled.enabled=true", "watch.namespaces={team-a}"])
    (rule,) = one(objects, "ClusterRole", "operator")["rules"]
    assert (rule["resources"], rule["verbs"]) == (["customresourcedefinitions"], ["get"])
    assert rule["resourceNames"] == ["idempotentjobs.sparkonce.dev"]
    reviews = one(objects, "ClusterRole", "gateway")["rules"]
    assert sorted(resource for each in reviews for resource in each["resources"]) == [
        "subjectaccessreviews",
        "tokenreviews",
    ]


def test_the_proxy_has_no_rights() -> None:
    """No binding names the proxy's service account, and neither the account nor the pod mounts a token."""
    objects = rendered(sets=["etcd.bundled.enabled=true", *PROXY])
    account = one(objects, "ServiceAccount", "proxy")
    pod = one(objects, "Deployment", "proxy")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert (account["automountServiceAccountToken"], pod["automountServiceAccountToken"]) == (False, False)
    bound = {
        subject["name"]
        for each in objects
        if each["kind"] in {"RoleBinding", "ClusterRoleBinding"}
        for subject in each["subjects"]
    }
    assert one(objects, "ServiceAccount", "operator")["metadata"]["name"] in bound
    assert account["metadata"]["name"] not in bound
