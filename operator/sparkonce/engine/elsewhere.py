"""What a person does to a key whose attempts run on a cluster: the words are written here, and an operator carries them out.

The command line reaches the ledger and, as a rule, nothing else: no API server, no pods. So it never drives a key of a cluster. It writes
what the person decided, by the same verbs and compares as any owner, gives the claim up in the same moment, and every operator is told
by its watch that the key has no owner or has ended. What stands in the record is enough for that: whoever held a key had settled its
attempt before, and stopped it, unless it says StillThere or CannotSettle. Then a person's word about its outcome comes too early, and
what can be asked for is another try. The same holds for outputs that this machine does not see: an operator looks at them.

A client of the API server in the command line was not taken: who may decide about a key need not be somebody who may delete pods.
"""

from __future__ import annotations

import uuid

from sparkonce.engine.decide import Observation
from sparkonce.engine.embedded import Embedded
from sparkonce.errors import InvalidInput, LaunchUnavailable
from sparkonce.launch.protocol import Phase, Seen, Stopped
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Application, Event, Opener, Record, SpecBody, State
from sparkonce.store.protocol import Claim, Lost, Owned, Refused, Request, Updated


class Elsewhere:
    """A launcher for commands: it starts nothing, sees nothing, and takes a settled attempt for stopped, as the record does."""

    kind = "elsewhere"

    async def launch(self, assignment: Assignment) -> Seen:
        raise LaunchUnavailable(f"attempts of {assignment.key} are started by operators, not by this command")

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> Seen | None:
        del assignment, noted
        return None

    async def stop(self, assignment: Assignment, *, timeout: float) -> Stopped:
        del assignment, timeout
        return Stopped(None)


def as_recorded(record: Record) -> Observation:
    """What the owner of the key noted last, for an explanation."""
    noted = record.application
    if noted is None and record.bound is not None:  # nobody has looked yet
        seen = Seen(name=record.bound.application, uid=record.bound.uid, nonce="", phase=Phase.ACCEPTED)
        return Observation(seen=seen)
    if noted is None:
        return Observation(seen=None)
    phase = Phase(record.phase) if record.phase in set(Phase) else Phase.STARTING
    seen = Seen(name=noted.name, uid=noted.uid, nonce=record.nonce, phase=phase, driver=noted.driver)
    return Observation(seen=seen)


async def rerun(embedded: Embedded, record: Record) -> Record:
    """The next generation of the job as it was recorded; whoever wanted the last one wants this one. InvalidInput: not now."""
    spec = await embedded.store.spec(record.address, record.generation)
    if spec is None:
        raise InvalidInput(f"the job of {record.key} is not stored; apply its object again")
    request = _request(record, spec)
    async with embedded.lease() as lease:
        reply = await embedded.patiently(lambda: embedded.store.reopen(record, request, lease=lease))
        if isinstance(reply, Owned):
            await embedded.patiently(lambda: embedded.store.drop(reply.claim))
            return reply.record
    now = reply.record if isinstance(reply, Lost | Refused) else None
    if now is None:
        raise InvalidInput(f"{record.key} was forgotten meanwhile; apply its object again to run it anew")
    unblock = f"sparkonce keys show {now.key}"
    if now.state is State.HELD:
        unblock = f"sparkonce keys resolve {now.key} --succeeded | --failed | --retry"
    elif now.state is State.IN_PROGRESS:
        unblock = f"wait until it ends, or sparkonce cancel {now.key}"
    raise InvalidInput(
        f"generation {now.generation} of {now.key} is {now.state}, so no new one is opened now; {unblock}"
    )


def _request(record: Record, spec: SpecBody) -> Request:
    """Exactly what is recorded, by the record's version of the fingerprint: its digests were made by that one."""
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


async def by_an_operator(embedded: Embedded, record: Record, claim: Claim, *, word: str) -> Record:
    """The operator goes on where the attempt was held, and concludes from what it sees then: it tries once more to stop it (StillThere),
    or to settle it, with three more settle runs where it needs them."""
    changed = record.changed(state=State.IN_PROGRESS, held=None, note="", settle_runs=_next_run(record))
    event = Event(what="Resolved", by=embedded.owner, why=word, generation=record.generation, attempt=record.attempt)
    reply = await embedded.patiently(lambda: embedded.store.update(record, claim, changed, event=event))
    if not isinstance(reply, Updated):
        raise InvalidInput(
            f"{record.key} changed while it was being resolved; look again with `sparkonce keys show {record.key}`"
        )
    return reply.record


def _next_run(record: Record) -> int:
    """The names of those before are taken."""
    return record.settle_runs + 1 if record.settle_runs else 0
