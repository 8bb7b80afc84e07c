"""Outputs that block or raise: the loop goes on, a key's calls do not pile up, and one namespace's threads are its own."""

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
    """What hung calls wait for; they end with the test."""
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
    """Work runs in a thread of its own; its key is told after the limit, and at once while the call has not ended."""

    async def played() -> None:
        threads = OutputThreads(seconds=0.3, per_realm=2)
        blocked = asyncio.create_task(threads(key("1"), hung))
        began = time.monotonic()
        assert (await threads(key("2"), answer)).startswith("outputs ")
        assert time.monotonic() - began < promised(0.1)
        with pytest.raises(OutputUnavailable, match=r"not answer within 0\.3 s"):
            await blocked
        with pytest.raises(OutputUnavailable, match="not answer within"):
            await threads(key("1"), answer)
        assert await threads(key("2"), answer)

    asyncio.run(played())


def test_what_ends_late_frees_its_key(gate: threading.Event, hung: Callable[[], Any]) -> None:
    """A call that outlasted its limit ends in its thread; the key's next one runs then."""

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
    """With all of its threads hung a namespace's next key is told so after the limit; other namespaces do not wait."""

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
    """A burst of replays waits for its turn; behind a call that hangs it does not."""

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
    """A key that raises is free for its next try, its own time-out included."""

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
    """A lease that is lost cancels the drive: its call goes on as a zombie's, and the same key's next one does not join it."""

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
