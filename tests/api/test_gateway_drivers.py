"""Drivers at the gateway: which callers are accepted, which are refused, and that a refusal reveals nothing. Real tokens, real reviews."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import STRANGER, Cluster
from harness.eventually import assert_eventually
from harness.forged import forgeries, intent_for
from harness.gateways import ACCOUNT, Answer, Attempt, Attempts, GatewayProcess, a_gateway
from harness.kube_api import Json
from sparkonce.blocking import run
from sparkonce.gateway.tokens import KEPT
from sparkonce.launch.kubernetes import NAMESPACES, PODS
from sparkonce.model.record import Intent

NOBODY = "f" * 64
"""Hash of a key that does not exist."""


@pytest.fixture(scope="module")
def shared(
    cluster: Cluster, ledger_server: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """One gateway for this file; each test has its own namespace."""
    folder = tmp_path_factory.mktemp("gateway")
    ledger = f"http://{ledger_server.one.address}"  # type: ignore[attr-defined]  # the fixture's type is the harness's
    with a_gateway(ledger, "gateway-drivers", cluster.kubeconfig, folder) as process:
        yield process


@pytest.fixture
def attempts(cluster: Cluster, namespace: str, ledger: str, shared: GatewayProcess) -> Iterator[Attempts]:
    made = Attempts(cluster, namespace, ledger, shared.install, shared.url)
    yield made
    made.close()


def renew(gateway: GatewayProcess, attempt: Attempt, token: str | None, **change: object) -> Answer:
    body = {"nonce": attempt.record.nonce, "progress": {"rows": 7}, **change}
    return gateway.ask("POST", f"{attempt.path}/renew", token=token, body=body)


def seal(gateway: GatewayProcess, attempt: Attempt, token: str) -> Answer:
    body = {"nonce": attempt.record.nonce, "intent": intent_for(attempt.record).dump()}
    return gateway.ask("POST", f"{attempt.path}/seal", token=token, body=body)


def report(
    gateway: GatewayProcess, attempt: Attempt, token: str, kind: str = "values", *, reporter: str = "", **body: object
) -> Answer:
    reporter = reporter or ("settle-1" if kind == "verdict" else f"r-{kind}")
    said = {"nonce": attempt.record.nonce, "reporter": reporter, "kind": kind, "body": body}
    return gateway.ask("POST", f"{attempt.path}/report", token=token, body=said)


@pytest.mark.operator
def test_the_driver_is_heard(shared: GatewayProcess, attempts: Attempts) -> None:
    """With its pod's token a driver renews before and after the record notes it, and reports and seals; all of it is in the ledger."""
    attempt = attempts.granted("heard")
    pod = attempt.driver()
    token = attempts.token(pod)
    assert renew(shared, attempt, token).body == {"current": True}
    attempt.note(pod)
    assert renew(shared, attempt, token).body == {"current": True}
    assert report(shared, attempt, token, rows=3).body == {"recorded": True}
    assert report(shared, attempt, token, rows=3).body == {"recorded": True}, "a repetition"
    assert report(shared, attempt, token, rows=4).body == {"recorded": False}, "another body under one name"
    assert seal(shared, attempt, token).status == 200
    assert seal(shared, attempt, token).status == 200, "a repetition"
    record = attempt.record
    beats = run(attempts.store.beats(record.address, 1))
    assert beats[1, "driver"].progress == {"rows": 7}
    [entry] = run(attempts.store.reports(record.address, 1))
    assert (entry.kind, entry.body) == ("values", {"rows": 3})
    assert run(attempts.store.intent(record.address, 1)) == intent_for(record)


