"""A driver's reports beside its writes: values, entries, and a permanent error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ParseException

from harness.granted import Granted, granted
from sparkonce.attempt.outcome import values_of
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.driver.context import COURTESY, TRACE_LIMIT
from sparkonce.errors import InvalidInput, StoreUnavailable
from sparkonce.model.record import UNCAUGHT, VALUES_LIMIT, Report


def reports(attempt: Granted) -> list[Report]:
    return list(run(attempt.store.reports(attempt.record.address, attempt.record.generation)))


class Lossy(DirectChannel):
    """Loses the answers of the next reports, after they were stored."""

    def __init__(self, attempt: Granted, *, times: int) -> None:
        super().__init__(attempt.store, attempt.assignment)
        self.times = times
        self.patience: list[float | None] = []

    def report(self, reporter: str, kind: str, body: Mapping[str, Any], *, patience: float | None = None) -> bool:
        self.patience.append(patience)
        answer = super().report(reporter, kind, body, patience=patience)
        if self.times:
            self.times -= 1
            raise StoreUnavailable("no answer")
        return answer


def test_later_values_win_and_the_others_stay(tmp_path: Path) -> None:
    """Of two calls with a common name the later value counts; names that only one of them has stay."""
    attempt = granted(tmp_path)
    job = attempt.job()
    job.result(rows=1, source="may")
    job.result(rows=2)

    assert values_of(reports(attempt)) == {"rows": 2, "source": "may"}


def test_the_order_of_many_values_is_that_of_the_calls(tmp_path: Path) -> None:
    """After twelve calls the last one counts, though "10" sorts before "9" as text."""
    attempt = granted(tmp_path)
    job = attempt.job()
    for number in range(12):
        job.result(rows=number)
    assert values_of(reports(attempt)) == {"rows": 11}


def test_only_the_last_attempt_that_set_values_counts(tmp_path: Path) -> None:
    """Values of an attempt without effect are not mixed into the next attempt's result."""
    attempt = granted(tmp_path)
    attempt.job().result(rows=1, old=True)
    attempt.next_attempt()
    attempt.job().result(rows=2)

    assert values_of(reports(attempt)) == {"rows": 2}


@pytest.mark.parametrize(
    "body",
    [
        {"values": {"rows": 2}, "sequence": "last"},
        {"values": {"rows": float("nan")}, "sequence": 9},
        {"values": {"text": "a" * VALUES_LIMIT}, "sequence": 9},
        {"values": [1], "sequence": 9},
        {"values": None},
        {},
    ],
    ids=["sequence", "NaN", "large", "list", "null", "empty"],
)
def test_values_that_a_script_made_up_keep_no_key_from_ending(tmp_path: Path, body: dict[str, Any]) -> None:
    """A script can report with its driver's token. What `job.result()` would have refused is left out of the result."""
    attempt = granted(tmp_path)
    attempt.job().result(rows=1)
    DirectChannel(attempt.store, attempt.assignment).report("values-mine", "values", body)
    assert len(reports(attempt)) == 2
    assert values_of(reports(attempt)) == {"rows": 1}


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_a_value_that_json_cannot_hold_is_refused(tmp_path: Path, value: object) -> None:
    """The refusal is one sentence, and nothing is recorded."""
    attempt = granted(tmp_path)
    with pytest.raises(InvalidInput, match=r"job\.result\(\) takes values that JSON can hold"):
        attempt.job().result(rows=value)
    assert reports(attempt) == []


def test_values_are_limited_all_calls_together(tmp_path: Path) -> None:
    """Values up to exactly the limit are recorded; one more byte is refused, over however many calls, and the recorded values stay."""
    attempt = granted(tmp_path)
    job = attempt.job()
    job.result(x="a" * (VALUES_LIMIT - len('{"x": ""}') - 100))
    job.result(x="b" * (VALUES_LIMIT - len('{"x": ""}')))

    with pytest.raises(InvalidInput, match=f"records at most {VALUES_LIMIT}"):
        job.result(y=1)
    assert set(values_of(reports(attempt))) == {"x"}
    job.result(x="small", y=1)
    assert values_of(reports(attempt)) == {"x": "small", "y": 1}


