"""The middleware over a counting service, in one process. R-nn are the scenarios of the research on Apache Polaris."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import tracemalloc
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.asgi import ask
from harness.etcd_replies import emptied
from harness.patience import stretched
from harness.postgres import server
from sparkonce.asgi import IdempotencyMiddleware, KeyedRequest, NotDone, Reply, Scope, Unknown
from sparkonce.errors import InvalidInput, StoreUnavailable, StoreUnusable
from sparkonce.replies.coordinator import Refusal
from sparkonce.replies.exchange import iso_duration
from sparkonce.replies.ledger import rules
from sparkonce.replies.ledger.memory import MemoryReplies
from sparkonce.replies.open import open_replies
from sparkonce.replies.policy import ReplyPolicy
from sparkonce.replies.protocol import ReplyLedger, ReplyRecord, Reservation, StoreTime, WriteOutcome


def short() -> float:
    """Seconds of a lease that a test waits for: long enough for the beats of a machine as busy as this one."""
    return stretched(0.6)


class Service:
    """Counts its effects. `answers`: of each run in turn, the last one for all that follow; `gate`: runs wait for it after their effect."""

    def __init__(self, *answers: Reply | Exception) -> None:
        self.answers = list(answers) or [
            Reply(201, (("content-type", "application/json"), ("location", "/orders/1")), b'{"id": 1}')
        ]
        self.effects = 0
        self.scopes: list[dict[str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.effects += 1
        self.scopes.append(scope)
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        half = len(answer.body) // 2
        await send({"type": "http.response.body", "body": answer.body[:half], "more_body": True})
        await send({"type": "http.response.body", "body": answer.body[half:]})


@pytest.fixture(params=["memory", "sqlite", "postgres", "etcd-3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | ReplyLedger:
    """What `store` may be: an address, or an open ledger."""
    if request.param == "etcd-3":
        return emptied()
    if request.param == "postgres":
        return open_replies(server().url, schema=f"replies_{uuid.uuid4().hex}")
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'replies.db'}"


@asynccontextmanager
async def guarded(
    service: Any, store: str | ReplyLedger = "memory:", **options: Any
) -> AsyncIterator[IdempotencyMiddleware]:
    app = IdempotencyMiddleware(
        service, store=store, **({"lease": 30.0, "wait": 30.0, "pause": 0.2, "store_patience": 30.0} | options)
    )
    try:
        yield app
    finally:
        await app.close(grace=2.0)


def test_r39_r45_a_repetition_gets_the_recorded_answer(url: str | ReplyLedger) -> None:
    """R-39, R-45: one effect, and with it whatever the service tells others. The same status, kept headers and body, and the marker, which
    the first answer does not have."""

    async def scenario() -> None:
        service = Service()
        async with guarded(service, url) as app:
            first, second = await ask(app), await ask(app)
        assert service.effects == 1
        assert (first.status, first.body, first.replayed) == (201, b'{"id": 1}', False)
        assert (second.status, second.body, second.replayed) == (201, b'{"id": 1}', True)
        assert second.header("location") == "/orders/1"
        assert second.header("content-length") == "9"

    asyncio.run(scenario())


def test_requests_without_a_key_and_other_methods_pass() -> None:
    """They are no business of the middleware, which leaves their scope and messages alone."""

    async def scenario() -> None:
        service = Service()
        async with guarded(service) as app:
            await ask(app, key=None)
            await ask(app, key=None)
            await ask(app, method="GET", body=b"")
            await ask(app, method="GET", body=b"")
        assert service.effects == 4
        assert all("sparkonce" not in scope for scope in service.scopes)

    asyncio.run(scenario())


def test_r01_64_clients_of_one_key_get_one_effect_and_one_answer(url: str | ReplyLedger) -> None:
    """R-01, R-09: one runs, 63 wait and are answered alike."""

    async def scenario() -> None:
        service = Service()
        service.gate.clear()
        async with guarded(service, url) as app:
            asking = [asyncio.create_task(ask(app)) for _ in range(64)]
            await service.started.wait()
            await asyncio.sleep(0.2)  # all others find it running
            service.gate.set()
            answers = await asyncio.gather(*asking)
        assert service.effects == 1
        assert {(each.status, each.body) for each in answers} == {(201, b'{"id": 1}')}
        assert sum(each.replayed for each in answers) == 63

    asyncio.run(scenario())


def test_r63_a_thousand_waiting_clients_cost_no_thread_and_few_looks() -> None:
    """R-63: one look at the ledger for all of them, and less than 64 KiB of memory each."""

    class Counting(MemoryReplies):
        def __init__(self) -> None:
            super().__init__()
            self.looks = self.reserved = 0
            self.all_asked = asyncio.Event()

        async def look(self, key: str) -> Reservation | None:
            self.looks += 1
            return await super().look(key)

        async def reserve(self, key: str, **given: Any) -> Reservation:
            self.reserved += 1
            if self.reserved == 1001:
                self.all_asked.set()
            return await super().reserve(key, **given)

    async def scenario() -> None:
        service, ledger = Service(), Counting()
        service.gate.clear()
        async with guarded(service, ledger, lease=30.0) as app:
            owner = asyncio.create_task(ask(app))
            await service.started.wait()
            tracemalloc.start()
            asking = [asyncio.create_task(ask(app)) for _ in range(1000)]
            began = time.monotonic()
            await ledger.all_asked.wait()
            await asyncio.sleep(0.5)
            used, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert used < 1000 * 64 * 1024
            assert ledger.looks < 5 + 30 * (time.monotonic() - began)
            service.gate.set()
            answers = await asyncio.gather(owner, *asking)
        assert service.effects == 1
        assert {each.status for each in answers} == {201}

    asyncio.run(scenario())


def test_r63_more_waiting_clients_than_allowed_are_told_to_come_again() -> None:
    """R-63: at once, while those that wait go on waiting."""

    async def scenario() -> None:
        service = Service()
        service.gate.clear()
        async with guarded(service, max_waiting=2) as app:
            asking = [asyncio.create_task(ask(app)) for _ in range(3)]
            await service.started.wait()
            await asyncio.sleep(0.1)
            late = await ask(app)
            assert (late.status, late.title, late.header("retry-after")) == (409, "in-progress", "1")
            service.gate.set()
            assert {each.status for each in await asyncio.gather(*asking)} == {201}

    asyncio.run(scenario())


def test_r09_a_wait_ends_with_409_and_retry_after(url: str | ReplyLedger) -> None:
    """R-05, R-09: a repetition is bounded, and nothing runs for it."""

    async def scenario() -> None:
        service = Service()
        service.gate.clear()
        async with guarded(service, url, wait=0.3) as app:
            owner = asyncio.create_task(ask(app))
            await service.started.wait()
            late = await ask(app)
            assert (late.status, late.title, late.header("retry-after")) == (409, "in-progress", "1")
            service.gate.set()
            assert (await owner).status == 201
        assert service.effects == 1

    asyncio.run(scenario())


def test_r14_a_request_may_take_longer_than_its_lease(url: str | ReplyLedger) -> None:
    """R-14: beats keep the claim, and a repetition goes on waiting."""

    async def scenario() -> None:
        service = Service()
        service.gate.clear()
        lease = short()
        async with guarded(service, url, lease=lease, reconcile=lambda _: NotDone) as app:
            owner = asyncio.create_task(ask(app))
            await service.started.wait()
            late = asyncio.create_task(ask(app))
            await asyncio.sleep(3 * lease)
            service.gate.set()
            assert (await owner).status == (await late).status == 201
        assert service.effects == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [200, 202, 204, 206, 302, 304, 400, 404, 409, 410, 422])
def test_r27_r46_r51_success_redirects_and_deterministic_failures_are_final(status: int) -> None:
    """R-27, R-46, R-51: replayed without a second run."""

    async def scenario() -> None:
        service = Service(
            Reply(status, (("content-type", "text/plain"),), b"" if status in (204, 304) else b"said"), Reply(500)
        )
        async with guarded(service) as app:
            first, second = await ask(app), await ask(app)
        assert service.effects == 1
        assert (first.status, first.body) == (second.status, second.body) == (status, first.body)
        assert second.replayed

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
def test_r47_what_may_succeed_later_frees_the_key(url: str | ReplyLedger, status: int) -> None:
    """R-47: also for another request under the same key, since nothing was done."""

    async def scenario() -> None:
        service = Service(Reply(status, (("www-authenticate", "Basic"),)), Reply(201))
        async with guarded(service, url) as app:
            assert (await ask(app)).status == status
            assert (await ask(app, body=b"[]")).status == 201
        assert service.effects == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [Reply(500, body=b"oops"), Reply(503), RuntimeError("died half-way")])
def test_r07_an_unknown_outcome_is_never_run_again_by_itself(url: str | ReplyLedger, answer: Any) -> None:
    """R-07: the first client gets the 5xx, later ones 503 with a time, and the effect stays one."""

    async def scenario() -> None:
        service = Service(answer, Reply(201))
        async with guarded(service, url) as app:
            if isinstance(answer, Exception):
                with pytest.raises(RuntimeError, match="died half-way"):
                    await ask(app)
            else:
                first = await ask(app)
                assert (first.status, first.body) == (answer.status, answer.body)
            for _ in range(3):
                late = await ask(app)
                assert (late.status, late.title) == (503, "unknown-outcome")
                assert late.header("retry-after") == "3600"
        assert service.effects == 1

    asyncio.run(scenario())


def test_r21_reconcile_finds_the_answer_of_a_request_that_died(url: str | ReplyLedger) -> None:
    """R-21: one call of the hook, with the request; its answer is recorded and replayed from then on."""
    asked: list[KeyedRequest] = []

    async def reconcile(request: KeyedRequest) -> Reply:
        asked.append(request)
        return Reply(201, (("location", "/orders/7"),), b"found")

    async def scenario() -> None:
        service = Service(Reply(500))
        async with guarded(service, url, reconcile=reconcile) as app:
            await ask(app, body=b'{"a": 1}', query="x=1", headers=[("x-trace", "t")])
            answers = [await ask(app, body=b'{"a": 1}', query="x=1") for _ in range(3)]
        assert service.effects == len(asked) == 1
        assert {(each.status, each.body, each.replayed) for each in answers} == {(201, b"found", True)}
        only = asked[0]
        assert (only.text, only.method, only.path, only.query, only.body, only.token) == (
            "k1",
            "POST",
            "/orders",
            "x=1",
            b'{"a": 1}',
            2,
        )

    asyncio.run(scenario())


def test_not_done_runs_the_request_again(url: str | ReplyLedger) -> None:
    """The hook says that there was no effect: the request runs, as attempt 2, which its scope tells the service."""

    async def scenario() -> None:
        service = Service(Reply(500), Reply(201))
        async with guarded(service, url, reconcile=lambda _: NotDone) as app:
            await ask(app)
            second, third = await ask(app), await ask(app)
        assert (second.status, second.replayed, third.status, third.replayed) == (201, False, 201, True)
        assert service.effects == 2
        assert [scope["sparkonce"]["token"] for scope in service.scopes] == [1, 2]
        assert service.scopes[0]["sparkonce"]["key"] == "k1"

    asyncio.run(scenario())


@pytest.mark.parametrize("verdict", [Unknown, Unknown(), RuntimeError("the table is away"), None])
def test_a_hook_that_does_not_know_leaves_the_outcome_unknown(url: str | ReplyLedger, verdict: Any) -> None:
    """Unknown, an error, and a value that is no verdict: 503, no run, and the next request after the pause asks again."""
    asked = 0

    def reconcile(_: KeyedRequest) -> Any:
        nonlocal asked
        asked += 1
        if asked > 1:
            return Reply(200)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    async def scenario() -> None:
        service = Service(Reply(500))
        async with guarded(service, url, reconcile=reconcile) as app:
            await ask(app)
            unknown = await ask(app)
            assert (unknown.status, unknown.title) == (503, "unknown-outcome")
            assert (await ask(app)).status == 200  # waits for the pause
        assert (service.effects, asked) == (1, 2)

    asyncio.run(scenario())


def test_r11_one_of_many_followers_reconciles(url: str | ReplyLedger) -> None:
    """R-11: 20 clients find a dead owner's key; the hook runs once, and all get its answer."""
    asked = 0

    async def reconcile(_: KeyedRequest) -> Reply:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.2)
        return Reply(200, body=b"found")

    async def scenario() -> None:
        service = Service(Reply(500))
        async with guarded(service, url, reconcile=reconcile) as app:
            await ask(app)
            answers = await asyncio.gather(*(ask(app) for _ in range(20)))
        assert {(each.status, each.body) for each in answers} == {(200, b"found")}
        assert (service.effects, asked) == (1, 1)

    asyncio.run(scenario())


