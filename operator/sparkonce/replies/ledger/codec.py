"""Reply records as rows, read back with validation: a row that is no record is an error, never an absent key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from sparkonce.errors import InvalidInput, RecordUnreadable
from sparkonce.replies.protocol import Reply, ReplyRecord

COLUMNS = (
    "caller", "fingerprint", "nonce", "takeovers", "reserved_at", "expires_at", "lease", "lease_until",
    "status", "headers", "body", "omitted",
)  # fmt: skip
LARGEST = 16 * 1024 * 1024
"""Bytes of a body: more than any service should keep per key, and below what the ledgers take in one row."""
N = TypeVar("N", int, float)
_HEX = re.compile(r"[0-9a-f]+")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,255}")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")


def to_row(record: ReplyRecord) -> dict[str, Any]:
    """Raises: InvalidInput: an answer that could not be read back."""
    row: dict[str, Any] = {name: getattr(record, name) for name in COLUMNS[:8]}
    row |= {"status": None, "headers": None, "body": None, "omitted": 0}
    if (reply := record.reply) is not None:
        if problem := _problem(reply):
            raise InvalidInput(f"an answer cannot be recorded: {problem}")
        row |= {
            "status": reply.status,
            "headers": json.dumps(reply.headers, separators=(",", ":")),
            "body": reply.body,
            "omitted": reply.omitted,
        }
    return row


def from_row(key: str, row: Mapping[str, Any], *, remedy: str = "remove its row") -> ReplyRecord:
    """Raises: RecordUnreadable."""
    try:
        reply = None
        if row["status"] is not None:
            headers = tuple((str(name), str(value)) for name, value in json.loads(row["headers"]))
            reply = Reply(int(row["status"]), headers, bytes(row["body"]), int(row["omitted"]))
            if problem := _problem(reply):
                raise ValueError(problem)
        record = ReplyRecord(
            caller=_text(row["caller"]),
            fingerprint=_text(row["fingerprint"]),
            nonce=_text(row["nonce"]),
            takeovers=_at_least_0(int, row["takeovers"]),
            reserved_at=_at_least_0(float, row["reserved_at"]),
            expires_at=_at_least_0(float, row["expires_at"]),
            lease=_at_least_0(float, row["lease"]),
            lease_until=_at_least_0(float, row["lease_until"]),
            reply=reply,
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecordUnreadable(
            f"the answer recorded for key {key[:20]} cannot be read ({error}); {remedy}, and the key runs again"
        ) from None
    return record


def is_header(name: str, value: str) -> bool:
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None


def _problem(reply: Reply) -> str:
    """What of an answer is no HTTP, or would not be read back as it is; empty if nothing is."""
    if not 100 <= reply.status <= 599:
        return f"{reply.status} is no status"
    for name, value in reply.headers:
        if not is_header(name, value):
            return f"header {name[:40]!r} is no header"
    if len(reply.body) > LARGEST or not 0 <= reply.omitted < 2**63:
        return "its body is too large"
    return ""


def _text(value: Any) -> str:
    if not (isinstance(value, str) and _HEX.fullmatch(value)):
        raise ValueError("a digest is no hexadecimal text")
    return value


def _at_least_0(kind: type[N], value: Any) -> N:
    number = kind(value)
    if not 0 <= number < 2**53:
        raise ValueError("a number is out of range")
    return number
