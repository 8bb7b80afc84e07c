"""Reads and transactions: the exact requests that etcd receives, and its exact answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.etcd import Etcd, running
from sparkonce.errors import InvalidInput
from sparkonce.etcd.client import Client
from sparkonce.etcd.errors import Compacted, EtcdRefused, EtcdUnavailable, LeaseNotFound, NoSpace
from sparkonce.etcd.kv import Compare, Delete, Nested, Op, Put, Range, RangeReply, TxnReply, prefix_end

T = TypeVar("T")


def use(etcd: Etcd, body: Callable[[Client], Awaitable[T]]) -> T:
    """Runs the body with a client of this etcd."""

    async def main() -> T:
        client = Client.open(etcd.endpoints, timeout=10.0)  # no test in this file is about a deadline
        try:
            return await body(client)
        finally:
            await client.close()

    return asyncio.run(main())


# --- ranges ---


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"/x/", b"/x0"), (b"a\xff", b"b"), (b"a\xff\xff", b"b"), (b"\xff", b"\0"), (b"", b"\0")],
)
def test_the_end_of_a_prefix(prefix: bytes, end: bytes) -> None:
    """The end of a prefix is the prefix with its last byte below 0xff incremented; if there is no such byte, it is a null byte, which means
    all keys from the prefix on."""
    assert prefix_end(prefix) == end


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_a_range_to_the_end_of_a_prefix_holds_what_begins_with_it(prefix: bytes, key: bytes) -> None:
    """A key lies between a prefix and its end if and only if it begins with the prefix."""
    end = prefix_end(prefix)
    assert (key >= prefix and (end == b"\0" or key < end)) is key.startswith(prefix)


def test_pages_of_one_listing_show_one_moment(server: Etcd, prefix: bytes) -> None:
    """A listing read page by page at the first page's revision shows the content at that revision, without later changes."""

    async def body(client: Client) -> None:
        keys = [b"%s%d" % (prefix, number) for number in range(5)]
        await client.txn([], [Put(key, b"old") for key in keys])
        first = await client.range(Range(prefix, prefix_end(prefix), limit=2))
        assert ([kv.key for kv in first.kvs], first.more, first.count) == (keys[:2], True, 5)
        await client.txn([], [Put(keys[2], b"new"), Delete(keys[3]), Put(prefix + b"9", b"new")])
        rest = await client.range(Range(first.kvs[-1].key + b"\0", prefix_end(prefix), revision=first.revision))
        assert [(kv.key, kv.value) for kv in rest.kvs] == [(key, b"old") for key in keys[2:]]
        assert not rest.more

    use(server, body)


def test_a_range_may_leave_out_values_or_all(server: Etcd, prefix: bytes) -> None:
    """`keys_only` returns keys with revisions and without values, `count_only` only the number."""

    async def body(client: Client) -> None:
        written = await client.txn([], [Put(prefix + b"a", b"x"), Put(prefix + b"b", b"y")])
        keys = await client.range(Range(prefix, prefix_end(prefix), keys_only=True))
        assert [(kv.key, kv.value) for kv in keys.kvs] == [(prefix + b"a", b""), (prefix + b"b", b"")]
        assert keys.kvs[0].mod_revision == written.revision
        count = await client.range(Range(prefix, prefix_end(prefix), count_only=True))
        assert (count.kvs, count.count) == ((), 2)

    use(server, body)


def test_a_revision_that_was_compacted_is_refused(own: Etcd, prefix: bytes) -> None:
    """A read at a compacted revision raises Compacted; it is neither an empty answer nor an outage."""

    async def body(client: Client) -> None:
        old = (await client.txn([], [Put(prefix, b"1")])).revision
        own.compact((await client.txn([], [Put(prefix, b"2")])).revision)
        with pytest.raises(Compacted):
            await client.range(Range(prefix, revision=old))

    use(own, body)


def test_a_large_reply_is_taken(server: Etcd, prefix: bytes) -> None:
    """A reply of several megabytes is received, although gRPC's default limit is four: repeating it would fail every time."""

    async def body(client: Client) -> None:
        for number in range(6):
            await client.txn([], [Put(b"%s%d" % (prefix, number), bytes(1_000_000))])
        assert sum(len(kv.value) for kv in (await client.range(Range(prefix, prefix_end(prefix)))).kvs) == 6_000_000

    use(server, body)


# --- transactions ---


