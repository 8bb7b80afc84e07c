"""A stream that starts over, with a new checkpoint, beside rows of another stream of the same source is refused before any of its rows is
visible, whichever process died or began at the same time, unless the job says `restart`. Each remedy is executed in the state in which it
is named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driver.streamed import (
    BATCHES,
    LIVES,
    Dies,
    a_kind,
    begin,
    checkpoint_of,
    checkpoints,
    dying,
    kind,
    next_attempt,
    rows,
    settled,
    source,
)
from harness.granted import Granted
from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.driver.stream_output import StreamOutput
from sparkonce.errors import StreamBroken
from sparkonce.failpoints import FailpointError
from sparkonce.sink import stream
from sparkonce.sink.protocol import StreamSource

__all__ = ["begin", "checkpoints", "kind"]

pytest_generate_tests = a_kind

ALL = [n for batch in BATCHES for n in batch]
LATER = [*BATCHES, [7]]
RESTART = r"set `stream: \{restart: true\}` in the spec, or restart=True in the call, to write them again"


def write(attempt: Granted, *batches: list[int], reads: str = "file:/landing", **given: Any) -> Any:
    """Runs a whole stream in one attempt."""
    given.setdefault("checkpoint", checkpoint_of(attempt))
    return attempt.job(channel=LIVES).stream(source(*batches, reads=reads)).write("orders", **given)


def refused(attempt: Granted, *batches: list[int], **given: Any) -> str:
    """The sentence of the refusal; asserts that the stream left nothing in the table, not even its opening."""
    before = rows(attempt)
    with pytest.raises(StreamBroken) as told:
        write(attempt, *batches, **given)
    assert rows(attempt) == before
    assert attempt.committed("orders") is None
    assert not list(attempt.folder.glob(f"**/*{attempt.key('orders')}*/**/*.parquet"))
    return str(told.value)


@pytest.fixture
def monday(begin: Callable[..., Granted]) -> Granted:
    """A key whose stream has ended."""
    attempt = begin(idempotencyKey="monday")
    write(attempt)
    return attempt


@pytest.fixture
def tuesday(monday: Granted, begin: Callable[..., Granted]) -> Granted:
    """The next key; the checkpoint of both was moved away."""
    checkpoint = Path(checkpoint_of(monday))
    checkpoint.rename(checkpoint.with_name("kept"))
    return begin(idempotencyKey="tuesday")


def test_a_checkpoint_that_was_deleted_between_two_keys_is_refused_and_both_are_named(tuesday: Granted) -> None:
    """The sentence has both keys, generations and checkpoints, and the source."""
    told = refused(tuesday, *LATER)

    at = checkpoint_of(tuesday)
    assert f"the stream of tuesday (generation 1, checkpoint {at}, query " in told
    assert f"the stream of monday (generation 1, checkpoint {at}, query " in told
    assert "committed 6 rows of the same source, file:/landing: they would be there twice" in told
    assert rows(tuesday) == ALL


def test_with_its_checkpoint_restored_it_goes_on(tuesday: Granted) -> None:
    """This is the remedy for a deleted checkpoint."""
    assert "; restore its checkpoint to go on after it, or set `stream: {restart: true}`" in refused(tuesday, *LATER)
    checkpoint = Path(checkpoint_of(tuesday))
    shutil.rmtree(checkpoint)
    checkpoint.with_name("kept").rename(checkpoint)

    write(tuesday, *LATER)

    assert rows(tuesday) == [*ALL, 7]


def test_another_checkpoint_of_the_same_source_is_refused_and_the_first_one_goes_on(
    monday: Granted, begin: Callable[..., Granted]
) -> None:
    """The default checkpoint is new for each key, so it is refused. The remedy is the checkpoint of the stream before."""
    tuesday = begin(idempotencyKey="tuesday")
    assert "; use its checkpoint to go on after it, or set `stream: {restart: true}`" in refused(
        tuesday, *LATER, checkpoint=None
    )

    write(tuesday, *LATER, checkpoint=checkpoint_of(monday))

    assert rows(tuesday) == [*ALL, 7]


@pytest.mark.parametrize("where", ["call", "spec"])
def test_a_restart_that_the_job_asks_for_writes_the_rows_again(
    tuesday: Granted, begin: Callable[..., Granted], where: str
) -> None:
    """`restart` is given in the call or in the spec. The next key continues on the new checkpoint and needs no restart."""
    assert re.search(f"{RESTART}$", refused(tuesday, *LATER))
    spec: dict[str, Any] = {"stream": {"restart": True}} if where == "spec" else {}
    again = begin(idempotencyKey="tuesday", **spec)

    write(again, *LATER, restart=where == "call")
    write(begin(idempotencyKey="wednesday"), *LATER, [8])

    assert rows(again) == sorted([*ALL, *ALL, 7, 8])


def test_streams_of_different_sources_share_a_table(tuesday: Granted) -> None:
    """A stream of another folder is not refused."""
    write(tuesday, [10], [11], reads="file:/landing/eu")
    assert rows(tuesday) == [*ALL, 10, 11]


def test_a_stream_that_shares_one_of_its_sources_is_refused(tuesday: Granted) -> None:
    """A stream reads a union of two folders, one of which was read before."""
    both: Any = source(*LATER)
    both.sources = (StreamSource(at="file:/returns"), StreamSource(at="file:/landing"))
    with pytest.raises(StreamBroken, match="of the same source, file:/landing: they would be there twice"):
        tuesday.job().stream(both).write("orders", checkpoint=checkpoint_of(tuesday))
    assert rows(tuesday) == ALL


def test_a_stream_that_ended_without_rows_is_in_no_way(begin: Callable[..., Granted]) -> None:
    """A stream without rows has no row that could be there twice, so another one is accepted."""
    empty: Any = source()
    empty.batches = []
    begin(idempotencyKey="monday").job().stream(empty).write("orders")
    tuesday = begin(idempotencyKey="tuesday")
    write(tuesday)
    assert rows(tuesday) == ALL


def test_a_stream_whose_first_batch_failed_is_in_no_way(begin: Callable[..., Granted]) -> None:
    """A stream is opened with its first commit: a function that raises before leaves nothing that would make another key be refused."""
    monday = begin(idempotencyKey="monday")
    dying(monday, 0)
    tuesday = begin(idempotencyKey="tuesday")
    write(tuesday)
    assert rows(tuesday) == ALL


def test_a_stream_that_has_not_ended_is_waited_for(begin: Callable[..., Granted]) -> None:
    """The remedy while the other stream runs is to wait for its end, then use its checkpoint."""
    monday, tuesday = begin(idempotencyKey="monday"), begin(idempotencyKey="tuesday")
    dying(monday, 1, committed=True, checkpoint=str(monday.folder / "first"))
    told = refused(tuesday, *LATER)
    assert "committed 5 rows" in told
    assert "; wait for its end (or cancel it) and then use its checkpoint, or set `stream: {restart: true}`" in told
    settled(monday, end=True)

    write(tuesday, *LATER, checkpoint=str(monday.folder / "first"))

    assert rows(tuesday) == [*ALL, 7]


def test_a_new_checkpoint_beside_a_stream_that_has_not_ended_needs_the_restart(begin: Callable[..., Granted]) -> None:
    """On the checkpoint of a running stream, the sentence says to use a new one with a restart, which then works."""
    monday, tuesday = begin(idempotencyKey="monday"), begin(idempotencyKey="tuesday")
    dying(monday, 1, committed=True, checkpoint=checkpoint_of(monday))
    with pytest.raises(
        StreamBroken, match=r"has not ended; end that one, or give a new one and set `stream: \{restart: true\}`"
    ):
        write(tuesday)
    assert rows(tuesday) == [1, 2, 3, 4, 5]

    write(tuesday, checkpoint=None, restart=True)

    assert rows(tuesday) == sorted([1, 2, 3, 4, 5, *ALL])


def test_rows_that_a_rerun_replaced_are_in_no_way(begin: Callable[..., Granted]) -> None:
    """Rows of the first generation came from this source; those that replaced them came from another one."""
    monday = begin(idempotencyKey="monday")
    write(monday)
    monday.record = monday.record.changed(generation=2)
    write(monday, [10], reads="file:/corrected", checkpoint=None)
    tuesday = begin(idempotencyKey="tuesday")

    write(tuesday, checkpoint=None)

    assert rows(tuesday) == [*ALL, 10]


def test_a_rerun_that_replaces_its_rows_begins_anew(monday: Granted) -> None:
    """Its old rows are replaced, so nothing is there twice."""
    monday.record = monday.record.changed(generation=2)
    write(monday, *LATER, checkpoint=None)
    assert rows(monday) == [*ALL, 7]


def test_a_rerun_that_keeps_its_rows_begins_anew_only_with_a_restart(begin: Callable[..., Granted]) -> None:
    """With `onRerun: Append` a new checkpoint would write every row a second time; on the old one the stream continues."""
    attempt = begin(on_rerun="Append")
    write(attempt)
    attempt.record = attempt.record.changed(generation=2)
    told = refused(attempt, *LATER, checkpoint=None)
    assert "the stream of load-may (generation 2, " in told
    assert "the stream of load-may (generation 1, " in told
    assert "; use its checkpoint to go on after it, or set `stream: {restart: true}`" in told

    write(attempt, *LATER)
    assert rows(attempt) == [*ALL, 7]
    attempt.record = attempt.record.changed(generation=3)
    write(attempt, *LATER, checkpoint=None, restart=True)
    assert rows(attempt) == sorted([*ALL, 7, *ALL, 7])


def test_a_rerun_of_one_day_does_not_repeat_the_next_days_rows(monday: Granted, begin: Callable[..., Granted]) -> None:
    """The rerun would replace its own day's rows, but the next day's would be there twice. It cannot use the checkpoint of the rows that it
    replaces, so the sentence names only the restart."""
    write(begin(idempotencyKey="tuesday"), *LATER)
    monday.record = monday.record.changed(generation=2)
    told = refused(monday, *LATER, checkpoint=None)
    assert "the stream of tuesday (generation 1, " in told
    assert "they would be there twice; set `stream: {restart: true}`" in told

    write(monday, *LATER, checkpoint=None, restart=True)

    assert rows(monday) == sorted([*ALL, 7, 7])


def reset(checkpoint: Path) -> None:
    """Deletes the checkpoint, so the next query begins a new one."""
    shutil.rmtree(checkpoint)


def put_back(checkpoint: Path) -> None:
    """Restores the checkpoint to the state before its last batch, which is then planned again."""
    for folder in ("offsets", "commits"):
        (checkpoint / folder / "0").unlink()


def run_elsewhere(checkpoint: Path) -> None:
    """Marks a batch as committed in the checkpoint, as another stream that used it would."""
    (checkpoint / "commits" / "1").touch()


@pytest.mark.parametrize("on_rerun", ["Replace", "Append"])
@pytest.mark.parametrize("harm", [reset, put_back, run_elsewhere])
def test_the_rerun_that_is_named_for_a_harmed_checkpoint_writes_the_stream_anew(
    begin: Callable[..., Granted], harm: Callable[[Path], None], on_rerun: str
) -> None:
    """The remedy is a rerun, with a new checkpoint; if the rerun keeps the old rows, the sentence also names the restart."""
    attempt = begin(on_rerun=on_rerun)
    dying(attempt, 1, checkpoint=checkpoint_of(attempt))
    next_attempt(attempt)
    harm(Path(checkpoint_of(attempt)))
    keeps = on_rerun == "Append"
    named = (
        r"`sparkonce rerun` the job with a new .*`stream: \{restart: true\}`"
        if keeps
        else "`sparkonce rerun load-may` with a new"
    )
    with pytest.raises(StreamBroken, match=named):
        write(attempt)
    settled(attempt, end=True)
    again = begin(on_rerun=on_rerun, **({"stream": {"restart": True}} if keeps else {}))
    again.record = again.record.changed(generation=2)

    write(again, checkpoint=None)

    assert rows(again) == (sorted([1, 2, *ALL]) if keeps else ALL)


@pytest.mark.parametrize("on_rerun", ["Replace", "Append"])
def test_the_rerun_that_is_named_for_outputs_that_ended_apart_writes_both_anew(
    begin: Callable[..., Granted], on_rerun: str
) -> None:
    """The owner died after it had ended the output that was one batch ahead."""
    attempt = begin("orders", "totals", on_rerun=on_rerun)

    def both(batch: Any, frame: Any) -> None:
        batch.write(frame, "orders")
        if batch.number == 1:
            raise Dies
        batch.write(frame, "totals")

    with pytest.raises(Dies):
        attempt.job().stream(source()).foreach_batch(both)
    sink, key = attempt.sinks()["orders"], attempt.key("orders")
    opening = run(sink.find(key))
    assert opening is not None
    run(stream.settled(sink, key, opening, 1, fingerprint=attempt.record.fingerprint, by="owner", end=True))
    attempt.update(attempt=2, nonce="nonce-2")
    keeps = on_rerun == "Append"
    named = (
        r"rerun` the job with a new checkpoint and `stream: \{restart: true\}`"
        if keeps
        else r"rerun load-may` with a new checkp"
    )
    with pytest.raises(StreamBroken, match=f"{named}.* writes all of them anew"):
        attempt.job().stream(source()).foreach_batch(both)
    again = begin("orders", "totals", on_rerun=on_rerun, **({"stream": {"restart": True}} if keeps else {}))
    again.record = again.record.changed(generation=2)

    again.job(channel=LIVES).stream(source()).foreach_batch(
        lambda batch, frame: [batch.write(frame, name) for name in ("orders", "totals")]
    )

    assert rows(again) == (sorted([1, 2, 3, 4, 5, *ALL]) if keeps else ALL)
    assert rows(again, "totals") == (sorted([1, 2, *ALL]) if keeps else ALL)


# --- processes that die, and two that begin at the same time ---------------------------------------------------------------


def test_an_attempt_that_died_after_its_opening_is_looked_at_by_others_and_goes_on(
    begin: Callable[..., Granted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream is opened and has no rows, but may still commit some, so another stream of the source is refused. Its own next attempt
    continues."""
    monday, tuesday = begin(idempotencyKey="monday"), begin(idempotencyKey="tuesday")
    with monkeypatch.context() as dies:
        dies.setenv("SPARKONCE_FAILPOINTS", "driver.stream.opened=raise")
        failpoints.reset()
        with pytest.raises(FailpointError):
            write(monday)
    failpoints.reset()
    told = refused(tuesday, checkpoint=None)
    assert "has begun and may yet commit rows of the same source" in told
    next_attempt(monday)

    write(monday)

    assert rows(monday) == ALL