def test_r11_followers_that_see_a_stale_key_at_the_same_time_reconcile_once() -> None:
    """R-11: all of them ask to take it over before the first is answered."""
    asked = 0

    class Slow(MemoryReplies):
        takers = 0

        async def take_over(self, key: str, **given: Any) -> WriteOutcome:
            self.takers += 1
            if self.takers == 20:
                all_asked.set()
            await all_asked.wait()
            return await super().take_over(key, **given)

    all_asked = asyncio.Event()

    async def reconcile(_: KeyedRequest) -> Reply:
        nonlocal asked
        asked += 1
        return Reply(200, body=b"found")

    async def scenario() -> None:
        service = Service(Reply(500))
        async with guarded(service, Slow(), reconcile=reconcile) as app:
            await ask(app)
            answers = await asyncio.gather(*(ask(app) for _ in range(20)))
        assert {(each.status, each.body) for each in answers} == {(200, b"found")}
        assert (service.effects, asked) == (1, 1)

    asyncio.run(scenario())


def test_a_scope_that_may_rerun_runs_again(url: str | ReplyLedger) -> None:
    """`rerun`: for operations that are idempotent by themselves."""

    async def scenario() -> None:
        service = Service(Reply(500), Reply(200))
        async with guarded(service, url, scopes=[Scope(rerun=True)]) as app:
            assert (await ask(app)).status == 500
            assert (await ask(app)).status == 200
            assert (await ask(app)).replayed
        assert service.effects == 2

    asyncio.run(scenario())


