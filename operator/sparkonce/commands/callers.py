"""The caller of an HTTP request, and the protocols by which the gateway authenticates and authorizes it; `kube/review.py` implements them.

An answer holds for the moment it was given. Without one (ApiUnavailable), or where the gateway lacks the permission to ask (ApiRefused),
nothing is known: the caller is neither admitted nor denied, but asked to retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sparkonce.launch.kubernetes import Json

SERVICE_ACCOUNT = "system:serviceaccount:"
POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
"""Extra fields that the API server's own token authenticator sets for a token that is bound to a pod."""


@dataclass(frozen=True)
class BoundPod:
    """The pod to which a service account token is bound."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The identity that the API server's TokenReview returned."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    for_gateway: bool = False
    """Whether the token was made for this gateway's audience. False: for the API server, which other programs can be sent as well."""

    @property
    def pod(self) -> BoundPod | None:
        """The bound pod, for service accounts only: other authenticators may put anything into `extra`."""
        if not self.name.startswith(SERVICE_ACCOUNT):
            return None
        namespace = self.name.removeprefix(SERVICE_ACCOUNT).partition(":")[0]
        names, uids = self.extra.get(POD_NAME, ()), self.extra.get(POD_UID, ())
        if len(names) != 1 or len(uids) != 1 or not (namespace and names[0] and uids[0]):
            return None
        return BoundPod(namespace, names[0], uids[0])


class Authenticator(Protocol):
    """Authenticates bearer tokens."""

    async def caller(self, token: str) -> Caller | None:
        """Sends a TokenReview. None: the API server rejected the token. Raises: ApiUnavailable, ApiRefused: nothing is known."""
        ...


class Authorizer(Protocol):
    """Authorizes callers by the cluster's RBAC."""

    async def allowed(self, caller: Caller, *, verb: str, namespace: str, subresource: str = "") -> bool:
        """Sends a SubjectAccessReview for the IdempotentJobs of the namespace. Raises: ApiUnavailable, ApiRefused: nothing is known."""
        ...


class Lookup(Protocol):
    """Live reads from the API server. None: it answered that the object does not exist. Raises: ApiUnavailable, ApiRefused: nothing is
    known."""

    async def pod(self, namespace: str, name: str) -> Json | None: ...

    async def job(self, namespace: str, name: str) -> Json | None: ...
