"""What a person does to a key: cancel, rerun, resolve, forget, purge, explain.

The same verbs and the same drive as a request: nothing here writes a record in another way, so that a command which dies half way leaves
what a dead owner leaves, and the next command goes on there. A person's word replaces evidence only where there is none (an opaque
job whose outcome nobody can tell); where outputs are declared they are asked first, and what they say wins.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from sparkonce import settings
from sparkonce.engine.decide import Finalize, Observation
from sparkonce.engine.drive import Ended, Job
from sparkonce.engine.elsewhere import as_recorded, by_an_operator
from sparkonce.engine.embedded import FOLLOW_POLL, Embedded, Ending
from sparkonce.engine.follow import next_of
from sparkonce.engine.policy import Policy
from sparkonce.engine.prepare import Prepared, describe, prepare
from sparkonce.engine.probing import check, probe
from sparkonce.engine.reach import out_of_reach, settles_as
from sparkonce.engine.request import Answer, answer
from sparkonce.engine.settler import Settler
from sparkonce.errors import InvalidInput, LaunchRefused, RecordUnreadable, StoreUnavailable
from sparkonce.launch.protocol import StillThere
from sparkonce.model.record import Event, HeldReason, Outcome, Record, State, StopWanted, Why
from sparkonce.model.result import Result, Verdict
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.transaction import Settlement, fenced, sink_key
from sparkonce.store.protocol import Claim, Gone, IdempotencyStore, Owned, Query, Updated, View

How = Literal["succeeded", "failed", "retry"]
INLINE = "local:///inline"
"""The main application file of a job that a block of code is (`sparkonce.job`): there is nothing that a command could run."""


@dataclass(frozen=True)
class Explanation:
    """Why a key stands where it stands."""

    row: str
    """Of the decision table that decides now."""
    evidence: str
    waits_for: str
    unblock: str
    owner: str | None
    observation: Observation | None


async def find(store: IdempotencyStore, text: str) -> Record:
    """The record of a key, or of a hash prefix. InvalidInput when there is none, or several; RecordUnreadable when it does not parse."""
    found: list[Record] = []
    unreadable: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await store.list(Query(after=after))
        found += [r for r in page.records if r.key == text or r.key_hash.startswith(text)]
        unreadable += [why for address, why in page.unreadable if address.key_hash.startswith(text)]
        after = page.after
    exact = [r for r in found if text in (r.key, r.key_hash)] or found
    if unreadable and not exact:
        raise RecordUnreadable(unreadable[0])
    if not exact:
        raise InvalidInput(f"no record of {text} is in {store.url}; `sparkonce keys list` shows what is")
    if len(exact) > 1:
        hashes = ", ".join(r.key_hash[:12] for r in exact[:4])
        raise InvalidInput(f"{text} names {len(exact)} records ({hashes}); name one by more of its hash")
    return exact[0]


async def cancel(embedded: Embedded, record: Record, *, by: str, reason: str) -> Ending:
    """Writes the wish and waits for the end; settles here when nobody owns the key. The end may be Succeeded, if that is the truth."""
    if record.state is State.HELD:
        return _said(record, "it is held, and held is not running", f"sparkonce keys resolve {record.key} --failed")
    wish = StopWanted(why=Why.CANCELLED, by=by, reason=reason)
    while True:
        view = await embedded.patiently(lambda: embedded.store.load(record.address))
        now = view.record
        if now is None or now.generation != record.generation:
            raise InvalidInput(
                f"generation {record.generation} of {record.key} is over; `sparkonce keys show {record.key}` says how"
            )
        if now.state is State.FINALIZED:
            result = await embedded.store.result(now.address, now.generation)
            return Ending(Answer.REPLAY, now, result, replayed=False, reason=_why(now, result))
        if now.state is State.HELD:
            return _said(now, now.note, f"sparkonce keys resolve {now.key} --succeeded | --failed | --retry")
        if now.stop_wanted is None:
            await embedded.patiently(lambda: embedded.store.request_stop(now, wish))  # noqa: B023 - awaited in this very turn
        elif view.claim is None and not embedded.remote:
            await _drive_unowned(embedded, now)
        else:
            embedded.on_look(now, None, None)
            await embedded.pause(FOLLOW_POLL)


async def _drive_unowned(embedded: Embedded, record: Record) -> Ended | None:
    async with embedded.lease() as lease:
        owned = await embedded.take_over(record, lease)
        return await embedded.drive(owned.record, owned.claim) if owned else None


async def stored(embedded: Embedded, record: Record) -> Prepared:
    """The job that the record stands for, as it was sent; its files are read anew."""
    spec = await embedded.store.spec(record.address, record.generation)
    if spec is None or spec.base is None:
        raise InvalidInput(f"the job of {record.key} is not stored here; give its file: sparkonce rerun JOB.yaml")
    job = IdempotentJob.of(spec.job)
    if job.spec.template.spec.get("mainApplicationFile") == INLINE:
        raise InvalidInput(
            f"{record.key} is a block of code (sparkonce.job), which no command can run; {again(record.key)}"
        )
    return prepare(job, base=spec.base)


def again(key: str) -> str:
    """How a block of code that has its result, or failed, is run anew."""
    return f"`sparkonce keys forget {key} --reason TEXT`, then run its cell or script again"


async def rerun(embedded: Embedded, prepared: Prepared, record: Record) -> Ending:
    """A new generation, deliberately. A repetition whose reply was lost recognises itself by its nonce."""
    await check(prepared.sinks)
    request = prepared.request(uuid.uuid4().hex)
    async with embedded.lease() as lease:
        reply = await embedded.patiently(lambda: embedded.store.reopen(record, request, lease=lease))
        if not isinstance(reply, Owned):
            return _not_reopened(await embedded.patiently(lambda: embedded.store.load(record.address)), record)
        ended = await embedded.drive(reply.record, reply.claim, application=prepared.application)
    if ended is not None and ended.record.state is not State.HELD:
        return Ending(Answer.REPLAY, ended.record, ended.result, reason=_why(ended.record, ended.result))
    return await embedded.submit(prepared)  # held, or somebody else's by now: as a request would see it


def _not_reopened(view: View, record: Record) -> Ending:
    now = view.record
    if now is None:
        raise InvalidInput(f"{record.key} was forgotten meanwhile; send the job again to run it anew")
    if now.state is State.HELD:
        return _said(now, now.note, f"sparkonce keys resolve {now.key} --succeeded | --failed | --retry")
    if now.state is State.FINALIZED:
        raise InvalidInput(
            f"{now.key} changed while it was to be rerun; look again with `sparkonce keys show {now.key}`"
        )
    said = f"generation {now.generation} of {now.key} is in progress, so no new one can be opened now"
    unblock = f"wait until it ends, or sparkonce cancel {now.key}"
    if view.claim is None:
        unblock = f"nobody owns it: send the job again to finish it, or sparkonce cancel {now.key}"
    return Ending(Answer.IN_PROGRESS, now, reason=said, unblock=unblock)


def _why(record: Record, result: Result | None) -> str:
    return result.failure.message if result is not None and result.failure is not None else record.note


def _said(record: Record, reason: str, unblock: str) -> Ending:
    return Ending(Answer.HELD, record, reason=reason, unblock=unblock)


async def resolve(embedded: Embedded, record: Record, how: How, *, by: str, reason: str) -> Ending:
    """A person decides a held key. InvalidInput when the outputs contradict: `--failed` is refused where something is committed."""
    if record.state is not State.HELD:
        raise InvalidInput(f"{record.key} is {record.state}, not held; there is nothing to resolve")
    async with embedded.lease() as lease:
        owned = await embedded.take_over(record, lease)
        if owned is None:
            raise InvalidInput(
                f"somebody else is resolving {record.key}; look again with `sparkonce keys show {record.key}`"
            )
        try:
            return await _resolve(embedded, owned.record, owned.claim, how, by=by, reason=reason)
        finally:
            with contextlib.suppress(StoreUnavailable):  # it goes with the lease
                await embedded.store.drop(owned.claim)


async def _resolve(embedded: Embedded, record: Record, claim: Claim, how: How, *, by: str, reason: str) -> Ending:
    engine = embedded.engine()
    word = f"{by} said {how}: {reason}"
    if record.bound is not None and (how == "retry" or record.held is HeldReason.STILL_THERE):
        followed = (
            record.changed(stop_wanted=None) if how == "retry" else record
        )  # never launched: it is not ours to repeat
        said = f"an operator looks at application {record.bound.application} once more"
        return await _freed(embedded, followed, claim, word, said)
    if embedded.remote and record.held is HeldReason.STILL_THERE:
        said = "an operator tries to stop it once more; nothing can be said of an attempt that still runs"
        return await _freed(embedded, record, claim, word, said)
    job = await engine.job(record)
    if embedded.remote and job.policy.declared and (beyond := out_of_reach(job.sinks, settles_as(settings.settle()))):
        if how != "retry":
            raise InvalidInput(
                f"{record.key} cannot be called {how} from here: {beyond}; say it where its outputs are, or have an operator look at them: "
                f"sparkonce keys resolve {record.key} --retry"
            )
        if record.held is not HeldReason.PARTIAL:
            return await _freed(embedded, record, claim, word, "an operator looks at its outputs once more")
        return await _retry(embedded, record, claim, word, Settlement(Verdict.SOME, {}))
    if record.bound is not None:  # held because nobody can tell, and there is nothing to stop
        observation, settlement = Observation(seen=None), Settlement(Verdict.UNKNOWN, {})
    else:
        observation = await engine.observe(record, job)
        settlement = await _settle(embedded, record, job, end=how == "succeeded")
    if settlement.verdict in (Verdict.ALL, Verdict.COMPLETED):
        end = Finalize(Outcome.SUCCEEDED, None, "every output is committed")
    elif settlement.verdict in (Verdict.STILL_THERE, Verdict.CANNOT_PLACE):
        raise InvalidInput(
            f"the attempt of {record.key} still runs and could not be stopped: {settlement.note}; end it first"
        )
    elif how == "retry":
        return await _retry(embedded, record, claim, word, settlement)
    elif how == "succeeded":
        if job.policy.declared:
            raise InvalidInput(f"{record.key} cannot be called succeeded: {settlement.note}{_remedy(settlement)}")
        end = Finalize(Outcome.SUCCEEDED, Why.RESOLVED, word)
    else:
        if committed := await _committed(embedded, record, job, settlement):
            raise InvalidInput(
                f"{record.key} cannot be called failed: {', '.join(committed)} is committed{_remedy(settlement)}"
            )
        end = Finalize(Outcome.FAILED, Why.RESOLVED, word)
    await embedded.patiently(
        lambda: engine.finalize(record, claim, job, end, observation=observation, settlement=settlement)
    )
    view = await embedded.patiently(lambda: embedded.store.load(record.address))
    if view.record is None or view.record.state is not State.FINALIZED:
        raise InvalidInput(
            f"{record.key} changed while it was being resolved; look again with `sparkonce keys show {record.key}`"
        )
    result = await embedded.store.result(record.address, record.generation)
    await engine.sweep(view.record)
    return Ending(Answer.REPLAY, view.record, result, reason=word)


def _hopeless(settlement: Settlement) -> bool:
    """Another attempt would end where this one did."""
    return settlement.verdict in (Verdict.KEY_CONFLICT, Verdict.STUCK)


def _remedy(settlement: Settlement) -> str:
    return "" if _hopeless(settlement) else "; --retry writes what is missing"


async def _freed(embedded: Embedded, record: Record, claim: Claim, word: str, said: str) -> Ending:
    freed = await by_an_operator(embedded, record, claim, word=word)
    return Ending(Answer.TAKE_OVER, freed, reason=said, unblock=f"sparkonce keys show {record.key}")


async def _committed(embedded: Embedded, record: Record, job: Job, settlement: Settlement) -> list[str]:
    """Outputs that hold an effect of this job. A settlement that ends early has not fenced the others: they are fenced here, since
    "failed" is for good."""
    slots = dict(settlement.slots)
    for sink in job.sinks if _hopeless(settlement) else ():
        key = sink_key(record.key_hash, record.generation, sink)
        slots[sink.name], _ = await fenced(sink, key, record.attempt, fingerprint=record.fingerprint, by=embedded.owner)
    return [name for name, slot in slots.items() if slot is not None and slot.fingerprint == record.fingerprint]


async def _settle(embedded: Embedded, record: Record, job: Job, *, end: bool) -> Settlement:
    """What outputs, or the attempt's end, say for good. `settling` was written before the key was held. `end`: see `settle`."""
    if record.settling is None or record.settling.attempt < record.attempt:
        raise InvalidInput(
            f"{record.key} is held and its attempt {record.attempt} was never settled; send the job again first"
        )
    if not job.policy.declared:
        launcher = embedded.engine().launcher
        try:
            stopped = await launcher.stop(embedded.engine().assignment(record, job), timeout=job.policy.stop_timeout)
        except LaunchRefused as refused:
            return Settlement(Verdict.CANNOT_PLACE, {}, str(refused))
        if isinstance(stopped, StillThere):
            return Settlement(Verdict.STILL_THERE, {}, stopped.message)
        return Settlement(Verdict.UNKNOWN, {})
    return await Settler(store=embedded.store, owner=embedded.owner).here(record, job, end=end)


