"""`job.write`: one effect, whatever dies or does not answer, and never a row of an attempt that was taken over."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import write_deltalake
from pyarrow import parquet

from harness.arrow_stage import table_of
from harness.delta_stage import numbers_in
from harness.granted import Granted, granted, silent
from sparkonce.attempt.outcome import output_result
from sparkonce.blocking import run
from sparkonce.driver.context import Job
from sparkonce.driver.stream_output import StreamOutput
from sparkonce.errors import (
    AttemptEnded,
    Fenced,
    InvalidInput,
    KeyConflict,
    LateInSeries,
    OutputUnavailable,
    OutputUnsupported,
    UndeclaredOutput,
)
from sparkonce.model.record import Verdict
from sparkonce.model.spec import Expect
from sparkonce.sink.protocol import Slot
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.sink.transaction import settle

TRIES = 4
"""Creates that are sent for one slot; after each lost one the slot is read, and that read is lost, too."""
NEVER: Any = object()
"""A frame that cannot be staged."""


def test_a_write_commits_its_rows_and_says_what_stands_there(tmp_path: Path) -> None:
    """Rows, bytes and place are those of the output, and `fresh` is true."""
    attempt = granted(tmp_path, "orders")

    written = attempt.job().write(table_of(1, 2, 3), "orders")

    assert (written.output, written.rows, written.fresh) == ("orders", 3, True)
    assert written.uri == (tmp_path / "orders").as_uri()
    assert attempt.rows("orders") == [1, 2, 3]


def test_an_undeclared_output_is_refused_by_name(tmp_path: Path) -> None:
    """A takeover would not know that output: nothing is written, the sentence lists those declared, and no further attempt is made."""
    attempt = granted(tmp_path, "orders", "totals")

    with pytest.raises(UndeclaredOutput, match=r"'order' is not declared .*declared: orders, totals"):
        attempt.job().write(table_of(1), "order")

    assert list(tmp_path.iterdir()) == []
    assert [each.kind for each in run(attempt.store.reports(attempt.record.address, 1))] == ["permanent-error"]


def test_what_is_committed_is_returned_without_running_the_frame(tmp_path: Path) -> None:
    """A later attempt gets the first one's record without touching its own frame, which cannot be staged."""
    attempt = granted(tmp_path, "orders")
    attempt.job().write(table_of(1, 2), "orders")
    attempt.update(attempt=2, nonce="nonce-2")

    written = attempt.job().write(NEVER, "orders")

    assert (written.rows, written.fresh) == (2, False)
    assert attempt.rows("orders") == [1, 2]


def test_a_second_write_to_an_output_is_refused_and_not_dropped(tmp_path: Path) -> None:
    """An output has one effect, so the second frame's rows would be lost silently: it is an error, also after a transaction."""
    attempt = granted(tmp_path, "orders", "totals")
    job = attempt.job()
    job.write(table_of(1), "orders")
    with job.transaction() as tx:
        tx.write(table_of(7), "totals")

    for output in ("orders", "totals"):
        with pytest.raises(InvalidInput, match=f"'{output}' is written twice"):
            job.write(table_of(2), output)
    assert (attempt.rows("orders"), attempt.rows("totals")) == ([1], [7])


def test_an_attempt_whose_slot_was_closed_is_fenced_and_leaves_no_files(tmp_path: Path) -> None:
    """The slot is closed after the attempt staged: Fenced, nothing is visible, and the files are deleted."""
    attempt = granted(tmp_path, "orders")
    job = attempt.job()
    staged = job._stage

    def taken_over(*given: Any) -> Slot:
        slot = staged(*given)
        attempt.fence("orders", 2)
        return slot

    job._stage = taken_over  # type: ignore[method-assign, assignment]  # a takeover at the worst moment

    with pytest.raises(Fenced, match=r"attempt 1 of load-may can never commit to orders.*closed by a successor"):
        job.write(table_of(1), "orders")
    assert (attempt.rows("orders"), attempt.staged("orders")) == ([], [])


