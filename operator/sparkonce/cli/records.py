"""What the ledger says of keys, told: list, show, history, explain. Writes nothing.

Records that do not parse are told as such: a key that cannot be read is there, and leaving it out would say that it is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from sparkonce.blocking import run
from sparkonce.cli import show, words
from sparkonce.cli.tables import print_table
from sparkonce.engine import operate, telling
from sparkonce.engine.prepare import REALM, describe
from sparkonce.engine.probing import probe
from sparkonce.engine.request import Answer
from sparkonce.errors import InvalidInput, SparkonceError
from sparkonce.model import key as keys
from sparkonce.model.record import Address, Event, Outcome, Record, SpecBody, State
from sparkonce.model.result import Result
from sparkonce.sink.protocol import Evidence
from sparkonce.store.protocol import IdempotencyStore, Query, View

if TYPE_CHECKING:
    from sparkonce.cli.session import Session
    from sparkonce.engine.prepare import Prepared

_HASH = re.compile(r"[0-9a-f]{64}")


# list


def list_records(opened: Session, *, states: Sequence[State], limit: int, as_json: bool) -> None:
    records, unreadable, more = _all(opened.store, states, limit)
    now = run(opened.store.now())
    names = {record.key_hash: _output_names(opened.store, record) for record in records}
    if as_json:
        told = {
            "store": opened.store.url,
            "keys": [{**telling.identity(r), "outputs": names[r.key_hash], **telling.times(r)} for r in records],
            "unreadable": [{"keyHash": address.key_hash, "reason": reason} for address, reason in unreadable],
            "more": more,
        }
        typer.echo(show.as_json(told))
        return
    if not records and not unreadable:
        typer.echo(f"no keys in {opened.store.url}")
        return
    rows = [
        (
            record.key,
            record.key_hash[:12],
            str(record.generation),
            telling.phase_of(record),
            ", ".join(names[record.key_hash]) or "none (opaque)",
            words.span(now - record.created_at),
            _expires(record, now),
        )
        for record in records
    ]
    rows += [
        ("cannot be read", address.key_hash[:12], "", "", "", "", words.sentence(why)) for address, why in unreadable
    ]
    print_table(("KEY", "HASH", "GENERATION", "PHASE", "OUTPUTS", "AGE", "EXPIRES"), rows, styles=(None, "dim"))
    if more:
        typer.echo(f"there are more than {limit}; `--limit` shows them", err=True)


def _all(
    store: IdempotencyStore, states: Sequence[State], limit: int
) -> tuple[list[Record], list[tuple[Address, str]], bool]:
    records: list[Record] = []
    unreadable: list[tuple[Address, str]] = []
    after: str | None = ""
    while after is not None and len(records) + len(unreadable) < limit:
        page = run(
            store.list(Query(states=states, after=after, limit=min(100, limit - len(records) - len(unreadable))))
        )
        records += page.records
        unreadable += page.unreadable
        after = page.after
    return records, unreadable, after is not None


def _output_names(store: IdempotencyStore, record: Record) -> list[str]:
    try:
        spec = run(store.spec(record.address, record.generation))
        outputs = spec.job["spec"].get("outputs", ()) if spec is not None else ()
        return [str(output["name"]) for output in outputs]
    except (SparkonceError, KeyError, TypeError, AttributeError):
        return ["?"]  # one spec that cannot be read must not hide the other keys


def _expires(record: Record, now: float) -> str:
    if record.expires_at is None:
        return "never (not finished)" if record.state is not State.FINALIZED else "never"
    left = record.expires_at - now
    return f"in {words.span(left)}" if left > 0 else "over: `sparkonce keys purge` removes it"


# show


def show_record(opened: Session, text: str, *, as_json: bool) -> None:
    store = opened.store
    record = run(operate.find(store, text))
    view = run(store.load(record.address))
    spec = run(store.spec(record.address, record.generation))
    result = run(store.result(record.address, record.generation)) if record.state is State.FINALIZED else None
    found = _found(record, result, spec)
    attempts = list(_attempts(opened, record, run(store.events(record.address))))
    if as_json:
        told = {
            **telling.identity(record),
            **telling.times(record),
            "owner": view.claim.owner if view.claim else None,
            "note": record.note,
            "result": telling.result_object(result, found) if result else None,
            "attempts": attempts,
            "record": record.dump(),
            "job": spec.job if spec else None,
            "store": store.url,
        }
        typer.echo(show.as_json(told))
        return
    print_table(("KEY", record.key), _facts(record, view, run(store.now())))
    if result is not None and result.outputs:
        typer.echo()
        rows = [
            (o.name, words.rows(o.rows), words.size(o.bytes), str(found.get(o.name, Evidence.NOT_CHECKED)), o.uri)
            for o in result.outputs
        ]
        print_table(("OUTPUT", "ROWS", "SIZE", "FOUND", "PLACE"), rows)
    if result is not None and result.values:
        typer.echo()
        print_table(("VALUE", ""), [(name, show.as_json(value)) for name, value in result.values.items()])
    typer.echo()
    rows_ = [(str(a["attempt"]), words.when(a["began"]), a["ended"] or "-", a["logs"] or "removed") for a in attempts]
    print_table(("ATTEMPT", "GRANTED", "ENDED", "STDOUT AND STDERR"), rows_)


def _found(record: Record, result: Result | None, spec: SpecBody | None) -> Mapping[str, Evidence]:
    if result is None or spec is None or record.outcome is not Outcome.SUCCEEDED:
        return {}
    return run(probe(record, result, describe(record, spec).sinks))


def _facts(record: Record, view: View, now: float) -> Iterator[tuple[str, str]]:
    yield "hash", record.key_hash
    yield "phase", telling.phase_of(record)
    yield "generation", str(record.generation)
    if record.operation:
        yield "for", f"{record.operation} of {record.resource}, revision {record.job_revision}"
    if record.state is State.IN_PROGRESS:
        yield "owner", view.claim.owner if view.claim else "nobody: send the job again and it goes on where it stands"
    yield "opened", words.when(record.created_at)
    if record.finalized_at:
        yield "finalized", words.when(record.finalized_at)
        yield "expires", f"{words.when(record.expires_at)} ({_expires(record, now)})"
    if record.held:
        yield "held", f"{record.held}: {record.note}"
    elif record.note:
        yield "note", words.sentence(record.note)


def _attempts(opened: Session, record: Record, events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """With the logs of each, where they are kept."""
    for told in telling.attempts(record, events):
        folder = show.logs_of(record, opened.attempts, told["attempt"])
        yield {**told, "logs": str(folder) if folder.exists() else None}


# history


def show_history(opened: Session, text: str, *, as_json: bool) -> None:
    address, name = _address(opened.store, text)
    events = run(opened.store.events(address))
    if not events:
        raise InvalidInput(f"nothing of {text} is in {opened.store.url}; `sparkonce keys list` shows what is")
    if as_json:
        told = {"key": name, "keyHash": address.key_hash, "store": opened.store.url, "events": telling.history(events)}
        typer.echo(show.as_json(told))
        return
    rows = [
        (words.when_exactly(e.at), str(e.generation), str(e.attempt or "-"), e.what, e.by, words.sentence(e.why))
        for e in events
    ]
    print_table(("AT", "GENERATION", "ATTEMPT", "WHAT", "BY", "WHY"), rows)


def _address(store: IdempotencyStore, text: str) -> tuple[Address, str | None]:
    """Also of a key without a record: its events stay."""
    try:
        record = run(operate.find(store, text))
    except InvalidInput:
        if _HASH.fullmatch(text):
            return Address(realm=REALM, key_hash=text), None
        explicit = Address(realm=REALM, key_hash=keys.explicit(text, REALM).key_hash) if text.isascii() else None
        if explicit is None or not run(store.events(explicit)):
            raise
        return explicit, text
    return record.address, record.key


# explain


def explain_key(opened: Session, target: str, prepared: Prepared | None, *, as_json: bool) -> None:
    told = (
        _explained_file(opened, prepared) if prepared else _explained(opened, run(operate.find(opened.store, target)))
    )
    if as_json:
        typer.echo(show.as_json({**told, "store": opened.store.url}))
        return
    rows = [
        ("row", told["row"]),
        ("evidence", told["evidence"]),
        *(("differs", path) for path in told["paths"]),
        ("waits for", told["waitsFor"]),
        ("owner", told["owner"] or "nobody"),
        ("what to do", told["unblock"] or "nothing"),
    ]
    print_table(("KEY", told["key"]), rows)


def _explained(opened: Session, record: Record) -> dict[str, Any]:
    return telling.explained(record, run(operate.explain(opened.embedded, record)))


def _explained_file(opened: Session, prepared: Prepared) -> dict[str, Any]:
    """What a request with this very file meets."""
    embedded = opened.embedded
    view, said, evidence = run(embedded.look(prepared))
    record = view.record
    if record is None:
        fields = {
            "key": prepared.key.text,
            "keyHash": prepared.key.key_hash,
            "generation": None,
            "attempt": None,
            "phase": None,
        }
        waits = "somebody who sends it"
        return {
            **fields,
            "row": said.row,
            "evidence": said.evidence,
            "waitsFor": waits,
            "unblock": "sparkonce run FILE",
            "owner": None,
            "paths": [],
        }
    told = _explained(opened, record)
    if said.answer is not Answer.MISMATCH and said.answer is not Answer.SUPERSEDE:
        return told
    ending = run(embedded.ending(prepared, said, record, evidence, replayed=False))
    paths = list(ending.paths) or prepared.differing(record, prepared.spec)
    return {
        **told,
        "row": said.row,
        "evidence": said.evidence,
        "waitsFor": "a person",
        "unblock": said.unblock,
        "paths": paths,
    }
