"""What a writer promises its caller, on a log that loses, delays and refuses what a test says. The numbers of the research's scenarios
(client 1 to 62, N1 to N17) stand in the docstrings."""

from __future__ import annotations

import asyncio
import gc
import json
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparkonce
from harness.eventually import assert_eventually
from harness.lane_log import Broker, FakeLog, numbers_of
from sparkonce.errors import BufferFull, Certainty, InvalidInput, LaneError, LaneRetired, LibraryMissing, WriterFenced
from sparkonce.lanes import rows as arrow
from sparkonce.lanes import sender
from sparkonce.lanes.protocol import AppendOutcome, LaneEntry, LanePlace
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.writer import AsyncWriter, Writer

SOON = 40.0


def options(**changes: Any) -> WriterOptions:
    """Everything is sent at once unless a test says otherwise."""
    return WriterOptions(**({"linger": 0.0, "delivery_timeout": 30.0} | changes))


def numbers(broker: Broker) -> list[int]:
    return [n for data in broker.data for n in numbers_of(data)]


class Gate:
    """Faults that hold requests of some verbs until the test lets them go."""

    def __init__(self, *verbs: str) -> None:
        self.verbs, self.open, self.waiting = set(verbs), threading.Event(), 0

    def __call__(self, verb: str) -> str:
        return "lost" if verb in self.verbs and not self.open.is_set() else "ok"


class Script:
    """Faults in turn for one verb; afterwards all is well."""

    def __init__(self, verb: str, *fates: str) -> None:
        self.verb, self.fates = verb, list(fates)

    def __call__(self, verb: str) -> str:
        return self.fates.pop(0) if verb == self.verb and self.fates else "ok"


def waiting(writer: Writer) -> int:
    """Appends that wait for room."""
    with writer._sender.changed:
        return len(writer._sender.buffer._turns)


