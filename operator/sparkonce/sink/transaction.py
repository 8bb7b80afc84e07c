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
) -> Settlement:
    """Decides for good whether this attempt, or an earlier one of the generation, took effect.

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
    for sink in sinks:
        if sink.name not in found:
            key = sink_key(key_hash, generation, sink)
            found[sink.name] = await sink.fence(key, attempt + 1, fingerprint=fingerprint, by=by)
    failpoints.hit("engine.settle.fenced")
    committed = {name: slot for name, slot in found.items() if slot is not None}
    for name, slot in committed.items():
        if slot.fingerprint != fingerprint:
            return Settlement(Verdict.KEY_CONFLICT, found, f"output {name} holds a commit of this key for another job")
    if len(committed) == len(found):
        return Settlement(Verdict.ALL, found)
    missing = ", ".join(sorted(set(found) - set(committed)))
    return Settlement(Verdict.SOME if committed else Verdict.NONE, found, f"not committed: {missing}")