def test_rows_of_another_job_under_the_key_are_a_conflict(tmp_path: Path) -> None:
    """A slot with another fingerprint is never returned as ours: KeyConflict, both before the frame runs and at the commit."""
    attempt = granted(tmp_path, "orders")
    other = attempt.record.changed(fingerprint="of another job")
    mine, attempt.record = attempt.record, other
    attempt.job().write(table_of(9), "orders")
    attempt.record = mine

    with pytest.raises(KeyConflict, match=r"orders \(file://.*\) holds a commit of load-may for another job"):
        attempt.job().write(NEVER, "orders")

    late = attempt.job()
    late._committed = lambda *_: None  # type: ignore[method-assign]  # as if it had been committed after this check
    with pytest.raises(KeyConflict):
        late.write(table_of(1), "orders")
    assert len(attempt.staged("orders")) == 1
    assert run(attempt.sinks()["orders"].find(attempt.key("orders"))).rows == 1  # type: ignore[union-attr]


def test_a_failed_stage_leaves_nothing(tmp_path: Path) -> None:
    """The frame's own error is raised; there is no slot and no file, and the output may be written again."""
    attempt = granted(tmp_path, "orders")
    job = attempt.job()

    with pytest.raises(AttributeError):
        job.write(NEVER, "orders")
    assert attempt.staged("orders") == []
    assert job.write(table_of(1), "orders").fresh


def test_a_stream_of_spark_connect_is_refused(tmp_path: Path) -> None:
    """The refusal is one sentence, and the output may be written with other rows. The stand-in has the name of PySpark's class."""
    job = granted(tmp_path, "orders").job()
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe", "columns": ["n"]})()

    with pytest.raises(
        InvalidInput, match="can append and overwrite, and not write a stream; start the session without remote"
    ):
        job.stream(frame).write("orders")
    assert job.write(table_of(1), "orders").fresh


def test_a_commit_without_an_answer_is_given_up_by_closing_its_own_slot_first(tmp_path: Path) -> None:
    """The creates never took effect: the slot is closed before the files are deleted, so that no create can take effect later."""
    attempt = granted(tmp_path, "orders")
    job = attempt.job(sinks=silent(attempt.sinks(), "orders", times=2 * TRIES))

    with pytest.raises(
        OutputUnavailable,
        match=r"could not commit to orders: .*no answer.*; its slot is closed now, so nothing of it is",
    ):
        job.write(table_of(1), "orders")
    assert (attempt.rows("orders"), attempt.staged("orders")) == ([], [])
    assert attempt.slots("orders") == [(1, "closed")]


def test_a_commit_that_landed_without_an_answer_is_kept(tmp_path: Path) -> None:
    """Before it gives up the write finds its own slot committed: it succeeded, and none of its files is deleted."""
    attempt = granted(tmp_path, "orders")
    job = attempt.job(sinks=silent(attempt.sinks(), "orders", times=2 * TRIES, lands=True))

    assert job.write(table_of(1, 2), "orders").fresh
    assert attempt.rows("orders") == [1, 2]


@pytest.mark.parametrize(("fingerprint", "expected"), [(None, None), ("of another job", KeyConflict)])
def test_giving_up_where_a_twin_committed_returns_what_the_twin_wrote(
    tmp_path: Path, fingerprint: str | None, expected: type[Exception] | None
) -> None:
    """Two drivers of one attempt: the one without an answer finds the other's commit, and its own files are deleted."""
    attempt = granted(tmp_path, "orders")
    job = attempt.job(sinks=silent(attempt.sinks(), "orders", times=0))
    staged = job._stage

    def overtaken(*given: Any) -> Slot:
        slot = staged(*given)
        mine = attempt.record
        attempt.record = mine.changed(fingerprint=fingerprint or mine.fingerprint)
        attempt.job().write(table_of(5, 6), "orders")
        attempt.record = mine
        job._sinks["orders"]._objects.times = 2 * TRIES  # type: ignore[attr-defined]  # from now on it gets no answer
        return slot

    job._stage = overtaken  # type: ignore[method-assign, assignment]  # the other driver commits at the worst moment

    if expected is None:
        written = job.write(table_of(1), "orders")
        assert (written.rows, written.fresh) == (2, False)
    else:
        with pytest.raises(expected):
            job.write(table_of(1), "orders")
    assert attempt.rows("orders") == [5, 6]
    assert len(attempt.staged("orders")) == 1


