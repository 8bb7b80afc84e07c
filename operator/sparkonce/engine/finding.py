"""From what a person writes to one record of a realm, without reading all of them.

A key's hash is made from its text, so that most texts are looked up at once: one that a client chose, and one that was derived from
operation, resource and revision, of which the text may be cut in a few ways. Only a key that contents are part of (`keyFrom`) has to be
looked for among all: its text shows a beginning of their digests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from sparkonce.errors import InvalidInput, RecordUnreadable
from sparkonce.model.key import derived_hash, explicit
from sparkonce.model.record import Address, Record
from sparkonce.store.protocol import IdempotencyStore, Query

_HASH = re.compile(r"[0-9a-f]{8,64}")
_CONTENTS = re.compile(r"\+[0-9a-f]{12}$")
_WHOLE = 64
_CUTS = 64
"""Ways to cut a text: slashes in what people call things."""


async def find(store: IdempotencyStore, realm: str, text: str) -> Record | None:
    """By its text, its hash, or at least 8 digits of that. InvalidInput: several; RecordUnreadable: it does not parse."""
    for key_hash in candidates(text, realm):
        record = (await store.load(Address(realm=realm, key_hash=key_hash))).record
        if record is not None:
            return record
    if _HASH.fullmatch(text) and len(text) < _WHOLE:
        return await _only(store, Query(realm=realm, hash_prefix=text), lambda _: True, text)
    if _CONTENTS.search(text):
        return await _only(store, Query(realm=realm), lambda record: record.key == text, text)
    return None


def candidates(text: str, realm: str) -> Iterator[str]:
    """Hashes of the keys that may read like this."""
    if _HASH.fullmatch(text) and len(text) == _WHOLE:
        yield text
    with suppress(ValueError):  # no text that a client can choose
        yield explicit(text, realm).key_hash
    for operation, resource, revision in islice(_cuts(text), _CUTS):
        yield derived_hash(operation, resource, revision, realm=realm)


def _cuts(text: str) -> Iterator[tuple[str, str, str]]:
    """A revision has no at-sign; operation and resource may have slashes."""
    named, _, revision = text.rpartition("@")
    for place, letter in enumerate(named):
        if letter == "/" and revision and 0 < place < len(named) - 1:
            yield named[:place], named[place + 1 :], revision


async def _only(store: IdempotencyStore, query: Query, fits: Callable[[Record], bool], text: str) -> Record | None:
    found: list[Record] = []
    unreadable: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await store.list(replace(query, after=after))
        found += filter(fits, page.records)
        unreadable += [why for _, why in page.unreadable]
        after = page.after
    if len(found) > 1:
        hashes = ", ".join(record.key_hash[:12] for record in found[:4])
        raise InvalidInput(f"{text} names {len(found)} records ({hashes}); name one by more of its hash")
    if not found and unreadable and query.hash_prefix:
        raise RecordUnreadable(unreadable[0])
    return found[0] if found else None
