"""Reads every key of a ledger into small values for the comparison, from any store.

Records are listed page by page and may change meanwhile, so a suspicious key is loaded again by itself before it is reported (`reread`).
Absence is never concluded from the listing: a key that a slot names and the listing lacks is loaded, and the generation floor, which
survives purging, distinguishes a key whose record was removed from one that this ledger never had.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkonce.blocking import run
from sparkonce.errors import RecordTooNew, RecordUnreadable, SparkonceError
from sparkonce.model.record import Address, Record, Result, SpecBody, State
from sparkonce.store.protocol import IdempotencyStore, Query

PAGE = 100
"""Records per request."""
GENERATIONS = 20
"""Newest generations of a key whose results are compared."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A key as the ledger has it."""

    record: Record
    declared: tuple[str, ...]
    """Names of the outputs that the current generation declares."""
    results: Mapping[int, Result] = field(default_factory=dict)
    """By generation."""
    job: str = ""
    """Fingerprint of the declared outputs: equal for equal places."""


@dataclass
class LedgerContents:
    """Everything read from the ledger."""

    url: str
    now: float
    """Unix seconds of the ledger's clock."""
    keys: dict[str, Known] = field(default_factory=dict)
    """By key hash, which is unique across realms."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Key hash -> reason."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Key hash -> why a value beside its record, its job or a result, cannot be read."""
    floors: dict[str, int] = field(default_factory=dict)
    """Key hash -> generation floor, for keys without a record."""


def read(store: IdempotencyStore) -> tuple[LedgerContents, dict[str, SpecBody]]:
    """Reads the whole ledger, and one spec per distinct set of outputs.

    Raises:
        StoreUnavailable, StoreUnusable: the ledger cannot be read.
    """
    ledger = LedgerContents(store.url, run(store.now()))
    specs: dict[str, SpecBody] = {}
    for record in _records(store, ledger):
        known, spec = _known(store, ledger, record)
        ledger.keys[record.key_hash] = known
        if spec is not None:
            specs.setdefault(known.job, spec)
    return ledger, specs


def reread(store: IdempotencyStore, ledger: LedgerContents, key_hashes: Collection[str]) -> None:
    """Loads these keys again into `ledger`, including keys that it lacks.

    Raises:
        StoreUnavailable, StoreUnusable: the ledger cannot be read.
    """
    if not key_hashes:
        return
    ledger.now = run(store.now())
    realms = run(store.realms())  # also those whose records were all removed
    for key_hash in key_hashes:
        before = ledger.keys.pop(key_hash, None)
        ledger.unreadable.pop(key_hash, None)
        ledger.damaged.pop(key_hash, None)
        ledger.floors.pop(key_hash, None)
        _load(store, ledger, key_hash, realms if before is None else [before.record.realm])


def _load(store: IdempotencyStore, ledger: LedgerContents, key_hash: str, realms: Iterable[str]) -> None:
    """Loads one key; the floor alone, if any, where it has no record."""
    for realm in realms:
        try:
            view = run(store.load(Address(realm=realm, key_hash=key_hash)))
        except (RecordUnreadable, RecordTooNew) as error:
            ledger.unreadable[key_hash] = one_line(error)
            return
        if view.record is not None:
            ledger.keys[key_hash] = _known(store, ledger, view.record)[0]
            return
        if view.floor:
            ledger.floors[key_hash] = view.floor
            return


def _records(store: IdempotencyStore, ledger: LedgerContents) -> Iterator[Record]:
    after: str | None = ""
    while after is not None:
        page = run(store.list(Query(after=after, limit=PAGE)))
        ledger.unreadable |= {address.key_hash: why for address, why in page.unreadable}
        yield from page.records
        after = page.after


def _known(store: IdempotencyStore, ledger: LedgerContents, record: Record) -> tuple[Known, SpecBody | None]:
    spec = None
    try:
        spec = run(store.spec(record.address, record.generation))
    except RecordUnreadable as error:
        ledger.damaged[record.key_hash] = one_line(error)
    outputs, job = _outputs(spec)
    known = Known(
        record=record,
        declared=tuple(str(each.get("name")) for each in outputs),
        results=_results(store, ledger, record),
        job=job,
    )
    return known, spec if outputs else None


def _results(store: IdempotencyStore, ledger: LedgerContents, record: Record) -> dict[int, Result]:
    newest = record.generation if record.state is State.FINALIZED else record.generation - 1
    found = {}
    for generation in range(max(1, newest - GENERATIONS + 1), newest + 1):
        try:
            result = run(store.result(record.address, generation))
        except RecordUnreadable as error:
            ledger.damaged[record.key_hash] = one_line(error)
            continue
        if result is not None:
            found[generation] = result
    return found


def _outputs(spec: SpecBody | None) -> tuple[Sequence[Mapping[str, Any]], str]:
    """The declared outputs, and a text that is equal for equal places."""
    if spec is None:
        return (), ""
    body = spec.job.get("spec") or {}
    outputs = body.get("outputs") or ()
    where = [outputs, body.get("revision"), body.get("idempotencyKey") is None, spec.base]
    return outputs, json.dumps(where, sort_keys=True)


def one_line(error: SparkonceError) -> str:
    """The error's message on one line."""
    return " ".join(str(error).split())
