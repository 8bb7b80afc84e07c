"""Commands on one key: cancel, rerun, resolve, forget, purge, explain.

They use the same store verbs and the same drive as a request and write records in no other way, so that a command which dies half-way
leaves what any dead owner leaves, and the next one resumes it. A person's decision replaces evidence only where none exists (an opaque
job with an unknown outcome); declared outputs are settled first, and their evidence wins.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sparkonce import settings
from sparkonce.attempt.decide import Finalize, Observation, Policy, held_remedy
from sparkonce.attempt.drive import DrivenJob, Ended, next_of
from sparkonce.attempt.probe import probe
from sparkonce.attempt.request import Answer, answer
from sparkonce.attempt.settle import Settler, Settles, out_of_reach, settles_as, within_reach
from sparkonce.commands.find import AmbiguousKey, begins_hash, candidates, contains_digests, few_digits
from sparkonce.commands.remote import as_recorded, by_an_operator
from sparkonce.errors import InvalidInput, LaunchRefused, RecordUnreadable, StoreUnavailable
from sparkonce.launch.protocol import StillThere
from sparkonce.local.prepare import Prepared, describe, prepare
from sparkonce.local.runner import INLINE, Ending, LocalRunner, again
from sparkonce.model.record import Address, Event, HeldReason, Outcome, Record, Result, State, StopWanted, Verdict, Why
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.transaction import Settlement, fenced, sink_key
from sparkonce.store.protocol import Claim, Gone, IdempotencyStore, Owned, Query, Updated, View

How = Literal["succeeded", "failed", "retry"]


@dataclass(frozen=True)
class Explanation:
    """Why a key is in its current state."""

    row: str
    """The row of the decision table that applies now."""
    evidence: str
    waits_for: str
    unblock: str
    owner: str | None
    observation: Observation | None
    asked: tuple[Event, ...] = ()
    """Who opened the generation, and who asked it to stop, as far as the history goes back."""


async def find(store: IdempotencyStore, text: str) -> Record:
    """Finds a record by its key, its hash, or at least 8 digits of the hash.

    Raises: InvalidInput: none, or several. RecordUnreadable: the record exists and does not parse."""
    if not text:
        raise InvalidInput("the key is empty; `sparkonce keys list` shows keys")
    found: list[Record] = []
    unreadable: list[tuple[Address, str]] = []
    after: str | None = ""
    while after is not None:
        page = await store.list(Query(after=after))
        found += [r for r in page.records if r.key == text or begins_hash(text, r.key_hash)]
        unreadable += page.unreadable
        after = page.after
    exact = [r for r in found if text in (r.key, r.key_hash)] or found
    for address, why in unreadable if not exact else ():
        if begins_hash(text, address.key_hash) or address.key_hash in candidates(text, address.realm):
            raise RecordUnreadable(why)
    if unreadable and not exact and contains_digests(text):
        raise RecordUnreadable(f"no readable record is {text}, and it may be an unreadable one: {unreadable[0][1]}")
    if not exact:
        digits = ", and a hash needs at least 8 of its digits" if few_digits(text) else ""
        raise InvalidInput(f"no record of {text} is in {store.url}{digits}; `sparkonce keys list` shows what is")
    if len(exact) > 1:
        raise AmbiguousKey(text, exact)
    return exact[0]


async def cancel(runner: LocalRunner, record: Record, *, by: str, reason: str) -> Ending:
    """Requests cancellation and waits for the end; in local mode it drives a key without an owner. The outcome may be Succeeded, if every
    output was committed first.

    Raises: InvalidInput: the generation is over. StoreUnavailable: the request may be written; the owner then carries it out."""
    if record.state is State.HELD:
        return _said(record, "it is held, not running", held_remedy(record.key, "--failed"))
    stop = StopWanted(why=Why.CANCELLED, by=by, reason=reason)
    while True:
        view = await runner.patiently(lambda: runner.store.load(record.address))
        now = view.record
        if now is None or now.generation != record.generation:
            raise InvalidInput(
                f"generation {record.generation} of {record.key} is over; `sparkonce keys show {record.key}` says how"
            )
        if now.state is State.FINALIZED:
            result = await runner.store.result(now.address, now.generation)
            return Ending(Answer.REPLAY, now, result, replayed=False, reason=_why(now, result))
        if now.state is State.HELD:
            return _said(now, now.note, held_remedy(now.key))
        if now.stop_wanted is None:
            await runner.patiently(lambda: runner.store.request_stop(now, stop))  # noqa: B023 - awaited in this very turn
        elif view.claim is None and not runner.remote:
            await _drive_unowned(runner, now)
        else:
            runner.on_observation(now, None, None)
            await runner.pause(runner.pace.pause(view))


async def _drive_unowned(runner: LocalRunner, record: Record) -> Ended | None:
    async with runner.lease() as lease:
        owned = await runner.take_over(record, lease)
        return await runner.drive(owned.record, owned.claim) if owned else None


async def stored(runner: LocalRunner, record: Record) -> Prepared:
    """Prepares the recorded job as it was sent; its files are read anew. Raises: InvalidInput: it cannot be run from here."""
    spec = await runner.store.spec(record.address, record.generation)
    if spec is None or spec.base is None:
        raise InvalidInput(f"the job of {record.key} is not stored here; give its file: sparkonce rerun JOB.yaml")
    job = IdempotentJob.of(spec.job)
    if job.spec.template.spec.get("mainApplicationFile") == INLINE:
        raise InvalidInput(
            f"{record.key} is a block of code (sparkonce.job), which no command can run; {again(record.key)}"
        )
    return prepare(job, base=spec.base)


async def rerun(runner: LocalRunner, prepared: Prepared, record: Record, *, by: str, reason: str) -> Ending:
    """Opens a new generation deliberately, and drives it. A repetition after a lost reply is recognised by its nonce. `by` and `reason`
    are written to the history in the same step."""
    await prepared.check()
    request = replace(prepared.request(uuid.uuid4().hex), person=by, reason=reason)
    async with runner.lease() as lease:
        reply = await runner.patiently(lambda: runner.store.reopen(record, request, lease=lease))
        if not isinstance(reply, Owned):
            return _not_reopened(await runner.patiently(lambda: runner.store.load(record.address)), record)
        ended = await runner.drive(reply.record, reply.claim, application=prepared.application)
    if ended is not None and ended.record.state is not State.HELD:
        return Ending(Answer.REPLAY, ended.record, ended.result, reason=_why(ended.record, ended.result))
    return await runner.submit(prepared, nonce=request.nonce)  # held, or taken over meanwhile: answer as for a request


def _not_reopened(view: View, record: Record) -> Ending:
    now = view.record
    if now is None:
        raise InvalidInput(f"{record.key} was forgotten meanwhile; send the job again to run it anew")
    if now.state is State.HELD:
        return _said(now, now.note, held_remedy(now.key))
    if now.state is State.FINALIZED:
        raise InvalidInput(
            f"{now.key} changed while it was to be rerun; look again with `sparkonce keys show {now.key}`"
        )
    said = f"generation {now.generation} of {now.key} is in progress, so no new one can be opened now"
    unblock = f"wait until it ends, or sparkonce cancel {now.key}"
    if view.claim is None:
        unblock = f"it has no owner: send the job of that generation again to finish it, or sparkonce cancel {now.key}"
    return Ending(Answer.IN_PROGRESS, now, reason=said, unblock=unblock)


def _why(record: Record, result: Result | None) -> str:
    return result.failure.message if result is not None and result.failure is not None else record.note


def _said(record: Record, reason: str, unblock: str) -> Ending:
    return Ending(Answer.HELD, record, reason=reason, unblock=unblock)


async def resolve(runner: LocalRunner, record: Record, how: How, *, by: str, reason: str) -> Ending:
    """Resolves a held key by a person's decision.

    Raises: InvalidInput: not held, or the outputs contradict the decision (`--failed` with something committed); the key stays held."""
    if record.state is not State.HELD:
        raise InvalidInput(f"{record.key} is {record.state}, not held; there is nothing to resolve")
    async with runner.lease() as lease:
        owned = await runner.take_over(record, lease)
        if owned is None:
            raise InvalidInput(
                f"another process is resolving {record.key}; look again with `sparkonce keys show {record.key}`"
            )
        try:
            return await _resolve(runner, owned.record, owned.claim, how, by=by, reason=reason)
        finally:
            with contextlib.suppress(StoreUnavailable):  # it goes with the lease
                await runner.store.drop(owned.claim)


async def _resolve(runner: LocalRunner, record: Record, claim: Claim, how: How, *, by: str, reason: str) -> Ending:
    engine = runner.engine()
    word = f"{by} said {how}: {reason}"
    if record.bound is not None and (how == "retry" or record.held is HeldReason.STILL_THERE):
        followed = (
            record.changed(stop_wanted=None) if how == "retry" else record
        )  # sparkonce did not launch it and cannot repeat it
        said = f"an operator reads application {record.bound.application} once more"
        return await _freed(runner, followed, claim, word, said)
    if runner.remote and record.held is HeldReason.STILL_THERE:
        said = "an operator tries to stop it once more; the outcome of an attempt that still runs is unknown"
        return await _freed(runner, record, claim, word, said)
    job = await engine.job(record)
    if runner.remote and job.policy.declared and (beyond := out_of_reach(job.sinks, _settles(runner))):
        if how != "retry":
            raise InvalidInput(
                f"{record.key} cannot be resolved as {how} from here: {beyond}; do it where its outputs are, or let an operator read them: "
                f"{held_remedy(record.key, '--retry')}"
            )
        if record.held is not HeldReason.PARTIAL:
            return await _freed(runner, record, claim, word, "an operator reads its outputs once more")
        return await _retry(runner, record, claim, word, Settlement(Verdict.SOME, {}))
    if record.bound is not None:  # held as Unknown: nothing to stop, nothing to read
        observation, settlement = Observation(seen=None), Settlement(Verdict.UNKNOWN, {})
    else:
        observation = await engine.observe(record, job)
        settlement = await _settle(runner, record, job, end=how == "succeeded")
    if settlement.verdict in (Verdict.ALL, Verdict.COMPLETED):
        end = Finalize(Outcome.SUCCEEDED, None, "every output is committed")
    elif settlement.verdict in (Verdict.STILL_THERE, Verdict.CANNOT_PLACE):
        raise InvalidInput(
            f"the attempt of {record.key} still runs and could not be stopped: {settlement.note}; end it first"
        )
    elif how == "retry":
        return await _retry(runner, record, claim, word, settlement)
    elif how == "succeeded":
        if job.policy.declared:
            raise InvalidInput(f"{record.key} cannot be resolved as succeeded: {settlement.note}{_remedy(settlement)}")
        end = Finalize(Outcome.SUCCEEDED, Why.RESOLVED, word)
    else:
        if committed := await _committed(runner, record, job, settlement):
            raise InvalidInput(
                f"{record.key} cannot be resolved as failed: {', '.join(committed)} is committed{_remedy(settlement)}"
            )
        end = Finalize(Outcome.FAILED, Why.RESOLVED, word)
    await runner.patiently(
        lambda: engine.finalize(record, claim, job, end, observation=observation, settlement=settlement)
    )
    view = await runner.patiently(lambda: runner.store.load(record.address))
    if view.record is None or view.record.state is not State.FINALIZED:
        raise InvalidInput(
            f"{record.key} changed while it was being resolved; look again with `sparkonce keys show {record.key}`"
        )
    result = await runner.store.result(record.address, record.generation)
    await engine.sweep(view.record)
    return Ending(Answer.REPLAY, view.record, result, reason=word)


def _settles(runner: LocalRunner) -> Settles:
    """Which outputs this process may settle at: all of them if attempts run on this machine."""
    if not runner.remote:
        return Settles.OPERATOR
    return runner.settles or settles_as(settings.settle())


def _hopeless(settlement: Settlement) -> bool:
    """Whether another attempt would be held for the same reason."""
    return settlement.verdict in (Verdict.KEY_CONFLICT, Verdict.STUCK)


def _remedy(settlement: Settlement) -> str:
    return "" if _hopeless(settlement) else "; --retry writes what is missing"


async def _freed(runner: LocalRunner, record: Record, claim: Claim, word: str, said: str) -> Ending:
    freed = await by_an_operator(runner, record, claim, word=word)
    return Ending(Answer.TAKE_OVER, freed, reason=said, unblock=f"sparkonce keys show {record.key}")


async def _committed(runner: LocalRunner, record: Record, job: DrivenJob, settlement: Settlement) -> list[str]:
    """Outputs with a commit of this job. A settlement that ended early has not fenced all outputs: they are fenced here, because Failed
    must stay true."""
    slots = dict(settlement.slots)
    for sink in job.sinks if _hopeless(settlement) else ():
        key = sink_key(record.key_hash, record.generation, sink)
        slots[sink.name], _ = await fenced(sink, key, record.attempt, fingerprint=record.fingerprint, by=runner.owner)
    return [name for name, slot in slots.items() if slot is not None and slot.fingerprint == record.fingerprint]


async def _settle(runner: LocalRunner, record: Record, job: DrivenJob, *, end: bool) -> Settlement:
    """Settles a held attempt: by its outputs or, for an opaque one, by stopping it. `end`: see `settle`.

    Raises: InvalidInput: the attempt's `settling` was never written, so that it could still commit."""
    if record.settling is None or record.settling.attempt < record.attempt:
        raise InvalidInput(
            f"{record.key} is held and its attempt {record.attempt} was never settled; send the job again first"
        )
    if not job.policy.declared:
        launcher = runner.engine().launcher
        try:
            stopped = await launcher.stop(runner.engine().assignment(record, job), timeout=job.policy.stop_timeout)
        except LaunchRefused as refused:
            return Settlement(Verdict.CANNOT_PLACE, {}, str(refused))
        if isinstance(stopped, StillThere):
            return Settlement(Verdict.STILL_THERE, {}, stopped.message)
        return Settlement(Verdict.UNKNOWN, {})
    return await Settler(store=runner.store, owner=runner.owner).here(record, job, end=end)


