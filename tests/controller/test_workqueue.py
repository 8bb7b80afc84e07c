"""The keyed work queue under a clock that the test controls: no test sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.patience import within
from sparkonce.attempt.drive import until_set
from sparkonce.controller.workqueue import Closed, WorkQueue


class FakeTime:
    """A clock that the test moves, with a wait that ends as asyncio's would: by the event or by this clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits = 0
        self._timers: list[tuple[float, asyncio.Event]] = []

    def __call__(self) -> float:
        return self.now

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        self.waits += 1
        rung = asyncio.Event()
        if seconds is not None:
            self._timers.append((self.now + seconds, rung))
        waits = [asyncio.ensure_future(each.wait()) for each in (event, rung)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        for at, rung in self._timers:
            if at <= self.now:
                rung.set()
        await settle()


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


Body = Callable[[WorkQueue[str], FakeTime], Coroutine[Any, Any, None]]


def under(body: Body, *, chance: float = 0.0) -> None:
    """Runs the body with a queue; `chance` fixes its jitter."""

    async def main() -> None:
        time = FakeTime()
        await body(
            WorkQueue(retry_initial=1.0, retry_max=10.0, clock=time, wait=time.wait, chance=lambda: chance), time
        )

    asyncio.run(main())


async def taken(queue: WorkQueue[str]) -> list[str]:
    """All free keys that are due now, in order. Each is given back at once."""
    keys: list[str] = []
    while True:
        worker = asyncio.ensure_future(queue.get())
        await settle()
        if not worker.done():
            worker.cancel()
            return keys
        keys.append(worker.result())
        queue.done(keys[-1])


def test_due_keys_come_first_in_first_out() -> None:
    """Keys come in the order in which they were first added, each once."""

    async def body(queue: WorkQueue[str], _: FakeTime) -> None:
        for key in "cabacc":
            queue.add(key)
        assert await taken(queue) == ["c", "a", "b"]

    under(body)


def test_a_key_is_held_by_one_worker() -> None:
    """While a worker holds a key no other gets it, even if it is added again and workers wait."""

    async def body(queue: WorkQueue[str], _: FakeTime) -> None:
        queue.add("a")
        assert await queue.get() == "a"
        waiting = asyncio.ensure_future(queue.get())
        queue.add("a")
        queue.add("b")
        await settle()
        assert waiting.result() == "b"

    under(body)


def test_a_key_added_while_held_comes_once_more() -> None:
    """A key that is added during its work, however often, is due once more afterwards, behind those already due."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("a")
        await time.advance(1)
        queue.add("b")
        await time.advance(1)
        queue.done("a")
        assert await taken(queue) == ["b", "a"]

    under(body)


def test_a_key_not_added_while_held_does_not_come_again() -> None:
    """A key that was not added during the work does not come again."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        queue.add_after("a", 5)
        queue.add("a")
        assert await taken(queue) == ["a"]
        await time.advance(10)
        assert await taken(queue) == []

    under(body)


def test_a_later_key_comes_when_it_is_due() -> None:
    """A waiting worker gets a delayed key exactly at its time, without any other event."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        queue.add_after("a", 5)
        worker = asyncio.ensure_future(queue.get())
        await time.advance(4.9)
        assert not worker.done()
        await time.advance(0.1)
        assert worker.result() == "a"

    under(body)


def test_an_idle_worker_sleeps() -> None:
    """An idle worker waits once until something changes, and does not poll."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        queue.add("a")
        queue.done(await queue.get())
        queue.add_after("b", 60)
        worker = asyncio.ensure_future(queue.get())
        await settle()
        assert time.waits == 1
        worker.cancel()

    under(body)


@pytest.mark.parametrize("waits", [(5, 2), (2, 5)])
def test_the_earliest_wish_wins(waits: tuple[float, float]) -> None:
    """Of two requests for a key, in either order, the earlier one counts, and the key comes once."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        worker = asyncio.ensure_future(queue.get())
        for seconds in waits:
            queue.add_after("a", seconds)
            await settle()
        await time.advance(2)
        assert worker.result() == "a"
        queue.done("a")
        await time.advance(10)
        assert await taken(queue) == []

    under(body)


def test_a_wish_for_later_made_while_held_keeps_its_time() -> None:
    """A worker that requests its key again in five seconds gets it five seconds after the request; an earlier request still wins."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        for key in "ab":
            queue.add(key)
            assert await queue.get() == key
            queue.add_after(key, 5)
        queue.add_after("b", 1)
        queue.done("a")
        queue.done("b")
        await time.advance(1)
        assert await taken(queue) == ["b"]
        await time.advance(4)
        assert await taken(queue) == ["a"]

    under(body)


def test_delayed_keys_come_in_the_order_of_their_times() -> None:
    """Keys that became due one after the other come in that order, whenever they were added."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        queue.add_after("late", 3)
        queue.add_after("early", 1)
        await time.advance(2)
        queue.add("now")
        await time.advance(2)
        assert await taken(queue) == ["early", "now", "late"]

    under(body)


def test_retry_waits_longer_each_time_up_to_a_cap() -> None:
    """The wait of a failing key doubles from the first to the longest; each key has its own, which `forget` resets."""

    async def body(queue: WorkQueue[str], _: FakeTime) -> None:
        assert [queue.retry("a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
        assert queue.retry("b") == 1
        queue.forget("a")
        assert queue.retry("a") == 1
        assert max(queue.retry("c") for _ in range(2000)) == 10

    under(body)


def test_jitter_shortens_a_retry_by_up_to_half() -> None:
    """Jitter takes up to half of a wait, so that keys that failed together spread out; no wait exceeds the cap."""

    async def body(queue: WorkQueue[str], _: FakeTime) -> None:
        assert queue.retry("a") == pytest.approx(0.55)

    under(body, chance=0.9)


def test_a_failing_key_does_not_stall_the_others() -> None:
    """While one key fails at each try, the others come at once, and it comes only after its wait."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        queue.add("bad")
        tries = 0
        for turn in range(20):
            queue.add(f"good-{turn}")
            served = set()
            for _ in range(2):
                worker = asyncio.ensure_future(queue.get())
                await settle()
                if not worker.done():
                    worker.cancel()
                    break
                key = worker.result()
                served.add(key)
                if key == "bad":
                    tries += 1
                    queue.retry(key)
                queue.done(key)
            assert f"good-{turn}" in served
            await time.advance(1)
        assert tries == 5  # at 0, 1, 3, 7 and 15 seconds; the next wait would be the longest, ten

    under(body)


def test_retry_is_heard_while_the_key_is_held() -> None:
    """`retry` followed by `done`, the usual order, makes the key due once, after its wait."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        queue.add("a")
        key = await queue.get()
        queue.retry(key)
        queue.done(key)
        assert await taken(queue) == []
        await time.advance(1)
        assert await taken(queue) == ["a"]

    under(body)


def test_done_of_a_key_nobody_holds_is_refused() -> None:
    """A worker that gives a key back twice might release another worker's hold: it gets one sentence, and nothing changes."""

    async def body(queue: WorkQueue[str], _: FakeTime) -> None:
        queue.add("a")
        with pytest.raises(ValueError, match="a is not held"):
            queue.done("a")
        assert await taken(queue) == ["a"]

    under(body)


def test_close_ends_every_worker() -> None:
    """Waiting and later callers get Closed even if keys are due; held keys can still be given back."""

    async def body(queue: WorkQueue[str], _: FakeTime) -> None:
        queue.add("a")
        assert await queue.get() == "a"
        waiting = [asyncio.ensure_future(queue.get()) for _ in range(3)]
        await settle()
        queue.close()
        await settle()
        assert all(worker.done() and isinstance(worker.exception(), Closed) for worker in waiting)
        queue.add("b")
        with pytest.raises(Closed):
            await queue.get()
        queue.done("a")

    under(body)


def test_a_cancelled_worker_takes_nothing_with_it() -> None:
    """A worker that is cancelled while it waits loses no key: the next one gets it."""

    async def body(queue: WorkQueue[str], _: FakeTime) -> None:
        worker, other = asyncio.ensure_future(queue.get()), asyncio.ensure_future(queue.get())
        await settle()
        queue.add("a")
        worker.cancel()
        await settle()
        assert other.result() == "a"

    under(body)


def test_every_waiting_worker_is_woken() -> None:
    """Keys that become due together are handed to as many workers as wait."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        workers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
        await settle()
        for key in "abc":
            queue.add_after(key, 2)
        await time.advance(2)
        assert sorted(worker.result() for worker in workers) == ["a", "b", "c"]

    under(body)


def test_ages_say_what_waits_and_what_hangs() -> None:
    """The oldest wait is that of the key that has been due longest and is not held, from its due time; the oldest work that of the key held
    longest."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        assert (queue.oldest_wait, queue.oldest_work) == (0, 0)
        queue.add_after("a", 3)
        queue.add_after("b", 5)
        await time.advance(7)
        assert (queue.oldest_wait, queue.oldest_work) == (4, 0)
        key = await queue.get()
        await time.advance(1)
        assert (key, queue.oldest_wait, queue.oldest_work) == ("a", 3, 1)
        queue.done(key)
        assert (queue.oldest_wait, queue.oldest_work) == (3, 0)
        queue.add_after("c", 60)
        await taken(queue)
        assert queue.oldest_wait == 0

    under(body)


STEP = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("abc"), st.integers(0, 5)),
    st.tuples(st.just("get"), st.just(""), st.just(0)),
    st.tuples(st.just("done"), st.sampled_from("abc"), st.just(0)),
    st.tuples(st.just("advance"), st.just(""), st.integers(1, 4)),
)