def test_r24_a_client_that_leaves_cancels_nothing(url: str | ReplyLedger) -> None:
    """R-24: its request is cancelled by the server, the effect goes on, and the next client gets its answer."""

    async def scenario() -> None:
        service = Service()
        service.gate.clear()
        async with guarded(service, url) as app:
            asking = asyncio.create_task(ask(app))
            await service.started.wait()
            asking.cancel()
            await asyncio.wait([asking])
            service.gate.set()
            late = await ask(app)
        assert (service.effects, service.cancelled) == (1, 0)
        assert (late.status, late.replayed) == (201, True)

    asyncio.run(scenario())


def test_r24_a_client_that_leaves_before_its_body_came_reserves_nothing() -> None:
    """R-24: no answer is sent and nothing runs."""

    async def scenario() -> None:
        service, gone = Service(), asyncio.Event()
        gone.set()
        ledger = MemoryReplies()
        async with guarded(service, ledger) as app:
            got = await ask(app, body=[], gone=gone)
            assert got.status == 0
            assert not ledger._records
        assert service.effects == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "changed",
    [{"body": b"[]"}, {"query": "x=1"}, {"path": "/other"}, {"method": "PATCH"}, {"headers": [("if-match", "2")]}],
    ids=["body", "query", "resource", "operation", "header"],
)
def test_r28_r29_r30_a_key_for_another_request_is_refused(url: str | ReplyLedger, changed: dict[str, Any]) -> None:
    """R-28 to R-30: 422, nothing runs, and the first answer stays."""

    async def scenario() -> None:
        service = Service()
        async with guarded(service, url, scopes=[Scope(matching_headers=("If-Match",))]) as app:
            await ask(app)
            refused = await ask(app, **changed)
            assert (refused.status, refused.title) == (422, "key-reused")
            assert (await ask(app)).replayed
        assert service.effects == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("header", ["authorization", "cookie"])