def test_an_output_that_stays_silent_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    """The commit took effect unanswered: OutputUnavailable, and the files are left to settling."""
    attempt = granted(tmp_path, "orders")
    job = attempt.job(sinks=silent(attempt.sinks(), "orders", times=4 * TRIES, lands=True))

    with pytest.raises(OutputUnavailable):
        job.write(table_of(1, 2), "orders")
    assert attempt.rows("orders") == [1, 2]


def test_a_write_after_the_attempt_ended_is_refused_before_it_runs(tmp_path: Path) -> None:
    """A heartbeat was answered that the attempt is over: no frame runs and no file is written."""
    attempt = granted(tmp_path, "orders")
    job = attempt.job()
    job.heartbeat.over = True

    with pytest.raises(AttemptEnded, match="attempt 1 of load-may is over"):
        job.write(NEVER, "orders")
    assert attempt.staged("orders") == []


def test_two_attempts_write_different_folders_of_one_key(tmp_path: Path) -> None:
    """The second attempt commits under its own token, and the first one's slot is closed (rule R)."""
    attempt = granted(tmp_path, "orders")
    attempt.next_attempt()

    attempt.job().write(table_of(4), "orders")

    assert attempt.slots("orders") == [(1, "closed"), (2, "committed")]


# --- modes ---------------------------------------------------------------------------------------------------------------------


def delta_job(folder: Path, **output: Any) -> Job:
    """An attempt whose output `orders` is a Delta table."""
    outputs = [{"name": "orders", "delta": {"path": "orders"}, **output}]
    return granted(folder, outputs=outputs).job()


@pytest.mark.parametrize("mode", ["overwrite", "Overwrite", "OVERWRITE"])
def test_the_code_chooses_a_mode_that_the_job_leaves_open(tmp_path: Path, mode: str) -> None:
    """In any case, as Spark spells it and as the job file does."""
    write_deltalake(str(tmp_path / "orders"), table_of(1))
    delta_job(tmp_path).write(table_of(2), "orders", mode=mode)
    assert numbers_in(tmp_path / "orders") == [2]


def test_a_declared_mode_needs_no_word_in_the_code(tmp_path: Path) -> None:
    """In a plain write and in a transaction; without either the rows are added."""
    for mode, how, expected in (("Overwrite", "plain", [2]), ("Overwrite", "tx", [2]), (None, "tx", [1, 2])):
        folder = tmp_path / f"{mode}-{how}"
        write_deltalake(str(folder / "orders"), table_of(1))
        job = delta_job(folder, **({"mode": mode} if mode else {}))
        if how == "plain":
            job.write(table_of(2), "orders")
        else:
            with job.transaction() as tx:
                tx.write(table_of(2), "orders")
        assert numbers_in(folder / "orders") == expected


@pytest.mark.parametrize(
    ("declared", "asked", "sentence"),
    [
        (
            "Append",
            "overwrite",
            r"^mode='overwrite' contradicts spec.outputs\[orders\].mode, which is Append; leave one of them out$",
        ),
        ("Overwrite", "append", r"^mode='append' contradicts spec.outputs\[orders\].mode, which is Overwrite; "),
        (None, "errorifexists", r"^mode='errorifexists' is none of Append, Overwrite, OverwritePartitions, Merge$"),
    ],
)
def test_a_mode_that_the_output_does_not_take_is_refused_before_the_frame_runs(
    tmp_path: Path, declared: str | None, asked: str, sentence: str
) -> None:
    """In a transaction, too, which then commits nothing else either."""
    job = delta_job(tmp_path, **({"mode": declared} if declared else {}))
    with pytest.raises(InvalidInput, match=sentence):
        job.write(NEVER, "orders", mode=asked)
    with pytest.raises(InvalidInput, match=sentence), job.transaction() as tx:
        tx.write(NEVER, "orders", mode=asked)
    assert not (tmp_path / "orders").exists()


