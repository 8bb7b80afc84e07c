"""Interprets answers of the API server. Pure: from a status code and bytes to an object, None, or a typed error.

| answer | meaning |
| --- | --- |
| 2xx with an object of the kind | that object |
| 404, a Status that names this object | it does not exist (None) |
| 404, a Status that names its namespace | refused: there is no such namespace |
| 404, anything else | unknown: the kind is not served, or this is not the API server |
| 401, 403, 429 | refused: nothing was done, whichever server answered |
| other 4xx with a Status | refused |
| other 4xx without one, 3xx, 5xx, a body that cannot be read | unknown |

A proxy may answer in place of the API server, so a refusal counts only if it could not have followed a write. A 5xx of the API server may:
"timeout" and "internal error" are also returned for writes that succeed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.launch.kubernetes import AlreadyExists, ApiConflict, ApiRefused, ApiUnavailable, Json, Resource

SENTENCE = 500
"""Maximum characters quoted from the API server's message."""
_UNKNOWN = re.compile(r'unknown field "((?:[^"\\]|\\.)*)"')
_STRICT = "strict decoding error: "
_REFUSED_BY_ANYBODY = frozenset({401, 403, 429})


@dataclass(frozen=True)
class ApiRequest:
    """The request, for messages and to interpret a 404."""

    verb: str
    resource: Resource
    namespace: str | None = None
    name: str = ""

    def __str__(self) -> str:
        place = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {self.resource.kind} {place}".rstrip()


@dataclass(frozen=True)
class ApiResponse:
    status: int
    content: bytes
    retry_after: str | None = None


def read(answer: ApiResponse, asked: ApiRequest) -> Json | None:
    """The object in the answer; None if it does not exist.

    Raises:
        ApiRefused (also AlreadyExists, ApiConflict): nothing was done.
        ApiUnavailable: unknown whether the request took effect.
    """
    body = _parsed(answer.content)
    if 200 <= answer.status < 300:
        if body is None or not _is_of(body, asked):
            raise ApiUnavailable(f"the API server's answer to {asked} cannot be read; it may have been done")
        return body
    said = body if body is not None and body.get("kind") == "Status" else None
    if answer.status == 404:
        _check_missing(said, asked)
        return None
    if answer.status in _REFUSED_BY_ANYBODY or (said is not None and 400 <= answer.status < 500):
        raise _refusal(answer, said or {}, asked)
    raise ApiUnavailable(f"cannot {asked} now: the API server answered {answer.status}{_because(answer, said)}")


def _parsed(content: bytes) -> Json | None:
    try:
        body = json.loads(content)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _is_of(body: Mapping[str, Any], asked: ApiRequest) -> bool:
    kind = body.get("kind")
    match asked.verb:
        case "delete":
            return kind in ("Status", asked.resource.kind)
        case "list":
            return isinstance(body.get("items"), list) and isinstance(body.get("metadata"), dict)
        case "discover":
            return kind == "APIResourceList" and isinstance(body.get("resources"), list)
        case _:
            return kind == asked.resource.kind and isinstance(body.get("metadata"), dict)


def _check_missing(said: Mapping[str, Any] | None, asked: ApiRequest) -> None:
    """Returns if the requested object does not exist; raises for every other 404."""
    details = _details(said)
    if said is not None and said.get("reason") == "NotFound":
        if asked.name and (details.get("kind"), details.get("name")) == (asked.resource.plural, asked.name):
            return
        if asked.namespace and (details.get("kind"), details.get("name")) == ("namespaces", asked.namespace):
            raise ApiRefused(
                f"the API server refused to {asked}: there is no namespace {asked.namespace}",
                code=404,
                reason="NotFound",
            )
    raise ApiUnavailable(
        f"cannot {asked} now: the API server does not serve {asked.resource.plural}.{asked.resource.api_version}; "
        f"is its CustomResourceDefinition installed?"
    )


def _refusal(answer: ApiResponse, said: Mapping[str, Any], asked: ApiRequest) -> ApiRefused:
    reason = said.get("reason")
    reason = reason if isinstance(reason, str) else ""
    message = f"the API server refused to {asked} ({answer.status} {reason}".rstrip() + ")" + _because(answer, said)
    fields = _fields(_details(said).get("causes"))
    kind, code = ApiRefused, answer.status
    if code == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else ApiConflict
    elif answer.status == 422 and asked.verb == "patch" and "metadata.uid" in fields:
        kind, code = ApiConflict, 409  # how a patch that names the UID of an earlier object is refused
    return kind(
        message, code=code, reason=reason, fields=fields, unknown=_unknown(said), retry_after=_wait(answer, said)
    )


def _unknown(said: Mapping[str, Any]) -> list[str]:
    """Distinct paths of the fields that a strict write was refused for. The API server names them in its message alone."""
    message = said.get("message")
    _, strict, listed = message.partition(_STRICT) if isinstance(message, str) else ("", "", "")
    return list(dict.fromkeys(_UNKNOWN.findall(listed))) if strict else []


def _fields(causes: object) -> list[str]:
    """Distinct field paths of the causes; the API server names some "<nil>"."""
    found = [each.get("field") for each in causes if isinstance(each, dict)] if isinstance(causes, list) else []
    return list(dict.fromkeys(each for each in found if isinstance(each, str) and each and each != "<nil>"))


def _details(said: Mapping[str, Any] | None) -> Mapping[str, Any]:
    details = (said or {}).get("details")
    return details if isinstance(details, dict) else {}


def _wait(answer: ApiResponse, said: Mapping[str, Any]) -> float | None:
    for value in (answer.retry_after, _details(said).get("retryAfterSeconds")):
        try:
            return max(0.0, float(value))  # type: ignore[arg-type]  # None and text are what the except is for
        except (TypeError, ValueError):
            continue
    return None


def _because(answer: ApiResponse, said: Mapping[str, Any] | None) -> str:
    message = (said or {}).get("message")
    if not isinstance(message, str):
        message = answer.content[:SENTENCE].decode("utf-8", errors="replace").strip()
    return f": {message[:SENTENCE]}" if message else ""
