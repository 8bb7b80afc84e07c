"""The drives of one operator process: one asyncio task per owned key, woken by changes and retried after errors.

A drive ends when its generation ended, was held, or has another owner. Any exception counts as a temporary problem and is retried, usually
within a second, while the lease lives: no exception may block a key for ever. When the lease is lost every drive is cancelled wherever it
is; requests already sent may still be applied, which every step of a drive allows for.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from sparkonce.attempt.decide import Decision, Observation
from sparkonce.attempt.drive import Drive, DrivenJob, Ended, NotOurs, until_set
from sparkonce.attempt.observe import receivable_through
from sparkonce.attempt.settle import DelegatedSettler
from sparkonce.controller.lease_guard import LeaseGuard, NotOwner
from sparkonce.errors import (
    InvalidInput,
    LaunchUnavailable,
    OutputCorrupt,
    OutputUnavailable,
    OutputUnsafe,
    OutputUnsupported,
    SparkonceError,
)
from sparkonce.launch.protocol import ApplicationState, Follows, Launcher
from sparkonce.model.record import Address, GatewayAddress, Record, SpecBody
from sparkonce.store.protocol import Claim, IdempotencyStore, Owned

log = logging.getLogger(__name__)

AGAIN = 0.1
"""Seconds before a drive that raised is retried; doubled each time."""
AGAIN_MAX = 1.0
"""The longest such pause: meanwhile the claim blocks the key."""
LAUNCH_MAX = 5.0
"""The longest such pause when an application could not be created: each try loads the API server."""
OUTPUT_MAX = 30.0
"""The longest such pause when an output does not answer: each try is many requests, and outages of object stores last minutes."""
QUIET = 60.0
"""Seconds without errors after which the next error counts as new: it is logged, and retried soon."""
REFUSED_MAX = 30.0
"""The longest wait that an API server may ask for."""
EVERY = 10.0
"""Seconds between two statuses that differ in their progress alone: each is a write that every watcher gets."""
_LONGEST: dict[type[Exception], float] = {
    LaunchUnavailable: LAUNCH_MAX,
    OutputUnavailable: OUTPUT_MAX,
    OutputCorrupt: OUTPUT_MAX,
    OutputUnsupported: OUTPUT_MAX,
    OutputUnsafe: OUTPUT_MAX,
    InvalidInput: OUTPUT_MAX,
}


@dataclass
class ShownProgress:
    """The progress of one attempt as statuses show it, updated at most every EVERY seconds."""

    shown: Mapping[str, Any] | None = None
    _since: float = -inf

    def moved(self, progress: Mapping[str, Any], now: float) -> bool:
        """Takes the progress of a heartbeat. True: it is to be shown now. `now`: monotonic seconds."""
        if not progress or progress == self.shown or now - self._since < EVERY:
            return False
        self.shown, self._since = dict(progress), now
        return True


@dataclass(kw_only=True)
class OwnedKey:
    """One owned key and its drive's state."""

    record: Record
    claim: Claim
    trouble: str = ""
    """One sentence: the error that blocks the drive at the moment; empty: none."""
    task: asyncio.Task[None] | None = None
    since: float = field(default_factory=time.monotonic)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _stirred: bool = False
    """Whether a change outside the record has woken the drive."""
    decision: Decision | None = None
    """The latest decision, with its evidence."""
    observation: Observation | None = None
    opened: SpecBody | None = None
    """The recorded spec, if this process has just opened the generation."""
    logged: str = ""
    """The trouble that was logged last."""
    troubled: float = -inf
    """When the last error occurred, monotonic seconds."""
    edition: object = None
    """Edition of the leader's object when the key was last reconciled."""
    progress: ShownProgress = field(default_factory=ShownProgress)
    """Progress of the attempt's driver."""
    _read: int = 0
    """Revision of the record as the drive knows it."""
    _reported: int = 0
    """The newest revision of the record that a watch or a reply reported."""

    def wake(self, *, revision: int | None = None) -> None:
        """Wakes the drive. `revision`: the store's, if the record changed; None: something else did."""
        self._reported = max(self._reported, revision or 0)
        if revision is None:
            self._stirred = True
        if revision is None or revision > self._read:
            self._wake.set()

    def edited(self, edition: object) -> None:
        """Wakes the drive if the leader's object was edited: suspend, timeouts and tunable fields may differ."""
        if edition != self.edition:
            self.edition = edition
            self.wake()

    def read(self, record: Record) -> bool:
        """Notes the record that the drive wrote or read. False: it was known."""
        self._read = record.revision
        return self.moved(record)

    def moved(self, record: Record) -> bool:
        """Notes a record that this process read or wrote anywhere. False: a record at least as new was known."""
        if record.revision <= self.record.revision and record.generation == self.record.generation:
            return False
        self.record = record
        self.wake(revision=record.revision)
        return True

    def decided(self, record: Record, decision: Decision, observation: Observation) -> None:
        """Notes the drive's decision; it clears the trouble."""
        self.moved(record)
        self.decision, self.observation, self.trouble = decision, observation, ""

    async def rest(self, seconds: float) -> bool:
        """Waits until woken, at most so many seconds. False: not woken."""
        await until_set(self._wake, seconds)
        woken = self._wake.is_set()
        self._wake.clear()
        return woken

    async def wait(self, seconds: float) -> bool:
        """Implements `Drive.wait`. False: woken, but the record has not changed."""
        end = time.monotonic() + seconds
        while await self.rest(max(0.0, end - time.monotonic())):
            if self._reported > self._read:
                return True
            if self._stirred:
                self._stirred = False
                return False
            # woken by our own write, which the watch reported before the reply came
        return True  # timed out: read everything again

    async def refrain(self, seconds: float) -> None:
        """Waits as long as a server asked for; only a change of the record ends it earlier (it may request a stop)."""
        end = time.monotonic() + seconds
        while self._reported <= self._read and (left := end - time.monotonic()) > 0:
            await self.rest(left)


