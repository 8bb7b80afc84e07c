"""Runs a suspending store (etcd) for callers that block: the command line and plain scripts, which use `blocking.run`.

The store lives on an event loop in a thread of its own; each call here blocks its caller until that loop has the answer, so that the
coroutine seen from outside never suspends. `watch` does suspend, as everywhere. A lease is handed out wrapped and taken back
unwrapped. Starting a loop per call was rejected: a client belongs to one loop, and so do the leases it keeps.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar, cast

from sparkonce.store.protocol import IdempotencyStore, KeyChange, Lease

T = TypeVar("T")

LOG = logging.getLogger(__name__)
CLOSES = 5.0
"""Seconds to close a client, which takes milliseconds; a command that is done does not wait longer for it."""


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sparkonce-store", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Runs a coroutine on the loop. Raises: TimeoutError: no answer after `timeout` seconds; the coroutine continues."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    async def suspend(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    @property
    def ended(self) -> bool:
        return self._loop.is_closed()

    def end(self, *, timeout: float) -> None:
        """Stops the loop. Raises: TimeoutError: it still runs; its thread ends with the process."""
        self.run(self._loop.shutdown_asyncgens(), timeout=timeout)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError
        self._loop.close()


class WrappedLease:
    """A lease of the inner store, which takes it back unwrapped (`unwrapped`)."""

    def __init__(self, inner: Lease) -> None:
        self.inner = inner

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def deadline(self) -> float:
        return self.inner.deadline


def unwrapped(value: Any) -> Any:
    """An argument as the inner store knows it."""
    return value.inner if isinstance(value, WrappedLease) else value


class ThreadedLease(WrappedLease):
    def __init__(self, loop: _Loop, inner: Lease) -> None:
        super().__init__(inner)
        self._loop = loop

    async def keep_alive(self) -> bool:
        return self._loop.run(self.inner.keep_alive())

    async def revoke(self) -> None:
        self._loop.run(self.inner.revoke())


class _Threaded:
    """Forwards every verb of the protocol by name."""

    def __init__(self, inner: IdempotencyStore) -> None:
        self.inner, self.url = inner, inner.url
        self._loop = _Loop()

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self.inner, verb)

        async def carried_out(*args: Any, **kwargs: Any) -> Any:
            return self._loop.run(
                real(*[unwrapped(one) for one in args], **{name: unwrapped(kwargs[name]) for name in kwargs})
            )

        return carried_out

    async def open_lease(self, *, owner: str) -> ThreadedLease:
        return ThreadedLease(self._loop, self._loop.run(self.inner.open_lease(owner=owner)))

    async def watch(self, since: int) -> AsyncIterator[KeyChange]:
        changes = cast(AsyncGenerator[KeyChange, None], self.inner.watch(since))
        try:
            while True:
                try:
                    change = await self._loop.suspend(_next_of(changes))
                except StopAsyncIteration:
                    return
                yield change
        finally:
            await self._loop.suspend(_closed(changes))

    async def close(self) -> None:
        """Waits `CLOSES` seconds at most: what a caller revoked is revoked by now, so a client that does not close costs nothing."""
        if self._loop.ended:
            return
        try:
            self._loop.run(self.inner.close(), timeout=CLOSES)
            self._loop.end(timeout=CLOSES)
        except TimeoutError:
            LOG.warning("the connection to %s did not close within %g s; it ends with this process", self.url, CLOSES)


async def _next_of(changes: AsyncGenerator[KeyChange, None]) -> KeyChange:
    return await anext(changes)


async def _closed(changes: AsyncGenerator[KeyChange, None]) -> None:
    await changes.aclose()


def threaded(store: IdempotencyStore) -> IdempotencyStore:
    """The same store, for callers that block; it must not have been used before."""
    return cast(IdempotencyStore, _Threaded(store))
