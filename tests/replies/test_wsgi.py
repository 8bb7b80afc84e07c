"""The WSGI middleware over a counting application, with real threads as a server's. What the ledger and the coordinator do is tested with
ASGI; here is what a server with threads adds."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.eventually import assert_eventually
from sparkonce.asgi import KeyedRequest, NotDone, Reply
from sparkonce.replies.ledger.memory import MemoryReplies
from sparkonce.replies.protocol import KeyStanding, Reservation
from sparkonce.wsgi import WsgiIdempotencyMiddleware


class Application:
    """Counts its effects. `status` and `body`: of its answers; `gate`: each run waits for it."""

    def __init__(self, status: str = "201 Created", body: bytes = b'{"id": 1}') -> None:
        self.status, self.body = status, body
        self.effects = 0
        self.environs: list[dict[str, Any]] = []
        self.threads: set[str] = set()
        self.gate, self.started = threading.Event(), threading.Event()
        self.gate.set()
        self.closed = 0
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        environ["read"] = environ["wsgi.input"].read()
        with self._lock:
            self.effects += 1
            self.environs.append(environ)
            self.threads.add(threading.current_thread().name)
        self.started.set()
        assert self.gate.wait(60)
        write = start_response(
            self.status, [("Content-Type", "application/json"), ("Location", "/orders/1"), ("Set-Cookie", "s=1")]
        )
        write(self.body[:2])
        return self._rest()

    def _rest(self) -> Iterator[bytes]:
        try:
            yield self.body[2:]
        finally:
            self.closed += 1


def ask(
    app: Any, key: str | None = "k1", *, method: str = "POST", body: bytes = b"{}", **environ: Any
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request."""
    got: list[Any] = []
    given = {
        "REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": "/orders", "QUERY_STRING": "", "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), "HTTP_X_TRACE": "t",
    } | environ  # fmt: skip
    if key is not None:
        given["HTTP_IDEMPOTENCY_KEY"] = key

    def started(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
        got.extend([status, headers])
        return got.append

    parts = app(given, started)
    return int(got[0][:3]), {name.lower(): value for name, value in got[1]}, b"".join(parts)


@contextmanager
def guarded(application: Any, store: str = "memory:", **options: Any) -> Iterator[WsgiIdempotencyMiddleware]:
    app = WsgiIdempotencyMiddleware(
        application, store=store, **({"lease": 30.0, "pause": 0.2, "store_patience": 30.0} | options)
    )
    yield app
    app.close(grace=2.0)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_r39_a_repetition_gets_the_recorded_answer(kind: str, tmp_path: Path) -> None:
    """One effect, which runs in its caller's thread, with its body, key and token; the answer as of ASGI."""
    application = Application()
    with guarded(application, "memory:" if kind == "memory" else f"sqlite:///{tmp_path / 'replies.db'}") as app:
        first, second = ask(app), ask(app)
    assert (first[0], first[2], "idempotency-replayed" in first[1], first[1]["set-cookie"]) == (
        201,
        b'{"id": 1}',
        False,
        "s=1",
    )
    assert (second[0], second[2], second[1]["idempotency-replayed"]) == (201, b'{"id": 1}', "true")
    assert "set-cookie" not in second[1]
    assert application.effects == application.closed == 1
    assert application.threads == {threading.current_thread().name}
    assert application.environs[0]["read"] == b"{}"
    assert application.environs[0]["sparkonce"] == {"key": "k1", "token": 1, "protected": True}


def test_r01_64_threads_with_one_key_have_one_effect() -> None:
    """63 wait in their threads and get the answer of the one that runs."""
    application = Application()
    application.gate.clear()
    with guarded(application) as app, ThreadPoolExecutor(64) as clients:
        asking = [clients.submit(ask, app) for _ in range(64)]
        assert application.started.wait(60)
        application.gate.set()
        answers = [each.result() for each in asking]
    assert application.effects == 1
    assert {(status, body) for status, _, body in answers} == {(201, b'{"id": 1}')}
    assert sum("idempotency-replayed" in headers for _, headers, _ in answers) == 63


def test_requests_without_a_key_pass() -> None:
    """Their environment and their answers are left alone."""
    application = Application()
    with guarded(application) as app:
        ask(app, None)
        ask(app, method="GET")
    assert application.effects == 2
    assert all("sparkonce" not in environ for environ in application.environs)


@pytest.mark.parametrize("failing", ["500 Oops", "raises"])
def test_r07_r21_an_unknown_outcome_is_reconciled(failing: str) -> None:
    """A 5xx reaches its client and an error its server; the next request's hook finds the answer, without a second effect."""
    application = Application("500 Oops")

    def raises(environ: dict[str, Any], start_response: Any) -> Any:
        application(environ, start_response)
        raise OSError("the disk is full")

    asked: list[KeyedRequest] = []

    def reconcile(request: KeyedRequest) -> Reply:
        asked.append(request)
        return Reply(201, (), b"found")

    with guarded(raises if failing == "raises" else application, reconcile=reconcile) as app:
        if failing == "raises":
            with pytest.raises(OSError, match="the disk is full"):
                ask(app)
        else:
            assert ask(app)[0] == 500
        assert [ask(app)[2] for _ in range(2)] == [b"found", b"found"]
    assert application.effects == len(asked) == 1
    assert dict(asked[0].headers)["x-trace"] == "t"


def test_not_done_runs_again_in_the_thread_that_took_over() -> None:
    """As attempt 2."""
    application = Application("503 Busy")
    with guarded(application, reconcile=lambda _: NotDone) as app:
        ask(app)
        application.status = "200 OK"
        assert ask(app)[0] == 200
        assert ask(app)[1]["idempotency-replayed"] == "true"
    assert [environ["sparkonce"]["token"] for environ in application.environs] == [1, 2]


def test_r43_a_large_answer_is_sent_whole_and_replayed_by_reference() -> None:
    """From disk, in parts; the application's iterable is closed before it is sent."""
    application = Application(body=bytes(range(256)) * 3000)
    with guarded(application) as app:
        assert ask(app)[2] == application.body
        status, headers, body = ask(app)
    assert (status, headers["idempotency-body"], json.loads(body)["bytes"]) == (201, "omitted", len(application.body))
    assert application.effects == application.closed == 1


@pytest.mark.parametrize(
    ("given", "status", "title"),
    [
        ({"key": ""}, 400, "bad-key"),
        ({"key": "a,b"}, 400, "bad-key"),
        ({"body": b"x" * (257 * 1024)}, 413, "body-too-large"),
        ({"CONTENT_LENGTH": "4"}, 400, "wrong-length"),
        ({"key": None, "required": True}, 400, "key-missing"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_reserved(given: dict[str, Any], status: int, title: str) -> None:
    """Two headers, which a WSGI server joins by a comma, too."""
    from sparkonce.asgi import Scope

    application = Application()
    with guarded(application, scopes=[Scope(required=given.pop("required", False))]) as app:
        got, _, body = ask(app, **given)
    assert (got, json.loads(body)["title"], application.effects) == (status, title, 0)


def test_callers_are_told_apart_and_the_lifetime_is_advertised() -> None:
    """R-31, R-64: REMOTE_USER before credentials."""
    application = Application()
    with guarded(application, advertise="/v1/config") as app:
        ask(app, HTTP_AUTHORIZATION="P")
        ask(app, HTTP_AUTHORIZATION="Q")
        assert application.effects == 2
        ask(app, HTTP_AUTHORIZATION="R", REMOTE_USER="ann")
        ask(app, HTTP_AUTHORIZATION="S", REMOTE_USER="ann")
        assert application.effects == 3
        assert json.loads(ask(app, method="GET", PATH_INFO="/v1/config")[2]) == {"idempotency-key-lifetime": "PT24H"}


def test_a_forked_worker_shares_the_answers(tmp_path: Path) -> None:
    """A server that forks after a first request: the child has its own loop and connections, and the parent's answer."""
    application = Application()
    with guarded(application, f"sqlite:///{tmp_path / 'replies.db'}") as app:
        ask(app)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if ask(app)[1].get("idempotency-replayed") == "true" and ask(app, "k2")[0] == 201 else 1
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert ask(app, "k2")[1]["idempotency-replayed"] == "true"
    assert application.effects == 1  # the other one was the child's


def test_an_application_that_interrupts_its_worker_ends_the_worker_only() -> None:
    """SystemExit reaches the server's thread, and the loop goes on serving others."""

    def exits(environ: dict[str, Any], start_response: Any) -> Any:
        raise SystemExit(3)

    with guarded(exits) as app:
        with pytest.raises(SystemExit):
            ask(app)
        assert json.loads(ask(app)[2])["title"] == "unknown-outcome"


class Noticing(MemoryReplies):
    """Says when a repetition has found its key in use, and keeps its records when one of its processes closes it."""

    def __init__(self) -> None:
        super().__init__()
        self.repeated = threading.Event()

    async def reserve(self, key: str, **given: Any) -> Reservation:
        found = await super().reserve(key, **given)
        if found.standing is KeyStanding.RUNNING:
            self.repeated.set()
        return found

    async def close(self) -> None:
        pass


class Client:
    """Asks in a thread that the end of the tests does not wait for."""

    def __init__(self, app: Any) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        threading.Thread(target=lambda: self.answers.append(ask(app)), daemon=True).start()

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        assert_eventually(lambda: self.answers, 20)
        return self.answers[0]


@contextmanager
def begun(application: Application, **given: Any) -> Iterator[tuple[Any, Client]]:
    """The application with keys, and a client whose request it carries out until its gate opens."""
    application.gate.clear()
    with guarded(application, **given) as app:
        first = Client(app)
        assert application.started.wait(60)
        yield app, first


@pytest.fixture
def noticing(monkeypatch: pytest.MonkeyPatch) -> Noticing:
    """What `store` of the middleware names."""
    ledger = Noticing()
    monkeypatch.setattr("sparkonce.wsgi.open_replies", lambda _: ledger)
    return ledger


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt; the workers of pytest-xdist ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_repetition_claims_nothing(noticing: Noticing) -> None:
    """Ctrl-C while it waits: it does not take the key when the first request leaves it free, so that a third one runs."""
    application = Application("429 Too Many Requests")

    def interrupt() -> None:
        if noticing.repeated.wait(60):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with begun(application, wait=5.0) as (app, first):
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            ask(app)
        application.gate.set()
        assert first.answer()[0] == 429
        application.status = "201 Created"
        assert ask(app)[0] == 201
    assert application.effects == 2


def test_close_answers_a_repetition_that_waits_for_another_process(noticing: Noticing) -> None:
    """Nobody here knows when that one ends: a refusal says that the repetition did nothing."""
    application = Application()
    with begun(application) as (_, first), guarded(application) as app:
        second = Client(app)
        assert noticing.repeated.wait(60)
        app.close(grace=0.1)
        try:
            status, headers, body = second.answer()
        finally:
            application.gate.set()
        assert (status, json.loads(body)["title"], headers["retry-after"]) == (503, "shutting-down", "1")
        assert "it has not carried out this request" in json.loads(body)["detail"]
        assert first.answer()[0] == 201
    assert application.effects == 1


def test_close_answers_a_request_that_runs_on(noticing: Noticing) -> None:
    """By a refusal: its answer is not recorded, and its outcome is unknown."""
    application = Application()
    with begun(application) as (app, first):
        app.close(grace=0.1)
        application.gate.set()
        status, _, body = first.answer()
        assert (status, json.loads(body)["title"]) == (503, "shutting-down")
        assert "whether it took effect is not known" in json.loads(body)["detail"]
        assert json.loads(ask(app)[2])["title"] == "unknown-outcome"
    assert application.effects == 1


def test_close_lets_a_repetition_have_the_answer_of_a_request_that_ends_in_time(noticing: Noticing) -> None:
    """Within `grace`."""
    application = Application()
    with begun(application) as (app, first):
        second = Client(app)
        assert noticing.repeated.wait(60)
        closing = threading.Thread(target=lambda: app.close(grace=60.0), daemon=True)
        closing.start()
        application.gate.set()
        assert first.answer()[0] == second.answer()[0] == 201
        assert second.answer()[1]["idempotency-replayed"] == "true"
        closing.join(60)
    assert application.effects == 1
