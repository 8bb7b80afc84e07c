"""Gateway processes and their callers for tests: pods with bound tokens, and attempts in a ledger whose drivers they are."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import ssl
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import planted
from harness.apiserver import Certificates, Cluster
from harness.child import Child, free_port
from harness.eventually import assert_eventually
from harness.jobs import job as job_document
from harness.kube_api import SERVICE_ACCOUNTS, Api, Json, path_of
from harness.kubeflow import states
from harness.patience import stretched
from sparkonce.blocking import run
from sparkonce.controller.desired import Desired
from sparkonce.errors import StoreUnavailable
from sparkonce.kube.review import ACCESS_REVIEWS
from sparkonce.launch.kubeflow.spec import application, settle_run
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, Resource
from sparkonce.model.record import (
    Application,
    Assignment,
    Failure,
    Outcome,
    Record,
    Result,
    Settling,
    Why,
    gateway_audience,
)
from sparkonce.store.open import open_blocking
from sparkonce.store.protocol import Claim, Finalized, IdempotencyStore, Lease, Owned, Updated

READY = 60.0
"""Seconds: importing everything takes three of a free core."""
ACCOUNT = "spark"
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def detail(self) -> str:
        return str(self.body.get("detail", ""))


def ask(
    address: str,
    method: str,
    path: str,
    *,
    token: str | None = None,
    body: object = None,
    raw: bytes | None = None,
    timeout: float = 20.0,
    ca: Path | None = None,
) -> Answer:
    """Sends one request over its own connection. Raises OSError or HTTPException if there is no answer."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
    if ca is not None:
        trust = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(host, int(port), timeout=timeout, context=trust)
    planted.secret(token)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    content = raw if raw is not None else None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, content, headers)
        reply = connection.getresponse()
        text = planted.said(f"gateway {method} {path}", reply.read().decode())
        kind = reply.headers.get_content_type()
        return Answer(reply.status, json.loads(text) if "json" in kind else text, dict(reply.headers))
    finally:
        connection.close()


@dataclass
class GatewayProcess:
    """A `python -m sparkonce gateway` process; its address stays the same over `kill` and `start`."""

    ledger: str
    install: str
    kubeconfig: Path
    folder: Path
    name: str = "gateway"
    lease_seconds: int = 2
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    certificates: Certificates | None = None
    """Certificates for TLS; None: plain HTTP."""
    accept_api_tokens: bool = False
    """For tests about something else, whose users are the API server's static tokens: these have no audience."""
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        store = self.ledger.replace("http://", "etcd://")
        command = [sys.executable, "-m", "sparkonce", "gateway", "--store", store, "--install", self.install]
        command += ["--listen", self.address, "--kubeconfig", str(self.kubeconfig)]
        command += ["--lease-seconds", str(self.lease_seconds), "--drain-seconds", "0.2", *self.options]
        command += ["--accept-api-server-tokens"] if self.accept_api_tokens else []
        if self.certificates is not None:
            command += ["--tls-cert", str(self.certificates.crt), "--tls-key", str(self.certificates.key)]
        self.child = Child(self.name, command, self.folder / f"{self.name}.log", self.environment)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http{'s' if self.certificates else ''}://{self.address}"

    def start(self, *, wait: bool = True) -> GatewayProcess:
        planted.output(self.child.log)
        self.child.start()
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        self.child.until(lambda: self.said_ready() == "ok", READY, interval=0.1)

    def said_ready(self) -> str:
        """The answer of /readyz; empty if there is none."""
        assert self.child.running, f"it ended: {self.child.last_words()}"
        with contextlib.suppress(OSError, http.client.HTTPException):
            return str(self.ask("GET", "/readyz", timeout=stretched(2.0)).body).strip()
        return ""

    def ask(self, method: str, path: str, **how: Any) -> Answer:
        return ask(self.address, method, path, ca=self.certificates.ca if self.certificates else None, **how)

    @property
    def running(self) -> bool:
        return self.child.running

    @property
    def pid(self) -> int:
        return self.child.pid

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.child.log.read_text(errors="replace").splitlines()[-lines:])

    def terminate(self) -> None:
        self.child.end(signal.SIGTERM, timeout=20.0)

    def kill(self) -> None:
        self.child.kill()


@contextmanager
def a_gateway(ledger: str, install: str, kubeconfig: Path, folder: Path, **how: Any) -> Iterator[GatewayProcess]:
    process = GatewayProcess(ledger, install, kubeconfig, folder, **how)
    try:
        yield process.start()
    finally:
        process.kill()


