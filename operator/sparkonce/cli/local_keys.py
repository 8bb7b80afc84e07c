"""Reads keys from the ledger for `sparkonce keys`: the dicts that the gateway would send, and what only this machine can add.

It adds the names of declared outputs, whether a result's outputs still exist, folders of logs, the record and the ledger. Writes nothing.
A record that cannot be parsed is listed with the reason: to leave it out would claim that the key does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.attempt.probe import probe
from sparkonce.attempt.request import Answer
from sparkonce.blocking import run
from sparkonce.cli.view import keys as view
from sparkonce.cli.view import outcome
from sparkonce.cli.view.terminal import tell
from sparkonce.commands import describe
from sparkonce.errors import InvalidInput, SparkonceError
from sparkonce.local import prepare
from sparkonce.model.identity import explicit
from sparkonce.model.record import Address, Outcome, Record, Result, SpecBody, State
from sparkonce.sink.protocol import Found
from sparkonce.store.protocol import IdempotencyStore, Query

if TYPE_CHECKING:
    from sparkonce.cli.session import Session

_HASH = re.compile(r"[0-9a-f]{64}")


def list_records(opened: Session, *, states: Sequence[State], limit: int, as_json: bool) -> None:
    records, unreadable, more = _all(opened.store, states, limit)
    described: dict[str, Any] = {
        "store": opened.store.url,
        "keys": [
            {**describe.identity(record), "outputs": _output_names(opened.store, record), **describe.times(record)}
            for record in records
        ],
        "unreadable": [{"keyHash": address.key_hash, "reason": reason} for address, reason in unreadable],
        "more": more,
    }
    if as_json:
        tell(outcome.as_json(described))
        return
    exact = [{**each, **_times(record)} for each, record in zip(described["keys"], records, strict=True)]
    view.print_keys(
        {**described, "keys": exact}, _source(opened), now=run(opened.store.now()), limit=limit if more else None
    )


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


def show_record(opened: Session, text: str, *, as_json: bool) -> None:
    from sparkonce.commands import operate

    store = opened.store
    record = run(operate.find(store, text))
    claim = run(store.load(record.address)).claim
    spec = run(store.spec(record.address, record.generation))
    result = run(store.result(record.address, record.generation)) if record.state is State.FINALIZED else None
    events = run(store.events(record.address))
    described = {
        **describe.identity(record),
        **describe.times(record),
        "owner": claim.owner if claim else None,
        "note": record.note,
        "result": describe.result_object(result, _found(record, result, spec)) if result else None,
        "attempts": [
            {**each, "logs": _logs(opened, record, each["attempt"])} for each in describe.attempts(record, events)
        ],
        "record": record.dump(),
        "job": describe.job_object(spec) if spec else None,
        "store": store.url,
    }
    if as_json:
        tell(outcome.as_json(described))
        return
    named = {"operation": record.operation, "resource": record.resource, "revision": record.job_revision}
    exact = {**described, **_times(record), "held": record.held, "job": {"spec": named}}
    view.print_key(exact, _source(opened), now=run(store.now()))


def _found(record: Record, result: Result | None, spec: SpecBody | None) -> Mapping[str, Found]:
    if result is None or spec is None or record.outcome is not Outcome.SUCCEEDED:
        return {}
    return run(probe(record, result, prepare.recorded_sinks(spec)))


def _logs(opened: Session, record: Record, attempt: int) -> str | None:
    folder = outcome.logs_of(record, opened.attempts, attempt)
    return str(folder) if folder.exists() else None


def show_history(opened: Session, text: str, *, as_json: bool) -> None:
    address, name = _address(opened, text)
    events = run(opened.store.events(address))
    if not events:
        raise InvalidInput(f"{opened.store.url} has no history of {text}; `sparkonce keys list` shows what is")
    described = {
        "key": name,
        "keyHash": address.key_hash,
        "store": opened.store.url,
        "events": describe.history(events),
    }
    if as_json:
        tell(outcome.as_json(described))
    else:
        view.print_history(described)


def _address(opened: Session, text: str) -> tuple[Address, str | None]:
    """Address and name of the key that a text names; also of a key without a record, whose events are kept."""
    from sparkonce.commands import operate
    from sparkonce.commands.find import AmbiguousKey

    store = opened.store
    try:
        record = run(operate.find(store, text))
    except InvalidInput as refused:
        if opened.remote and text and not isinstance(refused, AmbiguousKey):  # no text says whose namespace it was
            raise InvalidInput(
                f"no record of {text} is in {store.url}; one that was forgotten has a history in its namespace: "
                "`kubectl sparkonce history HASH -n NAMESPACE`, with its whole hash"
            ) from None
        if _HASH.fullmatch(text):
            return Address(realm=prepare.REALM, key_hash=text), None
        try:
            address = Address(realm=prepare.REALM, key_hash=explicit(text, prepare.REALM).key_hash)
        except ValueError:  # no key is spelled so
            address = None
        if address is None or not run(store.events(address)):
            raise
        return address, text
    return record.address, record.key


def explain_key(opened: Session, target: str, prepared: prepare.Prepared | None, *, as_json: bool) -> None:
    from sparkonce.commands import operate

    described = (
        _explained_file(opened, prepared) if prepared else _explained(opened, run(operate.find(opened.store, target)))
    )
    if as_json:
        tell(outcome.as_json({**described, "store": opened.store.url}))
    else:
        view.print_explained(described)


def _explained(opened: Session, record: Record) -> dict[str, Any]:
    from sparkonce.commands import operate

    return describe.explained(record, run(operate.explain(opened.embedded, record)))


def _explained_file(opened: Session, prepared: prepare.Prepared) -> dict[str, Any]:
    """The answer that a request with this very file would get."""
    embedded = opened.embedded
    loaded, said, evidence = run(embedded.look(prepared))
    record = loaded.record
    if record is None:
        return {
            "key": prepared.key.text,
            "keyHash": prepared.key.key_hash,
            "generation": None,
            "attempt": None,
            "phase": None,
            "row": said.row,
            "evidence": said.evidence,
            "waitsFor": "the first request",
            "unblock": "sparkonce run FILE",
            "owner": None,
            "asked": [],
            "paths": [],
        }
    described = _explained(opened, record)
    if said.answer is not Answer.MISMATCH and said.answer is not Answer.SUPERSEDE:
        return described
    ending = run(embedded.ending(prepared, said, record, evidence, replayed=False))
    return {
        **described,
        "row": said.row,
        "evidence": said.evidence,
        "waitsFor": "a person",
        "unblock": said.unblock,
        "paths": list(ending.paths) or prepared.differing(record, prepared.spec),
    }


def _times(record: Record) -> dict[str, float | None]:
    """As `describe.times`, to the ledger's precision."""
    return {"createdAt": record.created_at, "finalizedAt": record.finalized_at, "expiresAt": record.expires_at}


def _source(opened: Session) -> view.Source:
    return view.Source(opened.store.url, local=True)
