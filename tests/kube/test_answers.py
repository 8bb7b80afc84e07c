"""Interpretation of the API server's answers: every status code, every kind of body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.kube.answers import ApiRequest, ApiResponse, read
from sparkonce.kube.client import path_of
from sparkonce.launch.kubernetes import (
    JOBS,
    NAMESPACES,
    PODS,
    AlreadyExists,
    ApiConflict,
    ApiRefused,
    ApiUnavailable,
    Json,
)

GET = ApiRequest("get", JOBS, "etl", "night")
CREATE = ApiRequest("create", JOBS, "etl", "night")
PATCH = ApiRequest("patch", JOBS, "etl", "night")
DELETE = ApiRequest("delete", JOBS, "etl", "night")
LIST = ApiRequest("list", JOBS, "etl")
VERBS = [GET, CREATE, PATCH, DELETE, LIST]


def status(code: int, reason: str = "", *, details: Json | None = None, message: str = "because") -> ApiResponse:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return ApiResponse(code, json.dumps(body | ({"details": details} if details else {})).encode())


def found(**more: Any) -> ApiResponse:
    return ApiResponse(200, json.dumps({"kind": "IdempotentJob", "metadata": {"name": "night"}, **more}).encode())


def missing(name: str = "night", kind: str = "idempotentjobs") -> ApiResponse:
    return status(404, "NotFound", details={"name": name, "kind": kind, "group": "sparkonce.dev"})


def test_an_object_is_the_object() -> None:
    """A 2xx answer with an object of the requested kind is that object; a list has items; a deletion may be answered with a Status."""
    assert read(found(), GET) == {"kind": "IdempotentJob", "metadata": {"name": "night"}}
    assert read(ApiResponse(200, b'{"kind": "IdempotentJobList", "metadata": {}, "items": []}'), LIST) is not None
    assert read(ApiResponse(200, b'{"kind": "Status", "status": "Success"}'), DELETE) is not None
    assert read(found(), DELETE) is not None


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>welcome</html>", b"[]", b"null", b'{"kind": "Pod", "metadata": {}}', b'{"kind": "IdempotentJob"}'],
)
@pytest.mark.parametrize("asked", VERBS)
def test_success_that_cannot_be_read_proves_nothing(content: bytes, asked: ApiRequest) -> None:
    """A 2xx answer that is a proxy's page, truncated or of another kind is unknown: a write may have happened, a read has found nothing
    out."""
    if asked is DELETE and b"IdempotentJob" in content:
        return  # any object of the kind is fine: its content is not used
    with pytest.raises(ApiUnavailable):
        read(ApiResponse(200, content), asked)


def test_absent_is_said_of_this_very_object() -> None:
    """Absence needs a Status that names this object; a 404 about another name, a kind or a list, or from a proxy, proves nothing."""
    for asked in (GET, PATCH, DELETE):
        assert read(missing(), asked) is None
    unproved = [
        missing("another"),
        missing(kind="things"),
        status(404, "NotFound", message="the server could not find the requested resource"),
        status(404, "NotFound", details={}),
        status(404, "Gone", details={"name": "night", "kind": "idempotentjobs"}),
        ApiResponse(404, b"404 page not found\n"),
        ApiResponse(404, b'{"kind": "IdempotentJob", "metadata": {"name": "night"}}'),
    ]
    for answer in unproved:
        with pytest.raises(ApiUnavailable, match="does not serve"):
            read(answer, GET)
    with pytest.raises(ApiUnavailable):
        read(missing(""), LIST)


def test_a_missing_namespace_is_a_refusal() -> None:
    """A create in a namespace that does not exist is refused with a sentence that names it; a 404 about another namespace does not answer
    this request."""
    with pytest.raises(ApiRefused, match="there is no namespace etl") as refused:
        read(missing("etl", "namespaces"), CREATE)
    assert (refused.value.code, refused.value.invalid) == (404, False)
    with pytest.raises(ApiUnavailable):
        read(missing("other", "namespaces"), CREATE)
    assert read(missing("etl", "namespaces"), ApiRequest("get", NAMESPACES, None, "etl")) is None


@pytest.mark.parametrize(
    ("answer", "asked", "kind", "invalid"),
    [
        (status(400, "BadRequest"), CREATE, ApiRefused, True),
        (status(401, "Unauthorized"), CREATE, ApiRefused, False),
        (status(403, "Forbidden"), CREATE, ApiRefused, False),
        (ApiResponse(403, b"the proxy says no"), CREATE, ApiRefused, False),
        (ApiResponse(429, b"Too many requests, please try again later."), CREATE, ApiRefused, False),
        (status(409, "AlreadyExists"), CREATE, AlreadyExists, False),
        (status(409, "Conflict"), PATCH, ApiConflict, False),
        (status(422, "Invalid"), CREATE, ApiRefused, True),
        (status(422, "Invalid", details={"causes": [{"field": "metadata.uid"}] * 2}), PATCH, ApiConflict, False),
        (status(422, "Invalid", details={"causes": [{"field": "metadata.uid"}]}), CREATE, ApiRefused, True),
        (status(413, "RequestEntityTooLarge"), CREATE, ApiRefused, False),
        (status(410, "Expired"), LIST, ApiRefused, False),
    ],
)
def test_what_is_refused(answer: ApiResponse, asked: ApiRequest, kind: type[ApiRefused], invalid: bool) -> None:
    """Each refusal is classified; only 400 and 422 are about the object itself."""
    with pytest.raises(ApiRefused) as refused:
        read(answer, asked)
    assert type(refused.value) is kind
    assert refused.value.code == (409 if kind is ApiConflict else answer.status)
    assert refused.value.invalid is invalid


@pytest.mark.parametrize("asked", VERBS)
@pytest.mark.parametrize(
    "answer",
    [
        status(500, "InternalError"),
        status(504, "Timeout"),
        ApiResponse(502, b"bad gateway"),
        ApiResponse(503, b""),
        ApiResponse(301, b""),
        ApiResponse(409, b"a proxy's conflict"),
        ApiResponse(422, b""),
        ApiResponse(400, b"<html>"),
        ApiResponse(100, b""),
    ],
)
def test_what_proves_nothing(answer: ApiResponse, asked: ApiRequest) -> None:
    """5xx, redirects and refusals worded by a proxy are unknown for every verb."""
    with pytest.raises(ApiUnavailable, match=str(answer.status)):
        read(answer, asked)


def test_a_refusal_says_what_and_where() -> None:
    """A refusal is one sentence with verb, kind, place and the API server's words; it lists each field once, never `<nil>`, and says when
    to retry."""
    causes = [{"field": "spec.template"}, {"field": "<nil>"}, {"field": "spec.template"}, {"field": "spec.outputs"}, {}]
    with pytest.raises(ApiRefused) as refused:
        read(status(422, "Invalid", details={"causes": causes}), CREATE)
    assert str(refused.value) == "the API server refused to create IdempotentJob etl/night (422 Invalid): because"
    assert refused.value.fields == ("spec.template", "spec.outputs")
    for answer in (ApiResponse(429, b"", "7"), status(429, details={"retryAfterSeconds": 7})):
        with pytest.raises(ApiRefused) as busy:
            read(answer, CREATE)
        assert busy.value.retry_after == 7
    with pytest.raises(ApiRefused) as never:
        read(ApiResponse(429, b"", "Wed, 21 Oct 2015 07:28:00 GMT"), CREATE)
    assert never.value.retry_after is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
bodies = st.binary(max_size=20) | st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["Status", "IdempotentJob"]) | json_values,
        "reason": st.sampled_from(["NotFound", "AlreadyExists"]) | json_values,
        "message": json_values,
        "metadata": json_values,
        "items": json_values,
        "details": json_values
        | st.fixed_dictionaries({"name": st.just("night"), "kind": st.just("idempotentjobs"), "causes": json_values}),
    },
).map(lambda body: json.dumps(body).encode())


@given(st.integers(100, 599), bodies, st.none() | st.text(max_size=4), st.sampled_from(VERBS))
def test_any_answer_is_one_of_four(code: int, content: bytes, retry_after: str | None, asked: ApiRequest) -> None:
    """Any answer is one of the object, None, a refusal or unknown; None comes only with 404, and 5xx is always unknown."""
    try:
        body = read(ApiResponse(code, content, retry_after), asked)
    except ApiRefused:
        assert 400 <= code < 500
    except ApiUnavailable:
        pass
    else:
        assert (code == 404) if body is None else (200 <= code < 300)


def test_paths() -> None:
    """Paths for namespaced, core and cluster-wide kinds; a name that would change the path is refused."""
    assert path_of(JOBS, "etl") == "/apis/sparkonce.dev/v1alpha1/namespaces/etl/idempotentjobs"
    assert path_of(JOBS, None) == "/apis/sparkonce.dev/v1alpha1/idempotentjobs"
    assert path_of(PODS, "etl") == "/api/v1/namespaces/etl/pods"
    assert path_of(NAMESPACES, None) == path_of(NAMESPACES, "etl") == "/api/v1/namespaces"
    assert path_of(PODS, "a/b?c") == "/api/v1/namespaces/a%2Fb%3Fc/pods"
    for name in ("", ".", ".."):
        with pytest.raises(ValueError, match="not a name"):
            path_of(PODS, name)