@dataclass
class Attempt:
    """Attempt 1 of a key in the ledger, its application at the API server, and its owner's claim."""

    cluster: Cluster
    namespace: str
    install: str
    store: IdempotencyStore
    wanted: Desired
    record: Record
    claim: Claim
    lease: Lease
    gateway: str

    @property
    def assignment(self) -> Assignment:
        return Assignment.of(self.record, self.wanted.spec_body(), install=self.install, gateway=self.gateway)

    @property
    def path(self) -> str:
        record = self.record
        return f"/v1/attempts/{self.namespace}/{record.key_hash}/{record.generation}/{record.attempt}"

    def update(self, **change: Any) -> None:
        """Updates the record as the owner does."""
        now = run(self.store.load(self.record.address)).record
        assert now is not None
        done = run(self.store.update(now, self.claim, now.changed(**change)))
        assert isinstance(done, Updated), done
        self.record = done.record

    def settling(self) -> None:
        self.update(settling=Settling(attempt=self.record.attempt, why=Why.LOST))

    def note(self, pod: Json) -> None:
        """Records the observed driver as the owner does."""
        [owner] = pod["metadata"]["ownerReferences"]
        noted = Application(name=owner["name"], uid=owner["uid"], driver=pod["metadata"]["uid"])
        self.update(application=noted, phase="Running")

    def driver(self, *, name: str = "", earlier: bool = False) -> Json:
        """The driver's pod, as the Spark operator would make it. `earlier`: launched by a version that projected no token for the
        gateway, which is what the launcher does without a gateway."""
        told = self.assignment.model_copy(update={"gateway": ""}) if earlier else self.assignment
        return self._pod(application(told, self.wanted.job, [], namespace=self.namespace), name)

    def settle_run(self, number: int = 1) -> Json:
        told = self.assignment.model_copy(update={"run": number})
        return self._pod(settle_run(told, self.wanted.job, namespace=self.namespace), "")

    def _pod(self, document: Json, name: str) -> Json:
        api = self.cluster.api
        stored = api.get(SPARK_APPLICATIONS, document["metadata"]["name"], self.namespace)
        stored = stored or api.create(SPARK_APPLICATIONS, document, self.namespace)
        pod = states.driver_pod(stored, "s-1", "selector-1", name=name)
        pod["spec"]["serviceAccountName"] = ACCOUNT
        return api.create(PODS, pod, self.namespace)


def finish(attempt: Attempt, outcome: Outcome = Outcome.SUCCEEDED, failure: Failure | None = None) -> None:
    """Finalizes the attempt's record as its owner does."""
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
    assert isinstance(done, Finalized), done
    attempt.record = done.record


class Attempts:
    """Makes attempts in the ledger of one install, and tokens of their pods."""

    def __init__(self, cluster: Cluster, namespace: str, ledger: str, install: str, gateway: str) -> None:
        self.cluster, self.namespace, self.install, self.gateway = cluster, namespace, install, gateway
        self.store = open_blocking(ledger.replace("http://", "etcd://"), install=install)
        self.lease = assert_eventually(self._opened, 30.0)  # a new etcd on a busy machine may be silent for a moment
        cluster.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": ACCOUNT}}, namespace)

    def _opened(self) -> Lease:
        try:
            return run(self.store.open_lease(owner="test"))
        except StoreUnavailable as error:
            raise AssertionError(str(error)) from error

    def wanted(self, key: str, **spec: Any) -> Desired:
        """A request for the key; without one, the key is derived from the spec."""
        document = job_document("job", key=key, **spec)
        if not key:
            del document["spec"]["idempotencyKey"]
        document["metadata"] |= {"namespace": self.namespace, "uid": str(uuid.uuid4())}
        return Desired.of(document, realm=self.namespace)

    def granted(self, key: str, **spec: Any) -> Attempt:
        spec.setdefault("outputs", [{"name": "orders", "slotLog": {"path": "/nowhere/orders"}}])
        wanted = self.wanted(key, **spec)
        request = wanted.request(uuid.uuid4().hex, number=1, objects=())
        owned = run(self.store.reserve(request, lease=self.lease, floor=0))
        assert isinstance(owned, Owned), owned
        return Attempt(
            cluster=self.cluster,
            namespace=self.namespace,
            install=self.install,
            store=self.store,
            wanted=wanted,
            record=owned.record,
            claim=owned.claim,
            lease=self.lease,
            gateway=self.gateway,
        )

    def token(self, pod: Json | None, *, audiences: Sequence[str] | None = None, account: str = ACCOUNT) -> str:
        """A token of a service account, by default the pods', bound to this pod or to none. `audiences`: the gateway's by default; none
        of them: the API server's."""
        chosen = [gateway_audience(self.install)] if audiences is None else list(audiences)
        return bound_token(self.cluster.api, self.namespace, account, chosen, pod)

    def close(self) -> None:
        run(self.lease.revoke())
        run(self.store.close())


def bound_token(api: Api, namespace: str, account: str, audiences: Sequence[str], pod: Json | None) -> str:
    """A token of a service account for these audiences, by default the API server's, bound to this pod or to none. Raises ApiError."""
    spec: Json = {"expirationSeconds": 3600, "audiences": list(audiences)}
    if pod is not None:
        metadata = pod["metadata"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made = api.request("POST", path_of(SERVICE_ACCOUNTS, namespace, account, "token"), body)
    return str(made["status"]["token"])


def may(cluster: Cluster, namespace: str, user: str, *, verbs: Sequence[str], resources: Sequence[str]) -> None:
    """Grants the user these verbs on these sparkonce resources in the namespace."""
    grant(
        cluster, namespace, user, [{"apiGroups": ["sparkonce.dev"], "resources": list(resources), "verbs": list(verbs)}]
    )


def grant(cluster: Cluster, namespace: str, user: str, rules: Sequence[Json]) -> None:
    """Grants the user a role of these rules in the namespace, and waits until the API server's authorizer knows it, which reads roles
    from a cache."""
    name = f"r-{uuid.uuid4().hex[:8]}"
    cluster.api.create(ROLES, {"metadata": {"name": name}, "rules": list(rules)}, namespace)
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    cluster.api.create(ROLE_BINDINGS, binding, namespace)
    last = rules[-1]
    group, resource, verb = last["apiGroups"][-1], last["resources"][-1], last["verbs"][-1]
    plural, _, subresource = resource.partition("/")
    asked = {"group": group, "resource": plural, "subresource": subresource, "verb": verb, "namespace": namespace}
    review = {"spec": {"user": user, "resourceAttributes": asked}}
    assert_eventually(lambda: cluster.api.create(ACCESS_REVIEWS, review)["status"]["allowed"], timeout=30)
