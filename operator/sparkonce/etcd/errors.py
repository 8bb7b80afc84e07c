"""What a failed call proves: etcd gave no answer (`EtcdUnavailable`), or it refused (`EtcdRefused`).

The two never overlap. A gRPC status is an answer only if etcd itself decided on the request before it took effect; UNAVAILABLE,
DEADLINE_EXCEEDED, CANCELLED, INTERNAL and UNKNOWN are also made by this side, by a proxy, or by etcd while the request is still
under way, so a write that met one of them may have landed, or may land later. A code that is not known to be an answer is none.
Codes are names ("NOT_FOUND"), so that nobody else has to import gRPC.
"""

from __future__ import annotations

from typing import Final

from sparkonce.errors import StoreUnavailable, StoreUnusable


class EtcdUnavailable(StoreUnavailable):
    """etcd did not answer. Proves nothing: the write may have landed, and may land after a read that did not find it.

    Only two things end the doubt: the same write, made so that it recognises itself, sent until it is answered, or the revocation
    of the lease that it puts its keys under, after which etcd refuses it.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class EtcdRefused(StoreUnusable):
    """etcd answered that it did not do it: nothing was written by this call, and nothing will be."""

    def __init__(self, message: str, *, code: str, details: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        """etcd's own words."""


class LeaseNotFound(EtcdRefused):
    """The lease of a put expired or was revoked."""


class NoSpace(EtcdRefused):
    """etcd's backend quota is used up: it takes no puts until it is compacted, defragmented and its alarm is disarmed."""


class Compacted(EtcdRefused):
    """The revision asked for is not kept any more; ask for a newer one."""


class PermissionDenied(EtcdRefused):
    """The user that the client logs in as (or its certificate names) may not do this to these keys."""


LOGIN_REFUSED: Final = (
    "invalid auth token",  # it expired, or the member was restarted and forgot it
    "revision of auth store is old",  # users or roles changed since the login
    "user name is empty",  # authentication was switched on after the client had gone on without
)
"""In etcd's words why a request with an old login, or with none, was refused: before it was applied."""

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

_KINDS: Final[tuple[tuple[str, type[EtcdRefused], str], ...]] = (
    ("requested lease not found", LeaseNotFound, "its lease expired or was revoked, take a new one"),
    ("database space exceeded", NoSpace, "its quota is used up: compact and defragment it, then disarm its alarm"),
    ("required revision has been compacted", Compacted, "read at a newer revision"),
    ("permission denied", PermissionDenied, "grant the user's role these keys"),
    ("authentication failed", EtcdRefused, "correct the user or the password"),
)


def failure(*, code: str, details: str, what: str, where: str) -> EtcdUnavailable | EtcdRefused:
    """The error for a gRPC status: whether it is an answer is decided here, and only here."""
    if not _is_answer(code, details):
        said = f"{code}: {details}" if details else code
        message = f"etcd at {where} gave no answer to {what} ({said}); whether it took effect is unknown, ask again"
        return EtcdUnavailable(message, code=code)
    for words, kind, remedy in _KINDS:
        if words in details:
            return kind(f"etcd at {where} refused {what} ({details}): {remedy}", code=code, details=details)
    return EtcdRefused(f"etcd at {where} refused {what} ({code}: {details})", code=code, details=details)


def _is_answer(code: str, details: str) -> bool:
    if code == "RESOURCE_EXHAUSTED":
        # etcd's own (no space), or its gRPC server's about a request that it did not even read. Else it is this side's about
        # a reply that is too large: the request had its effect.
        return details.startswith(("etcdserver:", "grpc: received message larger than max"))
    return code in _ANSWERS


def login_was_refused(error: EtcdRefused) -> bool:
    """The request was refused for its login alone, before it was applied: after a new login it may be sent again."""
    return error.code == "UNAUTHENTICATED" or any(words in error.details for words in LOGIN_REFUSED)
