"""What a service decides about its idempotency, in one value; each default with its reason.

Names follow the Iceberg proposal's configuration (`polaris.idempotency.*`) where it has one: `lifetime` is its `ttl`, `grace` its
`ttl-grace`, `wait` its `in-progress-wait`, `lease` its `lease-ttl`, `headers` its `response-header-allowlist`, `max_response_bytes` its
`response-summary-max-bytes`. Deviations: beats cannot be switched off, because a lease without beats ends under a slow request; bodies
beyond the limit are answered by status and reference, never cut and never run again; the lifetime is a day and not five minutes, because
schedulers retry after longer pauses than that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TypeVar

from sparkonce.errors import InvalidInput
from sparkonce.replies.keys import KeyPolicy
from sparkonce.replies.ledger.codec import LARGEST, is_header
from sparkonce.replies.protocol import Reply

RELEASES = frozenset({401, 403, 408, 425, 429})
"""Statuses that say that nothing was done and that the same request may succeed later: the key is free again."""
NEVER_KEPT = frozenset({
    "authorization", "authentication-info", "cookie", "proxy-authenticate", "proxy-authentication-info", "proxy-authorization",
    "set-cookie", "set-cookie2", "www-authenticate",
})  # fmt: skip
"""Headers that carry credentials: a service cannot allow them."""
_FRAMING = frozenset(
    {"connection", "content-length", "date", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers of one connection or one sending, which a replay has its own of."""
KEPT = (
    "content-type", "content-encoding", "content-language", "content-location", "content-disposition", "etag", "last-modified", "link",
    "location", "vary",
)  # fmt: skip
_DAY = 86400.0


class StoreDown(StrEnum):
    """What happens to a request with a key while the ledger does not answer."""

    FAIL = "fail"
    """503 with Retry-After, and nothing runs."""
    PASS = "pass"
    """The request runs without protection."""


