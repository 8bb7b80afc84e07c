"""What every server's adapter does alike: a request with its key, hooks of the service, and answers that are not the service's own."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from sparkonce.errors import InvalidInput
from sparkonce.observe.meter import ReplyMeter
from sparkonce.replies.coordinator import (
    KeyAttempt,
    KeyedRequest,
    NotDone,
    Reconcile,
    Reconciled,
    Refusal,
    Response,
    Unknown,
)
from sparkonce.replies.fingerprint import fingerprint_of
from sparkonce.replies.keys import key_hash, key_of
from sparkonce.replies.policy import Finality, ReplyPolicy, Scope
from sparkonce.replies.protocol import Reply

SHUTDOWN = 25.0
"""Seconds in which running requests may end at shutdown: below the 30 s that Kubernetes gives a pod."""
REPLAYED = ("idempotency-replayed", "true")
"""The header of every answer that another request's effect had; Stripe's and the Iceberg proposal's marker."""


def policy_of(policy: ReplyPolicy | None, options: Mapping[str, Any], *, by: str) -> ReplyPolicy:
    """A policy, or one of its fields. Raises: InvalidInput."""
    if policy is not None and options:
        raise InvalidInput(f"give {', '.join(options)} to the policy, or no policy")
    try:
        return policy or ReplyPolicy(**options)
    except TypeError as error:
        raise InvalidInput(f"{by}: {error}") from None


def asynchronous(hook: Callable[[KeyedRequest], Any] | None) -> Reconcile | None:
    """The service's hook as a coroutine function that returns nothing but a verdict."""
    if hook is None:
        return None
    given = hook

    async def asked(request: KeyedRequest) -> Reconciled:
        found = await called(given, request)
        if isinstance(found, Reply | NotDone | Unknown) or found in (NotDone, Unknown):
            return cast(Reconciled, found)
        raise TypeError(f"reconcile returned {type(found).__name__}; return a Reply, NotDone or Unknown")

    return asked