def test_a_transaction_answers_by_its_branch(server: Etcd, prefix: bytes) -> None:
    """Of two reserves the first writes, and the second reads what the first wrote. Each operation has its own reply, in order.

    A nested transaction's comparisons see the store as it was before the outer one.
    """
    key, other = prefix + b"key", prefix + b"other"

    async def body(client: Client) -> None:
        async def reserve(value: bytes) -> TxnReply:
            return await client.txn([Compare(key, "create", "=", 0)], [Put(key, value)], [Range(key)])

        won = await reserve(b"mine")
        assert won == TxnReply(succeeded=True, revision=won.revision, replies=(None,))
        lost = await reserve(b"yours")
        assert not lost.succeeded
        (found,) = lost.replies
        assert isinstance(found, RangeReply)
        (kv,) = found.kvs
        assert (kv.key, kv.value, kv.version, kv.lease) == (key, b"mine", 1, 0)
        assert kv.create_revision == kv.mod_revision == won.revision == lost.revision
        ops: list[Op] = [
            Put(other, b"1"),
            Range(prefix, prefix_end(prefix)),
            Nested((Compare(other, "create", "=", 0),), (Delete(key),), (Put(key, b"never"),)),
            Delete(prefix + b"none"),
        ]
        last = await client.txn([Compare(key, "mod", "=", won.revision)], ops)
        put, both, nested, none = last.replies
        assert put is None
        assert isinstance(both, RangeReply)
        assert [kv.key for kv in both.kvs] == [key, other]
        assert nested == TxnReply(succeeded=True, revision=last.revision, replies=(1,))
        assert none == 0
        assert last.revision == won.revision + 1

    use(server, body)
    assert server.content(prefix) == {other: b"1"}


Target = Literal["create", "mod", "version", "value", "lease"]
OPERATORS: list[Literal["=", "!=", "<", ">"]] = ["=", "!=", "<", ">"]


@pytest.mark.parametrize("target", ["create", "mod", "version", "value", "lease"])
def test_every_comparison_means_what_it_says(server: Etcd, prefix: bytes, target: Target) -> None:
    """Each operator on each target holds exactly where Python's comparison of the same two values does."""

    async def body(client: Client) -> None:
        lease = await client.grant(600)
        key = prefix + b"key"
        await client.txn([], [Put(key, b"m", lease.id)])
        await client.txn([], [Put(key, b"m", lease.id)])
        (kv,) = (await client.range(Range(key))).kvs
        assert kv.create_revision != kv.mod_revision != kv.version
        stored: dict[str, int | bytes] = {
            "create": kv.create_revision,
            "mod": kv.mod_revision,
            "version": kv.version,
            "value": kv.value,
            "lease": kv.lease,
        }
        is_value = stored[target]
        others = (b"a", b"m", b"z") if isinstance(is_value, bytes) else (is_value - 1, is_value, is_value + 1)
        for op in OPERATORS:
            for other in others:
                reply = await client.txn([Compare(key, target, op, other)], [])
                holds = {"=": is_value == other, "!=": is_value != other, "<": is_value < other, ">": is_value > other}  # type: ignore[operator]  # both are numbers, or both bytes
                assert reply.succeeded is holds[op], (target, op, is_value, other)
        await client.revoke(lease.id)

    use(server, body)


def test_a_key_that_does_not_exist_compares_as_zero(server: Etcd, prefix: bytes) -> None:
    """Revisions, version and lease of a missing key are 0; a comparison with its value never holds; an empty range compares like a missing
    key."""

    async def body(client: Client) -> None:
        async def holds(compare: Compare) -> bool:
            return (await client.txn([compare], [])).succeeded

        targets: list[Target] = ["create", "mod", "version", "lease"]
        assert [await holds(Compare(prefix, target, "=", 0)) for target in targets] == [True] * 4
        assert not await holds(Compare(prefix, "value", "=", b""))
        assert not await holds(Compare(prefix, "value", "!=", b"x"))
        assert await holds(Compare(prefix, "create", "=", 0, end=prefix_end(prefix)))
        await client.txn([], [Put(prefix + b"one", b"")])
        assert not await holds(Compare(prefix, "create", "=", 0, end=prefix_end(prefix)))

    use(server, body)


@pytest.mark.parametrize(("target", "value"), [("value", 1), ("create", b"1"), ("lease", b"")])
def test_a_comparison_with_the_wrong_type_is_not_sent(server: Etcd, target: Target, value: int | bytes) -> None:
    """Values are compared with bytes and everything else with numbers: etcd would silently compare any other type with 0 or with empty
    bytes."""
    with pytest.raises(TypeError, match=target):
        use(server, lambda client: client.txn([Compare(b"key", target, "=", value)], []))


