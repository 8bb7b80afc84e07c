"""Which callers the gateway trusts, attacked over HTTP: keys with the same text, and tokens made for something else."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from harness.apiserver import Cluster
from harness.etcd import Etcd
from harness.gateways import Answer, Attempts, GatewayProcess, a_gateway, ask, finish, may
from harness.kube_api import SERVICE_ACCOUNTS, ApiError
from sparkonce.blocking import run
from sparkonce.launch.kubernetes import JOBS

DECISIONS = {
    "forget": {"reason": "r"},
    "rerun": {},
    "cancel": {"reason": "r"},
    "resolve": {"reason": "r", "outcome": "failed"},
}


@pytest.fixture(scope="module")
def shared(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with a_gateway(f"http://{ledger_server.one.address}", "gateway-trust", cluster.kubeconfig, folder) as process:
        yield process


PERSON = "person"
"""A service account with every right on keys; people send tokens of such an account."""
RIGHTS = ["idempotentjobs", *(f"idempotentjobs/{verb}" for verb in DECISIONS)]
API_SERVER = ["https://kubernetes.default.svc"]


@pytest.fixture
def attempts(cluster: Cluster, namespace: str, ledger: str, shared: GatewayProcess) -> Iterator[Attempts]:
    made = Attempts(cluster, namespace, ledger, shared.install, shared.url)
    yield made
    made.close()


@pytest.fixture
def person(attempts: Attempts) -> str:
    """A token for this gateway of a person who may decide."""
    cluster, namespace = attempts.cluster, attempts.namespace
    cluster.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": PERSON}}, namespace)
    name = f"system:serviceaccount:{namespace}:{PERSON}"
    may(cluster, namespace, name, verbs=["get", "list", "update"], resources=RIGHTS)
    return attempts.token(None, account=PERSON)


@pytest.fixture(scope="module")
def encrypted(
    cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    ledger, folder = f"http://{ledger_server.one.address}", tmp_path_factory.mktemp("tls")
    with a_gateway(
        ledger, "gateway-trust", cluster.kubeconfig, folder, name="tls", certificates=cluster.certificates
    ) as process:
        yield process


def get(gateway: GatewayProcess, namespace: str, key: str, rest: str = "", *, token: str) -> Answer:
    return gateway.ask("GET", f"/v1/namespaces/{namespace}/keys/{quote(key, safe='')}{rest}", token=token)


def post(gateway: GatewayProcess, namespace: str, key: str, verb: str, *, token: str) -> Answer:
    path = f"/v1/namespaces/{namespace}/keys/{quote(key, safe='')}/{verb}"
    return gateway.ask("POST", path, token=token, body=DECISIONS[verb])


def test_keys_that_read_alike_are_refused_and_listed(shared: GatewayProcess, attempts: Attempts, person: str) -> None:
    """Of `a/b`+`c`, `a`+`b/c` and the explicit key with the same text: every verb refuses the text with 409, lists all three and changes
    nothing. Each is found by its hash, and by the text once only one of them is left."""
    text, namespace = "a/b/c@1", attempts.namespace
    made = {
        "one": attempts.granted("", operation="a/b", resource="c", revision="1", outputs=[]),
        "two": attempts.granted("", operation="a", resource="b/c", revision="1", outputs=[]),
        "three": attempts.granted(text, outputs=[]),
    }
    for each in made.values():
        finish(each)
    hashes = {each.record.key_hash for each in made.values()}
    assert len(hashes) == 3
    refused = [get(shared, namespace, text, rest, token=person) for rest in ("", "/history", "/explain")]
    refused += [post(shared, namespace, text, verb, token=person) for verb in DECISIONS]
    for answer in refused:
        assert answer.status == 409, answer
        assert {each["keyHash"] for each in answer.body["matches"]} == hashes
        assert all(key_hash[:12] in answer.detail for key_hash in hashes)
        assert "operation a, resource b/c" in answer.detail
        assert "name one by more of its hash" in answer.detail
    for each in made.values():
        assert run(attempts.store.load(each.record.address)).record == each.record, "something was done to it"
    listed = shared.ask("GET", f"/v1/namespaces/{namespace}/keys?key={quote(text, safe='')}", token=person)
    assert {each["keyHash"] for each in listed.body["keys"]} == hashes
    one, two, three = (made[name].record.key_hash for name in made)
    assert get(shared, namespace, one, token=person).body["keyHash"] == one
    assert post(shared, namespace, one[:12], "forget", token=person).body["keyHash"] == one
    assert post(shared, namespace, two, "forget", token=person).body["keyHash"] == two
    assert post(shared, namespace, text, "rerun", token=person).body["keyHash"] == three


def test_a_token_for_the_api_server_is_refused(shared: GatewayProcess, attempts: Attempts, person: str) -> None:
    """The gateway refuses a token for the API server, whatever its holder may do, so that it never receives one that is valid elsewhere.
    The sentence names the audience to request."""
    finish(attempts.granted("done"))
    namespace = attempts.namespace
    audience = shared.ask("GET", "/v1/config").body["tokenAudience"]
    for audiences in (API_SERVER, ["gateway.sparkonce.dev/another-release"], ["vault"]):
        token = attempts.token(None, account=PERSON, audiences=audiences)
        answers = [get(shared, namespace, "done", token=token)]
        answers += [post(shared, namespace, "done", verb, token=token) for verb in DECISIONS]
        assert {answer.status for answer in answers} == {401}, audiences
        if audiences == API_SERVER:
            assert f"--audience {audience}`" in answers[0].detail
    made = attempts.token(None, account=PERSON, audiences=[audience])
    assert get(shared, namespace, "done", token=made).body["phase"] == "Succeeded"


def test_a_token_for_the_gateway_is_worth_nothing_elsewhere(cluster: Cluster, attempts: Attempts, person: str) -> None:
    """A token for the gateway is not valid at the API server."""
    api = cluster.server.client(person)
    try:
        with pytest.raises(ApiError) as refused:
            api.get(JOBS, "any", attempts.namespace)
        assert refused.value.code == 401
    finally:
        api.close()


def test_a_driver_speaks_with_its_own_token_alone(shared: GatewayProcess, attempts: Attempts) -> None:
    """A driver whose pod has a token for this gateway cannot renew, seal or report with the pod's genuine token for the API server, even
    while the pod is cached; nor can a settle run."""
    attempt = attempts.granted("new")
    pod = attempt.driver()
    attempt.note(pod)
    beat = {"nonce": attempt.record.nonce, "progress": {}}
    report = {"nonce": attempt.record.nonce, "reporter": "driver", "kind": "committed", "body": {}}
    seal = {"nonce": attempt.record.nonce, "intent": {"token": 1, "slots": {}}}
    assert shared.ask("POST", f"{attempt.path}/renew", token=attempts.token(pod), body=beat).body == {"current": True}
    stolen = attempts.token(pod, audiences=API_SERVER)
    for verb, body in (("renew", beat), ("seal", seal), ("report", report)):
        answer = shared.ask("POST", f"{attempt.path}/{verb}", token=stolen, body=body)
        assert (answer.status, "belongs to no pod of this attempt" in answer.detail) == (403, True), verb
    attempt.settling()
    settles = attempt.settle_run()
    verdict = {"nonce": attempt.record.nonce, "reporter": "settle-1", "kind": "verdict", "body": {}}
    stolen, own = attempts.token(settles, audiences=API_SERVER), attempts.token(settles)
    assert shared.ask("POST", f"{attempt.path}/report", token=stolen, body=verdict).status == 403
    assert shared.ask("POST", f"{attempt.path}/report", token=own, body=verdict).body == {"recorded": True}


def test_attempts_of_the_version_before_go_on(shared: GatewayProcess, attempts: Attempts) -> None:
    """A driver launched by an earlier version, without such a token, renews and reports with its pod's own: an upgrade replaces no attempt.
    Another pod's token is still refused."""
    attempt = attempts.granted("old")
    pod = attempt.driver(earlier=True)
    attempt.note(pod)
    beat = {"nonce": attempt.record.nonce, "progress": {}}
    own = attempts.token(pod, audiences=API_SERVER)
    for _ in range(2):
        assert shared.ask("POST", f"{attempt.path}/renew", token=own, body=beat).body == {"current": True}
    report = {"nonce": attempt.record.nonce, "reporter": "driver", "kind": "committed", "body": {}}
    assert shared.ask("POST", f"{attempt.path}/report", token=own, body=report).body == {"recorded": True}
    other = attempts.granted("other").driver(earlier=True)
    theirs = attempts.token(other, audiences=API_SERVER)
    assert shared.ask("POST", f"{attempt.path}/renew", token=theirs, body=beat).status == 403
    assert get(shared, attempts.namespace, "old", token=own).status == 401, "people's routes know no such exception"


