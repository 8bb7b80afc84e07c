"""A store that suspends (etcd), for callers that do not: the command line and plain scripts, which run coroutines by `blocking.run`.

The store lives on an event loop in a thread of its own; each call here blocks its caller until that loop has the answer, so that the
coroutine seen from outside never suspends. `watch` does suspend, as everywhere. A lease is handed out wrapped and taken back
unwrapped. Starting a loop per call was not taken: a client belongs to one loop, and so do the leases it keeps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar, cast

from sparkonce.store.protocol import Change, IdempotencyStore, Lease

T = TypeVar("T")


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sparkonce-store", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def suspend(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    @property
    def ended(self) -> bool:
        return self._loop.is_closed()

    def end(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ThreadedLease:
    def __init__(self, loop: _Loop, inner: Lease) -> None:
        self._loop, self.inner = loop, inner

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def deadline(self) -> float:
        return self.inner.deadline

    async def keep_alive(self) -> bool:
        return self._loop.run(self.inner.keep_alive())

    async def revoke(self) -> None:
        self._loop.run(self.inner.revoke())


class _Threaded:
    """Every verb by its name: the protocol says what they are."""

    def __init__(self, inner: IdempotencyStore) -> None:
        self.inner, self.url = inner, inner.url
        self._loop = _Loop()

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self.inner, verb)

        async def carried_out(*args: Any, **kwargs: Any) -> Any:
            return self._loop.run(
                real(*[_plain(one) for one in args], **{name: _plain(kwargs[name]) for name in kwargs})
            )

        return carried_out

    async def open_lease(self, *, owner: str) -> ThreadedLease:
        return ThreadedLease(self._loop, self._loop.run(self.inner.open_lease(owner=owner)))

    async def watch(self, since: int) -> AsyncIterator[Change]:
        changes = cast(AsyncGenerator[Change, None], self.inner.watch(since))
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
        if not self._loop.ended:
            self._loop.run(self.inner.close())
            self._loop.end()


def _plain(value: Any) -> Any:
    return value.inner if isinstance(value, ThreadedLease) else value


async def _next_of(changes: AsyncGenerator[Change, None]) -> Change:
    return await anext(changes)


async def _closed(changes: AsyncGenerator[Change, None]) -> None:
    await changes.aclose()


def threaded(store: IdempotencyStore) -> IdempotencyStore:
    """The same store, for callers that block; nothing may have been asked of it before."""
    return cast(IdempotencyStore, _Threaded(store))
