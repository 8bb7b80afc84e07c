"""What launchers and the engine need of a Kubernetes API server, in few verbs; the implementation is injected (`kube/client.py`).

An answer of the API server is a fact, everything else proves nothing: a create whose reply was lost may have landed or may still land.
Objects are plain JSON. `get` and `list` ask the API server itself; a `Watched` is what a watch saw last, quick and possibly old: what
it holds was true once, and what it does not hold proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkonce.errors import SparkonceError

Json = dict[str, Any]


class ApiUnavailable(SparkonceError):
    """No answer, or one that proves nothing (timeout, connection, 5xx): a write may have landed or may land later."""


class ApiRefused(SparkonceError):
    """The API server answered no: nothing was done. `code` is the HTTP status, `reason` the Status object's word."""

    def __init__(
        self,
        message: str,
        *,
        code: int,
        reason: str = "",
        fields: Sequence[str] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.fields = tuple(fields)
        """Paths of the causes of an Invalid answer."""
        self.retry_after = retry_after
        """Seconds, when the answer says so (429)."""

    @property
    def invalid(self) -> bool:
        """The object itself is wrong: trying again cannot help."""
        return self.code in {400, 422}


class AlreadyExists(ApiRefused):
    """An object of this name exists; whose it is, a `get` tells."""


class ApiConflict(ApiRefused):
    """The precondition (resourceVersion or UID) does not hold: read again."""


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
    """Every verb has a deadline of its own and is sent once. ApiUnavailable, ApiRefused and its two kinds are all it raises."""

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Json:
        """What was stored. AlreadyExists."""
        ...

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        """Read from the API server. None: it answered that this object does not exist (never: that the kind is not served)."""
        ...

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Json | None:
        """A JSON merge patch; `metadata.resourceVersion` and `metadata.uid` in it are preconditions (ApiConflict). None: no such object.

        Of a subresource only the resourceVersion is: the API server ignores a UID there. It is enough, because no two objects ever have
        the same."""
        ...

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> bool:
        """Deletes exactly the object of this UID, dependents in the background. False: it is gone, or another one has its name."""
        ...

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[Json]:
        """All of them (of all namespaces for None), read from the API server in pages."""
        ...

    async def served(self, resource: Resource) -> bool:
        """Whether the API server serves this kind now."""
        ...


class Watched(Protocol):
    """The objects of one kind, as a watch saw them last."""

    @property
    def synced(self) -> bool:
        """A first list was seen, and the watch goes on."""
        ...

    def get(self, namespace: str, name: str) -> Json | None: ...

    def labelled(self, namespace: str, label: str, value: str) -> Sequence[Json]: ...
