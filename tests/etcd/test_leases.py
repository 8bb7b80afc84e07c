"""Leases: kept alive while the process works, lost in time when it does not, and never assumed to be alive."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import grpc
import pytest

from harness.etcd import Etcd
from harness.etcd_traffic import eventually, restart, start
from harness.eventually import assert_eventually
from harness.patience import promised, stretched
from harness.proxy import Proxy, in_front_of
from sparkonce.errors import InvalidInput
from sparkonce.etcd import keeper as keeping
from sparkonce.etcd.channel import Endpoints
from sparkonce.etcd.client import Client, KeptLease, LeaseHandle
from sparkonce.etcd.keeper import Keeper, _Held
from sparkonce.etcd.kv import Compare, Put

TTL = 2
"""Seconds: the shortest TTL that etcd grants with its default election timeout."""


def use(endpoints: list[str], body: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        client = Client.open(endpoints, timeout=10.0)
        try:
            await body(client)
        finally:
            await client.close()

    asyncio.run(main())


async def lives_for(seconds: float, client: Client, kept: KeptLease) -> None:
    """For this long the lease is alive, both here and in etcd."""
    until = monotonic() + seconds
    while monotonic() < until:
        assert not kept.lost
        assert monotonic() < kept.deadline
        assert await client.remaining(kept.lease.id) is not None
        await asyncio.sleep(0.05)


# --- without a keeper ---


def test_a_lease_that_nobody_keeps_ends(server: Etcd, prefix: bytes) -> None:
    """A lease has its granted time at the start and less later; when it expires its keys are deleted, and then it does not exist."""

    async def body(client: Client) -> None:
        lease = await client.grant(TTL)
        assert lease.ttl >= TTL
        await client.txn([], [Put(prefix, b"", lease.id)])
        remaining = await client.remaining(lease.id)
        assert remaining is not None
        assert 0 <= remaining <= lease.ttl
        await eventually(lambda: prefix not in server.content(prefix), TTL + 5)
        assert await client.remaining(lease.id) is None

    use(server.endpoints, body)


def test_revoking_twice_is_as_once(server: Etcd, prefix: bytes) -> None:
    """Revoking a lease deletes it and its keys at once; revoking it again is not an error."""

    async def body(client: Client) -> None:
        lease = await client.grant(600)
        await client.txn([], [Put(prefix, b"", lease.id)])
        await client.revoke(lease.id)
        await client.revoke(lease.id)
        assert await client.remaining(lease.id) is None
        assert server.content(prefix) == {}

    use(server.endpoints, body)


# --- kept ---


def test_a_blocked_event_loop_costs_no_lease(server: Etcd, prefix: bytes) -> None:
    """The event loop is blocked for twice the TTL: the lease and its key survive, and its deadline has moved."""

    async def body(client: Client) -> None:
        lease = await client.grant(TTL)
        kept = client.keep(lease)
        await client.txn([], [Put(prefix, b"", lease.id)])
        time.sleep(2 * TTL)  # noqa: ASYNC251 - blocking the loop is the fault under test
        assert not kept.lost
        assert kept.deadline > monotonic()
        assert prefix in server.content(prefix)

    use(server.endpoints, body)


def test_all_leases_share_one_stream(server: Etcd) -> None:
    """Thirty kept leases share one stream (its reader is one thread), and all of them stay alive."""

    async def body(client: Client) -> None:
        leases = [await client.grant(TTL) for _ in range(30)]
        kept = [client.keep(lease) for lease in leases]
        first = [each.deadline for each in kept]
        await eventually(lambda: all(each.deadline > was for each, was in zip(kept, first, strict=True)), TTL)
        readers = [thread for thread in threading.enumerate() if thread.name == "sparkonce-etcd-refreshed"]
        assert len(readers) == 1
        assert not any(each.lost for each in kept)

    use(server.endpoints, body)


def test_the_deadline_counts_from_when_the_refresh_was_sent(server: Etcd) -> None:
    """On a slow network the new deadline counts from when the refresh was sent: by the round trip less than if it counted from the
    answer."""

    async def body(proxy: Proxy) -> None:
        client = Client.open([proxy.address], timeout=10.0)
        lease = await client.grant(6)
        assert lease.asked is not None
        kept = client.keep(LeaseHandle(lease.id, lease.ttl))
        assert kept.deadline < 0
        await eventually(lambda: kept.deadline > 0, 10)
        proxy.delay = 0.3  # in each direction
        was = kept.deadline
        await eventually(lambda: kept.deadline > was, 10)
        assert monotonic() - (kept.deadline - lease.ttl) >= 0.6
        await client.close()

    with in_front_of(server.one.address) as proxy:
        asyncio.run(body(proxy))


def test_a_lease_survives_a_restart_of_etcd(own: Etcd) -> None:
    """etcd is killed and restarted within the TTL: the keeper refreshes the lease in time."""

    async def body(client: Client) -> None:
        lease = await client.grant(6)
        kept = client.keep(lease)
        await restart(own.one)
        was = kept.deadline
        await eventually(lambda: kept.deadline > was, 6)
        assert not kept.lost

    use(own.endpoints, body)


def test_a_silent_endpoint_costs_no_lease(server: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream's endpoint falls silent without closing the connection: the keeper switches to the next endpoint in time."""
    monkeypatch.setattr("sparkonce.etcd.channel.RANDOM.randrange", lambda _: 0)

    async def body(proxy: Proxy) -> None:
        client = Client.open([proxy.address, *server.endpoints], timeout=10.0)
        lease = await client.grant(3)
        kept = client.keep(lease)
        was = kept.deadline
        await eventually(lambda: kept.deadline > was, 3)
        proxy.black_hole()
        direct = Client.open(server.endpoints, timeout=10.0)
        await lives_for(4.5, direct, kept)
        await direct.close()
        await client.close()

    with in_front_of(server.one.address) as proxy:
        asyncio.run(body(proxy))


