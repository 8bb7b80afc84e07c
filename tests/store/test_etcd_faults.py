"""etcd is killed, its replies are lost, owners freeze, the disk fills up: the committed state is compared with what callers were
answered."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness import effort, etcd, proxy
from harness.ballast import FLAGS, QUOTA, fill, fill_up, make_room
from harness.eventually import assert_eventually
from harness.patience import stretched
from sparkonce.blocking import run
from sparkonce.errors import StoreFull, StoreUnavailable
from sparkonce.model.record import State, StopWanted, Why
from sparkonce.store.protocol import (
    Attached,
    Duplicate,
    Finalized,
    IdempotencyStore,
    Lease,
    Lost,
    LostOwnership,
    Owned,
    Refused,
    Updated,
)
from store.backends import Clock
from store.etcd_backend import Etcd, fresh_install, opened
from store.insisting import answered
from store.racing import at_once
from store.samples import Key, address_of, fresh, request, reserved, result, taken
from store.worker import Worker

KEYS = effort.size("lossy keys")
CALLERS = 3
ROUNDS = 20 if effort.effort() is effort.Effort.SOAK else 1
"""Maximum number of rounds; each loses a few replies."""
SHORT = 0.4
"""Timeout of a request, in seconds, in tests that lose replies: each loss costs one timeout."""
SOON = 20.0
"""Seconds for something that takes a few; only a defect or a stalled machine takes this long."""


@pytest.fixture
def shared() -> Iterator[Etcd]:
    """An empty install on a member that tests reach only through proxies, or do not disturb."""
    made = Etcd(Clock(), members=1)
    yield made
    made.close()


@contextmanager
def behind_a_proxy(etcd: Etcd, **options: Any) -> Iterator[tuple[IdempotencyStore, proxy.Proxy]]:
    """A handle whose connection to etcd the test can disturb."""
    with proxy.in_front_of(etcd.cluster.one.address) as line:
        store = opened([line.address], etcd.install, **({"timeout": SHORT, "ttl": 60} | options))
        try:
            yield store, line
        finally:
            line.heal()
            run(store.close())


# --- no reserve is ever reported lost when it won


@dataclass(frozen=True)
class Told:
    """One caller's answer about one key."""

    key: str
    nonce: str
    owned: bool
    owner: str
    """The nonce of the claim that the caller was shown."""
    unanswered: int


def lease_of(store: IdempotencyStore, lease: Lease) -> str:
    return lease.id


def reserve_all(store: IdempotencyStore, lease: Lease, keys: tuple[int, ...], caller: int) -> list[Told]:
    """Reserves every key in this caller's own order, repeating each call until it is answered."""
    told = []
    for number in random.Random(caller).sample(keys, len(keys)):
        asked = request(f"key-{number}", nonce=f"{caller}-{number}")
        done, unanswered = None, 0
        while done is None:
            try:
                done = run(store.reserve(asked, lease=lease, floor=0))
            except StoreUnavailable:
                unanswered += 1
                time.sleep(0.01)  # the pause before a retry
        assert isinstance(done, Owned | Duplicate), done
        owner = done.claim.nonce if done.claim else "nobody"
        told.append(Told(asked.key, asked.nonce, isinstance(done, Owned), owner, unanswered))
    return told


def spoil(line: proxy.Proxy, member: etcd.Member, over: threading.Event) -> None:
    """Drops replies, breaks connections, and kills and restarts etcd repeatedly, until every caller has its answers."""
    for number in count():
        line.replies = proxy.Flow.DROP
        over.wait(0.1)
        line.cut()
        line.heal()
        line.delay = 0.01  # else a fast machine has done all of it before the next loss, and lost nothing but reads
        if over.wait(0.2):
            return
        if number % 4 == 1:
            member.restart()


def listen(callers: list[Worker], told: list[Told], over: threading.Event) -> None:
    try:
        for caller in callers:
            told += caller.answer(120.0)
    finally:
        over.set()


