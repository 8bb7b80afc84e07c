"""One schedule: a key, its tables, its processes and the events that happen to them; the scheduler executes one effect at a time.

`machine.py` draws which process runs next and which fault strikes; `scene.py` has what schedules share.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, cast

from machine.applications import Applications, Behaviour, JobError
from machine.places import Launches, Objects, Store, Watched
from machine.process import Broken, Client, Effect, Failed, Process, ask, landed
from machine.promises import RESOLVABLE, UNFOLLOWED, Promises
from machine.scene import Known, Scene
from sparkonce.attempt.drive import Drive
from sparkonce.attempt.request import Answer
from sparkonce.attempt.settle import Settler, Settles
from sparkonce.blocking import run
from sparkonce.commands import operate
from sparkonce.errors import (
    KeyConflict,
    OutputCorrupt,
    OutputUnsafe,
    RecordTooNew,
    RecordUnreadable,
    SparkonceError,
    StoreUnavailable,
    StoreUnusable,
)
from sparkonce.launch.protocol import Phase
from sparkonce.local.prepare import Prepared
from sparkonce.local.runner import Ending, LocalRunner
from sparkonce.model.record import Address, HeldReason, Record, State, application_name
from sparkonce.model.spec import OnFinalized, OnMismatch, WriteMode
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import Committed, Sink, SinkKey
from sparkonce.store.protocol import IdempotencyStore, Lease
from sparkonce.store.sqlite.lease import FileLease

BOUND = 4000
"""Maximum number of effects between the last fault and the key's end; usually 50 to 500."""
CLIENTS = 5
"""Maximum number of clients alive at once; more would only wait for each other."""
AIM = 20
"""Steps for which a message fault waits for a write that it can hit."""
LONG = 100.0
"""Seconds that pass in a silence: longer than every timeout of these jobs."""
_NEVER = (RecordUnreadable, RecordTooNew, StoreUnusable, OutputCorrupt, OutputUnsafe, KeyConflict)
"""Errors that no schedule may cause, since each means that stored data is broken. (A zombie whose staging was swept gets RowsLost.)"""


@dataclass(kw_only=True)
class Simulated(LocalRunner):
    """The real request loop with two replacements, since both need an event loop: waiting, and the task that keeps the lease alive."""

    world: World
    process: Client

    @property
    def owner(self) -> str:
        return self.process.name

    def engine(self, application: str | None = None) -> Drive:
        drive = super().engine(application)
        drive.follows = self.world.launcher
        drive.on_record = self.world.promises.shown
        if self.world.config.blind:
            drive.settler = Settler(
                store=self.store,
                owner=self.owner,
                runs=self.world.launcher,
                settles=Settles.RUN,
                patience=1.0,
                now=self.world.scene.clock.now,
            )
        return drive

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        lease = await self.patiently(self._open)
        try:
            yield lease
        finally:
            with contextlib.suppress(StoreUnavailable):
                await ask(Effect("lease.revoke", lambda: run(lease.revoke()), StoreUnavailable))

    def _open(self) -> Awaitable[FileLease]:
        def call() -> FileLease:
            lease = run(self.world.scene.store.open_lease(owner=self.owner))
            self.process.lease = lease
            self.world.leases.append(lease)
            return lease

        return ask(Effect("lease.open", call, StoreUnavailable))

    async def pause(self, seconds: float) -> None:
        await self.world.wait(seconds)


