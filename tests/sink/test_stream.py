"""The chain of a stream's slots, place by place: how its end is found, which tokens are barred, and what readers see."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.arrow_stage import table_of
from harness.slots import committing
from sparkonce.blocking import run
from sparkonce.model.spec import OnRerun
from sparkonce.sink import stream
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import STREAM_SCHEMA, AlreadyCommitted, Committed, FencedOff, SinkKey, Slot, StreamPart
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.slotlog.snapshot import Table, decided, write_snapshot
from sparkonce.sink.slotlog.visibility import visible
from sparkonce.sink.stream import Chain, mark

BY: dict[str, Any] = {"fingerprint": "f", "by": "settle"}


def opened(
    sink: SlotLogSink, key: SinkKey, token: int = 1, *, first: int = 0, on_rerun: OnRerun = OnRerun.REPLACE
) -> Chain:
    slot = stream.opening_of(key, token, query_id="q", first_batch=first, fingerprint="f", on_rerun=on_rerun)
    decision = run(sink.commit(key, slot))
    assert decision == Committed(slot)
    return Chain(slot, slot)


def committed(sink: SlotLogSink, key: SinkKey, chain: Chain, token: int, *, batches: int = 1) -> Chain:
    """Commits more batches without rows, and returns the chain."""
    for _ in range(batches):
        slot = stream.empty_batch(chain, key, chain.next, token, plan=f"plan {chain.next}")
        assert run(stream.commit(sink, key, chain, slot)) == Committed(slot)
        chain = chain.followed_by(slot)
    return chain


def ended(sink: SlotLogSink, key: SinkKey, chain: Chain, token: int) -> Chain:
    chain, barred = run(stream.finish(sink, key, chain, token, by="test"))
    assert barred is None
    return chain


class Counted:
    """Wraps a sink and counts its calls by verb."""

    def __init__(self, sink: SlotLogSink) -> None:
        self._sink, self.looks = sink, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.looks[name] += 1
        return getattr(self._sink, name)


# --- the chain --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [0, 1, 2, 3, 4, 7, 8, 9, 100])
def test_the_last_batch_is_found_in_a_few_looks(objects: TableObjects, key: SinkKey, batches: int) -> None:
    """The search doubles and halves: correct for every length, and a dozen reads for 100 batches."""
    sink = SlotLogSink(objects, name="orders")
    chain = committed(sink, key, opened(sink, key, first=5), 1, batches=batches)
    counted: Any = Counted(sink)

    found = run(stream.walk(counted, key, chain.opening))

    assert found == chain
    assert (found.next, found.batches) == (5 + batches, batches)
    assert counted.looks["find"] <= 2 * batches.bit_length() + 2


def test_an_end_is_found_as_the_last_place(sink: SlotLogSink, key: SinkKey) -> None:
    """Settling, probing and the next attempt find the end slot, with the totals of all batches."""
    chain = ended(sink, key, committed(sink, key, opened(sink, key), 1, batches=3), 1)

    assert run(stream.walk(sink, key, chain.opening)) == chain
    assert (chain.ended, chain.last_batch, chain.batches) == (True, 2, 3)
    assert run(stream.finish(sink, key, chain, 1, by="again")) == (chain, None)


def test_a_batch_follows_only_a_batch_of_no_higher_token(sink: SlotLogSink, key: SinkKey) -> None:
    """A batch must not have a lower token than the place before it: token 1 is refused although its place is open to it; token 3 may
    continue."""
    first = committed(sink, key, opened(sink, key), 2)
    late = stream.empty_batch(first, key, 1, 1, plan="p")

    assert run(stream.commit(sink, key, first, late)) == FencedOff(first.last)
    assert run(sink.find(stream.place(key, 1))) is None
    assert committed(sink, key, first, 3).last.token == 3


def test_closing_bars_a_token_in_the_next_place_and_goes_on_past_a_commit(sink: SlotLogSink, key: SinkKey) -> None:
    """A process closes the stream having read batch 0 only, while batch 1 is committed: its answer includes batch 1, and batch 2 is
    closed."""
    chain = committed(sink, key, opened(sink, key), 1, batches=2)
    seen = Chain(chain.opening, run(sink.find(stream.place(key, 0))))  # type: ignore[arg-type]  # it was committed
    assert seen.batches == 1

    closed = run(stream.close(sink, key, chain.opening, 2, **BY))

    assert closed == chain
    late = stream.empty_batch(chain, key, 2, 1, plan="p")
    assert isinstance(run(stream.commit(sink, key, chain, late)), FencedOff)


def test_slots_are_closed_where_an_attempt_takes_over_and_nowhere_else(
    sink: SlotLogSink, key: SinkKey, table: Path
) -> None:
    """Attempt 9 after attempt 1: eight closed slots in its first batch and none in later ones, so many attempts stay cheap."""
    chain = committed(sink, key, opened(sink, key), 1)
    chain = committed(sink, key, run(stream.close(sink, key, chain.opening, 9, **BY)), 9, batches=3)
    ended(sink, key, chain, 9)

    names = [len(list((table / "_idem").glob(f"*-b{number}/*.json"))) for number in range(5)]
    assert names == [1, 9, 1, 1, 1]


def test_twins_of_one_token_meet_in_one_slot(sink: SlotLogSink, key: SinkKey) -> None:
    """Of two drivers' commits of a batch one succeeds; the other gets that slot."""
    chain = opened(sink, key)
    one, two = (stream.empty_batch(chain, key, 0, 1, plan="p") for _ in range(2))

    assert run(stream.commit(sink, key, chain, one)) == Committed(one)
    assert run(stream.commit(sink, key, chain, two)) == AlreadyCommitted(one)


