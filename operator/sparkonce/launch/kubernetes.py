"""The Kubernetes API that launchers and controllers need; the implementation is injected (`kube/client.py`).

Only an answer of the API server is evidence: a create whose reply was lost may have succeeded or may still succeed. Objects are plain JSON.
`get` and `list` read from the API server; a `Watched` is a watch's cache, fast and possibly stale: what it contains was true once, and what
it lacks proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from sparkonce.errors import SparkonceError

Json = dict[str, Any]


class ApiUnavailable(SparkonceError):
    """No answer, or one that proves nothing (timeout, connection, 5xx): a write may have been applied or may be applied later."""


class ApiRefused(SparkonceError):
    """The API server refused: nothing was done. `code` is the HTTP status, `reason` the reason in the Status object."""

    def __init__(
        self,
        message: str,
        *,
        code: int,
        reason: str = "",
        fields: Sequence[str] = (),
        unknown: Sequence[str] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.fields = tuple(fields)
        """Paths of the causes of an Invalid answer."""
        self.unknown = tuple(unknown)
        """Paths of the fields that the API server does not know, of a strict write."""
        self.retry_after = retry_after
        """Seconds of the Retry-After header, if there is one (429)."""

    @property
    def invalid(self) -> bool:
        """Whether the object itself is invalid, so that a retry cannot help."""
        return self.code in {400, 422}

    @property
    def over_quota(self) -> bool:
        """Whether a ResourceQuota refused it, which passes as soon as there is room."""
        return self.code == 403 and "exceeded quota:" in str(self)


class AlreadyExists(ApiRefused):
    """An object of this name exists; a `get` shows whose it is."""


class ApiConflict(ApiRefused):
    """The precondition (resourceVersion or UID) does not hold: read the object again."""


@dataclass(frozen=True)
class Resource:
    """A kind as the API server's paths name it; an empty group is the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


JOBS = Resource("sparkonce.dev", "v1alpha1", "idempotentjobs", "IdempotentJob")
SPARK_APPLICATIONS = Resource("sparkoperator.k8s.io", "v1beta2", "sparkapplications", "SparkApplication")
PODS = Resource("", "v1", "pods", "Pod")
EVENTS = Resource("", "v1", "events", "Event")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


class Kubernetes(Protocol):
    """Client of the API server. Every method has its own deadline and sends its request once.

    Raises, from every method:
        ApiUnavailable: no answer; a write may have been applied.
        ApiRefused: nothing was done (also AlreadyExists, ApiConflict).
    """

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any], *, strict: bool = True) -> Json:
        """Creates an object; returns it as stored. A field that the API server does not know is refused; without `strict` it is dropped.

        Raises:
            AlreadyExists: the name is taken.
        """
        ...

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        """Reads from the API server. None: this object does not exist (an unserved kind raises instead)."""
        ...

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Json | None:
        """Applies a JSON merge patch; None if the object does not exist. `metadata.resourceVersion` and `metadata.uid` are preconditions.

        For a subresource only the resourceVersion is one: the API server ignores a UID there. That suffices, because no two objects ever
        have the same.

        Raises:
            ApiConflict: a precondition does not hold.
        """
        ...

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> bool:
        """Deletes the object of this UID, dependents in the background. False: it is gone, or another object has its name."""
        ...

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[Json]:
        """Lists objects (of all namespaces for None), read from the API server in pages."""
        ...

    async def history(
        self, resource: Resource, namespace: str, name: str, *, since: str, until: Mapping[str, Any]
    ) -> Sequence[tuple[str, Json]] | None:
        """Every change of the objects of this name after the resourceVersion `since`, oldest first, up to the version of the object `until`
        which was read before: (ADDED, MODIFIED or DELETED, the object as it was then). None: unknown, because the API server keeps changes
        for minutes only.
        """
        ...

    async def served(self, resource: Resource) -> bool:
        """Whether the API server serves this kind now."""
        ...


class Watched(Protocol):
    """Cache of the objects of one kind, filled by a watch."""

    @property
    def synced(self) -> bool:
        """Whether the initial list was received and the watch is running."""
        ...

    def get(self, namespace: str, name: str) -> Json | None: ...

    def version(self, namespace: str) -> str | None:
        """The resourceVersion up to which changes in the namespace have been seen. None: unknown now."""
        ...

    def labelled(self, namespace: str, label: str, value: str) -> Sequence[Json]: ...


def time_of(value: object) -> datetime | None:
    """Parses a timestamp of an object, RFC 3339 with a zone, into UTC; None if invalid, or if the year is outside the range of safe
    arithmetic."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None or not 1970 <= moment.year <= 9000:
        return None
    return moment.astimezone(UTC)
