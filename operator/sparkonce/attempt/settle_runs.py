"""Decides about settle runs: pods with the job's volumes that settle an attempt whose outputs the operator cannot reach. Pure.

`next_settle_run` is a decision table like `decide`, used once `settling` is in the record. The record counts a settle run before it is
created, so that a new owner knows its number and does not create it again under another; the number is part of the application's name,
which can be taken only once. A settle run that ends without a report is lost. After three in a row the key is held: the state of the
outputs is unknown, and a sealed transaction may be half committed.

Any number of settle runs, of any attempt and however late, is harmless. Each only bars tokens up to its own attempt's (which is settled,
or being settled, and never commits again) and only rolls forward what was sealed before `settling` barred the seal. It holds no token, so
it cannot commit anything else, and a slot never changes. Reports may be late or repeated for the same reason: "all committed" holds for
the generation whichever run reports it; any other verdict counts only for the attempt that it names.

A driver reports its last commit (`COMMITTED`), which makes a settle run unnecessary: a commit is final, so "all committed" is evidence
from any driver. A driver's silence, or a negative report, is not.

`settle_run_reported` and `driver_reported` depend on reports alone, so that every owner concludes the same. An inconsistent report is
ignored. Source: docs/design.md, section 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from sparkonce.attempt.decide import HALF_MADE, BeginSettleRun, Believe, Decision, Send, Wait
from sparkonce.launch.protocol import ENDED, ApplicationState, Phase
from sparkonce.model.record import COMMITTED, Record, Report, Verdict
from sparkonce.sink.protocol import SinkKey, Slot, SlotState, StreamPart
from sparkonce.sink.transaction import Settlement

LOST_RUNS = 3
"""Lost settle runs in a row after which the key is held for a person."""
LIMIT = 600.0
"""Seconds that a settle run may run; it reads a few objects and writes as many."""
REPORTER = "settle-"
"""Prefix of the reporters whose negative verdicts are evidence; the channel that authenticates reports enforces it."""

_READ_FROM_OUTPUTS = frozenset({Verdict.ALL, Verdict.SOME, Verdict.NONE, Verdict.STUCK, Verdict.KEY_CONFLICT})
_TO_START = frozenset({Phase.ACCEPTED, Phase.STARTING, Phase.HELD})


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What is known of an attempt's settle runs. Times in seconds, measured by this process: they restart after a takeover."""

    reported: Settlement | None
    """The verdict that settle runs reported."""
    driver: Settlement | None = None
    """The verdict that drivers of the generation reported about their own commits."""
    seen: ApplicationState | None
    """The application of the settle run that was counted last; None: it does not exist."""
    age: float = 0.0
    """Seconds since this process first observed it."""
    lost_for: float = 0.0
    """Seconds since this process first observed that it is lost."""
    half_made_for: float = 0.0
    """Seconds since this process first observed that its submission failed half-way."""
    start_timeout: float = 1800.0
    """Seconds for which it may wait for its driver."""
    pause: float = 30.0
    """Seconds between a lost settle run and the next."""
    why: str = ""
    """One sentence: why the owner does not settle by itself."""


def next_settle_run(record: Record, runs: Runs, now: float) -> Decision:
    """Returns the owner's next action for an attempt whose `settling` is written and whose outputs it does not reach. `now`: the store's
    clock."""
    number, of = record.settle_runs, f"of attempt {record.attempt}"
    if runs.reported is not None:
        said = f"{runs.reported.verdict} {runs.reported.note}".rstrip()
        return Decision(Believe(runs.reported), "a settle run has reported", f"settle run {of}: {said}")
    if runs.driver is not None:
        return Decision(
            Believe(runs.driver), "the driver has reported", f"driver of generation {record.generation}: all committed"
        )
    if number == 0:
        return Decision(BeginSettleRun(1), "a settle run is due", runs.why)
    if runs.seen is None:
        return Decision(Send(number), "counted and not sent", f"settle run {number} {of} has no application yet")
    lost = lost_because(record, runs)
    if not lost:
        said = f"settle run {number} {of} is {runs.seen.phase}" + (
            f": {runs.seen.message}" if runs.seen.message else ""
        )
        return Decision(Wait(now + max(0.0, _left(runs))), "a settle run is under way", said)
    if number % LOST_RUNS == 0:
        half = "; a sealed transaction may be half committed" if record.intent is not None else ""
        said = f"{LOST_RUNS} settle runs {of} were lost, the last because {lost}{half}"
        return Decision(Believe(Settlement(Verdict.CANNOT_SETTLE, {}, said)), "the settle runs were lost", said)
    if runs.lost_for < runs.pause:
        until = now + runs.pause - runs.lost_for
        return Decision(Wait(until), "the next settle run waits", f"settle run {number} {of} was lost: {lost}")
    return Decision(BeginSettleRun(number + 1), "a settle run is due", f"settle run {number} {of} was lost: {lost}")