@pytest.mark.slow
def test_no_reserve_is_reported_lost_when_it_won(tmpfs_path: Path, say: Callable[[str], None]) -> None:
    """Three processes reserve the same keys while replies are dropped and etcd is killed: every key has one owner, which got that answer
    and no other caller did; every caller was shown the current claim; and each key has exactly one event.

    How many calls get no answer depends on the speed of the machine, because a read is sent again within its time: the soak continues with
    more keys until three were won by a repeated call.
    """
    install = fresh_install()
    told: list[Told] = []
    unknown_wins = first = 0
    with ExitStack() as stack:
        cluster = stack.enter_context(etcd.running(tmpfs_path))
        line = stack.enter_context(proxy.in_front_of(cluster.one.address))
        opening = partial(opened, [line.address], install, timeout=SHORT, ttl=120)
        callers = [Worker(opening) for _ in range(CALLERS)]
        for caller in callers:
            stack.callback(caller.end)
        for caller in callers:
            caller.do(lease_of)  # faults begin only when all callers are ready
        for first in range(0, ROUNDS * KEYS, KEYS):
            over = threading.Event()
            line.replies = proxy.Flow.DROP
            for number, caller in enumerate(callers):
                caller.ask(reserve_all, tuple(range(first, first + KEYS)), number)
            listener = threading.Thread(target=listen, args=(callers, told, over))
            listener.start()
            spoil(line, cluster.one, over)  # here: the kernel ends etcd with the thread that started it
            listener.join()
            unknown_wins = sum(one.owned and one.unanswered > 0 for one in told)
            if unknown_wins >= 3:
                break
        store = opened(cluster.endpoints, install, timeout=SOON)
        stack.callback(lambda: run(store.close()))
        for number in range(first + KEYS):
            of_key = [one for one in told if one.key == f"key-{number}"]
            view = run(store.load(address_of(f"key-{number}")))
            assert view.record is not None and view.claim is not None
            assert [one.nonce for one in of_key if one.owned] == [view.claim.nonce] == [view.record.nonce]
            assert {one.owner for one in of_key} == {view.claim.nonce}
            assert len(run(store.events(address_of(f"key-{number}")))) == 1
    unanswered = sum(one.unanswered for one in told)
    say(f"{unanswered} calls unanswered; {unknown_wins} of {first + KEYS} keys won by a call that was repeated")
    assert unanswered > 0, "nothing was lost: the test proved nothing"


# --- lost replies


LOST: dict[str, tuple[Callable[[Key], Coroutine[Any, Any, Any]], Any]] = {
    "update": (lambda key: key.store.update(key.record, key.claim, key.record.changed(phase="Running")), Updated),
    "finalize": (lambda key: key.store.finalize(key.record, key.claim, result(), retention=9.0), Finalized),
    "attach": (lambda key: key.store.attach(key.record, "follower"), Attached),
    "request_stop": (
        lambda key: key.store.request_stop(key.record, StopWanted(why=Why.CANCELLED, by="ann")),
        Updated,
    ),
}


@pytest.mark.parametrize("verb", LOST)
def test_a_lost_reply_is_asked_for_again(shared: Etcd, verb: str) -> None:
    """etcd carried out the call and its reply was lost: the outcome is unknown to the caller, and repeating the call gives the answer that
    the first one would have had; the effect exists once."""
    call, answer = LOST[verb]
    with behind_a_proxy(shared) as (store, line):
        key = reserved(store)
        line.replies = proxy.Flow.DROP
        with pytest.raises(StoreUnavailable):
            run(call(key))
        line.cut()
        line.heal()
        other = shared.open()
        stands = run(other.load(key.address)).record
        assert stands is not None and stands.revision > key.record.revision
        done = answered(lambda: call(key))
        assert isinstance(done, answer)
        assert done.record == stands == run(other.load(key.address)).record


def test_a_lost_claim_is_asked_for_again(shared: Etcd) -> None:
    """After lost replies to reserve and take_over, the repetition owns what the first call took, and no other caller does."""
    with behind_a_proxy(shared) as (store, line):
        lease = run(store.open_lease(owner="me"))
        reserved(store, lease)
        asked = request(fresh("key"))
        orphan = reserved(store)
        run(store.drop(orphan.claim))
        calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: store.reserve(asked, lease=lease, floor=0),
            lambda: store.take_over(orphan.record, lease=lease, nonce="successor"),
        ]
        other = shared.open()
        for call in calls:
            line.replies = proxy.Flow.DROP
            with pytest.raises(StoreUnavailable):
                run(call())
            line.cut()
            line.heal()
            done = answered(call)
            assert isinstance(done, Owned)
            view = run(other.load(done.record.address))
            assert (view.record, view.claim) == (done.record, done.claim)
        late = run(other.open_lease(owner="late"))
        assert isinstance(run(other.take_over(orphan.record, lease=late, nonce="late")), Lost)


def test_a_revoked_lease_ends_the_doubt(shared: Etcd) -> None:
    """A reserve still in flight when its lease is revoked never takes effect: only revoking the lease, not reading the key, makes it safe
    to give up."""
    with behind_a_proxy(shared) as (store, line):
        lease = run(store.open_lease(owner="me"))
        reserved(store, lease)
        line.requests = proxy.Flow.HOLD
        asked = request(fresh("key"))
        with pytest.raises(StoreUnavailable):
            run(store.reserve(asked, lease=lease, floor=0))
        shared.expire(lease)
        before = shared.cluster.revision()
        line.heal()
        assert isinstance(answered(lambda: store.reserve(asked, lease=lease, floor=0)), Refused)
        other = shared.open()
        assert run(other.load(asked.address)).record is None
        assert shared.cluster.revision() == before


def test_many_reserves_fail_together(shared: Etcd) -> None:
    """While etcd does not answer, twenty callers that must also check for room all get their error within the time of a few requests."""
    with behind_a_proxy(shared) as (store, line):
        lease = run(store.open_lease(owner="me"))
        line.black_hole()
        calls = [partial(unanswered_reserve, store, lease, f"key-{number}") for number in range(20)]
        since = time.monotonic()
        assert at_once(calls) == [True] * 20
        assert time.monotonic() - since < stretched(10 * SHORT)  # one after another they would take twenty timeouts


