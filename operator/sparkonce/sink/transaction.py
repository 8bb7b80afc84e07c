"""Transactions over several outputs: commit a sealed intent, roll it forward after a crash, settle an attempt.

A transaction's slots are *sealed* in the record before the first of them is created; from then on they are final, and a roll-forward
creates exactly these bytes. Inside a transaction no driver closes a slot: a process with the same token may have sealed. Only `settle`
closes, and only after `settling` in the record has barred every later seal of the attempt.

A transaction is eventually atomic, not isolated: between two commits a reader sees one output without the other.
Source: docs/design.md, section 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkonce import failpoints
from sparkonce.errors import InvalidInput
from sparkonce.model.record import Intent, Verdict
from sparkonce.sink import stream
from sparkonce.sink.protocol import CommitOutcome, Conflicting, FencedOff, Sink, SinkKey, Slot, StreamMark, Stuck
from sparkonce.sink.sealed import OutputRule, sealed_slots


@dataclass(frozen=True)
class Settlement:
    """The final effect of an attempt. `slots`: the committed slot of each output, or None if it can never have one; empty where no output
    was asked, because the job declares none or the attempt provably never ran."""

    verdict: Verdict
    slots: Mapping[str, Slot | None]
    note: str = ""


def sink_key(key_hash: str, generation: int, sink: Sink) -> SinkKey:
    return SinkKey(key_hash=key_hash, output=sink.name, generation=generation)


def intent_of(token: int, slots: Mapping[str, Slot]) -> Intent:
    """The intent to seal: whole slots, so that a roll-forward writes the same bytes."""
    return Intent(token=token, slots={name: slot.dump() for name, slot in slots.items()})


async def commit_all(
    sinks: Mapping[str, Sink], key_hash: str, generation: int, slots: Mapping[str, Slot]
) -> dict[str, CommitOutcome]:
    """Commits the slots of a sealed intent in order; stops at the first that cannot be committed. Any process may repeat it.

    Raises:
        SparkonceError: as for `Sink.commit`.
    """
    decisions: dict[str, CommitOutcome] = {}
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
    """Decides finally whether this attempt, or an earlier one of the generation, took effect.

    Must be called after `settling` is in the record: only then is the intent final. An intent that must not have been sealed
    (`sink.sealed`) is STUCK, and no output is touched.
    end: the generation is to end here (a cancellation). A stream with committed batches then ends after the last of them and is complete;
    otherwise a stream without its end is committed in part, and the next attempt continues it.

    Raises:
        SparkonceError: as the sinks raise. Nothing is decided then; any process may repeat the call.
    """
    named = {sink.name: sink for sink in sinks}
    found: dict[str, Slot | None] = {}
    if intent is not None:
        try:
            sealed = sealed_slots(
                intent,
                key_hash=key_hash,
                generation=generation,
                fingerprint=fingerprint,
                outputs={sink.name: OutputRule(sink.kind, sink.mode) for sink in sinks},
            )
        except InvalidInput as invalid:
            return Settlement(Verdict.STUCK, found, f"{invalid}; nothing of it was committed here")
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
    blocks = {
        name: stream.mark(slot) for name in partly if (slot := found[name]) and slot.stream and slot.stream.native
    }
    if streams := sorted(partly - blocks.keys()):
        notes.append(f"a stream without its end: {', '.join(streams)}")
    notes += [f"output {name}: {_done(blocks[name])}" for name in sorted(blocks)]
    return Settlement(Verdict.SOME if committed else Verdict.NONE, found, "; ".join(notes))


def _done(block: StreamMark) -> str:
    """What is in the table of a native block that has not ended. The next attempt goes on after it."""
    last = f"the last one is {block.statement}" if block.statement else "the last one has no name"
    return (
        f"{block.batches} statement(s) of a native block are in the table and stay there ({last}), and the block has not ended; "
        "another attempt of the same script skips these and goes on after them; to run another script, undo them, declare "
        "onRerun: Append and run `sparkonce rerun -f FILE`"
    )


async def fenced(
    sink: Sink, key: SinkKey, attempt: int, *, fingerprint: str, by: str, end: bool = False
) -> tuple[Slot | None, bool]:
    """Bars this attempt and all before it. Returns the effect on one output, and False if that is a stream that has not ended.

    A stream that was opened and has no batch has no effect. Another job's slot is returned unchanged.

    Raises:
        SparkonceError: as for `Sink.fence`.
    """
    slot = await sink.fence(key, attempt + 1, fingerprint=fingerprint, by=by)
    if slot is None or slot.stream is None or slot.fingerprint != fingerprint:
        return slot, True
    newest, ended = await stream.settled(sink, key, slot, attempt, fingerprint=fingerprint, by=by, end=end)
    return newest, ended or newest is None