def test_r31_no_caller_gets_another_callers_answer(url: str | ReplyLedger, header: str) -> None:
    """R-31: the caller is part of the key; the second one's request runs as its own."""

    async def scenario() -> None:
        service = Service(Reply(201, body=b"for P"), Reply(201, body=b"for Q"))
        async with guarded(service, url) as app:
            p = await ask(app, headers=[(header, "P")])
            q = await ask(app, headers=[(header, "Q")])
            again = await ask(app, headers=[(header, "P")])
        assert [each.body for each in (p, q, again)] == [b"for P", b"for Q", b"for P"]
        assert service.effects == 2

    asyncio.run(scenario())


def test_r31_where_callers_share_keys_another_caller_is_a_mismatch(url: str | ReplyLedger) -> None:
    """`caller_in_key=False`: refused as another body is, with nothing of the first answer."""

    async def scenario() -> None:
        service = Service(Reply(201, body=b"for P"))
        async with guarded(service, url, caller_in_key=False) as app:
            await ask(app, headers=[("authorization", "P")])
            other = await ask(app, headers=[("authorization", "Q")])
            body = await ask(app, headers=[("authorization", "P")], body=b"[]")
        assert (other.status, other.body) == (body.status, body.body)
        assert other.title == "key-reused"

    asyncio.run(scenario())


def test_r33_a_callers_other_attributes_do_not_matter(url: str | ReplyLedger) -> None:
    """R-33: a service whose tokens rotate says who calls."""

    async def scenario() -> None:
        service = Service()
        async with guarded(service, url, caller=lambda scope: "the user") as app:
            await ask(app, headers=[("authorization", "token 1")])
            assert (await ask(app, headers=[("authorization", "token 2")])).replayed

    asyncio.run(scenario())


def test_r42_no_credential_is_stored_logged_or_replayed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """R-42: planted in request and answer, searched in every file of the ledger, in the log, and in the replay."""
    caplog.set_level(logging.DEBUG)
    planted = "hunter2-Zk9Qw"

    async def scenario() -> None:
        service = Service(
            Reply(201, (("set-cookie", f"s={planted}"), ("www-authenticate", planted), ("x-token", planted)), b"done")
        )
        async with guarded(service, f"sqlite:///{tmp_path / 'replies.db'}") as app:
            sent = [("authorization", f"Bearer {planted}"), ("cookie", f"s={planted}")]
            first = await ask(app, headers=sent)
            assert first.header("set-cookie") == f"s={planted}"
            second = await ask(app, headers=sent)
            assert second.replayed
            assert planted not in str(second.headers)

    asyncio.run(scenario())
    for file in tmp_path.rglob("*"):
        assert planted.encode() not in file.read_bytes()
    assert planted not in caplog.text