@pytest.mark.operator
def test_a_forged_seal_is_refused_with_its_field(shared: GatewayProcess, attempts: Attempts) -> None:
    """Whatever the attempt's own driver sends as a seal, it gets a sentence with the field, nothing is sealed, and a valid seal is still
    accepted."""
    attempt = attempts.granted("forged")
    token, sound = attempts.token(attempt.driver()), intent_for(attempt.record).slots["orders"]
    folder = f"_data/{sound['sinkKey']}/0000000001-{sound['nonce']}"
    for name, slot in forgeries(sound, folder).items():
        body = {"nonce": attempt.record.nonce, "intent": {"token": 1, "slots": {"orders": slot}}}
        refused = shared.ask("POST", f"{attempt.path}/seal", token=token, body=body)
        assert refused.status in (400, 413, 422), (
            name,
            refused.status,
        )  # 413, 422: too large or too deep to be read at all
        if refused.status == 400:
            assert refused.body["detail"].startswith("the transaction's slots.orders"), name
    other = {"nonce": attempt.record.nonce, "intent": {"token": 1, "slots": {"theirs": sound}}}
    assert shared.ask("POST", f"{attempt.path}/seal", token=token, body=other).status == 400
    assert run(attempts.store.intent(attempt.record.address, 1)) is None
    assert seal(shared, attempt, token).status == 200


def test_an_attempt_that_is_over_is_told_so(shared: GatewayProcess, attempts: Attempts) -> None:
    """Its own pod asks, so it gets the ledger's answer: not sealed while the attempt is settled, then not current and not recorded."""
    attempt = attempts.granted("over")
    pod = attempt.driver()
    token, first = attempts.token(pod), attempt.path
    attempt.settling()
    assert renew(shared, attempt, token).body == {"current": True}
    refused = seal(shared, attempt, token)
    assert (refused.status, refused.body["refused"]) == (409, True)
    assert "is being settled" in refused.body["reason"]
    nonce = attempt.record.nonce
    attempt.update(attempt=2, nonce="another")
    for verb, said in (("renew", {"current": False}), ("report", {"recorded": False})):
        body = {"nonce": nonce} | ({"reporter": "r", "kind": "values"} if verb == "report" else {})
        assert shared.ask("POST", f"{first}/{verb}", token=token, body=body).body == said


def outsiders(attempts: Attempts, attempt: Attempt) -> dict[str, tuple[str | None, int]]:
    """Tokens that are not the driver's, with the expected status."""
    other = attempts.granted(f"other-{attempt.record.key}")
    deleted = attempt.driver()
    gone = attempts.token(deleted)
    attempts.cluster.api.delete(PODS, deleted["metadata"]["name"], attempts.namespace, grace=0)
    plain = attempts.cluster.api.create(PODS, plain_pod("plain"), attempts.namespace)
    twin = attempt.driver(name=f"{attempt.assignment.name}-driver-2")
    settles = attempt.settle_run()
    return {
        "none": (None, 401),
        "garbage": ("garbage", 401),
        "a deleted pod's": (gone, 401),
        "unbound": (attempts.token(None), 403),
        "another attempt's": (attempts.token(other.driver()), 403),
        "another pod's": (attempts.token(plain), 403),
        "a twin's": (attempts.token(twin), 403),
        "a user's": (STRANGER, 403),
        "a settle run's": (attempts.token(settles), 403),
    }


def plain_pod(name: str) -> Json:
    container = {"name": "c", "image": "registry.example/c"}
    return {"metadata": {"name": name}, "spec": {"serviceAccountName": ACCOUNT, "containers": [container]}}


@pytest.mark.operator
def test_nobody_else_is_heard_and_learns_nothing(shared: GatewayProcess, attempts: Attempts) -> None:
    """A caller that is not the attempt's pod gets the same refusal for an existing key and a missing one, and nothing is written."""
    attempt = attempts.granted("mine")
    nowhere = attempt.path.replace(attempt.record.key_hash, NOBODY)
    bodies = {
        "renew": {"nonce": attempt.record.nonce},
        "seal": {"nonce": attempt.record.nonce, "intent": intent_for(attempt.record).dump()},
        "report": {"nonce": attempt.record.nonce, "reporter": "r", "kind": "values"},
    }
    for who, (token, status) in outsiders(attempts, attempt).items():
        for verb, body in bodies.items():
            if (who, verb) == ("a settle run's", "report"):
                continue
            here = shared.ask("POST", f"{attempt.path}/{verb}", token=token, body=body)
            there = shared.ask("POST", f"{nowhere}/{verb}", token=token, body=body)
            assert here.status == status, (who, verb, here.body)
            assert here.headers["content-type"] == "application/problem+json"
            if who != "a settle run's":  # the settle run is the attempt's own, and is told the reason
                assert (there.status, there.body) == (here.status, here.body), (who, verb)
    record = attempt.record
    assert run(attempts.store.load(record.address)).record == record
    assert not run(attempts.store.beats(record.address, 1))
    assert not run(attempts.store.reports(record.address, 1))


