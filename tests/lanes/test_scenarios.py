"""The scenarios of idempotent writers in Fluss and Kafka (`RESEARCH`), by number: which test plays each here, or why it cannot happen.

Those that ask what a log answers are in this module, on a log in memory and on a table; `servers/test_kafka.py` asks Kafka.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from harness.lane_log import Broker, FakeLog, numbers_of, rows_in
from lanes.test_table_log import append, batch
from sparkonce.errors import Certainty, LaneError, OutputUnavailable
from sparkonce.lanes.protocol import AppendKind, LaneLog
from sparkonce.lanes.sender import WriterOptions
from sparkonce.lanes.table_log import TableLog
from sparkonce.lanes.writer import Writer
from sparkonce.sink.objects.protocol import StoreObjects

RESEARCH = ("1-48", "50", "52", "53", "55-62", "64-68", "70", "71", "N1-N3", "N9-N16")
"""Client scenarios 1 to 62 and server scenarios 64 to 71, as far as they were to be ported, and those that were new."""

PLAYED: dict[str, str] = {
    "1, 6, 11-13, 18, 19, 47, 50, 52, 53": "test_places_are_committed_in_order_whatever_the_uploads_do",
    "7, 17, 21, 48, 62, N1": "test_no_more_than_the_window_is_under_way",
    "8, 64": "test_numbers_that_are_there_are_duplicates_for_ever",
    "15, N11": "test_requests_are_repeated_with_growing_pauses",
    "16, N13": "test_flush_and_close_raise_with_counts",
    "20, 43": "test_a_dropped_writer_fails_its_handles",
    "22-26": "test_a_full_buffer_lets_callers_wait_in_turn",
    "25": "test_a_buffer_that_stays_full_is_an_error_in_time",
    "27": "test_a_caller_that_waits_for_room_is_woken_by_the_end",
    "28": "test_rows_larger_than_the_buffer_are_refused_at_once",
    "29": "test_batches_that_wait_are_committed_in_one_place",
    "32, 39, N2": "test_a_request_without_an_answer_is_sent_again_with_the_same_bytes",
    "33": "test_an_error_of_the_code_reaches_every_caller",
    "34, 55": "test_a_lost_reply_is_acknowledged_with_the_earlier_place",
    "35-37, N14": "test_a_writer_that_was_fenced_says_so_and_stops",
    "38, 56": "test_rows_and_position_are_committed_together",
    "40": "test_appends_are_counted_by_outcome",
    "41": "test_a_handle_cannot_be_cancelled",
    "42": "test_an_option_that_makes_no_sense_is_refused",
    "44": "test_a_new_lane_begins_at_nothing",
    "45, N10": "test_a_commit_without_an_answer_in_time_is_decided",
    "57": "test_brokers_fail_in_turn",
    "58": "test_a_table_that_fails_leaves_another_alone",
    "60": "test_a_close_has_a_deadline_and_is_idempotent",
    "65, 66": "test_a_number_follows_the_last_one",
    "67": "test_what_is_not_committed_is_not_seen",
    "68, 70": "test_a_lane_that_was_silent_goes_on",
    "71": "test_a_refused_place_leaves_no_trace",
    "N3": "test_a_batch_is_encoded_once",
    "N9, N12": "test_a_lane_that_cannot_be_acquired_is_told_at_once",
    "N15": "test_numbers_above_32_bits_go_on",
    "N16": "test_kills_and_freezes_at_random",
}
"""Scenarios -> the test here that has the same input, or the same fault, and asks what is right for a lane."""

CANNOT: dict[str, str] = {
    "2, 4, 9, 10": "a number is never given to another batch: a place that fails for good ends its writer, and the next one reads the log",
    "3, 14": "no answer resets a writer: FENCED ends it, and numbers go on over writers",
    "5": "a writer has one epoch for its life",
    "30": "the size of a batch is fixed, and batches that wait share a place",
    "31": "a store that throttles does not answer, and is asked again with growing pauses: as 15",
    "46": "there is no writer without idempotence",
    "59": "no schema is registered anywhere: columns are in each file, and are checked before rows are taken",
    "61": "a table has no identity but its path, and its slots are never deleted",
}


def numbered(text: str) -> set[str]:
    """The numbers in a text like `1, 6, 11-13, N1`."""
    found = set[str]()
    for part in text.split(", "):
        first, _, last = part.partition("-")
        new = "N" if first.startswith("N") else ""
        ends = int(first.removeprefix("N")), int((last or first).removeprefix("N"))
        found |= {f"{new}{n}" for n in range(ends[0], ends[1] + 1)}
    return found


def test_each_scenario_has_a_test_or_a_reason() -> None:
    """None is forgotten, and the tests exist."""
    named = {*itertools.chain.from_iterable(numbered(text) for text in (*PLAYED, *CANNOT))}
    assert named == set().union(*map(numbered, RESEARCH))
    here = Path(__file__).parent
    tests = {
        node.name
        for path in (*here.glob("test_*.py"), *here.glob("servers/test_*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert set(PLAYED.values()) <= tests


class Place:
    """A lane on a log of some kind, from which each call opens another process's view, and the rows that its readers see."""

    def __init__(self, kind: str) -> None:
        self.broker = Broker()
        self.objects = StoreObjects(MemoryStore(), "t", uri="memory:///t")
        self.kind = kind

    def log(self, name: str = "tap") -> LaneLog:
        return FakeLog(self.broker) if self.kind == "memory" else TableLog(self.objects, name)

    def acquired(self) -> LaneLog:
        """The log as its next owner has it. One whose place was refused is of no more use on a table: it ends its writer."""
        log = self.log()
        log.acquire()
        return log

    def rows(self) -> list[int]:
        if self.kind == "memory":
            return [n for data in self.broker.data for n in numbers_of(data)]
        return rows_in(self.objects)


