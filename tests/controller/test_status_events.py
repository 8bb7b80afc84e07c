"""`transitions`: each change of a status that matters to a person is one event."""

from __future__ import annotations

from typing import Any

import pytest

from controller.key_objects import (
    REJECT,
    SUPERSEDE,
    edited,
    ended,
    entry,
    held,
    obj,
    opened,
    record,
    result,
    told,
    view,
)
from sparkonce.controller.objects import ObjectView
from sparkonce.controller.status import StatusEvent, Trouble, transitions
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Outcome, Settling, Why
from sparkonce.sink.protocol import Evidence, Probed

STARTING = told(obj(), view(record(phase=Phase.STARTING)))
RUNNING = told(STARTING, view(record()))
DONE = told(RUNNING, view(ended()), result=result())
LOST = record(
    attempt=2, application=None, phase=None, settling=Settling(attempt=1, why=Why.LOST, note="the pod vanished")
)
B_RUNS = record(
    generation=2, fingerprint="B", openers=(opened("X"), opened("Y", 1, "B")), objects=(entry("Y"),), revision=30
)
INVALID = Trouble("InvalidSpec", "spec.outputs is wrong", final=True)
CHANGED = {"orders": Probed(verdict=Evidence.CHANGED, why="by version 7")}
FULL = Trouble("StoreFull", "realm etl is full")

CASES: list[tuple[str, ObjectView, ObjectView, list[tuple[str, str]]]] = [
    ("reserved", obj(), STARTING, []),
    ("running", STARTING, RUNNING, [("Normal", "Running")]),
    ("the same", RUNNING, RUNNING, []),
    ("more progress", RUNNING, told(RUNNING, view(record()), progress={"stages": 1}), []),
    ("succeeded", RUNNING, DONE, [("Normal", "Succeeded")]),
    ("replayed", obj("Z"), told(obj("Z"), view(ended()), result=result()), [("Normal", "Replayed")]),
    ("failed", RUNNING, told(RUNNING, view(ended(Outcome.FAILED))), [("Warning", "Failed")]),
    ("cancelled", RUNNING, told(RUNNING, view(ended(Outcome.CANCELLED))), [("Warning", "Cancelled")]),
    ("lost", RUNNING, told(RUNNING, view(LOST)), [("Warning", "Recovering")]),
    ("lost again", told(RUNNING, view(LOST)), told(RUNNING, view(LOST.changed(attempt=3))), [("Normal", "Retrying")]),
    ("recovered", told(RUNNING, view(LOST)), told(RUNNING, view(record(attempt=2))), [("Normal", "Running")]),
    ("held", RUNNING, told(RUNNING, view(held())), [("Warning", "Held")]),
    ("mismatch", obj("Y", "B"), told(obj("Y", "B"), view(record())), [("Warning", "Mismatch")]),
    ("refused", obj("Y"), told(obj("Y"), view(record()), leader=REJECT), [("Warning", "DuplicateRejected")]),
    ("a superseder waits", obj("Y", "B"), told(obj("Y", "B", policy=SUPERSEDE), view(record())), []),
    ("invalid", obj(spec=""), told(obj(spec=""), view(None), trouble=INVALID), [("Warning", "Failed")]),
    ("invalid now", RUNNING, told(edited(RUNNING, ""), view(record()), trouble=INVALID), [("Warning", "InvalidSpec")]),
    ("no room", obj(), told(obj(), view(None), trouble=FULL), [("Warning", "StoreFull")]),
    ("superseded while it ran", RUNNING, told(RUNNING, view(B_RUNS)), [("Warning", "Mismatch")]),
    ("superseded when done", DONE, told(DONE, view(B_RUNS)), [("Normal", "Superseded")]),
    ("expired", DONE, told(DONE, view(None, floor=1)), [("Normal", "Expired")]),
    ("others changed its rows", DONE, told(DONE, view(ended()), evidence=CHANGED), [("Normal", "ResultChanged")]),
    ("the output is gone", DONE, told(DONE, view(ended()), evidence={"orders": Evidence.GONE}), [("Warning", "ResultGone")]),
    ("rerun unseen", DONE, told(DONE, view(ended(generation=2)), result=result()), [("Normal", "Succeeded")]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_transitions(old: ObjectView, new: ObjectView, expected: list[tuple[str, str]]) -> None:
    """Each row's change gives these events, each with a sentence."""
    events = transitions(old.status, new.status)
    assert [event[:2] for event in events] == expected
    assert all(event.message for event in events)


@pytest.mark.parametrize("new", [case[2].status for case in CASES])
def test_nothing_is_told_twice(new: dict[str, Any]) -> None:
    """A status that replaces itself is not a transition."""
    assert transitions(new, new) == []


def test_an_event_says_what_the_status_says() -> None:
    """An event's sentence is the status's message, or that of the condition Complete."""
    (failed,) = transitions(RUNNING.status, told(RUNNING, view(ended(Outcome.FAILED, note="exit code 3"))).status)
    again = "kubectl annotate --overwrite idempotentjobs -n etl job-X sparkonce.dev/rerun=REASON"
    assert failed == StatusEvent("Warning", "Failed", f"exit code 3; to run it again: {again}")
    (done,) = transitions(None, DONE.status)
    assert done.message == "generation 1 succeeded: slots committed by attempt 1"
