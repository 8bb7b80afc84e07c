"""What a middleware tells its meter: how each request with a key ended, what became of unknown ones, and each request to the ledger."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.asgi import ask
from harness.etcd_replies import emptied
from harness.postgres import server
from sparkonce.asgi import IdempotencyMiddleware, KeyedRequest, NotDone, Reply, Scope, Unknown
from sparkonce.observe.reply_metrics import OUTCOMES, VERDICTS, ReplyMetrics
from sparkonce.replies.open import counted, open_replies
from sparkonce.replies.protocol import ReplyLedger
from sparkonce.wsgi import WsgiIdempotencyMiddleware


class Told:
    """A meter that remembers."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.slowest = 0.0

    def answered(self, outcome: str, seconds: float) -> None:
        self.outcomes[outcome] += 1
        self.slowest = max(self.slowest, seconds)

    def reconciled(self, verdict: str) -> None:
        self.verdicts[verdict] += 1


def answering(*statuses: int) -> Callable[..., Any]:
    """A service with these answers, in turn."""
    rest = list(statuses)

    async def service(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": rest.pop(0), "headers": []})
        await send({"type": "http.response.body", "body": b"it"})

    return service


async def asked(told: Told, service: Callable[..., Any], *keys: str | None, **options: Any) -> list[int]:
    """The statuses of requests with these keys, one after another."""
    app = IdempotencyMiddleware(service, store="memory:", meter=told, **({"pause": 0.0} | options))
    try:
        return [(await ask(app, key=key)).status for key in keys]
    finally:
        await app.close(grace=2.0)


def test_each_request_with_a_key_has_one_outcome() -> None:
    """Ran, replayed, released (429), failed (500), and refusals by their title; requests without a key are not counted."""

    async def scenario() -> Told:
        told = Told()
        service = answering(201, 429, 500, 201)
        statuses = await asked(told, service, "a", "a", "b", "c", "c", "", None)
        assert statuses == [201, 201, 429, 500, 503, 400, 201]
        return told

    told = asyncio.run(scenario())
    assert told.outcomes == {"ran": 1, "replayed": 1, "released": 1, "failed": 1, "unknown-outcome": 1, "bad-key": 1}
    assert not told.verdicts


def test_a_service_that_raises_has_failed_and_a_client_that_leaves_has_left() -> None:
    """The error reaches the server; the effect of a client that left goes on, and its repetition is replayed."""

    async def scenario() -> Told:
        told, gate, began = Told(), asyncio.Event(), asyncio.Event()

        async def raising(*_: Any) -> None:
            raise LookupError

        with pytest.raises(LookupError):
            await asked(told, raising, "a")

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            began.set()
            await gate.wait()
            await answering(201)(scope, receive, send)

        app = IdempotencyMiddleware(slow, store="memory:", meter=told)
        leaving = asyncio.create_task(ask(app))
        await began.wait()
        await asyncio.sleep(0.05)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        gate.set()
        assert (await ask(app)).replayed
        await app.close(grace=2.0)
        return told

    told = asyncio.run(scenario())
    assert told.outcomes == {"failed": 1, "left": 1, "replayed": 1}
    assert told.slowest >= 0.05


async def _raises(_: KeyedRequest) -> Reply:
    raise LookupError


@pytest.mark.parametrize(
    ("hook", "verdict", "ended"),
    [
        (lambda _: Reply(201), "answered", "replayed"),
        (lambda _: NotDone, "not-done", "ran"),
        (lambda _: NotDone(), "not-done", "ran"),
        (lambda _: Unknown, "unknown", "unknown-outcome"),
        (_raises, "unknown", "unknown-outcome"),
        (None, "rerun", "ran"),
    ],
)
def test_what_was_found_of_an_unknown_request_is_counted(hook: Any, verdict: str, ended: str) -> None:
    """By its verdict; one that raises found nothing. `rerun` where the scope says that the service is idempotent by itself."""

    async def scenario() -> Told:
        told = Told()
        scopes = [Scope(rerun=hook is None)]
        await asked(told, answering(500, 201), "a", "a", reconcile=hook, scopes=scopes)
        return told

    told = asyncio.run(scenario())
    assert told.verdicts == {verdict: 1}
    assert told.outcomes == Counter(["failed", ended])


def test_the_wsgi_middleware_counts_alike() -> None:
    """Outcomes, refusals and verdicts."""
    told = Told()
    answers = iter(["201 Created", "500 Oops"])

    def service(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response(next(answers), [])
        yield b"it"

    def send(key: str) -> None:
        list(app({"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": key}, lambda *_: None))

    app = WsgiIdempotencyMiddleware(service, store="memory:", meter=told, pause=0.0, reconcile=lambda _: Reply(201))
    for key in ("a", "a", "b", "b", "", "b"):
        send(key)
    app.close(grace=2.0)
    assert told.outcomes == {"ran": 1, "replayed": 3, "failed": 1, "bad-key": 1}
    assert told.verdicts == {"answered": 1}


@pytest.fixture(params=["memory", "sqlite", "postgres", "etcd-3"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> ReplyLedger:
    if request.param == "etcd-3":
        return open_replies(emptied())
    if request.param == "postgres":
        return open_replies(server().url, schema=f"replies_{uuid.uuid4().hex}")
    return open_replies("memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'replies.db'}")


def test_each_request_to_the_ledger_is_counted(ledger: ReplyLedger) -> None:
    """By verb and standing or outcome, also where verbs run on threads; nothing else changes."""

    async def scenario() -> None:
        told: Counter[tuple[str, str]] = Counter()
        store = counted(ledger, lambda verb, result, _: told.update([(verb, result)]))
        app = IdempotencyMiddleware(answering(201, 500), store=store)
        for key in ("a", "a", "b", "b"):
            await ask(app, key=key)
        await app.close(grace=2.0)
        assert told == {
            ("reserve", "owned"): 2,
            ("finalize", "written"): 1,
            ("reserve", "answered"): 1,
            ("abandon", "written"): 1,
            ("reserve", "stale"): 1,
            ("close", "ok"): 1,
        }

    asyncio.run(scenario())


def test_metrics_begin_at_zero_and_count() -> None:
    """So that the first event shows as an increase; the text is what Prometheus reads."""
    metrics = ReplyMetrics()
    before = metrics.text()[0].decode()
    for outcome in OUTCOMES:
        assert f'sparkonce_keyed_requests_total{{outcome="{outcome}"}} 0.0' in before
    for verdict in VERDICTS:
        assert f'sparkonce_reconciled_requests_total{{verdict="{verdict}"}} 0.0' in before
    metrics.answered("ran", 0.02)
    metrics.reconciled("answered")
    metrics.stored("reserve", "owned", 0.02)
    after = metrics.text()[0].decode()
    for line in (
        'sparkonce_keyed_requests_total{outcome="ran"} 1.0',
        'sparkonce_keyed_request_seconds_bucket{le="0.03",outcome="ran"} 1.0',
        'sparkonce_keyed_request_seconds_bucket{le="0.01",outcome="ran"} 0.0',
        'sparkonce_reconciled_requests_total{verdict="answered"} 1.0',
        'sparkonce_store_requests_total{result="owned",verb="reserve"} 1.0',
        'sparkonce_store_requests_total{result="StoreUnavailable",verb="reserve"} 0.0',
        'sparkonce_store_request_seconds_bucket{le="0.03",verb="reserve"} 1.0',
    ):
        assert line in after
