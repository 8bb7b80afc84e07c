"""Compares ledger and tables: every recorded result must be committed, and every commit must have a record. Pure.

Keys are compared generation by generation. An unfinished generation has no result yet, so any commit of it is fine; a finished one has
recorded its commits, and the tables must match.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sparkonce.audit.findings import Finding, Kind
from sparkonce.audit.ledger import Known, LedgerContents
from sparkonce.audit.tables import is_unreadable
from sparkonce.model.record import Outcome, OutputResult, State
from sparkonce.sink.protocol import Effect, Inventory, SinkKey, StreamPart, slot_digest
from sparkonce.sink.slotlog import layout

REWOUND = "if the ledger was restored from a backup: `sparkonce accept-restore`; else find out which writer uses another ledger"
NOTHING = Inventory(kind="", uri="", effects=(), staged=(), live=())
RERUN = "recreate it with `sparkonce rerun KEY`; if it was moved, move it back"


def of_ledger(ledger: LedgerContents, tables: Sequence[Inventory], *, purges: str) -> list[Finding]:
    """All findings of the comparison. `purges`: what to do about records whose retention has ended."""
    committed: dict[str, set[str]] = defaultdict(set)  # one folder may hold tables of two kinds
    for table in tables:
        committed[table.uri] |= {effect.slot.sink_key for effect in table.effects}
    unreadable = {table.uri: table for table in tables if table.unreadable}
    without = (finding for known in ledger.keys.values() for finding in _of_record(known, committed))
    return [
        *(finding for table in tables for effect in table.effects for finding in _of_effect(ledger, table, effect)),
        *_twice(tables),
        *(each for each in without if not is_unreadable(unreadable.get(each.table, NOTHING), each.subject)),
        *_waiting(ledger, purges),
    ]


def unknown_keys(ledger: LedgerContents, tables: Iterable[Inventory]) -> set[str]:
    """Key hashes that commits name and that have not been looked up in the ledger."""
    named = {
        key.key_hash
        for table in tables
        for effect in table.effects
        if not is_of_lane(effect) and (key := SinkKey.parse(effect.slot.sink_key))
    }
    return {
        each
        for each in named
        if each not in ledger.keys and each not in ledger.unreadable and each not in ledger.floors
    }


def is_of_lane(effect: Effect) -> bool:
    """Whether a writer outside of jobs committed it (`sparkonce.lanes`): no ledger knows it, and the table is its only record."""
    return effect.slot.lane is not None


def _finding(table: Inventory, kind: Kind, key: SinkKey, what: str, todo: str) -> Finding:
    return Finding(kind=kind, table=table.uri, subject=str(key), what=what, todo=todo, key_hash=key.key_hash)


def _of_effect(ledger: LedgerContents, table: Inventory, effect: Effect) -> Iterator[Finding]:
    key = SinkKey.parse(effect.slot.sink_key)
    if is_of_lane(effect):
        return
    if key is None:
        said = f"{effect.commit}: {effect.slot.sink_key!r} is not a sink key"
        yield Finding(
            kind=Kind.SLOT_WITHOUT_RECORD, table=table.uri, subject=effect.slot.sink_key, what=said, todo=REWOUND
        )
        return
    known = ledger.keys.get(key.key_hash)
    if known is None:
        if key.key_hash not in ledger.unreadable and ledger.floors.get(key.key_hash, 0) < key.generation:
            said = f"{effect.commit} has {effect.slot.rows} committed rows, but the ledger has never had its key"
            yield _finding(table, Kind.SLOT_WITHOUT_RECORD, key, said, REWOUND)
        return
    record = known.record
    if (key.generation, effect.slot.token - _is(effect, StreamPart.END)) > (record.generation, record.attempt):
        said = (
            f"{record.key}: attempt {effect.slot.token} of generation {key.generation} is committed, "
            f"but the ledger is at attempt {record.attempt} of generation {record.generation}"
        )
        yield _finding(table, Kind.LEDGER_BEHIND, key, said, REWOUND)
        return
    if key.generation == record.generation and effect.slot.fingerprint != record.fingerprint:
        said = f"{record.key}: the commit is of another job than the one in the ledger"
        yield _finding(table, Kind.OTHER_JOB, key, said, "find out which of the two jobs the key is for")
    result = known.results.get(key.generation)
    if result is None:
        return
    if result.outcome is not Outcome.SUCCEEDED:
        if not _is(effect, StreamPart.OPENING):
            said = (
                f"{record.key}: generation {key.generation} is {result.outcome}, "
                f"but its attempt {effect.slot.token} has {effect.slot.rows} committed rows"
            )
            todo = f"`sparkonce rerun {record.key}` replaces them; please report it with `sparkonce keys history {record.key}`"
            yield _finding(table, Kind.EFFECT_OF_FAILED, key, said, todo)
        return
    for output in result.outputs:
        if output.commit == f"{key}/{effect.slot.token}":
            yield from _of_result(table, effect, key, known, output)


def _is(effect: Effect, part: StreamPart) -> bool:
    """True if the effect is this part of a stream. An opening is no effect; an end may carry a token never granted (`sink.stream`)."""
    return effect.slot.stream is not None and effect.slot.stream.part is part


def _of_result(table: Inventory, effect: Effect, key: SinkKey, known: Known, output: OutputResult) -> Iterator[Finding]:
    if output.uri != table.uri:
        said = f"{known.record.key}: the ledger records this commit at {output.uri}"
        yield _finding(
            table, Kind.MOVED, key, said, "nothing if this is a copy; a table that was moved must be moved back"
        )
    if output.digest != slot_digest(layout.encode(effect.slot)):
        said = f"{known.record.key}: {effect.commit} does not match the recorded digest ({output.digest[:12]}...)"
        yield _finding(
            table, Kind.DIGEST_DIFFERS, key, said, "restore the slot from a backup; it was changed after its commit"
        )


def _twice(tables: Sequence[Inventory]) -> Iterator[Finding]:
    """Sink keys committed in more than one table."""
    places: dict[str, list[Inventory]] = defaultdict(list)
    for table in tables:
        for sink_key in {effect.slot.sink_key for effect in table.effects}:
            places[sink_key].append(table)
    for sink_key, where in places.items():
        key = SinkKey.parse(sink_key)
        if key is not None and len(where) > 1:
            said = f"{sink_key} is committed in {len(where)} tables: {', '.join(table.uri for table in where)}"
            yield _finding(
                where[0], Kind.DOUBLE_COMMIT, key, said, "nothing if one is a copy; otherwise decide which to keep"
            )


def _of_record(known: Known, committed: Mapping[str, set[str]]) -> Iterator[Finding]:
    """`committed`: the sink keys of each table, by URI."""
    record = known.record
    succeeded = [at for at, result in known.results.items() if result.outcome is Outcome.SUCCEEDED]
    if not succeeded:
        return
    generation = max(succeeded)  # until a rerun has succeeded, the result before it is the one that counts
    result = known.results[generation]
    at = f"{record.key}, generation {generation}"
    missing = sorted(set(known.declared) - {output.name for output in result.outputs})
    if missing and generation == record.generation:
        yield Finding(
            kind=Kind.RECORD_WITHOUT_SLOT,
            subject=f"{record.key_hash}-{missing[0]}-g{generation}",
            what=f"{at} succeeded, but its result lacks {', '.join(missing)}",
            todo=f"`sparkonce rerun {record.key}`",
            key_hash=record.key_hash,
        )
    for output in result.outputs:
        sink_key = output.commit.rpartition("/")[0]
        if sink_key not in committed.get(output.uri, {sink_key}):
            said = (
                f"{at} succeeded with {output.rows} rows in {output.name}, but {output.commit} is not committed there"
            )
            yield Finding(
                kind=Kind.RECORD_WITHOUT_SLOT,
                table=output.uri,
                subject=sink_key,
                what=said,
                todo=RERUN,
                key_hash=record.key_hash,
            )


def _waiting(ledger: LedgerContents, purges: str) -> Iterator[Finding]:
    for key_hash, why in sorted(ledger.unreadable.items()):
        todo = f"sparkonce keys repair {key_hash[:20]} --reason TEXT; a newer version's: upgrade sparkonce"
        yield Finding(kind=Kind.UNREADABLE, subject=key_hash, what=why, todo=todo, key_hash=key_hash)
    for key_hash, why in sorted(ledger.damaged.items()):
        todo = "restore the ledger from a backup; until then this key's tables are not compared with it"
        yield Finding(kind=Kind.UNREADABLE, subject=key_hash, what=why, todo=todo, key_hash=key_hash)
    for key_hash, known in sorted(ledger.keys.items()):
        record = known.record
        if record.state is State.HELD:
            what, todo = f"{record.key} is held: {record.held}: {record.note}", f"`sparkonce keys resolve {record.key}`"
            yield Finding(kind=Kind.HELD, subject=key_hash, what=what, todo=todo, key_hash=key_hash)
        if record.expires_at is not None and record.expires_at <= ledger.now:
            what = f"{record.key}: the retention of its record has ended"
            yield Finding(kind=Kind.RETENTION_DUE, subject=key_hash, what=what, todo=purges, key_hash=key_hash)
