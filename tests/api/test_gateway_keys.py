"""Keys over HTTP: who may read, who may decide, and that answers equal those of the command line. Real tokens and reviews."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from harness.apiserver import ADMIN, STRANGER, Cluster
from harness.etcd import Etcd
from harness.gateways import Answer, Attempt, Attempts, GatewayProcess, a_gateway, finish, may
from harness.jobs import job as job_document
from sparkonce.blocking import run
from sparkonce.controller.objects import ObjectRef
from sparkonce.launch.kubernetes import JOBS
from sparkonce.model.record import HeldReason, Outcome, Settling, State, Why
from sparkonce.store.protocol import Updated

READS = ("GET", ""), ("GET", "/history"), ("GET", "/explain")
DECISIONS = {
    "rerun": {},
    "cancel": {"reason": "r"},
    "resolve": {"reason": "r", "outcome": "retry"},
    "forget": {"reason": "r"},
}


@pytest.fixture(scope="module")
def shared(cluster: Cluster, ledger_server: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with a_gateway(
        f"http://{ledger_server.one.address}", "gateway-keys", cluster.kubeconfig, folder, accept_api_tokens=True
    ) as process:
        yield process


@pytest.fixture
def attempts(cluster: Cluster, namespace: str, ledger: str, shared: GatewayProcess) -> Iterator[Attempts]:
    made = Attempts(cluster, namespace, ledger, shared.install, shared.url)
    yield made
    made.close()


class Desk:
    """A user at the gateway."""

    def __init__(self, gateway: GatewayProcess, namespace: str, token: str | None = ADMIN) -> None:
        self.gateway, self.token = gateway, token
        self.keys = f"/v1/namespaces/{namespace}/keys"

    def get(self, key: str = "", rest: str = "") -> Answer:
        path = f"{self.keys}/{quote(key, safe='')}" if key else self.keys
        return self.gateway.ask("GET", path + rest, token=self.token)

    def post(self, key: str, verb: str, **body: object) -> Answer:
        path = f"{self.keys}/{quote(key, safe='')}/{verb}"
        return self.gateway.ask("POST", path, token=self.token, body=body)


def hold(attempt: Attempt) -> None:
    """Settles the attempt, and holds it for a person."""
    now = run(attempt.store.load(attempt.record.address)).record
    assert now is not None
    settling = Settling(attempt=1, why=Why.LOST, note="it vanished")
    held = now.changed(state=State.HELD, held=HeldReason.UNKNOWN, note="nobody can tell", settling=settling)
    done = run(attempt.store.update(now, attempt.claim, held))
    assert isinstance(done, Updated)
    attempt.record = done.record


def test_keys_are_listed_in_pages_and_by_phase(shared: GatewayProcess, attempts: Attempts) -> None:
    """Each key is listed once over any number of pages; a phase filters, and another namespace's keys are never included."""
    desk = Desk(shared, attempts.namespace)
    keys = {f"k-{n}": attempts.granted(f"k-{n}") for n in range(5)}
    finish(keys["k-0"])
    finish(keys["k-1"], Outcome.FAILED)
    hold(keys["k-2"])
    seen: list[str] = []
    after = ""
    while after is not None:
        page = desk.get(rest=f"?limit=2&after={after}").body
        assert len(page["keys"]) <= 2
        seen += [each["key"] for each in page["keys"]]
        after = page["after"]
    assert sorted(seen) == sorted(keys)
    phases = {"Succeeded": ["k-0"], "Failed": ["k-1"], "Held": ["k-2"], "Pending": ["k-3", "k-4"], "Running": []}
    for phase, expected in phases.items():
        found = desk.get(rest=f"?phase={phase}").body["keys"]
        assert sorted(each["key"] for each in found) == expected, phase
    both = desk.get(rest="?phase=Failed&phase=Held&limit=500").body["keys"]
    assert sorted(each["key"] for each in both) == ["k-1", "k-2"]
    assert desk.get(rest="?phase=Odd").status == 422
    assert [each["key"] for each in desk.get(rest="?key=k-3").body["keys"]] == ["k-3"]
    assert desk.get(rest="?key=k-9").body["keys"] == []


@pytest.mark.parametrize("key", ["plain", "with/slash@and-at", "100%25+space"])
def test_a_key_is_found_by_its_text_and_by_its_hash(shared: GatewayProcess, attempts: Attempts, key: str) -> None:
    """A key may have slashes and percent signs; part of the hash is enough; a wrong text is 404."""
    desk = Desk(shared, attempts.namespace)
    attempt = attempts.granted(key)
    hashed = attempt.record.key_hash
    shown = desk.get(key)
    assert (shown.status, shown.body["keyHash"], shown.body["phase"]) == (200, hashed, "Pending")
    assert shown.body["owner"] == "test"
    assert shown.body["job"]["spec"]["idempotencyKey"] == key
    assert desk.get(hashed).body == desk.get(hashed[:12]).body == shown.body
    assert desk.get(f"{key}x").status == 404


def test_a_derived_key_is_found_by_its_text(shared: GatewayProcess, attempts: Attempts) -> None:
    """Operation and resource are distinguished whatever slashes they contain."""
    attempt = attempts.granted("", operation="load", resource="flights@home/2013-01", revision="r-2", outputs=[])
    found = Desk(shared, attempts.namespace).get("load/flights@home/2013-01@r-2")
    assert (found.status, found.body["keyHash"]) == (200, attempt.record.key_hash)


def test_history_and_explain(shared: GatewayProcess, attempts: Attempts) -> None:
    """The history says who did what; explain says which row decides and what would unblock it."""
    desk = Desk(shared, attempts.namespace)
    attempt = attempts.granted("told")
    hold(attempt)
    events = desk.get("told", "/history").body["events"]
    assert [each["what"] for each in events] == ["Reserved"]
    why = desk.get("told", "/explain").body
    assert why["waitsFor"] == "a person"
    assert "keys resolve told" in why["unblock"]


