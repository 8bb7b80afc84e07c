"""The watch of a PostgreSQL store: a connection that listens, a thread that reads, and a sweep for changes without a notification.

Changes are read from the tables, in the order of the store's revisions; a notification only says that there may be some. The connection
listens before it reads for the first time, so a commit in between is read or heard. Everything that is never heard is found by the sweep: a
writer that died between its commit and its notification or sends none, and claims whose lease ended by the database's clock, which notifies
nobody. So the sweep bounds how late any change is delivered.

After a reconnect a gap is reported beside the changes: the server that answers now may be a standby that lacks commits of the one before,
and its revisions may have passed the watcher's since.

asyncio's own support for PostgreSQL connections was not used, because it would need every statement of the store a second time; LISTEN over
the pool was not either, because a notification reaches the connection that listens, and that one must not be lent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from sparkonce.errors import StoreUnavailable
from sparkonce.store.ledger import Changes
from sparkonce.store.postgres.database import PostgresDatabase
from sparkonce.store.protocol import KeyChange

log = logging.getLogger(__name__)

SWEEP = 0.5
"""Seconds between two sweeps: the longest that a change waits whose notification was lost. A dead owner must be replaced within a second
of its lease's end, and its successor needs some of it."""
PAUSE = 0.02
"""Seconds between two reads while notifications keep coming: a burst of commits is read at once, not commit by commit."""
AGAIN = 0.5
"""Seconds between tries while the database does not answer, beside the store's own timeout."""


class SweptStore(Protocol):
    """The parts of the store that a feed calls, from a thread of its own."""

    url: str

    def sweep(self, database: PostgresDatabase) -> None: ...

    def changes(self, since: int, database: PostgresDatabase) -> Changes: ...


class ChangeFeed:
    """Changes for one watcher; its calls block, and come from one thread."""

    def __init__(self, store: SweptStore, database: PostgresDatabase, *, sweep: float) -> None:
        """`database`: a connection that listens, the feed's own."""
        self._store, self._database, self._seconds = store, database, sweep
        self._due = 0.0
        """time.monotonic() of the next sweep."""
        self._read_over: int | None = None
        """Which connection the last changes were read over."""

    def next(self, since: int) -> tuple[Changes, bool]:
        """Waits for a notification or for the sweep, then reads the changes after a revision; and whether they were read over another
        connection than the ones before.

        Raises: StoreUnavailable: nothing is lost, the same call again reads it. StoreUnusable."""
        self._database.heard(max(0.0, self._due - time.monotonic()))
        if time.monotonic() >= self._due:
            with suppress(
                StoreUnavailable
            ):  # a lock that others hold; changes are read all the same, and the next sweep tries again
                self._store.sweep(self._database)
            self._due = time.monotonic() + self._seconds
        changes = self._store.changes(since, self._database)
        before, self._read_over = self._read_over, self._database.opened
        return changes, before not in (None, self._read_over)


async def watch(store: SweptStore, database: PostgresDatabase, since: int, *, sweep: float) -> AsyncIterator[KeyChange]:
    """Changes after a revision. Waits through outages. `database`: a connection that listens; it is closed at the end.

    Raises: StoreUnusable."""
    feed = ChangeFeed(store, database, sweep=sweep)
    thread = ThreadPoolExecutor(1, thread_name_prefix="changes")
    loop = asyncio.get_running_loop()
    answers = True
    try:
        while True:
            try:
                changes, reconnected = await loop.run_in_executor(thread, feed.next, since)
            except StoreUnavailable as problem:
                if answers:
                    log.warning("the watch of %s: %s; it goes on when the store answers", store.url, problem)
                answers = False
                await asyncio.sleep(AGAIN)
                continue
            answers = True
            if changes.gap or reconnected:
                yield KeyChange(None, changes.revision if changes.gap else since, gap=True)
            for address, revision in () if changes.gap else changes.seen:
                yield KeyChange(address, revision, unowned=address in changes.unowned, ended=address in changes.ended)
            since = changes.revision
            await asyncio.sleep(PAUSE)
    finally:
        with suppress(RuntimeError):  # at the end of the process threads take no more work
            thread.submit(database.close)
        thread.shutdown(wait=False)  # its last call is bounded by the store's timeout
