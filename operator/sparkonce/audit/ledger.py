"""What a ledger says of every key, read for a comparison: small values, whatever the ledger is.

Records are listed page by page and may change meanwhile; a key that looks wrong is therefore loaded again by itself before anything is said
of it (`reread`). Absence is never concluded from the listing: a key that a slot names and the listing does not is asked for, and the
generation floor, which no purge removes, tells a key whose record is gone from one that this ledger never knew.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkonce.blocking import run
from sparkonce.errors import RecordTooNew, RecordUnreadable, SparkonceError
from sparkonce.model.record import Address, Record, SpecBody, State
from sparkonce.model.result import Result
from sparkonce.store.protocol import IdempotencyStore, Query

PAGE = 100
"""Records per request."""
GENERATIONS = 20
"""Of a key, whose results are compared: the newest ones."""
LOCAL_REALM = "local"


@dataclass(frozen=True, kw_only=True)
class Known:
    """One key."""

    record: Record
    declared: tuple[str, ...]
    """Outputs of the current generation, by name."""
    results: Mapping[int, Result] = field(default_factory=dict)
    """By generation."""
    job: str = ""
    """What its outputs are opened from: equal for equal outputs."""


@dataclass
class Ledger:
    """Everything that was read."""

    url: str
    now: float
    """Unix seconds, the ledger's clock."""
    keys: dict[str, Known] = field(default_factory=dict)
    """By hash, which is unique over realms."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Hash -> a sentence."""
    floors: dict[str, int] = field(default_factory=dict)
    """Of keys without a record."""


def read(store: IdempotencyStore) -> tuple[Ledger, dict[str, SpecBody]]:
    """The whole ledger, and one spec for each distinct set of outputs. StoreUnavailable, StoreUnusable."""
    ledger = Ledger(store.url, run(store.now()))
    specs: dict[str, SpecBody] = {}
    for record in _records(store, ledger):
        known, spec = _known(store, record)
        ledger.keys[record.key_hash] = known
        if spec is not None:
            specs.setdefault(known.job, spec)
    return ledger, specs


def reread(store: IdempotencyStore, ledger: Ledger, key_hashes: Collection[str]) -> None:
    """These keys as they are now; also those that the ledger does not know. Errors as `read`."""
    if not key_hashes:
        return
    ledger.now = run(store.now())
    realms = sorted({known.record.realm for known in ledger.keys.values()} | {LOCAL_REALM})
    unknown = set()
    for key_hash in key_hashes:
        before = ledger.keys.pop(key_hash, None)
        ledger.unreadable.pop(key_hash, None)
        ledger.floors.pop(key_hash, None)
        if not _loaded(store, ledger, key_hash, realms if before is None else [before.record.realm]):
            unknown.add(key_hash)
    if unknown - set(ledger.floors):  # perhaps of a realm whose first record came meanwhile
        for record in _records(store, ledger):
            if record.key_hash in unknown:
                ledger.keys[record.key_hash] = _known(store, record)[0]


def _loaded(store: IdempotencyStore, ledger: Ledger, key_hash: str, realms: Iterable[str]) -> bool:
    """Whether there is a record; otherwise the floor is noted, if there is one."""
    for realm in realms:
        try:
            view = run(store.load(Address(realm=realm, key_hash=key_hash)))
        except (RecordUnreadable, RecordTooNew) as error:
            ledger.unreadable[key_hash] = told(error)
            return True
        if view.record is not None:
            ledger.keys[key_hash] = _known(store, view.record)[0]
            return True
        if view.floor:
            ledger.floors[key_hash] = view.floor
    return False


def _records(store: IdempotencyStore, ledger: Ledger) -> Iterator[Record]:
    after: str | None = ""
    while after is not None:
        page = run(store.list(Query(after=after, limit=PAGE)))
        ledger.unreadable |= {address.key_hash: why for address, why in page.unreadable}
        yield from page.records
        after = page.after


def _known(store: IdempotencyStore, record: Record) -> tuple[Known, SpecBody | None]:
    spec = run(store.spec(record.address, record.generation))
    outputs, job = _outputs(spec)
    known = Known(
        record=record,
        declared=tuple(str(each.get("name")) for each in outputs),
        results=_results(store, record),
        job=job,
    )
    return known, spec if outputs else None


def _results(store: IdempotencyStore, record: Record) -> dict[int, Result]:
    newest = record.generation if record.state is State.FINALIZED else record.generation - 1
    found = {}
    for generation in range(max(1, newest - GENERATIONS + 1), newest + 1):
        try:
            result = run(store.result(record.address, generation))
        except (RecordUnreadable, RecordTooNew):
            continue
        if result is not None:
            found[generation] = result
    return found


def _outputs(spec: SpecBody | None) -> tuple[Sequence[Mapping[str, Any]], str]:
    """As the spec says them, and a text that is equal where they mean the same places."""
    if spec is None:
        return (), ""
    body = spec.job.get("spec") or {}
    outputs = body.get("outputs") or ()
    where = [outputs, body.get("revision"), body.get("idempotencyKey") is None, spec.base]
    return outputs, json.dumps(where, sort_keys=True)


def told(error: SparkonceError) -> str:
    return " ".join(str(error).split())
