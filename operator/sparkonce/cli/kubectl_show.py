"""What the gateway says of keys, as `sparkonce keys` shows it: the same tables and sentences, made from its JSON. Pure but for printing.

Two columns are not there because the gateway does not look: outputs in the list, and whether an output is still found (`explain` looks).
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from sparkonce.cli import show, words
from sparkonce.cli.tables import print_table

Told = Mapping[str, Any]
_COMMAND = re.compile(
    r"(?<!kubectl )\bsparkonce (?:keys )?(?=(?:list|show|history|explain|rerun|cancel|resolve|forget)\b)"
)


def seconds(text: str | None) -> float | None:
    """Unix seconds of what the gateway writes."""
    return dt.datetime.fromisoformat(text).timestamp() if text else None


def print_keys(told: Told, *, namespace: str) -> None:
    keys, unreadable = told["keys"], told["unreadable"]
    if not keys and not unreadable:
        typer.echo(f"no keys in namespace {namespace}")
        return
    now = time.time()
    rows = [
        (
            each["key"],
            each["keyHash"][:12],
            str(each["generation"]),
            each["phase"],
            words.span(now - (seconds(each["createdAt"]) or now)),
            _expires(each, now),
        )
        for each in keys
    ]
    rows += [
        ("cannot be read", each["keyHash"][:12], "", "", "", words.sentence(each["reason"])) for each in unreadable
    ]
    print_table(("KEY", "HASH", "GENERATION", "PHASE", "AGE", "EXPIRES"), rows, styles=(None, "dim"))
    if told["after"]:
        typer.echo(f"there are more than {len(keys)}; `--limit` shows them", err=True)


def _expires(told: Told, now: float) -> str:
    expires = seconds(told["expiresAt"])
    if expires is None:
        return "never" if told["finalizedAt"] else "never (not finished)"
    return f"in {words.span(expires - now)}" if expires > now else "over"


def print_key(told: Told) -> None:
    print_table(("KEY", told["key"]), _facts(told, time.time()))
    result = told["result"] or {}
    if outputs := result.get("outputs"):
        typer.echo()
        rows = [(each["name"], words.rows(each["rows"]), words.size(each["bytes"]), each["uri"]) for each in outputs]
        print_table(("OUTPUT", "ROWS", "SIZE", "PLACE"), rows)
    if values := result.get("values"):
        typer.echo()
        print_table(("VALUE", ""), [(name, show.as_json(value)) for name, value in values.items()])
    typer.echo()
    attempts = [
        (str(each["attempt"]), words.when(seconds(each["began"])), each["ended"] or "-") for each in told["attempts"]
    ]
    print_table(("ATTEMPT", "GRANTED", "ENDED"), attempts)
    if lines := list(failure_lines(result)):
        typer.echo("\n" + "\n".join(lines))


def failure_lines(result: Told) -> Iterator[str]:
    """Why it failed, and the end of its driver's log where it was kept."""
    failure = result.get("failure")
    if failure is None:
        return
    yield f"{failure['class']}: {words.sentence(failure['message'])}"
    if failure["logTail"].strip():
        yield "the last lines of its log:"
        yield from (f"  {line}" for line in failure["logTail"].strip().splitlines()[-show.LOG_LINES :])


def _facts(told: Told, now: float) -> Iterator[tuple[str, str]]:
    yield "hash", told["keyHash"]
    yield "phase", told["phase"]
    yield "generation", str(told["generation"])
    asked = (told["job"] or {}).get("spec", {})
    if asked.get("operation"):
        yield "for", f"{asked['operation']} of {asked['resource']}, revision {asked.get('revision', '1')}"
    if not told["finalizedAt"] and not told["held"]:
        yield "owner", told["owner"] or "nobody"
    yield "opened", words.when(seconds(told["createdAt"]))
    if told["finalizedAt"]:
        yield "finalized", words.when(seconds(told["finalizedAt"]))
        yield "expires", f"{words.when(seconds(told['expiresAt']))} ({_expires(told, now)})"
    if told["held"]:
        yield "held", f"{told['held']}: {told['note']}"
    elif told["note"]:
        yield "note", words.sentence(told["note"])


def print_history(told: Told) -> None:
    rows = [
        (
            words.when_exactly(seconds(each["at"]) or 0.0),
            str(each["generation"]),
            str(each.get("attempt") or "-"),
            each["what"],
            each.get("by", ""),
            words.sentence(each.get("why", "")),
        )
        for each in told["events"]
    ]
    print_table(("AT", "GENERATION", "ATTEMPT", "WHAT", "BY", "WHY"), rows)


def print_explained(told: Told) -> None:
    rows = [
        ("row", told["row"]),
        ("evidence", told["evidence"]),
        *(("differs", path) for path in told["paths"]),
        ("waits for", told["waitsFor"]),
        ("owner", told["owner"] or "nobody"),
        ("what to do", for_kubectl(told["unblock"]) or "nothing"),
    ]
    print_table(("KEY", told["key"]), rows)


def for_kubectl(text: str | None) -> str:
    """The ledger's commands as this plugin has them."""
    return _COMMAND.sub("kubectl sparkonce ", text or "")