def test_a_dead_connection_to_the_only_endpoint_costs_no_lease(server: Etcd) -> None:
    """With a single address (a service in front of etcd) the keeper gives up a silent connection and opens another."""

    async def body(proxy: Proxy) -> None:
        client, direct = Client.open([proxy.address], timeout=10.0), Client.open(server.endpoints, timeout=10.0)
        lease = await client.grant(3)
        kept = client.keep(lease)
        was = kept.deadline
        await eventually(lambda: kept.deadline > was, 3)
        proxy.strand()
        await lives_for(4.5, direct, kept)
        await direct.close()
        await client.close()

    with in_front_of(server.one.address) as proxy:
        asyncio.run(body(proxy))


# --- lost ---


def test_a_revoked_lease_is_lost_at_the_next_refresh(server: Etcd) -> None:
    """etcd answers that the lease does not exist: it is lost, and its holder is notified once; another lease is not affected."""

    async def body(client: Client) -> None:
        told: list[str] = []

        def tell_badly() -> None:
            told.append("lost")
            raise RuntimeError("a listener that fails")

        kept = client.keep(await client.grant(6), on_lost=tell_badly)
        other = client.keep(await client.grant(TTL))
        server.revoke(kept.lease.id)
        await eventually(lambda: told == ["lost"], 4)
        assert kept.lost
        assert kept.deadline > monotonic()  # lost by etcd's answer, before the deadline
        await lives_for(TTL + 0.5, client, other)
        assert told == ["lost"]

    use(server.endpoints, body)


def test_a_lease_is_lost_at_its_deadline_and_stays_lost(own: Etcd) -> None:
    """With etcd unreachable for longer than the TTL, the lease is lost at its deadline, reported once, and not revived although etcd still
    has it."""

    async def body(client: Client) -> None:
        told: list[float] = []
        lease = await client.grant(TTL)
        kept = client.keep(lease, on_lost=lambda: told.append(monotonic()))
        own.one.freeze()
        await eventually(lambda: bool(told), TTL + 3)
        assert kept.lost
        assert 0 <= told[0] - kept.deadline < stretched(0.5)
        own.one.kill()
        await start(own.one)  # a restarted etcd gives every lease its full TTL again
        assert await client.remaining(lease.id) is not None
        assert kept.lost
        assert kept.deadline <= told[0]
        again = client.keep(await client.grant(TTL))
        was = again.deadline
        await eventually(lambda: again.deadline > was, 5)
        assert len(told) == 1

    use(own.endpoints, body)


def test_a_refresh_confirmed_too_late_is_no_refresh() -> None:
    """An answer that arrives at the deadline or later does not move it, even if the deadline was not checked in between."""
    held = _Held(LeaseHandle(1, 10), None, deadline=100.0, due=90.0, sent=91.0)
    held.answered(10, 100.0)
    assert (held.lost, held.deadline) == (True, 100.0)
    held = _Held(LeaseHandle(1, 10), None, deadline=100.0, due=90.0, sent=91.0)
    held.answered(10, 99.9)
    assert (held.lost, held.deadline) == (False, 101.0)


class Refused(grpc.RpcError):
    """A stream that etcd ends at once."""

    def __iter__(self) -> Refused:
        return self

    def __next__(self) -> None:
        raise self

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def cancel(self) -> bool:
        return True


class Refusing:
    """A channel whose streams end at once; `opened` is set after many of them."""

    def __init__(self, opened: threading.Event, many: int) -> None:
        self.opened, self.left = opened, many

    def stream_stream(self, *_: object, **__: object) -> Callable[..., Refused]:
        self.left -= 1
        if self.left == 0:
            self.opened.set()
        return lambda *_, **__: Refused()

    def close(self) -> None: ...


