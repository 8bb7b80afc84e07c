"""Values of the ledger as JSON text and back.

Every store keeps text, the tests' in-memory store included, so that what cannot be stored fails in all of them. Text that does not parse
is an error that names the record, never absence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from sparkonce.errors import InvalidInput, RecordTooNew, RecordUnreadable
from sparkonce.model.record import Address, Record, Value, parse_record, repairing
from sparkonce.store.protocol import Page

V = TypeVar("V", bound=Value)

VALUE_LIMIT = 256 * 1024
"""Bytes of JSON of one value. A transaction carries a record, a spec and an intent or result: three of this size stay below etcd's own
limit for a request."""
DEPTH_LIMIT = 32
"""Nesting of one value. JSON parsers differ in the depth at which they fail; what one of them wrote must not be unreadable for another."""
DIGITS_LIMIT = 308
"""Decimal digits of a number, as many as a double has."""

_LONG_NUMBER = re.compile(rf"[0-9]{{{DIGITS_LIMIT + 1},}}")
_EVERY = (DIGITS_LIMIT + 1) // 4
_DIGITS = re.compile("[0-9]{4}")
"""Every `_EVERY`th character of a number that is too long: four of them at least. Few other texts have them, and a look is cheap."""


def encode(value: Value) -> str:
    """The value as JSON text that `decode` reads back.

    Raises: InvalidInput: JSON cannot express it (lone surrogates, foreign objects), or it is too large, nested too deeply or holds a number
    that is too long; nothing was written."""
    what = type(value).__name__.lower()
    try:
        # as `dump` and `json.dumps`, in a third of the time
        text = value.model_dump_json(by_alias=True, exclude_none=True)
    except (ValueError, TypeError, PydanticSerializationError) as error:
        raise InvalidInput(f"a {what} cannot be stored as JSON: {error}") from None
    if len(text) * 4 > VALUE_LIMIT and (size := len(text.encode())) > VALUE_LIMIT:
        raise InvalidInput(
            f"a {what} has {size} bytes of JSON, and a ledger keeps at most {VALUE_LIMIT}; move large values into files"
        )
    # Almost no value has that many brackets or digits; only such values are walked through.
    brackets = text.count("[") + text.count("{")
    if brackets > DEPTH_LIMIT or (_DIGITS.search(text[::_EVERY]) and _LONG_NUMBER.search(text)):
        _check_parts(what, value.model_dump(mode="json"))
    try:
        type(value).model_validate_json(text)
    except ValidationError as invalid:
        raise InvalidInput(f"a {what} could not be read back: {invalid.errors()[0]['msg']}") from None
    return text


def _check_parts(what: str, value: object) -> None:
    parts = [(1, value)]
    while parts:
        depth, each = parts.pop()
        if isinstance(each, dict | list):
            if depth > DEPTH_LIMIT:
                raise InvalidInput(f"a {what} is nested more than {DEPTH_LIMIT} deep, which a ledger does not keep")
            parts += [(depth + 1, inner) for inner in (each.values() if isinstance(each, dict) else each)]
        elif isinstance(each, int) and abs(each) >= 10**DIGITS_LIMIT:
            raise InvalidInput(f"a {what} has a number of more than {DIGITS_LIMIT} digits; store it as a string")


def decode(kind: type[V], text: str, *, where: str) -> V:
    """Parses a value. Raises: RecordUnreadable when the text does not parse; it is never read as absence."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        path = ".".join(map(str, first["loc"])) or "JSON"
        raise RecordUnreadable(
            f"the {kind.__name__.lower()} beside the record {where} cannot be read ({path}: {first['msg']}); "
            "restore the store from a backup"
        ) from None


def name(address: Address) -> str:
    """A name for display: the realm and the first 20 digits of the hash."""
    return f"{address.realm}/{address.hash20}"


def position(address: Address) -> tuple[str, str]:
    """The sort key of a listing."""
    return address.realm, address.key_hash


def position_of(token: str) -> tuple[str, str]:
    """The sort key in a page token, `realm/key_hash`; a realm may contain slashes, a hash does not."""
    realm, _, key_hash = token.rpartition("/")
    return realm, key_hash


def record_of(address: Address, text: str, *, revision: int, epoch: int) -> Record:
    """Parses a record. Raises: RecordUnreadable, RecordTooNew: the record exists, and the error says why it cannot be used."""
    record = parse_record(text, where=name(address))
    if record.address != address:
        raise RecordUnreadable(
            f"the record {name(address)} cannot be read (it says that it is {name(record.address)}); "
            f"{repairing(address.hash20)}"
        )
    return record.model_copy(update={"revision": revision, "epoch": epoch})


def listed(rows: Sequence[tuple[Address, str, int]], *, epoch: int, more: bool) -> Page:
    """A page of rows (address, text, revision), in order; addresses of records that do not parse are listed separately."""
    records, unreadable = [], []
    for address, text, revision in rows:
        try:
            records.append(record_of(address, text, revision=revision, epoch=epoch))
        except (RecordUnreadable, RecordTooNew) as error:
            unreadable.append((address, str(error)))
    after = "/".join(position(rows[-1][0])) if more and rows else None
    return Page(records, unreadable, after)
