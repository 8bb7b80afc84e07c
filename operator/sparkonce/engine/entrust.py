"""What is done where the owner cannot reach the outputs: somebody who can is sent to settle, and what he reports is the verdict. Pure.

`entrust` is a table as `decide` is, asked after `settling` is in the record. A settle run is counted in the record before it is sent, so
that whoever takes over knows its number and sends no second one under another; the number is part of the application's name, which is
taken once. A run that ended without a report is lost. Three of them in a row, and a person must decide: nobody knows what stands in the
outputs, and of a sealed transaction it may be half.

Why any number of settle runs, of any attempt and however late, does no harm: each only bars tokens up to its own attempt's (which was
settled, or is being settled, and never commits again), and rolls forward only what was sealed before `settling` barred the seal. It has
no token, so it cannot commit anything else, and a slot never changes. So its report, too, may be late or come twice: "all committed"
stays true for the generation, whoever says it; anything less is believed of this very attempt alone.

A driver whose last output is committed says so (`COMMITTED`), and then nobody needs to be sent: a commit is final, so "all committed" is
evidence from any driver. Its silence, or its "no", is none.

`heard` and `driver_said` read reports and nothing else, so that every owner concludes the same from them. A report that does not add up
is none. Source: DESIGN section 8; the model's rules negative_from_settle_only, cannot_settle_holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from sparkonce.engine.decide import HALF_MADE, Believe, Count, Decision, Send, Wait
from sparkonce.launch.protocol import ENDED, Phase, Seen
from sparkonce.model.record import COMMITTED, Record, Report
from sparkonce.model.result import Verdict
from sparkonce.sink.protocol import SinkKey, Slot, SlotState, StreamPart
from sparkonce.sink.transaction import Settlement

LOST_RUNS = 3
"""In a row: a person looks at it."""
LIMIT = 600.0
"""Seconds that a settle run may run; it reads a few objects and writes as many."""
REPORTER = "settle-"
"""With it begins the name of every reporter whose "no" is evidence; whoever authenticates reports sees to it."""

_READ_FROM_OUTPUTS = frozenset({Verdict.ALL, Verdict.SOME, Verdict.NONE, Verdict.STUCK, Verdict.KEY_CONFLICT})
_TO_START = frozenset({Phase.ACCEPTED, Phase.STARTING, Phase.HELD})


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What is known of an attempt's settle runs. Times in seconds, by this process's own memory: they begin anew after a takeover."""

    heard: Settlement | None
    driver: Settlement | None = None
    """What drivers of the generation said of their own commits."""
    seen: Seen | None
    """The application of the one that was counted last; None: there is none."""
    age: float = 0.0
    """Since it was first seen here."""
    lost_for: float = 0.0
    """Since it was first seen here that it is lost."""
    half_made_for: float = 0.0
    """Since its submission was first seen here to have failed half-way."""
    start_timeout: float = 1800.0
    """For which it may wait for its driver."""
    pause: float = 30.0
    """Between a lost one and the next."""
    why: str = ""
    """One sentence: why the owner does not settle by itself."""


def entrust(record: Record, runs: Runs, now: float) -> Decision:
    """The next action of an owner that does not reach the outputs of an attempt whose `settling` is written. `now`: the store's clock."""
    number, of = record.settle_runs, f"of attempt {record.attempt}"
    if runs.heard is not None:
        said = f"{runs.heard.verdict} {runs.heard.note}".rstrip()
        return Decision(Believe(runs.heard), "a settle run has reported", f"settle run {of}: {said}")
    if runs.driver is not None:
        return Decision(
            Believe(runs.driver), "the driver has reported", f"driver of generation {record.generation}: all committed"
        )
    if number == 0:
        return Decision(Count(1), "a settle run is due", runs.why)
    if runs.seen is None:
        return Decision(Send(number), "counted and not sent", f"settle run {number} {of} has no application yet")
    lost = lost_because(record, runs)
    if not lost:
        said = f"settle run {number} {of} is {runs.seen.phase}" + (
            f": {runs.seen.message}" if runs.seen.message else ""
        )
        return Decision(Wait(now + max(0.0, _left(runs))), "a settle run is under way", said)
    if number % LOST_RUNS == 0:
        half = "; a sealed transaction may stand half done" if record.intent is not None else ""
        said = f"{LOST_RUNS} settle runs {of} were lost, the last because {lost}{half}"
        return Decision(Believe(Settlement(Verdict.CANNOT_SETTLE, {}, said)), "the settle runs were lost", said)
    if runs.lost_for < runs.pause:
        until = now + runs.pause - runs.lost_for
        return Decision(Wait(until), "the next settle run waits", f"settle run {number} {of} was lost: {lost}")
    return Decision(Count(number + 1), "a settle run is due", f"settle run {number} {of} was lost: {lost}")


