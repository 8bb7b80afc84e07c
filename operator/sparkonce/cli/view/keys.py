"""Tables of keys: list, show, history, explain, for `sparkonce keys` and `kubectl sparkonce` alike.

One renderer for both, fed by the dicts of `commands.describe`: the gateway sends them as JSON, `cli.local_keys` builds them from records.
This module reads nothing. The gateway's answers lack some columns: it does not read the declared outputs of the keys it lists, does not
check whether outputs still exist when it shows a key (`explain` does), and knows no local folders of logs.

Times are ISO 8601 text as the gateway sends them, or Unix seconds where the ledger's own precision is at hand, so that ages are exact.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.cli.view import outcome, words
from sparkonce.cli.view.terminal import tell
from sparkonce.cli.view.words import print_table
from sparkonce.sink.protocol import Evidence

Described = Mapping[str, Any]
_ASKED = {"Reserved": "opened", "Reopened": "opened again", "StopWanted": "asked to stop"}
"""Requests in a key's history, as `explain` calls them."""
_ENDED = frozenset({"Succeeded", "Failed", "Cancelled"})


@dataclass(frozen=True)
class Source:
    """Where the dicts come from."""

    place: str
    """Named when a list is empty."""
    local: bool = False
    """Read from the ledger on this machine: with names of outputs, whether they still exist, and folders of logs."""


def print_keys(described: Described, source: Source, *, now: float, limit: int | None) -> None:
    """Prints a table of keys. limit: how many were requested, when there are more; None when these are all."""
    keys, unreadable = described["keys"], described["unreadable"]
    if not keys and not unreadable:
        tell(f"no keys in {source.place}")
        return
    outputs = ("OUTPUTS",) if source.local else ()
    rows = [
        (
            each["key"],
            each["keyHash"][:12],
            str(each["generation"]),
            each["phase"],
            *((", ".join(each["outputs"]) or "none (opaque)",) if outputs else ()),
            words.span(now - (_seconds(each["createdAt"]) or now)),
            _expires(each, source, now),
        )
        for each in keys
    ]
    blank = ("",) * (3 + len(outputs))
    rows += [("cannot be read", each["keyHash"][:12], *blank, words.sentence(each["reason"])) for each in unreadable]
    print_table(("KEY", "HASH", "GENERATION", "PHASE", *outputs, "AGE", "EXPIRES"), rows, styles=(None, "dim"))
    if limit is not None:
        tell(f"there are more than {limit}; `--limit` shows them", err=True)


def print_key(described: Described, source: Source, *, now: float) -> None:
    print_table(("KEY", described["key"]), _facts(described, source, now))
    result = described["result"] or {}
    if outputs := result.get("outputs"):
        tell("")
        found = ("FOUND",) if source.local else ()
        rows = [
            (
                each["name"],
                words.rows(each["rows"]),
                words.size(each["bytes"]),
                *((each.get("found", str(Evidence.NOT_CHECKED)),) if found else ()),
                each["uri"],
            )
            for each in outputs
        ]
        print_table(("OUTPUT", "ROWS", "SIZE", *found, "PLACE"), rows)
        for each in outputs:
            if why := each.get("foundWhy"):
                tell(f"{each['name']} is {each['found']}: {why}")
    if values := result.get("values"):
        tell("")
        print_table(("VALUE", ""), [(name, outcome.as_json(value)) for name, value in values.items()])
    tell("")
    logs = ("STDOUT AND STDERR",) if source.local else ()
    attempts = [
        (
            str(each["attempt"]),
            words.when(_seconds(each["began"])),
            each["ended"] or "-",
            *((each["logs"] or "removed",) if logs else ()),
        )
        for each in described["attempts"]
    ]
    print_table(("ATTEMPT", "GRANTED", "ENDED", *logs), attempts)


def failure_lines(result: Described) -> Iterator[str]:
    """Why the job failed, and what was kept of its driver's log."""
    failure = result.get("failure")
    if failure is None:
        return
    yield f"{failure['class']}: {words.sentence(failure['message'])}"
    if failure["logTail"].strip():
        yield "from its log:"
        yield from (f"  {line}" for line in failure["logTail"].strip("\n").splitlines()[-outcome.LOG_LINES :])


def print_history(described: Described) -> None:
    rows = [
        (
            words.when_exactly(_seconds(each["at"]) or 0.0),
            str(each["generation"]),
            str(each.get("attempt") or "-"),
            each["what"],
            each.get("by", ""),
            words.sentence(each.get("why", "")),
        )
        for each in described["events"]
    ]
    print_table(("AT", "GENERATION", "ATTEMPT", "WHAT", "BY", "WHY"), rows)


def print_explained(described: Described) -> None:
    rows = [
        ("row", described["row"]),
        ("evidence", described["evidence"]),
        *(("differs", path) for path in described["paths"]),
        ("waits for", described["waitsFor"]),
        ("owner", described["owner"] or "none"),
        *((_ASKED[each["what"]], _request(each)) for each in described.get("asked", ()) if each["what"] in _ASKED),
        ("what to do", described["unblock"] or "nothing"),
    ]
    print_table(("KEY", described["key"]), rows)


def _request(event: Described) -> str:
    said = f"by {event['by']}" if event.get("by") else "by an unknown caller"
    return f"{said}: {words.sentence(event['why'])}" if event.get("why") else said


def _facts(described: Described, source: Source, now: float) -> Iterator[tuple[str, str]]:
    yield "hash", described["keyHash"]
    yield "phase", described["phase"]
    yield "generation", str(described["generation"])
    spec = (described["job"] or {}).get("spec", {})
    if spec.get("operation"):
        yield "for", f"{spec['operation']} of {spec['resource']}, revision {spec.get('revision', '1')}"
    if described["phase"] not in _ENDED and not described["held"]:
        yield (
            "owner",
            described["owner"] or f"none{': send the job again to continue it' if source.local else ''}",
        )
    yield "opened", words.when(_seconds(described["createdAt"]))
    if described["finalizedAt"]:
        yield "finalized", words.when(_seconds(described["finalizedAt"]))
        yield "expires", f"{words.when(_seconds(described['expiresAt']))} ({_expires(described, source, now)})"
    if described["held"]:
        yield "held", f"{described['held']}: {described['note']}"
    elif described["note"]:
        yield "note", words.sentence(described["note"])


def _expires(described: Described, source: Source, now: float) -> str:
    expires = _seconds(described["expiresAt"])
    if expires is None:
        return "never" if described["phase"] in _ENDED else "never (not finished)"
    if expires > now:
        return f"in {words.span(expires - now)}"
    return "over: `sparkonce keys purge` removes it" if source.local else "over"


def _seconds(time: str | float | None) -> float | None:
    """Unix seconds."""
    return dt.datetime.fromisoformat(time).timestamp() if isinstance(time, str) else time