def test_a_service_cannot_ask_for_credentials_to_be_kept() -> None:
    """Nor for headers of one connection."""
    for name in ("set-cookie", "Authorization", "content-length", "a b"):
        with pytest.raises(InvalidInput, match="cannot be kept"):
            IdempotencyMiddleware(Service(), store="memory:", headers=[name])


def test_headers_that_are_not_kept_take_no_room_of_those_that_are() -> None:
    """A service sends its cookies first: without its type and encoding the body would be bytes that nobody can read."""
    cookies = tuple(("set-cookie", "c" * 3900) for _ in range(3))
    reply = Reply(201, (*cookies, ("content-type", "application/json"), ("content-encoding", "gzip")), b"\x1f\x8b")
    kept = ReplyPolicy(headers=("content-type", "content-encoding")).kept(reply)
    assert kept.headers == (("content-type", "application/json"), ("content-encoding", "gzip"))


@pytest.mark.parametrize("step", [-0.2, -9.9, 0.0, 9.9])
def test_a_clock_that_goes_back_by_less_than_a_lease_ends_no_claim(step: float) -> None:
    """As a database's after a correction, or a standby's that takes over: a claim that has just been made would run twice."""
    claim = ReplyRecord(
        caller="c",
        fingerprint="f" * 64,
        nonce="n",
        takeovers=0,
        reserved_at=0.0,
        expires_at=1e9,
        lease=10.0,
        lease_until=110.0,
    )
    assert rules.left(claim, StoreTime(now=100.0 + step, ticks=100.0 + step)) > 0
    assert rules.left(claim, StoreTime(now=89.0, ticks=89.0)) == 0, "it was made before the machine started"


def test_r43_a_large_answer_is_sent_whole_and_replayed_by_reference(url: str | ReplyLedger) -> None:
    """R-43: the first client gets every byte; later ones the status, the place, and a sentence; nothing is cut, nothing runs again."""
    body = bytes(range(256)) * 2000

    async def scenario() -> None:
        service = Service(Reply(201, (("location", "/orders/1"), ("content-type", "image/png"), ("etag", '"a"')), body))
        async with guarded(service, url) as app:
            first, second = await ask(app), await ask(app)
        assert first.body == body
        assert first.complete
        assert service.effects == 1
        assert (second.status, second.header("location"), second.header("content-type")) == (
            201,
            "/orders/1",
            "application/json",
        )
        assert json.loads(second.body)["bytes"] == len(body)
        assert second.header("idempotency-body") == "omitted"

    asyncio.run(scenario())


def test_r43_the_service_finishes_a_large_answer_whose_client_left(url: str | ReplyLedger) -> None:
    """R-43: the request ran to its end, and later clients learn so."""

    async def scenario() -> None:
        service, gone = Service(Reply(200, body=b"x" * 600_000)), asyncio.Event()
        service.gate.clear()
        async with guarded(service, url) as app:
            asking = asyncio.create_task(ask(app, gone=gone))
            await service.started.wait()
            gone.set()
            service.gate.set()
            await asyncio.wait([asking])
            assert json.loads((await ask(app)).body)["bytes"] == 600_000
        assert service.effects == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "status", "title"),
    [
        ({"key": ""}, 400, "bad-key"),
        ({"key": "x" * 256}, 400, "bad-key"),
        ({"key": "schl\xfcssel"}, 400, "bad-key"),
        ({"key": ["a", "b"]}, 400, "bad-key"),
        ({"body": b"x" * (257 * 1024)}, 413, "body-too-large"),
        ({"body": [b"x" * 1024] * 257}, 413, "body-too-large"),
        ({"body": b"", "headers": [("content-length", "999999999")]}, 413, "body-too-large"),
        ({"body": b"abc", "headers": [("content-length", "4")]}, 400, "wrong-length"),
        ({"body": [b"x"] * 5, "pause": 0.2}, 408, "slow-body"),
        ({"key": None, "path": "/must"}, 400, "key-missing"),
    ],
)
def test_what_is_no_request_with_a_key_is_refused_before_anything_is_reserved(
    given: dict[str, Any], status: int, title: str
) -> None:
    """One sentence each; no record, no run."""

    async def scenario() -> None:
        service, ledger = Service(), MemoryReplies()
        scopes = [Scope(path="/must", required=True), Scope()]
        async with guarded(service, ledger, body_timeout=0.5, scopes=scopes) as app:
            got = await ask(app, **given)
            assert (got.status, got.title) == (status, title)
            detail = json.loads(got.body)["detail"]
            assert "\n" not in detail
            assert not ledger._records
        assert service.effects == 0

    asyncio.run(scenario())


