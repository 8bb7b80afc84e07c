"""The gateway's requests to the API server: reviews tokens and permissions, reads pods and objects.

Each is one request, sent once and not cached here (`gateway/tokens.py` caches). A refusal of *our* request is not an answer about the
caller: it stays an error, which the gateway reports as temporary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.commands.callers import Caller
from sparkonce.kube.client import ApiClient
from sparkonce.launch.kubernetes import JOBS, PODS, ApiUnavailable, Json, Resource

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
OWN_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
NEEDED = (("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews"))


class Reviews:
    """Implements the gateway's Authenticator, Authorizer and Lookup."""

    def __init__(self, client: ApiClient, *, audience: str) -> None:
        """`audience`: of this gateway's tokens."""
        self._client, self._audience = client, audience

    async def caller(self, token: str) -> Caller | None:
        """The token's holder, reviewed for the gateway's audience first, then for the API server's. An authenticator without audiences
        names none in its answer, which then counts for the API server only, as TokenReview defines it."""
        own = await self._reviewed({"token": token, "audiences": [self._audience]})
        return own if own is not None and own.for_gateway else await self._reviewed({"token": token})

    async def _reviewed(self, spec: Mapping[str, Any]) -> Caller | None:
        said = await self._review(TOKEN_REVIEWS, spec)
        if said.get("authenticated") is not True:
            if (
                error := str(said.get("error") or "")
            ) and "token" not in error:  # the error of an authenticator that did not answer
                raise ApiUnavailable("cannot review a token now: the API server's authenticators did not answer")
            return None
        user = _map(said.get("user"))
        return Caller(
            name=str(user.get("username", "")),
            uid=str(user.get("uid", "")),
            groups=_texts(user.get("groups")),
            extra={str(name): _texts(values) for name, values in _map(user.get("extra")).items()},
            for_gateway="audiences" in spec and self._audience in _texts(said.get("audiences")),
        )

    async def allowed(self, caller: Caller, *, verb: str, namespace: str, subresource: str = "") -> bool:
        asked = {"group": JOBS.group, "resource": JOBS.plural, "verb": verb, "namespace": namespace}
        spec = {
            "user": caller.name,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": {name: list(values) for name, values in caller.extra.items()},
            "resourceAttributes": asked | ({"subresource": subresource} if subresource else {}),
        }
        return (await self._review(ACCESS_REVIEWS, spec)).get("allowed") is True

    async def pod(self, namespace: str, name: str) -> Json | None:
        return await self._client.get(PODS, namespace, name)

    async def job(self, namespace: str, name: str) -> Json | None:
        return await self._client.get(JOBS, namespace, name)

    async def missing(self) -> str | None:
        """A sentence about a missing permission that the gateway needs, or None.

        Raises:
            ApiUnavailable, ApiRefused: not known.
        """
        for group, resource in NEEDED:
            asked = {"group": group, "resource": resource, "verb": "create"}
            if (await self._review(OWN_REVIEWS, {"resourceAttributes": asked})).get("allowed") is not True:
                return f"this process may not create {resource}.{group}; give its service account that right"
        return None

    async def _review(self, kind: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": spec}
        return _map((await self._client.create(kind, "", body)).get("status"))


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list) else ()
