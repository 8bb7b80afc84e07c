"""Client certificates at the gateway: who they name, as the API server has it, and which of them name nobody. Real TLS on both sides."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from harness.apiserver import STRANGER, ApiServer, Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.gateways import ROLE_BINDINGS, ROLES, Answer, Attempts, GatewayProcess, a_gateway, ask, finish, grant, may
from harness.kube_api import CONFIG_MAPS, Api, Json
from sparkonce.blocking import run
from sparkonce.cli.app import main as command_line
from sparkonce.cli.exits import ExitCode
from sparkonce.cli.kubectl.app import NAME, app, hoisted
from sparkonce.kube.review import ACCESS_REVIEWS
from sparkonce.model.record import gateway_audience

GATEWAY = "sparkonce-gateway"


@dataclass
class People:
    """A CA that signs people, an API server and a gateway that know it, and the ledger behind them."""

    cluster: Cluster
    server: ApiServer
    authority: trustme.CA
    gateway: GatewayProcess
    folder: Path

    def certificate(
        self, name: str, group: str = "nobodies", *, authority: trustme.CA | None = None, **when: Any
    ) -> Path:
        """A PEM file of a person's certificate with its chain; its key lies beside it as `.key`."""
        issued = (authority or self.authority).issue_cert(
            "people.example",  # Go refuses an empty list of alternative names, which trustme marks as critical
            common_name=name,
            organization_name=group,
            **when,
        )
        path = self.folder / f"{name.replace(':', '-')}-{len(list(self.folder.iterdir()))}.pem"
        path.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(path.with_suffix(".key"))
        return path

    def ask(self, shown: Path | None, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """One request over a connection that shows this certificate. Raises OSError when the handshake fails."""
        trust = ssl.create_default_context(cafile=str(self.cluster.certificates.ca))
        if shown is not None:
            trust.load_cert_chain(shown, shown.with_suffix(".key"))
        connection = http.client.HTTPSConnection("127.0.0.1", self.gateway.port, timeout=20, context=trust)
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, {"Content-Type": "application/json", **headers})
            reply = connection.getresponse()
            return Answer(reply.status, json.loads(reply.read()), dict(reply.headers))
        finally:
            connection.close()

    def kubeconfig(self, shown: Path) -> Path:
        """As clusters give it to people who log in with a certificate: everything inside."""
        document: Json = json.loads(self.cluster.kubeconfig_for(self.server.url).read_text())
        files = {"client-certificate-data": shown, "client-key-data": shown.with_suffix(".key")}
        user = {name: base64.b64encode(file.read_bytes()).decode() for name, file in files.items()}
        document["users"][0]["user"] = user
        path = shown.with_suffix(".kubeconfig")
        path.write_text(json.dumps(document))
        return path


@pytest.fixture(scope="module")
def people(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    folder, authority = tmp_path_factory.mktemp("people"), trustme.CA()
    ca = folder / "people.ca"
    authority.cert_pem.write_to_path(ca)
    with ExitStack() as stack:
        url = f"http://{cluster.etcd.one.address}"
        server = ApiServer(cluster.folder, etcd_url=url, certificates=cluster.certificates, name="knows-people")
        server.child.command += [f"--client-ca-file={ca}"]
        stack.callback(server.close)
        server.start()
        ledger, kubeconfig = f"http://{ledger_server.one.address}", cluster.kubeconfig_for(server.url)
        options = ["--client-ca", str(ca)]
        gateway = stack.enter_context(
            a_gateway(ledger, "people", kubeconfig, folder, certificates=cluster.certificates, options=options)
        )
        yield People(cluster, server, authority, gateway, folder)


@pytest.fixture
def attempts(cluster: Cluster, namespace: str, ledger: str, people: People) -> Iterator[Attempts]:
    made = Attempts(cluster, namespace, ledger, people.gateway.install, people.gateway.url)
    yield made
    made.close()


def keys(attempts: Attempts, rest: str = "") -> str:
    return f"/v1/namespaces/{attempts.namespace}/keys{rest}"


def test_a_certificate_names_a_person_as_at_the_api_server(people: People, attempts: Attempts) -> None:
    """User and group of its subject, by each of which a role gives rights; the history has the name. Without the right the sentence names
    it, and without a certificate or token there is no caller."""
    shown = people.certificate("ann", "auditors")
    api = Api(
        people.server.url, ca=people.cluster.certificates.ca, token="", certificate=(shown, shown.with_suffix(".key"))
    )
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        user = api.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)["status"]["userInfo"]
    finally:
        api.close()
    finish(attempts.granted("done"))
    refused = people.ask(shown, "GET", keys(attempts))
    assert (refused.status, user["username"]) == (403, "ann")
    assert f"ann may not list idempotentjobs in namespace {attempts.namespace}" in refused.detail
    by_group(people.cluster, attempts.namespace, "auditors")
    assert "auditors" in user["groups"]
    assert people.ask(shown, "GET", keys(attempts)).status == 200
    assert people.ask(shown, "POST", keys(attempts, "/done/rerun"), {"generation": 1}).status == 403
    may(people.cluster, attempts.namespace, "ann", verbs=["update"], resources=["idempotentjobs/rerun"])
    assert people.ask(shown, "POST", keys(attempts, "/done/rerun"), {"generation": 1}).body["generation"] == 2
    events = people.ask(shown, "GET", keys(attempts, "/done/history")).body["events"]
    assert [(each["what"], each["by"]) for each in events][-1] == ("Reopened", "ann")
    assert people.ask(None, "GET", keys(attempts)).status == 401
    assert people.ask(people.certificate("bob"), "GET", keys(attempts)).status == 403


