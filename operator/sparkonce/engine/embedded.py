"""Local mode: the same store protocol, engine and sinks in one process, on one machine.

`submit` carries one request to its answer: it looks the key up, replays, follows or refuses; only a new, an unowned or a reopenable
key makes this process an owner. An owner drives the key to its end; when it dies at any step, the next request for the key goes on
where it stands. Everything that waits can be interrupted: a leader by a wish to cancel (which settles, never just ends), a
follower by detaching.

An unanswered reserve is repeated with its nonce; after `patience` seconds the caller gets StoreUnavailable, and whoever sends the job
again finds what became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from sparkonce import failpoints, settings
from sparkonce.engine.decide import Decision, Observation
from sparkonce.engine.drive import Drive, Ended
from sparkonce.engine.prepare import Prepared, describe
from sparkonce.engine.probing import check, probe
from sparkonce.engine.request import Answer, Answered, answer
from sparkonce.engine.workqueue import until_set
from sparkonce.errors import InvalidInput, LaunchUnavailable, OutputUnavailable, StoreUnavailable
from sparkonce.launch.local import LocalLauncher
from sparkonce.launch.protocol import Launcher
from sparkonce.launch.submit import command_for
from sparkonce.model.assignment import Assignment
from sparkonce.model.local_template import LocalTemplate
from sparkonce.model.record import Outcome, Record, State, StopWanted, Why
from sparkonce.model.result import Result
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.protocol import Evidence
from sparkonce.store.protocol import Claim, IdempotencyStore, Lease, Owned, View

T = TypeVar("T")

KEEP_ALIVE = 5.0
"""Seconds between two touches of the lease; a sixth of what makes it stale."""
_BEGINNINGS = (Answer.NEW, Answer.TAKE_OVER, Answer.REOPEN, Answer.SUPERSEDE, Answer.FOLLOW)
"""Answers after which a request may own the key, or waits for who does."""

NOWHERE = Path(os.devnull) / "attempts"
"""The attempts' folder of a cluster: their logs are with their pods."""

FOLLOW_POLL = 0.25
"""Seconds between two looks of a follower."""


@dataclass(frozen=True)
class Ending:
    """What became of a request."""

    answer: Answer
    record: Record | None
    result: Result | None = None
    replayed: bool = False
    """The result was there before this request, or another process produced it."""
    detached: bool = False
    reason: str = ""
    unblock: str = ""
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    """Of a mismatch: the fields and files that differ."""


OnLook = Callable[[Record, Decision | None, Observation | None], None]


