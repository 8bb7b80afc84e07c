"""Several outputs as one: commit after a seal, roll forward after a crash, and settle for good.

A transaction's slots are *sealed* in the record before the first of them is created; from then on they are final, and whoever comes
next creates exactly these bytes. In a transaction no driver ever closes a slot: a twin of the attempt may have sealed. Only `settle`
closes, and only after `settling` in the record has barred every later seal of the attempt.

It gives all or nothing in the end, not isolation: between two slots a reader sees one output without the other.
Source: DESIGN section 8; the model's rules abort_spares_tx, fence_after_roll_forward, seal_checks_settling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkonce import failpoints
from sparkonce.model.record import Intent
from sparkonce.model.result import Verdict
from sparkonce.sink import stream
from sparkonce.sink.protocol import Conflicting, Decision, FencedOff, Sink, SinkKey, Slot, Stuck


@dataclass(frozen=True)
class Settlement:
    """What is final now. `slots` has the committed slot of each output, or None where nothing can come any more."""

    verdict: Verdict
    slots: Mapping[str, Slot | None]
    note: str = ""


def sink_key(key_hash: str, generation: int, sink: Sink) -> SinkKey:
    return SinkKey(key_hash=key_hash, output=sink.name, generation=generation)


def intent_of(token: int, slots: Mapping[str, Slot]) -> Intent:
    """What is sealed: whole slots, so that a roll-forward writes the same bytes."""
    return Intent(token=token, slots={name: slot.dump() for name, slot in slots.items()})


async def commit_all(
    sinks: Mapping[str, Sink], key_hash: str, generation: int, slots: Mapping[str, Slot]
) -> dict[str, Decision]:
    """Commits slot after slot of a sealed intent, in its order; stops at the first that cannot be. Safe to repeat by anyone."""
    decisions: dict[str, Decision] = {}
    for name, slot in slots.items():
        if decisions:
            failpoints.hit("driver.tx.between")
        decisions[name] = await sinks[name].commit(sink_key(key_hash, generation, sinks[name]), slot)
        if isinstance(decisions[name], FencedOff | Conflicting | Stuck):
            break
    return decisions


async def settle(
    sinks: Sequence[Sink],
    *,
    key_hash: str,
    generation: int,
    attempt: int,
    fingerprint: str,
    intent: Intent | None,
    by: str,
    end: bool = False,
) -> Settlement:
    """Decides for good whether this attempt, or an earlier one of the generation, took effect.

    end: somebody wants the generation to end here (a cancel). A stream that has committed batches then ends after the last of them and is
    complete; otherwise one without its end is committed in part, and the next attempt goes on with it.
    Must be called after `settling` is in the record (the intent is final then). Raises what the sinks raise; then nothing is decided, and
    the same call may be made again, by anyone."""
    named = {sink.name: sink for sink in sinks}
    found: dict[str, Slot | None] = {}
    if intent is not None:
        sealed = {name: Slot.model_validate(slot) for name, slot in intent.slots.items()}
        for name, decision in (await commit_all(named, key_hash, generation, sealed)).items():
            if isinstance(decision, Stuck):
                return Settlement(Verdict.STUCK, found, f"output {name}: {decision.why}")
            if isinstance(decision, FencedOff):
                return Settlement(
                    Verdict.STUCK, found, f"output {name}: the sealed slot {decision.slot.token} is closed"
                )
            if isinstance(decision, Conflicting):
                return Settlement(
                    Verdict.KEY_CONFLICT, found, f"output {name} holds a commit of this key for another job"
                )
            found[name] = decision.slot
    failpoints.hit("engine.settle.rolled")
    partly: set[str] = set()
    for sink in sinks:
        if sink.name not in found:
            key = sink_key(key_hash, generation, sink)
            slot, complete = await fenced(sink, key, attempt, fingerprint=fingerprint, by=by, end=end)
            found[sink.name] = slot
            if not complete:
                partly.add(sink.name)
    failpoints.hit("engine.settle.fenced")
    committed = {name: slot for name, slot in found.items() if slot is not None}
    for name, slot in committed.items():
        if slot.fingerprint != fingerprint:
            return Settlement(Verdict.KEY_CONFLICT, found, f"output {name} holds a commit of this key for another job")
    missing = set(found) - set(committed)
    if not missing and not partly:
        return Settlement(Verdict.ALL, found)
    notes = [f"not committed: {', '.join(sorted(missing))}"] if missing else []
    notes += [f"a stream without its end: {', '.join(sorted(partly))}"] if partly else []
    return Settlement(Verdict.SOME if committed else Verdict.NONE, found, "; ".join(notes))


async def fenced(
    sink: Sink, key: SinkKey, attempt: int, *, fingerprint: str, by: str, end: bool = False
) -> tuple[Slot | None, bool]:
    """The effect on one output once this attempt, and all before it, are barred; and False where it is a stream that has not ended.

    A stream that was opened and has no batch has no effect. Another job's slot is returned as it stands. Errors as `Sink.fence`."""
    slot = await sink.fence(key, attempt + 1, fingerprint=fingerprint, by=by)
    if slot is None or slot.stream is None or slot.fingerprint != fingerprint:
        return slot, True
    newest, ended = await stream.settled(sink, key, slot, attempt, fingerprint=fingerprint, by=by, end=end)
    return newest, ended or newest is None
