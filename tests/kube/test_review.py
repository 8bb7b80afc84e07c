"""The API server's reviews accept a token or grant a right by a JSON `true`, and by nothing that resembles it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from sparkonce.commands.callers import Caller
from sparkonce.kube.client import ApiClient
from sparkonce.kube.review import ACCESS_REVIEWS, OWN_REVIEWS, TOKEN_REVIEWS, Reviews
from sparkonce.launch.kubernetes import ApiUnavailable, Json, Resource

USER: Json = {"username": "ann", "uid": "u1", "groups": ["dev"], "extra": {"scopes": ["a"]}}
ANN = Caller(name="ann", uid="u1", groups=("dev",), extra={"scopes": ("a",)})
AUDIENCE = "gateway.sparkonce.dev/tests"
MISSING = object()
NO_TRUTH = [MISSING, None, False, "true", "True", 1, 1.0, [True], {"value": True}]
"""Values that must not count as true, although Python or a lenient parser would accept most of them."""


def named(value: object) -> str:
    return "missing" if value is MISSING else repr(value)


class Server:
    """Answers each review with this status and keeps the requests."""

    def __init__(self, status: object) -> None:
        self.status = status
        self.sent: list[tuple[Resource, Mapping[str, Any]]] = []

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any], *, strict: bool = True) -> Json:
        self.sent.append((resource, body))
        return dict(body) if self.status is MISSING else {**body, "status": self.status}


def reviews(status: object) -> Reviews:
    return Reviews(cast("ApiClient", Server(status)), audience=AUDIENCE)


def field(name: str, value: object) -> Json:
    return {} if value is MISSING else {name: value}


def allowed(status: object) -> bool:
    return asyncio.run(reviews(status).allowed(ANN, verb="update", namespace="etl"))


@pytest.mark.parametrize("value", NO_TRUTH, ids=named)
def test_a_token_is_known_only_where_authenticated_is_true(value: object) -> None:
    """A token is accepted only with `authenticated: true`. A user in the answer does not count: API servers name one even when they
    refuse."""
    assert asyncio.run(reviews({"user": USER, **field("authenticated", value)}).caller("t")) is None
    assert asyncio.run(reviews({"user": USER, "authenticated": True}).caller("t")) == ANN


@pytest.mark.parametrize("value", NO_TRUTH, ids=named)
def test_a_right_is_there_only_where_allowed_is_true(value: object) -> None:
    """A right is granted only with `allowed: true`; `denied` is not needed for a refusal."""
    assert allowed({"reason": "RBAC: allowed by a role", **field("allowed", value)}) is False
    assert allowed({"allowed": True}) is True


@pytest.mark.parametrize("value", NO_TRUTH, ids=named)
def test_a_gateways_own_right_is_there_only_where_allowed_is_true(value: object) -> None:
    """A gateway that may not create reviews names the missing right before it serves."""
    lacking = asyncio.run(reviews(field("allowed", value)).missing())
    assert lacking is not None
    assert "may not create tokenreviews.authentication.k8s.io" in lacking
    assert asyncio.run(reviews({"allowed": True}).missing()) is None


@pytest.mark.parametrize("status", [MISSING, None, [], "allowed", True], ids=named)
def test_an_answer_without_a_status_refuses(status: object) -> None:
    """A review without a status refuses; an API server of another version, or a proxy, might answer so."""
    assert asyncio.run(reviews(status).caller("t")) is None
    assert allowed(status) is False


def test_authenticators_that_did_not_answer_are_no_refusal() -> None:
    """If the API server could not ask an authenticator, the caller has to retry and is not rejected; a wrong token is rejected."""
    with pytest.raises(ApiUnavailable, match="authenticators did not answer"):
        asyncio.run(reviews({"error": "Post https://idp: connection refused"}).caller("t"))
    assert asyncio.run(reviews({"error": "invalid bearer token"}).caller("t")) is None


def test_each_review_asks_about_this_caller() -> None:
    """A request contains the token, or the caller with groups and extras and the right's own verb, namespace and subresource."""
    server = Server({"allowed": True, "authenticated": True, "user": USER})
    asked = Reviews(cast("ApiClient", server), audience=AUDIENCE)
    asyncio.run(asked.caller("the token"))
    asyncio.run(asked.allowed(ANN, verb="update", namespace="etl", subresource="cancel"))
    asyncio.run(asked.missing())
    (first, token), (then, without), (second, access), *own = server.sent
    assert (first, token["spec"]) == (TOKEN_REVIEWS, {"token": "the token", "audiences": [AUDIENCE]})
    assert (then, without["spec"]) == (TOKEN_REVIEWS, {"token": "the token"})
    assert second is ACCESS_REVIEWS
    about = {"group": "sparkonce.dev", "resource": "idempotentjobs", "verb": "update", "namespace": "etl"}
    assert access["spec"] == {
        "user": "ann",
        "uid": "u1",
        "groups": ["dev"],
        "extra": {"scopes": ["a"]},
        "resourceAttributes": {**about, "subresource": "cancel"},
    }
    assert [resource for resource, _ in own] == [OWN_REVIEWS, OWN_REVIEWS]


@pytest.mark.parametrize("audiences", [MISSING, None, [], ["https://kubernetes.default.svc"], AUDIENCE], ids=named)
def test_a_token_is_for_the_gateway_only_where_its_audience_is_named(audiences: object) -> None:
    """A token counts as made for the gateway only if the answer lists the gateway's audience: an authenticator that does not support
    audiences lists none, and accepts tokens for the API server."""
    user = {"user": USER, "authenticated": True}
    assert asyncio.run(reviews({**user, **field("audiences", audiences)}).caller("t")) == ANN
    own = asyncio.run(reviews({**user, "audiences": [AUDIENCE]}).caller("t"))
    assert own is not None
    assert own.for_gateway
