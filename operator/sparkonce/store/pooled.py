"""Runs a blocking store (PostgreSQL) for callers on an event loop: operators and gateways, which must go on while a verb waits.

Each verb runs on one of a fixed number of threads, so that the process has no more connections than that. A verb waits for a free one
for as long as the store waits for an answer, and then raises PoolExhausted: nothing was sent. Verbs get a connection in the order in which
they asked. A caller that is cancelled leaves its verb running: its outcome is unknown, as after a lost reply, and its connection is free
when it ends. A lease is opened and revoked on a thread of its own: one that is to be revoked must not wait for a turn, because its store
goes on renewing it until then.

`store.threaded` is the other direction. An asynchronous PostgreSQL driver was rejected: a step decides inside its transaction, and every
statement of the store would exist twice. asyncio's default threads were, too: outputs and logs use them, for as long as those take.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, cast

from sparkonce import settings
from sparkonce.blocking import run
from sparkonce.errors import PoolExhausted
from sparkonce.store.protocol import Lease
from sparkonce.store.threaded import WrappedLease, unwrapped

T = TypeVar("T")


class _Store(Protocol):
    @property
    def url(self) -> str: ...

    async def close(self) -> None: ...


S = TypeVar("S", bound=_Store)


class _Pool:
    """Threads that carry out verbs. Belongs to the event loop of its first call."""

    def __init__(self, url: str, *, size: int, patience: float, remedy: str) -> None:
        self._url, self._size, self._patience, self._remedy = url, size, patience, remedy
        self._free = asyncio.Semaphore(size)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="store")
        self._of_leases = ThreadPoolExecutor(1, thread_name_prefix="lease")

    async def carry_out(self, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the verb's coroutine on a thread. Raises: PoolExhausted: none became free in time; what the verb raises."""
        try:
            async with asyncio.timeout(self._patience):
                await self._free.acquire()
        except TimeoutError:
            raise PoolExhausted(
                f"all {self._size} connections to the store {self._url} were in use for {self._patience:g} s, and nothing was sent; "
                f"try again{self._remedy}"
            ) from None
        loop = asyncio.get_running_loop()

        def in_turn() -> T:
            try:
                return run(verb())
            finally:
                with contextlib.suppress(RuntimeError):  # the loop was closed: the process ends
                    loop.call_soon_threadsafe(self._free.release)

        return await _done(loop.run_in_executor(self._threads, in_turn))

    async def for_lease(self, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the verb of a lease, which no other verb delays."""
        return await _done(asyncio.get_running_loop().run_in_executor(self._of_leases, lambda: run(verb())))

    def end(self) -> None:
        """Takes no more verbs; those under way end by themselves."""
        self._threads.shutdown(wait=False)
        self._of_leases.shutdown(wait=False)


async def _done(future: asyncio.Future[T]) -> T:
    """Returns or raises what the verb's thread does. A caller that is cancelled leaves the thread running."""
    future.add_done_callback(_looked_at)
    return await asyncio.shield(future)


def _looked_at(future: asyncio.Future[Any]) -> None:
    """The caller may have left: no warning that the error was never read."""
    if not future.cancelled():
        future.exception()


class PooledLease(WrappedLease):
    def __init__(self, pool: _Pool, inner: Lease) -> None:
        super().__init__(inner)
        self._pool = pool

    async def keep_alive(self) -> bool:
        return await self._pool.for_lease(self.inner.keep_alive)

    async def revoke(self) -> None:
        await self._pool.for_lease(self.inner.revoke)


class _Pooled:
    """Forwards every verb, by name, of the protocol and of the store's other interfaces."""

    def __init__(self, inner: Any, pool: _Pool) -> None:
        self.inner, self._pool = inner, pool

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(real):
            return real  # `watch` has a thread of its own

        async def carried_out(*args: Any, **kwargs: Any) -> Any:
            given = [unwrapped(each) for each in args]
            named = {key: unwrapped(kwargs[key]) for key in kwargs}
            return await self._pool.carry_out(lambda: real(*given, **named))

        self.__dict__[name] = carried_out
        return carried_out

    async def open_lease(self, *, owner: str) -> PooledLease:
        return PooledLease(self._pool, await self._pool.for_lease(lambda: self.inner.open_lease(owner=owner)))

    async def close(self) -> None:
        """Closes the connections that are idle; those in use are closed when their verbs end."""
        self._pool.end()
        await self.inner.close()


def pooled(store: S, *, size: int, patience: float, remedy: str = f", or raise {settings.POSTGRES_POOL}") -> S:
    """The same store, whose verbs suspend. `size`: verbs at a time; `patience`: seconds to wait for a turn; `remedy`: the end of the
    sentence that says that none came."""
    return cast(S, _Pooled(store, _Pool(store.url, size=size, patience=patience, remedy=remedy)))
