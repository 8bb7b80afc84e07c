"""Idempotency for any WSGI service (Flask, Django, Bottle): the twin of `sparkonce.asgi`, with the same rules and options.

    app.wsgi_app = WsgiIdempotencyMiddleware(app.wsgi_app, store="postgresql://db/orders", reconcile=reconcile)

The request runs in the thread in which the server called the middleware, so a repetition that waits holds its thread, as every request of
a WSGI server does. Set `wait` below the server's own time limit. An answer is collected before it is sent, on disk if it is large.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import IO, Any, Self

from sparkonce.observe.meter import NoReplyMeter, ReplyMeter
from sparkonce.replies.coordinator import KeyAttempt, KeyedRequest, Reconciled, Refusal
from sparkonce.replies.exchange import (
    SHUTDOWN,
    asynchronous,
    check_length,
    checked_key,
    declared_length,
    keyed_request,
    lifetime_of,
    measured,
    policy_of,
    problem_of,
    replay_of,
    state_of,
)
from sparkonce.replies.open import open_replies
from sparkonce.replies.policy import ReplyPolicy, Scope
from sparkonce.replies.protocol import Reply
from sparkonce.replies.threads import ThreadCoordinator

__all__ = ["WsgiIdempotencyMiddleware", "caller_of"]

Environ = MutableMapping[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

CHUNK = 64 * 1024
"""Bytes of a large answer that are read from disk at a time."""


def caller_of(environ: Mapping[str, Any]) -> str:
    """The caller: the user whom the server authenticated, else the credentials that the request carries."""
    if user := environ.get("REMOTE_USER"):
        return f"user:{user}"
    found = [str(environ[name]) for name in ("HTTP_AUTHORIZATION", "HTTP_COOKIE") if environ.get(name)]
    return "credentials:" + "\n".join(found) if found else ""


class WsgiIdempotencyMiddleware:
    def __init__(
        self,
        app: App,
        *,
        store: str,
        reconcile: Callable[[KeyedRequest], Awaitable[Reconciled] | Reconciled] | None = None,
        caller: Callable[[Mapping[str, Any]], str] = caller_of,
        advertise: str | None = None,
        policy: ReplyPolicy | None = None,
        meter: ReplyMeter | None = None,
        **options: Any,
    ) -> None:
        """As `sparkonce.asgi.IdempotencyMiddleware`. The ledger is opened by each process at its first request with a key, since servers
        fork their workers.

        Raises: InvalidInput."""
        self._app, self._caller, self._advertise = app, caller, advertise
        self._policy = policy_of(policy, options, by="WsgiIdempotencyMiddleware")
        self._meter = meter or NoReplyMeter()
        self._coordinator = ThreadCoordinator(
            lambda: open_replies(store), self._policy, asynchronous(reconcile), meter=self._meter
        )

    def close(self, *, grace: float = SHUTDOWN) -> None:
        """Waits for running requests and closes the ledger; for servers that tell their workers to stop."""
        self._coordinator.close(grace=grace)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"].upper()
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        if method == "GET" and path == self._advertise:
            return _sent(start_response, lifetime_of(self._policy))
        matched = self._policy.scope_of(method, path)
        given = environ.get("HTTP_IDEMPOTENCY_KEY")
        if matched is None or (given is None and not matched.required):
            return self._app(environ, start_response)
        try:
            with measured(self._meter) as outcome:
                key = checked_key([] if given is None else [given], self._policy)
                request = self._read(environ, matched, key, method=method, path=path)
                with _WsgiCall(self._app, environ, request, self._policy.max_response_bytes) as call:
                    response = self._coordinator.answer(request, call)
                    outcome.got(response, self._policy)
                    if response.own:
                        return call.sent(start_response)
        except Refusal as refusal:
            return _sent(start_response, problem_of(refusal))
        return _sent(start_response, replay_of(response.reply))

    def _read(self, environ: Environ, matched: Scope, key: str, *, method: str, path: str) -> KeyedRequest:
        """The whole request. Raises: Refusal, and nothing is reserved."""
        return keyed_request(
            self._policy,
            matched,
            key,
            caller=self._caller(environ),
            method=method,
            path=path,
            query=environ.get("QUERY_STRING", ""),
            headers=list(_headers(environ)),
            body=self._body(environ),
            more={"environ": environ},
        )

    def _body(self, environ: Environ) -> bytes:
        """Raises: Refusal."""
        declared = declared_length(str(environ.get("CONTENT_LENGTH") or ""))
        check_length(declared, None, self._policy)
        if declared is None and not environ.get("wsgi.input_terminated"):
            return b""  # a server that does not end the input of a chunked request
        body: bytes = environ["wsgi.input"].read(self._policy.max_request_bytes + 1 if declared is None else declared)
        check_length(declared, len(body), self._policy)
        return body


def _headers(environ: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            yield name[5:].replace("_", "-").lower(), str(value)
        elif name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value:
            yield name.replace("_", "-").lower(), str(value)


class _WsgiCall:
    """Runs the application for one request and collects its answer. A context that drops the answer, unless it is sent."""

    def __init__(self, app: App, environ: Environ, request: KeyedRequest, most: int) -> None:
        self._app, self._environ, self._request, self._most = app, environ, request, most
        self._start: tuple[str, list[tuple[str, str]]] | None = None
        self._file: IO[bytes] | None = None
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def __call__(self, attempt: KeyAttempt) -> Reply:
        self._file = tempfile.SpooledTemporaryFile(max_size=self._most)  # noqa: SIM115 - closed by this context, or once it is sent
        environ = {
            **self._environ,
            "wsgi.input": io.BytesIO(self._request.body),
            "sparkonce": state_of(self._request, attempt),
        }
        answer = self._app(environ, self._started)
        try:
            for part in answer:
                self._write(part)
        finally:
            if close := getattr(answer, "close", None):
                close()
        if self._start is None:
            raise RuntimeError("the application ended without an answer")
        status, headers = self._start
        kept = tuple((name.lower(), value) for name, value in headers)
        if self._size > self._most:
            return Reply(int(status[:3]), kept, b"", self._size)
        self._file.seek(0)
        return Reply(int(status[:3]), kept, self._file.read())

    def _started(self, status: str, headers: list[tuple[str, str]], _: Any = None) -> Callable[[bytes], None]:
        self._start = (status, list(headers))
        return self._write

    def _write(self, part: bytes) -> None:
        assert self._file is not None
        self._size += len(part)
        self._file.write(part)

    def sent(self, start_response: StartResponse) -> Iterator[bytes]:
        """The application's own answer."""
        assert self._start is not None
        assert self._file is not None
        start_response(*self._start)
        whole, self._file = self._file, None
        return _parts(whole)


def _parts(whole: IO[bytes]) -> Iterator[bytes]:
    whole.seek(0)
    with whole:
        while part := whole.read(CHUNK):
            yield part


def _sent(start_response: StartResponse, reply: Reply) -> Iterable[bytes]:
    phrase = "Answer"
    with suppress(ValueError):
        phrase = HTTPStatus(reply.status).phrase
    start_response(f"{reply.status} {phrase}", list(reply.headers))
    return [reply.body]
