"""Builds a generation's result from its evidence. Pure.

The outputs of a result come from committed slots, never from an exit code: a driver may exit 0 without a commit, and may be killed
after one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkonce.attempt.decide import ALL_COMMITTED, Finalize, Observation, never_ran
from sparkonce.launch.driver_log import LOG_TAIL
from sparkonce.model.record import (
    FENCED_EMPTY,
    NEVER_RAN,
    VALUES_LIMIT,
    Failure,
    Outcome,
    OutputResult,
    Record,
    Report,
    Result,
    Verdict,
    values_size,
)
from sparkonce.sink.protocol import Sink, Slot, slot_digest
from sparkonce.sink.slotlog import layout
from sparkonce.sink.transaction import Settlement


def output_result(sink: Sink, slot: Slot) -> OutputResult:
    """One output of a result. The slot of a stream is its end slot, which carries the totals of all batches."""
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
        skipped=slot.skipped,
    )


def _evidence(slots: Mapping[str, Slot | None]) -> str:
    tokens = sorted({slot.token for slot in slots.values() if slot is not None})
    streams = "".join(
        f"; {name}: {totals.batches} statement(s) of a native block"
        if totals.native
        else f"; {name}: {totals.batches} batches of a stream"
        + ("" if totals.last_batch is None else f", the last is {totals.last_batch}")
        for name, slot in slots.items()
        if slot is not None and (totals := slot.stream) is not None
    )
    streams += "".join(
        f"; {name}: {slot.branch.statements} statement(s) of a native block"
        for name, slot in slots.items()
        if slot is not None and slot.branch is not None
    )
    skipped = "".join(
        f"; {name}: skipped, nothing was written, because position {slot.skipped} of the series {slot.place.series} had been committed "
        f"when position {slot.place.position} came"
        for name, slot in slots.items()
        if slot is not None and slot.skipped is not None and slot.place is not None
    )
    return f"slots committed by attempt {', '.join(map(str, tokens))}{streams}{skipped}"


def values_of(reports: Sequence[Report]) -> dict[str, Any]:
    """The values that the job set by `job.result()`: of the last attempt that set any; later entries override earlier ones. A script can
    report with its driver's token; what `job.result()` refuses is left out, since the key could not end with it."""
    set_by = [r for r in reports if r.kind == "values" and isinstance(r.body.get("values"), dict)]
    last = max((r.attempt for r in set_by), default=0)
    values: dict[str, Any] = {}
    for report in sorted((r for r in set_by if r.attempt == last), key=_sequence):
        together = values | report.body["values"]
        if _recordable(together):
            values = together
    return values


def _sequence(report: Report) -> int:
    said = report.body.get("sequence", 0)
    return said if isinstance(said, int) else 0


def _recordable(values: Mapping[str, Any]) -> bool:
    try:
        return values_size(values) <= VALUES_LIMIT
    except ValueError:  # NaN, which no reader of the result could be sent
        return False


def succeeded(
    record: Record,
    end: Finalize,
    settlement: Settlement | None,
    *,
    sinks: Sequence[Sink],
    reports: Sequence[Report],
    now: float,
) -> Result:
    """The result of a generation that succeeded. `settlement`: None for an opaque or followed job. `now`: Unix seconds, store's clock."""
    slots = settlement.slots if settlement else {}
    outputs = tuple(output_result(s, slot) for s in sinks if (slot := slots.get(s.name)) is not None)
    evidence = end.note
    if outputs:
        evidence = _evidence(slots) + (
            end.note.removeprefix(ALL_COMMITTED) if end.note.startswith(ALL_COMMITTED) else ""
        )
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


def _of_nothing(record: Record, settlement: Settlement) -> str:
    """The evidence of a generation whose last attempt took no effect; empty where an earlier attempt may have taken one."""
    if settlement.slots:
        return FENCED_EMPTY
    return NEVER_RAN if never_ran(record) is not None else ""


def failed(
    record: Record,
    end: Finalize,
    observation: Observation,
    settlement: Settlement | None,
    now: float,
) -> Result:
    """The result of a generation that failed or was cancelled."""
    seen = observation.seen
    nothing = _of_nothing(record, settlement) if settlement is not None and settlement.verdict is Verdict.NONE else None
    kind = "NoEffect" if nothing is not None and end.why == "Completed" else str(end.why or "Unknown")
    message = end.note or kind
    if kind == "NoEffect":
        message = "the application completed and committed nothing; write its declared outputs with job.write()"
    tail = (seen.log_tail if seen else "").encode(errors="replace")[-LOG_TAIL:].decode(errors="ignore")
    return Result(
        outcome=end.outcome,
        generation=record.generation,
        attempts=record.attempt,
        evidence=nothing or end.note,
        started_at=record.created_at,
        finished_at=now,
        failure=Failure(class_=kind, message=message, log_tail=tail),
    )
