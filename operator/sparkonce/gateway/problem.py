"""How the gateway says no: problem+json (RFC 9457) with one sentence for a person, and a type for a program.

What is unknown is 503 with Retry-After, and only that: a caller may repeat it as it is. Every other code is an answer. Nothing of a
token, a spec or a key that the caller may not see is ever in a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from sparkonce.errors import (
    InvalidInput,
    LaunchUnavailable,
    OutputUnavailable,
    QuotaUsed,
    SparkonceError,
    StoreFull,
    StoreUnavailable,
)
from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable

MEDIA = "application/problem+json"
RETRY_AFTER = 2
"""Seconds: about as long as a request that the store did not answer has taken."""

TITLES = {
    400: "invalid-request",
    401: "not-authenticated",
    403: "not-allowed",
    404: "not-found",
    405: "method-not-allowed",
    408: "too-slow",
    409: "conflict",
    413: "too-large",
    422: "invalid-request",
    500: "broken",
    503: "unavailable",
}
UNKNOWN = (StoreUnavailable, StoreFull, QuotaUsed, OutputUnavailable, LaunchUnavailable, ApiUnavailable, ApiRefused)
"""Nobody answered, or not us: the same request may be answered later."""


class Problem(SparkonceError):
    """An answer that is not what was asked for."""

    def __init__(self, status: int, detail: str, *, retry_after: float | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after, self.more = status, detail, retry_after, more

    def response(self) -> JSONResponse:
        return respond(self.status, self.detail, retry_after=self.retry_after, more=self.more)


def respond(
    status: int, detail: str, *, retry_after: float | None = None, more: Mapping[str, Any] | None = None
) -> JSONResponse:
    headers: dict[str, str] = {}
    if status == 503:
        headers["Retry-After"] = str(max(1, round(retry_after or RETRY_AFTER)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    title = TITLES.get(status, "refused")
    body = {"type": f"urn:sparkonce:problem:{title}", "title": title, "status": status, "detail": sentence(detail)}
    return JSONResponse({**(more or {}), **body}, status, headers, MEDIA)


def of_error(error: SparkonceError) -> JSONResponse:
    """Each of our errors as what it proves."""
    if isinstance(error, Problem):
        return error.response()
    if isinstance(error, UNKNOWN):
        return respond(503, str(error), retry_after=getattr(error, "retry_after", None))
    return respond(409 if isinstance(error, InvalidInput) else 500, str(error))


def sentence(text: str) -> str:
    """On one line, whatever a library put into its message."""
    return " ".join(text.split())