@dataclass(kw_only=True)
class Embedded:
    """One process on one ledger."""

    store: IdempotencyStore
    attempts: Path
    """Folder of the attempts' folders, beside the ledger."""
    install: str = "local"
    launcher: Launcher | None = None
    remote: bool = False
    """Attempts run on a cluster and operators drive them: nothing is driven here."""
    on_look: OnLook = lambda *_: None
    on_leader: Callable[[Record], None] = lambda *_: None
    patience: float = field(default_factory=settings.patience)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _cancel: StopWanted | None = None
    _leads: Record | None = None
    _troubled: float | None = None
    """Since when (monotonic seconds) a store, an output or the launcher has not answered the leader."""

    @property
    def owner(self) -> str:
        return f"pid {os.getpid()} on {socket.gethostname()}"

    def cancel(self, by: str, reason: str = "") -> None:
        """The leader stops and settles; a follower detaches."""
        self._cancel = StopWanted(why=Why.CANCELLED, by=by, reason=reason)
        self._wake.set()

    # looking
    async def look(
        self, prepared: Prepared, nonce: str | None = None, *, opened: bool = False
    ) -> tuple[View, Answered, dict[str, Evidence]]:
        """What the request would get now; writes nothing. `nonce`: what it was sent with, if it was sent before; `opened`: it is known
        to have opened a generation, which the record may have forgotten."""
        view = await self.patiently(lambda: self.store.load(prepared.address))
        record = view.record
        evidence: dict[str, Evidence] = {}
        if record is not None and record.outcome is Outcome.SUCCEEDED:
            result = await self.store.result(record.address, record.generation)
            spec = await self.store.spec(record.address, record.generation)
            sinks = describe(record, spec).sinks if spec is not None else prepared.sinks
            evidence = await probe(record, result, sinks)
        same = record is not None and prepared.same(record)
        opened = opened or (
            record is not None and nonce is not None and any(by.nonce == nonce for by in record.openers)
        )
        key, policy = prepared.key.text, prepared.policy
        return view, answer(view, same=same, policy=policy, outputs=evidence, key=key, opened=opened), evidence

    # doing
    async def submit(self, prepared: Prepared, *, follow: bool = True) -> Ending:
        """Until the request has its answer. Errors of sparkonce.errors end it earlier; sending it again is always safe."""
        async with self.lease() as lease:
            nonce, led, followed, opened = uuid.uuid4().hex, False, 0, False
            begun: int | None = None  # the floor over which this request was sent to the store
            mine: Ended | None = None  # what this process finalized for it
            while True:
                view, said, evidence = await self.look(prepared, nonce, opened=opened)
                record = view.record
                if mine is not None and (record is None or record.generation != mine.record.generation):
                    said_then = f"generation {mine.record.generation}: {mine.record.outcome}"
                    return Ending(Answer.REPLAY, mine.record, mine.result, reason=said_then)
                if record is None and begun not in (None, view.floor):
                    # It may have opened the generation that was forgotten; nobody can tell any more, and it opens one at most.
                    raise InvalidInput(
                        f"{prepared.key.text} was forgotten while this request waited; send it again to run it anew"
                    )
                if record is not None and followed == record.generation and said.answer is Answer.REOPEN:
                    return await self.ending(
                        prepared, replace(said, answer=Answer.REPLAY), record, evidence, replayed=True
                    )
                match said.answer:
                    case _ if self._cancel is not None and said.answer in _BEGINNINGS:
                        return Ending(said.answer, record, detached=True, reason=said.evidence, unblock=said.unblock)
                    case Answer.FOLLOW if follow:
                        assert record is not None  # an unknown key is New
                        followed = record.generation
                        self.on_look(record, None, None)
                        await self.pause(FOLLOW_POLL)
                        continue
                    case Answer.FOLLOW:
                        return Ending(said.answer, record, detached=True, reason=said.evidence, unblock=said.unblock)
                    case answer if answer not in _BEGINNINGS:
                        return await self.ending(prepared, said, record, evidence, replayed=not led)
                begun = view.floor
                owned = await self.begin(prepared, said.answer, view, lease, nonce)
                if owned is None:
                    if not await self.patiently(lease.keep_alive):
                        raise StoreUnavailable(
                            "this process lost its lease on the store; nothing is lost, send the job again"
                        )
                    continue
                led, doomed = True, owned.record.stop_wanted is not None
                opened = opened or any(by.nonce == nonce for by in owned.record.openers)
                ended = await self.drive(owned.record, owned.claim, application=prepared.application)
                if ended is None or ended.result is None or doomed:
                    continue
                wish = ended.record.stop_wanted
                superseded = wish is not None and wish.why is Why.SUPERSEDED
                if ended.record.outcome is Outcome.CANCELLED and not superseded:
                    return Ending(Answer.REPLAY, ended.record, ended.result, reason=ended.record.note)
                mine = ended if prepared.same(ended.record) and ended.record.outcome is not Outcome.CANCELLED else None

    async def begin(self, prepared: Prepared, answer: Answer, view: View, lease: Lease, nonce: str) -> Owned | None:
        """Tries to become the key's owner, as the answer says; None: look again."""
        record = view.record
        if record is None:
            await check(prepared.sinks)
            return await self.reserve(prepared, lease, nonce, view)
        match answer:
            case Answer.TAKE_OVER:
                return await self.take_over(record, lease)
            case Answer.REOPEN:
                return await self.reopen(prepared, record, lease, nonce)
            case _:
                return await self.supersede(prepared, record, view, lease, nonce)

    async def ending(
        self,
        prepared: Prepared,
        said: Answered,
        record: Record | None,
        evidence: Mapping[str, Evidence],
        *,
        replayed: bool,
    ) -> Ending:
        assert record is not None  # New is never an ending
        result = await self.store.result(record.address, record.generation) if record.state is State.FINALIZED else None
        paths: tuple[str, ...] = ()
        if said.answer is Answer.MISMATCH:
            spec = await self.store.spec(record.address, record.generation)
            paths = tuple(prepared.differing(record, spec)) if spec is not None else ()
        return Ending(said.answer, record, result, replayed, False, said.evidence, said.unblock, evidence, paths)

    async def reserve(self, prepared: Prepared, lease: Lease, nonce: str, view: View) -> Owned | None:
        failpoints.hit("engine.reserve.before")
        request = prepared.request(nonce)
        reply = await self.patiently(lambda: self.store.reserve(request, lease=lease, floor=view.floor))
        failpoints.hit("engine.reserve.after")
        return reply if isinstance(reply, Owned) else None

    async def take_over(self, record: Record, lease: Lease) -> Owned | None:
        nonce = uuid.uuid4().hex
        reply = await self.patiently(lambda: self.store.take_over(record, lease=lease, nonce=nonce))
        return reply if isinstance(reply, Owned) else None

    async def reopen(self, prepared: Prepared, record: Record, lease: Lease, nonce: str) -> Owned | None:
        await check(prepared.sinks)
        request = prepared.request(nonce)
        reply = await self.patiently(lambda: self.store.reopen(record, request, lease=lease))
        return reply if isinstance(reply, Owned) else None

    async def supersede(self, prepared: Prepared, record: Record, view: View, lease: Lease, nonce: str) -> Owned | None:
        """Ends the other job's generation first, by whoever owns it; then opens the next."""
        if record.reopenable:
            return await self.reopen(prepared, record, lease, nonce)
        if record.stop_wanted is None:
            wish = StopWanted(why=Why.SUPERSEDED, by=self.owner, reason="another job under this key")
            await self.patiently(lambda: self.store.request_stop(record, wish))
            return None
        if view.claim is None and record.state is State.IN_PROGRESS:
            return await self.take_over(record, lease)
        await self.pause(FOLLOW_POLL)
        return None

    async def drive(self, record: Record, claim: Claim, *, application: str | None = None) -> Ended | None:
        """Owns the key until its generation ends; None when it became somebody else's."""
        self._leads = record
        self.on_leader(record)
        engine = self.engine(application)
        try:
            while True:
                try:
                    ended = await engine.run(record, claim)
                    return ended if isinstance(ended, Ended) else None
                except (OutputUnavailable, LaunchUnavailable, StoreUnavailable):
                    self._troubled = self._troubled or time.monotonic()
                    if time.monotonic() > self._troubled + self.patience:
                        raise
                    await self.sleep(min(1.0, self.patience / 10))
        finally:
            self._leads = None

    def engine(self, application: str | None = None) -> Drive:
        def template_of(assignment: Assignment) -> LocalTemplate:
            return LocalTemplate.of(IdempotentJob.of(assignment.spec.job))

        return Drive(
            store=self.store,
            launcher=self.launcher or LocalLauncher(self.attempts, command_for(template_of, application=application)),
            describe=describe,
            wait=self.carry_wish,
            new_nonce=lambda: uuid.uuid4().hex,
            install=self.install,
            store_url=self.store.url,
            owner=self.owner,
            on_decision=self.on_look,
        )

    async def carry_wish(self, seconds: float) -> None:
        """A wish to cancel goes into the record first: whoever owns the key then carries it out, and if we die, a successor does."""
        self._troubled = None  # everything answered: the next trouble is another one
        if self._cancel is not None and self._leads is not None:
            view = await self.store.load(self._leads.address)
            if (
                view.record is not None
                and view.record.generation == self._leads.generation
                and view.record.stop_wanted is None
            ):
                await self.store.request_stop(view.record, self._cancel)
                return
        await self.pause(seconds)

    async def pause(self, seconds: float) -> None:
        """Returns earlier when somebody wants something."""
        await until_set(self._wake, seconds)
        self._wake.clear()

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Asks a store again that did not answer; the request is the same each time, so that it recognises itself."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                await self.sleep(0.1)  # between two tries; the store's own timeout has passed already

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        """For the life of one command; revoked on the way out, so that a successor need not wait."""
        lease = await self.patiently(lambda: self.store.open_lease(owner=self.owner))
        keeper = asyncio.create_task(self._keep(lease))
        try:
            yield lease
        finally:
            keeper.cancel()
            with contextlib.suppress(StoreUnavailable):
                await lease.revoke()

    async def _keep(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE)
            with contextlib.suppress(StoreUnavailable):
                await lease.keep_alive()


def attempts_folder(url: str) -> Path:
    """Beside the ledger: `ledger.db` -> `ledger.db.attempts`; a store without a file has a temporary one."""
    if url.startswith("sqlite:///"):
        ledger = Path(url.removeprefix("sqlite:///")).absolute()
        return ledger.with_name(f"{ledger.name}.attempts")
    return Path(tempfile.mkdtemp(prefix="sparkonce-attempts-"))