def test_a_report_without_room_is_no_reason_to_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report that is too large, or exceeds what an attempt may report, is dropped with a message on standard error, and the job
    continues."""
    attempt = granted(tmp_path)
    job = attempt.job()
    job.report("progress", text="a" * 20_000)
    assert re.search(r"^sparkonce: not reported: a report of 'progress' has 20,\d+ bytes", capsys.readouterr().err)
    for _ in range(60):
        job.report("progress", text="a" * 16_000)
    assert "attempt 1 has reported" in capsys.readouterr().err
    job.result(rows=1)
    assert 40 < len(reports(attempt)) < 50


def test_each_report_is_an_entry_of_its_own(tmp_path: Path) -> None:
    """Two reports of one kind are both stored."""
    attempt = granted(tmp_path)
    job = attempt.job()
    job.report("progress", part=1)
    job.report("progress", part=2)

    assert [r.body for r in reports(attempt)] == [{"part": 1}, {"part": 2}]


def test_a_report_whose_answer_was_lost_is_there_once(tmp_path: Path) -> None:
    """It is resent under the same name, and recognised."""
    attempt = granted(tmp_path)
    attempt.job(channel=Lossy(attempt, times=3)).result(rows=1)
    assert len(reports(attempt)) == 1


def raised(error: Exception) -> Exception:
    """The error as it ends a program: with a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_the_exception_by_which_spark_refuses_a_query_is_reported(tmp_path: Path) -> None:
    """With its traceback, under the name that Python prints; secrets of the job are hidden before it is cut to the limit."""
    secret = "correct horse battery staple " * 20
    attempt = granted(tmp_path, template={"driver": {"envVars": {"PASSWORD": secret}}})
    job = attempt.job()
    job.report_uncaught(raised(ParseException(f"[PARSE_SYNTAX_ERROR] SQLSTATE: 42601 {'x' * 5400} {secret}")))

    (report,) = reports(attempt)
    assert (report.kind, report.attempt) == (UNCAUGHT, 1)
    trace = report.body["trace"]
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "\npyspark.errors.exceptions.base.ParseException: [PARSE_SYNTAX_ERROR] " in trace
    assert "correct" not in trace and len(trace) <= TRACE_LIMIT


@pytest.mark.parametrize(
    "error", [ValueError("no rows"), ImportError("cannot import name 'x'"), KeyError("AnalysisException")]
)
def test_no_other_exception_is_reported(tmp_path: Path, error: Exception) -> None:
    """They end no job, or are in its log before `current()` is called: no process writes to the ledger for them."""
    attempt = granted(tmp_path)
    attempt.job().report_uncaught(raised(error))
    assert reports(attempt) == []


def test_a_report_of_the_last_exception_that_is_not_answered_raises_nothing(tmp_path: Path) -> None:
    """It is sent once, with little patience, and the exception reaches its author in any case. It may arrive without an answer."""
    attempt = granted(tmp_path)
    lossy = Lossy(attempt, times=999)
    attempt.job(channel=lossy).report_uncaught(raised(AnalysisException("[A] b. SQLSTATE: 42K03")))
    assert (lossy.patience, len(reports(attempt))) == ([COURTESY], 1)

    attempt = granted(tmp_path / "text")
    attempt.job().report_uncaught(raised(AnalysisException("\N{FIRE}" * TRACE_LIMIT)))
    assert len(reports(attempt)) <= 1


def test_fail_reports_a_permanent_error_and_exits_with_the_message(tmp_path: Path) -> None:
    """The report is stored before the process exits, even if answers were lost; a long message is cut to the record's limit."""
    attempt = granted(tmp_path)
    with pytest.raises(SystemExit, match="sparkonce: no such column"):
        attempt.job(channel=Lossy(attempt, times=2)).fail("no such column: fare" + "!" * 5000)

    (report,) = reports(attempt)
    assert (report.kind, report.attempt) == ("permanent-error", 1)
    assert report.body["message"].startswith("no such column: fare!")
    assert len(report.body["message"]) == 1024
