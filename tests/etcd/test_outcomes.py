"""What callers were answered while etcd was killed, frozen and cut off, compared with etcd's content afterwards.

etcd's version of each key shows what really happened: 2 for a transaction that was applied twice, 0 for one that was reported and lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest

from harness.etcd import Etcd
from harness.etcd_traffic import Traffic, assert_honest, eventually, outcome, start
from harness.patience import stretched
from harness.proxy import Flow, Proxy, in_front_of
from sparkonce.etcd.client import Client
from sparkonce.etcd.errors import EtcdUnavailable, LeaseNotFound, failure
from sparkonce.etcd.keeper import LeaseHandle
from sparkonce.etcd.kv import Put, Range

SLACK = 1.5
"""Seconds by which a call may end late: the machine has two cores and other work."""


# --- which errors are answers ---


@pytest.mark.parametrize(
    "code",
    ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN", "ABORTED", "DATA_LOSS", "OK", "NEW"],
)
def test_what_is_no_answer_proves_nothing(code: str) -> None:
    """Codes that may not come from etcd, or that etcd sends while the request is in progress, and unknown codes, are not answers."""
    assert isinstance(failure(code=code, details="etcdserver: x", what="Txn", where="a:1"), EtcdUnavailable)


@pytest.mark.parametrize(
    ("details", "answered"),
    [
        ("etcdserver: mvcc: database space exceeded", True),
        ("grpc: received message larger than max (3000018 vs. 2097152)", True),
        ("CLIENT: Received message larger than max (5 vs. 4)", False),
        ("Sent message larger than max", False),
    ],
)
def test_resource_exhausted_is_an_answer_if_etcd_gave_it(details: str, answered: bool) -> None:
    """RESOURCE_EXHAUSTED about a reply that was too large for this side proves nothing: the request was carried out."""
    error = failure(code="RESOURCE_EXHAUSTED", details=details, what="Txn", where="a:1")
    assert isinstance(error, EtcdUnavailable) is not answered


@pytest.mark.parametrize(
    ("code", "details"),
    [
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests"),
        ("FAILED_PRECONDITION", "etcdserver: rpc not supported for learner"),
    ],
)
def test_a_member_that_cannot_carry_it_out_now_gives_no_answer(code: str, details: str) -> None:
    """The request is to be sent again, to another member: the error is not one of a store that cannot be used."""
    assert isinstance(failure(code=code, details=details, what="Txn", where="a:1"), EtcdUnavailable)


# --- etcd fails and comes back ---


def test_a_killed_etcd_does_not_make_callers_wrong(own: Etcd, prefix: bytes) -> None:
    """Killed under traffic and restarted: each acknowledged write is in etcd once, none is there twice, and all callers continue by
    themselves."""

    async def body() -> None:
        client = Client.open(own.endpoints)
        traffic = Traffic(client, prefix)
        await traffic.goes_well()
        own.one.kill()
        await eventually(lambda: traffic.tally()["unknown"] > 20, 20)
        await start(own.one)
        await traffic.goes_well()
        await traffic.stop()
        await client.close()
        assert_honest(traffic.told, own.versions(prefix))

    asyncio.run(body())


def test_a_frozen_etcd_ends_calls_by_their_deadline(own: Etcd, prefix: bytes) -> None:
    """Frozen under traffic: calls end at their deadline as unknown; some of them take effect after the thaw, none of them twice."""

    async def body() -> None:
        client = Client.open(own.endpoints, timeout=0.5)
        traffic = Traffic(client, prefix)
        await traffic.goes_well()
        own.one.freeze()
        await eventually(lambda: traffic.tally()["unknown"] >= 16, 20)
        own.one.thaw()
        await traffic.goes_well()
        await traffic.stop()
        await client.close()
        assert_honest(traffic.told, own.versions(prefix))
        assert traffic.slowest < 0.5 + stretched(SLACK)

    asyncio.run(body())


# --- messages that are lost or late ---


TRIES = 5
"""Attempts to hold back the request itself: an HTTP/2 acknowledgement may precede it and be released in its place."""


def _applied(etcd: Etcd) -> float:
    """Number of proposals that etcd has applied, or refused while applying; reads and lease refreshes do not count."""
    return etcd.one.counted("etcd_server_proposals_applied_total")


async def _given_up_on(proxy: Proxy, put: Put) -> Client:
    """Sends a write that the network holds back, and gives up on it; returns the sender."""
    proxy.heal()
    client = Client.open([proxy.address], timeout=0.5)
    await client.range(Range(put.key), timeout=10.0)
    proxy.requests = Flow.HOLD
    assert await outcome(client.txn([], [put])) == "unknown"
    return client


async def _arrives(proxy: Proxy, client: Client, fact: Callable[[], bool]) -> bool:
    """Delivers the first data that was held back and closes its sender; False if that was not the request."""
    proxy.release_one()
    try:
        await eventually(fact, 5)
    except AssertionError:
        return False
    finally:
        await client.close()
    return True


@pytest.mark.parametrize("ending", ["silence", "reset"])
def test_a_lost_reply_is_unknown_and_its_write_happened_once(server: Etcd, prefix: bytes, ending: str) -> None:
    """etcd commits and the reply is dropped; the connection stays silent or breaks: the outcome is unknown, and nothing is sent again."""

    async def body(proxy: Proxy) -> None:
        client = Client.open([proxy.address], timeout=1.0)
        await client.txn([], [Put(prefix + b"first", b"")])
        proxy.replies = Flow.DROP
        call = asyncio.create_task(outcome(client.txn([], [Put(prefix + b"key", b"")])))
        await eventually(lambda: prefix + b"key" in server.content(prefix), 10)
        if ending == "reset":
            proxy.replies = Flow.PASS  # if the client resent it now, it would be answered
            proxy.cut()
        assert await call == "unknown"
        proxy.heal()
        proxy.cut()
        assert await outcome(client.range(Range(prefix + b"key"), timeout=5.0)) == "answered"
        await client.close()

    with in_front_of(server.one.address) as proxy:
        asyncio.run(body(proxy))
    assert server.versions(prefix) == {prefix + b"first": 1, prefix + b"key": 1}


def test_a_write_that_is_not_there_may_still_come(server: Etcd, prefix: bytes) -> None:
    """A write that is held up in the network is unknown to its caller and invisible to every reader, and commits when it arrives."""

    key = prefix + b"key"

    async def body(proxy: Proxy) -> None:
        reader = Client.open(server.endpoints, timeout=10.0)
        for _ in range(TRIES):
            sender = await _given_up_on(proxy, Put(key, b""))
            assert (await reader.range(Range(key))).kvs == ()
            if await _arrives(proxy, sender, lambda: server.versions(prefix) == {key: 1}):
                break
        assert server.versions(prefix) == {key: 1}
        await reader.close()

    with in_front_of(server.one.address) as proxy:
        asyncio.run(body(proxy))


def test_revoking_its_lease_ends_the_doubt_about_a_write(own: Etcd, prefix: bytes) -> None:
    """If the late write names a lease that was revoked meanwhile, it is refused on arrival: it can never appear."""

    async def body(proxy: Proxy) -> None:
        other = Client.open(own.endpoints, timeout=10.0)

        async def late_write(lease: LeaseHandle) -> bool:
            """Whether the write arrived."""
            late = Put(prefix + b"key", b"", lease.id)
            sender = await _given_up_on(proxy, late)
            await other.revoke(lease.id)
            await other.range(Range(prefix))  # once this is answered, everything before it is applied and counted
            before = _applied(own)
            arrived = await _arrives(proxy, sender, lambda: _applied(own) > before)
            with pytest.raises(LeaseNotFound):
                await other.txn([], [late])
            return arrived

        await eventually(own.one.knows_its_version, 30)  # which it proposes to itself, and which counts
        for _ in range(TRIES):
            if await late_write(await other.grant(600)):
                break
        else:
            pytest.fail(f"none of {TRIES} requests arrived")
        await other.close()

    with in_front_of(own.one.address) as proxy:
        asyncio.run(body(proxy))
    assert own.content(prefix) == {}


def test_a_read_is_answered_within_its_deadline_although_a_connection_breaks(server: Etcd, prefix: bytes) -> None:
    """A read has no effect, so it is repeated within its deadline when its connection breaks."""

    async def body(proxy: Proxy) -> None:
        client = Client.open([proxy.address], timeout=10.0)
        await client.txn([], [Put(prefix, b"here")])
        proxy.replies, sent = Flow.HOLD, proxy.requested
        read = asyncio.create_task(client.range(Range(prefix)))
        await eventually(lambda: proxy.requested > sent, 10)
        proxy.heal()
        proxy.cut()
        assert [kv.value for kv in (await read).kvs] == [b"here"]
        await client.close()

    with in_front_of(server.one.address) as proxy:
        asyncio.run(body(proxy))


def test_a_black_hole_costs_a_read_half_its_deadline(
    server: Etcd, prefix: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a second endpoint, a read that gets no answer at the first one is answered within its deadline, and the next read at once."""

    async def body(silent: Proxy) -> None:
        client = Client.open([silent.address, *server.endpoints], timeout=2.0)
        await client.status()
        silent.black_hole()
        began = monotonic()
        assert (await client.range(Range(prefix))).kvs == ()
        assert 0.5 < monotonic() - began < 0.5 + stretched(SLACK)
        began = monotonic()
        await client.txn([], [Put(prefix, b"")])
        assert monotonic() - began < 1.0 + stretched(SLACK)
        await client.close()

    monkeypatch.setattr("sparkonce.etcd.channel.RANDOM.randrange", lambda _: 0)
    with in_front_of(server.one.address) as silent:
        asyncio.run(body(silent))


