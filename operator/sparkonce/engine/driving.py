"""The drives of one operator process: a task per owned key, woken when something changes, driven again when something fails.

A drive ends when its generation ended, was held, or is somebody else's; anything it raises is trouble of the moment: it is driven again
within a second as long as the lease lives, so that no exception holds a key for ever. When the lease is lost every drive is dropped in
the middle of whatever it does; what it had sent may still land, which is what every drive allows for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from sparkonce.engine.decide import Decision, Observation
from sparkonce.engine.drive import Drive, Ended, NotOurs
from sparkonce.engine.ownership import NotOwner, Ownership
from sparkonce.engine.progress import Shown
from sparkonce.engine.workqueue import until_set
from sparkonce.errors import (
    InvalidInput,
    LaunchUnavailable,
    OutputCorrupt,
    OutputUnavailable,
    OutputUnsafe,
    OutputUnsupported,
    SparkonceError,
)
from sparkonce.model.record import Address, Record, SpecBody
from sparkonce.store.protocol import Claim, Owned

log = logging.getLogger(__name__)

AGAIN = 0.1
"""Seconds before a drive that raised is driven again; doubled each time."""
AGAIN_MAX = 1.0
"""The longest such wait: a claim without progress holds a key."""
LAUNCH_MAX = 5.0
"""The longest such wait when an application could not be made: asking costs others."""
OUTPUT_MAX = 30.0
"""The longest such wait when an output does not answer: each try is many requests, and outages of stores last minutes."""
QUIET = 60.0
"""Seconds without trouble after which the next one is a new one: told again, and tried again soon."""
REFUSED_MAX = 30.0
"""The longest wait that an API server may ask for."""
_LONGEST: dict[type[Exception], float] = {
    LaunchUnavailable: LAUNCH_MAX,
    OutputUnavailable: OUTPUT_MAX,
    OutputCorrupt: OUTPUT_MAX,
    OutputUnsupported: OUTPUT_MAX,
    OutputUnsafe: OUTPUT_MAX,
    InvalidInput: OUTPUT_MAX,
}


@dataclass(kw_only=True)
class Running:
    """One owned key."""

    record: Record
    claim: Claim
    trouble: str = ""
    """One sentence: why nothing moves at the moment."""
    task: asyncio.Task[None] | None = None
    since: float = field(default_factory=time.monotonic)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _stirred: bool = False
    """Woken for something else than the record."""
    decision: Decision | None = None
    """The last one, with its evidence."""
    observation: Observation | None = None
    opened: SpecBody | None = None
    """Its spec, where this process has just opened the generation."""
    told: str = ""
    """The trouble that was logged last."""
    troubled: float = -inf
    """When there was trouble last, monotonic seconds."""
    edition: object = None
    """Of the leader's object, as the last look saw it."""
    progress: Shown = field(default_factory=Shown)
    """Of the attempt's driver."""
    _read: int = 0
    """Revision of the record as the drive knows it."""
    _told: int = 0
    """The newest revision that anybody told of."""

    def wake(self, *, revision: int | None = None) -> None:
        """Something changed; `revision`: of the store, when the record did."""
        self._told = max(self._told, revision or 0)
        if revision is None:
            self._stirred = True
        if revision is None or revision > self._read:
            self._wake.set()

    def edited(self, edition: object) -> None:
        """The leader's object is this edition now: what it may change (suspend, timeouts, tunable fields) is looked at anew."""
        if edition != self.edition:
            self.edition = edition
            self.wake()

    def read(self, record: Record) -> bool:
        """The drive wrote or read this; False: it is what was known."""
        self._read = record.revision
        return self.moved(record)

    def moved(self, record: Record) -> bool:
        """This is the newest record that anybody here has seen."""
        if record.revision <= self.record.revision and record.generation == self.record.generation:
            return False
        self.record = record
        self.wake(revision=record.revision)
        return True

    def decided(self, record: Record, decision: Decision, observation: Observation) -> None:
        self.moved(record)
        self.decision, self.observation, self.trouble = decision, observation, ""

    async def rest(self, seconds: float) -> bool:
        """Until something changed, or so long; False: nothing did."""
        await until_set(self._wake, seconds)
        woken = self._wake.is_set()
        self._wake.clear()
        return woken

    async def wait(self, seconds: float) -> bool:
        """As a drive waits; False: nothing in the record has changed."""
        end = time.monotonic() + seconds
        while await self.rest(max(0.0, end - time.monotonic())):
            if self._told > self._read:
                return True
            if self._stirred:
                self._stirred = False
                return False
            # our own write was told before it was answered
        return True  # long enough to look at everything again

    async def refrain(self, seconds: float) -> None:
        """So long, because somebody asked for it; only a change of the record is more urgent (a stop may be wanted)."""
        end = time.monotonic() + seconds
        while self._told <= self._read and (left := end - time.monotonic()) > 0:
            await self.rest(left)