@asynccontextmanager
async def full(broker: Broker, gate: Gate) -> AsyncIterator[tuple[AsyncWriter, Any, asyncio.Task[Any]]]:
    """A writer of an event loop, the handle of the append that fills its buffer until the gate opens, and one that waits for room."""
    made = AsyncWriter(lambda: Writer(FakeLog(broker, gate), options(buffer_memory=8, batch_size=8)))
    async with made as writer:
        first = await writer.append({"n": 1}, position=1)
        second = asyncio.create_task(writer.append({"n": 2}, position=2))
        while not waiting(writer.writer):  # noqa: ASYNC110 - no event says that a thread waits
            await asyncio.sleep(0.01)
        yield writer, first, second


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are repeated soon."""
    monkeypatch.setattr(sender, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(sender, "LONGEST_PAUSE", 0.5)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def opened(broker: Broker) -> Iterator[Callable[..., Writer]]:
    """Makes writers, and ends them with the test."""
    made: list[Writer] = []

    def make(faults: Callable[[str], str] = lambda _: "ok", **changes: Any) -> Writer:
        limit = changes.pop("batches_limit", 4)
        made.append(Writer(FakeLog(broker, faults, batches_limit=limit), options(**changes)))
        return made[-1]

    yield make
    for each in made:
        each._abandon()


def test_rows_and_position_are_committed_together(broker: Broker, opened: Callable[..., Writer]) -> None:
    """56: numbers grow by one a batch; the position is that of the last rows in the log."""
    writer = opened(linger=60.0)
    for n in range(5):
        writer.append({"n": n}, position={"line": n})
    before = writer.position
    writer.flush()
    assert (before, writer.position) == (None, {"line": 4})
    assert numbers(broker) == [0, 1, 2, 3, 4]
    assert (broker.places[0].first, broker.places[0].last) == (1, 1)
    writer.append({"n": 5})
    writer.flush()
    assert (broker.last, writer.position) == (2, {"line": 4})


def test_a_request_without_an_answer_is_sent_again_with_the_same_bytes(
    broker: Broker, opened: Callable[..., Writer]
) -> None:
    """32, 39, 50, N2: uploads and commits are lost, silent and late in turn; all rows are there, in order."""
    fates = iter(["lost", "silent", "late", "lost", "late", "silent"] * 2)
    writer = opened(lambda verb: next(fates, "ok") if verb in ("upload", "commit") else "ok")
    handles = [writer.append({"n": n}, position=n) for n in range(12)]
    writer.flush()
    assert numbers(broker) == list(range(12))
    assert [handle.result(0).position for handle in handles] == sorted(handle.result(0).position for handle in handles)


def test_a_batch_is_encoded_once(
    broker: Broker, opened: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """N3: as often as it is sent."""
    encoded: list[int] = []
    real = arrow.parquet_of

    def once(table: pa.Table) -> bytes:
        encoded.append(table.num_rows)
        return real(table)

    monkeypatch.setattr(arrow, "parquet_of", once)
    writer = opened(Script("commit", *["lost", "silent"] * 3))
    writer.append([{"n": 1}, {"n": 2}]).result(SOON)
    assert encoded == [2]


def test_a_lost_reply_is_acknowledged_with_the_earlier_place(broker: Broker, opened: Callable[..., Writer]) -> None:
    """34, 55: the place was written by the request whose answer was lost."""
    writer = opened(Script("commit", "silent"))
    entry = writer.append({"n": 1}, position=1).result(SOON)
    assert broker.places == [entry]
    assert broker.requests.count("commit") == 2


def test_places_are_committed_in_order_whatever_the_uploads_do(broker: Broker, opened: Callable[..., Writer]) -> None:
    """11-13, 50, 52, 53: the first upload is late, those after it are not."""
    writer = opened(Script("upload", "late", "lost"), batches_limit=1)
    for n in range(8):
        writer.append({"n": n}, position=n)
        if n == 3:
            writer.flush()
    writer.flush()
    assert numbers(broker) == list(range(8))
    assert [place.position for place in broker.places] == sorted(place.position for place in broker.places)


def test_no_more_than_the_window_is_under_way(broker: Broker, opened: Callable[..., Writer]) -> None:
    """7, 17, 21, 48: with commits held back, five places are uploaded and the sixth waits; afterwards all go."""
    gate = Gate("commit")
    writer = opened(gate, batches_limit=1, batch_size=1)
    handles = [writer.append({"n": n}) for n in range(12)]
    assert_eventually(lambda: len(broker.uploads) == 5, SOON)
    assert_eventually(lambda: broker.requests.count("commit") >= 3, SOON)
    assert len(broker.uploads) == 5
    gate.open.set()
    writer.flush()
    assert numbers(broker) == list(range(12))
    assert all(handle.done() for handle in handles)


def test_batches_that_wait_are_committed_in_one_place(broker: Broker, opened: Callable[..., Writer]) -> None:
    """While the window is full rows gather; they share a place, up to its limit."""
    gate = Gate("commit")
    writer = opened(gate, max_inflight=1, batch_size=1, batches_limit=4)
    writer.append({"n": 0})
    assert_eventually(lambda: len(broker.uploads) == 1, SOON)
    for n in range(1, 10):
        writer.append({"n": n})
    gate.open.set()
    writer.flush()
    assert numbers(broker) == list(range(10))
    assert [place.last - place.first + 1 for place in broker.places] == [1, 4, 4, 1]


def test_a_writer_that_was_fenced_says_so_and_stops(broker: Broker, opened: Callable[..., Writer]) -> None:
    """N14: its handles, flush, append and close fail as refused, and it acquires nothing again."""
    first = opened()
    first.append({"n": 1}).result(SOON)
    second = opened()
    handle = first.append({"n": 2}, position=2)
    with pytest.raises(WriterFenced, match=r"^the writer of the lane tap of memory:///lake was fenced") as caught:
        handle.result(SOON)
    assert caught.value.certainty is Certainty.REFUSED
    for call in (lambda: first.append({"n": 3}), first.flush, first.close):
        with pytest.raises(WriterFenced):
            call()
    first.close()
    second.append({"n": 4}).result(SOON)
    assert numbers(broker) == [1, 4]
    assert broker.requests.count("acquire") == 2


def test_a_commit_without_an_answer_in_time_is_decided(broker: Broker, opened: Callable[..., Writer]) -> None:
    """B7, B11, N10: the commit never has an answer. Where it landed, even late, the append succeeds; where it did not, it is
    refused and the writer ends."""
    for fate, n in (("silent", 0), ("late", 1)):
        writer = opened(lambda verb, fate=fate: fate if verb == "commit" else "ok", delivery_timeout=0.0)
        assert writer.append({"n": n}, position=n).result(SOON).position == n
    lost = opened(lambda verb: "lost" if verb == "commit" else "ok", delivery_timeout=0.3)
    handle = lost.append({"n": 2})
    with pytest.raises(LaneError, match="had no answer in time, and its rows are not written") as caught:
        handle.result(SOON)
    assert caught.value.certainty is Certainty.REFUSED
    after = opened()
    after.append({"n": 3}).result(SOON)
    assert numbers(broker) == [0, 1, 3]


def test_a_table_that_never_answers_leaves_an_append_unknown(broker: Broker, opened: Callable[..., Writer]) -> None:
    """N10: neither the commit nor what would decide it has an answer: the handle says UNKNOWN, memory is free, and close returns."""
    writer = opened(lambda verb: "lost" if verb in ("commit", "abandon") else "ok", delivery_timeout=0.3)
    handle = writer.append({"n": 1})
    with pytest.raises(LaneError, match="is unknown, because the table did not answer") as caught:
        handle.result(SOON)
    assert caught.value.certainty is Certainty.UNKNOWN
    began = time.monotonic()
    with pytest.raises(LaneError):
        writer.close()
    assert time.monotonic() - began < SOON
    assert opened().position is None


def test_requests_are_repeated_with_growing_pauses(broker: Broker, opened: Callable[..., Writer]) -> None:
    """N11, B12: a table that refuses for two seconds gets a handful of requests, not a storm."""
    writer = opened(lambda verb: "lost" if verb == "upload" else "ok", delivery_timeout=2.0)
    with pytest.raises(
        LaneError, match=r"could not upload its rows, and they are not written: .*; open the lane again$"
    ):
        writer.append({"n": 1}).result(SOON)
    opened().append({"n": 1}).result(SOON)
    assert numbers(broker) == [1]
    assert broker.requests.count("upload") <= 20


def test_flush_and_close_raise_with_counts(broker: Broker, opened: Callable[..., Writer]) -> None:
    """N13, B14: what was not written is counted by certainty: the place that was sent is unknown, those behind it are refused."""
    writer = opened(
        lambda verb: "lost" if verb in ("commit", "abandon") else "ok",
        delivery_timeout=1.0,
        batch_size=1,
        batches_limit=1,
    )
    handles = [writer.append({"n": n}) for n in range(5)]
    with pytest.raises(LaneError, match=r"^of 5 appends 4 not written, 1 unknown: whether the writer") as caught:
        writer.flush(timeout=SOON)
    assert caught.value.certainty is Certainty.UNKNOWN
    assert [handle.exception(0).certainty for handle in handles] == [Certainty.UNKNOWN] + [Certainty.REFUSED] * 4  # type: ignore[union-attr]


def test_a_flush_has_a_deadline(broker: Broker, opened: Callable[..., Writer]) -> None:
    """B8: it says how many appends have no answer yet; later they may have one."""
    gate = Gate("commit")
    writer = opened(gate)
    handle = writer.append({"n": 1})
    with pytest.raises(LaneError, match=r"^of 1 appends 1 without an answer yet"):
        writer.flush(timeout=0.2)
    gate.open.set()
    assert handle.result(SOON).rows == 1
    writer.flush()


def test_a_close_has_a_deadline_and_is_idempotent(broker: Broker, opened: Callable[..., Writer]) -> None:
    """60, B8: what is open when the time is over fails by certainty; a second close does nothing."""
    writer = opened(Gate("commit"))
    handle = writer.append({"n": 1})
    assert_eventually(lambda: "commit" in broker.requests, SOON)
    with pytest.raises(LaneError):
        writer.close(timeout=0.2)
    with pytest.raises(LaneError) as caught:
        handle.result(0)
    assert caught.value.certainty is Certainty.UNKNOWN
    writer.close()
    with pytest.raises(LaneError):
        writer.append({"n": 2})


def test_a_dropped_writer_fails_its_handles(broker: Broker) -> None:
    """20, 43: nobody waits for ever for rows of a writer that is gone; they were not sent, and say so."""
    writer = Writer(FakeLog(broker), options(linger=60.0))
    handle = writer.append({"n": 1})
    del writer
    gc.collect()
    with pytest.raises(LaneError, match="was dropped without close") as caught:
        handle.result(SOON)
    assert caught.value.certainty is Certainty.REFUSED
    assert broker.places == []


def test_leaving_the_context_flushes(broker: Broker) -> None:
    """43: also where the block raised; its own error is the one that is told."""
    with Writer(FakeLog(broker), options(linger=60.0)) as writer:
        writer.append({"n": 1})

    def fails() -> None:
        with Writer(FakeLog(broker), options(linger=60.0)) as writer:
            writer.append({"n": 2})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert numbers(broker) == [1, 2]


def test_a_full_buffer_lets_callers_wait_in_turn(broker: Broker, opened: Callable[..., Writer]) -> None:
    """22-27: appends beyond the budget wait, are let in in order as room becomes free, and what waits is sent without lingering."""
    gate = Gate("upload")
    writer = opened(gate, buffer_memory=20_000, batch_size=4_000, linger=60.0, max_block=SOON)
    entered: list[int] = []
    handles: dict[int, Future[LaneEntry]] = {}

    def append(n: int) -> None:
        handles[n] = writer.append({"n": n, "text": secrets.token_hex(1000)})
        entered.append(n)

    threads = []
    for n in range(20):
        threads.append(threading.Thread(target=append, args=(n,)))
        threads[-1].start()
        assert_eventually(lambda: len(entered) + waiting(writer) == len(threads), SOON)
    assert 2 <= len(entered) < 20
    assert writer.waiting_bytes > 15_000
    assert entered == list(range(len(entered)))
    gate.open.set()
    for each in threads:
        each.join(SOON)
    writer.flush()
    assert numbers(broker) == list(range(20))
    assert writer.waiting_bytes == 0


def test_a_buffer_that_stays_full_is_an_error_in_time(broker: Broker, opened: Callable[..., Writer]) -> None:
    """25: the rows were not taken, and the writer goes on."""
    gate = Gate("upload")
    writer = opened(gate, buffer_memory=16, batch_size=16, max_block=0.2, linger=60.0)
    writer.append([{"n": 1}, {"n": 2}])
    with pytest.raises(BufferFull, match=r"^no room for 8 bytes became free within 0.2 s") as caught:
        writer.append({"n": 3})
    assert caught.value.certainty is Certainty.REFUSED
    gate.open.set()
    writer.flush()
    writer.append({"n": 4})
    writer.flush()
    assert numbers(broker) == [1, 2, 4]


def test_a_caller_that_waits_for_room_is_woken_by_the_end(broker: Broker, opened: Callable[..., Writer]) -> None:
    """26, 27: closing and failing both wake it."""
    writer = opened(Gate("upload"), buffer_memory=8, batch_size=8, max_block=SOON)
    writer.append({"n": 1})
    errors: list[BaseException] = []

    def append() -> None:
        try:
            writer.append({"n": 2})
        except LaneError as error:
            errors.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    assert_eventually(lambda: waiting(writer) == 1, SOON)
    with pytest.raises(LaneError):
        writer.close(timeout=0.1)
    thread.join(SOON)
    assert len(errors) == 1


def test_rows_larger_than_the_buffer_are_refused_at_once(broker: Broker, opened: Callable[..., Writer]) -> None:
    """22, 28: rows larger than a batch are a batch of their own."""
    writer = opened(buffer_memory=1000, batch_size=8)
    with pytest.raises(InvalidInput, match=r"^the rows have 1600 bytes, and the writer's buffer 1000"):
        writer.append([{"n": n} for n in range(200)])
    writer.append([{"n": n} for n in range(100)]).result(SOON)
    assert broker.places[0].rows == 100


def test_a_position_alone_moves_without_rows(broker: Broker, opened: Callable[..., Writer]) -> None:
    """A source may have nothing to write for a stretch."""
    writer = opened()
    writer.append({"n": 1}, position=1).result(SOON)
    assert writer.append([], position=2).result(SOON).rows == 0
    assert (writer.position, numbers(broker)) == (2, [1])


@pytest.mark.parametrize(
    ("position", "why"),
    [
        ("x" * 5000, "has 5002 bytes of JSON, and may have 4096"),
        (float("nan"), "is not a JSON value"),
        ({1: 2}, "would not be read back as it is"),
        ((1, 2), "would not be read back as it is"),
        (object(), "is not a JSON value"),
        (json.loads("[" * 34 + "]" * 34), "is nested more than 32 deep; use a text"),
    ],
)
def test_a_position_that_cannot_be_kept_is_refused(
    broker: Broker, opened: Callable[..., Writer], position: object, why: str
) -> None:
    """Nothing is taken."""
    writer = opened()
    with pytest.raises(InvalidInput, match=f"^the position {why}"):
        writer.append({"n": 1}, position=position)
    writer.flush()
    assert broker.places == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"buffer_memory": 0}, "buffer_memory is 0, and must be a whole number above 0"),
        ({"batch_size": -1}, "batch_size is -1, and must be a whole number above 0"),
        ({"max_inflight": 0}, "max_inflight is 0, and must be a whole number above 0"),
        ({"max_inflight": 2.5}, "max_inflight is 2.5, and must be a whole number above 0"),
        ({"linger": -1}, "linger is -1, and must be a number of seconds"),
        ({"max_block": float("nan")}, "max_block is nan, and must be a number of seconds"),
        ({"batch_size": 100, "buffer_memory": 50}, "batch_size is 100, more than buffer_memory, which is 50"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(changes: dict[str, Any], why: str) -> None:
    """42: the sentence names it."""
    with pytest.raises(InvalidInput, match=f"^{why}$"):
        options(**changes)


def test_a_writer_of_a_retired_lane_is_refused(broker: Broker, opened: Callable[..., Writer]) -> None:
    """At the start, before any row is taken."""
    opened().append({"n": 1}).result(SOON)
    FakeLog(broker).retire(by="ops")
    with pytest.raises(LaneRetired):
        opened()


def test_an_error_of_the_code_reaches_every_caller(broker: Broker, opened: Callable[..., Writer]) -> None:
    """B9: a thread that dies is seen: handles fail, flush raises, and nothing waits for ever."""

    class Broken(FakeLog):
        def commit(self, place: LanePlace) -> AppendOutcome:
            raise ZeroDivisionError("at commit")

    writer = Writer(Broken(broker), options())
    with pytest.raises(LaneError, match="ended: ZeroDivisionError: at commit"):
        writer.append({"n": 1}).result(SOON)
    with pytest.raises(LaneError, match="ended: ZeroDivisionError"):
        writer.close()


def test_a_handle_cannot_be_cancelled(broker: Broker, opened: Callable[..., Writer]) -> None:
    """41: the rows were taken, and are written."""
    writer = opened(linger=60.0)
    first, second = writer.append({"n": 1}), writer.append({"n": 2})
    assert not first.cancel()
    writer.flush()
    assert second.result(0).rows == 2
    assert numbers(broker) == [1, 2]


def test_numbers_above_32_bits_go_on(broker: Broker, opened: Callable[..., Writer]) -> None:
    """N15, B15: nothing wraps."""
    broker.places.append(
        LaneEntry(place="x", epoch=0, first=2**40, last=2**40, rows=0, bytes=0, position=None, digests=("",), files=())
    )
    assert opened().append({"n": 1}).result(SOON).last == 2**40 + 1


def test_an_event_loop_goes_on_while_rows_are_written(broker: Broker) -> None:
    """Append, await the handle, flush and close from a coroutine; the loop is not blocked by a full buffer."""

    async def main() -> Any:
        gate = Gate("upload")
        async with full(broker, gate) as (writer, first, second):
            gate.open.set()
            await first
            await (await second)
            await writer.flush()
            return writer.position

    assert (asyncio.run(main()), numbers(broker)) == (2, [1, 2])


@pytest.mark.parametrize("room", [False, True], ids=["before there is room", "once there is room"])
def test_a_cancelled_append_is_not_written(broker: Broker, room: bool) -> None:
    """Its place in the line is free for the next one, whether it still waited or the thread that waits for room had found some."""

    async def main() -> None:
        gate = Gate("upload")
        async with full(broker, gate) as (writer, first, second):
            if room:  # found while the loop is busy, so that nobody has taken it yet
                gate.open.set()
                assert_eventually(lambda: writer.writer.waiting_bytes == 0, SOON)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            gate.open.set()
            third = await writer.append({"n": 3}, position=3)
            await first
            await third
            await writer.flush()
            assert writer.position == 3

    asyncio.run(main())
    assert numbers(broker) == [1, 3]


def test_a_lane_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no dependency of the core; nothing was made."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LibraryMissing, match="run `pip install pyarrow`"):
        sparkonce.writer(tmp_path / "lake", name="tap")
    assert not (tmp_path / "lake").exists()


def test_writers_in_several_threads_share_one(broker: Broker, opened: Callable[..., Writer]) -> None:
    """Each thread's rows keep their order; none is lost or doubled."""
    writer = opened(linger=0.01)

    def work(start: int) -> None:
        for n in range(start, start + 50):
            writer.append({"n": n})

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 100, 200, 300)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    writer.flush()
    found = numbers(broker)
    assert sorted(found) == [n for start in (0, 100, 200, 300) for n in range(start, start + 50)]
    for start in (0, 100, 200, 300):
        own = [n for n in found if start <= n < start + 50]
        assert own == sorted(own)
