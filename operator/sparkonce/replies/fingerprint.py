"""The fingerprint of a request: what a repetition under the same key must equal.

It covers the operation and its resource, the query, the headers that the service names, and the body. A JSON body is compared by what it
says (RFC 8785), because a client that serializes it again may order its fields differently; any other body by its bytes. JSON falls
back to its bytes where its canonical form would lose something: a number that is not exactly what a double prints, a field that is there
twice, half a surrogate pair. Bytes are the stricter comparison, so a genuine repetition may be refused then, but two different requests
never pass as one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import rfc8785

DOMAIN = "sparkonce/request/v1"
DEEPEST = 64
"""Levels of a JSON body that are compared as JSON: deeper ones would reach Python's limit of recursion."""

_JSON = re.compile(r"application/(?:[a-z0-9.!#$&^_+-]+\+)?json", re.IGNORECASE)
_LARGEST = 2**53 - 1  # beyond it RFC 8785 has no integers


class _Inexact(ValueError):
    """The canonical form would not say the same."""


def fingerprint_of(
    *,
    operation: str,
    resource: str,
    query: str,
    headers: Sequence[tuple[str, str]],
    content_type: str,
    body: bytes,
) -> str:
    """64 hex digits. `headers`: those that must match, names in lower case; `content_type`: of the body."""
    digest = hashlib.sha256()
    parts: list[bytes] = [
        DOMAIN.encode(),
        operation.encode(),
        resource.encode(),
        query.encode("utf-8", "surrogateescape"),
    ]
    for name, value in sorted(headers):
        parts += [b"header", name.encode(), value.encode("utf-8", "surrogateescape")]
    parts += _form(content_type, body)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _form(content_type: str, body: bytes) -> list[bytes]:
    media = content_type.partition(";")[0].strip()
    if body and _JSON.fullmatch(media):
        try:
            return [b"json", rfc8785.dumps(_parsed(body))]
        except (ValueError, RecursionError):  # rfc8785's and json's errors are ValueErrors
            pass
    return [b"bytes", media.lower().encode("utf-8", "surrogateescape"), body]


def _parsed(body: bytes) -> Any:
    text = body.decode()
    value = json.loads(
        text, object_pairs_hook=_once_each, parse_float=_exactly, parse_int=_small, parse_constant=_no_constant
    )
    _bounded(value, DEEPEST)
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _Inexact("a field is there twice")
    return fields


def _exactly(text: str) -> float:
    value = float(text)
    if Decimal(repr(value)) != Decimal(text):  # more digits than a double has, or beyond its range
        raise _Inexact("a number is no double")
    return value


def _small(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > _LARGEST:
        raise _Inexact("an integer is beyond 2^53")
    return int(text)


def _no_constant(text: str) -> float:
    raise _Inexact(f"{text} is no JSON")


def _bounded(value: Any, levels: int) -> None:
    if not isinstance(value, dict | list):
        return
    if not levels:
        raise _Inexact("too deep")
    for each in value.values() if isinstance(value, dict) else value:
        _bounded(each, levels - 1)
