"""Conditions of a status: which hold, since when. Pure.

`Complete` and `Failed` are those of a batch/v1 Job, so that whatever waits for a Job can wait for this: they appear when they are true and
stay in the list, as False, only if a rerun takes them back. `Reserved` is always there, since "is anything being done for me?" is what
people ask first. lastTransitionTime is the stored one as long as the status of the condition is; so the list is a function of what holds
and of what was stored, and two processes write the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.engine.object_view import Json

COMPLETE, FAILED, RESERVED, HELD, MISMATCH, RESULT_GONE = (
    "Complete",
    "Failed",
    "Reserved",
    "Held",
    "Mismatch",
    "ResultGone",
)
TYPES = (COMPLETE, FAILED, RESERVED, HELD, MISMATCH, RESULT_GONE)
"""In the order in which they are listed."""
FINAL = frozenset({"Succeeded", "Failed", "Cancelled"})
"""Phases of a generation that ended."""
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
MESSAGE_LIMIT = 1024
"""Characters: a message is a sentence, and a status is read as a whole by every watcher."""

_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


@dataclass(frozen=True)
class Fact:
    """What is to be said of one condition."""

    holds: str
    reason: str
    message: str


def fact(reason: str, message: str, *, holds: str = TRUE) -> Fact:
    """A reason that Kubernetes would refuse becomes Other."""
    return Fact(holds, reason if _REASON.fullmatch(reason) else "Other", sentence(message))


def sentence(text: str) -> str:
    """On one line, and short enough."""
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 1] + "…"


def conditions(
    facts: Mapping[str, Fact], stored: Mapping[str, Any], *, phase: str, observed: int, now_text: str
) -> list[Json]:
    """`stored`: the status that stands there. `observed`: generation of the object's metadata. `now_text`: RFC 3339."""
    before = by_type(stored)
    listed: list[Json] = []
    for kind in TYPES:
        was = before.get(kind, {})
        if kind in facts:
            one = facts[kind]
        elif was:
            one = Fact(FALSE, phase, f"the job is {phase}")
        else:
            continue
        same = was.get("status") == one.holds and "lastTransitionTime" in was
        listed.append(
            {
                "type": kind,
                "status": one.holds,
                "reason": one.reason,
                "message": one.message,
                "observedGeneration": observed,
                "lastTransitionTime": was["lastTransitionTime"] if same else now_text,
            }
        )
    return listed


def by_type(status: Mapping[str, Any]) -> dict[str, Json]:
    return {str(each.get("type", "")): each for each in status.get("conditions") or ()}


def kept(stored: Mapping[str, Any], kind: str) -> dict[str, Fact]:
    """The stored condition as it is, if it is true."""
    was = by_type(stored).get(kind, {})
    if was.get("status") != TRUE:
        return {}
    return {kind: Fact(TRUE, str(was.get("reason", "")), str(was.get("message", "")))}