def lost_because(record: Record, runs: Runs) -> str:
    """Why a settle run can no longer report a verdict; empty while it may."""
    seen = runs.seen
    if seen is None:
        return ""
    if seen.nonce != record.nonce:
        return f"the name {seen.name} is taken by an application that is not ours"
    if seen.phase in ENDED:
        code = "" if seen.exit_code is None else f" with exit code {seen.exit_code}"
        said = seen.log_tail.strip() or seen.message
        return f"it ended{code} and reported nothing" + (f" ({said})" if said else "")
    if seen.half_made is not None and runs.half_made_for > HALF_MADE:
        return f"it has had no driver for {runs.half_made_for:.0f} s after a submission that failed half-way"
    if _left(runs) < 0:
        return f"it is {seen.phase} and has reported nothing for {runs.age:.0f} s"
    return ""


def _left(runs: Runs) -> float:
    """Seconds until the settle run counts as lost, if nothing changes."""
    assert runs.seen is not None  # callers return early without an application
    starting = runs.seen.phase in _TO_START
    left = runs.start_timeout + (0.0 if starting else LIMIT) - runs.age
    return left if runs.seen.half_made is None else min(left, HALF_MADE - runs.half_made_for)


def settle_run_reported(
    record: Record, outputs: Sequence[str], reports: Sequence[Report], *, end: bool
) -> Settlement | None:
    """The verdict that settle runs reported on the record's attempt, or finally on its generation; None: no usable report yet.

    end: the generation is to end here on request; then an earlier verdict that left a stream open does not count, and the attempt is
    settled once more. Contradicting reports give CannotSettle, which holds the key for a person."""
    reported = [(report, found) for report in reports if (found := _verdict(record, outputs, report)) is not None]
    known = [found for _, found in reported if found.verdict is Verdict.ALL]
    if not known:
        own = [(report, found) for report, found in reported if report.attempt == record.attempt]
        ending = [found for report, found in own if report.body.get("end") is True]
        known = ending if end and ending else [found for _, found in own if not (end and _open(found))]
    if any((found.verdict, found.slots) != (known[0].verdict, known[0].slots) for found in known[1:]):
        return Settlement(Verdict.CANNOT_SETTLE, {}, f"settle runs of attempt {record.attempt} contradict each other")
    return known[0] if known else None


def driver_reported(record: Record, outputs: Sequence[str], reports: Sequence[Report]) -> Settlement | None:
    """The settlement ALL, if a driver of the generation reported that every output is committed; None: no driver did, or their reports
    contradict each other (then a settle run decides)."""
    said: list[Settlement] = []
    for each in reports:
        if each.kind != COMMITTED or each.reporter.startswith(REPORTER) or each.attempt > record.attempt:
            continue
        slots = _slots(record, outputs, each.body.get("slots"))
        if slots is not None and _consistent(record, outputs, found := Settlement(Verdict.ALL, slots)):
            said.append(found)
    return said[0] if said and all(found.slots == said[0].slots for found in said) else None


def _open(settlement: Settlement) -> bool:
    """Whether some stream has batches and no end."""
    marks = [slot.stream for slot in settlement.slots.values() if slot is not None and slot.stream is not None]
    return any(mark.part is not StreamPart.END for mark in marks)


def _verdict(record: Record, outputs: Sequence[str], report: Report) -> Settlement | None:
    """The settlement in a report; None: not a settle run's verdict on this attempt or an earlier one, or inconsistent."""
    if report.kind != "verdict" or not report.reporter.startswith(REPORTER) or report.attempt > record.attempt:
        return None
    body = report.body
    note, slots = body.get("note", ""), _slots(record, outputs, body.get("slots"))
    if body.get("verdict") not in _READ_FROM_OUTPUTS or slots is None or not isinstance(note, str):
        return None
    verdict = Verdict(body["verdict"])
    settlement = Settlement(verdict, slots, note)
    return (
        settlement
        if verdict in (Verdict.STUCK, Verdict.KEY_CONFLICT) or _consistent(record, outputs, settlement)
        else None
    )


def _slots(record: Record, outputs: Sequence[str], given: object) -> dict[str, Slot | None] | None:
    """The slots in a report by output; None: it does not map exactly these outputs to their committed slots."""
    if not isinstance(given, Mapping):
        return None
    slots: dict[str, Slot | None] = {}
    for name, text in given.items():
        slot = _slot(record, name, text) if text is not None else None
        if name not in outputs or (text is not None and slot is None):
            return None
        slots[name] = slot
    return slots


def _slot(record: Record, output: str, text: object) -> Slot | None:
    """Parses a committed slot of this generation; None unless it dumps back to the same JSON."""
    try:
        slot = Slot.model_validate(text)
    except ValidationError:
        return None
    named = SinkKey.parse(slot.sink_key)
    key = SinkKey(key_hash=record.key_hash, output=output, generation=record.generation)
    here = named is not None and named.whole == key
    return slot if here and slot.state is SlotState.COMMITTED and slot.dump() == text else None


def _consistent(record: Record, outputs: Sequence[str], settlement: Settlement) -> bool:
    """Whether the verdict agrees with the slots."""
    committed = [slot for slot in settlement.slots.values() if slot is not None]
    if set(settlement.slots) != set(outputs) or any(slot.fingerprint != record.fingerprint for slot in committed):
        return False
    match settlement.verdict:
        case Verdict.ALL:
            return len(committed) == len(outputs) and not _open(settlement)
        case Verdict.NONE:
            return not committed
        case _:
            return bool(committed) and (len(committed) < len(outputs) or _open(settlement))