def test_a_pod_of_another_namespace_is_refused(shared: GatewayProcess, attempts: Attempts, ledger: str) -> None:
    """This holds even for a pod that copies the driver's name, nonce and labels."""
    attempt = attempts.granted("copied")
    copied = attempt.driver()["metadata"]
    elsewhere = f"{attempts.namespace}-b"
    attempts.cluster.api.create(NAMESPACES, {"metadata": {"name": elsewhere}})
    others = Attempts(attempts.cluster, elsewhere, ledger, shared.install, shared.url)
    pod = plain_pod(copied["name"])
    pod["metadata"] |= {"labels": copied["labels"], "annotations": copied["annotations"]}
    token = others.token(others.cluster.api.create(PODS, pod, elsewhere))
    assert renew(shared, attempt, token).status == 403
    assert seal(shared, attempt, token).status == 403
    others.close()
    attempts.cluster.api.delete(NAMESPACES, elsewhere)


def test_a_wrong_nonce_is_refused(shared: GatewayProcess, attempts: Attempts) -> None:
    """The request's nonce must be the pod's, and the pod's must be the record's: numbers alone do not identify an attempt."""
    attempt = attempts.granted("nonce")
    token = attempts.token(attempt.driver())
    assert renew(shared, attempt, token, nonce="guessed").status == 403
    attempt.update(nonce="drawn-anew")
    assert renew(shared, attempt, token).status == 403, "the record's nonce is not the pod's"


def test_what_the_record_notes_counts(shared: GatewayProcess, attempts: Attempts) -> None:
    """A pod of another application with the same name, or a second pod after the noted driver, is not the driver."""
    attempt = attempts.granted("noted")
    first = attempt.driver()
    attempt.note(first)
    attempts.cluster.api.delete(PODS, first["metadata"]["name"], attempts.namespace, grace=0)
    second = attempt.driver()
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert renew(shared, attempt, attempts.token(second)).status == 403
    assert attempt.record.application is not None
    foreign = attempt.record.application.model_copy(update={"uid": "of-another", "driver": second["metadata"]["uid"]})
    attempt.update(application=foreign)
    assert renew(shared, attempt, attempts.token(second)).status == 403


@pytest.mark.operator
def test_a_verdict_is_a_settle_runs(shared: GatewayProcess, attempts: Attempts) -> None:
    """A verdict is refused from a driver, and about an attempt that is not being settled; a settle run's is then recorded."""
    attempt = attempts.granted("verdict")
    driver, settles = attempts.token(attempt.driver()), attempts.token(attempt.settle_run())
    body: dict[str, Any] = {"verdict": "None", "note": "", "slots": {}}
    early = report(shared, attempt, settles, "verdict", **body)
    assert (early.status, "not being settled" in early.detail) == (409, True)
    attempt.settling()
    assert report(shared, attempt, driver, "verdict", **body).status == 403
    assert report(shared, attempt, driver, "values", reporter="settle-1").status == 403, "a name of settle runs"
    assert report(shared, attempt, settles, "verdict", reporter="r-1", **body).status == 403
    assert report(shared, attempt, settles, "values", reporter="settle-1").status == 403
    assert not run(attempts.store.reports(attempt.record.address, 1))
    assert report(shared, attempt, settles, "verdict", **body).body == {"recorded": True}
    [entry] = run(attempts.store.reports(attempt.record.address, 1))
    assert (entry.kind, entry.body) == ("verdict", body)