@pytest.fixture(params=["memory", "table"])
def lane(request: pytest.FixtureRequest) -> Place:
    return Place(request.param)


def test_numbers_that_are_there_are_duplicates_for_ever(lane: Place) -> None:
    """8, 64: a log does not forget after five batches, nor when another writer has come: each earlier number with its own rows is a
    duplicate that names its place, and with others a conflict."""
    log = lane.acquired()
    for number in range(1, 10):
        assert append(log, number, batch(number)).kind is AppendKind.APPENDED
    for number in (1, 4, 8, 9):
        place = log.next_place([batch(number)], first=number, position=None)
        outcome = log.commit(place)
        assert (outcome.kind, outcome.certainty) == (AppendKind.DUPLICATE, Certainty.APPLIED)
        assert outcome.entry is not None
        assert (outcome.entry.first, outcome.entry.last) == (number, number)
        other = log.next_place([batch(99)], first=number, position=None)
        assert (log.commit(other).kind, log.commit(other).certainty) == (AppendKind.CONFLICT, Certainty.REFUSED)
    assert lane.rows() == list(range(1, 10))


def test_a_number_follows_the_last_one(lane: Place) -> None:
    """65, 66: the first number of a lane is 1, for each of its lanes, and a gap is refused wherever it is."""
    for wrong in (2, 16):
        assert append(lane.acquired(), wrong, batch(7)).kind is AppendKind.GAP
    assert append(lane.acquired(), 1, batch(1), batch(2)).kind is AppendKind.APPENDED
    for wrong in (4, 5, 16):
        assert append(lane.acquired(), wrong, batch(7)).kind is AppendKind.GAP
    assert append(lane.acquired(), 3, batch(3)).kind is AppendKind.APPENDED
    assert lane.rows() == [1, 2, 3]


def test_what_is_not_committed_is_not_seen(lane: Place) -> None:
    """67: batches that were uploaded change nothing, for readers or for the next owner, until their place is committed."""
    log = lane.acquired()
    place = log.next_place([batch(1), batch(2)], first=1, position={"line": 2})
    for number in range(2):
        log.upload(place, number)
    assert lane.rows() == []
    assert [entry for entry in lane.log().entries() if entry.last >= entry.first] == []
    assert log.commit(place).kind is AppendKind.APPENDED
    assert lane.rows() == [1, 2]


def test_a_lane_that_was_silent_goes_on(lane: Place) -> None:
    """68, 70: nothing expires: whoever acquires it next has the number after the last one, and no replica has another opinion."""
    append(lane.acquired(), 1, batch(1))
    assert lane.log().acquire().last == 1
    assert append(lane.acquired(), 1, batch(1)).kind is AppendKind.DUPLICATE
    assert append(lane.acquired(), 2, batch(2)).kind is AppendKind.APPENDED
    assert lane.rows() == [1, 2]


def test_a_refused_place_leaves_no_trace(lane: Place) -> None:
    """71: neither a conflict nor a fenced writer's place is seen, and the next good one is right."""
    old = lane.acquired()
    append(old, 1, batch(1))
    log = lane.acquired()
    assert append(log, 1, batch(98)).kind is AppendKind.CONFLICT
    assert append(old, 2, batch(99)).kind is AppendKind.FENCED
    assert append(lane.acquired(), 2, batch(2)).kind is AppendKind.APPENDED
    assert lane.rows() == [1, 2]


def test_a_table_that_fails_leaves_another_alone() -> None:
    """58: two writers of one process; one of their tables answers nothing, and the other one's appends are written meanwhile."""
    silent, well = Broker(), Broker()
    stuck: Callable[[str], str] = lambda verb: "lost" if verb in ("upload", "commit", "abandon") else "ok"  # noqa: E731 - a fault
    bad = Writer(FakeLog(silent, stuck), WriterOptions(linger=0.0, delivery_timeout=1.0))
    good = Writer(FakeLog(well), WriterOptions(linger=0.0))
    lost = bad.append({"n": 1})
    for n in range(5):
        assert good.append({"n": n}).result(40).rows == 1
    with pytest.raises(LaneError):
        lost.result(40)
    good.append({"n": 5}).result(40)
    good.close()
    assert [n for data in well.data for n in numbers_of(data)] == list(range(6))


def test_a_lane_that_cannot_be_acquired_is_told_at_once() -> None:
    """N9, N12: a log without an answer, or one that refuses the credentials, is an error of `writer` itself, whose sentence is the log's;
    nothing is retried behind it, and the next try works."""
    broker = Broker()
    requests: list[str] = []

    def once(verb: str) -> str:
        requests.append(verb)
        return "lost" if len(requests) == 1 else "ok"

    log = FakeLog(broker, once)
    with pytest.raises(OutputUnavailable, match="acquire: no answer"):
        Writer(log)
    assert requests == ["acquire"]
    with Writer(log, WriterOptions(linger=0.0)) as writer:
        writer.append({"n": 1})
    assert [n for data in broker.data for n in numbers_of(data)] == [1]