# --- callers that give up ---


def test_a_cancelled_caller_leaves_at_once_and_its_write_goes_on(own: Etcd, prefix: bytes) -> None:
    """Cancelled while etcd is frozen: the caller returns at once, the write is not undone, and no task remains."""

    async def body() -> None:
        client = Client.open(own.endpoints, timeout=3.0)
        await client.status()
        own.one.freeze()
        calls = [asyncio.create_task(client.txn([], [Put(b"%s%d" % (prefix, number), b"")])) for number in range(50)]
        await asyncio.sleep(0)  # so that they begin
        await asyncio.sleep(0)
        began = monotonic()
        for call in calls:
            call.cancel()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}
        assert monotonic() - began < stretched(0.5)
        own.one.thaw()
        await eventually(lambda: len(own.versions(prefix)) == 50, 10)
        assert set(own.versions(prefix).values()) == {1}
        await eventually(lambda: len(asyncio.all_tasks(loop)) <= 2, 10)
        await client.close()

    loop = asyncio.new_event_loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(body())


def test_closing_ends_calls_that_are_under_way(own: Etcd, prefix: bytes) -> None:
    """`close` does not wait for a frozen etcd; waiting callers get an error."""

    async def body() -> None:
        client = Client.open(own.endpoints, timeout=30.0)
        await client.status()
        own.one.freeze()
        call = asyncio.create_task(outcome(client.txn([], [Put(prefix, b"")])))
        read = asyncio.create_task(outcome(client.range(Range(prefix))))
        await asyncio.sleep(0.05)  # so that gRPC has them
        began = monotonic()
        await client.close()
        assert (await call, await read) == ("unknown", "unknown")
        assert monotonic() - began < stretched(SLACK)
        own.one.thaw()

    asyncio.run(body())