async def _retry(runner: LocalRunner, record: Record, claim: Claim, word: str, settlement: Settlement) -> Ending:
    if _hopeless(settlement):  # by the new settlement: the reason of the hold may have been removed since
        raise InvalidInput(
            f"another attempt of {record.key} would be held again, for {settlement.verdict}; {settlement.note}"
        )
    unblock = await _to_run(runner, record)
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
        granted_at=await runner.store.now(),
    )
    event = Event(what="Resolved", by=runner.owner, why=word, generation=record.generation, attempt=changed.attempt)
    reply = await runner.patiently(lambda: runner.store.update(record, claim, changed, event=event))
    if not isinstance(reply, Updated):
        raise InvalidInput(
            f"{record.key} changed while it was being resolved; look again with `sparkonce keys show {record.key}`"
        )
    said = f"attempt {changed.attempt} is granted"
    return Ending(Answer.TAKE_OVER, reply.record, reason=said, unblock=unblock)


async def _to_run(runner: LocalRunner, record: Record) -> str:
    """What runs an attempt once it is granted: only the job of this generation, and one whose script was changed since is another job."""
    same = "send the same job again to run it"
    if runner.remote:
        return "an operator runs it"
    spec = await runner.store.spec(record.address, record.generation)
    try:
        now = await stored(runner, record)
    except InvalidInput:  # a block of code, or files that cannot be read from here
        return same
    if spec is None or now.same(record):
        return same
    return (
        f"{', '.join(now.differing(record, spec))} changed since: send the job again with that as it was; to run the changed job instead, "
        f"first `sparkonce cancel {record.key}`, then `sparkonce rerun -f FILE`"
    )


