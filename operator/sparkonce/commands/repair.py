"""Repairs one record that cannot be read: rebuilds it from what the ledger keeps beside it and lets its outputs decide, or removes it.

Each grant of a token adds an event in the step that writes the record, and a key keeps its newest events. So the newest event names the
newest generation and attempt, and a rebuilt record grants no token twice. Key and fingerprint are derived anew from the recorded job; the
key's hash, which the record's place gives, proves that the job belongs to it. A recorded result makes the record finalized. Without one the
attempt may have taken effect or not, and may still run: the record then says that its settling has begun, as if its owner had died there.
From that moment the attempt can seal nothing; the next owner reads the outputs, closes or commits, and continues. This module draws no
conclusion that a drive draws by itself.

What is lost: which attempts did not count against maxAttempts (all count), and which requests opened the generation, so that an object may
open one more after a failure.

A record is removed only where none can be rebuilt. Nothing can fence its attempt then, so the person who removes it must end it first.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sparkonce.attempt.decide import Policy
from sparkonce.commands.find import candidates, contains_digests
from sparkonce.errors import InvalidInput, RecordUnreadable, SparkonceError
from sparkonce.local.prepare import HEARTBEAT_TIMEOUT
from sparkonce.model import identity
from sparkonce.model.record import Address, Event, Outcome, Record, Result, Settling, SpecBody, State, StopWanted, Why
from sparkonce.model.spec import IdempotentJob
from sparkonce.store.protocol import IdempotencyStore, Query
from sparkonce.store.repair import Repairable

NOTE = "its record was repaired"


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A record that cannot be read, and the newest attempt that its history names."""

    address: Address
    text: str
    why: str
    """The store's error message."""
    generation: int
    attempt: int
    events: Sequence[Event]
    """Events of this generation, oldest first."""


async def damaged(store: IdempotencyStore, text: str) -> Damaged:
    """Finds the unreadable record that `text` names: a key, or digits of its hash.

    Raises: InvalidInput: none or several; nothing of it is known. RecordTooNew, RecordUnreadable: its history cannot be read either."""
    address = await _address(store, text)
    found = await cast(Repairable, store).unreadable(address)
    if found is None:
        raise InvalidInput(f"the record of {text} can be read, and needs no repair: `sparkonce keys show {text}`")
    events = await store.events(address)
    newest = max(((event.generation, event.attempt) for event in events), default=(0, 0))
    if newest < (1, 1):
        raise InvalidInput(
            f"the ledger keeps no history of {text}, so nothing can be rebuilt; restore it from a backup"
        )
    return Damaged(
        address=address,
        text=found,
        why=await _why(store, address),
        generation=newest[0],
        attempt=newest[1],
        events=[event for event in events if event.generation == newest[0]],
    )


async def _address(store: IdempotencyStore, text: str) -> Address:
    found: list[Address] = []
    unreadable = 0
    after: str | None = ""
    while after is not None:
        page = await store.list(Query(after=after))
        unreadable += len(page.unreadable)
        found += [
            address
            for address, _ in page.unreadable
            if address.key_hash.startswith(text) or address.key_hash in candidates(text, address.realm)
        ]
        after = page.after
    if len(found) == 1:
        return found[0]
    if found:
        named = ", ".join(address.key_hash[:12] for address in found[:4])
        raise InvalidInput(
            f"{text} names {len(found)} records that cannot be read ({named}); name one by more of its hash"
        )
    if unreadable and contains_digests(text):
        raise InvalidInput(
            f"{text} is not a text that gives a hash; name the record by its hash, which `sparkonce keys list` shows"
        )
    raise InvalidInput(
        f"no record of {text} in {store.url} is unreadable; `sparkonce keys list` names those that are, by their hashes"
    )


async def _why(store: IdempotencyStore, address: Address) -> str:
    try:
        await store.load(address)
    except RecordUnreadable as why:
        return str(why)
    return ""  # it was repaired just now: what is written compares the text


async def rebuilt(store: IdempotencyStore, found: Damaged) -> Record:
    """The record that stands for the damaged one. Writes nothing.

    Raises: InvalidInput: none can be rebuilt; says why. StoreUnavailable."""
    where = found.address, found.generation
    try:
        spec = await store.spec(*where)
        result = await store.result(*where)
        intent = await store.intent(*where)
        beats = await store.beats(*where)
    except RecordUnreadable as problem:
        raise InvalidInput(f"it cannot be rebuilt: {problem}") from None
    if spec is None:
        raise InvalidInput(f"it cannot be rebuilt: the job of generation {found.generation} is not recorded")
    job, key = _job(found.address, spec)
    secret = bytes.fromhex(spec.secret)
    version = identity.version_of_digests(spec.digests, job, secret=secret, contents=spec.contents)
    nonces = [beat.nonce for (attempt, _), beat in beats.items() if attempt == found.attempt]
    record = Record(
        realm=found.address.realm,
        key_hash=found.address.key_hash,
        key=key.text,
        operation=key.binding.operation,
        resource=key.binding.resource,
        job_revision=job.spec.effective_revision,
        generation=found.generation,
        attempt=found.attempt,
        nonce=nonces[0] if nonces else uuid.uuid4().hex,
        fingerprint=identity.fingerprint(job, contents=spec.contents, version=version).digest,
        fingerprint_version=version,
        intent=None if intent is None else intent.token,
        settling=Settling(attempt=found.attempt, why=Why.LOST, note=NOTE),
        stop_wanted=_stop(found.events),
        created_at=found.events[0].at,
        granted_at=next(event.at for event in found.events if event.attempt == found.attempt),
    )
    return record if result is None else _finalized(record, result, job, await store.now())