class Finality(StrEnum):
    """What a status says about the effect."""

    FINAL = "final"
    """The answer of this key."""
    RELEASE = "release"
    """Nothing was done: the key is free."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Scope:
    """Requests that take keys. The first scope of a list that fits a request decides."""

    path: str = "/{path...}"
    """Segments in braces match one segment, `{name...}` at the end any number."""
    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    operation: str = ""
    """What a key is for; method and path template by default. The same key for another operation is a mismatch."""
    required: bool = False
    """A request without a key is answered 400."""
    rerun: bool = False
    """A request whose first run has an unknown outcome runs again where no `reconcile` can decide. For operations that are idempotent by
    themselves."""
    matching_headers: tuple[str, ...] = ()
    """Headers, in lower case, that a repetition must send alike."""

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise InvalidInput(f"scope {self.path!r}: a path starts with a slash")
        for name in ("methods", "matching_headers"):
            if isinstance(given := getattr(self, name), str):  # its letters would be taken one by one, and fit nothing
                raise InvalidInput(
                    f"scope {self.path!r}: {name} is the text {given!r}; give several, as in ({given!r},)"
                )
        object.__setattr__(self, "methods", frozenset(method.upper() for method in self.methods))
        object.__setattr__(self, "matching_headers", tuple(name.lower() for name in self.matching_headers))

    def fits(self, method: str, path: str) -> bool:
        return method in self.methods and _pattern(self.path).fullmatch(path) is not None

    def operation_of(self, method: str) -> str:
        return self.operation or f"{method} {self.path}"


E = TypeVar("E", bound=StrEnum)


def _one_of(kind: type[E], name: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(f"{name} is {value!r}; use {' or '.join(kind)}") from None


@cache
def _pattern(path: str) -> re.Pattern[str]:
    parts: list[str] = []
    for piece in re.split(r"(\{[^{}]*\})", path):
        if piece.startswith("{"):
            parts.append(".*" if piece.endswith("...}") else "[^/]+")
        else:
            parts.append(re.escape(piece))
    return re.compile("".join(parts), re.DOTALL)


@dataclass(frozen=True)
class ReplyPolicy:
    """How keys, answers and waits are treated. Raises: InvalidInput: a value that cannot be meant."""

    scopes: Sequence[Scope] = (Scope(),)
    service: str = ""
    """Distinguishes services that share a ledger."""
    keys: KeyPolicy = KeyPolicy.OPAQUE
    caller_in_key: bool = True
    """False: all callers share their keys, and another caller's use of a key is a mismatch."""
    lifetime: float = _DAY
    """Seconds for which an answer is replayed, counted from when it was recorded. As Stripe's: a day of retries."""
    grace: float = 3600.0
    """Seconds beyond the lifetime for which it is kept: a client that counts from its own clock is still answered."""
    wait: float = 30.0
    """Seconds for which a repetition waits for the first request before it is answered `busy_status`. Most proxies wait a minute."""
    lease: float = 10.0
    """Seconds without a beat after which an owner counts as dead. Beats come three times as often."""
    pause: float = 2.0
    """Seconds between two attempts to reconcile one key."""
    store_patience: float = 2.0
    """Seconds for which a verb is repeated while the ledger does not answer."""
    when_store_down: StoreDown = StoreDown.FAIL
    busy_status: int = 409
    """Of the answer to a repetition whose wait ended. Iceberg's clients take 409 for a failed commit: 503 there."""
    max_request_bytes: int = 256 * 1024
    """A longer body of a request with a key is answered 413: it must be in memory for its fingerprint."""
    body_timeout: float = 30.0
    """Seconds in which the body of a request must have come."""
    max_response_bytes: int = 256 * 1024
    """A longer body is sent, and not kept: a replay has the status, the headers and a reference."""
    max_header_bytes: int = 8 * 1024
    """Of the headers that are kept: others beyond are dropped."""
    headers: Sequence[str] = KEPT
    """Names of response headers that are replayed."""
    max_waiting: int = 1000
    """Repetitions of one key that wait in one process; further ones are answered `busy_status` at once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _one_of(KeyPolicy, "keys", self.keys))
        object.__setattr__(self, "when_store_down", _one_of(StoreDown, "when_store_down", self.when_store_down))
        object.__setattr__(self, "headers", tuple(name.lower() for name in self.headers))
        for scope in self.scopes:
            if not isinstance(scope, Scope):
                raise InvalidInput(f"scopes: {scope!r} is no scope; use sparkonce.asgi.Scope")
        for name in (
            "lifetime",
            "wait",
            "lease",
            "store_patience",
            "body_timeout",
            "max_request_bytes",
            "max_response_bytes",
        ):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; give a positive number")
        if max(self.max_request_bytes, self.max_response_bytes) > LARGEST:
            raise InvalidInput(f"bodies of more than {LARGEST} bytes cannot be kept")
        if self.grace < 0 or self.pause < 0:
            raise InvalidInput("grace and pause are seconds, 0 or more")
        for name in self.headers:
            if name in NEVER_KEPT or name in _FRAMING or not is_header(name, ""):
                raise InvalidInput(
                    f"headers: {name!r} cannot be kept for a replay: it is a credential, belongs to one connection, or is no name"
                )
        if self.busy_status not in (409, 425, 429, 503):
            raise InvalidInput(f"busy_status is {self.busy_status}; use 409, 425, 429 or 503")

    @property
    def kept_for(self) -> float:
        """Seconds for which an answer is kept once it is recorded."""
        return self.lifetime + self.grace

    def scope_of(self, method: str, path: str) -> Scope | None:
        return next((scope for scope in self.scopes if scope.fits(method, path)), None)

    def finality(self, status: int) -> Finality:
        if status in RELEASES:
            return Finality.RELEASE
        return Finality.FINAL if 200 <= status < 500 else Finality.UNKNOWN

    def kept(self, reply: Reply) -> Reply:
        """What of an answer is recorded: its status, the allowed headers, and the body if it is small enough."""
        headers: list[tuple[str, str]] = []
        room = self.max_header_bytes
        for name, value in reply.headers:
            if name in self.headers and is_header(name, value):
                room -= len(name) + len(value)
                if room >= 0:
                    headers.append((name, value))
        if reply.omitted or len(reply.body) > self.max_response_bytes:
            return Reply(reply.status, tuple(headers), b"", reply.omitted or len(reply.body))
        return replace(reply, headers=tuple(headers))