def test_a_deleted_pod_may_beat_for_seconds_and_seals_no_more(shared: GatewayProcess, attempts: Attempts) -> None:
    """A cached token is enough for a heartbeat only: a seal reads the pod each time, and identifies it by its UID."""
    unnoted, attempt = attempts.granted("unnoted"), attempts.granted("deleted")
    early = unnoted.driver()
    first = attempts.token(early)
    assert renew(shared, unnoted, first).status == 200
    attempts.cluster.api.delete(PODS, early["metadata"]["name"], attempts.namespace, grace=0)
    unnoted.driver()  # another pod of that name and nonce, while the first one's token is cached
    assert seal(shared, unnoted, first).status == 403

    pod = attempt.driver()
    attempt.note(pod)
    token = attempts.token(pod)
    assert renew(shared, attempt, token).status == 200
    attempts.cluster.api.delete(PODS, pod["metadata"]["name"], attempts.namespace, grace=0)
    assert seal(shared, attempt, token).status in (401, 403)
    assert report(shared, attempt, token).status in (401, 403)
    assert_eventually(lambda: renew(shared, attempt, token).status in (401, 403), KEPT + 10, interval=1.0)
    assert attempt.record.intent is None


def test_reports_are_limited(shared: GatewayProcess, attempts: Attempts) -> None:
    """A report over 16 KiB, or beyond the attempt's limit, is answered 413 with a sentence; what was recorded before may be repeated."""
    attempt = attempts.granted("reports")
    token = attempts.token(attempt.driver())
    large = report(shared, attempt, token, "values", reporter="large", text="a" * 17_000)
    assert (large.status, "at most 16,384 of each" in large.detail) == (413, True)
    answers = [report(shared, attempt, token, reporter=f"r-{n}", text="a" * 16_000).status for n in range(50)]
    assert (answers[0], answers[-1], set(answers)) == (200, 413, {200, 413})
    assert answers == sorted(answers), "once it is refused it stays refused"
    assert report(shared, attempt, token, reporter="r-0", text="a" * 16_000).status == 200, "a repetition"


def test_a_body_is_limited_and_named(shared: GatewayProcess, attempts: Attempts) -> None:
    """Too large a body is 413, an invalid one 422, an unknown path 404; without a token the answer is 401, and the body is not read."""
    attempt = attempts.granted("bodies")
    token = attempts.token(attempt.driver())
    renews = f"{attempt.path}/renew"
    huge = b'{"nonce":"' + b"x" * 100_000 + b'"}'
    assert shared.ask("POST", renews, token=token, raw=huge).status == 413
    assert shared.ask("POST", renews, raw=huge).status == 401
    assert shared.ask("POST", renews, token=token, raw=b"{").status == 422
    assert shared.ask("POST", renews, token=token, body={"nonce": "n", "extra": 1}).status == 422
    assert shared.ask("POST", f"{attempt.path}/sael", token=token, body={}).status == 404
    assert shared.ask("GET", renews, token=token).status == 405
    mismatched = {"nonce": attempt.record.nonce, "intent": Intent(token=2, slots={}).dump()}
    assert shared.ask("POST", f"{attempt.path}/seal", token=token, body=mismatched).status == 400
    for code in (401, 404, 413, 422):
        assert f'status="{code}"' in shared.ask("GET", "/metrics").body


def test_it_says_what_it_serves(shared: GatewayProcess, tmp_path: Path) -> None:
    """Health, readiness, the configuration and the OpenAPI document are public; the document describes keys and attempts."""
    del tmp_path
    assert shared.ask("GET", "/healthz").body == "ok\n"
    assert shared.ask("GET", "/readyz").body == "ok\n"
    lifetime = shared.ask("GET", "/v1/config").body["idempotencyKeyLifetimeSeconds"]
    assert lifetime == {"succeeded": 30 * 86400, "failed": 7 * 86400}
    paths = shared.ask("GET", "/openapi.json").body["paths"]
    assert "/v1/attempts/{namespace}/{key_hash}/{generation}/{attempt}/seal" in paths
    assert "/v1/namespaces/{namespace}/keys/{key}/explain" in paths
