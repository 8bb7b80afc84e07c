"""Which events a change of status is worth. Pure.

An event is an API write that nobody needs to act on, so each transition is told once, by the one word that names it: the phase that was
reached, a duplicate that was refused, a result that is gone. That a key was reserved, or a driver is waited for, is read in the
status; a job that runs well has two events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkonce.engine.project_conditions import FINAL, MISMATCH, RESERVED, RESULT_GONE, TRUE, by_type
from sparkonce.engine.requests import SUPERSEDED, UNANSWERED, Standing

NORMAL, WARNING = "Normal", "Warning"
_KINDS = {"Running": NORMAL, "Succeeded": NORMAL, "Expired": NORMAL}
_QUIET = frozenset({"", "Pending"})
_ROUTINE = frozenset({*UNANSWERED, "NotRead"}) - {Standing.INVALID}
"""Reasons to wait that pass by themselves."""


class Event(NamedTuple):
    kind: str
    """Normal or Warning."""
    reason: str
    message: str


def transitions(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[Event]:
    """`old`: the status that was replaced. Nothing for a change that is no transition."""
    old = old or {}
    phase, before = str(new.get("phase", "")), str(old.get("phase", ""))
    same_run = old.get("generation") == new.get("generation")
    ended_again = phase in FINAL and not same_run
    events: list[Event] = []
    if phase not in _QUIET and (phase != before or ended_again):
        replay = phase == "Succeeded" and new.get("role") == "Replay"
        events.append(Event(_KINDS.get(phase, WARNING), "Replayed" if replay else phase, _message(new, phase)))
    elif phase == before and same_run and new.get("attempt", 0) > old.get("attempt", 0):
        events.append(Event(NORMAL, "Retrying", _message(new, phase)))
    waits = by_type(new).get(RESERVED, {})
    if phase == "Pending" and waits.get("status") != TRUE and _differs(old, waits, RESERVED):
        reason = str(waits.get("reason", ""))
        if reason not in _ROUTINE:
            events.append(Event(WARNING, reason, str(waits.get("message", ""))))
    gone = by_type(new).get(RESULT_GONE, {})
    if gone.get("status") == TRUE and _differs(old, gone, RESULT_GONE):
        events.append(Event(WARNING, RESULT_GONE, str(gone.get("message", ""))))
    if phase != "Mismatch" and _became(old, new, MISMATCH, SUPERSEDED):
        events.append(Event(NORMAL, SUPERSEDED, str(by_type(new)[MISMATCH].get("message", ""))))
    return events


def _differs(old: Mapping[str, Any], now: Mapping[str, Any], kind: str) -> bool:
    was = by_type(old).get(kind, {})
    return (was.get("status"), was.get("reason")) != (now.get("status"), now.get("reason"))


def _became(old: Mapping[str, Any], new: Mapping[str, Any], kind: str, reason: str) -> bool:
    now = by_type(new).get(kind, {})
    return (now.get("status"), now.get("reason")) == (TRUE, reason) and _differs(old, now, kind)


def _message(status: Mapping[str, Any], phase: str) -> str:
    """A sentence for people; an event without one is refused by nobody and read by nobody."""
    if text := status.get("message"):
        return str(text)
    said = by_type(status).get("Complete", {}).get("message")
    return str(said or f"{status.get('key', 'the job')} is {phase}")
