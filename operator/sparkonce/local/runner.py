"""Carries a request to its answer in local mode: reads the key, then replays, follows, refuses, or owns and drives it.

Only a new key, one without an owner and one that may be reopened make this process an owner. An owner drives the key to its end; if it dies
at any step, the next request for the key resumes it. Waiting can be interrupted. `cancel` makes a leader request the stop of its own
generation, which is then settled. If another process on this machine waits for the same key, that process takes the key over instead and
continues the same attempt. `cancel` makes a follower detach.

An unanswered reserve is repeated with its nonce. After `patience` seconds the caller gets StoreUnavailable; sending the job again is safe
and shows what became of it.

A replay drives nothing, so the drive, the launcher and asyncio are imported by what needs them: they are most of what a replay would cost.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sparkonce import failpoints, settings
from sparkonce.attempt.decide import Decision, Observation
from sparkonce.attempt.probe import probe
from sparkonce.attempt.request import Answer, Answered, answer, replaces, unknown
from sparkonce.errors import InvalidInput, LaunchUnavailable, OutputUnavailable, StoreUnavailable
from sparkonce.local.prepare import Prepared, command_as_sent, describe, recorded_sinks
from sparkonce.local.waiting import ReadPace, WaitingList
from sparkonce.model.record import Outcome, Record, Result, State, StopWanted, Why
from sparkonce.sink.protocol import Found
from sparkonce.store.protocol import Claim, IdempotencyStore, Lease, Owned, View

if TYPE_CHECKING:
    import asyncio

    from sparkonce.attempt.drive import Drive, Ended
    from sparkonce.attempt.settle import Settles
    from sparkonce.launch.protocol import Launcher

T = TypeVar("T")

RENEWALS = 6
"""Renewals of the lease within the time after which it is stale, so that a process that waits (for an attempt to stop) keeps its claim."""
BEGINNINGS = (Answer.NEW, Answer.TAKE_OVER, Answer.REOPEN, Answer.SUPERSEDE, Answer.FOLLOW)
"""Answers after which the request has to own the key, or to wait for its owner. All others need neither a lease nor an event loop."""

NOWHERE = Path(os.devnull) / "attempts"
"""The attempts' folder where attempts run on a cluster, whose logs are in their pods."""

HANDED_OVER = "another terminal waits for this job and continues it"

INLINE = "local:///inline"
"""Main application file of a job whose code is a block (`sparkonce.job`): no command can run it."""


def again(key: str) -> str:
    """How to run a block of code anew after its key got a result: part of a sentence for the user."""
    return f"`sparkonce keys forget {key} --reason TEXT`, then run its cell or script again"


class HandedOver(Exception):
    """The interrupted leader leaves its key to a process that waits for it."""


@dataclass(frozen=True)
class Ending:
    """What became of a request."""

    answer: Answer
    record: Record | None
    result: Result | None = None
    replayed: bool = False
    """Whether another request opened the generation. False for the request that opened it, whichever process drove it to its end."""
    detached: bool = False
    """Whether the request ended before its generation did."""
    reason: str = ""
    unblock: str = ""
    evidence: Mapping[str, Found] = field(default_factory=dict)
    """Evidence per output, from a probe of the recorded result."""
    paths: tuple[str, ...] = ()
    """Fields and files that differ, in a mismatch."""
    driven: bool = False
    """Whether this process drove the generation, perhaps only its last part."""


@dataclass
class Submission:
    """A request on its way to its answer, and what this process has done for it so far."""

    prepared: Prepared
    nonce: str
    follow: bool
    """Wait for a generation that another process runs."""
    opened: bool = False
    """It is known to have opened a generation, even if the record no longer names it."""
    floor: int | None = None
    """The generation floor over which it was sent to the store; None: it was not sent."""
    followed: int = 0
    """The generation whose result it waits for; 0: none."""
    led: bool = False
    """This process has driven a generation for it."""
    mine: Ended | None = None
    """What this process finalized for it."""


OnObservation = Callable[[Record, Decision | None, Observation | None], None]