async def called(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the hook returns. A plain function runs in a thread: it may block, and claims must be kept alive meanwhile."""
    found: Any = (
        hook(*args, **kwargs) if inspect.iscoroutinefunction(hook) else await asyncio.to_thread(hook, *args, **kwargs)
    )
    return await found if inspect.isawaitable(found) else found


def checked_key(values: Sequence[str], policy: ReplyPolicy) -> str:
    """The key in the header's values. Raises: Refusal."""
    try:
        key = key_of(values, policy.keys)
    except InvalidInput as error:
        raise Refusal(400, "bad-key", str(error)) from None
    if key is None:
        raise Refusal(
            400, "key-missing", "this operation needs an Idempotency-Key header; send a new key for each new request"
        )
    return key


def declared_length(text: str) -> int | None:
    """Of a Content-Length header; None: no length."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def check_length(declared: int | None, found: int | None, policy: ReplyPolicy) -> None:
    """Of a request's body. `declared`: by Content-Length; `found`: what has come; None: not known, or not yet. Raises: Refusal."""
    if max(declared or 0, found or 0) > policy.max_request_bytes:
        most = policy.max_request_bytes
        raise Refusal(
            413,
            "body-too-large",
            f"a request with an Idempotency-Key may have a body of {most} bytes, and this one is larger",
        )
    if declared is not None and found is not None and found != declared:
        raise Refusal(400, "wrong-length", f"the body has {found} bytes, and Content-Length says {declared}")


def keyed_request(
    policy: ReplyPolicy,
    scope: Scope,
    key: str,
    *,
    caller: str,
    method: str,
    path: str,
    query: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    more: dict[str, Any],
) -> KeyedRequest:
    """`headers`: all, names in lower case."""
    # Where callers share keys, the caller must match. The key, which is stored nowhere, keeps it from being guessed from the digest.
    shared = "" if policy.caller_in_key else f"{key} {caller}"
    fingerprint = fingerprint_of(
        operation=scope.operation_of(method),
        resource=path,
        query=query,
        headers=[("", shared), *(each for each in headers if each[0] in scope.matching_headers)],
        content_type=next((value for name, value in headers if name == "content-type"), ""),
        body=body,
    )
    return KeyedRequest(
        key=key_hash(key, service=policy.service, caller=caller if policy.caller_in_key else ""),
        text=key,
        caller=caller,
        fingerprint=fingerprint,
        method=method,
        path=path,
        query=query,
        headers=tuple(headers),
        body=body,
        rerun=scope.rerun,
        more=more,
    )


def state_of(request: KeyedRequest, attempt: KeyAttempt) -> dict[str, Any]:
    """What the service finds in its request: the key, the attempt's token, and whether its claim is being kept alive (`protected`)."""
    return {"key": request.text, "token": attempt.token, "protected": attempt.beating is not None}


def replay_of(reply: Reply) -> Reply:
    """What a repetition is sent: the recorded answer with its marker, or what is known of one that was too large to be kept."""
    headers, body = list(reply.headers), reply.body
    if reply.omitted:
        headers = [pair for pair in headers if pair[0] not in ("content-type", "content-encoding", "etag")]
        headers += [("content-type", "application/json"), ("idempotency-body", "omitted")]
        told = f"the request was carried out once with this status; its body of {reply.omitted} bytes was too large to be kept"
        body = json.dumps({"status": reply.status, "bytes": reply.omitted, "detail": told}).encode()
    if reply.status not in (204, 304):
        headers.append(("content-length", str(len(body))))
    return Reply(reply.status, (*headers, REPLAYED), body)


def problem(status: int, title: str, detail: str, *, retry_after: float | None = None) -> Reply:
    """An answer in RFC 9457's form. `retry_after`: seconds."""
    told = {"type": f"urn:sparkonce:problem:{title}", "title": title, "status": status, "detail": detail}
    later = () if retry_after is None else (("retry-after", str(max(1, round(retry_after)))),)
    return document(status, told, media="application/problem+json", headers=later)


def problem_of(refusal: Refusal) -> Reply:
    return problem(refusal.status, refusal.title, str(refusal), retry_after=refusal.retry_after)


@dataclass
class CountedRequest:
    """A request with a key, while it is answered. `outcome`: as of `ReplyMeter.answered`."""

    outcome: str = "left"

    def got(self, response: Response, policy: ReplyPolicy) -> None:
        if not response.own:
            self.outcome = "replayed"
            return
        ended = {Finality.FINAL: "ran", Finality.RELEASE: "released", Finality.UNKNOWN: "failed"}
        self.outcome = ended[policy.finality(response.reply.status)]


@contextmanager
def measured(meter: ReplyMeter) -> Iterator[CountedRequest]:
    """Counts a request when the context ends: its outcome, a refusal, or what the service raised."""
    began, request = time.monotonic(), CountedRequest()
    try:
        yield request
    except Refusal as refusal:
        request.outcome = refusal.title
        raise
    except Exception:
        request.outcome = "failed"
        raise
    finally:
        meter.answered(request.outcome, time.monotonic() - began)


class ReplyForm:
    """The form of answers that are not the service's own."""

    def refused(self, refusal: Refusal) -> Reply:
        return problem_of(refusal)

    async def checked(self, request: KeyedRequest, answer: Reply) -> Reply:
        """What the service's own answer is sent and recorded as."""
        del request
        return answer

    async def replayed(self, request: KeyedRequest, recorded: Reply) -> Reply:
        """What a repetition is sent. Raises: Refusal: it is not sent the recorded answer now."""
        del request
        return replay_of(recorded)


def lifetime_of(policy: ReplyPolicy) -> Reply:
    """The advertisement of Iceberg's `GET /v1/config`."""
    return document(200, {"idempotency-key-lifetime": iso_duration(policy.lifetime)})


def document(
    status: int,
    body: Mapping[str, Any],
    *,
    media: str = "application/json",
    headers: Sequence[tuple[str, str]] = (),
) -> Reply:
    text = json.dumps(body).encode()
    return Reply(status, (("content-type", media), ("content-length", str(len(text))), *headers), text)


def iso_duration(seconds: float) -> str:
    """ISO 8601, as Java's Duration reads it."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [f"{hours}H" if hours else "", f"{minutes}M" if minutes else "", f"{rest}S" if rest or not whole else ""]
    return "PT" + "".join(parts)