# --- refusals: answers that prove that nothing was written ---


def test_a_put_on_a_lease_that_is_gone_refuses_the_whole(server: Etcd, prefix: bytes) -> None:
    """If one put names a revoked lease, etcd refuses the whole transaction, including puts without a lease."""

    async def body(client: Client) -> None:
        lease = await client.grant(600)
        await client.revoke(lease.id)
        with pytest.raises(LeaseNotFound, match="take a new one"):
            await client.txn([], [Put(prefix + b"a", b""), Put(prefix + b"b", b"", lease.id)])

    use(server, body)
    assert server.content(prefix) == {}


@pytest.mark.parametrize("size", [1_700_000, 3_000_000])
def test_a_transaction_that_is_too_large_is_refused(server: Etcd, prefix: bytes, size: int) -> None:
    """A transaction beyond etcd's limit, or beyond the limit of its gRPC server, is refused: sending it again would never succeed."""
    with pytest.raises(EtcdRefused):
        use(server, lambda client: client.txn([], [Put(prefix, bytes(size))]))
    assert server.content(prefix) == {}


def test_a_full_etcd_says_so(tmpfs_path: Path, prefix: bytes) -> None:
    """With its quota used up etcd refuses puts as NoSpace; the client can still delete and read."""

    async def body(client: Client) -> None:
        async def fill() -> None:
            for number in range(40):
                await client.txn([], [Put(b"%s%02d" % (prefix, number), bytes(1_000_000))])

        with pytest.raises(NoSpace, match="quota"):
            await fill()
        before = await client.range(Range(prefix, prefix_end(prefix), count_only=True))
        await client.txn([], [Delete(prefix + b"00")])
        after = await client.range(Range(prefix, prefix_end(prefix), count_only=True))
        assert after.count == before.count - 1

    with running(tmpfs_path, flags=["--quota-backend-bytes=8000000"]) as etcd:
        use(etcd, body)


# --- the client itself ---


def test_the_status_of_a_member(server: Etcd, prefix: bytes) -> None:
    """The status has etcd's version, its size, the leader and the store's revision."""

    async def body(client: Client) -> None:
        revision = (await client.txn([], [Put(prefix, b"")])).revision
        status = await client.status()
        assert status.version.startswith("3.")
        assert status.db_size > 0
        assert status.leader != 0
        assert status.revision >= revision

    use(server, body)


def test_an_endpoint_may_be_a_host_name(server: Etcd) -> None:
    """An endpoint may be a host name, as in a service's address, and not only an IP address."""

    async def body() -> None:
        client = Client.open([server.one.address.replace("127.0.0.1", "localhost")], timeout=10.0)
        assert (await client.status()).leader != 0
        await client.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    "endpoints", [[], ["http://127.0.0.1:2379"], ["127.0.0.1"], ["127.0.0.1:"], ["a b:1"], ["::1:2379"]]
)
def test_an_endpoint_that_cannot_work_is_refused_at_once(endpoints: list[str]) -> None:
    """An endpoint that is not host:port, or an empty list of them, is invalid input and not an outage."""
    with pytest.raises(InvalidInput):
        Client.open(endpoints)


def test_a_user_without_a_password_is_refused_at_once() -> None:
    """A user without a password, or a password without a user, is invalid input."""
    with pytest.raises(InvalidInput):
        Client.open(["127.0.0.1:2379"], user="root")


def test_a_closed_client_sends_nothing(server: Etcd, prefix: bytes) -> None:
    """After `close` a transaction is unavailable and does not reach etcd; closing again does no harm."""

    async def body(client: Client) -> None:
        await client.status()
        await client.close()
        with pytest.raises(EtcdUnavailable, match="closed"):
            await client.txn([], [Put(prefix, b"")])
        assert [batch async for batch in client.watch(prefix, b"", start=1)] == []

    use(server, body)
    assert server.content(prefix) == {}


def test_a_client_belongs_to_one_event_loop(server: Etcd) -> None:
    """A client used from a second event loop raises instead of hanging."""
    clients: list[Client] = []

    async def open_it() -> None:
        clients.append(Client.open(server.endpoints, timeout=10.0))
        await clients[0].status()

    async def use_it() -> None:
        with pytest.raises(RuntimeError, match="event loop"):
            await clients[0].status()

    async def both() -> None:
        await open_it()
        await asyncio.to_thread(lambda: asyncio.run(use_it()))
        await clients[0].close()

    asyncio.run(both())