def unanswered_reserve(store: IdempotencyStore, lease: Lease, key: str) -> bool:
    try:
        run(store.reserve(request(key), lease=lease, floor=0))
    except StoreUnavailable:
        return True
    return False


# --- a lease that expires


def reserve_here(store: IdempotencyStore, lease: Lease, key: str) -> Owned:
    made = reserved(store, lease, key)
    return Owned(made.record, made.claim)


def writes_of(store: IdempotencyStore, lease: Lease, owned: Owned) -> list[str]:
    """The outcome of each write that an owner can make."""
    record, claim = owned.record, owned.claim
    answers = [
        run(store.heartbeat(claim)),
        run(store.update(record, claim, record.changed(phase="Running"))),
        run(store.finalize(record, claim, result(), retention=1.0)),
        run(store.reserve(request("another"), lease=lease, floor=0)),
        run(store.take_over(record, lease=lease, nonce="again")),
    ]
    return [type(answer).__name__ for answer in answers]


def test_an_owner_that_was_paused_past_its_lease(shared: Etcd) -> None:
    """An owner that is frozen for longer than its lease is replaced; when it resumes, it knows at once that its lease has ended, and none
    of its writes takes effect."""
    store = shared.open()
    owner = Worker(shared.opening(ttl=2))
    try:
        owned = owner.do(reserve_here, "precious")
        owner.freeze()

        def orphaned() -> bool:
            return run(store.load(owned.record.address)).claim is None

        assert_eventually(orphaned, SOON)
        successor = taken(store, owned.record)
        owner.wake()
        assert owner.do(writes_of, owned) == [LostOwnership.__name__] * 3 + [Refused.__name__, Lost.__name__]
        view = run(store.load(owned.record.address))
        assert (view.record, view.claim) == (owned.record, successor.claim)
        assert run(store.load(address_of("another"))).record is None
    finally:
        owner.end()


def test_a_killed_owner_is_replaced_within_its_ttl(shared: Etcd) -> None:
    """Nothing revokes the lease of a killed process: etcd ends its claims within the TTL plus one second."""
    store = shared.open()
    owner = Worker(shared.opening(ttl=2))
    owned = owner.do(reserve_here, "precious")
    assert run(store.load(owned.record.address)).claim is not None
    owner.kill()
    assert_eventually(lambda: run(store.load(owned.record.address)).claim is None, SOON)
    assert isinstance(taken(store, owned.record), Key)


def test_a_lease_is_honoured_at_least_as_long_as_it_says(shared: Etcd) -> None:
    """The deadline is in the future while etcd answers, stops moving when it does not, and is final once it has passed."""
    with behind_a_proxy(shared, ttl=2) as (store, line):
        lease = run(store.open_lease(owner="me"))
        first = lease.deadline
        assert_eventually(lambda: lease.deadline > first, SOON)
        claim = reserved(store, lease).claim
        line.black_hole()
        assert_eventually(lambda: lease.deadline == float("-inf"), SOON)
        line.cut()
        line.heal()
        assert answered(lease.keep_alive) is False
        refused = answered(lambda: store.reserve(request(fresh("key")), lease=lease, floor=0))
        assert isinstance(refused, Refused)
        run(lease.revoke())
        assert run(shared.open().load(claim.address)).claim is None


# --- a full etcd


def test_finalize_lands_near_the_quota(tmpfs_path: Path) -> None:
    """At 80 % of etcd's quota new keys are refused with a time to wait, known ones are answered, and running ones are updated and
    finalized. When etcd accepts no write at all, a reserve is refused likewise and a finalize must be repeated; it succeeds once there is
    room."""
    with etcd.running(tmpfs_path, flags=FLAGS) as cluster, ExitStack() as stack:
        seconds = [0.0]
        store = opened(cluster.endpoints, "full", quota=QUOTA, timeout=SOON, monotonic=lambda: seconds[0])
        stack.callback(lambda: run(store.close()))
        keys = [reserved(store) for _ in range(3)]
        fill(cluster, 0.8)
        seconds[0] += 6.0
        with pytest.raises(StoreFull, match="of its quota") as full:
            run(store.reserve(request("new"), lease=keys[0].lease, floor=0))
        assert full.value.retry_after > 0
        assert isinstance(run(store.reserve(request(keys[0].record.key), lease=keys[0].lease, floor=0)), Duplicate)
        keys[0].change(phase="Running")
        assert keys[0].finalize().state is State.FINALIZED

        fill_up(cluster)
        blind = opened(cluster.endpoints, "full", quota=QUOTA * 100, timeout=SOON)  # configured with a wrong quota
        stack.callback(lambda: run(blind.close()))
        with pytest.raises(StoreFull, match="quota"):
            run(blind.reserve(request("new"), lease=keys[1].lease, floor=0))
        with pytest.raises(StoreUnavailable, match="quota"):
            keys[1].finalize()
        run(store.drop(keys[2].claim))  # a write that needs no room succeeds
        make_room(cluster)
        seconds[0] += 6.0
        assert keys[1].finalize().state is State.FINALIZED
        assert isinstance(run(store.reserve(request("new"), lease=keys[1].lease, floor=0)), Owned)