def test_a_slot_of_another_place_is_no_batch_that_follows(sink: SlotLogSink, key: SinkKey) -> None:
    """A batch number that leaves a gap, or follows the end, is the caller's mistake: nothing is sent."""
    chain = opened(sink, key)
    gap = committing(stream.place(key, 3), 1)
    with pytest.raises(ValueError, match=r"-b3 does not follow a1b2-orders-g1$"):
        run(stream.commit(sink, key, chain, gap))
    over = ended(sink, key, committed(sink, key, chain, 1), 1)
    with pytest.raises(ValueError, match="does not follow"):
        run(stream.commit(sink, key, over, committing(stream.place(key, 2), 1)))
    with pytest.raises(ValueError, match="is not part of a stream"):
        mark(gap)


def test_an_end_bars_a_driver_of_the_same_token(sink: SlotLogSink, key: SinkKey) -> None:
    """A cancel writes the end at the place of the attempt's next batch: that batch comes too late, and the end stays."""
    chain = committed(sink, key, opened(sink, key), 1)
    slot, over = run(stream.settled(sink, key, chain.opening, 1, fingerprint="f", by="owner", end=True))
    assert over
    assert slot is not None
    assert (mark(slot).part, slot.token, mark(slot).last_batch) == (StreamPart.END, 1, 0)

    late = stream.empty_batch(chain, key, 1, 1, plan="p")

    assert run(stream.commit(sink, key, chain, late)) == AlreadyCommitted(slot)
    assert run(stream.recorded(sink, key, chain.opening)) == (chain.last, slot)


def test_an_end_that_is_wanted_after_the_attempt_was_closed_takes_the_next_place(
    sink: SlotLogSink, key: SinkKey
) -> None:
    """A settle without an end closed the attempt's token at that place; the cancel that follows still ends the stream, under the next
    token."""
    chain = committed(sink, key, opened(sink, key), 1)
    told: dict[str, Any] = {"fingerprint": "f", "by": "owner"}
    assert run(stream.settled(sink, key, chain.opening, 1, **told, end=False)) == (chain.last, False)

    slot, over = run(stream.settled(sink, key, chain.opening, 1, **told, end=True))

    assert (over, slot and slot.token) == (True, 2)


@pytest.mark.parametrize("batches", [0, 1])
def test_a_settler_that_wakes_up_late_ends_nothing_of_the_next_attempt(
    sink: SlotLogSink, key: SinkKey, batches: int
) -> None:
    """A cancel stopped half way and a person retried; the settler of attempt 1, frozen meanwhile, finds what attempt 2 committed and writes
    no end."""
    chain = opened(sink, key)
    if batches:
        chain = committed(sink, key, chain, 1)
    run(stream.close(sink, key, chain.opening, 2, **BY))
    chain = committed(sink, key, chain, 2)

    slot, over = run(stream.settled(sink, key, chain.opening, 1, fingerprint="f", by="late", end=True))

    assert (slot, over) == (chain.last, False)
    assert committed(sink, key, chain, 2).batches == batches + 2