class Flaky(MemoryReplies):
    """A ledger that does not answer while `down`; `lands` says whether its writes happen all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.down: set[str] = set()
        self.lands = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("reserve", "look", "beat", "take_over", "finalize", "release", "abandon"):
            return found

        async def called(*args: Any, **kwargs: Any) -> Any:
            if name not in self.down:
                return await found(*args, **kwargs)
            if self.lands:
                await found(*args, **kwargs)
            raise StoreUnavailable("no answer")

        return called


def test_r59_a_ledger_that_is_down_lets_nothing_run(url: str | ReplyLedger) -> None:
    """R-59: 503 with Retry-After within the patience, nothing runs, and the key is free afterwards even if the reservation landed."""

    async def scenario(*, lands: bool) -> None:
        service, ledger = Service(), Flaky()
        ledger.down, ledger.lands = {"reserve"}, lands
        async with guarded(service, ledger, store_patience=0.3) as app:
            began = time.monotonic()
            refused = await ask(app)
            assert time.monotonic() - began < 3
            assert (refused.status, refused.title, refused.header("retry-after")) == (503, "store-down", "1")
            ledger.down = set()
            assert (await ask(app)).status == 201
        assert service.effects == 1

    asyncio.run(scenario(lands=False))
    asyncio.run(scenario(lands=True))


def test_a_service_may_run_without_its_ledger(url: str | ReplyLedger) -> None:
    """`when_store_down="pass"`: runs, and records its answer when the ledger is back."""

    async def scenario() -> None:
        service, ledger = Service(), Flaky()
        ledger.down = {"reserve"}
        async with guarded(service, ledger, store_patience=0.2, when_store_down="pass") as app:
            assert (await ask(app)).status == 201
            assert service.scopes[0]["sparkonce"]["protected"] is False
            ledger.down = set()
            for _ in range(100):
                if ledger._records and next(iter(ledger._records.values())).reply is not None:
                    break
                await asyncio.sleep(0.05)
            assert (await ask(app)).replayed
        assert service.effects == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer", [Reply(429), Refusal(503, "upstream-down", "nothing was sent")], ids=["429", "refusal"]
)
def test_a_key_whose_request_did_nothing_is_free_though_its_reservation_landed(answer: Reply | Refusal) -> None:
    """`when_store_down="pass"`: the reservation landed without an answer, and the service says that nothing was done. The next request runs
    when the ledger is back."""

    async def scenario() -> None:
        service, ledger = Service(answer, Reply(201)), Flaky()
        ledger.down, ledger.lands = {"reserve"}, True
        async with guarded(service, ledger, store_patience=0.2, when_store_down="pass", wait=5.0) as app:
            assert (await ask(app)).status == (429 if isinstance(answer, Reply) else 503)
            ledger.down = set()
            assert (await ask(app)).status == 201
            assert (await ask(app)).replayed
        assert service.effects == 2

    asyncio.run(scenario())


def test_an_unprotected_request_is_recorded_though_its_client_left() -> None:
    """`when_store_down="pass"`: the request runs on, and its answer is that of its key."""

    async def scenario() -> None:
        service, ledger = Service(), Flaky()
        service.gate.clear()
        ledger.down, ledger.lands = {"reserve"}, True
        async with guarded(service, ledger, store_patience=0.2, when_store_down="pass", wait=5.0) as app:
            asking = asyncio.create_task(ask(app))
            await service.started.wait()
            asking.cancel()
            await asyncio.wait([asking])
            ledger.down = set()
            service.gate.set()
            assert (await ask(app)).replayed
        assert service.effects == 1

    asyncio.run(scenario())


def test_r24_a_client_that_leaves_while_its_key_is_reserved_leaves_it_free() -> None:
    """The reservation lands, the client is gone before it is answered: nothing ran, so the next request with the key runs."""

    class Hanging(MemoryReplies):
        hangs = True

        async def reserve(self, key: str, **given: Any) -> Reservation:
            found = await super().reserve(key, **given)
            if self.hangs:
                reserved.set()
                await asyncio.Event().wait()
            return found

    reserved = asyncio.Event()

    async def scenario() -> None:
        service, ledger = Service(), Hanging()
        async with guarded(service, ledger) as app:
            asking = asyncio.create_task(ask(app))
            await reserved.wait()
            ledger.hangs = False
            asking.cancel()
            await asyncio.wait([asking])
            assert service.effects == 0
            assert (await ask(app, body=b"[]")).status == 201
        assert service.effects == 1

    asyncio.run(scenario())


def test_r59_a_ledger_that_cannot_be_used_lets_nothing_run(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets 503; the reason is for the log."""

    class Unusable(MemoryReplies):
        async def reserve(self, key: str, **given: Any) -> Reservation:
            raise StoreUnusable("the store refuses this user; ask for the right to it")

    async def scenario() -> None:
        service = Service()
        async with guarded(service, Unusable()) as app:
            refused = await ask(app)
        assert (refused.status, refused.title, service.effects) == (503, "store-down", 0)
        assert b"refuses this user" not in refused.body

    asyncio.run(scenario())
    assert "refuses this user" in caplog.text


