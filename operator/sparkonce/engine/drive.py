"""Performs what `decide` says for one owned key, step by step, until the generation ends, is held, or is not ours any more.

Every write is one atomic verb of the store, made under the claim and the record's revision; any answer but "updated" means: look
again. Between two awaits this process may die, freeze for an hour, or be one of two that believe they own the key; nothing here relies
on that not happening. The order of an attempt's writes is DESIGN section 6: granted, created, noted, observed, settling, settled,
then finalized or granted again.

It decides nothing (see decide.py), reads no clock but the store's, and awaits only what was handed to it, so that a test can run it
step by step under any schedule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from sparkonce import failpoints
from sparkonce.engine import decide as rows
from sparkonce.engine.decide import Decision, Observation, conclude
from sparkonce.engine.follow import next_of
from sparkonce.engine.listening import listen, opaque_verdict, unstarted
from sparkonce.engine.outcome import failed, succeeded
from sparkonce.engine.policy import Policy
from sparkonce.engine.settler import Settler
from sparkonce.errors import LaunchRefused, LaunchUnavailable, SparkonceError, StoreUnavailable
from sparkonce.launch.protocol import ENDED, Follows, Launcher, Phase, Seen, StillThere
from sparkonce.model.assignment import Assignment, GatewayAddress
from sparkonce.model.record import Application, Beat, Event, Record, Settling, SpecBody, State, Why
from sparkonce.model.result import Result, Verdict
from sparkonce.sink.protocol import Sink
from sparkonce.sink.transaction import Settlement, sink_key
from sparkonce.store.protocol import Claim, Finalized, IdempotencyStore, Updated

POLL = 0.2
"""Seconds between two looks at a running attempt where nobody tells when something changes."""
LONGEST = 60.0
"""Seconds between two looks where somebody does: a wake-up that got lost costs no more."""
FOLLOWS = 5.0
"""Seconds between two looks at an application of somebody else: it has no label of ours, so that no watch tells of it."""
LISTENS = 10.0
"""Seconds between two looks at what a driver says of its progress."""


@dataclass(frozen=True)
class Job:
    """A generation's spec as the engine needs it; its policies and tunable fields may be edited while it runs."""

    spec: SpecBody
    policy: Policy
    sinks: Sequence[Sink]


@dataclass(frozen=True)
class Ended:
    """Finalized or held; `result` is None when held."""

    record: Record
    result: Result | None
    spec: SpecBody | None = None
    """As recorded, where this drive knows it."""


@dataclass(frozen=True)
class NotOurs:
    """The claim is gone, or the record is: somebody else goes on, or nobody needs to."""

    why: str