async def _sleep(seconds: float) -> None:
    """Blocks where no event loop runs: a caller through `blocking.run` waits for the store, too."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        time.sleep(seconds)  # noqa: ASYNC251 - no loop is there to be blocked
    else:
        await asyncio.sleep(seconds)


@dataclass(kw_only=True)
class LocalRunner:
    """One process on one ledger."""

    store: IdempotencyStore
    attempts: Path
    """The folder that contains each attempt's folder."""
    install: str = "local"
    address: str = field(default="", repr=False)
    """The ledger's address with user and password, for drivers; empty: `store.url` is complete."""
    launcher: Launcher | None = None
    person: str = ""
    """Who sends requests, for the history; empty: unknown, and the history names the process."""
    remote: bool = False
    """Attempts run on a cluster and are driven by operators, never by this process."""
    settles: Settles | None = None
    """Where `remote`: which outputs this process may read and settle at; None: as SPARKONCE_SETTLE says."""
    on_observation: OnObservation = lambda *_: None
    on_leader: Callable[[Record], None] = lambda *_: None
    patience: float = field(default_factory=settings.patience)
    sleep: Callable[[float], Awaitable[None]] = _sleep
    waiting: WaitingList = field(init=False)
    """Which processes of this machine wait for keys."""
    pace: ReadPace = field(default_factory=ReadPace)
    """How often a request reads a key that another process owns."""
    _cancel: StopWanted | None = None
    _leads: Record | None = None
    _handed_over: bool = False
    _troubled: float | None = None
    """When (monotonic seconds) the store, an output or the launcher stopped answering the leader; None: all answer."""

    def __post_init__(self) -> None:
        self.waiting = WaitingList(self.store.url)

    @cached_property
    def _wake(self) -> asyncio.Event:
        import asyncio

        return asyncio.Event()

    @property
    def owner(self) -> str:
        return f"pid {os.getpid()} on {socket.gethostname()}"

    def cancel(self, by: str, reason: str = "") -> None:
        """Makes a leader hand over, or stop and settle its generation; and a follower detach."""
        self._cancel = StopWanted(why=Why.CANCELLED, by=by, reason=reason)
        self._wake.set()

    # reading
    async def look(
        self, prepared: Prepared, nonce: str | None = None, *, opened: bool = False
    ) -> tuple[View, Answered, dict[str, Found]]:
        """Returns what the request would get now; writes nothing. `nonce`: with which it was sent before, if it was; `opened`: it is known
        to have opened a generation, even if the record no longer names it."""
        view = await self.patiently(lambda: self.store.load(prepared.address))
        record = view.record
        if record is None:
            return view, unknown(view), {}
        evidence: dict[str, Found] = {}
        if record.outcome is Outcome.SUCCEEDED:
            result = await self.store.result(record.address, record.generation)
            spec = await self.store.spec(record.address, record.generation)
            sinks = recorded_sinks(spec) if spec is not None else prepared.sinks
            evidence = await probe(record, result, sinks)
        opened = opened or (nonce is not None and any(by.nonce == nonce for by in record.openers))
        same, policy, key = prepared.same(record), prepared.policy, prepared.key.text
        return view, answer(view, same=same, policy=policy, outputs=evidence, key=key, opened=opened), evidence

    # acting
    async def submit(self, prepared: Prepared, *, follow: bool = True, nonce: str = "") -> Ending:
        """Carries the request to its answer. `follow`: wait for a generation that another process runs. `nonce`: with which the request
        has been sent before, if it has.

        Raises: an error of sparkonce.errors; sending the job again is always safe."""
        sent = Submission(prepared, nonce or uuid.uuid4().hex, follow=follow)
        async with self.lease() as lease:
            while True:
                view, said, evidence = await self.look(prepared, sent.nonce, opened=sent.opened)
                ending = await self.without_owning(sent, view, said, evidence)
                if ending is None and said.answer is Answer.FOLLOW:
                    await self.await_owner(sent, view)
                elif ending is None:
                    sent.floor = view.floor
                    owned = await self.begin(prepared, said.answer, view, lease, sent.nonce)
                    ending = await self.lead(sent, owned, lease)
                if ending is not None:
                    return ending

    async def without_owning(
        self, sent: Submission, view: View, said: Answered, evidence: Mapping[str, Found]
    ) -> Ending | None:
        """The request's end, if it may end now. None: it has to own the key, or to wait for its owner."""
        record, mine = view.record, sent.mine
        if mine is not None and (record is None or record.generation != mine.record.generation):
            return self.mine(mine, sent.nonce, reason=f"generation {mine.record.generation}: {mine.record.outcome}")
        if record is None and sent.floor not in (None, view.floor):
            # It may have opened the generation that was forgotten: that can no longer be known, and a request opens one at most.
            raise InvalidInput(
                f"{sent.prepared.key.text} was forgotten while this request waited; send it again to run it anew"
            )
        if record is not None and sent.followed == record.generation and said.answer is Answer.REOPEN:
            followed = replace(said, answer=Answer.REPLAY)
            return await self.ending(sent.prepared, followed, record, evidence, replayed=True)
        if said.answer not in BEGINNINGS:
            replayed = not opened_by(record, sent.nonce)
            ending = await self.ending(sent.prepared, said, record, evidence, replayed=replayed)
            return replace(ending, driven=sent.led)
        if self._cancel is not None:
            reason = HANDED_OVER if self._handed_over else said.evidence
            return self.detached(said, record, sent.nonce, reason=reason)
        if said.answer is Answer.FOLLOW and not sent.follow:
            return self.detached(said, record, sent.nonce, reason=said.evidence)
        return None

    async def await_owner(self, sent: Submission, view: View) -> None:
        """Waits a moment for the generation that another process runs."""
        record = view.record
        assert record is not None  # an unknown key has no owner
        if record.stop_wanted is None:  # else it was being stopped when this request came: the next one is ours
            sent.followed = record.generation
        self.waiting.wait(record.address)
        self.on_observation(record, None, None)
        await self.pause(self.pace.pause(view))

    async def lead(self, sent: Submission, owned: Owned | None, lease: Lease) -> Ending | None:
        """Drives the key, if this process owns it, until its generation ends. None: the request goes on."""
        if owned is None:
            if not await self.patiently(lease.keep_alive):
                raise StoreUnavailable("this process lost its lease on the store; nothing is lost, send the job again")
            return None
        prepared, doomed = sent.prepared, owned.record.stop_wanted is not None
        sent.led = True
        sent.opened = sent.opened or any(by.nonce == sent.nonce for by in owned.record.openers)
        ended = await self.drive(owned.record, owned.claim, application=prepared.application)
        if ended is None or ended.result is None or doomed:
            return None
        wish = ended.record.stop_wanted
        superseded = wish is not None and wish.why is Why.SUPERSEDED
        cancelled = ended.record.outcome is Outcome.CANCELLED
        if cancelled and not superseded:
            return self.mine(ended, sent.nonce, reason=ended.record.note)
        sent.mine = ended if prepared.same(ended.record) and not cancelled else None
        return None

    @staticmethod
    def mine(ended: Ended, nonce: str, *, reason: str) -> Ending:
        """The answer from what this process finalized itself."""
        replayed = not opened_by(ended.record, nonce)
        return Ending(Answer.REPLAY, ended.record, ended.result, replayed, reason=reason, driven=True)

    @staticmethod
    def detached(said: Answered, record: Record | None, nonce: str, *, reason: str) -> Ending:
        replayed = not opened_by(record, nonce)
        return Ending(said.answer, record, replayed=replayed, detached=True, reason=reason, unblock=said.unblock)

    async def begin(self, prepared: Prepared, answer: Answer, view: View, lease: Lease, nonce: str) -> Owned | None:
        """Tries to become the key's owner, as the answer says. None: it did not, read the key again."""
        record = view.record
        if record is None:
            await prepared.check()
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
        evidence: Mapping[str, Found],
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

    def check_folder(self) -> None:
        """Checks that results can name the folders of attempts: a record is JSON.

        Raises: InvalidInput; nothing was written."""
        if (path := str(self.attempts)) != path.encode(errors="replace").decode():
            raise InvalidInput(f"{path!a} is not UTF-8, so no record can name it; rename the folder or the ledger")

    async def reserve(self, prepared: Prepared, lease: Lease, nonce: str, view: View) -> Owned | None:
        self.check_folder()
        failpoints.hit("engine.reserve.before")
        request = prepared.request(nonce)
        reply = await self.patiently(lambda: self.store.reserve(request, lease=lease, floor=view.floor))
        failpoints.hit("engine.reserve.after")
        return reply if isinstance(reply, Owned) else None

    async def take_over(self, record: Record, lease: Lease) -> Owned | None:
        nonce = uuid.uuid4().hex
        reply = await self.patiently(lambda: self.store.take_over(record, lease=lease, nonce=nonce))
        return reply if isinstance(reply, Owned) else None

    async def reopen(
        self, prepared: Prepared, record: Record, lease: Lease, nonce: str, *, reason: str = ""
    ) -> Owned | None:
        self.check_folder()
        await prepared.check()
        request = replace(prepared.request(nonce), person=self.person if reason else "", reason=reason)
        reply = await self.patiently(lambda: self.store.reopen(record, request, lease=lease))
        return reply if isinstance(reply, Owned) else None

    async def supersede(self, prepared: Prepared, record: Record, view: View, lease: Lease, nonce: str) -> Owned | None:
        """Requests the stop of the other job's generation, which its owner carries out; opens the next one once it has ended. Both steps
        write to the history who supersedes it."""
        if record.reopenable:
            said = f"another job {replaces(record, prepared.policy)}"
            return await self.reopen(prepared, record, lease, nonce, reason=said)
        if record.stop_wanted is None:
            said = "another job under this key takes its place (onMismatch: Supersede)"
            stop = StopWanted(why=Why.SUPERSEDED, by=self.person or self.owner, reason=said)
            await self.patiently(lambda: self.store.request_stop(record, stop))
            return None
        if view.claim is None and record.state is State.IN_PROGRESS:
            return await self.take_over(record, lease)
        await self.pause(self.pace.pause(view))
        return None

    async def drive(self, record: Record, claim: Claim, *, application: str | None = None) -> Ended | None:
        """Drives the key until its generation ends. None: another process took it over."""
        from sparkonce.attempt.drive import Ended

        self._leads = record
        self.on_leader(record)
        self._handed_over = False
        engine = self.engine(application)
        try:
            while True:
                try:
                    ended = await engine.run(record, claim)
                    return ended if isinstance(ended, Ended) else None
                except HandedOver:
                    self._handed_over = True
                    with contextlib.suppress(StoreUnavailable):  # it goes with the lease
                        await self.store.drop(claim)
                    return None
                except (OutputUnavailable, LaunchUnavailable, StoreUnavailable):
                    self._troubled = self._troubled or time.monotonic()
                    if time.monotonic() > self._troubled + self.patience:
                        raise
                    await self.sleep(min(1.0, self.patience / 10))
        finally:
            self._leads = None

    def engine(self, application: str | None = None) -> Drive:
        from sparkonce.attempt.drive import Drive
        from sparkonce.launch.local import LocalLauncher

        command = command_as_sent(application=application, ledger=self.address)
        return Drive(
            store=self.store,
            launcher=self.launcher or LocalLauncher(self.attempts, command),
            describe=describe,
            wait=self.wait_or_cancel,
            new_nonce=lambda: uuid.uuid4().hex,
            install=self.install,
            store_url=self.store.url,
            owner=self.owner,
            on_decision=self.on_observation,
        )

    async def wait_or_cancel(self, seconds: float) -> None:
        """Waits as a drive does, but first hands over, or writes a pending cancellation into the record: if this process dies, the next
        owner carries it out. Raises: HandedOver."""
        self._troubled = None  # the step before got every answer
        if self._cancel is not None and self._leads is not None:
            view = await self.store.load(self._leads.address)
            if (
                view.record is not None
                and view.record.generation == self._leads.generation
                and view.record.stop_wanted is None
            ):
                if self.waiting.others(view.record.address):
                    raise HandedOver
                await self.store.request_stop(view.record, self._cancel)
                return
        await self.pause(seconds)

    async def pause(self, seconds: float) -> None:
        """Sleeps; `cancel` ends it early."""
        from sparkonce.attempt.drive import until_set

        await until_set(self._wake, seconds)
        self._wake.clear()

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retries a call while the store does not answer, for `patience` seconds. Each try must send the same request, nonce included.

        Raises: StoreUnavailable: the request may have been applied."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                await self.sleep(0.1)  # the store's own timeout has passed already

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        """A lease for the life of one command; revoked on exit, so that another process need not wait for it to expire."""
        import asyncio

        lease = await self.patiently(lambda: self.store.open_lease(owner=self.owner))
        keeper = asyncio.create_task(self._keep(lease))
        try:
            yield lease
        finally:
            keeper.cancel()
            self.waiting.leave()
            with contextlib.suppress(StoreUnavailable):
                await lease.revoke()

    async def _keep(self, lease: Lease) -> None:
        while True:
            await _sleep(settings.lease_seconds() / RENEWALS)
            with contextlib.suppress(StoreUnavailable):
                await lease.keep_alive()


def opened_by(record: Record | None, nonce: str) -> bool:
    """Whether the request with this nonce opened the record's generation."""
    return record is not None and any(by.nonce == nonce for by in record.openers[-1:])


def attempts_folder(url: str) -> Path:
    """The attempts' folder beside the ledger (`ledger.db` -> `ledger.db.attempts`); a temporary one for a store without a file. The first
    attempt makes it."""
    if url.startswith("sqlite:///"):
        ledger = Path(url.removeprefix("sqlite:///")).absolute()
        return ledger.with_name(f"{ledger.name}.attempts")
    return Path(tempfile.gettempdir(), f"sparkonce-attempts-{uuid.uuid4().hex}")
