"""Finds the record that a person names by key text or hash, without reading the whole realm where possible.

A key's hash is computed from its text, so that most texts need one lookup: an explicit key, and a key derived from operation, resource and
revision (several splits of its text are tried). Only a key that includes content digests (`keyFrom`) needs a scan: its text shows only the
beginning of those digests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from sparkonce.errors import InvalidInput, RecordUnreadable
from sparkonce.model.identity import derived_hash, explicit
from sparkonce.model.record import Address, Record
from sparkonce.store.protocol import IdempotencyStore, Query

_HASH = re.compile(r"[0-9a-f]{8,64}")
_CONTENTS = re.compile(r"\+[0-9a-f]{12}$")
_WHOLE = 64
_CUTS = 64
"""Splits that are tried for a text with many slashes; with more of them the realm is scanned."""
_NAMED = 4
"""Maximum records that a refusal names."""


class AmbiguousKey(InvalidInput):
    """A text that names several records: nothing was done to any of them."""

    def __init__(self, text: str, records: Sequence[Record]) -> None:
        self.records = records
        named = "; ".join([*map(_named, records[:_NAMED]), *(["..."] if len(records) > _NAMED else [])])
        super().__init__(f"{text} names {len(records)} records ({named}); name one by more of its hash")


async def find(store: IdempotencyStore, realm: str, text: str) -> Record | None:
    """Finds a record by its key text, its hash, or at least 8 digits of the hash. None: no such record.

    A whole hash names one record; a text comes before digits of a hash.

    Raises: AmbiguousKey: several records match. RecordUnreadable: a record that matches exists and does not parse."""
    found = await find_all(store, realm, text)
    if len(found) > 1:
        raise AmbiguousKey(text, found)
    return found[0] if found else None


async def find_all(store: IdempotencyStore, realm: str, text: str) -> list[Record]:
    """Finds every record that the text may mean: keys of different parts can read alike. Raises: RecordUnreadable, as `find`."""
    found: list[Record] = []
    for key_hash in dict.fromkeys(candidates(text, realm)):
        record = (await store.load(Address(realm=realm, key_hash=key_hash))).record
        if record is not None and key_hash == text:
            return [record]
        if record is not None:
            found.append(record)
    if contains_digests(text) or sum(1 for _ in islice(_cuts(text), _CUTS + 1)) > _CUTS:
        known = {record.key_hash for record in found}
        read = await _listed(store, Query(realm=realm), lambda record: record.key == text)
        found += [record for record in read if record.key_hash not in known]
    if not found and _HASH.fullmatch(text) and len(text) < _WHOLE:
        found = await _listed(store, Query(realm=realm, hash_prefix=text), lambda _: True)
    return found


def contains_digests(text: str) -> bool:
    """Whether it may be the text of a key made from the contents of files, whose hash cannot be computed from the text."""
    return _CONTENTS.search(text) is not None


def candidates(text: str, realm: str) -> Iterator[str]:
    """Hashes of the keys that may have this text."""
    if _HASH.fullmatch(text) and len(text) == _WHOLE:
        yield text
    with suppress(ValueError):  # not a legal explicit key
        yield explicit(text, realm).key_hash
    for operation, resource, revision in islice(_cuts(text), _CUTS):
        yield derived_hash(operation, resource, revision, realm=realm)


def _cuts(text: str) -> Iterator[tuple[str, str, str]]:
    """Splits the text of a derived key: a revision contains no at-sign; operation and resource may contain slashes."""
    named, _, revision = text.rpartition("@")
    for place, letter in enumerate(named):
        if letter == "/" and revision and 0 < place < len(named) - 1:
            yield named[:place], named[place + 1 :], revision


def begins_hash(text: str, key_hash: str) -> bool:
    """Whether the text is a hash or enough of its first digits to name it (8): fewer may be a mistyped key, and name another one."""
    return _HASH.fullmatch(text) is not None and key_hash.startswith(text)


def few_digits(text: str) -> bool:
    """Whether the text looks like digits of a hash, too few to name one."""
    return re.fullmatch("[0-9a-f]{1,7}", text) is not None


async def _listed(store: IdempotencyStore, query: Query, fits: Callable[[Record], bool]) -> list[Record]:
    found: list[Record] = []
    unreadable: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await store.list(replace(query, after=after))
        found += filter(fits, page.records)
        unreadable += [why for _, why in page.unreadable]
        after = page.after
    if not found and unreadable and query.hash_prefix:
        raise RecordUnreadable(unreadable[0])
    return found


def _named(record: Record) -> str:
    derived = record.operation and record.job_revision is not None
    of = f"operation {record.operation}, resource {record.resource}" if derived else "an explicit key"
    return f"{record.key_hash[:12]}: {of}"
