"""A driver with a gateway reports once all its outputs are committed, and its report equals what settling would find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driver.streamed import begin, checkpoints, each_kind, kind, settled, source
from driver.test_report import Lossy, reports
from harness.arrow_stage import table_of
from harness.granted import Granted, granted
from sparkonce.attempt.settle_runs import driver_reported
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import COURTESY, Job
from sparkonce.model.record import COMMITTED, Report, Verdict

__all__ = ["begin", "checkpoints", "kind"]

pytest_generate_tests = each_kind


def told(attempt: Granted, **more: Any) -> Job:
    """The job of a driver with a gateway, which its owner needs when it may not reach the outputs."""
    assignment = attempt.assignment.model_copy(update={"gateway": "https://gateway"})
    return Job(assignment, attempt.sinks(), more.get("channel") or DirectChannel(attempt.store, assignment))


def commits(attempt: Granted) -> list[Report]:
    return [each for each in reports(attempt) if each.kind == COMMITTED]


def test_the_last_output_of_a_job_tells_of_all_of_them(tmp_path: Path) -> None:
    """There is no report before every declared output is committed; the report then has every slot unchanged."""
    attempt = granted(tmp_path, "a", "b")
    job = told(attempt)
    job.write(table_of(1, 2), "a")
    assert commits(attempt) == []
    job.write(table_of(3), "b")
    (report,) = commits(attempt)
    assert report.body["slots"] == {name: slot.dump() for name in ("a", "b") if (slot := attempt.committed(name))}


def test_a_transaction_tells_once(tmp_path: Path) -> None:
    """The report follows the transaction's last slot."""
    attempt = granted(tmp_path, "a", "b")
    with told(attempt).transaction() as tx:
        tx.write(table_of(1), "a")
        tx.write(table_of(2), "b")
        assert commits(attempt) == []
    (report,) = commits(attempt)
    assert sorted(report.body["slots"]) == ["a", "b"]


def test_what_an_earlier_attempt_committed_is_told_by_the_next(tmp_path: Path) -> None:
    """The next attempt finds one output committed and writes the other: its report has both slots."""
    attempt = granted(tmp_path, "a", "b")
    told(attempt).write(table_of(1), "a")
    attempt.next_attempt()
    job = told(attempt)
    assert not job.write(table_of(1), "a").fresh
    job.write(table_of(2), "b")
    (report,) = commits(attempt)
    assert (report.attempt, report.body["slots"]["a"]["token"], report.body["slots"]["b"]["token"]) == (2, 1, 2)


def test_nobody_is_told_where_the_owner_sees_the_outputs(tmp_path: Path) -> None:
    """In local mode the owner reads the outputs, so a report would only cost a write."""
    attempt = granted(tmp_path, "a")
    attempt.job().write(table_of(1), "a")
    assert reports(attempt) == []


def test_a_job_does_not_fail_for_a_report_that_nobody_takes(tmp_path: Path) -> None:
    """The rows are committed, and a settle run will find them."""
    attempt = granted(tmp_path, "a")
    channel = Lossy(attempt, times=1000)
    assert told(attempt, channel=channel).write(table_of(1), "a").fresh
    assert channel.times == 999, "asked once; the channel repeats it, within the patience that it was given"
    assert channel.patience == [COURTESY]


@pytest.mark.parametrize("streams", [False, True])
def test_slots_are_told_as_they_are_found(tmp_path: Path, streams: bool) -> None:
    """In a slot log, for a plain write and for a stream's end."""
    agrees(granted(tmp_path, "orders"), streams)


@pytest.mark.parametrize("streams", [False, True])
def test_commits_of_tables_are_told_as_they_are_found(begin: Callable[..., Granted], streams: bool) -> None:
    """In Delta and Iceberg tables the slot that the driver sent equals the evidence in the table."""
    agrees(begin(), streams)


def agrees(attempt: Granted, streams: bool) -> None:
    """Asserts that the report is accepted, and equals what settling finds."""
    job = told(attempt)
    if streams:
        job.stream(source()).write("orders")
    else:
        job.write(table_of(1, 2), "orders")
    believed = driver_reported(attempt.record, ["orders"], reports(attempt))
    found = settled(attempt)
    assert believed is not None and believed.verdict is found.verdict is Verdict.ALL
    assert believed.slots == found.slots