async def forget(store: IdempotencyStore, record: Record, *, by: str, reason: str) -> int:
    """Removes a finalized record for good; its generation numbers are never reused. Returns the floor.

    Raises: InvalidInput: not finalized, or changed meanwhile; nothing was removed."""
    reply = await store.forget(record, Event(what="Forgotten", by=by, why=reason, generation=record.generation))
    if not isinstance(reply, Gone):
        raise InvalidInput(
            f"{record.key} is {record.state} or has changed, and only a finalized key can be forgotten; look again"
        )
    return reply.floor


async def purge(store: IdempotencyStore, *, on_removed: Callable[[Record], None] = lambda _: None) -> list[Record]:
    """Removes every finalized record whose retention has ended, and returns them."""
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


async def explain(runner: LocalRunner, record: Record) -> Explanation:
    """Explains which row applies, on what evidence, what the key waits for, what would unblock it, and who asked for what. Writes
    nothing."""
    why = await _explain(runner, record)
    events = await runner.store.events(record.address)
    return replace(why, asked=requests_of(events))


def requests_of(events: Sequence[Event]) -> tuple[Event, ...]:
    """The requests behind the newest generation of a history: who opened it, and who asked it to stop."""
    opened = [at for at, event in enumerate(events) if event.what in ("Reserved", "Reopened")]
    newest = events[opened[-1] :] if opened else ()
    return tuple(event for event in newest if event.what in ("Reserved", "Reopened", "StopWanted"))


