"""Who asks over HTTP, and what the gateway has to ask a Kubernetes API server about them; `kube/review.py` implements the protocols, and
whoever starts a gateway hands them in.

An answer is a fact about now. Where none came (ApiUnavailable), or the gateway itself may not ask (ApiRefused), nothing is known, and
nobody is let in or turned away for it: the caller is told to come back.
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
    """The pod that a token is bound to."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who the API server says that the holder of a token is."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def pod(self) -> BoundPod | None:
        """Only of a service account: another authenticator may fill `extra` as it likes."""
        if not self.name.startswith(SERVICE_ACCOUNT):
            return None
        namespace = self.name.removeprefix(SERVICE_ACCOUNT).partition(":")[0]
        names, uids = self.extra.get(POD_NAME, ()), self.extra.get(POD_UID, ())
        if len(names) != 1 or len(uids) != 1 or not (namespace and names[0] and uids[0]):
            return None
        return BoundPod(namespace, names[0], uids[0])


class Authenticator(Protocol):
    async def caller(self, token: str) -> Caller | None:
        """TokenReview. None: the API server does not know the token. ApiUnavailable, ApiRefused."""
        ...


class Authorizer(Protocol):
    async def allowed(self, caller: Caller, *, verb: str, namespace: str, subresource: str = "") -> bool:
        """SubjectAccessReview about the IdempotentJobs of the namespace. ApiUnavailable, ApiRefused."""
        ...


class Lookup(Protocol):
    """Each asks the API server itself. None: it answered that this object does not exist. ApiUnavailable, ApiRefused."""

    async def pod(self, namespace: str, name: str) -> Json | None: ...

    async def job(self, namespace: str, name: str) -> Json | None: ...