def test_merge_is_for_tables_of_delta_and_iceberg_and_stands_alone(tmp_path: Path) -> None:
    """A slot log is refused where the code asks for it, and so is a transaction; no row is computed."""
    with pytest.raises(
        OutputUnsupported, match="output orders is a slotLog, which takes no mode Merge; declare a delta or"
    ):
        granted(tmp_path, "orders").job().write(NEVER, "orders", mode="merge", on=["number"])
    job = delta_job(tmp_path / "delta", mode="Merge", on=["number"])
    with (
        pytest.raises(
            InvalidInput, match="output orders has mode Merge, in which Spark commits by itself and with nothing else"
        ),
        job.transaction() as tx,
    ):
        tx.write(NEVER, "orders")


@pytest.mark.parametrize("declared", ["Overwrite", None])
def test_a_slot_log_is_overwritten(tmp_path: Path, declared: str | None) -> None:
    """By the mode of the job file, or by the one that the write asks for. A second write of the key finds the first."""
    before = granted(tmp_path, "orders", idempotencyKey="load-april").job()
    before.write(table_of(1), "orders")
    outputs = [{"name": "orders", "slotLog": {"path": "orders"}, **({"mode": declared} if declared else {})}]
    attempt = granted(tmp_path, outputs=outputs)
    done = attempt.job().write(table_of(2, 3), "orders", mode=None if declared else "overwrite")
    assert (done.rows, done.fresh) == (2, True)
    assert numbers_of(tmp_path / "orders") == [2, 3]
    assert attempt.job().write(NEVER, "orders").fresh is False
    assert numbers_of(tmp_path / "orders") == [2, 3]


def numbers_of(slot_log: Path) -> list[int]:
    paths = Table(slot_log).files()
    return sorted(n for path in paths for n in cast("list[int]", parquet.read_table(path)["n"].to_pylist()))


def test_partitions_of_a_slot_log_need_columns(tmp_path: Path) -> None:
    """The sentence names what to pass, or the mode that needs none."""
    job = granted(tmp_path, "orders").job()
    with pytest.raises(
        InvalidInput,
        match=r"^output orders .* in mode OverwritePartitions: it has no partition columns; pass partition_by, or use mode",
    ):
        job.write(table_of(1), "orders", mode="overwritePartitions")
    assert not (tmp_path / "orders").exists()


@pytest.mark.parametrize("declared", ["Overwrite", None])
def test_a_transaction_does_not_overwrite_a_slot_log(tmp_path: Path, declared: str | None) -> None:
    """Its slot is sealed whole, and what it replaces is decided when it is committed. Nothing is staged; the write works outside."""
    mode = {"mode": declared} if declared else {}
    attempt = granted(tmp_path, outputs=[{"name": "orders", "slotLog": {"path": "orders"}, **mode}])
    job = attempt.job()
    with (
        pytest.raises(
            InvalidInput, match=r"^output orders is a slotLog, which no transaction overwrites: .*outside of"
        ),
        job.transaction() as tx,
    ):
        tx.write(NEVER, "orders", mode=None if declared else "overwrite")
    assert not (tmp_path / "orders").exists()
    assert attempt.job().write(table_of(1), "orders", mode=None if declared else "overwrite").rows == 1


def test_a_stream_of_an_output_that_overwrites_is_refused(tmp_path: Path) -> None:
    """Each batch would replace the one before."""
    slots = granted(tmp_path, outputs=[{"name": "orders", "slotLog": {"path": "orders"}, "mode": "Overwrite"}]).job()
    for job in (delta_job(tmp_path, mode="Overwrite"), slots):
        with pytest.raises(InvalidInput, match=r"mode is Overwrite, and a stream adds its batches"):
            StreamOutput(job, "orders", NEVER, restart=False)


