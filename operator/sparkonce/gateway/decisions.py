"""Carries out people's decisions about keys off the event loop: the command line's verbs, on a ledger of a cluster.

Reading outputs blocks for as long as their store takes, and so do these verbs; each therefore runs on a thread with a blocking connection
to the ledger, and drivers' heartbeats are served meanwhile. Few run at once: further callers get 503 and retry, which is better than
waiting behind an output that does not answer.

A blocked call cannot be ended from outside. One realm therefore has few threads of its own, and a call that is overdue keeps its realm's
thread but no longer counts among those of all realms: a realm whose outputs hang delays only itself. Threads are daemons and not a
pool's: an executor joins its threads when the process ends, and would wait for a hung output.

A gateway acts for people of many namespaces and reads no output for them unless its administrator says so (SPARKONCE_SETTLE): the right to
decide about a key is not a right to the tables that its job names.

A caller that disconnects changes nothing: what was begun is carried out, and the same request again reports the current state.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sparkonce import settings
from sparkonce.attempt.settle import Settles, settles_as
from sparkonce.commands.remote import RemoteLauncher
from sparkonce.gateway.problem import ProblemResponse
from sparkonce.local.runner import NOWHERE, LocalRunner
from sparkonce.store.protocol import IdempotencyStore

T = TypeVar("T")

AT_ONCE = 8
"""Decisions and explanations of all realms that are not overdue: each may read an output's metadata into this process's memory."""
PER_REALM = 2
"""Of one realm, overdue ones included: a hung one leaves room for another, and four realms are needed to use all places at once."""
LONGEST = 60.0
"""Seconds after which the caller gets 503 and the place is free for others; the verb continues, on its realm's thread."""
RETRY_AFTER = 5.0
"""Seconds: most decisions take less."""


class Signed(LocalRunner):
    """A runner that acts for a caller, who is named in the history and as the claim's owner."""

    by = ""

    @property
    def owner(self) -> str:
        return self.by or super().owner


class Decisions:
    def __init__(self, open_ledger: Callable[[], IdempotencyStore], *, install: str) -> None:
        """`open_ledger`: a store whose verbs block (`store.open.open_blocking`), opened when first used."""
        self._open, self._install = open_ledger, install
        self._store: IdempotencyStore | None = None
        self._opening = threading.Lock()
        self._in_time: set[asyncio.Future[Any]] = set()
        self._of_realm: Counter[str] = Counter()

    async def carry_out(self, work: Callable[[LocalRunner], Awaitable[T]], *, realm: str, by: str = "") -> T:
        """Runs `work` on a thread. `realm`: of the key. `by`: who decides.

        Raises: what `work` raises. ProblemResponse: 503: too many run, in this realm or in all, and nothing was begun; or this one
        takes longer than LONGEST, and continues."""
        if self._of_realm[realm] >= PER_REALM:
            raise ProblemResponse(
                503,
                f"{PER_REALM} decisions about keys of {realm} are being carried out here now, and this one was not begun; "
                "send it again when one of them has ended",
                retry_after=RETRY_AFTER,
            )
        if len(self._in_time) >= AT_ONCE:
            raise ProblemResponse(
                503,
                f"{AT_ONCE} decisions are being carried out here now, and this one was not begun; send it again",
                retry_after=RETRY_AFTER,
            )
        done = self._begin(work, realm, by)
        try:
            async with asyncio.timeout(LONGEST):
                return await asyncio.shield(done)
        except TimeoutError:
            if done.done():
                return done.result()  # a TimeoutError of the work itself, or an answer at the last moment
            raise ProblemResponse(
                503,
                f"it has not ended within {LONGEST:g} s and goes on; look at the key again",
                retry_after=RETRY_AFTER,
            ) from None

    def _begin(self, work: Callable[[LocalRunner], Awaitable[T]], realm: str, by: str) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def ended(value: T | None, problem: BaseException | None) -> None:
            if done.cancelled():
                return
            if problem is None:
                done.set_result(value)  # type: ignore[arg-type] # a value where there is no problem
            else:
                done.set_exception(problem)
                done.exception()  # the caller may have left: no warning that it was never read

        def call() -> None:
            value, problem = None, None
            try:
                value = self._run(work, by)
            except BaseException as caught:  # noqa: BLE001 - raised where the caller waits
                problem = caught
            with contextlib.suppress(RuntimeError):  # the loop was closed: the process ends
                loop.call_soon_threadsafe(ended, value, problem)

        thread = threading.Thread(target=call, name=f"decision {realm}", daemon=True)
        thread.start()  # raises if the system has no thread left: nothing is counted then
        self._in_time.add(done)
        self._of_realm[realm] += 1
        overdue = loop.call_later(LONGEST, self._in_time.discard, done)

        def left(_: object) -> None:
            overdue.cancel()
            self._in_time.discard(done)
            self._of_realm[realm] -= 1
            if not self._of_realm[realm]:
                del self._of_realm[realm]

        done.add_done_callback(left)
        return done

    def _run(self, work: Callable[[LocalRunner], Awaitable[T]], by: str) -> T:
        with self._opening:  # by one thread; a second connection would never be closed
            if self._store is None:
                self._store = self._open()
            store = self._store
        runner = Signed(
            store=store,
            attempts=NOWHERE,
            install=self._install,
            launcher=RemoteLauncher(),
            remote=True,
            settles=settles_as(settings.settle(Settles.RUN)),
        )
        runner.by = by

        async def carried_out() -> T:
            return await work(runner)

        return asyncio.run(carried_out())

    async def close(self) -> None:
        """Closes the ledger; a decision that still runs ends with the process."""
        if self._store is not None:
            await self._store.close()