def test_a_settle_whose_own_token_is_closed_does_not_say_that_it_ended(sink: SlotLogSink, key: SinkKey) -> None:
    """A higher token has been granted: the stream stays as it is, without an end, and is not reported as ended."""
    chain = committed(sink, key, opened(sink, key), 1)
    run(stream.close(sink, key, chain.opening, 3, **BY))

    slot, over = run(stream.settled(sink, key, chain.opening, 1, fingerprint="f", by="owner", end=True))

    assert (slot, over) == (chain.last, False)


def test_totals_are_carried_along_the_chain(sink: SlotLogSink, key: SinkKey) -> None:
    """Each slot has the number of batches so far, and their rows, bytes and files."""
    chain = opened(sink, key)
    for number, rows in enumerate([(1, 2), (3,), (4, 5, 6)]):
        staged = sink.stage(table_of(*rows), stream.place(key, number), 1, fingerprint="f")
        slot = stream.batch_of(chain, number, staged, plan="p")
        assert run(stream.commit(sink, key, chain, slot)) == Committed(slot)
        chain = chain.followed_by(slot)
    told = mark(ended(sink, key, chain, 1).last)
    files = Table(str(sink.uri)).files()

    assert (told.rows, told.batches, told.files) == (6, 3, len(files))
    assert told.bytes == sum(Path(file.removeprefix("file://")).stat().st_size for file in files)


def test_slots_of_a_stream_are_refused_by_versions_that_do_not_know_streams(sink: SlotLogSink, key: SinkKey) -> None:
    """Opening, batch and end have a schema number of their own: an older version would read each as a table."""
    chain = ended(sink, key, committed(sink, key, opened(sink, key), 1), 1)
    slots = (chain.opening, *run(stream.recorded(sink, key, chain.opening)))
    assert [slot.schema_ for slot in slots] == [STREAM_SCHEMA] * 3
    assert all(layout.decode(layout.encode(s), where="", sink_key=s.sink_key, token=1) == s for s in slots)


# --- which checkpoint may begin a stream ----------------------------------------------------------------------------------


def test_a_checkpoint_of_its_own_begins_with_batch_0(sink: SlotLogSink, key: SinkKey) -> None:
    """Streams of other queries, plain writes and openings without a batch do not count."""
    other = key.model_copy(update={"key_hash": "c3d4"})
    slots = [committing(key, 1), *run_chain(sink, other, batches=2)]
    assert stream.begins_with(slots, key, "another") == 0
    assert stream.begins_with([opened(sink, key.model_copy(update={"key_hash": "e5f6"})).opening], key, "q") == 0


def test_a_checkpoint_goes_on_after_the_streams_of_other_keys(sink: SlotLogSink, key: SinkKey) -> None:
    """It continues after the highest last batch of all streams that used it; a stream that has not ended, or that a rerun replaces, is
    refused by name."""
    monday, tuesday = (key.model_copy(update={"key_hash": name}) for name in ("c3d4", "e5f6"))
    done = [*run_chain(sink, monday, batches=2), *run_chain(sink, tuesday, batches=3, first=2)]
    assert stream.begins_with(done, key, "q") == 5
    with pytest.raises(ValueError, match=r"the stream e5f6-orders-g1 uses it and has not ended"):
        stream.begins_with(done[:-1], key, "q")
    with pytest.raises(ValueError, match="it goes on after generation 1, whose rows a rerun replaces"):
        stream.begins_with(done, monday.model_copy(update={"generation": 2}), "q")


def run_chain(sink: SlotLogSink, key: SinkKey, *, batches: int, first: int = 0) -> list[Slot]:
    chain = ended(sink, key, committed(sink, key, opened(sink, key, first=first), 1, batches=batches), 1)
    return [chain.opening, *run(stream.recorded(sink, key, chain.opening))]


# --- what readers see -----------------------------------------------------------------------------------------------------


