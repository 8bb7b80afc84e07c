"""Runs the operator's work at outputs in threads, so that an output that does not answer costs only its own key.

A blocked call cannot be ended from outside. Its key gets `OutputUnavailable` after a time limit and retries with the usual back-off; until
the call has ended, further work of the same key is refused at once. A call that ends late is like one of a process that froze, which the
sinks allow for (docs/design.md, section 8). Each namespace has a limited number of threads, which only its own keys wait for.

Threads are daemons and not a pool's: an executor joins its threads when the process ends, and would wait for a hung output.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparkonce.blocking import run
from sparkonce.errors import OutputUnavailable
from sparkonce.model.record import Address

T = TypeVar("T")


@dataclass(kw_only=True)
class OutputThreads:
    """Implements `Offload`, on one event loop."""

    seconds: float
    """The longest that a caller waits, in the queue of its namespace included."""
    per_realm: int
    """Threads of one namespace at a time."""
    queues: bool = True
    """Whether callers wait for a thread while a call of their namespace is overdue; else they are refused at once."""
    _busy: set[Address] = field(default_factory=set)
    _threads: Counter[str] = field(default_factory=Counter)
    _overdue: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, list[asyncio.Future[None]]] = field(default_factory=dict)

    async def __call__(self, address: Address, work: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        if address in self._busy:
            raise self._silent()
        self._busy.add(address)
        try:
            async with asyncio.timeout(self.seconds):
                await self._turn(address.realm)
        except TimeoutError:
            self._busy.discard(address)
            raise self._full(address.realm) from None
        except BaseException:
            self._busy.discard(address)
            raise
        done = self._begin(address, work)
        if (await asyncio.wait([done], timeout=self.seconds))[0]:
            return done.result()
        self._overdue[address.realm] += 1
        done.add_done_callback(lambda _: self._overdue.subtract([address.realm]))
        raise self._silent()

    def _silent(self) -> OutputUnavailable:
        return OutputUnavailable(
            f"this key's outputs do not answer within {self.seconds:g} s; the operator asks again until they do; other keys go on"
        )

    def _full(self, realm: str) -> OutputUnavailable:
        return OutputUnavailable(
            f"the outputs of {self._threads[realm]} other keys of namespace {realm} do not answer, and this key waits for them; "
            "their statuses name them"
        )

    async def _turn(self, realm: str) -> None:
        """Takes one of the namespace's threads."""
        while self._threads[realm] >= self.per_realm:
            if not self.queues and self._overdue[realm] > 0:
                raise self._full(realm)
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(realm, []).append(turn)
            await turn
        self._threads[realm] += 1

    def _begin(self, address: Address, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def ended(value: T | None, problem: BaseException | None) -> None:
            self._ended(address)
            if done.done():
                return
            if problem is None:
                done.set_result(value)  # type: ignore[arg-type] # a value where there is no problem
            else:
                done.set_exception(problem)
                done.exception()  # the caller may have left: no warning that it was never read

        def call() -> None:
            value, problem = None, None
            try:
                value = context.run(lambda: run(work()))
            except BaseException as caught:  # noqa: BLE001 - raised where the caller waits
                problem = caught
            with contextlib.suppress(RuntimeError):  # the loop was closed: the process ends
                loop.call_soon_threadsafe(ended, value, problem)

        threading.Thread(target=call, name=f"outputs {address.hash20}", daemon=True).start()
        return done

    def _ended(self, address: Address) -> None:
        self._busy.discard(address)
        self._threads[address.realm] -= 1
        for turn in self._waiting.pop(address.realm, []):
            if not turn.done():
                turn.set_result(None)
        if self._threads[address.realm] <= 0:
            del self._threads[address.realm]