@given(st.lists(STEP, max_size=40))
def test_it_behaves_as_its_description(steps: list[tuple[str, str, int]]) -> None:
    """Compared with a naive model (a due time per key, a set of held keys): a worker gets a key exactly if one is due and not held, always
    the one due first, and never one that another worker holds."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        due: dict[str, float] = {}
        held: set[str] = set()
        for what, key, number in steps:
            match what:
                case "add":
                    queue.add_after(key, number)
                    due[key] = min(due.get(key, time.now + number), time.now + number)
                case "advance":
                    await time.advance(number)
                case "done" if key in held:
                    queue.done(key)
                    held.discard(key)
                    if key in due:
                        due[key] = max(due[key], time.now)
                case "get":
                    ready = {k: at for k, at in due.items() if at <= time.now and k not in held}
                    worker = asyncio.ensure_future(queue.get())
                    await settle()
                    assert worker.done() == bool(ready)
                    if not worker.done():
                        worker.cancel()
                        continue
                    got = worker.result()
                    assert due[got] == min(ready.values())
                    held.add(got)
                    del due[got]

    under(body)


def test_entries_that_are_stale_do_not_pile_up() -> None:
    """A key that is due in a week, as an object to be deleted then, is looked at by every sweep and waits for its week again."""

    async def body(queue: WorkQueue[str], time: FakeTime) -> None:
        queue.add_after("first", 3600)
        for _ in range(2000):
            queue.add_after("kept", 604_800)
            queue.add("kept")
            assert await queue.get() == "kept"
            queue.done("kept")
        queue.add_after("kept", 604_800)
        assert len(queue._heap) < 200
        await time.advance(3600)
        assert await queue.get() == "first"
        await time.advance(604_800)
        assert await queue.get() == "kept"

    under(body)


def test_asyncios_own_clock_wakes_a_worker() -> None:
    """By default the queue uses the event loop's time: a key due in a moment comes by itself."""

    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 0.01)
        assert await within(queue.get(), 10) == "a"

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_cancelled_wait_is_over_also_when_the_event_comes_in_the_same_moment(turns: int) -> None:
    """However many turns of the loop lie between the event and the cancellation, a cancelled worker stops waiting."""

    async def scene() -> None:
        event = asyncio.Event()

        async def work() -> None:
            while True:
                await until_set(event, 60.0)
                event.clear()

        worker = asyncio.create_task(work())
        await settle()
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        worker.cancel()
        await settle()
        assert worker.cancelled()

    asyncio.run(scene())