def test_plain_text_is_for_drivers_of_before_alone(encrypted: GatewayProcess, attempts: Attempts, person: str) -> None:
    """Turning TLS on replaces no attempt: a driver that was given an http address goes on with its token. People's routes are refused
    before their token is read, and a newer driver's token for the API server is refused here, too."""
    attempt, new = attempts.granted("before"), attempts.granted("now")
    pod, other = attempt.driver(earlier=True), new.driver()
    attempt.note(pod)
    beat, theirs = ({"nonce": each.record.nonce, "progress": {}} for each in (attempt, new))
    own = attempts.token(pod, audiences=API_SERVER)
    assert ask(encrypted.address, "POST", f"{attempt.path}/renew", token=own, body=beat).body == {"current": True}
    keys = f"/v1/namespaces/{attempts.namespace}/keys"
    for path, token, body in (
        (f"{new.path}/renew", attempts.token(other, audiences=API_SERVER), theirs),
        (keys, person, None),
        ("/v1/config", None, None),
        ("/metrics", None, None),
    ):
        answer = ask(encrypted.address, "POST" if body else "GET", path, token=token, body=body)
        assert answer.status == 403, (path, answer)
    assert encrypted.ask("GET", keys, token=person).status == 200
    token = attempts.token(other)
    for answer in (
        ask(encrypted.address, "POST", f"{new.path}/renew", token=token, body=theirs),
        encrypted.ask("POST", f"{new.path}/renew", token=token, body=theirs),
    ):
        assert answer.body == {"current": True}