def test_r44_a_replay_needs_the_right_that_the_request_needs() -> None:
    """R-44: inside the middleware that authenticates, an expired token is refused as on a first request, and nothing is replayed."""
    expired: set[str] = set()

    async def scenario() -> None:
        service = Service()
        async with guarded(service) as app:

            async def authenticated(scope: Any, receive: Any, send: Any) -> None:
                if dict(scope["headers"])[b"authorization"].decode() in expired:
                    await send({"type": "http.response.start", "status": 401, "headers": []})
                    await send({"type": "http.response.body", "body": b""})
                    return
                await app(scope, receive, send)

            assert (await ask(authenticated, headers=[("authorization", "P")])).status == 201
            expired.add("P")
            refused = await ask(authenticated, headers=[("authorization", "P")])
            assert (refused.status, refused.body, refused.replayed) == (401, b"", False)

    asyncio.run(scenario())


def test_r22_an_answer_is_recorded_when_the_ledger_is_back() -> None:
    """R-22: the client gets its answer after the patience; finalizing goes on, and repetitions get that answer."""

    async def scenario() -> None:
        service, ledger = Service(), Flaky()
        async with guarded(service, ledger, store_patience=0.2) as app:
            ledger.down = {"finalize"}
            assert (await ask(app)).status == 201
            ledger.down = set()
            assert (await ask(app)).status == 201
        assert service.effects == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("verb", ["reserve", "finalize", "take_over", "abandon", "release"])
def test_r08_a_lost_reply_of_any_verb_changes_nothing(verb: str) -> None:
    """R-08: the verb lands, its reply is lost once, and the request ends as without the loss."""

    class LosesOnce(MemoryReplies):
        lost: set[str] = set()

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name != verb:
                return found

            async def called(*args: Any, **kwargs: Any) -> Any:
                outcome = await found(*args, **kwargs)
                if name in self.lost:
                    return outcome
                self.lost.add(name)
                raise StoreUnavailable("the reply was lost")

            return called

    async def scenario() -> None:
        service = Service(Reply(429), Reply(500), Reply(201))
        LosesOnce.lost = set()
        async with guarded(service, LosesOnce(), reconcile=lambda _: NotDone) as app:
            statuses = [(await ask(app)).status for _ in range(4)]
        assert statuses == [429, 500, 201, 201]
        assert service.effects == 3

    asyncio.run(scenario())


def test_r15_r16_r60_an_owner_stops_when_its_claim_can_no_longer_be_trusted() -> None:
    """R-15, R-60: one lost beat costs nothing. R-16: without any, the effect is cancelled before the lease ends, and nothing is
    finalized."""

    async def scenario() -> None:
        service, ledger = Service(), Flaky()
        service.gate.clear()
        lease = short()
        async with guarded(service, ledger, lease=lease) as app:
            owner = asyncio.create_task(ask(app))
            await service.started.wait()
            ledger.down = {"beat"}
            await asyncio.sleep(lease / 2)
            ledger.down = set()
            await asyncio.sleep(lease)
            assert not owner.done()
            ledger.down = {"beat"}
            began = time.monotonic()
            got = await owner
            assert (got.status, got.title) == (503, "claim-lost")
            assert time.monotonic() - began < lease + stretched(1.0)
            assert service.cancelled == 1
            assert next(iter(ledger._records.values())).reply is None

    asyncio.run(scenario())


def test_r17_a_woken_owner_gets_the_answer_of_who_took_over() -> None:
    """R-17: its own answer is not recorded, and its client gets the recorded one."""

    async def scenario() -> None:
        service, ledger = Service(Reply(201, body=b"the owner's")), MemoryReplies()
        service.gate.clear()
        async with guarded(service, ledger) as app:
            owner = asyncio.create_task(ask(app))
            await service.started.wait()
            key, record = next(iter(ledger._records.items()))
            await ledger.abandon(key, record.nonce, pause=0.0)
            await ledger.take_over(key, seen=record.nonce, nonce="ff", lease=30.0)
            await ledger.finalize(key, "ff", Reply(201, body=b"the follower's"), lifetime=100.0)
            service.gate.set()
            assert (await owner).body == b"the follower's"
            assert (await ask(app)).body == b"the follower's"

    asyncio.run(scenario())


def test_r20_a_shutdown_waits_for_running_requests_and_leaves_the_others_unknown() -> None:
    """R-20: no key is stuck: one that did not end in time is stale for the next process at once."""

    async def scenario() -> None:
        service, ledger = Service(), MemoryReplies()
        service.gate.clear()
        app = IdempotencyMiddleware(service, store=_Kept(ledger), lease=30.0)
        owner = asyncio.create_task(ask(app))
        await service.started.wait()
        await app.close(grace=0.1)
        await asyncio.wait([owner])
        assert (service.effects, service.cancelled) == (1, 1)
        async with guarded(Service(), ledger, reconcile=lambda _: Reply(200)) as successor:
            assert (await ask(successor)).status == 200

    asyncio.run(scenario())


