"""Three members: if one is dead, frozen or isolated, calls take longer, and no answer is wrong."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from harness.etcd import Etcd
from harness.etcd_traffic import Traffic, assert_honest, eventually, start
from harness.patience import stretched
from sparkonce.etcd.client import Client
from sparkonce.etcd.errors import EtcdUnavailable
from sparkonce.etcd.kv import Put, Range


async def _goes_wrong_and_well(three: Etcd, prefix: bytes, *, frozen: bool) -> None:
    """Traffic and a kept lease while the leader fails; what took effect is read from another member."""
    client = Client.open(three.endpoints, timeout=1.0)
    traffic = Traffic(client, prefix)
    await traffic.goes_well()
    kept = client.keep(await client.grant(10))
    leader = three.leader()
    other = next(member for member in three.members if member is not leader)
    if frozen:
        leader.freeze()
    else:
        leader.kill()
    lost = monotonic()
    await traffic.goes_well()
    said = traffic.tally()
    assert monotonic() - lost < stretched(15)
    await asyncio.to_thread(three.leader, but=leader)
    was = kept.deadline
    await eventually(lambda: kept.deadline > was, 10)
    assert not kept.lost
    if frozen:
        leader.thaw()
    else:
        await start(leader)
    await traffic.goes_well()
    await traffic.stop()
    await client.close()
    assert said["refused"] == 0
    assert_honest(traffic.told, three.versions(prefix, at=other))


def test_a_killed_leader_does_not_make_callers_wrong(three: Etcd, prefix: bytes) -> None:
    """The leader is killed under traffic: callers continue with another member, a kept lease stays alive, and nothing is applied twice."""
    asyncio.run(_goes_wrong_and_well(three, prefix, frozen=False))


def test_a_frozen_leader_does_not_make_callers_wrong(three: Etcd, prefix: bytes) -> None:
    """The leader is frozen under traffic and resumes without followers: callers continue, a kept lease stays alive, and nothing is applied
    twice."""
    asyncio.run(_goes_wrong_and_well(three, prefix, frozen=True))


def test_a_member_that_lost_the_others_refuses_at_once(three: Etcd, prefix: bytes) -> None:
    """An isolated member cannot answer linearizably: calls and watches on it are refused as soon as it knows, long before their
    deadline."""

    async def body() -> None:
        alone = three.members[0]
        client = Client.open([alone.address], timeout=30.0)
        await client.txn([], [Put(prefix + b"a", b"")])
        seen: list[bytes] = []

        async def follow() -> None:
            every = Client.open(three.endpoints, timeout=2.0)
            try:
                async for batch in every.watch(prefix, prefix + b"\xff", start=1):
                    seen.extend(event.kv.key for event in batch.events)
            finally:
                await every.close()

        follower = asyncio.create_task(follow())
        for member in three.members[1:]:
            member.kill()

        async def refused_at_once() -> bool:
            began = monotonic()
            with pytest.raises(EtcdUnavailable):
                await client.txn([], [Put(prefix + b"b", b"")], timeout=5.0)
            return monotonic() - began < stretched(0.5)

        while not await refused_at_once():  # the member notices after an election timeout
            pass
        assert (await client.status()).leader == 0  # status needs no quorum
        for member in three.members[1:]:
            await start(member)
        assert (await client.range(Range(prefix + b"a"))).count == 1
        await client.txn([], [Put(prefix + b"c", b"")])
        await eventually(lambda: prefix + b"c" in seen, 20)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        await client.close()

    asyncio.run(body())


def test_a_watch_at_a_member_that_freezes_moves_on(three: Etcd, prefix: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member that serves a watch freezes: gRPC's pings notice after 3 to 13 s, and the watch resumes at another member without a
    gap."""
    monkeypatch.setattr("sparkonce.etcd.channel.RANDOM.randrange", lambda _: 0)

    async def body() -> None:
        client = Client.open(three.endpoints, timeout=1.0)
        seen: list[bytes] = []
        gaps: list[int] = []

        async def follow() -> None:
            async for batch in client.watch(prefix, prefix + b"\xff", start=1):
                seen.extend(event.kv.key for event in batch.events)
                gaps.extend([batch.revision] if batch.gap else [])

        follower = asyncio.create_task(follow())
        three.put(prefix + b"0")
        await eventually(lambda: len(seen) == 1, 10)
        assert three.members[0].counted("etcd_debugging_mvcc_watcher_total") == 1
        three.members[0].freeze()
        frozen = monotonic()
        other = three.members[1]
        await asyncio.to_thread(three.leader, but=three.members[0])
        for number in range(1, 6):
            three.put(prefix + b"%d" % number, at=other)
        await eventually(lambda: len(seen) >= 6, 30)
        assert monotonic() - frozen < stretched(20)
        assert seen == [prefix + b"%d" % number for number in range(6)]
        assert gaps == []
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        await client.close()

    asyncio.run(body())