@dataclass(kw_only=True)
class Drive:
    """One drive of one key. `wait(seconds)` is awaited when there is nothing to do; it may return earlier."""

    store: IdempotencyStore
    launcher: Launcher
    describe: Callable[[Record, SpecBody], Job]
    wait: Callable[[float], Awaitable[bool | None]]
    """False: nothing in the record can have changed meanwhile; anything else: read it again."""
    new_nonce: Callable[[], str]
    install: str
    store_url: str
    owner: str
    on_decision: Callable[[Record, Decision, Observation], None] = lambda *_: None
    on_record: Callable[[Record], None] = lambda _: None
    """Each record that this drive wrote or read."""
    edition: Callable[[Record], object] = lambda _: None
    """Of what `describe` reads beside the record (the leader's object, as it is now): when it changes the job is described anew."""
    guard: Callable[[], None] = lambda: None
    """Called before every step with an effect; raises when this process should not act any more."""
    settler: Settler | None = None
    """None: this process reaches the outputs."""
    hears: Callable[[], Awaitable[float | None]] | None = None
    """For how many seconds this owner could have heard the driver (see `listening`). None: the driver speaks to the store."""
    follows: Follows | None = None
    """Looks at applications of somebody else; None: this process cannot."""
    gateway: GatewayAddress | None = None
    """How drivers reach the ledger; None: by `store_url`."""
    polled: bool = True
    """Nobody tells when something changes: the drive looks again and again, and touches its claim and its attempt while it does. False:
    `wait` returns when something changed, and a lease alone keeps the claim."""
    _known: Record | None = None
    """What the store itself answered last; None: to be read."""
    _specs: dict[int, SpecBody] = field(default_factory=dict)
    _job: tuple[object, Job] | None = None
    """With the generation and the edition that it was described by."""
    _answered: Ended | None = None
    _opened: Record | None = None
    _just: tuple[str, Seen | None] | None = None
    """What is known of the attempt with this nonce without asking; believed once."""

    def opened(self, record: Record, spec: SpecBody) -> None:
        """This process has just opened the generation with this spec: none of it is to be read, and nothing was launched yet."""
        self._opened, self._just = record, (record.nonce, None)
        self._specs[record.generation] = spec

    async def run(self, record: Record, claim: Claim) -> Ended | NotOurs:
        """Until the end. Raises what the store, the launcher or a sink raises; the claim is kept then, and calling again goes on."""
        self._forget()
        if self._opened is not None:
            self._known, self._opened = self._opened, None
            self.on_record(self._known)
        while True:
            looked = self._known or await self._look(record, claim)
            if not isinstance(looked, Record):
                return looked
            record = looked
            if record.state is State.HELD:
                return Ended(record, None)
            await self.step(record, claim)
            if self._answered is not None:  # what finalize itself answered: the record may be forgotten by now
                await self.sweep(self._answered.record)
                return self._answered

    def _forget(self) -> None:
        """What was known before something failed."""
        self._known = None
        if self._opened is None:
            self._just = None

    async def _look(self, record: Record, claim: Claim) -> Record | Ended | NotOurs:
        """Reads the record, which is ours."""
        view = await self.store.load(record.address)
        if view.record is None or view.record.generation != record.generation:
            return NotOurs("the record is gone, or has a newer generation")
        record = self._known = view.record
        self.on_record(record)
        if record.state is State.FINALIZED:
            await self.sweep(record)  # here, so that a finalize whose reply was lost is followed by it, too
            return Ended(record, await self.store.result(record.address, record.generation))
        if view.claim != claim:
            held = record.state is State.HELD and view.claim is None
            return Ended(record, None) if held else NotOurs("somebody else owns the key")
        return record

    async def step(self, record: Record, claim: Claim) -> None:
        """One look, one decision, one action."""
        job = await self.job(record)
        observation = await self.observe(record, job)
        decision = next_of(record, observation, job.policy, await self.store.now())
        self.on_decision(record, decision, observation)
        self.guard()
        if self.polled:
            self._known = None  # what this step does not write may have changed when the next one comes
        match decision.action:
            case rows.Launch():
                await self.launch(record, claim, job)
            case rows.Note(seen):
                await self.note(record, claim, seen)
            case rows.Settle(_, why, note):
                await self.end_attempt(
                    record, claim, job, observation, Settling(attempt=record.attempt, why=why, note=note)
                )
            case rows.Wait(until):
                runs = observation.seen is not None and observation.seen.phase is Phase.RUNNING
                listens = runs and job.policy.declared and self.hears is not None
                longest = LISTENS if listens else FOLLOWS if record.bound is not None else LONGEST
                await self.rest(claim, until, longest=longest)
            case _:
                await self.conclude(record, claim, job, observation, decision=decision)

    async def rest(self, claim: Claim, until: float | None, *, longest: float = LONGEST) -> None:
        """Until something may have changed. `longest`: seconds; less than LONGEST where something may that wakes nobody."""
        if self.polled:
            longest = POLL
            await self.store.heartbeat(claim)
        pause = longest if until is None else max(0.0, min(until - await self.store.now(), longest))
        if await self.wait(pause) is not False:
            self._known = None

    async def write(self, record: Record, claim: Claim, changed: Record, event: Event) -> Record | None:
        """Under the claim and the record's revision; None: look again."""
        self.guard()
        self._known = None  # also when the answer does not come
        answer = await self.store.update(record, claim, changed, event=event)
        if not isinstance(answer, Updated):
            return None
        self.on_record(answer.record)
        if not self.polled:
            self._known = answer.record
        return answer.record

    async def job(self, record: Record) -> Job:
        of = record.generation, self.edition(record)
        if self._job is None or self._job[0] != of:
            self._job = of, self.describe(record, await self._spec(record))
        return self._job[1]

    async def _spec(self, record: Record) -> SpecBody:
        """As recorded, which never changes within a generation."""
        if record.generation not in self._specs:
            spec = await self.store.spec(record.address, record.generation)
            if spec is None:
                raise StoreUnavailable(
                    f"the store has no spec for generation {record.generation} of {record.key}; try again"
                )
            self._specs[record.generation] = spec
        return self._specs[record.generation]

    def assignment(self, record: Record, job: Job) -> Assignment:
        return Assignment(
            install=self.install,
            realm=record.realm,
            key_hash=record.key_hash,
            key=record.key,
            generation=record.generation,
            attempt=record.attempt,
            nonce=record.nonce,
            fingerprint=record.fingerprint,
            spec=job.spec,
            store=self.store_url,
            gateway=self.gateway.url if self.gateway else "",
            gateway_ca=self.gateway.ca if self.gateway else "",
        )

    async def observe(self, record: Record, job: Job) -> Observation:
        just, self._just = self._just, None
        if record.bound is not None:
            if self.follows is None:
                raise LaunchUnavailable(
                    f"{record.key} follows an application of a cluster; its operator goes on with it"
                )
            return Observation(seen=await self.follows.follow(self.assignment(record, job), record.bound))
        if just is not None and just[0] == record.nonce:
            seen = just[1]
        else:
            seen = await self.launcher.observe(self.assignment(record, job), record.application)
        if not self.polled and not job.policy.declared:  # it says nothing itself
            rewound = seen is not None and seen.rewound
            return Observation(seen=seen, rewound=rewound, owner_age=await unstarted(self.store, record, seen))
        said = await listen(self.store, record, seen, hears=self.hears)
        return said if self.polled else replace(said, owner_age=await unstarted(self.store, record, seen))

    async def launch(self, record: Record, claim: Claim, job: Job) -> None:
        failpoints.hit("engine.launch.before")
        if self.polled:
            beat = Beat(attempt=record.attempt, nonce=record.nonce, by="owner")
            await self.store.renew(record.address, record.generation, beat)
        try:
            seen = await self.launcher.launch(self.assignment(record, job))
        except LaunchRefused as refused:
            await self.begin_settling(
                record, claim, Settling(attempt=record.attempt, why=Why.PERMANENT, note=str(refused))
            )
            return
        failpoints.hit("engine.launch.after")
        fresh = seen.nonce == record.nonce and seen.phase not in ENDED and not (seen.stopping or seen.repeated)
        if (
            fresh and not self.polled
        ):  # its UID and first phase in one write; whatever else it is, the next look decides
            self._just = record.nonce, seen
            await self.note(record, claim, seen)

    async def note(self, record: Record, claim: Claim, seen: Seen) -> None:
        """What was seen goes into the record before anything is concluded from it."""
        phase = seen.phase if seen.phase not in ENDED else record.phase or Phase.STARTING
        if rows.goes_back(record, seen.phase):
            phase = record.phase or phase
        driver = seen.driver or (record.application.driver if record.application else None)  # the first one seen stays
        changed = record.changed(application=Application(name=seen.name, uid=seen.uid, driver=driver), phase=phase)
        event = Event(what=f"Application {phase}", by=self.owner, generation=record.generation, attempt=record.attempt)
        await self.write(record, claim, changed, event)
        failpoints.hit("engine.note.after")

    async def begin_settling(self, record: Record, claim: Claim, settling: Settling) -> Record | None:
        """`settling` in the record bars every later seal of the attempt; None: look again."""
        if record.settling is not None and record.settling.attempt >= record.attempt:
            return record
        failpoints.hit("engine.settling.before")
        event = Event(
            what="Settling", by=self.owner, why=settling.note, generation=record.generation, attempt=record.attempt
        )
        written = await self.write(record, claim, record.changed(settling=settling), event)
        failpoints.hit("engine.settling.after")
        return written

    async def end_attempt(
        self, record: Record, claim: Claim, job: Job, observation: Observation, settling: Settling
    ) -> None:
        """Settling, settled, stopped, concluded: a crash anywhere in between is picked up at the first row of the table."""
        settled = await self.begin_settling(record, claim, settling)
        if settled is None:
            return
        record = settled
        assignment = self.assignment(record, job)
        if job.policy.declared:
            settler = self.settler or Settler(store=self.store, owner=self.owner)
            end = rows.wants_end(record, observation)
            found = await settler.verdict(record, job, assignment, end=end)
            if isinstance(found, Decision):
                self.on_decision(record, found, observation)
                settlement = await self.entrust(record, claim, assignment, settler, found.action, end=end)
                if settlement is None:
                    return
            else:
                settlement = found
            await self.stop(record, job, observation, settlement)
            await self.conclude(record, claim, job, observation, settlement=settlement)
            return
        try:
            stopped = await self.launcher.stop(assignment, timeout=job.policy.stop_timeout)
            note = stopped.message if isinstance(stopped, StillThere) else ""
            settlement = Settlement(opaque_verdict(record, stopped), {}, note)
        except LaunchRefused as refused:
            settlement = Settlement(Verdict.CANNOT_PLACE, {}, str(refused))
        failpoints.hit("engine.stop.after")
        await self.conclude(record, claim, job, observation, settlement=settlement)

    async def entrust(
        self, record: Record, claim: Claim, assignment: Assignment, settler: Settler, action: rows.Action, *, end: bool
    ) -> Settlement | None:
        """Has somebody else settle; None: look again."""
        match action:
            case rows.Believe(settlement):
                return settlement
            case rows.Count(run):
                said = Event(
                    what=f"Settle run {run}", by=self.owner, generation=record.generation, attempt=record.attempt
                )
                await self.write(record, claim, record.changed(settle_runs=run), said)
                failpoints.hit("engine.settle-run.counted")
            case rows.Send():
                self.guard()
                try:
                    await settler.send(record, assignment, action, end=end)
                except LaunchRefused as refused:
                    return Settlement(Verdict.CANNOT_SETTLE, {}, str(refused))
            case rows.Wait(until):
                await self.rest(claim, until)
            case other:
                raise AssertionError(f"nothing that is entrusted: {other}")
        return None

    async def stop(self, record: Record, job: Job, observation: Observation, settlement: Settlement) -> None:
        """A courtesy: settling has made the attempt final. What is not ours is left alone, and so is what is seen to have ended, unless
        another attempt may follow it and executors, which may outlive their driver, run somewhere; what vanished may still be about to
        start."""
        seen = observation.seen
        ended = seen is not None and seen.phase in ENDED and seen.phase is not Phase.UNKNOWN
        lingers = not self.polled and settlement.verdict is not Verdict.ALL
        if seen is None or (seen.nonce == record.nonce and (lingers or not ended)):
            with contextlib.suppress(LaunchRefused):  # its name cannot be kept taken; what comes late commits nothing
                await self.launcher.stop(self.assignment(record, job), timeout=job.policy.stop_timeout)
        failpoints.hit("engine.stop.after")

    async def conclude(
        self,
        record: Record,
        claim: Claim,
        job: Job,
        observation: Observation,
        *,
        decision: Decision | None = None,
        settlement: Settlement | None = None,
    ) -> None:
        """Finalize, hold, or grant the next attempt."""
        if decision is None:
            assert settlement is not None  # the two ways to get here: a row of `decide` that ends it, or a settlement
            decision = conclude(record, settlement.verdict, observation, job.policy, await self.store.now())
            self.on_decision(record, decision, observation)
        match decision.action:
            case rows.Finalize(outcome, why, note):
                end = rows.Finalize(outcome, why, note)
                await self.finalize(record, claim, job, end, observation=observation, settlement=settlement)
            case rows.Hold(reason, note):
                said = "; ".join(filter(None, (note, settlement.note if settlement else "")))
                event = Event(
                    what=f"Held {reason}", by=self.owner, why=said, generation=record.generation, attempt=record.attempt
                )
                await self.write(record, claim, record.changed(state=State.HELD, held=reason, note=said), event)
            case rows.Grant(attempt, counted, not_before):
                await self.grant(record, claim, attempt, counted=counted, not_before=not_before, why=decision.evidence)
            case rows.Alarm(note):
                raise StoreUnavailable(
                    f"{record.key}: {note}; nothing is started until `sparkonce doctor` has been asked"
                )
            case other:
                raise AssertionError(f"not an end: {other}")

    async def grant(
        self, record: Record, claim: Claim, attempt: int, *, counted: bool, not_before: float | None, why: str
    ) -> None:
        changed = record.changed(
            attempt=attempt,
            nonce=self.new_nonce(),
            application=None,
            phase=None,
            settle_runs=0,
            uncounted=record.uncounted + (not counted),
            not_before=not_before,
            granted_at=await self.store.now(),
        )
        event = Event(what="Granted", by=self.owner, why=why, generation=record.generation, attempt=attempt)
        if await self.write(record, claim, changed, event) is not None and not self.polled:
            self._just = changed.nonce, None  # a name that is taken is seen when it is created
        failpoints.hit("engine.grant.after")

    async def finalize(
        self,
        record: Record,
        claim: Claim,
        job: Job,
        end: rows.Finalize,
        *,
        observation: Observation,
        settlement: Settlement | None,
    ) -> None:
        silent = not self.polled and not job.policy.declared
        reports = [] if silent else await self.store.reports(record.address, record.generation)
        now = await self.store.now()
        if end.outcome == "Succeeded":
            result = succeeded(record, end, settlement, sinks=job.sinks, reports=reports, now=now)
            retention = job.policy.retention_succeeded
        else:
            result = failed(record, end, observation, settlement, now)
            retention = job.policy.retention_failed
        failpoints.hit("engine.finalize.before")
        self._known = None  # whatever is answered: a follower may have attached, and then there is more to read
        answer = await self.store.finalize(record, claim, result, retention=retention)
        failpoints.hit("engine.finalize.after")
        if isinstance(answer, Finalized):
            self._answered = Ended(answer.record, answer.result, job.spec)

    async def sweep(self, record: Record) -> None:
        """Staging that can never be committed; what cannot be reached now is left, and the result stands all the same."""
        for sink in (await self.job(record)).sinks:
            with contextlib.suppress(SparkonceError):
                await sink.sweep(sink_key(record.key_hash, record.generation, sink))