async def _explain(runner: LocalRunner, record: Record) -> Explanation:
    view: View = await runner.store.load(record.address)
    now = view.record or record
    owner = view.claim.owner if view.claim else None
    spec = await runner.store.spec(now.address, now.generation)
    job = describe(now, spec) if spec is not None else None
    if job is None or now.state is not State.IN_PROGRESS:
        result = await runner.store.result(now.address, now.generation)
        sinks = job.sinks if job and now.outcome is Outcome.SUCCEEDED else ()
        outputs = await probe(now, result, sinks, reaches=lambda sink: within_reach(sink, _settles(runner)))
        policy = job.policy if job else Policy(declared=False)
        said = answer(view, same=True, policy=policy, outputs=outputs, key=now.key)
        if now.outcome is Outcome.FAILED and (why := _why(now, result)):
            said = replace(said, evidence=f"{said.evidence}: {why}")
        waits = "a person" if now.state is State.HELD else "nothing"
        return Explanation(said.row, said.evidence, waits, said.unblock, owner, None)
    observation = as_recorded(now) if runner.remote else await runner.engine().observe(now, job)
    decision = next_of(now, observation, job.policy, await runner.store.now())
    if owner is None:
        said = answer(view, same=True, policy=job.policy, key=now.key)
        evidence = f"{said.evidence}; next: {decision.row} ({decision.evidence})"
        return Explanation(said.row, evidence, "the next time the job is sent", said.unblock, None, observation)
    waits = "the attempt's end" if decision.row == "running" else f"the owner ({decision.row})"
    return Explanation(
        f"running elsewhere: {decision.row}", decision.evidence, waits, decision.unblock, owner, observation
    )