async def _retry(embedded: Embedded, record: Record, claim: Claim, word: str, settlement: Settlement) -> Ending:
    if _hopeless(settlement):  # as it is now: what held it may have been cleared away
        raise InvalidInput(
            f"another attempt of {record.key} would be held again, for {settlement.verdict}; {settlement.note}"
        )
    changed = record.changed(
        state=State.IN_PROGRESS,
        held=None,
        note="",
        attempt=record.attempt + 1,
        nonce=uuid.uuid4().hex,
        application=None,
        phase=None,
        stop_wanted=None,
        settle_runs=0,
        uncounted=record.uncounted + 1,
        not_before=None,
        granted_at=await embedded.store.now(),
    )
    event = Event(what="Resolved", by=embedded.owner, why=word, generation=record.generation, attempt=changed.attempt)
    reply = await embedded.patiently(lambda: embedded.store.update(record, claim, changed, event=event))
    if not isinstance(reply, Updated):
        raise InvalidInput(
            f"{record.key} changed while it was being resolved; look again with `sparkonce keys show {record.key}`"
        )
    said = f"attempt {changed.attempt} is granted"
    unblock = "an operator runs it" if embedded.remote else "send the job again to run it"
    return Ending(Answer.TAKE_OVER, reply.record, reason=said, unblock=unblock)