# --- series --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before the rows run", "at the commit", "in a transaction"])
def test_a_late_job_ends_without_another_attempt(tmp_path: Path, when: str) -> None:
    """Nothing is committed, and the reported error is permanent, because no later attempt comes earlier."""
    outputs = [{"name": "orders", "delta": {"path": "orders"}, "mode": "Overwrite"}]

    def at(position: str, name: str) -> Granted:
        series = {"name": "daily", "position": position}
        return granted(tmp_path, outputs=outputs, series=series, idempotencyKey=name)

    today, yesterday = at("2024-05-02", "today"), at("2024-05-01", "yesterday")
    job = yesterday.job()
    if when == "at the commit":
        sink: Any = job._sinks["orders"]
        commit = sink.commit

        async def slow(*given: Any) -> Any:
            today.job().write(table_of(2), "orders")
            return await commit(*given)

        sink.commit = slow
    else:
        today.job().write(table_of(2), "orders")

    def write() -> None:
        if when == "in a transaction":
            with job.transaction() as tx:
                tx.write(table_of(1), "orders")
        else:
            job.write(table_of(1), "orders")

    late = "position 2024-05-01 of the series daily is late: 2024-05-02 has been committed"
    with pytest.raises(LateInSeries, match=late):
        write()
    assert numbers_in(tmp_path / "orders") == [2]
    reports = run(yesterday.store.reports(yesterday.record.address, 1))
    assert [(each.kind, late in each.body["message"]) for each in reports] == [("permanent-error", True)]


@pytest.mark.parametrize("when", ["before the rows run", "at the commit", "in a transaction", "after its seal"])
def test_a_late_job_that_skips_ends_well_and_writes_nothing(tmp_path: Path, when: str) -> None:
    """The script gets no error but an answer that names the position; nothing is reported as failed, and settling finds a result: the skip
    is committed, also where the driver died right after it had sealed rows that were in time."""
    outputs = [{"name": "orders", "delta": {"path": "orders"}, "mode": "Overwrite"}]

    def at(position: str, name: str) -> Granted:
        series = {"name": "daily", "position": position, "onLate": "Skip"}
        return granted(tmp_path, outputs=outputs, series=series, idempotencyKey=name)

    today, yesterday = at("2024-05-02", "today"), at("2024-05-01", "yesterday")
    job = yesterday.job()
    job._expected = {"orders": Expect(min_rows=1)}
    sink: Any = job._sinks["orders"]
    commit = sink.commit

    async def slow(*given: Any) -> Any:
        today.job().write(table_of(2), "orders")
        if when == "after its seal":
            raise SystemExit("the driver dies")
        return await commit(*given)

    if when in ("at the commit", "after its seal"):
        sink.commit = slow
    else:
        today.job().write(table_of(2), "orders")
    frame = NEVER if when == "before the rows run" else table_of(1)
    if when in ("in a transaction", "after its seal"):
        with contextlib.suppress(SystemExit), job.transaction() as tx:
            tx.write(frame, "orders")
        written = tx.written.get("orders")
    else:
        written = job.write(frame, "orders")
    if when != "after its seal":
        assert written is not None
        assert (written.rows, written.fresh, written.skipped) == (0, True, "2024-05-02")
        assert job.complete
    assert run(yesterday.store.reports(yesterday.record.address, 1)) == []
    yesterday.settling()
    settled = run(
        settle(
            list(yesterday.sinks().values()),
            key_hash=yesterday.record.key_hash,
            generation=1,
            attempt=1,
            fingerprint=yesterday.record.fingerprint,
            intent=run(yesterday.store.intent(yesterday.record.address, 1)),
            by="settle",
        )
    )
    slot = settled.slots["orders"]
    assert settled.verdict is Verdict.ALL and slot is not None
    result = output_result(yesterday.sinks()["orders"], slot)
    assert (result.rows, result.skipped) == (0, "2024-05-02")
    assert numbers_in(tmp_path / "orders") == [2]
    again = yesterday.job().write(NEVER, "orders")
    assert (again.rows, again.fresh, again.skipped) == (0, False, "2024-05-02")


def test_a_stream_has_no_place_in_a_series(tmp_path: Path) -> None:
    """Its batches would ignore the order."""
    outputs = [{"name": "orders", "delta": {"path": "orders"}}]
    job = granted(tmp_path, outputs=outputs, series={"name": "daily", "position": "1"}).job()
    with pytest.raises(InvalidInput, match=r"spec\.series orders jobs .*; leave it out"):
        StreamOutput(job, "orders", NEVER, restart=False)