def test_a_stream_that_opened_while_another_one_prepared_its_rows_goes_first(begin: Callable[..., Granted]) -> None:
    """Both streams found nothing when they checked. The one that opens last is refused before its rows are visible, and they are deleted;
    its next attempt is refused as well, unless it restarts."""
    monday, tuesday = begin(idempotencyKey="monday"), begin(idempotencyKey="tuesday")

    def overtaken(batch: Any, frame: Any) -> None:
        if batch.number == 0:
            write(tuesday, checkpoint=None)
        batch.write(frame, "orders")

    with pytest.raises(StreamBroken, match=r"the stream of tuesday .* committed 6 rows of the same source"):
        monday.job().stream(source()).foreach_batch(overtaken, checkpoint=checkpoint_of(monday))
    assert rows(monday) == ALL
    assert not list(monday.folder.glob(f"**/*{monday.key('orders')}-b0/**/*.parquet"))
    next_attempt(monday)
    with pytest.raises(StreamBroken, match=f"they would be there twice; {RESTART}"):
        write(monday)
    assert rows(monday) == ALL

    write(monday, restart=True)

    assert rows(monday) == sorted([*ALL, *ALL])


def test_of_two_streams_that_opened_at_once_at_most_one_commits_rows(
    begin: Callable[..., Granted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both openings are committed before either stream checks: neither has rows, and restarting one of them resolves it."""
    monday, tuesday = begin(idempotencyKey="monday"), begin(idempotencyKey="tuesday")
    opened = StreamOutput._open
    refusals: list[str] = []

    def open_both(self: StreamOutput) -> Any:
        chain = opened(self)
        if self._job.key == "monday":
            with pytest.raises(StreamBroken) as told:
                write(tuesday, checkpoint=None)
            refusals.append(str(told.value))
        return chain

    looked = StreamOutput._refuse_beside

    def look(self: StreamOutput) -> None:
        if self._job.key == "monday" or self._chain is not None:  # tuesday checks only after its own opening
            looked(self)

    monkeypatch.setattr(StreamOutput, "_open", open_both)
    monkeypatch.setattr(StreamOutput, "_refuse_beside", look)
    with pytest.raises(StreamBroken, match=f"stream of tuesday .* has begun and may yet commit rows .*; {RESTART}"):
        write(monday)
    assert "the stream of monday " in refusals[0]
    assert rows(monday) == []
    monkeypatch.setattr(StreamOutput, "_open", opened)
    monkeypatch.setattr(StreamOutput, "_refuse_beside", looked)
    next_attempt(monday)
    with pytest.raises(StreamBroken, match=RESTART):
        write(monday)

    write(monday, restart=True)

    assert rows(monday) == ALL


def test_no_output_has_the_batch_when_another_one_is_refused(begin: Callable[..., Granted]) -> None:
    """All outputs of a stream are opened before the first of them gets rows."""
    monday = begin("orders", "totals", idempotencyKey="monday")
    tuesday = begin("totals", idempotencyKey="tuesday")

    def overtaken(batch: Any, frame: Any) -> None:
        if batch.number == 0:
            tuesday.job().stream(source()).write("totals")
        batch.write(frame, "orders")
        batch.write(frame, "totals")

    with pytest.raises(StreamBroken, match="in output totals, where the stream of tuesday"):
        monday.job().stream(source()).foreach_batch(overtaken)

    assert (rows(monday), rows(monday, "totals")) == ([], ALL)


def test_a_stream_that_an_earlier_release_opened_is_carried_on_and_not_compared(
    begin: Callable[..., Granted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its opening names no source: its next attempt continues, and no other stream of the table is refused because of it."""
    monday = begin(idempotencyKey="monday")
    with monkeypatch.context() as earlier:
        opening_of = stream.opening_of
        earlier.setattr(stream, "opening_of", lambda *key, **given: opening_of(*key, **{**given, "origin": None}))
        dying(monday, 1, checkpoint=checkpoint_of(monday))
    assert run(monday.sinks()["orders"].find(monday.key("orders"))).stream.origin is None  # type: ignore[union-attr]
    next_attempt(monday)
    write(monday)
    tuesday = begin(idempotencyKey="tuesday")

    write(tuesday, [10], checkpoint=None)

    assert rows(tuesday) == [*ALL, 10]


def test_the_end_of_a_stream_does_not_repeat_what_its_opening_names(monday: Granted) -> None:
    """Only openings name their source; the slots of batches and ends have the same bytes as in earlier releases."""
    sink: Any = monday.sinks()["orders"]
    opening = run(sink.find(monday.key("orders")))
    chain = run(stream.walk(sink, monday.key("orders"), opening))
    assert stream.mark(opening).origin is not None
    assert "origin" not in chain.last.dump()["stream"]
