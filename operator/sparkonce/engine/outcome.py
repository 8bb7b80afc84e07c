"""Builds the result of a generation from its evidence. Pure: what was committed is read from slots, never from an exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkonce.engine.decide import Finalize, Observation
from sparkonce.model.record import Outcome, Record, Report
from sparkonce.model.result import Failure, OutputResult, Result, Verdict
from sparkonce.sink import layout
from sparkonce.sink.protocol import Sink, Slot, slot_digest
from sparkonce.sink.transaction import Settlement

LOG_TAIL = 1024
"""Bytes of the driver's log that a failure keeps: results are replayed to every duplicate."""


def output_result(sink: Sink, slot: Slot) -> OutputResult:
    """Of a stream, whose slot is its end: all its batches together."""
    totals = slot.stream
    return OutputResult(
        name=sink.name,
        kind=sink.kind,
        uri=sink.uri,
        commit=f"{slot.sink_key}/{slot.token}",
        rows=totals.rows if totals else slot.rows,
        bytes=totals.bytes if totals else slot.bytes,
        files=totals.files if totals else slot.file_count,
        digest=slot_digest(layout.encode(slot)),
    )


def _evidence(slots: Mapping[str, Slot | None]) -> str:
    tokens = sorted({slot.token for slot in slots.values() if slot is not None})
    streams = "".join(
        f"; {name}: {told.batches} batches of a stream"
        + ("" if told.last_batch is None else f", the last is {told.last_batch}")
        for name, slot in slots.items()
        if slot is not None and (told := slot.stream) is not None
    )
    return f"slots committed by attempt {', '.join(map(str, tokens))}{streams}"


def values_of(reports: Sequence[Report]) -> dict[str, Any]:
    """What the job set by `job.result()`: later entries of an attempt win, and only the last attempt that set any counts."""
    set_by = [r for r in reports if r.kind == "values"]
    last = max((r.attempt for r in set_by), default=0)
    values: dict[str, Any] = {}
    for report in sorted((r for r in set_by if r.attempt == last), key=lambda r: r.body.get("sequence", 0)):
        values.update(report.body.get("values", {}))
    return values


def succeeded(
    record: Record,
    end: Finalize,
    settlement: Settlement | None,
    *,
    sinks: Sequence[Sink],
    reports: Sequence[Report],
    now: float,
) -> Result:
    slots = settlement.slots if settlement else {}
    outputs = tuple(output_result(s, slot) for s in sinks if (slot := slots.get(s.name)) is not None)
    evidence = _evidence(slots) if outputs else end.note
    return Result(
        outcome=Outcome.SUCCEEDED,
        generation=record.generation,
        attempts=record.attempt,
        outputs=outputs,
        values=values_of(reports),
        evidence=evidence,
        started_at=record.created_at,
        finished_at=now,
    )


def failed(
    record: Record, end: Finalize, observation: Observation, settlement: Settlement | None, now: float
) -> Result:
    seen = observation.seen
    no_effect = settlement is not None and settlement.verdict is Verdict.NONE
    kind = "NoEffect" if no_effect and end.why == "Completed" else str(end.why or "Unknown")
    message = end.note or kind
    if kind == "NoEffect":
        message = "the application completed and committed nothing; write its declared outputs with job.write()"
    tail = (seen.log_tail if seen else "").encode()[-LOG_TAIL:].decode(errors="ignore")
    return Result(
        outcome=end.outcome,
        generation=record.generation,
        attempts=record.attempt,
        evidence="every output is fenced and holds no commit" if no_effect else end.note,
        started_at=record.created_at,
        finished_at=now,
        failure=Failure(class_=kind, message=message, log_tail=tail),
    )