def test_a_keeper_outlasts_an_outage_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many streams etcd ended, the keeper opens another one while a lease may live."""
    monkeypatch.setattr(keeping, "LONGEST_PAUSE", 0.0)
    opened = threading.Event()
    channel: Any = Refusing(opened, many=1_500)
    keeper = Keeper(Endpoints(["127.0.0.1:1"], None, lambda *_: channel))
    keeper.keep(LeaseHandle(id=1, ttl=3600, asked=monotonic() - 1800), on_lost=None)
    assert opened.wait(promised(30.0))
    keeper.close()


def test_an_answer_after_the_deadline_does_not_bring_a_lease_back(own: Etcd) -> None:
    """A lease that was reported lost stays lost, even if a refresh is confirmed afterwards."""

    async def body(proxy: Proxy) -> None:
        client = Client.open([proxy.address], timeout=10.0)
        lease = await client.grant(TTL)
        kept = client.keep(lease)
        proxy.black_hole()
        await eventually(lambda: kept.lost, TTL + 3)
        deadline = kept.deadline
        proxy.heal()
        other = client.keep(await client.grant(TTL))
        was = other.deadline
        await eventually(lambda: other.deadline > was, 5)
        assert kept.lost
        assert kept.deadline == deadline
        await client.close()

    with in_front_of(own.one.address) as proxy:
        asyncio.run(body(proxy))


def test_a_stopped_lease_ends_without_a_word(server: Etcd) -> None:
    """After `stop` nothing is refreshed and no callback is called; etcd ends the lease by itself. The lease can then be kept again, but
    only once at a time."""

    async def body(client: Client) -> None:
        told: list[str] = []
        lease = await client.grant(TTL)
        kept = client.keep(lease, on_lost=lambda: told.append("lost"))
        with pytest.raises(InvalidInput, match="already being kept alive"):
            client.keep(lease)
        kept.stop()
        client.keep(lease).stop()
        await eventually(lambda: lease.id not in server.leases(), TTL + 5)
        assert kept.lost
        assert told == []

    use(server.endpoints, body)


def test_closing_the_client_ends_the_keeper(server: Etcd) -> None:
    """After `close` no thread of the keeper remains, the lease ends by itself, and no lease can be kept any more."""

    async def body(client: Client) -> None:
        lease = await client.grant(TTL)
        client.keep(lease)
        await client.close()
        await eventually(lambda: not [each for each in threading.enumerate() if "sparkonce-etcd" in each.name], 5)
        with pytest.raises(InvalidInput, match="closed"):
            client.keep(lease)
        await eventually(lambda: lease.id not in server.leases(), TTL + 5)

    use(server.endpoints, body)


# --- a process that is frozen ---

OWNER = """
import asyncio, json, sys, time
from sparkonce.etcd.client import Client
from sparkonce.etcd.kv import Compare, Put

async def main(endpoint, key):
    client = Client.open([endpoint], timeout=10.0)
    lease = await client.grant(2)
    kept = client.keep(lease)
    reply = await client.txn([Compare(key, "create", "=", 0)], [Put(key, b"first", lease.id)])
    print(json.dumps({"won": reply.succeeded}), flush=True)
    while True:
        print(json.dumps({"held": not kept.lost, "at": time.monotonic()}), flush=True)
        time.sleep(0.02)

asyncio.run(main(sys.argv[1], sys.argv[2].encode()))
"""


def test_a_process_that_was_frozen_beyond_its_lease_finds_it_lost(server: Etcd, prefix: bytes) -> None:
    """The process is stopped with SIGSTOP until its lease has expired and another owner has the key: from its first step after resuming it
    knows that the lease is lost."""
    told: list[dict[str, float]] = []
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER, server.one.address, prefix.decode()], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None

    def listen() -> None:
        assert child.stdout is not None
        told.extend(json.loads(line) for line in child.stdout)

    async def another_wins(client: Client) -> None:
        reply = await client.txn([Compare(prefix, "create", "=", 0)], [Put(prefix, b"second")])
        assert reply.succeeded

    listener = threading.Thread(target=listen)
    try:
        assert json.loads(child.stdout.readline()) == {"won": True}
        listener.start()
        # Kept for longer than its TTL, so that the lease was refreshed by the keeper before the freeze.
        assert_eventually(lambda: bool(told) and told[-1]["at"] - told[0]["at"] > 2 * TTL, 20)
        assert all(each["held"] for each in told)
        os.kill(child.pid, signal.SIGSTOP)
        assert_eventually(lambda: prefix not in server.content(prefix), 20)
        use(server.endpoints, another_wins)
        woken = monotonic()
        os.kill(child.pid, signal.SIGCONT)
        assert_eventually(lambda: told[-1]["at"] > woken + TTL / 3, 20)
    finally:
        child.kill()
        child.wait()
        listener.join()
        child.stdout.close()
    since = [each for each in told if each["at"] > woken]
    assert since
    assert not any(each["held"] for each in since)
    assert server.content(prefix) == {prefix: b"second"}
