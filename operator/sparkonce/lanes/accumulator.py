"""Rows that wait: a buffer of limited size, and the batches that they form.

Memory is counted in bytes of Arrow data from the append on, and in bytes of the file once a batch is encoded, until the batch has an
outcome. Callers that find no room wait in turn; while one waits, what is in the buffer is sent without delay. No thread of its own: the
writer's lock guards it.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkonce.lanes.protocol import LaneEntry

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class OpenBatch:
    """Appends that will be one batch."""

    since: float
    """Monotonic seconds of its first append."""
    tables: list[pa.Table] = field(default_factory=list)
    handles: list[Future[LaneEntry]] = field(default_factory=list)
    bytes: int = 0
    """That it holds of the buffer."""
    position: Any = None
    """Of its last append that had one."""


class Accumulator:
    """Forms batches of about `batch_size` bytes within `memory` bytes; an append is never divided."""

    def __init__(self, *, memory: int, batch_size: int, linger: float) -> None:
        self._memory, self._batch_size, self._linger = memory, batch_size, linger
        self._used = 0
        self._turns: deque[object] = deque()
        self._full: deque[OpenBatch] = deque()
        self._open: OpenBatch | None = None

    @property
    def used(self) -> int:
        """Bytes of appends without an outcome."""
        return self._used

    @property
    def oldest(self) -> float | None:
        """Monotonic seconds of the oldest append that was not taken for sending; None without any."""
        return self._full[0].since if self._full else self._open.since if self._open is not None else None

    def ask(self) -> object:
        """A turn in the line for room; end it with `leave`."""
        turn = object()
        self._turns.append(turn)
        return turn

    def fits(self, turn: object, size: int) -> bool:
        """Whether the caller with this turn may add as many bytes now."""
        return next(iter(self._turns), None) is turn and self._used + size <= self._memory

    def waits(self, turn: object) -> bool:
        """Whether the turn was not left."""
        return turn in self._turns

    def leave(self, turn: object) -> None:
        self._turns.remove(turn)

    def add(self, table: pa.Table, size: int, position: Any, handle: Future[LaneEntry], *, now: float) -> None:
        if self._open is not None and self._open.bytes and self._open.bytes + size > self._batch_size:
            self._full.append(self._open)
            self._open = None
        if self._open is None:
            self._open = OpenBatch(since=now)
        batch = self._open
        batch.tables.append(table)
        batch.handles.append(handle)
        batch.bytes += size
        batch.position = batch.position if position is None else position
        self._used += size

    def due(self, *, now: float, hurry: bool) -> float | None:
        """Seconds until a batch is to be sent; None if there is none. hurry: do not wait for more rows."""
        if self._full:
            return 0.0
        if self._open is None:
            return None
        if hurry or self._turns or self._open.bytes >= self._batch_size:
            return 0.0
        return max(0.0, self._open.since + self._linger - now)

    def take(self, limit: int) -> list[OpenBatch]:
        """Removes the batches that are to be sent now, in order, at most so many."""
        if self._open is not None:
            self._full.append(self._open)
            self._open = None
        return [self._full.popleft() for _ in range(min(limit, len(self._full)))]

    def resize(self, batch: OpenBatch, size: int) -> None:
        """The batch holds as many bytes from now on."""
        self._used += size - batch.bytes
        batch.bytes = size

    def clear(self) -> None:
        """Removes all batches."""
        self._full.clear()
        self._open = None
