"""What a failed call proves: etcd gave no answer (`EtcdUnavailable`), or it refused (`EtcdRefused`).

The two never overlap. A gRPC status is an answer only if etcd itself rejected the request before applying it. UNAVAILABLE,
DEADLINE_EXCEEDED, CANCELLED, INTERNAL and UNKNOWN are also produced by the client, by a proxy, or by etcd while the request is still
in flight, so a write that failed with one of them may have landed, or may land later. Unknown codes are treated as no answer.
Codes are names ("NOT_FOUND"), so that other modules do not import gRPC.
"""

from __future__ import annotations

from typing import Final

from sparkonce.errors import StoreUnavailable, StoreUnusable


class EtcdUnavailable(StoreUnavailable):
    """etcd did not answer. Proves nothing: the write may have landed, and may land after a read that did not find it.

    Only two things resolve the doubt: repeating the same idempotent write until it is answered, or revoking the lease that its keys
    are put under, after which etcd refuses the write.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class EtcdRefused(StoreUnusable):
    """etcd rejected the request: this call wrote nothing and never will."""

    def __init__(self, message: str, *, code: str, details: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        """etcd's own message."""


class LeaseNotFound(EtcdRefused):
    """The lease named by a put has expired or was revoked."""


class NoSpace(EtcdRefused):
    """etcd's backend quota is used up: it refuses puts until it is compacted and defragmented and its alarm is disarmed."""


class Compacted(EtcdRefused):
    """The requested revision has been compacted; read at a newer one."""


class PermissionDenied(EtcdRefused):
    """The client's user (by login or certificate) lacks the permission for these keys."""


LOGIN_REFUSED: Final = (
    "invalid auth token",  # it expired, or the member was restarted and forgot it
    "revision of auth store is old",  # users or roles changed since the login
    "user name is empty",  # authentication was enabled after the client had connected without it
)
"""etcd's messages for a request with a stale or missing login: rejected before it was applied."""

_ANSWERS: Final = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    }
)

_BY_ANOTHER: Final = ("too many requests", "not supported for learner")
"""etcd's messages of a member that cannot carry out the request now: one whose writes pile up, and one that has not yet joined the quorum.
Not an answer: another member gives it, or this one later."""

_KINDS: Final[tuple[tuple[str, type[EtcdRefused], str], ...]] = (
    ("requested lease not found", LeaseNotFound, "its lease expired or was revoked, take a new one"),
    ("database space exceeded", NoSpace, "its quota is used up: compact and defragment it, then disarm its alarm"),
    ("required revision has been compacted", Compacted, "read at a newer revision"),
    ("permission denied", PermissionDenied, "grant the user's role these keys"),
    ("authentication failed", EtcdRefused, "correct the user or the password"),
)


def failure(*, code: str, details: str, what: str, where: str) -> EtcdUnavailable | EtcdRefused:
    """The error for a gRPC status. The only place that decides whether a status is an answer."""
    if not _is_answer(code, details):
        said = f"{code}: {details}" if details else code
        message = f"etcd at {where} gave no answer to {what} ({said}); whether it took effect is unknown, ask again"
        return EtcdUnavailable(message, code=code)
    for words, kind, remedy in _KINDS:
        if words in details:
            return kind(f"etcd at {where} refused {what} ({details}): {remedy}", code=code, details=details)
    return EtcdRefused(f"etcd at {where} refused {what} ({code}: {details})", code=code, details=details)


def _is_answer(code: str, details: str) -> bool:
    if any(words in details for words in _BY_ANOTHER):
        return False
    if code == "RESOURCE_EXHAUSTED":
        # From etcd (no space), or from its gRPC server about a request that it never read. Otherwise the client raised it about a
        # reply that is too large: the request took effect.
        return details.startswith(("etcdserver:", "grpc: received message larger than max"))
    return code in _ANSWERS


def login_was_refused(error: EtcdRefused) -> bool:
    """True if the request was refused only for its login, before it was applied: it may be sent again after a new login."""
    return error.code == "UNAUTHENTICATED" or any(words in error.details for words in LOGIN_REFUSED)
