"""Values of the ledger as JSON text and back.

Every store keeps text, the one in memory too, so that what cannot be stored fails there as well. What does not parse is an error that
names the record, never an absence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from sparkonce.errors import InvalidInput, RecordTooNew, RecordUnreadable
from sparkonce.model.record import Address, Record, Value, parse_record
from sparkonce.store.protocol import Page

V = TypeVar("V", bound=Value)


def encode(value: Value) -> str:
    """InvalidInput for what JSON cannot say (lone surrogates, objects of other kinds); nothing was written then."""
    try:
        return value.model_dump_json(
            by_alias=True, exclude_none=True
        )  # as `dump` and `json.dumps`, in a third of the time
    except (ValueError, TypeError, PydanticSerializationError) as error:
        raise InvalidInput(f"a {type(value).__name__.lower()} cannot be stored as JSON: {error}") from None


def decode(kind: type[V], text: str, *, where: str) -> V:
    """RecordUnreadable when what stands beside a record does not parse; it is never read as absence."""
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
    """As a person may type it: the realm and the start of the hash."""
    return f"{address.realm}/{address.hash20}"


def position(address: Address) -> tuple[str, str]:
    """Where a record stands in a listing."""
    return address.realm, address.key_hash


def position_of(token: str) -> tuple[str, str]:
    """Of a page token, `realm/key_hash`; a realm may contain slashes, a hash does not."""
    realm, _, key_hash = token.rpartition("/")
    return realm, key_hash


def record_of(address: Address, text: str, *, revision: int, epoch: int) -> Record:
    """RecordUnreadable, RecordTooNew: there is a record, and this is why it cannot be used."""
    record = parse_record(text, where=name(address))
    if record.address != address:
        raise RecordUnreadable(
            f"the record {name(address)} cannot be read (it says that it is {name(record.address)}); restore it from a backup"
        )
    return record.model_copy(update={"revision": revision, "epoch": epoch})


def listed(rows: Sequence[tuple[Address, str, int]], *, epoch: int, more: bool) -> Page:
    """A page of (address, text, revision), in order; what does not parse is named beside the records."""
    records, unreadable = [], []
    for address, text, revision in rows:
        try:
            records.append(record_of(address, text, revision=revision, epoch=epoch))
        except (RecordUnreadable, RecordTooNew) as error:
            unreadable.append((address, str(error)))
    after = "/".join(position(rows[-1][0])) if more and rows else None
    return Page(records, unreadable, after)
