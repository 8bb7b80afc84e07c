"""Decisions of one team hang because its outputs never answer: the gateway continues to carry out other teams' decisions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.gateways import Answer, Attempt, Attempts, GatewayProcess, a_gateway, may
from harness.kube_api import SERVICE_ACCOUNTS
from harness.patience import stretched
from sparkonce.blocking import run
from sparkonce.gateway.decisions import PER_REALM
from sparkonce.gateway.serving import FINISH
from sparkonce.launch.kubernetes import NAMESPACES
from sparkonce.model.record import HeldReason, Outcome, State
from sparkonce.sink.protocol import SinkKey
from sparkonce.sink.slotlog import layout

PERSON = "person"
RIGHTS = ["idempotentjobs", "idempotentjobs/resolve"]
HUNG = 12
"""More keys than the gateway carries out decisions for at once."""


class Team:
    """A namespace with a person who may decide, and keys that are held."""

    def __init__(self, gateway: GatewayProcess, attempts: Attempts, folder: Path) -> None:
        self.gateway, self.attempts, self.folder = gateway, attempts, folder
        cluster, namespace = attempts.cluster, attempts.namespace
        cluster.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": PERSON}}, namespace)
        user = f"system:serviceaccount:{namespace}:{PERSON}"
        may(cluster, namespace, user, verbs=["get", "list", "update"], resources=RIGHTS)
        self.token = attempts.token(None, account=PERSON)

    def held(self, key: str) -> Attempt:
        outputs = [{"name": "orders", "slotLog": {"path": str(self.folder / key)}}]
        attempt = self.attempts.granted(key, outputs=outputs)
        attempt.settling()
        attempt.update(state=State.HELD, held=HeldReason.PARTIAL, note="held")
        (self.folder / key / layout.SLOTS).mkdir(parents=True)
        return attempt

    def hung(self, key: str) -> Path:
        return self.plant(self.held(key))

    def plant(self, attempt: Attempt) -> Path:
        """Replaces the slot of a held key by a pipe: reading it waits for a writer that never comes."""
        record = attempt.record
        own = SinkKey(key_hash=record.key_hash, output="orders", generation=record.generation)
        pipe = self.folder / record.key / layout.slot_path(own, record.attempt)
        pipe.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(pipe)
        return pipe

    def resolve(self, key: str, *, timeout: float) -> Answer:
        path = f"/v1/namespaces/{self.attempts.namespace}/keys/{key}/resolve"
        body = {"reason": "an attack", "outcome": "failed"}
        return self.gateway.ask("POST", path, token=self.token, body=body, timeout=timeout)

    def outcome(self, attempt: Attempt) -> Outcome | None:
        record = run(self.attempts.store.load(attempt.record.address)).record
        return record.outcome if record else None


@pytest.fixture
def gateway(cluster: Cluster, ledger: str, install: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that reads outputs itself."""
    settles = {"SPARKONCE_SETTLE": "operator"}
    with a_gateway(ledger, install, cluster.kubeconfig, tmp_path, environment=settles) as process:
        yield process


@pytest.fixture
def install(namespace: str) -> str:
    return f"i-{namespace}"


@pytest.fixture
def attacker(gateway: GatewayProcess, cluster: Cluster, namespace: str, ledger: str, tmp_path: Path) -> Iterator[Team]:
    with a_team(gateway, cluster, namespace, ledger, tmp_path / "hung") as made:
        yield made


@pytest.fixture
def other(gateway: GatewayProcess, cluster: Cluster, namespace: str, ledger: str, tmp_path: Path) -> Iterator[Team]:
    name = f"{namespace}-other"
    cluster.api.create(NAMESPACES, {"metadata": {"name": name}})
    with a_team(gateway, cluster, name, ledger, tmp_path / "well") as made:
        yield made
    cluster.api.delete(NAMESPACES, name)


@contextmanager
def a_team(gateway: GatewayProcess, *where: Any) -> Iterator[Team]:
    cluster, namespace, ledger, folder = where
    attempts = Attempts(cluster, namespace, ledger, gateway.install, gateway.url)
    yield Team(gateway, attempts, folder)
    attempts.close()


def unplug(pipes: list[Path]) -> None:
    """Ends all reads of the pipes."""
    for each in pipes:
        if each.exists():
            os.close(os.open(each, os.O_RDWR | os.O_NONBLOCK))
            each.unlink()


def ended(calls: list[Future[Answer]]) -> list[Answer]:
    return [each.result() for each in calls if each.done()]


def test_outputs_that_hang_hold_up_their_own_teams_decisions_alone(attacker: Team, other: Team) -> None:
    """Of a dozen decisions of one team about outputs that hang, two are under way, and the others are refused at once with a time to retry.
    The other team's decision is carried out within seconds. Once the outputs answer, all calls end and the team can decide again."""
    pipes = [attacker.hung(f"hung-{number}") for number in range(HUNG)]
    well, later = other.held("well"), attacker.held("later")
    with ThreadPoolExecutor(HUNG) as callers:
        try:
            calls = [callers.submit(attacker.resolve, f"hung-{n}", timeout=stretched(50)) for n in range(HUNG)]
            assert_eventually(lambda: ended(calls), 20, interval=0.1)  # the others are being carried out
            began = time.monotonic()
            answer = other.resolve("well", timeout=stretched(20))
            seconds = time.monotonic() - began
            assert (answer.status, other.outcome(well)) == (200, Outcome.FAILED), answer
            assert seconds < stretched(5), "it waited for the other team"
            assert_eventually(lambda: len(ended(calls)) >= HUNG - PER_REALM, 20, interval=0.1)
            refused = ended(calls)
            assert len(refused) == HUNG - PER_REALM, "not as many hang as the test is about"
        finally:
            unplug(pipes)
        assert {each.status for each in refused} == {503}
        assert all(int(each.headers["retry-after"]) > 0 for each in refused)
        assert all(f"keys of {attacker.attempts.namespace} " in each.detail for each in refused)
        assert_eventually(lambda: all(each.done() for each in calls), 40, interval=0.1)
    assert attacker.resolve("later", timeout=stretched(20)).status == 200
    assert attacker.outcome(later) is Outcome.FAILED


def test_a_gateway_whose_decision_hangs_ends_in_time(attacker: Team, gateway: GatewayProcess) -> None:
    """After SIGTERM the gateway ends within the time that it gives to requests in progress, although an output does not answer: one team's
    pipe does not hold up a Deployment's rollout."""
    key = attacker.held("hung")
    pipe = attacker.plant(key)
    limit = stretched(FINISH + 10)
    with ThreadPoolExecutor(1) as caller:
        try:
            call = caller.submit(attacker.resolve, "hung", timeout=stretched(50))
            assert_eventually(lambda: run(attacker.attempts.store.load(key.record.address)).claim, 20)
            began = time.monotonic()
            gateway.child.end(timeout=limit + 5)  # after this it would be killed
            assert time.monotonic() - began < limit
            assert attacker.outcome(key) is None, "its output answered"
        finally:
            unplug([pipe])
        assert call.exception() or call.result().status >= 500
