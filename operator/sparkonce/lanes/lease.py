"""The lease that `sparkonce.writer(..., if_busy="refuse")` asks a reply ledger for before it acquires the lane.

It is a courtesy between writers that ask for it: the second one is refused instead of taking the lane from the first one. No row depends on
it. A writer whose lease has lapsed, or that took none, is bound by the log alone: acquiring the lane bars all earlier writers from it.
So the lease is asked for first and released last, and a ledger that does not answer later on stops no writer. That is why
`replies.beating` does not serve here: it ends the work whose claim may be lost.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from sparkonce.errors import InvalidInput, LaneBusy, SparkonceError
from sparkonce.model.identity import hash_of
from sparkonce.replies.beating import BEATS
from sparkonce.replies.keys import bucket_of
from sparkonce.replies.open import MEMORY, open_replies
from sparkonce.replies.protocol import KeyStanding, ReplyLedger, WriteOutcome

DOMAIN = "sparkonce/lane-lease/v1"
SECONDS = 10.0
"""Until another writer may have the lease of one that died or froze."""
ENDS = 5.0
"""Seconds for which `close` waits for the ledger."""


class LaneLease:
    """A lease that is kept by a thread of its own until `close`.

    in_use: once False, the lease is released.

    Raises:
        LaneBusy: another writer has it.
        InvalidInput: not an address of a ledger; StoreUnavailable, StoreUnusable, StoreFull, RecordUnreadable: from the ledger.
    """

    def __init__(self, store: str, uri: str, name: str) -> None:
        if store == MEMORY:
            raise InvalidInput(f"store is {MEMORY!r}, which no other process sees; name a file or a server")
        self.in_use: Callable[[], bool] = lambda: True
        self._store, self._uri, self._name = store, uri, name
        self._key, self._nonce = hash_of(DOMAIN, uri, name), uuid.uuid4().hex
        self._asked: Future[None] = Future()
        self._stopping = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name=f"lane-lease-{name}", daemon=True)
        self._thread.start()
        try:
            self._asked.result()
        except BaseException:  # an interrupt too: no lease without its owner
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the lease without waiting until the ledger knows it."""
        self._stopping.set()
        self._wake()

    def close(self) -> None:
        """Ends the lease. If the ledger does not answer, it lapses after `SECONDS`."""
        self.stop()
        self._thread.join(ENDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._held())
        except SparkonceError as error:
            if not self._asked.done():
                self._asked.set_exception(error)
        except BaseException as error:
            if not self._asked.done():
                self._asked.set_exception(error)
            raise

    async def _held(self) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended, and the lease with it
                loop.call_soon_threadsafe(stopped.set)

        self._wake = wake
        ledger = open_replies(self._store)
        try:
            await self._acquired(ledger)
            self._asked.set_result(None)
            while not self._stopping.is_set() and self.in_use():
                try:
                    async with asyncio.timeout(SECONDS / BEATS):
                        await stopped.wait()
                except TimeoutError:
                    if not await self._beat(ledger):
                        return
            await ledger.release(self._key, self._nonce)
        finally:
            await ledger.close()

    async def _acquired(self, ledger: ReplyLedger) -> None:
        found = await ledger.reserve(
            self._key,
            caller=bucket_of(DOMAIN),
            fingerprint=self._key,
            nonce=self._nonce,
            lease=SECONDS,
            lifetime=SECONDS,
        )
        if found.standing is KeyStanding.STALE:
            seen = found.record.nonce
            taken = await ledger.take_over(self._key, seen=seen, nonce=self._nonce, lease=SECONDS)
            if taken is WriteOutcome.WRITTEN:
                return
        elif found.standing is KeyStanding.OWNED:
            return
        raise LaneBusy(
            f"the lane {self._name} of {self._uri} has a writer, whose lease in {ledger.url} lapses in {found.left:.0f} s unless it is "
            "renewed; stop that writer, or open the lane with if_busy='take', which fences it"
        )

    async def _beat(self, ledger: ReplyLedger) -> bool:
        """Prolongs the lease; False if another writer has it, which will acquire the lane, too."""
        try:
            outcome = await ledger.beat(self._key, self._nonce, lease=SECONDS)
            if outcome is WriteOutcome.NOT_FOUND:
                await self._acquired(ledger)
        except LaneBusy:
            return False
        except SparkonceError:
            return True
        return outcome is not WriteOutcome.LOST