class _Kept:
    """A ledger that outlives the middleware that closes it."""

    def __init__(self, ledger: MemoryReplies) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def close(self) -> None:
        pass


def test_r58_a_full_ledger_says_when_to_come_again() -> None:
    """R-58: the newest request is refused with the time, and nothing runs for it."""

    async def scenario() -> None:
        service = Service()
        async with guarded(service, MemoryReplies(keys_of_caller=1)) as app:
            await ask(app)
            full = await ask(app, key="k2")
            assert (full.status, full.title) == (503, "too-many-keys")
            assert int(full.header("retry-after") or 0) > 80_000
            assert (await ask(app)).replayed
        assert service.effects == 1

    asyncio.run(scenario())


def test_r64_the_lifetime_is_advertised() -> None:
    """R-64: as Iceberg's `GET /v1/config` has it."""

    async def scenario() -> None:
        async with guarded(Service(), advertise="/v1/config", lifetime=86_400.0) as app:
            got = await ask(app, method="GET", path="/v1/config", key=None, body=b"")
        assert json.loads(got.body) == {"idempotency-key-lifetime": "PT24H"}

    asyncio.run(scenario())
    assert [iso_duration(seconds) for seconds in (1800, 90, 0.5, 3661)] == ["PT30M", "PT1M30S", "PT0S", "PT1H1M1S"]


def test_the_lifespan_reaches_the_application_and_closes_the_ledger() -> None:
    """The ledger is closed at shutdown, after running requests."""

    async def scenario() -> None:
        seen: list[str] = []

        async def application(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
            assert scope["type"] == "lifespan"
            for _ in range(2):
                message = await receive()
                seen.append(message["type"])
                await send({"type": message["type"] + ".complete"})

        ledger = MemoryReplies()
        closed: list[bool] = []

        class Closing(_Kept):
            async def close(self) -> None:
                closed.append(True)

        app = IdempotencyMiddleware(application, store=Closing(ledger))
        messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            seen.append(message["type"])

        await app({"type": "lifespan"}, receive, send)
        assert seen == [
            "lifespan.startup",
            "lifespan.startup.complete",
            "lifespan.shutdown",
            "lifespan.shutdown.complete",
        ]
        assert closed == [True]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lifetime": 0}, "lifetime is 0"),
        ({"lifetme": 1}, "lifetme"),
        ({"busy_status": 200}, "busy_status is 200"),
        ({"scopes": [{"path": "x"}]}, "no scope"),
        ({"when_store_down": "run"}, "when_store_down"),
        ({"max_response_bytes": 10**9}, "cannot be kept"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(options: dict[str, Any], sentence: str) -> None:
    """One sentence that names the setting."""
    with pytest.raises(InvalidInput, match=sentence):
        IdempotencyMiddleware(Service(), store="memory:", **options)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "orders"}, "starts with a slash"),
        ({"methods": "POST"}, r"methods is the text 'POST'; give several, as in \('POST',\)"),
        ({"matching_headers": "x-tenant"}, "matching_headers is the text"),
    ],
)
def test_a_scope_that_cannot_be_meant_is_refused(given: dict[str, Any], sentence: str) -> None:
    """The letters of a text would be taken one by one: such a scope fits no request, and all of them would run unprotected."""
    with pytest.raises(InvalidInput, match=sentence):
        Scope(**given)


@pytest.mark.parametrize("url", ["redis://:hunter2@x", "sqlite:///", "sqlite:///:memory:", "mem", "etcd:h:2379"])
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    """The sentence names the addresses there are."""
    with pytest.raises(
        InvalidInput,
        match="is no ledger of answers; use memory:, sqlite:///PATH, postgresql://HOST/DATABASE or etcd://HOST:PORT",
    ) as refused:
        open_replies(url)
    assert "hunter2" not in str(refused.value)


def test_a_ledger_of_jobs_is_no_ledger_of_answers(tmp_path: Path) -> None:
    """A file of `sparkonce run` is refused by its install."""
    from sparkonce.store.sqlite.store import SqliteStore

    SqliteStore(tmp_path / "ledger.db")
    with pytest.raises(StoreUnusable, match="belongs to install 'local', not 'replies'"):
        open_replies(f"sqlite:///{tmp_path / 'ledger.db'}")


def test_no_answer_is_none() -> None:
    """The outcome is unknown, as after an error."""

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        pass

    async def scenario() -> None:
        async with guarded(silent) as app:
            with pytest.raises(RuntimeError, match="without an answer"):
                await ask(app)
            assert (await ask(app)).title == "unknown-outcome"

    asyncio.run(scenario())