@pytest.mark.operator
def test_a_person_decides(shared: GatewayProcess, attempts: Attempts) -> None:
    """resolve, cancel, rerun and forget have the same effects as the commands; the history names the user as the API server does."""
    desk = Desk(shared, attempts.namespace)
    held = attempts.granted("decided", outputs=[])
    hold(held)
    assert desk.post("decided", "cancel").status == 409
    assert desk.post("decided", "resolve", reason="saw it", outcome="succeeded").body["phase"] == "Succeeded"
    assert "admin said succeeded: saw it" in str(run(attempts.store.result(held.record.address, 1)))
    assert desk.post("decided", "resolve", reason="again", outcome="failed").status == 409

    opened = desk.post("decided", "rerun", generation=1, reason="the source was wrong")
    assert (opened.status, opened.body["generation"], opened.body["phase"]) == (200, 2, "Pending")
    assert desk.post("decided", "rerun", generation=1).body["generation"] == 2, "a repetition opens no third one"
    assert desk.post("decided", "rerun").status == 409, "generation 2 is in progress"
    named = {each["what"]: each["by"] for each in desk.get("decided", "/history").body["events"]}
    assert (named["Finalized"], named["Reopened"]) == ("admin", "admin")
    assert {each["what"]: each.get("why") for each in desk.get("decided", "/history").body["events"]}["Reopened"] == (
        "the source was wrong"
    )
    [asked] = desk.get("decided", "/explain").body["asked"]
    assert (asked["what"], asked["by"], asked["why"]) == ("Reopened", "admin", "the source was wrong")
    assert desk.post("decided", "rerun", generation=1, reason="x" * 1001).status == 422

    assert desk.post("decided", "cancel", reason="enough").status == 202
    assert desk.post("decided", "cancel", reason="again").status == 202, "a repetition"
    wish = run(attempts.store.load(held.record.address)).record
    assert wish is not None
    assert wish.stop_wanted is not None
    assert (wish.stop_wanted.by, wish.stop_wanted.reason) == ("admin", "enough")
    assert desk.post("decided", "forget", reason="no").status == 409

    done = attempts.granted("done")
    finish(done)
    assert desk.post("done", "cancel").body["phase"] == "Succeeded", "it has ended: nothing is asked for"
    assert desk.post("done", "forget", reason="by mistake").body["floor"] == 1
    assert desk.get("done").status == 404
    history = desk.get("done", "/history").body["events"]
    assert [(each["what"], each["by"]) for each in history][-1] == ("Forgotten", "admin")


def test_a_key_is_not_forgotten_before_its_objects_show_the_end(shared: GatewayProcess, attempts: Attempts) -> None:
    """An object that still waits for the result could never get it afterwards."""
    desk = Desk(shared, attempts.namespace)
    attempt = attempts.granted("waits")
    stored = attempts.cluster.api.create(JOBS, job_document("waiting", key="waits"), attempts.namespace)
    run(attempts.store.attach(attempt.record, str(ObjectRef.of(stored))))
    finish(attempt)
    refused = desk.post("waits", "forget", reason="r")
    assert (refused.status, "does not show the end" in refused.detail) == (409, True)
    attempts.cluster.api.delete(JOBS, "waiting", attempts.namespace)
    attempts.cluster.api.gone(JOBS, "waiting", attempts.namespace)
    assert desk.post("waits", "forget", reason="r").status == 200


@pytest.mark.operator
def test_without_the_right_nobody_learns_whether_a_key_exists(shared: GatewayProcess, attempts: Attempts) -> None:
    """At every route a stranger gets the same answer for a key that exists and for one that does not; without a token it is 401."""
    attempts.granted("secret")
    for token, status in ((STRANGER, 403), (None, 401)):
        desk = Desk(shared, attempts.namespace, token)
        assert desk.get().status == desk.get(rest="?key=secret").status == status
        for _, rest in READS:
            here, there = desk.get("secret", rest), desk.get("absent", rest)
            assert (here.status, here.body) == (there.status, there.body) == (status, here.body), rest
        for verb, body in DECISIONS.items():
            here, there = desk.post("secret", verb, **body), desk.post("absent", verb, **body)
            assert (here.status, here.body) == (there.status, there.body) == (status, here.body), verb
    record = run(attempts.store.load(attempts.wanted("secret").address)).record
    assert record is not None
    assert (record.stop_wanted, record.state) == (None, State.IN_PROGRESS)


@pytest.mark.operator
def test_each_verb_is_a_right_of_its_own(shared: GatewayProcess, attempts: Attempts) -> None:
    """The right to read is not the right to decide, nor is the right to edit objects: each decision needs `update` on its own
    subresource."""
    cluster, namespace = attempts.cluster, attempts.namespace
    desk = Desk(shared, namespace, STRANGER)
    finish(attempts.granted("rights"))
    may(cluster, namespace, "stranger", verbs=["get", "list"], resources=["idempotentjobs"])
    assert desk.get("rights").status == 200
    assert desk.get().status == 200
    may(cluster, namespace, "stranger", verbs=["update", "patch"], resources=["idempotentjobs"])
    for verb, body in DECISIONS.items():
        assert desk.post("rights", verb, **body).status == 403, verb
    may(cluster, namespace, "stranger", verbs=["update"], resources=["idempotentjobs/rerun"])
    assert desk.post("rights", "rerun").status == 200
    assert desk.post("rights", "cancel").status == 403
    elsewhere = Desk(shared, "default", STRANGER)
    assert elsewhere.get().status == 403
