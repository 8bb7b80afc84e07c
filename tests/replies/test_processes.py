"""Real processes of the example's order service that die, freeze and race: each key has one order, whatever happens."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import pytest

from harness import effort
from harness.child import frozen
from harness.etcd_replies import emptied
from harness.eventually import assert_eventually
from harness.orders import OrderService, order, placed
from harness.patience import promised

PATIENCE = 30.0
"""Seconds until a key that is sent again has an answer."""
ONLY = {"k1": 1}
OF_OWNERS = [
    "replies.reserved",
    "replies.effect.before",
    "replies.effect.after",
    "replies.finalize.before",
    "replies.finalize.after",
]
OF_FOLLOWERS = ["replies.taken", "replies.reconciled"]


@dataclass(frozen=True)
class Ledger:
    replies: str
    """Its address."""
    lease: float
    """Seconds."""


@pytest.fixture(params=["sqlite", "etcd-3"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "sqlite":
        return Ledger(f"sqlite:///{tmp_path / 'replies.db'}", lease=1.0)
    return Ledger(emptied(), lease=2.0)  # etcd grants none that is shorter


def dies(folder: Path, ledger: Ledger, failpoints: str) -> None:
    """A process that is killed while it serves the order."""
    with OrderService(folder, failpoints=failpoints, **asdict(ledger)) as service:
        with pytest.raises(httpx.TransportError):
            order(service.url, "k1")
        service.process.end(timeout=10)


def settled(folder: Path, ledger: Ledger) -> None:
    """Another process answers the order, and repeats its answer; there is one order. On a busy machine its claim may end under it: it says
    503 then, and the client sends the key again."""
    with OrderService(folder, **asdict(ledger)) as service:
        assert_eventually(lambda: order(service.url, "k1").status_code != 503, PATIENCE)
        first, second = order(service.url, "k1"), order(service.url, "k1")
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert placed(folder) == ONLY


@pytest.mark.parametrize("point", OF_OWNERS)
def test_r10_r21_a_service_killed_at_any_point_places_one_order(tmp_path: Path, ledger: Ledger, point: str) -> None:
    """R-10, R-21: the next process finds the dead one's order, or that there is none and can be none, and goes on."""
    dies(tmp_path, ledger, f"{point}=kill")
    assert placed(tmp_path) in ({}, ONLY)
    settled(tmp_path, ledger)


@pytest.mark.parametrize("point", OF_FOLLOWERS)
@pytest.mark.parametrize("owner", ["replies.effect.before", "replies.effect.after"])
def test_a_follower_killed_while_it_reconciles_leaves_the_key_to_the_next(
    tmp_path: Path, ledger: Ledger, point: str, owner: str
) -> None:
    """Whether the owner had placed its order or not."""
    dies(tmp_path, ledger, f"{owner}=kill")
    dies(tmp_path, ledger, f"{point}=kill")
    settled(tmp_path, ledger)


@pytest.mark.parametrize("point", ["replies.effect.before", "replies.effect.after", "replies.finalize.before"])
def test_r16_r17_a_frozen_owner_is_replaced_within_its_lease_and_changes_nothing_when_it_wakes(
    tmp_path: Path, ledger: Ledger, point: str
) -> None:
    """A follower answers within lease + 1 s. The woken owner's order is refused by its token, and its client gets the same answer, or
    none."""
    with (
        OrderService(tmp_path, failpoints=f"{point}=1*stop", **asdict(ledger)) as owner,
        OrderService(tmp_path, **asdict(ledger)) as follower,
        ThreadPoolExecutor(1) as client,
    ):
        asking = client.submit(order, owner.url, "k1")
        assert_eventually(lambda: frozen(owner.process.pid), 30.0)
        began = time.monotonic()
        answer = order(follower.url, "k1")
        assert time.monotonic() - began < promised(ledger.lease + 1)
        assert answer.status_code == 201
        owner.process.thaw()
        late = asking.result(timeout=60)
        assert late.status_code == 503 or late.json() == answer.json()
        assert order(owner.url, "k1").json() == order(follower.url, "k1").json() == answer.json()
        assert placed(tmp_path) == ONLY


def test_r61_a_ledger_that_is_wiped_doubles_no_order(tmp_path: Path) -> None:
    """R-61: the service keeps the key with its effect, so it finds the order that its lost ledger knew."""
    with OrderService(tmp_path) as service:
        first = order(service.url, "k1")
    for file in tmp_path.glob("replies.db*"):
        file.unlink()
    with OrderService(tmp_path) as service:
        assert order(service.url, "k1").json() == first.json()
    assert placed(tmp_path) == ONLY


def test_r01_64_clients_of_two_processes_place_one_order(tmp_path: Path, ledger: Ledger) -> None:
    """R-01: one effect, and 64 agreeing answers, 63 of them marked as replays."""
    with (
        OrderService(tmp_path, replies=ledger.replies) as one,
        OrderService(tmp_path, replies=ledger.replies) as other,
        ThreadPoolExecutor(64) as clients,
    ):
        answers = list(clients.map(lambda number: order((one, other)[number % 2].url, "k1"), range(64)))
    assert placed(tmp_path) == ONLY
    assert {(each.status_code, each.text, each.headers["location"]) for each in answers} == {
        (201, answers[0].text, answers[0].headers["location"])
    }
    assert sum("idempotency-replayed" in each.headers for each in answers) == 63


def test_keys_sent_again_until_answered_have_one_order_each_while_processes_are_killed(
    tmp_path: Path, ledger: Ledger
) -> None:
    """Two processes, one of which is killed or frozen at any moment: every client repeats its request until it is answered, at either
    process. Each key has one order, and all its answers name it."""
    keys, seed = effort.size("reply keys"), effort.seed("reply keys")
    print(f"seed {seed}, {keys} keys")
    draw = random.Random(seed)
    services = [OrderService(tmp_path, **asdict(ledger)).start() for _ in range(2)]
    over = threading.Event()

    def repeats(number: int) -> set[str]:
        mine = random.Random(seed + number)
        answers: set[str] = set()
        while len(answers) == 0 or mine.random() < 0.7:
            try:
                got = order(mine.choice(services).url, f"key-{number}", timeout=5.0)
            except httpx.TransportError:
                time.sleep(0.1)  # a client between two tries, while a service starts again
                continue
            if got.status_code == 201:
                answers.add(got.text)
            else:
                assert got.status_code in (409, 500, 503), got.text
                time.sleep(0.2)  # likewise: the answer is awaited by the next try
        return answers

    def strikes() -> None:
        while not over.wait(draw.uniform(0.1, 0.8)):
            victim = draw.choice(services)
            if draw.random() < 0.5:
                victim.process.freeze()
                over.wait(draw.uniform(0.2, 2 * ledger.lease))
                victim.process.thaw()
            else:
                victim.process.kill()
                victim.start()

    with ThreadPoolExecutor(1) as faults, ThreadPoolExecutor(8) as clients:
        striking = faults.submit(strikes)
        try:
            answers = list(clients.map(repeats, range(keys)))
        finally:
            over.set()
            striking.result()
            for service in services:
                service.process.thaw()
                service.process.kill()
    assert placed(tmp_path) == {f"key-{number}": 1 for number in range(keys)}
    assert [len(each) for each in answers] == [1] * keys
