"""Attacks on users of `kubectl sparkonce`: a Service, a ConfigMap and a server that look like the gateway and record what they get."""

from __future__ import annotations

import base64
import http.server
import json
import os
import ssl
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from harness.apiserver import ADMIN, Cluster
from harness.etcd import Etcd
from harness.gateways import GatewayProcess, a_gateway, may
from harness.kube_api import SERVICE_ACCOUNTS, Json
from harness.patience import completed
from sparkonce.launch.kubernetes import NAMESPACES, Resource
from sparkonce.model.record import gateway_audience

SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
LABELS = {"app.kubernetes.io/component": "gateway", "app.kubernetes.io/name": "sparkonce"}
GATEWAY = "sparkonce-gateway"
KUBECTL = """#!{python}
import sys, time
if "port-forward" in sys.argv:
    print("Forwarding from 127.0.0.1:{port} -> 8080", flush=True)
    time.sleep(600)
"""


@dataclass
class Recorder:
    """A tenant's server; it keeps every request that reaches it."""

    port: int
    requests: list[str] = field(default_factory=list)


@contextmanager
def recording(certificates: trustme.LeafCert | None = None) -> Iterator[Recorder]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kept.requests.append(f"{self.requestline}\n{self.headers}")
            body = json.dumps({"keys": [], "unreadable": [], "after": None}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None: ...  # noqa: A002 - of the base class

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificates.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    kept = Recorder(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Person:
    """A platform engineer at her terminal, whose token has every right."""

    cluster: Cluster
    namespace: str
    folder: Path

    def say(self, *arguments: str, forwards_to: int) -> subprocess.CompletedProcess[str]:
        """Runs `kubectl sparkonce` with a port-forward that leads to this port."""
        kubectl = self.folder / "kubectl"
        kubectl.write_text(KUBECTL.format(python=sys.executable, port=forwards_to))
        kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
        program = [sys.executable, "-c", "from sparkonce.cli.kubectl.app import main; main()"]
        where = ["-n", self.namespace, "--kubeconfig", str(self.cluster.kubeconfig)]
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        return completed([*program, *where, *arguments], 60, env=environment)


def release(cluster: Cluster, namespace: str, url: str, audience: str, ca: str) -> None:
    """The objects that the chart makes for users; a tenant can create the same ones in its own namespace."""
    service = {"metadata": {"name": GATEWAY, "labels": LABELS}, "spec": {"ports": [{"name": "https", "port": 8080}]}}
    cluster.api.create(SERVICES, service, namespace)
    data = {"url": url, "audience": audience} | ({"ca.crt": ca} if ca else {})
    told: Json = {"metadata": {"name": GATEWAY, "labels": LABELS}, "data": data}
    cluster.api.create(CONFIG_MAPS, told, namespace)


@pytest.fixture
def tenant(cluster: Cluster) -> Iterator[str]:
    name = f"t-tenant-{uuid.uuid4().hex[:8]}"
    cluster.api.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    cluster.api.delete(NAMESPACES, name)


@pytest.fixture
def person(cluster: Cluster, tenant: str, tmp_path: Path) -> Person:
    """A user who has an account in the tenant's namespace and looks at its keys."""
    cluster.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "sparkonce-user"}}, tenant)
    user = f"system:serviceaccount:{tenant}:sparkonce-user"
    may(cluster, tenant, user, verbs=["get", "list"], resources=["idempotentjobs"])
    return Person(cluster, tenant, tmp_path)


@pytest.fixture
def gateway(cluster: Cluster, ledger_server: Etcd, tmp_path: Path) -> Iterator[GatewayProcess]:
    ledger = f"http://{ledger_server.one.address}"
    with a_gateway(ledger, "kubectl-trust", cluster.kubeconfig, tmp_path, certificates=cluster.certificates) as process:
        yield process


def claims(request: str) -> Json:
    """The claims of the bearer token in a request."""
    [line] = [each for each in request.splitlines() if each.lower().startswith("authorization:")]
    part = line.split()[-1].split(".")[1]
    found: Json = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def test_a_tenants_service_is_never_taken(
    cluster: Cluster, namespace: str, tenant: str, person: Person, gateway: GatewayProcess
) -> None:
    """The tenant's Service and ConfigMap have the release's names and labels. Without `--gateway-namespace` no request is sent; with it the
    release's gateway answers, although the keys are the tenant's."""
    audience = gateway_audience(gateway.install)
    with recording() as recorder:
        release(cluster, tenant, f"http://localhost:{recorder.port}", audience, "")
        unnamed = person.say("list", forwards_to=recorder.port)
        assert (unnamed.returncode, unnamed.stdout) == (2, "")
        assert "name the namespace of the sparkonce release with --gateway-namespace" in unnamed.stderr
        release(cluster, namespace, "https://localhost:8080", audience, cluster.certificates.ca.read_text())
        named = person.say("list", "--gateway-namespace", namespace, forwards_to=gateway.port)
        assert (named.returncode, named.stdout) == (0, f"no keys in namespace {tenant}\n"), named.stderr
        assert recorder.requests == []


@pytest.mark.parametrize("who", ["plain text", "another CA", "the right CA, another name"])
def test_what_answers_in_the_gateways_place_is_sent_nothing(
    cluster: Cluster, namespace: str, person: Person, who: str
) -> None:
    """A server in the gateway's place gets no request, even behind a port-forward: none is sent before the release's own certificate was
    seen."""
    authority = trustme.CA()
    certificate = {
        "plain text": None,
        "another CA": trustme.CA().issue_cert("localhost"),
        "the right CA, another name": authority.issue_cert("tenant.example"),
    }[who]
    release(cluster, namespace, "https://localhost:8080", gateway_audience("i"), authority.cert_pem.bytes().decode())
    with recording(certificate) as recorder:
        said = person.say("list", "--gateway-namespace", namespace, forwards_to=recorder.port)
        assert (said.returncode in (2, 3), said.stdout) == (True, "")
        assert recorder.requests == []


def test_a_gateway_is_sent_a_short_token_for_itself_alone(
    cluster: Cluster, namespace: str, tenant: str, person: Person
) -> None:
    """Even the release's own server receives no token that is valid at the API server, but one of ten minutes for the gateway's audience
    and a service account. A ConfigMap that names another audience is refused before a token is made."""
    authority = trustme.CA()
    ca = authority.cert_pem.bytes().decode()
    with recording(authority.issue_cert("localhost")) as recorder:
        release(cluster, namespace, "https://localhost:8080", gateway_audience("i"), ca)
        said = person.say("list", "--gateway-namespace", namespace, forwards_to=recorder.port)
        assert said.returncode == 0, said.stderr
        [request] = recorder.requests
        assert ADMIN not in request
        told = claims(request)
        assert told["aud"] == [gateway_audience("i")]
        assert told["exp"] - told["iat"] <= 600
        assert told["sub"] == f"system:serviceaccount:{tenant}:sparkonce-user"
        forged = {"url": "https://localhost:8080", "audience": "https://kubernetes.default.svc", "ca.crt": ca}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": GATEWAY}, "data": forged}
        cluster.api.apply(body, namespace)
        refused = person.say("list", "--gateway-namespace", namespace, forwards_to=recorder.port)
        assert (refused.returncode, len(recorder.requests)) == (2, 1)
        assert "is not a gateway's audience" in refused.stderr
