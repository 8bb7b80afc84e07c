"""Which requests are the same."""

from __future__ import annotations

from typing import Any

import pytest

from sparkonce.replies.fingerprint import fingerprint_of

JSON = "application/json"


def of(body: bytes, content_type: str = JSON, **given: Any) -> str:
    asked: dict[str, Any] = {"operation": "POST /orders", "resource": "/orders", "query": "", "headers": []} | given
    return fingerprint_of(content_type=content_type, body=body, **asked)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1, "b": [1, 2]}', b'{"b":[1,2],"a":1}'),
        (b'{"a": 1.0}', b'{"a": 1}'),
        (b'{"a": 1e2}', b'{"a": 100}'),
        (b'"\\u00e9"', '"\xe9"'.encode()),
        (b" [] ", b"[]"),
    ],
)
def test_r34_json_is_compared_by_what_it_says(one: bytes, other: bytes) -> None:
    """R-34: RFC 8785."""
    assert of(one) == of(other)
    assert of(one, "application/vnd.order+json; charset=utf-8") == of(other, "application/vnd.order+json")
    assert of(one, "text/plain") != of(other, "text/plain")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a": 1, "a": 2}', b'{"a": 2}'),
        (b'{"a": 9007199254740993}', b'{"a": 9007199254740992}'),
        (b'{"a": 0.1000000000000000055511151231257827}', b'{"a": 0.1}'),
        (b'{"a": 1e400}', b'{"a": 2e400}'),
        (b'{"a": NaN}', b'{"a": null}'),
        (b'"\\ud800"', b'"\\ud801"'),
        (b'{"a": "1"}', b'{"a": 1}'),
        (b'{"a": true}', b'{"a": 1}'),
        (b'{"a": null}', b"{}"),
        (b"[1, 2]", b"[2, 1]"),
        (b"[" * 100_000, b"[" * 99_999),
        (b"[" * 70 + b"]" * 70, b"[" * 71 + b"]" * 71),
        (b"\xff", b"\xfe"),
        (b"", b"{}"),
    ],
)
def test_r28_r35_two_requests_that_a_service_may_tell_apart_are_two(one: bytes, other: bytes) -> None:
    """R-35: what has no exact canonical form is compared by its bytes."""
    assert of(one) != of(other)
    assert of(one) == of(one)


def test_r29_r30_operation_resource_query_and_named_headers_are_part_of_it() -> None:
    """R-29, R-30: each of them makes another request; the order of headers does not."""
    plain = of(b"{}")
    assert of(b"{}", operation="DELETE /orders") != plain
    assert of(b"{}", resource="/orders/2") != plain
    assert of(b"{}", query="dry=1") != plain
    assert of(b"{}", headers=[("if-match", "1")]) != plain
    assert of(b"{}", headers=[("if-match", "1"), ("x", "2")]) == of(b"{}", headers=[("x", "2"), ("if-match", "1")])
    assert of(b"{}", "text/plain") != plain


def test_a_body_never_passes_as_a_header() -> None:
    """Parts are length-prefixed."""
    assert of(b"", headers=[("a", "b")]) != of(b"b", "a")
