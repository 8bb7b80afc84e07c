"""The log of a lane: who may write, what was written last, and what each outcome proves.

A *lane* is a named sequence of batches with one writer at a time. A writer first acquires it: that gives it an *epoch* above all earlier
ones, bars those from every later place, for ever, and returns the last sequence number and position that are in the log. It then appends
batches in order, one or several per *place*; a place is written as a whole or not at all. Sequence numbers count batches from 1, never
restart and are never reused, because only the number after the last one in the log is accepted.

Every outcome has a certainty. Only REFUSED frees a number. After UNKNOWN the same bytes are sent again, or the place is closed
(`LaneLog.abandon`), which decides it.
Source: research notes on idempotent writers; Kafka's transactional producer (KIP-98), whose transactional id has the lane's name in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from sparkonce.errors import Certainty

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RowBatch:
    """Rows as they are written, encoded once; a retry sends the same bytes."""

    data: bytes = field(repr=False)
    """As the log encodes them: in a table a Parquet file. Empty without rows."""
    rows: int
    data_schema: str
    """Spark's JSON schema of the rows; empty without rows."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the bytes. One sequence number with two digests is two batches."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, kw_only=True)
class LaneEntry:
    """One place of the log."""

    place: str
    epoch: int
    first: int
    """Sequence number of its first batch."""
    last: int
    """Of its last one; `first - 1` if it has none (a writer's claim, or the end of a part of the log)."""
    rows: int
    bytes: int
    position: Any = None
    """JSON value: the writer's position in its source after this place."""
    digests: tuple[str, ...] = ()
    """Of the batches, in order."""
    files: tuple[str, ...] = ()
    """Paths relative to the table."""
    committed_at: float = 0.0
    """Unix seconds of the writer's clock; decides nothing."""
    retired: bool = False
    keys: tuple[str, ...] = ()
    """As `LaneOwner.keys`."""


@dataclass(frozen=True, kw_only=True)
class LaneOwner:
    """The state of a lane as its new owner found it."""

    epoch: int
    last: int
    """The last sequence number in the log; 0 if there is none. The next batch has the number after it."""
    position: Any
    """The position of the last batch that had one; None if none had."""
    data_schema: str
    """Spark's JSON schema of the rows so far; empty without any."""
    keys: tuple[str, ...] = ()
    """Columns that every row has a value in (`lanes.keyed`); empty: rows have no keys."""


class AppendKind(StrEnum):
    APPENDED = "appended"
    DUPLICATE = "duplicate"
    """These batches are in the log under these numbers, by this call or an earlier one."""
    CONFLICT = "conflict"
    """Other batches are in the log under one of these numbers."""
    FENCED = "fenced"
    """A writer with a higher epoch has acquired the lane, or the lane was retired."""
    GAP = "gap"
    """The number before the first one is not in the log."""


@dataclass(frozen=True)
class AppendOutcome:
    kind: AppendKind
    entry: LaneEntry | None = None
    """The place with the batches (APPENDED, DUPLICATE), or with the others (CONFLICT)."""
    why: str = ""
    """Of FENCED, if the log knows more than that another writer has acquired the lane or it was retired."""

    @property
    def certainty(self) -> Certainty:
        applied = self.kind in (AppendKind.APPENDED, AppendKind.DUPLICATE)
        return Certainty.APPLIED if applied else Certainty.REFUSED


@dataclass(frozen=True, eq=False)
class LanePlace:
    """Batches that are to be written together, under numbers that follow those of the place before."""

    name: str
    """As `LaneEntry.place`."""
    first: int
    batches: tuple[RowBatch, ...]
    position: Any
    """None: the position of the place before stays."""

    @property
    def last(self) -> int:
        return self.first + len(self.batches) - 1


class LaneLog(Protocol):
    """The log of one lane, as one process sees it. Calls block. `upload` may run in several threads at once, also beside the others; the
    other calls are made by one thread at a time.

    Raises, from every method:
        OutputUnavailable: unknown whether the call took effect; it may be repeated.
    """

    name: str
    uri: str
    """Of the table or topic, for messages."""
    batches_limit: int
    """Batches that one place can take."""
    position_limit: int
    """Bytes of a position's JSON."""
    linger: float
    """Seconds for which a writer waits for more rows, if it is not told otherwise."""

    def packed(self, table: pa.Table) -> pa.Table:
        """Rows of an append in the form in which they wait: the same table, or one that is nearer to what is sent.

        Raises:
            InvalidInput: the log cannot keep them as they are; names the column.
        """
        ...

    def encoded(self, tables: Sequence[pa.Table], known: pa.Schema) -> RowBatch:
        """Packed rows of several appends as one batch. known: the columns of the lane."""
        ...

    def acquire(self) -> LaneOwner:
        """Bars every earlier writer from every later place, durably, and gives this one the lane. A second call takes it anew.

        Raises:
            LaneRetired: the lane takes no writer.
            InvalidInput: the lane, or another one of the table, has other keys.
        """
        ...

    def refuse_columns(self, data_schema: str) -> None:
        """Checks that readers can read rows with these columns beside those of other writers, before any is written. data_schema: Spark's
        JSON schema.

        Raises:
            InvalidInput: they cannot; names the column.
        """
        ...

    def tidy(self) -> None:
        """Housekeeping that speeds readers up. Never raises a `SparkonceError`, and nothing depends on it."""
        ...

    def next_place(self, batches: Sequence[RowBatch], *, first: int, position: Any) -> LanePlace:
        """The place after the one that was taken last. Writes nothing."""
        ...

    def upload(self, place: LanePlace, number: int) -> None:
        """Writes the batch with this index where readers do not see it."""
        ...

    def commit(self, place: LanePlace) -> AppendOutcome:
        """Makes the place visible, as a whole, once all its batches are uploaded. Places are committed in the order in which they were
        taken."""
        ...

    def abandon(self, place: LanePlace) -> AppendOutcome:
        """Decides a place whose commit had no answer: APPENDED if it is in the log, else FENCED: then it never will be, and neither will
        any place of this epoch after it."""
        ...

    def entries(self) -> Iterator[LaneEntry]:
        """All places that are committed now, in order, claims and ends included."""
        ...

    def retire(self, *, by: str) -> LaneEntry:
        """Ends the lane, for ever: it keeps its rows and takes no writer any more. Returns the last place.

        Raises:
            LaneRetired: it was retired before.
        """
        ...
