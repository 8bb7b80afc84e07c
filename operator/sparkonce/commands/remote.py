"""Commands on keys whose attempts run on a cluster: write the person's decision to the ledger; an operator carries it out.

The command line usually reaches the ledger and nothing else: no API server, no pods. So it never drives a key of a cluster. It writes the
decision by the same verbs and compares as any owner and drops its claim at once; the operators' watches then report that the key has no
owner, or has ended. The record suffices for that: an attempt was settled and stopped before its key was held, unless the reason is
StillThere or CannotSettle. In those two cases, and for outputs that this machine cannot reach, a person cannot state the outcome yet and
can only request another try by an operator.

An API client in the command line was rejected: permission to decide about a key need not imply permission to delete pods.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from sparkonce.attempt.decide import LINGERING, Observation, held_remedy
from sparkonce.controller.objects import ObjectRef
from sparkonce.errors import InvalidInput, LaunchUnavailable
from sparkonce.launch.protocol import ApplicationState, Phase, Stopped
from sparkonce.local.runner import LocalRunner
from sparkonce.model.record import Application, Assignment, Event, Opener, Record, SpecBody, State, StopWanted, Why
from sparkonce.store.protocol import Changed, Claim, IdempotencyStore, Lost, NotFound, Owned, Refused, Request, Updated


class RemoteLauncher:
    """The launcher of commands: launches nothing, observes nothing, and reports a settled attempt as stopped, as the record does."""

    kind = "elsewhere"

    async def launch(self, assignment: Assignment) -> ApplicationState:
        raise LaunchUnavailable(f"attempts of {assignment.key} are started by operators, not by this command")

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> ApplicationState | None:
        del assignment, noted
        return None

    async def stop(
        self, assignment: Assignment, *, timeout: float, proof: bool = False, noted: Application | None = None
    ) -> Stopped:
        del assignment, timeout, proof, noted
        return Stopped(None)


def as_recorded(record: Record) -> Observation:
    """The last observation that the key's owner recorded, for `keys explain`."""
    noted = record.application
    if noted is None and record.bound is not None:  # not observed yet
        seen = ApplicationState(name=record.bound.application, uid=record.bound.uid, nonce="", phase=Phase.ACCEPTED)
        return Observation(seen=seen)
    if noted is None:
        return Observation(seen=None)
    phase = Phase(record.phase) if record.phase in set(Phase) else Phase.STARTING
    seen = ApplicationState(
        name=noted.name,
        uid=noted.uid,
        nonce=record.nonce,
        phase=phase,
        driver=noted.driver,
        waits=record.note,
        lingers=0.0 if record.note == LINGERING else None,
    )
    return Observation(seen=seen)


async def rerun(runner: LocalRunner, record: Record, *, by: str, reason: str) -> Record:
    """Opens the next generation of the recorded job, for the same objects, and leaves it to an operator. `by` and `reason` are written to
    the history in the same step.

    Raises: InvalidInput: no generation can be opened now; nothing was written. StoreUnavailable: it may be open."""
    spec = await runner.store.spec(record.address, record.generation)
    if spec is None:
        raise InvalidInput(f"the job of {record.key} is not stored; apply its object again")
    request = replace(_request(record, spec), person=by, reason=reason)
    async with runner.lease() as lease:
        reply = await runner.patiently(lambda: runner.store.reopen(record, request, lease=lease))
        if isinstance(reply, Owned):
            await runner.patiently(lambda: runner.store.drop(reply.claim))
            return reply.record
    now = reply.record if isinstance(reply, Lost | Refused) else None
    if now is None:
        raise InvalidInput(f"{record.key} was forgotten meanwhile; apply its object again to run it anew")
    unblock = f"sparkonce keys show {now.key}"
    if now.state is State.HELD:
        unblock = held_remedy(now.key)
    elif now.state is State.IN_PROGRESS:
        unblock = f"wait until it ends, or sparkonce cancel {now.key}"
    raise InvalidInput(
        f"generation {now.generation} of {now.key} is {now.state}, so no new one is opened now; {unblock}"
    )


def _request(record: Record, spec: SpecBody) -> Request:
    """Repeats what is recorded, under the record's fingerprint version, by which its digests were computed."""
    nonce = uuid.uuid4().hex
    return Request(
        address=record.address,
        key=record.key,
        by=Opener(nonce=nonce),
        nonce=nonce,
        fingerprints={record.fingerprint_version: record.fingerprint},
        spec=spec,
        operation=record.operation,
        resource=record.resource,
        job_revision=record.job_revision,
        objects=record.objects,
    )


async def by_an_operator(runner: LocalRunner, record: Record, claim: Claim, *, word: str) -> Record:
    """Releases a held key to an operator, which resumes where the attempt was held: it tries once more to stop it (StillThere), or to
    settle it, with three more settle runs if needed.

    Raises: InvalidInput: the record changed meanwhile; nothing was written."""
    changed = record.changed(state=State.IN_PROGRESS, held=None, note="", settle_runs=_next_run(record))
    event = Event(what="Resolved", by=runner.owner, why=word, generation=record.generation, attempt=record.attempt)
    reply = await runner.patiently(lambda: runner.store.update(record, claim, changed, event=event))
    if not isinstance(reply, Updated):
        raise InvalidInput(
            f"{record.key} changed while it was being resolved; look again with `sparkonce keys show {record.key}`"
        )
    return reply.record


def _next_run(record: Record) -> int:
    """The count of settle runs to go on from: the names of earlier ones are taken."""
    return record.settle_runs + 1 if record.settle_runs else 0


async def request_cancellation(store: IdempotencyStore, record: Record, *, by: str, reason: str) -> Record:
    """Requests cancellation without waiting for it. Returns the record with its request to stop (an earlier one is kept), or finalized.
    Idempotent: repeat it after a lost reply.

    Raises: InvalidInput: nothing to cancel; nothing was written."""
    stop = StopWanted(why=Why.CANCELLED, by=by, reason=reason)
    now = record
    while now.stop_wanted is None and now.state is not State.FINALIZED:
        if now.state is State.HELD:
            raise InvalidInput(f"{now.key} is held, not running; `{held_remedy(now.key, '--failed')}`")
        match await store.request_stop(now, stop):
            case NotFound():
                raise InvalidInput(f"generation {record.generation} of {record.key} is over; look at the key again")
            case Updated(current) | Changed(current):
                now = current
            case finalized:
                return finalized.record
        if now.generation != record.generation:
            raise InvalidInput(f"generation {record.generation} of {record.key} is over; look at the key again")
    return now


ENDS = frozenset({"Succeeded", "Failed", "Cancelled", "Mismatch", "Expired"})
"""Phases of an object that waits for nothing."""


async def check_reported(record: Record, live: Callable[[str, str], Awaitable[dict[str, Any] | None]]) -> None:
    """Checks that every object of a record shows its end, before the record is forgotten: afterwards no status could be written from it.
    `live` gets the object of this namespace and name from the API server.

    Raises: InvalidInput: an object does not show the end yet. And whatever `live` raises."""
    for ref in map(ObjectRef.parse, record.objects):
        found = await live(ref.namespace, ref.name)
        mine = found is not None and found["metadata"]["uid"] == ref.uid
        if mine and ((found or {}).get("status") or {}).get("phase") not in ENDS:
            raise InvalidInput(
                f"IdempotentJob {ref.namespace}/{ref.name} does not show the end of {record.key} yet; wait until it does, or delete it"
            )