async def forget(store: IdempotencyStore, record: Record, *, by: str, reason: str) -> int:
    """Removes a finalized record for good; its generation numbers stay used. Returns the floor."""
    reply = await store.forget(record, Event(what="Forgotten", by=by, why=reason, generation=record.generation))
    if not isinstance(reply, Gone):
        raise InvalidInput(
            f"{record.key} is {record.state} or has changed, and only a finalized key can be forgotten; look again"
        )
    return reply.floor


async def purge(store: IdempotencyStore, *, on_removed: Callable[[Record], None] = lambda _: None) -> list[Record]:
    """Removes every finalized record whose retention is over."""
    now = await store.now()
    removed: list[Record] = []
    after: str | None = ""
    while after is not None:
        page = await store.list(Query(states=(State.FINALIZED,), after=after))
        for record in page.records:
            due = record.expires_at is not None and record.expires_at <= now
            if due and isinstance(await store.purge(record, now=now), Gone):
                on_removed(record)
                removed.append(record)
        after = page.after
    return removed


async def explain(embedded: Embedded, record: Record) -> Explanation:
    """Which row decides, on what evidence, what it waits for, and what would unblock it. Writes nothing."""
    view: View = await embedded.store.load(record.address)
    now = view.record or record
    owner = view.claim.owner if view.claim else None
    spec = await embedded.store.spec(now.address, now.generation)
    job = describe(now, spec) if spec is not None else None
    if job is None or now.state is not State.IN_PROGRESS:
        result = await embedded.store.result(now.address, now.generation)
        outputs = await probe(now, result, job.sinks) if job and now.outcome is Outcome.SUCCEEDED else {}
        policy = job.policy if job else Policy(declared=False)
        said = answer(view, same=True, policy=policy, outputs=outputs, key=now.key)
        if now.outcome is Outcome.FAILED and (why := _why(now, result)):
            said = replace(said, evidence=f"{said.evidence}: {why}")
        waits = "a person" if now.state is State.HELD else "nothing"
        return Explanation(said.row, said.evidence, waits, said.unblock, owner, None)
    observation = as_recorded(now) if embedded.remote else await embedded.engine().observe(now, job)
    decision = next_of(now, observation, job.policy, await embedded.store.now())
    if owner is None:
        said = answer(view, same=True, policy=job.policy, key=now.key)
        evidence = f"{said.evidence}; next: {decision.row} ({decision.evidence})"
        return Explanation(said.row, evidence, "the next time the job is sent", said.unblock, None, observation)
    waits = "the attempt's end" if decision.row == "running" else f"the owner ({decision.row})"
    return Explanation(
        f"running elsewhere: {decision.row}", decision.evidence, waits, decision.unblock, owner, observation
    )