class World:
    def __init__(self, scene: Scene, behaviours: list[Behaviour], *, max_attempts: int, seed: int) -> None:
        """`seed` decides how the hashes of this world's keys compare, so that the same schedule ends alike whatever was played before."""
        self.scene, self.config, self.seed = scene, scene.config, seed
        scene.worlds += 1
        scene.world = self
        self.folder = scene.folder / f"tables{scene.worlds}"
        self.address = Address(realm="local", key_hash=self._key_hash("key"))
        self.behaviours, self.peaceful = behaviours, False
        self.numbers: Counter[str] = Counter()
        self.log: list[str] = []
        self.steps, self.faults = 0, Counter[str]()
        self.processes: list[Process] = []
        self.embedded: dict[Process, Simulated] = {}
        self.leases: list[FileLease] = []
        self.late: list[Effect] = []
        self.reruns: set[str] = set()
        """Nonces of deliberate reruns."""
        self.resolved: set[operate.How] = set()
        """A person's decisions about a held key."""
        self.promises = Promises(self)
        self.applications = Applications(self)
        self.store = cast("IdempotencyStore", Store(self, scene.store))  # it has the real store's verbs, by name
        self.launcher = Launches(self)
        places = {name: FolderObjects(self.folder / name, durable=False) for name in self.config.outputs}
        self.tables = {name: Objects(self, name, place) for name, place in places.items()}
        self.sinks: dict[str, Sink] = {
            name: Watched(self, table, self.config.mode) for name, table in self.tables.items()
        }
        policy = scene.jobs["A"].policy
        self.policy = replace(
            policy, backoff_initial=0.0, max_attempts=max_attempts, heartbeat_timeout=30.0, start_timeout=60.0
        )

    # --- names, notes, numbers

    def _key_hash(self, name: str) -> str:
        """Its first half follows from the schedule; the second makes it another key than those of the worlds before, in the same ledger."""
        drawn, unique = (
            hashlib.sha256(text.encode()).hexdigest()[:32]
            for text in (f"{self.seed} {name}", f"{self.scene.worlds} {name}")
        )
        return drawn + unique

    def number(self, kind: str) -> int:
        self.numbers[kind] += 1
        return self.numbers[kind]

    def note(self, text: str) -> None:
        self.log.append(text.replace(self.address.key_hash, "KEY"))

    def fault(self, kind: str, what: object) -> None:
        self.faults[kind] += 1
        self.note(f"-- {kind}: {what}")

    def next_behaviour(self) -> Behaviour:
        return self.behaviours.pop(0) if self.behaviours and not self.peaceful else Behaviour()

    # --- users

    @property
    def awake(self) -> list[Process]:
        return [each for each in self.processes if not each.over and not each.frozen]

    def losing(self, rng: random.Random) -> list[Process]:
        """Processes whose next effect may be lost. Losing a read tests little, so processes run on until one is about to write."""
        return self.writing(rng) or [
            each for each in self.awake if each.pending is not None and each.pending.lost is not None
        ]

    def writing(self, rng: random.Random, what: frozenset[str] | None = None) -> list[Process]:
        """Processes that are about to write (one of `what`, if given), if necessary after a few steps of all."""
        for _ in range(AIM):
            pending = [(each, each.pending) for each in self.awake if each.pending is not None]
            if found := [each for each, effect in pending if (effect.what in what if what else effect.writes)]:
                return found
            self.mingle(rng, 1)
        return []

    def looking(self, rng: random.Random) -> list[Process]:
        """Processes that are about to read a slot, if necessary after a few steps of all."""
        for _ in range(AIM):
            pending = [(each, each.pending) for each in self.awake if each.pending is not None]
            if found := [each for each, effect in pending if effect.reads_a_slot]:
                return found
            self.mingle(rng, 1)
        return []

    @property
    def clients(self) -> list[Client]:
        return [each for each in self.processes if isinstance(each, Client) and not each.over]

    def _start(self, kind: str, body: Callable[[Simulated], Coroutine[Any, Any, Any]], *, patient: bool = True) -> None:
        def begin(process: Client) -> Coroutine[Any, Any, Any]:
            embedded = Simulated(
                store=self.store,
                attempts=self.folder,
                launcher=self.launcher,
                patience=1e9 if patient else -1.0,  # never gives up, or does so at the first missing answer
                sleep=self.wait,
                world=self,
                process=process,
            )
            self.embedded[process] = embedded
            return body(embedded)

        client = Client(f"{kind}{self.number(kind)}", kind, begin)
        self.processes.append(client)

    async def wait(self, seconds: float) -> None:
        def call() -> None:
            self.scene.clock.at += max(seconds, 0.05)

        await ask(Effect("wait", call, None))

    def prepared(self, version: str, *, supersede: bool = False, rerun_if_failed: bool = False) -> Prepared:
        known = self.scene.jobs[version]
        policy = replace(
            self.policy,
            on_mismatch=OnMismatch.SUPERSEDE if supersede else OnMismatch.REJECT,
            on_finalized=OnFinalized.RERUN_IF_FAILED if rerun_if_failed else OnFinalized.REPLAY,
        )
        key = replace(known.key, key_hash=self.address.key_hash)
        return replace(known, key=key, sinks=tuple(self.sinks.values()), wants=policy)

    def request(
        self, version: str, *, supersede: bool = False, rerun_if_failed: bool = False, patient: bool = True
    ) -> None:
        prepared = self.prepared(version, supersede=supersede, rerun_if_failed=rerun_if_failed)
        self._start(f"request{version}", lambda embedded: embedded.submit(prepared), patient=patient)

    def another_key_writes(self, output: str, mode: WriteMode) -> None:
        """A whole job of another key writes to an output, before any other process goes on."""
        number = self.number("other key")
        key = SinkKey(key_hash=self._key_hash(f"{number}"), output=output, generation=1)
        sink = Watched(self, self.tables[output], mode)
        self.note(f"-- another key writes to {output}: {mode}")
        slot = sink.stage(f"other{number}", key, 1, fingerprint="other")  # type: ignore[arg-type]  # the stager accepts a name in place of rows
        assert isinstance(run(sink.commit(key, slot)), Committed)

    def cancel(self) -> None:
        async def body(embedded: Simulated) -> object:
            record = await self._record(embedded)
            return record and await operate.cancel(embedded, record, by="a person", reason="enough")

        self._start("cancel", body)

    def rerun(self, version: str) -> None:
        async def body(embedded: Simulated) -> object:
            record = await self._record(embedded)
            requested = _Rerun.of(self.prepared(version), self)
            return record and await operate.rerun(embedded, requested, record, by="a person", reason="once more")

        self._start("rerun", body)

    def resolve(self, how: operate.How) -> None:
        async def body(embedded: Simulated) -> object:
            record = await self._record(embedded)
            self.resolved.add(how)
            return record and await operate.resolve(embedded, record, how, by="a person", reason="so be it")

        self._start(f"resolve-{how}", body)

    def forget(self) -> None:
        async def body(embedded: Simulated) -> object:
            record = await self._record(embedded)
            return record and await operate.forget(embedded.store, record, by="a person", reason="old")

        self._start("forget", body)

    async def _record(self, embedded: Simulated) -> Record | None:
        view = await embedded.patiently(lambda: embedded.store.load(self.address))
        return view.record

    # --- the scheduler

    def advance(self, process: Process, fate: str = "lands") -> None:
        """One effect of one process, with this fate: it lands, its request is lost, its reply is lost, or it lands late."""
        effect = process.pending
        assert effect is not None  # the process is neither over nor running
        reply: object = None
        if fate in ("lands", "reply"):
            reply = landed(effect)
        if fate == "late":
            self.late.append(effect)
        if fate != "lands":
            assert effect.lost is not None  # the caller has checked
            reply = Failed(effect.lost(f"{effect.what}: no answer"))
            self.fault(f"lost: {fate}", f"{process}: {effect.what}")
        elif not effect.waits:
            self.note(f"{process}: {effect.what} -> {_short(reply)}")
        self.steps += 1
        process.resume(reply)
        if process.over:
            self._finished(process)

    def land(self, index: int) -> None:
        effect = self.late.pop(index)
        self.note(f"late: {effect.what} -> {_short(landed(effect))}")
        self.steps += 1

    def _finished(self, process: Process) -> None:
        answer = process.answer
        self.note(f"{process} ends: {_short(answer)}")
        if isinstance(answer, Broken):
            raise answer
        if isinstance(answer, _NEVER) or (
            isinstance(answer, Exception) and not isinstance(answer, SparkonceError | JobError)
        ):
            raise Broken("no error of this kind", f"{process}: {answer!r}") from answer
        if isinstance(answer, Ending) and answer.record is not None and answer.record.outcome is not None:
            self.promises.answered(answer.record.outcome, answer.record, answer.result)
            if answer.answer is Answer.RESULT_GONE:
                self.promises.gone(answer.record)

    def mingle(self, rng: random.Random, steps: int) -> None:
        """Many single steps of awake processes. A process that only waits is skipped most of the time."""
        for _ in range(steps):
            if not (awake := self.awake):
                return
            busy = [each for each in awake if each.pending is not None and not each.pending.waits]
            self.advance(rng.choice(busy if busy and rng.random() < 0.8 else awake))

    def kill(self, process: Process, *, lands: bool, lease_ends: bool) -> None:
        """SIGKILL. Its last request may still take effect, and its lease may outlive it for a while."""
        if lands and process.pending is not None and process.pending.lost is not None:
            self.late.append(process.pending)
        process.kill()
        if lease_ends:
            self.expire(process)

    def expire(self, process: Process) -> None:
        """Ends the lease, whether or not its holder notices."""
        if process.lease is not None:
            process.lease.let_go()

    def next_name(self, ahead: int) -> str:
        """The name of the application of an attempt that is granted or will be."""
        last = self.promises.last
        generation, attempt = (last.generation, last.attempt) if last else (0, 0)
        return application_name(self.address, *((generation, attempt + ahead) if ahead < 3 else (generation + 1, 1)))

    # --- the end

    def peace(self, rng: random.Random) -> str:
        """All processes thaw, late requests take effect, nothing is lost any more, and the job is sent again: the key must reach its
        end."""
        self.note("-- peace")
        self.peaceful, self.applications.reachable = True, True
        for process in self.processes:
            process.frozen = False
            if not process.over and process.lease is not None and process.lease.ended:
                process.kill()  # it lost its lease, so it stops itself
            if process.over:
                self.expire(process)
        self.applications.bury()
        self.applications.say(Phase.SUCCEEDED)
        self.scene.clock.at += LONG
        last, held = self.promises.last, ""
        for _ in range(6):  # rounds: at most one resolve and one request each, with what earlier rounds left over
            self._calm(rng)
            last = self.promises.last
            if last is not None and last.state is State.FINALIZED:
                break
            if last is not None and last.state is State.HELD:
                resolvable = {*RESOLVABLE, HeldReason.CANNOT_SETTLE} if self.config.blind else RESOLVABLE
                resolvable = UNFOLLOWED if self.config.follows else resolvable
                self.promises.require(last.held in resolvable, "an end", f"held for good: {last.held}, {last.note}")
                held = f" after Held({last.held})"
                self.resolve("failed" if last.held is HeldReason.UNKNOWN else "retry")
                self._calm(rng)
            self.request(self._version(self.promises.last))
        else:
            raise Broken("an end", "a key that is sent again and again comes to no end")
        self.promises.at_the_end()
        assert last.outcome is not None  # it is finalized
        return f"{last.outcome}{held}"

    def _version(self, record: Record | None) -> str:
        if record is None:
            return "A"
        return next(name for name, job in self.scene.jobs.items() if record.fingerprint == job.digests[1])

    def _calm(self, rng: random.Random) -> None:
        for _ in range(BOUND):
            if self.late and rng.random() < 0.1:
                self.land(rng.randrange(len(self.late)))
            elif self.awake:
                self.applications.bury()
                self.mingle(rng, 1)
            elif self.late:
                self.land(rng.randrange(len(self.late)))
            else:
                return
        raise Broken("an end", f"no end within {BOUND} steps")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for lease in self.leases:
            run(lease.revoke())
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class _Rerun(Known):
    """A rerun, which records the nonce that its request is sent with."""

    world: World

    @classmethod
    def of(cls, prepared: Prepared, world: World) -> _Rerun:
        return cls(**vars(prepared), world=world)

    def request(self, nonce: str) -> Any:
        self.world.reruns.add(nonce)
        return super().request(nonce)


def _short(value: object) -> str:
    if isinstance(value, Record):
        settling = value.settling.attempt if value.settling else 0
        word = value.outcome or value.held or ""
        return f"<g{value.generation} a{value.attempt} {value.state} {word} settling={settling} intent={value.intent} r{value.revision}>"
    if (record := getattr(value, "record", None)) is not None:
        return f"{type(value).__name__} {_short(record)}"
    return str(value)[:100]
