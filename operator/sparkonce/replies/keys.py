"""From the `Idempotency-Key` header to the key of a reply ledger.

The header is read as the IETF draft has it, a string of RFC 8941 (`"abc"`), and as most clients send it, a bare token (`abc`): both are
the same key. Parameters of the item are ignored. Two headers are refused, also when a proxy has folded them into one (`a, b`): one of them
would be dropped in silence. A key is validated before anything is read or written for it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from enum import StrEnum

from sparkonce.errors import InvalidInput
from sparkonce.model.identity import explicit_text, hash_of

DOMAIN = "sparkonce/reply/v1"
LONGEST = 255
"""Characters of a key."""

_STRING = re.compile(
    r'"((?:[ !#-\[\]-~]|\\["\\])*)"(?:[ \t]*;[ \t]*[a-z*][a-z0-9_.*-]*(?:=(?:"(?:[ !#-\[\]-~]|\\["\\])*"|[^\s;,"]+))?)*'
)
_TOKEN = re.compile(r"[!#-+\--~]+")  # visible ASCII but the quote and the comma


class KeyPolicy(StrEnum):
    """Which keys a service accepts."""

    OPAQUE = "opaque"
    """1 to 255 visible ASCII characters. A UUID is one key in either case."""
    UUID = "uuid"
    UUID7 = "uuid7"
    """As Iceberg's REST specification asks for."""


def key_of(values: Sequence[str], policy: KeyPolicy = KeyPolicy.OPAQUE) -> str | None:
    """The key in the values of the header's lines; None if there is no such header. Raises: InvalidInput."""
    if not values:
        return None
    if len(values) > 1:
        raise InvalidInput(f"the request has {len(values)} Idempotency-Key headers; send one")
    text = values[0].strip(" \t")
    if not text:
        raise InvalidInput("the Idempotency-Key header is empty; send a key of 1 to 255 visible ASCII characters")
    if text.startswith('"'):
        found = _STRING.fullmatch(text)
        if found is None:
            raise InvalidInput(
                'the Idempotency-Key header is no string of RFC 8941; send "KEY" in quotes, or KEY alone'
            )
        text = re.sub(r'\\(["\\])', r"\1", found[1])
    elif not _TOKEN.fullmatch(text):
        raise InvalidInput(
            "the Idempotency-Key header has a comma, a quote, a space or a character outside ASCII; send one key of visible "
            "ASCII characters, in quotes if it has a comma"
        )
    try:
        key = explicit_text(text)
    except ValueError as error:
        raise InvalidInput(f"the Idempotency-Key header is no key: {error}") from None
    _check(key, policy)
    return key


def _check(key: str, policy: KeyPolicy) -> None:
    if policy is KeyPolicy.OPAQUE:
        return
    try:
        parsed = uuid.UUID(key)
    except ValueError:
        parsed = None
    if parsed is None or str(parsed) != key:
        raise InvalidInput(
            f"the Idempotency-Key header is no UUID; this service takes {policy} keys of 8-4-4-4-12 hexadecimal digits"
        )
    if policy is KeyPolicy.UUID7 and (parsed.version != 7 or parsed.variant != uuid.RFC_4122):
        raise InvalidInput("the Idempotency-Key header is no UUID of version 7, which this service asks for")


def key_hash(key: str, *, service: str, caller: str) -> str:
    """64 hex digits: the key of one caller of one service. `caller`: empty where all callers share their keys."""
    return hash_of(DOMAIN, service, caller, key)


def bucket_of(caller: str) -> str:
    """Four hex digits that stand for a caller in ceilings: too few for a guess of a credential to be checked by them."""
    return hash_of("sparkonce/reply-caller/v1", caller)[:4]