def lost_because(record: Record, runs: Runs) -> str:
    """Why nothing is to be expected of the run that is seen; empty while something is."""
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
    """Seconds until it is lost, if nothing changes."""
    assert runs.seen is not None  # what is not seen is not lost
    starting = runs.seen.phase in _TO_START
    left = runs.start_timeout + (0.0 if starting else LIMIT) - runs.age
    return left if runs.seen.half_made is None else min(left, HALF_MADE - runs.half_made_for)


def heard(record: Record, outputs: Sequence[str], reports: Sequence[Report], *, end: bool) -> Settlement | None:
    """What settle runs have said of the record's attempt, or for good of its generation; None: nothing yet that would do.

    end: somebody wants the generation to end here; then a stream that was left open, because nobody wanted that yet, is to be settled
    once more. Reports that contradict each other are CannotSettle: a person looks at it."""
    said = [(each, told) for each in reports if (told := _told(record, outputs, each)) is not None]
    known = [told for _, told in said if told.verdict is Verdict.ALL]
    if not known:
        own = [(each, told) for each, told in said if each.attempt == record.attempt]
        asked = [told for each, told in own if each.body.get("end") is True]
        known = asked if end and asked else [told for _, told in own if not (end and _open(told))]
    if any((told.verdict, told.slots) != (known[0].verdict, known[0].slots) for told in known[1:]):
        return Settlement(Verdict.CANNOT_SETTLE, {}, f"settle runs of attempt {record.attempt} contradict each other")
    return known[0] if known else None


def driver_said(record: Record, outputs: Sequence[str], reports: Sequence[Report]) -> Settlement | None:
    """That every output is committed, as drivers of the generation saw it; None: none said so, or they contradict each other (then a
    settle run looks)."""
    said: list[Settlement] = []
    for each in reports:
        if each.kind != COMMITTED or each.reporter.startswith(REPORTER) or each.attempt > record.attempt:
            continue
        slots = _slots(record, outputs, each.body.get("slots"))
        if slots is not None and _adds_up(record, outputs, told := Settlement(Verdict.ALL, slots)):
            said.append(told)
    return said[0] if said and all(told.slots == said[0].slots for told in said) else None


def _open(told: Settlement) -> bool:
    """Of a stream it has batches and no end."""
    marks = [slot.stream for slot in told.slots.values() if slot is not None and slot.stream is not None]
    return any(mark.part is not StreamPart.END for mark in marks)


def _told(record: Record, outputs: Sequence[str], report: Report) -> Settlement | None:
    """None: it is no verdict of a settle run about this attempt or an earlier one, or it does not add up."""
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
        if verdict in (Verdict.STUCK, Verdict.KEY_CONFLICT) or _adds_up(record, outputs, settlement)
        else None
    )


def _slots(record: Record, outputs: Sequence[str], given: object) -> dict[str, Slot | None] | None:
    """None: they are not all committed slots of these outputs."""
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
    """A committed slot of this generation, exactly as it was written."""
    try:
        slot = Slot.model_validate(text)
    except ValidationError:
        return None
    key = str(SinkKey(key_hash=record.key_hash, output=output, generation=record.generation))
    here = slot.sink_key == key or slot.sink_key.startswith(f"{key}-b")
    return slot if here and slot.state is SlotState.COMMITTED and slot.dump() == text else None


def _adds_up(record: Record, outputs: Sequence[str], told: Settlement) -> bool:
    """Its verdict is what its slots say."""
    committed = [slot for slot in told.slots.values() if slot is not None]
    if set(told.slots) != set(outputs) or any(slot.fingerprint != record.fingerprint for slot in committed):
        return False
    match told.verdict:
        case Verdict.ALL:
            return len(committed) == len(outputs) and not _open(told)
        case Verdict.NONE:
            return not committed
        case _:
            return bool(committed) and (len(committed) < len(outputs) or _open(told))