def by_group(cluster: Cluster, namespace: str, group: str) -> None:
    """Gives the group the right to read, and waits until the authorizer knows it."""
    rule = {"apiGroups": ["sparkonce.dev"], "resources": ["idempotentjobs"], "verbs": ["get", "list"]}
    cluster.api.create(ROLES, {"metadata": {"name": group}, "rules": [rule]}, namespace)
    binding = {
        "metadata": {"name": group},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": group},
        "subjects": [{"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    cluster.api.create(ROLE_BINDINGS, binding, namespace)
    asked = {"group": "sparkonce.dev", "resource": "idempotentjobs", "verb": "list", "namespace": namespace}
    spec = {"user": "someone", "groups": [group], "resourceAttributes": asked}
    assert_eventually(lambda: cluster.api.create(ACCESS_REVIEWS, {"spec": spec})["status"]["allowed"], timeout=30)


def test_a_certificate_makes_nobody_a_part_of_kubernetes(people: People, attempts: Attempts) -> None:
    """Groups like system:masters, for which the API server allows everything, do not count; a node's or a service account's name is
    refused."""
    attempts.granted("secret")
    assert people.ask(people.certificate("eve", "system:masters"), "GET", keys(attempts)).status == 403
    for name in ("system:node:a", f"system:serviceaccount:{attempts.namespace}:spark", "system:admin"):
        refused = people.ask(people.certificate(name), "GET", keys(attempts))
        assert (refused.status, f"is for {name}, which is no person" in refused.detail) == (401, True)


def test_what_the_ca_did_not_sign_for_a_client_is_no_certificate(people: People, attempts: Attempts) -> None:
    """Of another CA, or expired: the handshake fails and no request is read. The gateway's own certificate would do for no one either."""
    now = dt.datetime.now(dt.UTC)
    old: dict[str, Any] = {"not_before": now - dt.timedelta(days=2), "not_after": now - dt.timedelta(days=1)}
    for shown in (people.certificate("ann", authority=trustme.CA()), people.certificate("ann", **old)):
        with pytest.raises(OSError, match=r"(?i)alert|reset|closed|EOF"):
            people.ask(shown, "GET", keys(attempts))
    assert people.gateway.ask("GET", "/readyz").status == 200


def test_a_certificate_is_for_people_and_programs_alone(people: People, attempts: Attempts) -> None:
    """Not for a driver's route, not for a web page that a browser lets show it, and not as a header that a proxy might set; a token beside
    it counts."""
    shown = people.certificate("ann")
    attempt = attempts.granted("drives")
    beat = {"nonce": attempt.record.nonce, "progress": {}}
    assert people.ask(shown, "POST", f"{attempt.path}/renew", beat).status == 403
    may(
        people.cluster,
        attempts.namespace,
        "ann",
        verbs=["get", "list", "update"],
        resources=["idempotentjobs", "idempotentjobs/cancel"],
    )
    assert people.ask(shown, "GET", keys(attempts)).status == 200
    page = people.ask(shown, "POST", keys(attempts, "/drives/cancel"), {"reason": "r"}, Origin="https://evil.example")
    assert (page.status, "a web page" in page.detail) == (403, True)
    now = run(attempts.store.load(attempt.record.address)).record
    assert now is not None
    assert now.stop_wanted is None
    subject = {"X-Forwarded-Client-Cert": 'Subject="CN=ann"', "X-Ssl-Client-S-Dn": "CN=ann"}
    assert people.ask(None, "GET", keys(attempts), **subject).status == 401
    token = attempts.token(None)
    refused = people.ask(shown, "GET", keys(attempts), Authorization=f"Bearer {token}")
    assert (refused.status, "spark may not list" in refused.detail) == (403, True)
    wrong = people.ask(shown, "GET", keys(attempts), Authorization="Bearer none")
    assert wrong.status == 401, "a token that is refused is not made up for"
    plain = ask(people.gateway.address, "GET", keys(attempts))
    assert plain.status == 403


def release(people: People, namespace: str, **more: str) -> None:
    """What the chart says of the gateway, with an address outside the cluster."""
    data = {
        "url": "https://localhost:8080",
        "audience": gateway_audience(people.gateway.install),
        "publicUrl": people.gateway.url,
        "public-ca.crt": people.cluster.certificates.ca.read_text(),
        **more,
    }
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": GATEWAY}, "data": data}
    people.cluster.api.apply(body, namespace)


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str], attempts: Attempts) -> Say:
    """`kubectl sparkonce` in this process, for a user with this kubeconfig: exit code, standard output and error."""

    def said(kubeconfig: Path, *words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        namespace = attempts.namespace
        where = ["-n", namespace, "--gateway-namespace", namespace, "--kubeconfig", str(kubeconfig)]
        code = command_line(hoisted([*words, *where]), commands=app, name=NAME)
        return int(code), *capfd.readouterr()

    return said


def test_the_plugin_shows_the_kubeconfigs_certificate(people: People, attempts: Attempts, say: Say) -> None:
    """Where the release takes them and the user may make no token: `list` and `rerun` in the user's own name. Where it does not say so, a
    token is tried, and its refusal names the right."""
    namespace, shown = attempts.namespace, people.certificate("ann")
    kubeconfig = people.kubeconfig(shown)
    finish(attempts.granted("done"))
    may(
        people.cluster,
        namespace,
        "ann",
        verbs=["get", "list", "update"],
        resources=["idempotentjobs", "idempotentjobs/rerun"],
    )
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    grant(people.cluster, namespace, "ann", rules)
    release(people, namespace, clientCertificates="true")
    code, out, err = say(kubeconfig, "list")
    assert (code, "done" in out) == (0, True), err
    assert say(kubeconfig, "rerun", "done", "--reason", "r")[0] == 0
    history = json.loads(say(kubeconfig, "history", "done", "--json")[1])["events"]
    assert history[-1]["by"] == "ann"
    people.cluster.api.patch(CONFIG_MAPS, GATEWAY, {"data": {"clientCertificates": None}}, namespace=namespace)
    code, out, err = say(kubeconfig, "list")
    assert (code, out) == (ExitCode.INVALID, "")
    assert "serviceaccounts/token" in err


def test_the_plugin_shows_the_certificate_that_is_named(people: People, attempts: Attempts, say: Say) -> None:
    """Whatever the kubeconfig has. A certificate of another CA, one file alone, a pair that is none, and an account beside it are each
    refused in one sentence."""
    namespace, shown = attempts.namespace, people.certificate("cleo")
    attempts.granted("k")
    may(people.cluster, namespace, "cleo", verbs=["get", "list"], resources=["idempotentjobs"])
    release(people, namespace)
    stranger = people.cluster.kubeconfig_for(people.server.url, token=STRANGER)
    audience = gateway_audience(people.gateway.install)
    ca = str(people.cluster.certificates.ca)
    at = ["--gateway-url", people.gateway.url, "--audience", audience, "--gateway-ca", ca]

    def pair(certificate: Path, key: Path | None = None) -> list[str]:
        return ["--client-certificate", str(certificate), "--client-key", str(key or certificate.with_suffix(".key"))]

    code, out, err = say(stranger, "list", *at, *pair(shown))
    assert (code, "k" in out) == (0, True), err
    foreign, other = people.certificate("cleo", authority=trustme.CA()), people.certificate("dan")
    cases = {
        "it refuses the client certificate": (pair(foreign), ExitCode.UNAVAILABLE),
        "belong together": (["--client-certificate", str(shown)], ExitCode.INVALID),
        "cannot be used with its key": (pair(shown, other.with_suffix(".key")), ExitCode.INVALID),
        "each say who you are": ([*pair(shown), "--service-account", "a"], ExitCode.INVALID),
        "dan may not list idempotentjobs": (pair(other), ExitCode.INVALID),
    }
    for told, (options, expected) in cases.items():
        code, out, err = say(stranger, "list", *at, *options)
        assert told in err
        assert (code, out, len(err.splitlines())) == (expected, "", 1), err
    # The remedies of the first sentence.
    assert say(stranger, "list", *at, *pair(shown))[0] == 0
    _, _, err = say(people.cluster.kubeconfig, "list", *at, "--service-account", f"{namespace}/spark")
    assert "spark may not list idempotentjobs" in err
