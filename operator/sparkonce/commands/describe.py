"""Describes a key as plain data, for the command line's `--json` and for the gateway. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.attempt.request import Answer
from sparkonce.local.runner import Ending
from sparkonce.model import masking
from sparkonce.model.record import Event, Record, Result, SpecBody, State
from sparkonce.sink.protocol import Found

if TYPE_CHECKING:
    from sparkonce.commands.operate import Explanation

_OPENS = ("Reserved", "Reopened", "Granted", "Resolved")


def phase_of(record: Record) -> str:
    """The record's phase, in the words of an IdempotentJob's status."""
    if record.state is State.FINALIZED:
        return str(record.outcome)
    if record.state is State.HELD:
        return "Held"
    if record.settling is not None and record.settling.attempt >= record.attempt:
        return "Recovering"
    if record.application is None:
        return "Pending" if record.attempt == 1 else "Recovering"
    return "Running"


def iso(seconds: float | None) -> str | None:
    """Unix seconds as `2026-11-21T13:03:07Z`, for programs."""
    if not seconds:
        return None
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def identity(record: Record) -> dict[str, Any]:
    """Key, hash, generation and phase of a record: the beginning of every answer about it."""
    return {
        "key": record.key,
        "keyHash": record.key_hash,
        "generation": record.generation,
        "attempt": record.attempt,
        "phase": phase_of(record),
    }


def times(record: Record) -> dict[str, Any]:
    return {
        "createdAt": iso(record.created_at),
        "finalizedAt": iso(record.finalized_at),
        "expiresAt": iso(record.expires_at),
    }


def result_object(result: Result, evidence: Mapping[str, Found] | None = None) -> dict[str, Any]:
    found = evidence or {}
    outputs = []
    for output in result.outputs:
        shown = {"name": output.name, "uri": output.uri, "rows": output.rows, "bytes": output.bytes}
        if output.skipped is not None:
            shown["skipped"] = output.skipped
        outputs.append({**shown, **found_object(found[output.name])} if output.name in found else shown)
    failure = result.failure
    return {
        "outcome": str(result.outcome),
        "outputs": outputs,
        "values": result.values,
        "attempts": result.attempts,
        "startedAt": iso(result.started_at),
        "finishedAt": iso(result.finished_at),
        "failure": {"class": failure.class_, "message": failure.message, "logTail": failure.log_tail}
        if failure
        else None,
    }


def found_object(found: Found) -> dict[str, Any]:
    """What a probe found, as fields of the output; without details only `found`."""
    changes = [{"commit": each.commit, "operation": each.operation, "key": each.key} for each in found.changes]
    said = {"foundWhy": found.why, "changedBy": changes}
    return {"found": str(found.verdict), **{name: value for name, value in said.items() if value}}


def attempts(record: Record, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Attempts of the current generation, as far as the history goes back: when each was granted, and why it ended."""
    told = []
    for attempt in range(1, record.attempt + 1):
        mine = [e for e in events if (e.generation, e.attempt) == (record.generation, attempt)]
        began = next((e.at for e in mine if e.what in _OPENS), None)
        ended = next((e.why for e in mine if e.what == "Settling"), None)
        told.append({"attempt": attempt, "began": began, "ended": ended})
    return told


def job_object(spec: SpecBody) -> dict[str, Any]:
    """The job as it was recorded, with secrets hidden."""
    return masking.masked(spec.job)


def history(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [{**event.dump(), "at": iso(event.at)} for event in events]


def explained(record: Record, why: Explanation) -> dict[str, Any]:
    return {
        **identity(record),
        "row": why.row,
        "evidence": " ".join(why.evidence.split()),
        "waitsFor": why.waits_for,
        "unblock": why.unblock,
        "owner": why.owner,
        "asked": history(why.asked),
        "paths": [],
    }


def phase_of_ending(ending: Ending) -> str | None:
    match ending.answer:
        case Answer.MISMATCH | Answer.RESULT_GONE:
            return str(ending.answer)
        case _:
            return phase_of(ending.record) if ending.record is not None else None


def ending_object(ending: Ending, *, key: str | None = None, key_hash: str | None = None) -> dict[str, Any]:
    """The outcome of a request as JSON values; `key` and `key_hash` are used if there is no record."""
    record, result = ending.record, ending.result
    return {
        "key": record.key if record else key,
        "keyHash": record.key_hash if record else key_hash,
        "generation": record.generation if record else None,
        "attempt": record.attempt if record else None,
        "phase": phase_of_ending(ending),
        # Of all requests for one run a single one gets false: null, where another one has no result.
        "replayed": None if ending.replayed and ending.answer is not Answer.REPLAY else ending.replayed,
        "evidence": result.evidence if result else None,
        "result": result_object(result, ending.evidence) if result else None,
        "reason": ending.reason or (record.note if record else ""),
        "unblock": ending.unblock,
        "paths": list(ending.paths),
    }
