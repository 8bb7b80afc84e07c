"""Outputs that block or raise: the event loop continues, calls of one key do not pile up, and each namespace has its own threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from harness.patience import promised
from sparkonce.controller.output_threads import OutputThreads
from sparkonce.errors import OutputCorrupt, OutputUnavailable
from sparkonce.model.record import Address


def key(name: str, realm: str = "team-a") -> Address:
    return Address(realm=realm, key_hash=name.rjust(64, "0"))


async def answer() -> str:
    return threading.current_thread().name


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Hung calls wait for it; it is opened when the test ends."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def hung(gate: threading.Event) -> Callable[[], Any]:
    async def wait() -> str:
        gate.wait(60)
        return "late"

    return wait


def test_a_blocked_output_blocks_neither_the_loop_nor_another_key(hung: Callable[[], Any]) -> None:
    """Each call has its own thread. A blocked key gets an error after the limit, and its next call is refused and not begun while that call
    has not ended."""
    begun: list[str] = []
    both = threading.Barrier(2)

    async def meets() -> int:
        both.wait(10)
        return threading.get_ident()

    async def begins() -> None:
        begun.append("a call of the blocked key")

    async def played() -> None:
        threads = OutputThreads(seconds=0.3, per_realm=3)
        began = time.monotonic()
        blocked = asyncio.create_task(threads(key("1"), hung))
        others = await asyncio.gather(threads(key("2"), meets), threads(key("3"), meets))
        assert time.monotonic() - began < promised(0.1)
        assert len({*others, threading.get_ident()}) == 3
        with pytest.raises(OutputUnavailable, match=r"not answer within 0\.3 s"):
            await blocked
        assert time.monotonic() - began >= 0.3
        with pytest.raises(OutputUnavailable, match="not answer within"):
            await threads(key("1"), begins)
        assert await threads(key("2"), answer)
        assert begun == []

    asyncio.run(played())


def test_what_ends_late_frees_its_key(gate: threading.Event, hung: Callable[[], Any]) -> None:
    """A call that exceeded its limit ends in its thread, after which the key's next call runs."""

    async def played() -> None:
        threads = OutputThreads(seconds=0.1, per_realm=1)
        with pytest.raises(OutputUnavailable):
            await threads(key("1"), hung)
        gate.set()
        for _ in range(500):
            try:
                assert await threads(key("1"), answer)
                return
            except OutputUnavailable:
                await asyncio.sleep(0.01)
        pytest.fail("the key was never free again")

    asyncio.run(played())


def test_a_namespace_waits_for_its_own_threads_alone(gate: threading.Event, hung: Callable[[], Any]) -> None:
    """When all threads of a namespace hang, its next key gets an error after the limit; other namespaces do not wait."""

    async def played() -> None:
        threads = OutputThreads(seconds=0.3, per_realm=2)
        stuck = [asyncio.create_task(threads(key(str(number)), hung)) for number in range(2)]
        third = asyncio.create_task(threads(key("3"), answer))
        began = time.monotonic()
        assert await threads(key("1", "team-b"), answer)
        assert time.monotonic() - began < promised(0.1)
        with pytest.raises(OutputUnavailable, match="2 other keys of namespace team-a"):
            await third
        for each in stuck:
            with pytest.raises(OutputUnavailable):
                await each
        waiting = asyncio.create_task(threads(key("3"), answer))
        await asyncio.sleep(0.05)
        gate.set()
        assert (await waiting).startswith("outputs ")

    asyncio.run(played())


def test_without_a_queue_a_namespace_with_an_overdue_call_is_refused_at_once(hung: Callable[[], Any]) -> None:
    """Without a queue a burst of replays still waits for its turn, but not behind a call that hangs."""

    async def played() -> None:
        threads = OutputThreads(seconds=0.5, per_realm=1, queues=False)
        calls: list[Awaitable[str]] = [threads(key(str(number)), answer) for number in range(20)]
        assert len(await asyncio.gather(*calls)) == 20
        with pytest.raises(OutputUnavailable):
            await threads(key("1"), hung)
        began = time.monotonic()
        with pytest.raises(OutputUnavailable, match="1 other keys of namespace team-a"):
            await threads(key("2"), answer)
        assert time.monotonic() - began < 0.4
        assert await threads(key("2", "team-b"), answer)

    asyncio.run(played())


def test_what_the_sink_raises_is_raised() -> None:
    """After an error, even the sink's own TimeoutError, the key is free for the next try."""

    async def corrupt() -> str:
        raise OutputCorrupt("slot 2 does not parse")

    async def slow() -> str:
        raise TimeoutError("the sink's own")

    async def played() -> None:
        threads = OutputThreads(seconds=5, per_realm=1)
        for _ in range(3):
            with pytest.raises(OutputCorrupt, match="slot 2"):
                await threads(key("1"), corrupt)
            with pytest.raises(TimeoutError, match="the sink's own"):
                await threads(key("1"), slow)

    asyncio.run(played())


def test_a_caller_that_is_cancelled_leaves_its_key_busy_until_the_call_ends(
    gate: threading.Event, hung: Callable[[], Any]
) -> None:
    """A lost lease cancels the drive, but not its call, which continues as a zombie's: the key's next call is refused until it has
    ended."""

    async def played() -> None:
        threads = OutputThreads(seconds=5, per_realm=2)
        caller = asyncio.create_task(threads(key("1"), hung))
        await asyncio.sleep(0.05)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with pytest.raises(OutputUnavailable, match="not answer within"):
            await threads(key("1"), answer)
        gate.set()
        await asyncio.sleep(0.2)
        assert await threads(key("1"), answer)

    asyncio.run(played())
