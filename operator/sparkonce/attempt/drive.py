"""Drives one owned key: performs what `decide` returns, step by step, until the generation ends, is held, or has another owner.

Every write is one atomic verb of the store, conditional on the claim and the record's revision; any answer but `Updated` means: read
again. Between two awaits this process may die, freeze for an hour, or be one of two that believe they own the key; nothing here relies
on that not happening. The order of an attempt's writes is docs/design.md, section 6: granted, created, noted, observed, settling, settled,
then finalized or granted again.

Decides nothing (see decide.py), reads no clock but the store's, and awaits only what was passed in, so that a test can step it through
any schedule.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sparkonce import failpoints
from sparkonce.attempt import decide as rows
from sparkonce.attempt.decide import Decision, Observation, Policy, conclude, decide, never_ran, not_started
from sparkonce.attempt.follow import follow
from sparkonce.attempt.observe import as_queued, observe_heartbeats, opaque_verdict, unstarted, without_secrets
from sparkonce.attempt.outcome import failed, succeeded
from sparkonce.attempt.settle import Offload, Settler, inline
from sparkonce.errors import LaunchRefused, LaunchUnavailable, SparkonceError, StoreUnavailable
from sparkonce.launch.protocol import ENDED, ApplicationState, Follows, Launcher, Phase, StillThere
from sparkonce.model.record import (
    Application,
    Assignment,
    Beat,
    Bound,
    Event,
    GatewayAddress,
    NoEffect,
    Record,
    Result,
    Settling,
    SpecBody,
    State,
    Verdict,
    Why,
)
from sparkonce.sink.protocol import Sink
from sparkonce.sink.transaction import Settlement, sink_key
from sparkonce.store.protocol import Claim, Finalized, IdempotencyStore, Updated

POLL = 0.2
"""Seconds between two observations of a running attempt where no watch wakes the drive."""
LONGEST = 60.0
"""Seconds between two observations where a watch does: the most that a lost wake-up costs."""
FOLLOWS = 5.0
"""Seconds between two observations of an application that sparkonce did not start: it lacks our label, so no watch reports it."""
MOUNTS = 10.0
"""Seconds between two observations of a driver that waits for its volumes: why it does changes nothing that a watch reports."""
LISTENS = 10.0
"""Seconds between two reads of a running driver's heartbeat and progress."""


@dataclass(frozen=True)
class DrivenJob:
    """A generation's spec as a drive needs it; its policies and tunable fields may be edited while it runs."""

    spec: SpecBody
    policy: Policy
    sinks: Sequence[Sink]
    live: bool = False
    """`spec` comes from the leading object as it is now, not from the ledger."""

    def edited(self, seen: ApplicationState | None) -> bool:
        """Whether the leading object has another template than the application was made from."""
        return self.live and seen is not None and seen.template not in {"", self.spec.template_digest}


@dataclass(frozen=True)
class Ended:
    """The generation was finalized or held; `result` is None when held."""

    record: Record
    result: Result | None
    spec: SpecBody | None = None
    """The recorded spec; None where this drive has not read it."""


@dataclass(frozen=True)
class NotOurs:
    """This process no longer owns the key: another process claimed it, or the record was forgotten or reopened."""

    why: str


def next_of(record: Record, observation: Observation, policy: Policy, now: float) -> Decision:
    """The next action for the owner of this record: from the table of bound generations (`follow`) or of all others (`decide`)."""
    if record.bound is not None:
        return follow(record, observation, policy)
    return decide(record, observation, policy, now)