@dataclass(frozen=True, kw_only=True)
class DriveBuilder:
    """Makes the drives of one operator process from what they have in common."""

    store: IdempotencyStore
    launcher: Launcher
    lease_guard: LeaseGuard
    install: str
    owner: str
    follows: Follows | None = None
    """Observes applications that sparkonce did not start."""
    settlers: DelegatedSettler = field(default_factory=DelegatedSettler)
    """Makes each key's settler."""
    serving: Callable[[], Awaitable[float | None]] | None = None
    """Seconds that gateways have served without a gap; see `observe.receivable_through`. None: drivers write to the store itself."""
    gateway: GatewayAddress | None = None
    """How drivers reach the ledger; None: they cannot."""
    new_nonce: Callable[[], str] = lambda: uuid.uuid4().hex
    unnoted: dict[str, ApplicationState] = field(default_factory=dict)
    """See `Drive.unnoted`."""

    def build(
        self,
        running: OwnedKey,
        *,
        describe: Callable[[Record, SpecBody], DrivenJob],
        edition: Callable[[Record], object],
        on_decision: Callable[[Record, Decision, Observation], None],
        on_record: Callable[[Record], None],
    ) -> Drive:
        """The drive of an owned key; the arguments as `Drive` has them."""
        receivable = None
        if self.serving is not None:
            receivable = receivable_through(self.serving, lambda: time.monotonic() - running.since)
        drive = Drive(
            store=self.store,
            launcher=self.launcher,
            describe=describe,
            wait=running.wait,
            new_nonce=self.new_nonce,
            install=self.install,
            store_url="",
            follows=self.follows,
            gateway=self.gateway,
            owner=self.owner,
            edition=edition,
            on_decision=on_decision,
            on_record=on_record,
            guard=self.lease_guard.guard,
            settler=self.settlers.settler(self.store, self.owner),
            offload=self.settlers.offload,
            receivable=receivable,
            polled=False,
            unnoted=self.unnoted,
        )
        if running.opened is not None:
            drive.opened(running.record, running.opened)
        return drive