class Driving:
    """`make` builds the drive of a key; `on_end` is told what became of it."""

    def __init__(
        self,
        ownership: Ownership,
        *,
        make: Callable[[Running], Drive],
        on_end: Callable[[Address, Ended | NotOurs | None], None],
        on_trouble: Callable[[Running], None] = lambda _: None,
    ) -> None:
        self._ownership, self._make, self._on_end, self._on_trouble = ownership, make, on_end, on_trouble
        self._running: dict[Address, Running] = {}
        self._named: dict[str, set[Address]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def get(self, address: Address) -> Running | None:
        return self._running.get(address)

    def start(self, owned: Owned, *, opened: SpecBody | None = None) -> Running:
        """Drives a key that this process has just claimed, or finds that it still claims; `opened`: with this spec it opened it."""
        address = owned.record.address
        if (there := self._running.get(address)) is not None:
            if there.claim == owned.claim:
                return there
            self._drop(address)
        running = Running(record=owned.record, claim=owned.claim, opened=opened)
        self._running[address] = running
        self._named.setdefault(address.hash20, set()).add(address)
        running.task = asyncio.create_task(self._drive(running), name=f"drive {address.hash20}")
        return running

    async def _drive(self, running: Running) -> None:
        address = running.record.address
        drive = self._make(running)
        ended: Ended | NotOurs | None = None
        pause = AGAIN
        try:
            while self._ownership.alive():
                try:
                    ended = await drive.run(running.record, running.claim)
                    break
                except NotOwner:
                    break
                except Exception as problem:  # noqa: BLE001 - a key must not be held by a drive that died of anything
                    pause = await self._after(running, problem, pause)
                else:
                    pause = AGAIN
        finally:
            if self._running.get(address) is running:
                del self._running[address]
                self._unnamed(address)
                self._on_end(address, ended)

    async def _after(self, running: Running, problem: Exception, pause: float) -> float:
        expected = isinstance(problem, SparkonceError)
        now = time.monotonic()
        if now - running.troubled > QUIET:
            running.told, pause = "", AGAIN
        running.troubled = now
        running.trouble = str(problem) if expected else f"unexpected: {problem!r}"
        if running.trouble != running.told:  # once per change: it may go on for hours
            running.told = running.trouble
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
        """False: this process does not drive the key."""
        running = self._running.get(address)
        if running is not None:
            running.wake(revision=revision)
        return running is not None

    def wake_named(self, hash20: str) -> None:
        """By the label of its applications and pods; realms whose keys share these digits are woken too, which costs a look."""
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

    def drop_all(self) -> list[Address]:
        """Fail-stop: nothing of them goes on. Returns the keys."""
        dropped = list(self._running)
        for address in dropped:
            self._drop(address)
        return dropped

    async def drain(self) -> None:
        """Graceful stop: cancels the drives and waits until each has let go."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        self.drop_all()
        await asyncio.gather(*tasks, return_exceptions=True)