@dataclass(kw_only=True)
class Drive:
    """Drives one key. Owns no task and no timer: `run` awaits `wait` whenever there is nothing to do."""

    store: IdempotencyStore
    launcher: Launcher
    describe: Callable[[Record, SpecBody], DrivenJob]
    wait: Callable[[float], Awaitable[bool | None]]
    """Waits at most so many seconds. Returns False when the record cannot have changed meanwhile; anything else: read it again."""
    new_nonce: Callable[[], str]
    install: str
    store_url: str
    owner: str
    on_decision: Callable[[Record, Decision, Observation], None] = lambda *_: None
    on_record: Callable[[Record], None] = lambda _: None
    """Called with each record that this drive wrote or read."""
    edition: Callable[[Record], object] = lambda _: None
    """Identifies what `describe` reads beside the record (the leader's object as it is now); when it changes, the job is described anew."""
    guard: Callable[[], None] = lambda: None
    """Called before every step with an effect; raises when this process must not act any more."""
    settler: Settler | None = None
    """None: this process reaches the outputs."""
    receivable: Callable[[], Awaitable[float | None]] | None = None
    """Seconds during which heartbeats could have been received (see `observe_heartbeats`). None: drivers write to the store itself."""
    follows: Follows | None = None
    """Observes applications that sparkonce did not start; None: this process cannot."""
    gateway: GatewayAddress | None = None
    """How drivers reach the ledger; None: by `store_url`."""
    offload: Offload = inline
    """Where outputs are swept; a settler has its own."""
    polled: bool = True
    """No watch reports changes: the drive observes at a fixed interval, and touches its claim and its attempt each time. False: `wait`
    returns when something changed, and the lease alone keeps the claim."""
    unnoted: dict[str, ApplicationState] = field(default_factory=dict)
    """Applications that this process created or saw, by nonce, and that the record may lack. The drives of one process share them: a store
    that is silent for longer than a lease ends each drive, and meanwhile applications may end and be deleted."""
    _known: Record | None = None
    """The record as the store last answered it; None: read it."""
    _specs: dict[int, SpecBody] = field(default_factory=dict)
    _job: tuple[object, DrivenJob] | None = None
    """The described job, and the edition that it was described from."""
    _looked: dict[str, float] = field(default_factory=dict)
    """See `unstarted`."""
    _finalized: Ended | None = None
    _opened: Record | None = None
    _just: tuple[str, ApplicationState | None] | None = None
    """An attempt's nonce and the state in which this process just left its application: used once instead of observing."""
    _unsent: str | None = None
    """Nonce of an attempt that this process granted and has not launched yet. No other process has: one that takes the key over changes
    its claim, and this process then writes nothing more."""
    _refused: str | None = None
    """Nonce of an attempt whose only launch was refused, which was then written with the claim held: nothing of it was ever created."""

    def opened(self, record: Record, spec: SpecBody) -> None:
        """Call before `run` when this process has just opened the generation with this spec: nothing has to be read, and nothing was
        launched yet."""
        self._opened, self._just, self._unsent = record, (record.nonce, None), record.nonce
        self._specs[record.generation] = spec

    async def run(self, record: Record, claim: Claim) -> Ended | NotOurs:
        """Drives until the generation ends or has another owner.

        Raises: whatever the store, the launcher or a sink raises. The claim is kept then; call again to go on."""
        self._forget_cached()
        if self._opened is not None:
            self._known, self._opened = self._opened, None
            self.on_record(self._known)
        while True:
            current = self._known or await self._read(record, claim)
            if not isinstance(current, Record):
                return current
            record = current
            if record.state is State.HELD:
                return Ended(record, None)
            await self.step(record, claim)
            if self._finalized is not None:  # as finalize answered: the record may be forgotten by now
                await self.sweep(self._finalized.record)
                return self._finalized

    def _forget_cached(self) -> None:
        """Discards what was known before an earlier `run` failed."""
        self._known = None
        if self._opened is None:
            self._just = self._unsent = None

    async def _read(self, record: Record, claim: Claim) -> Record | Ended | NotOurs:
        """Reads the record; a Record only while this process owns its key."""
        view = await self.store.load(record.address)
        if view.record is None or view.record.generation != record.generation:
            return NotOurs("the record is gone, or has a newer generation")
        record = self._known = view.record
        self.on_record(record)
        if record.state is State.FINALIZED:
            await self.sweep(record)  # also after a finalize whose reply was lost
            return Ended(record, await self.store.result(record.address, record.generation))
        if view.claim != claim:
            held = record.state is State.HELD and view.claim is None
            return Ended(record, None) if held else NotOurs("another process owns the key")
        return record

    async def step(self, record: Record, claim: Claim) -> None:
        """Makes one observation and one decision, and performs one action."""
        job = await self.job(record)
        observation = await self.observe(record, job)
        decision = next_of(record, observation, job.policy, await self.store.now())
        self.on_decision(record, decision, observation)
        self.guard()
        if self.polled:
            self._known = None  # no watch: read again in the next step
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
                await self.rest(claim, until, longest=self._longest(record, job, observation.seen))
            case _:
                await self.conclude(record, claim, job, observation, decision=decision)

    def _longest(self, record: Record, job: DrivenJob, seen: ApplicationState | None) -> float:
        """Seconds to the next observation at the latest: fewer than LONGEST where no watch reports what may change."""
        if seen is not None and seen.phase is Phase.RUNNING and job.policy.declared and self.receivable is not None:
            return LISTENS
        if record.bound is not None:
            return FOLLOWS
        return MOUNTS if seen is not None and seen.mounting is not None else LONGEST

    async def rest(self, claim: Claim, until: float | None, *, longest: float = LONGEST) -> None:
        """Waits until something may have changed. `longest`: seconds; less than LONGEST where a change may go unreported."""
        if self.polled:
            longest = POLL
            await self.store.heartbeat(claim)
        pause = longest if until is None else max(0.0, min(until - await self.store.now(), longest))
        if await self.wait(pause) is not False:
            self._known = None

    async def write(self, record: Record, claim: Claim, changed: Record, event: Event) -> Record | None:
        """Updates the record, conditional on the claim and the record's revision. None: lost the compare, read again."""
        self.guard()
        self._known = None  # first, so that it also holds when the store does not answer
        answer = await self.store.update(record, claim, changed, event=event)
        if not isinstance(answer, Updated):
            return None
        self.on_record(answer.record)
        if not self.polled:
            self._known = answer.record
        return answer.record

    async def job(self, record: Record) -> DrivenJob:
        of = record.generation, self.edition(record)
        if self._job is None or self._job[0] != of:
            self._job = of, self.describe(record, await self._spec(record))
        return self._job[1]

    async def _spec(self, record: Record) -> SpecBody:
        """The recorded spec, which never changes within a generation."""
        if record.generation not in self._specs:
            spec = await self.store.spec(record.address, record.generation)
            if spec is None:
                raise StoreUnavailable(
                    f"the store has no spec for generation {record.generation} of {record.key}; try again"
                )
            self._specs[record.generation] = spec
        return self._specs[record.generation]

    def assignment(self, record: Record, job: DrivenJob) -> Assignment:
        return Assignment.of(
            record,
            job.spec,
            install=self.install,
            store=self.store_url,
            gateway=self.gateway.url if self.gateway else "",
            gateway_ca=self.gateway.ca if self.gateway else "",
        )

    async def observe(self, record: Record, job: DrivenJob) -> Observation:
        """Observes the attempt. Secrets of the job are hidden, because the observation goes into results, events and logs."""
        return without_secrets(await self._observed(record, job), job.spec.job)

    async def _observed(self, record: Record, job: DrivenJob) -> Observation:
        just, self._just = self._just, None
        if record.bound is not None:
            return await self._followed(record, record.bound, job)
        if just is not None and just[0] == record.nonce:
            seen = just[1]
        else:
            seen = await self.launcher.observe(self.assignment(record, job), record.application)
            if record.application is None:
                seen = self._last_seen(record, seen)
        if self.polled:
            return await observe_heartbeats(self.store, record, seen, receivable=self.receivable)
        waits = await unstarted(self.store, record, seen, self._looked)
        seen = as_queued(record, seen, waits, start_timeout=job.policy.start_timeout)
        queued = seen is not None and seen.phase is Phase.HELD
        observation = Observation(seen=seen, rewound=seen is not None and seen.rewound)
        if job.policy.declared:  # an opaque job sends no heartbeats and no reports
            observation = await observe_heartbeats(self.store, record, seen, receivable=self.receivable)
        return replace(observation, owner_age=None if queued else waits, edited=job.edited(seen))

    def _last_seen(self, record: Record, seen: ApplicationState | None) -> ApplicationState | None:
        """`seen`; if the application is gone and not in the record, what this process saw of it before. It is noted then, and so counts
        as vanished; without that its attempt would be launched again."""
        if seen is None:
            return self.unnoted.get(record.nonce)
        if seen.nonce == record.nonce:
            self.unnoted[record.nonce] = seen
        return seen

    async def _followed(self, record: Record, bound: Bound, job: DrivenJob) -> Observation:
        if self.follows is None:
            raise LaunchUnavailable(f"{record.key} follows an application of a cluster; its operator drives it")
        return Observation(seen=await self.follows.follow(self.assignment(record, job), bound))

    async def launch(self, record: Record, claim: Claim, job: DrivenJob) -> None:
        failpoints.hit("engine.launch.before")
        if self.polled:
            await self._beat(record)
        unsent, self._unsent = self._unsent == record.nonce, None
        try:
            seen = await self.launcher.launch(self.assignment(record, job))
        except LaunchRefused as refused:
            settling = Settling(attempt=record.attempt, why=Why.PERMANENT, note=str(refused))
            if await self.begin_settling(record, claim, settling) is not None and unsent:
                self._refused = record.nonce
            return
        self.unnoted[seen.nonce] = seen
        failpoints.hit("engine.launch.after")
        fresh = seen.nonce == record.nonce and seen.phase not in ENDED and not (seen.stopping or seen.repeated)
        if fresh and not self.polled:  # UID and first phase in one write; the next step decides about anything else
            self._just = record.nonce, seen
            await self.note(record, claim, seen)

    async def _beat(self, record: Record) -> None:
        """The attempt's first heartbeat, until its driver sends its own."""
        beat = Beat(attempt=record.attempt, nonce=record.nonce, by="owner")
        await self.store.renew(record.address, record.generation, beat)

    async def note(self, record: Record, claim: Claim, seen: ApplicationState) -> None:
        """Writes the observed application into the record, before anything is concluded from it."""
        phase = seen.phase if seen.phase not in ENDED else record.phase or Phase.STARTING
        if rows.goes_back(record, seen.phase):
            phase = record.phase or phase
        driver = seen.driver or (record.application.driver if record.application else None)  # keep the one noted before
        application = Application(name=seen.name, uid=seen.uid, driver=driver, pods_since=seen.pods_since)
        changed = record.changed(application=application, phase=phase, note=rows.waiting_note(record, seen))
        if record.phase == Phase.HELD and phase != Phase.HELD:
            changed = changed.changed(queued_until=await self.store.now())
        event = Event(
            what=f"Application {phase}",
            by=self.owner,
            why=changed.note,
            generation=record.generation,
            attempt=record.attempt,
        )
        if await self.write(record, claim, changed, event) is not None:
            self.unnoted.pop(record.nonce, None)
        failpoints.hit("engine.note.after")

    async def begin_settling(self, record: Record, claim: Claim, settling: Settling) -> Record | None:
        """Writes `settling`, which bars every later seal of the attempt. None: lost the compare, read again."""
        if record.settling is not None and record.settling.attempt >= record.attempt:
            return record
        failpoints.hit("engine.settling.before")
        event = Event(
            what="Settling", by=self.owner, why=settling.note, generation=record.generation, attempt=record.attempt
        )
        written = await self.write(record, claim, record.changed(settling=settling), event)
        if written is not None:
            self.unnoted.pop(record.nonce, None)
        failpoints.hit("engine.settling.after")
        return written

    async def end_attempt(
        self, record: Record, claim: Claim, job: DrivenJob, observation: Observation, settling: Settling
    ) -> None:
        """Writes `settling`, settles, stops, concludes. After a crash anywhere in between, the first row of `decide`'s table resumes it."""
        written = await self.begin_settling(record, claim, settling)
        if written is None:
            return
        record = written
        assignment = self.assignment(record, job)
        if job.policy.declared:
            settler = self.settler or Settler(store=self.store, owner=self.owner)
            end = rows.wants_end(record, observation)
            found = await settler.verdict(record, job, assignment, end=end)
            if isinstance(found, Decision):
                if (nothing := await self._never_started(record, job, assignment, found)) is not None:
                    await self.conclude(record, claim, job, observation, settlement=nothing)
                    return
                self.on_decision(record, found, observation)
                settlement = await self.advance_settle_runs(record, claim, assignment, settler, found, end=end)
                if settlement is None:
                    return
            else:
                settlement = found
            await self.stop(record, job, observation, settlement)
            await self.conclude(record, claim, job, observation, settlement=settlement)
            return
        settlement = await self._stopped(record, job, assignment)
        await self.conclude(record, claim, job, observation, settlement=settlement)

    async def _stopped(self, record: Record, job: DrivenJob, assignment: Assignment) -> Settlement:
        """Stops the attempt so that it is certain whether a driver ran. The verdict without a look at any output."""
        try:
            limit = job.policy.stop_timeout
            stopped = await self.launcher.stop(assignment, timeout=limit, proof=True, noted=record.application)
            note = stopped.message if isinstance(stopped, StillThere) else ""
            verdict = opaque_verdict(record, stopped, never_created=self._never_created(record))
        except LaunchRefused as refused:
            never = self._never_created(record)
            verdict, note = (Verdict.NONE, "") if never else (Verdict.CANNOT_PLACE, str(refused))
        failpoints.hit("engine.stop.after")
        return Settlement(verdict, {}, note)

    def _never_created(self, record: Record) -> bool:
        """Whether nothing can have been created for the attempt: this process granted it, and either sent no launch or had its only launch
        refused. It wrote `settling` while it held the claim, so no other process has sent one. An admission policy that refuses the launch
        may refuse the placeholder, too; the name may stay free then, because no request is left that could take it."""
        return record.nonce in (self._refused, self._unsent) and record.application is None

    async def _never_started(
        self, record: Record, job: DrivenJob, assignment: Assignment, decision: Decision
    ) -> Settlement | None:
        """The verdict on an attempt that provably never ran, in place of a settle run: that has the job's image, volumes and account, and
        what kept the driver from starting would keep it, too. None: the attempt may have run, or one before it has, whose commits only the
        outputs show.

        Nothing is fenced, and nothing has to be: the attempt is stopped under its name, so no driver will ever have its token."""
        if not (isinstance(decision.action, rows.BeginSettleRun) and not_started(record)):
            return None
        settlement = await self._stopped(record, job, assignment)
        return settlement if settlement.verdict is Verdict.NONE else None

    async def advance_settle_runs(
        self, record: Record, claim: Claim, assignment: Assignment, settler: Settler, decision: Decision, *, end: bool
    ) -> Settlement | None:
        """Performs the next action of settling by settle runs. None: no verdict yet, read again."""
        match decision.action:
            case rows.Believe(settlement):
                return settlement
            case rows.BeginSettleRun(run):
                event = Event(
                    what=f"Settle run {run}",
                    by=self.owner,
                    why=decision.evidence,
                    generation=record.generation,
                    attempt=record.attempt,
                )
                await self.write(record, claim, record.changed(settle_runs=run), event)
                failpoints.hit("engine.settle-run.counted")
            case rows.Send() as action:
                self.guard()
                try:
                    await settler.send(record, assignment, action, end=end)
                except LaunchRefused as refused:
                    return Settlement(Verdict.CANNOT_SETTLE, {}, str(refused))
            case rows.Wait(until):
                await self.rest(claim, until)
            case other:
                raise AssertionError(f"not an action of settle runs: {other}")
        return None

    async def stop(self, record: Record, job: DrivenJob, observation: Observation, settlement: Settlement) -> None:
        """Stops a settled attempt to free its resources; settling has made it final already.

        Leaves applications of others alone, and one that was seen to end, unless another attempt may follow: executors may outlive their
        driver. An application that vanished is stopped too: a late request may still create it."""
        seen = observation.seen
        ended = seen is not None and seen.phase in ENDED and seen.phase is not Phase.UNKNOWN
        lingers = not self.polled and settlement.verdict is not Verdict.ALL
        if seen is None or (seen.nonce == record.nonce and (lingers or not ended)):
            with contextlib.suppress(LaunchRefused):  # no placeholder can keep its name; a late driver commits nothing
                await self.launcher.stop(self.assignment(record, job), timeout=job.policy.stop_timeout)
        failpoints.hit("engine.stop.after")

    async def conclude(
        self,
        record: Record,
        claim: Claim,
        job: DrivenJob,
        observation: Observation,
        *,
        decision: Decision | None = None,
        settlement: Settlement | None = None,
    ) -> None:
        """Finalizes, holds, or grants the next attempt: as `decision` says or, without one, as `settlement` decides."""
        if decision is None:
            assert settlement is not None  # callers pass a decision that ends the generation, or a settlement
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
                none = settlement is not None and settlement.verdict is Verdict.NONE and not settlement.slots
                nothing = never_ran(record) if none else None
                await self.grant(
                    record,
                    claim,
                    attempt,
                    counted=counted,
                    not_before=not_before,
                    why=decision.evidence,
                    no_effect=nothing,
                )
            case rows.Alarm(note):
                raise StoreUnavailable(f"{record.key}: {note}; nothing is started; see `sparkonce doctor`")
            case other:
                raise AssertionError(f"not an end: {other}")

    async def grant(
        self,
        record: Record,
        claim: Claim,
        attempt: int,
        *,
        counted: bool,
        not_before: float | None,
        why: str,
        no_effect: NoEffect | None = None,
    ) -> None:
        """Grants `attempt`. `no_effect`: the proof that no attempt of the generation so far took effect."""
        changed = record.changed(
            attempt=attempt,
            nonce=self.new_nonce(),
            application=None,
            phase=None,
            note="",
            no_effect=no_effect,
            settle_runs=0,
            uncounted=record.uncounted + (not counted),
            not_before=not_before,
            granted_at=await self.store.now(),
        )
        event = Event(what="Granted", by=self.owner, why=why, generation=record.generation, attempt=attempt)
        if await self.write(record, claim, changed, event) is not None and not self.polled:
            self._just = changed.nonce, None  # a taken name shows when the application is created
            self._unsent = changed.nonce
        failpoints.hit("engine.grant.after")

    async def finalize(
        self,
        record: Record,
        claim: Claim,
        job: DrivenJob,
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
        self._known = None  # whatever the answer: a follower may have attached meanwhile
        answer = await self.store.finalize(record, claim, result, retention=retention)
        failpoints.hit("engine.finalize.after")
        if isinstance(answer, Finalized):
            self._finalized = Ended(answer.record, answer.result, job.spec)

    async def sweep(self, record: Record) -> None:
        """Removes staging that can never be committed. Best effort: an output that does not answer keeps its staging."""
        for sink in (await self.job(record)).sinks:
            with contextlib.suppress(SparkonceError):
                await self.offload(
                    record.address, partial(sink.sweep, sink_key(record.key_hash, record.generation, sink))
                )


async def until_set(event: asyncio.Event, seconds: float | None) -> None:
    """Waits until the event is set, at most so many seconds. Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that
    arrives in the same turn of the loop as the event, so that a worker lives on and its process never ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
