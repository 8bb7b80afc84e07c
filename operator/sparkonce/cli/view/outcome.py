"""The outcome of a request: one JSON object for programs, sentences for a person. Pure.

The first line names the outcome; a replay says that it is one, and its date. What the user can do next is always the last line. Both forms
are made from the same `Ending`; this module reads nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkonce.attempt.request import Answer
from sparkonce.cli.exits import ExitCode, code_of
from sparkonce.cli.view import words
from sparkonce.commands import describe
from sparkonce.commands.describe import phase_of
from sparkonce.local.runner import NOWHERE, Ending
from sparkonce.model.identity import Key
from sparkonce.model.record import Outcome, Record, Result, State, application_name
from sparkonce.sink.protocol import LATE_INSTEAD, Evidence, Found

LOG_LINES = 25
"""Lines shown of a failed attempt's log; the path of the whole log is printed with them."""


def logs_of(record: Record, attempts: Path, attempt: int | None = None) -> Path:
    """The folder with stdout and stderr of an attempt; default: the current one."""
    return attempts / application_name(record.address, record.generation, attempt or record.attempt)


# as JSON


def blank(reason: str, code: ExitCode) -> dict[str, Any]:
    """A request without an answer: the same fields, empty."""
    fields = ("key", "keyHash", "generation", "attempt", "phase", "replayed")
    return {
        **dict.fromkeys(fields),
        "evidence": None,
        "result": None,
        "reason": reason,
        "unblock": None,
        "paths": [],
        "logs": None,
        "store": None,
        "exitCode": int(code),
    }


def ending_object(
    ending: Ending, *, key: Key | None, store: str, attempts: Path, code: ExitCode | None = None
) -> dict[str, Any]:
    """What `--json` prints."""
    record = ending.record
    code = code_of(ending) if code is None else code
    told = describe.ending_object(ending, key=key.text if key else None, key_hash=key.key_hash if key else None)
    logs = str(logs_of(record, attempts)) if record and attempts != NOWHERE else None
    return {**told, "logs": logs, "store": store, "exitCode": int(code)}


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# as sentences


def ending_lines(ending: Ending, *, attempts: Path) -> Iterator[str]:
    match ending.answer:
        case _ if ending.detached:
            yield f"detached: {_detached(ending)}"
        case Answer.REPLAY:
            yield from _finalized(ending, attempts)
        case Answer.MISMATCH:
            yield f"mismatch: {_key(ending)} is for another job: {generation_line(ending.record, ending.result)}"
            yield from (f"  differs: {path}" for path in ending.paths or ("the digests of its fields are not stored",))
            yield f"  what to do: {ending.unblock}"
        case _:
            yield f"{_NAMES.get(ending.answer, 'in progress')}: {_key(ending)}: {ending.reason}"
            if (
                ending.answer is Answer.HELD
                and ending.record is not None
                and (folder := logs_of(ending.record, attempts)).exists()
            ):
                yield f"  stdout and stderr of attempt {ending.record.attempt}: {folder}"
            if ending.unblock:
                yield f"  what to do: {ending.unblock}"


_NAMES = {Answer.HELD: "held", Answer.RESULT_GONE: "result gone", Answer.TAKE_OVER: "granted"}


def _detached(ending: Ending) -> str:
    if ending.answer is Answer.FOLLOW:
        return f"{_key(ending)} continues: {ending.reason}; sending the job again waits for it again"
    return f"{_key(ending)} was not started ({ending.reason}); sending the job again is safe"


def _key(ending: Ending) -> str:
    return ending.record.key if ending.record else "the key"


def _finalized(ending: Ending, attempts: Path) -> Iterator[str]:
    record, result = ending.record, ending.result
    if record is None:
        return
    if ending.replayed and not ending.driven:
        yield f"replayed: {generation_line(record, result)}"
    else:
        said = f"{str(record.outcome).lower()}: {record.key}, generation {record.generation}, attempt {record.attempt}"
        yield ", ".join([said, *_rows(result)])
    if record.outcome is Outcome.SUCCEEDED:
        yield from _success(ending, result)
    else:
        yield from _failure(record, result, attempts)


def _rows(result: Result | None) -> list[str]:
    return [
        f"{output.name} skipped" if output.skipped is not None else f"{words.rows(output.rows)} in {output.name}"
        for output in (result.outputs if result else ())
    ]


def generation_line(record: Record | None, result: Result | None) -> str:
    """`generation 1 succeeded 2026-11-21 14:03, 26 483 rows in flights`."""
    if record is None:
        return "nothing is recorded"
    if record.state is not State.FINALIZED:
        return f"generation {record.generation} is {phase_of(record)}"
    said = f"generation {record.generation} {str(record.outcome).lower()} {words.when(record.finalized_at)}"
    return ", ".join([said, *_rows(result)])


def _success(ending: Ending, result: Result | None) -> Iterator[str]:
    if result is None:
        return
    for output in result.outputs:
        found = _found(ending.evidence.get(output.name, Evidence.PRESENT))
        if output.skipped is None:
            yield f"  {output.name}: {output.uri}, {words.size(output.bytes)}{found}"
        else:
            yield f"  {output.name}: {output.uri}, nothing written: position {output.skipped} of its series had been committed{found}"
    if result.values:
        yield "  values: " + ", ".join(f"{name}={as_json(value)}" for name, value in result.values.items())
    if any(output.skipped is not None for output in result.outputs):
        yield f"  to write the rows nevertheless: {LATE_INSTEAD}"
    elif any(found.verdict in (Evidence.CHANGED, Evidence.SUPERSEDED) for found in ending.evidence.values()):
        yield f"  to write the rows anew: {ending.unblock}"


def _found(found: Found) -> str:
    """What a probe found of an output, where it is more than that it is there."""
    match found.verdict:
        case Evidence.CHANGED | Evidence.SUPERSEDED:
            return f" ({found.verdict}: {found.why})"
        case Evidence.NOT_CHECKED:
            return f" (not checked: {found.why})" if found.why else " (not reachable now, so not checked)"
        case _:
            return ""


def _failure(record: Record, result: Result | None, attempts: Path) -> Iterator[str]:
    failure = result.failure if result else None
    if failure is not None:
        tried = f" (attempt {record.attempt})" if record.attempt > 1 else ""
        yield f"  {failure.class_}: {words.sentence(failure.message)}{tried}"
    if result is not None and result.evidence not in ("", failure.message if failure else ""):
        yield f"  evidence: {result.evidence}"
    if (folder := logs_of(record, attempts)).exists():
        yield f"  stdout and stderr of attempt {record.attempt}: {folder}"
    if failure is not None and failure.log_tail.strip() and record.outcome is Outcome.FAILED:
        yield "  from its log:"
        yield from (f"    {line}" for line in failure.log_tail.strip("\n").splitlines()[-LOG_LINES:])
    again = (
        "send the job again, it opens the next generation"
        if record.outcome is Outcome.CANCELLED
        else f"sparkonce rerun {record.key}"
    )
    yield f"  to run it again: {again}"