def generation_of(
    key: SinkKey, number: int, *, batches: int, end: bool, on_rerun: OnRerun = OnRerun.REPLACE
) -> list[Slot]:
    """The slots of one stream whose batches have rows."""
    key = key.model_copy(update={"generation": number})
    slot = stream.opening_of(key, 1, query_id="q", first_batch=0, fingerprint="f", on_rerun=on_rerun)
    slots, chain = [slot], Chain(slot, slot)
    for at in range(batches):
        staged = committing(stream.place(key, at), 1, on_rerun=on_rerun).model_copy(update={"data_schema": "s"})
        slots.append(stream.batch_of(chain, at, staged, plan="p"))
        chain = chain.followed_by(slots[-1])
    if end:
        slots.append(stream.end_of(chain, key, 1, by="test", data_schema="s"))
    return slots


def seen(*generations: list[Slot]) -> list[str]:
    """The visible slots, as generation and batch."""
    found = visible(slot for slots in reversed(generations) for slot in slots)
    return [slot.sink_key.rpartition("orders-")[2] for slot in found]


def test_a_first_stream_is_seen_as_it_grows(key: SinkKey) -> None:
    """Readers see nothing before the first batch, then each batch in order; the end adds nothing."""
    assert seen(generation_of(key, 1, batches=0, end=False)) == []
    assert seen(generation_of(key, 1, batches=12, end=False)) == [f"g1-b{at}" for at in range(12)]
    assert seen(generation_of(key, 1, batches=2, end=True)) == ["g1-b0", "g1-b1"]


def test_a_rerun_replaces_a_stream_when_it_ends(key: SinkKey) -> None:
    """While the new generation runs readers see the complete old one; from its end on, the complete new one; never an empty table."""
    old = generation_of(key, 1, batches=3, end=True)
    for batches in range(3):
        assert seen(old, generation_of(key, 2, batches=batches, end=False)) == ["g1-b0", "g1-b1", "g1-b2"]
    assert seen(old, generation_of(key, 2, batches=1, end=True)) == ["g2-b0"]


def test_a_rerun_replaces_a_plain_write_when_it_ends_and_the_other_way_round(key: SinkKey) -> None:
    """A plain write is complete once its one slot is committed."""
    plain = [committing(key, 1)]
    assert seen(plain, generation_of(key, 2, batches=2, end=False)) == ["g1"]
    assert seen(plain, generation_of(key, 2, batches=2, end=True)) == ["g2-b0", "g2-b1"]
    later = [committing(key.model_copy(update={"generation": 2}), 1)]
    assert seen(generation_of(key, 1, batches=2, end=True), later) == ["g2"]


def test_a_stream_that_never_had_a_batch_hides_nothing(key: SinkKey) -> None:
    """A generation with only an opening is not visible; the next generation becomes visible as it grows, like a first one."""
    opening = generation_of(key, 1, batches=0, end=False)
    assert seen(opening, generation_of(key, 2, batches=1, end=False)) == ["g2-b0"]


def test_appending_streams_are_all_seen(key: SinkKey) -> None:
    """With `onRerun: Append` the batches of every generation are visible, ended or not."""
    append = OnRerun.APPEND
    one, two = (generation_of(key, g, batches=2, end=g == 1, on_rerun=append) for g in (1, 2))
    assert seen(one, two) == ["g1-b0", "g1-b1", "g2-b0", "g2-b1"]


def test_a_stream_that_ended_without_rows_is_an_empty_table_with_columns(key: SinkKey) -> None:
    """The end slot represents the stream: it has the schema, and replaces the generations before it."""
    old = generation_of(key, 1, batches=3, end=True)
    assert seen(old, generation_of(key, 2, batches=0, end=True)) == ["g2-b0"]


def test_snapshots_hold_streams(objects: TableObjects, key: SinkKey) -> None:
    """The same batches are visible with a snapshot and without, and after more of them follow the snapshot."""
    sink = SlotLogSink(objects, name="orders")
    chain = committed(sink, key, opened(sink, key), 1, batches=3)
    before = run(decided(objects)).committed
    assert run(write_snapshot(objects, after=0))
    assert (set(run(decided(objects)).committed), run(decided(objects)).unlisted) == (set(before), 0)
    ended(sink, key, committed(sink, key, chain, 2), 2)
    assert run(decided(objects)).unlisted == 3  # one is a closed slot, where token 2 took over
    assert len(run(decided(objects)).committed) == len(before) + 2 == 6