class DriveTasks:
    """Starts, wakes and drops drives. `make` builds a key's drive; `on_end` gets its result, or None if it was dropped."""

    def __init__(
        self,
        lease_guard: LeaseGuard,
        *,
        make: Callable[[OwnedKey], Drive],
        on_end: Callable[[Address, Ended | NotOurs | None], None],
        on_trouble: Callable[[OwnedKey], None] = lambda _: None,
    ) -> None:
        self._lease_guard, self._make, self._on_end, self._on_trouble = lease_guard, make, on_end, on_trouble
        self._running: dict[Address, OwnedKey] = {}
        self._named: dict[str, set[Address]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def get(self, address: Address) -> OwnedKey | None:
        return self._running.get(address)

    def start(self, owned: Owned, *, opened: SpecBody | None = None) -> OwnedKey:
        """Starts the drive of a key that this process owns, unless it runs already. `opened`: the recorded spec, if this process has just
        opened the generation."""
        address = owned.record.address
        if (there := self._running.get(address)) is not None:
            if there.claim == owned.claim:
                return there
            self._drop(address)
        running = OwnedKey(record=owned.record, claim=owned.claim, opened=opened)
        self._running[address] = running
        self._named.setdefault(address.hash20, set()).add(address)
        running.task = asyncio.create_task(self._drive(running), name=f"drive {address.hash20}")
        return running

    async def _drive(self, running: OwnedKey) -> None:
        address = running.record.address
        drive = self._make(running)
        ended: Ended | NotOurs | None = None
        pause = AGAIN
        try:
            while self._lease_guard.alive():
                try:
                    ended = await drive.run(running.record, running.claim)
                    break
                except NotOwner:
                    break
                except Exception as problem:  # noqa: BLE001 - no exception may block the key for ever
                    pause = await self._after(running, problem, pause)
                else:
                    pause = AGAIN
        finally:
            if self._running.get(address) is running:
                del self._running[address]
                self._unnamed(address)
                self._on_end(address, ended)

    async def _after(self, running: OwnedKey, problem: Exception, pause: float) -> float:
        expected = isinstance(problem, SparkonceError)
        now = time.monotonic()
        if now - running.troubled > QUIET:
            running.logged, pause = "", AGAIN
        running.troubled = now
        running.trouble = str(problem) if expected else f"unexpected: {problem!r}"
        if running.trouble != running.logged:  # logged once per change: an outage may last hours
            running.logged = running.trouble
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s: %s; trying again",
                running.record.key,
                problem if expected else repr(problem),
                exc_info=None if expected else problem,
            )
        self._on_trouble(running)
        longest = next((most for kind, most in _LONGEST.items() if isinstance(problem, kind)), AGAIN_MAX)
        pause = min(pause, longest)
        asked = (problem.retry_after or 0.0) if isinstance(problem, LaunchUnavailable) else 0.0
        await running.refrain(min(asked, REFUSED_MAX))
        await running.rest(max(0.0, pause - asked))
        running.troubled = time.monotonic()
        return min(2 * pause, longest)

    def wake(self, address: Address, *, revision: int | None = None) -> bool:
        """Wakes the key's drive. False: this process does not drive the key."""
        running = self._running.get(address)
        if running is not None:
            running.wake(revision=revision)
        return running is not None

    def wake_named(self, hash20: str) -> None:
        """Wakes drives by the hash in the label of applications and pods. A key of another realm with the same digits is woken too, at the
        cost of one observation."""
        for address in self._named.get(hash20, ()):
            self.wake(address)

    def _drop(self, address: Address) -> None:
        running = self._running.pop(address)
        self._unnamed(address)
        if running.task is not None:
            running.task.cancel()

    def _unnamed(self, address: Address) -> None:
        named = self._named.get(address.hash20, set())
        named.discard(address)
        if not named:
            self._named.pop(address.hash20, None)

    def drop_all(self, realm: str | None = None) -> list[Address]:
        """Fail-stop: cancels every drive, or every one of a realm, and returns their keys."""
        dropped = [address for address in self._running if realm in (None, address.realm)]
        for address in dropped:
            self._drop(address)
        return dropped

    async def drain(self) -> None:
        """Graceful stop: cancels the drives and waits until each has ended."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        self.drop_all()
        await asyncio.gather(*tasks, return_exceptions=True)
