"""Error responses of the gateway: problem+json (RFC 9457) with a type for programs and one sentence for people.

503 with Retry-After means that the outcome is unknown, or the obstacle temporary: the request may be repeated unchanged. Every other
status is definite. No response contains any part of a token, or of a spec or key that the caller may not read.
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
    RealmReportsFull,
    ReportTooLarge,
    SparkonceError,
    StoreFull,
    StoreUnavailable,
)
from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable

MEDIA = "application/problem+json"
RETRY_AFTER = 2
"""Seconds: about the timeout of a request to the store."""

FULL_RETRY_AFTER = 60
"""Seconds: room comes back when keys are purged, which takes minutes."""
REPORTS_FULL = "reports-full"

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
    429: REPORTS_FULL,
    431: "too-large",
    500: "broken",
    503: "unavailable",
}
UNKNOWN = (StoreUnavailable, StoreFull, QuotaUsed, OutputUnavailable, LaunchUnavailable, ApiUnavailable, ApiRefused)
"""Errors that prove nothing, or that pass: the same request may succeed later."""


class ProblemResponse(SparkonceError):
    """An error that is answered as problem+json."""

    def __init__(
        self, status: int, detail: str, *, retry_after: float | None = None, close: bool = False, **more: Any
    ) -> None:
        """`close`: the connection is closed after the response, whatever of the request is still to come."""
        super().__init__(detail)
        self.status, self.detail, self.retry_after, self.more = status, detail, retry_after, more
        self.close = close

    def response(self) -> JSONResponse:
        answer = respond(self.status, self.detail, retry_after=self.retry_after, more=self.more)
        if self.close:
            answer.headers["Connection"] = "close"
        return answer


def respond(
    status: int, detail: str, *, retry_after: float | None = None, more: Mapping[str, Any] | None = None
) -> JSONResponse:
    """A problem+json response; `more` are extension members."""
    headers: dict[str, str] = {}
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, round(retry_after or RETRY_AFTER)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    title = TITLES.get(status, "refused")
    body = {"type": f"urn:sparkonce:problem:{title}", "title": title, "status": status, "detail": sentence(detail)}
    return JSONResponse({**(more or {}), **body}, status, headers, MEDIA)


def of_error(error: SparkonceError) -> JSONResponse:
    """Maps an error to the response that says what it proves."""
    if isinstance(error, ProblemResponse):
        return error.response()
    if isinstance(error, UNKNOWN):
        return respond(503, str(error), retry_after=getattr(error, "retry_after", None))
    if isinstance(error, RealmReportsFull):
        return respond(429, str(error), retry_after=FULL_RETRY_AFTER)
    if isinstance(error, ReportTooLarge):
        return respond(413, str(error))
    return respond(409 if isinstance(error, InvalidInput) else 500, str(error))


def sentence(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())