def _job(address: Address, spec: SpecBody) -> tuple[IdempotentJob, identity.Key]:
    main = next(iter(spec.contents.values()), "")
    try:
        job = IdempotentJob.of(spec.job)
        key = identity.derive(job.spec, address.realm, content_digests={"ApplicationFile": main})
    except (SparkonceError, ValueError) as problem:
        raise InvalidInput(f"it cannot be rebuilt: its recorded job is not a job any more ({problem})") from None
    if key.key_hash != address.key_hash:
        raise InvalidInput("it cannot be rebuilt: the recorded job does not say its key, or is another key's")
    if job.spec.bind is not None:
        raise InvalidInput(
            f"it cannot be rebuilt: it follows application {job.spec.bind.application}, and only the record knew which one"
        )
    return job, key


def _stop(events: Sequence[Event]) -> StopWanted | None:
    """The latest request to stop, unless a person's `--retry` withdrew it."""
    said = [event for event in events if event.what in ("StopWanted", "Resolved")]
    if not said or said[-1].what == "Resolved":
        return None
    return StopWanted(why=Why.CANCELLED, by=said[-1].by, reason=said[-1].why)


def _finalized(record: Record, result: Result, job: IdempotentJob, now: float) -> Record:
    policy = Policy.of(job.spec, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    kept = policy.retention_succeeded if result.outcome is Outcome.SUCCEEDED else policy.retention_failed
    return record.changed(
        state=State.FINALIZED,
        outcome=result.outcome,
        note=result.failure.message if result.failure else "",
        finalized_at=result.finished_at or now,
        expires_at=now + kept,
    )


async def decided(store: IdempotencyStore, found: Damaged, *, forget: bool) -> Record | None:
    """The record to write; None: it is to be removed, which `forget` allows where none can be rebuilt. Writes nothing.

    Raises: InvalidInput: the other way is open, and the message names it."""
    try:
        record = await rebuilt(store, found)
    except InvalidInput as problem:
        if forget:
            return None
        raise InvalidInput(
            f"{problem}; end the application of attempt {found.attempt} if it still runs, then remove what is left: "
            f"sparkonce keys repair {found.address.hash20} --forget --reason TEXT"
        ) from None
    if forget:
        raise InvalidInput(
            f"{record.key} can be rebuilt, and then its attempt is settled before anything else runs: leave out --forget"
        )
    return record


def describe(found: Damaged, record: Record | None, *, remote: bool) -> dict[str, object]:
    """What was done, as JSON values; `said`: a sentence for a person. `remote`: operators drive the key."""
    told: dict[str, object] = {"keyHash": found.address.key_hash, "generation": found.generation}
    if record is None:
        said = (
            f"removed: {found.address.hash20}; its job sent again runs as generation {found.generation + 1}, "
            "and its tables keep what they hold"
        )
        return {**told, "key": None, "state": None, "said": said}
    said = f"repaired: {record.key}, generation {record.generation}: "
    if record.outcome is not None:
        said += f"{record.outcome}, as its result says"
    elif remote:
        said += f"in progress; an operator settles attempt {record.attempt} by its outputs and continues"
    else:
        said += f"in progress; send the job again, or sparkonce cancel {record.key}: attempt {record.attempt} is settled first"
    return {**told, "key": record.key, "state": record.state.value, "said": said}


async def repair(store: IdempotencyStore, found: Damaged, record: Record | None, *, by: str, reason: str) -> None:
    """Writes the rebuilt record or, without one, removes what is left of the key.

    Raises: InvalidInput: the record changed meanwhile; nothing was written. StoreUnavailable: it may be written; repeat the command."""
    event = Event(what="Repaired" if record else "Forgotten", by=by, why=reason, generation=found.generation)
    if record is not None:
        event = event.model_copy(update={"attempt": record.attempt})
    store_ = cast(Repairable, store)
    done = await store_.repair(found.address, found.text, record=record, generation=found.generation, event=event)
    if not done:
        raise InvalidInput(
            f"the record {found.address.hash20} changed meanwhile; nothing was written, look again with `sparkonce keys list`"
        )
