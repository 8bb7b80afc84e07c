"""Users, tokens and certificates: who gets access, what happens when a token expires, and that a new login never applies a write twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.etcd import Certificates, Etcd, running
from harness.etcd_traffic import eventually, outcome, restart, start
from sparkonce.errors import InvalidInput
from sparkonce.etcd.client import Client, Tls
from sparkonce.etcd.errors import EtcdRefused, EtcdUnavailable, PermissionDenied
from sparkonce.etcd.kv import Put, Range

TOKEN_TTL = 1
"""Seconds until an unused token expires."""


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """etcd with authentication: `ann` may use /ann/ with a password. One test restarts it, which does not affect the others."""
    flags = ["--auth-token=simple", f"--auth-token-ttl={TOKEN_TTL}", "--bcrypt-cost=4"]
    with running(tmp_path_factory.mktemp("locked"), flags=flags) as etcd:
        etcd.add_user("ann", "secret", prefix=b"/ann/")
        etcd.turn_auth_on()
        yield etcd


def ann(etcd: Etcd) -> Client:
    return Client.open(etcd.endpoints, user="ann", password="secret", timeout=10.0)


def logins(etcd: Etcd) -> float:
    """Number of logins that etcd has applied or, in 3.4, which does not count those, has answered."""
    applied = etcd.one.counted("etcd_server_apply_duration_seconds_count", op="Authenticate", success="true")
    return applied or etcd.one.counted("grpc_server_handled_total", grpc_method="Authenticate", grpc_code="OK")


def test_a_user_may_use_what_the_role_grants(locked: Etcd) -> None:
    """A user who has logged in reads, writes and watches where the role allows it; elsewhere each of these is PermissionDenied."""

    async def body() -> None:
        client = ann(locked)
        revision = (await client.txn([], [Put(b"/ann/a", b"1")])).revision
        assert (await client.range(Range(b"/ann/a"))).kvs[0].value == b"1"
        batches = client.watch(b"/ann/a", b"", start=revision)
        seen = [await anext(batches), await anext(batches)]
        assert [event.kv.value for batch in seen for event in batch.events] == [b"1"]
        await batches.aclose()
        with pytest.raises(PermissionDenied):
            await client.txn([], [Put(b"/bob/a", b"1")])
        with pytest.raises(PermissionDenied):
            await client.range(Range(b"/bob/a"))
        with pytest.raises(PermissionDenied):
            await anext(client.watch(b"/bob/a", b"", start=1))
        await client.close()

    asyncio.run(body())


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", "secret"), (None, None)])
def test_who_is_not_known_is_refused(locked: Etcd, user: str | None, password: str | None) -> None:
    """A wrong password, an unknown user or no user is an answer, for calls and for watches, and not an outage that is retried."""

    async def body() -> None:
        client = Client.open(locked.endpoints, user=user, password=password, timeout=10.0)
        with pytest.raises(EtcdRefused):
            await client.txn([], [Put(b"/ann/never", b"")])
        with pytest.raises(EtcdRefused):
            await anext(client.watch(b"/ann/", b"/ann0", start=1))
        await client.close()
        assert b"/ann/never" not in locked.content(b"/ann/")

    asyncio.run(body())


def test_an_expired_token_is_renewed_once_for_all_and_nothing_is_doubled(locked: Etcd) -> None:
    """Fifty writes meet an expired token at the same time: there is one new login, and each write is applied once."""

    async def body() -> None:
        client = ann(locked)
        await client.txn([], [Put(b"/ann/first", b"")])
        expired = asyncio.get_running_loop().time() + 2.5 * TOKEN_TTL
        await eventually(lambda: loop.time() > expired, 10)
        before = logins(locked)
        await asyncio.gather(*(client.txn([], [Put(b"/ann/x%d" % number, b"")]) for number in range(50)))
        ours = logins(locked) - before
        versions = locked.versions(b"/ann/x")
        assert (len(versions), set(versions.values())) == (50, {1})
        assert ours == 1
        await client.close()

    loop = asyncio.new_event_loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(body())


def test_a_member_that_forgot_the_token_is_logged_in_to_again(locked: Etcd) -> None:
    """A restarted etcd has lost all tokens: calls, a watch and a kept lease continue by themselves."""

    async def body() -> None:
        client = ann(locked)
        revision = (await client.txn([], [Put(b"/ann/w", b"0")])).revision
        kept = client.keep(await client.grant(6))
        seen: list[bytes] = []

        async def follow() -> None:
            async for batch in client.watch(b"/ann/w", b"", start=revision):
                seen.extend(event.kv.value for event in batch.events)

        task = asyncio.create_task(follow())
        await eventually(lambda: seen == [b"0"], 10)
        # etcd commits the login to disk within 100 ms; killed before that, it would replay the login and still know the token.
        await restart(locked.one)
        was = kept.deadline
        assert await outcome(client.range(Range(b"/ann/w"))) == "answered"
        await client.txn([], [Put(b"/ann/w", b"1")])
        await eventually(lambda: seen == [b"0", b"1"] and kept.deadline > was, 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()

    asyncio.run(body())


def test_a_change_of_users_does_not_disturb_a_client(locked: Etcd) -> None:
    """When roles change, etcd rejects every token as old; the client logs in again, and the write is applied once."""

    async def body() -> None:
        client = ann(locked)
        await client.txn([], [Put(b"/ann/r0", b"")])
        locked.add_user("carl", "other", prefix=b"/carl/")
        await client.txn([], [Put(b"/ann/r1", b"")])
        assert locked.versions(b"/ann/r1") == {b"/ann/r1": 1}
        await client.close()

    asyncio.run(body())


def test_a_user_is_no_hindrance_where_nobody_asks_for_one(own: Etcd) -> None:
    """A client with a user works while authentication is off, and continues when it is turned on."""

    async def body() -> None:
        own.add_user("ann", "secret", prefix=b"/ann/")
        client = ann(own)
        await client.txn([], [Put(b"/ann/before", b"")])
        own.turn_auth_on()
        await client.txn([], [Put(b"/ann/after", b"")])
        with pytest.raises(PermissionDenied):
            await client.txn([], [Put(b"/bob/after", b"")])
        assert set(own.versions(b"/ann/").values()) == {1}
        await client.close()

    asyncio.run(body())


# --- certificates ---


def tls_of(certificates: Certificates, name: str) -> Tls:
    chain, key = certificates.user(name)
    return Tls(ca=certificates.ca, cert=chain, key=key)


def test_a_certificate_is_a_login(tmp_path: Path) -> None:
    """With certificates the common name is the user, without a password; a certificate from another authority is refused."""
    certificates = Certificates.make(tmp_path / "tls")
    strangers = Certificates.make(tmp_path / "strangers")

    async def body(etcd: Etcd) -> None:
        client = Client.open(etcd.endpoints, tls=tls_of(certificates, "ann"), timeout=10.0)
        await client.txn([], [Put(b"/ann/a", b"1")])
        with pytest.raises(PermissionDenied):
            await client.txn([], [Put(b"/bob/a", b"1")])
        kept = client.keep(await client.grant(2))
        was = kept.deadline
        await eventually(lambda: kept.deadline > was, 5)
        await client.close()
        stranger = Tls(ca=certificates.ca, cert=strangers.user("ann")[0], key=strangers.key("ann"))
        for nobody in (None, Tls(ca=certificates.ca), stranger, Tls(ca=strangers.ca)):
            client = Client.open(etcd.endpoints, tls=nobody, timeout=0.5)
            with pytest.raises(EtcdUnavailable):
                await client.range(Range(b"/ann/a"))
            await client.close()

    with running(tmp_path, tls=certificates) as etcd:
        etcd.add_user("ann", None, prefix=b"/ann/")
        etcd.turn_auth_on()
        asyncio.run(body(etcd))


def test_a_certificate_that_was_renewed_in_place_is_taken_up(tmp_path: Path) -> None:
    """The authority changes on both sides while the client runs: the client reads its files again when a connection fails."""
    mine, theirs = Certificates.make(tmp_path / "mine"), Certificates.make(tmp_path / "theirs")

    async def body(etcd: Etcd) -> None:
        client = Client.open(etcd.endpoints, tls=tls_of(mine, "ann"), timeout=1.0)
        kept = client.keep(await client.grant(12))
        await client.txn([], [Put(b"/a", b"")])
        renewed = Certificates.make(theirs.folder)  # etcd reads it when it restarts
        etcd.one.kill()
        await start(etcd.one)
        with pytest.raises(EtcdUnavailable):
            await client.txn([], [Put(b"/b", b"")])
        renewed.user("ann")
        for name in ("ca.pem", "ann.pem", "ann.key"):
            (mine.folder / name).write_bytes((theirs.folder / name).read_bytes())
        was = kept.deadline
        assert await outcome(client.range(Range(b"/a"), timeout=10.0)) == "answered"
        await eventually(lambda: kept.deadline > was, 10)
        await client.close()

    (mine.ca).write_bytes(theirs.ca.read_bytes())
    mine = Certificates(mine.folder, theirs.authority)
    with running(tmp_path, tls=theirs) as etcd:
        asyncio.run(body(etcd))


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path, server: Etcd) -> None:
    """A file that cannot be read is invalid input; the sentence names it."""

    async def body() -> None:
        client = Client.open(server.endpoints, tls=Tls(ca=tmp_path / "none.pem"))
        with pytest.raises(InvalidInput, match=r"none\.pem"):
            await client.status()
        await client.close()

    asyncio.run(body())
