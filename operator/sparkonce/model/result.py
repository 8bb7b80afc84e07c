"""The finalized result of one generation, as duplicates get it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from sparkonce.model.record import Outcome, Value

VALUES_LIMIT = 4096
"""Bytes of JSON that `job.result()` may record: a result is replayed to every duplicate and lives beside the record."""


class Verdict(StrEnum):
    """What settling an attempt found. The first five are read from outputs, the sixth says that nobody could read them, the others come
    from stopping an opaque attempt."""

    ALL = "All"
    SOME = "Some"
    NONE = "None"
    STUCK = "Stuck"
    KEY_CONFLICT = "KeyConflict"
    CANNOT_SETTLE = "CannotSettle"
    COMPLETED = "Completed"
    EXITED = "Exited"
    UNKNOWN = "Unknown"
    STILL_THERE = "StillThere"
    CANNOT_PLACE = "CannotPlace"


class OutputResult(Value):
    name: str
    kind: str
    uri: str
    commit: str
    """What the sink's commit can be found again by: the slot's path."""
    rows: int
    bytes: int
    files: int
    digest: str
    """SHA-256 of the committed slot."""


class Failure(Value):
    class_: str = Field(alias="class")
    """Exit, Permanent, NoEffect, Timeout, Lost, ..."""
    message: str
    log_tail: str = ""
    """At most 1 KiB."""


class Result(Value):
    outcome: Outcome
    generation: int
    attempts: int
    outputs: tuple[OutputResult, ...] = ()
    values: dict[str, Any] = Field(default_factory=dict)
    evidence: str
    """What the outcome rests on: slots, exit code, a person's word."""
    started_at: float = 0.0
    finished_at: float = 0.0
    failure: Failure | None = None
