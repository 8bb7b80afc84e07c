"""Native blocks, in which Spark's own engine writes: as a chain of statements that it commits one by one (Delta), or on a branch (Iceberg).

A branch needs nothing of a chain: the block is one effect, whose commit publishes the branch (`TakesBranch`, `sink.iceberg.branch`).

A chain as `sparkonce.sink.stream` has it, whose batches are statements. Spark commits them while the job's code runs, so nothing is staged
and no commit of ours makes the rows visible; what is left to us is the place:

    <key>          the opening: from here on this generation writes the output by statements
    <key>-s<n>     statement n, for n = 0, 1, ...; stored before Spark runs it, committed by Spark
    <key>-s<k+1>   the end: the block ran to its end after statement k

| step | who writes it | what decides it |
| --- | --- | --- |
| opening | driver | an entry of the log, by rule R |
| slot of statement n | driver, before the statement | nothing: an object, create-once, that gives the place its content |
| statement n | Spark | Spark's entry, whose transaction identifier is the place's with the number of this token |
| a statement that wrote no entry | driver, after it | an entry with that identifier, made only if the place is free |
| end | driver, after the block | an entry with that identifier, in the place after the last statement |
| fence of tokens below t | the settler of the attempt, and the next driver | an entry with that identifier in the first free place |

A statement may run only once its driver has seen the place before it committed, and it counts as done only once the driver has seen its
place committed. Spark does not say that it skipped a statement: only the table does.

The slots that an attempt makes are equal in every process that has its token: Spark's entry names a place and a token, so that two
different slots of one token could not be told apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sparkonce.model.spec import OnRerun
from sparkonce.sink import stream
from sparkonce.sink.protocol import (
    NATIVE_SCHEMA,
    BranchMark,
    CommitOutcome,
    DataFile,
    FencedOff,
    SinkKey,
    Slot,
    SlotState,
    StreamMark,
    StreamPart,
)
from sparkonce.sink.stream import Chain, mark

UNMEASURED = "unmeasured"
"""`StreamMark.input` of an end whose statements' entries the log no longer had: what they added is not known."""


NATIVE_STANDS = (
    "statements of a native block wrote the generation before, and what they did to rows cannot be taken back; undo it yourself and "
    "declare onRerun: Append"
)
ROWS_STAND = "an earlier generation wrote it, and statements replace no files of it; declare onRerun: Append, and they run on top"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the statements of a block did to a table, as Spark recorded it in the log."""

    rows: int
    """Inserted, updated and deleted ones."""
    files: tuple[DataFile, ...]
    """Those that they added and that readers see."""
    complete: bool
    """False: some entries are gone, so `files` and `rows` are too small."""


@runtime_checkable
class TakesStatements(Protocol):
    """Additional methods of a sink whose table Spark's own engine may write."""

    on_rerun: OnRerun

    def refuse_statements(self) -> None:
        """Raises: OutputUnsupported: the table lies where no statement can be barred. Sends no request."""
        ...

    async def identity(self, key: SinkKey) -> str:
        """Identity of the table that a block of this key is to write.

        Raises:
            InvalidInput: there is no such table, or it holds what this generation cannot replace.
            OutputUnsupported: statements at this table cannot be barred.
        """
        ...

    async def create(
        self, key: SinkKey, token: int, *, schema: str, partition_by: Sequence[str], declared: bool = False
    ) -> bool:
        """Creates the table without rows where there is none; returns whether this generation of the key has created it, in whichever
        attempt. schema: of the rows, as Spark's JSON. declared: it is that of a table (CREATE TABLE), whose NOT NULL, CHAR(n) and
        VARCHAR(n) are kept; those of rows promise nothing about later ones.

        Raises:
            InvalidInput: no table can have these columns.
            OutputUnsupported: as `refuse_statements`.
            Fenced: a later attempt has begun.
        """
        ...

    def identifier(self, key: SinkKey, token: int) -> tuple[str, int]:
        """Spark's application id and version for the statement in a place."""
        ...

    async def begin(self, key: SinkKey, slot: Slot, *, after: Slot) -> CommitOutcome | None:
        """Stores the slot of a statement that is about to run; None: it may run. Otherwise its place is decided, as for `Sink.commit`."""
        ...

    async def decided(self, key: SinkKey, slot: Slot, *, after: Slot) -> CommitOutcome | None:
        """What the table shows of a statement's place now, as `Sink.commit` would answer; None: the place is free."""
        ...

    async def measured(self, key: SinkKey) -> Measured:
        """What the block's statements did. A hint."""
        ...

    async def follow(self, key: SinkKey, slot: Slot, *, after: Slot) -> CommitOutcome:
        """See `stream.Linked`."""
        ...

    async def with_added(self, key: SinkKey, slot: Slot, files: tuple[DataFile, ...]) -> Slot:
        """An end that names the files which its block added."""
        ...


WAP_ENABLED = "write.wap.enabled"
"""Iceberg's table property: without it Spark ignores a session's `spark.wap.branch` and writes to `main`."""


PARTITIONS = ("identity", "years", "months", "days", "hours")
"""Spark's names of the transforms by which a new Iceberg table can be partitioned (`TakesBranch.create`)."""


@dataclass(frozen=True, kw_only=True)
class OpenBranch:
    """A branch that statements may write to."""

    mark: BranchMark
    table: str
    """Identity of its table."""
    settings: Mapping[str, str]
    """Settings with which a session of Spark writes there, and reads what it wrote."""


@runtime_checkable
class TakesBranch(Protocol):
    """Additional methods of a sink whose table Spark's own engine may write on a branch, which `Sink.commit` publishes."""

    async def table_id(self) -> str | None:
        """Identity of the table; None if there is none with columns."""
        ...

    async def create(
        self,
        key: SinkKey,
        token: int,
        *,
        schema: str,
        partition_by: Sequence[tuple[str, str]] = (),
        properties: Mapping[str, str] | None = None,
        declared: bool = False,
    ) -> bool:
        """Makes the table where there is none, and gives one that has no columns, as a fence leaves it, its own. Returns whether this
        generation of the key has done that, in whichever attempt. schema: of the rows, as Spark's JSON. partition_by: one of
        `PARTITIONS`, and the column. declared: as of `TakesStatements.create`.

        Raises:
            InvalidInput, OutputUnsupported: no table can have these columns.
            Fenced: a later attempt has begun.
        """
        ...

    async def open_branch(
        self, key: SinkKey, token: int, *, nonce: str, named_for: SinkKey | None = None, renew: bool = False
    ) -> OpenBranch | FencedOff:
        """Makes the branch of a block at the table's state, and drops those of attempts that are barred. named_for: a key of the same
        generation after which the branch is named; None: the key itself. renew: moves a branch that is there to the table's state; what
        is on it is lost. Raises: as `TakesStatements.identity`."""
        ...

    async def block_slot(
        self, key: SinkKey, token: int, *, nonce: str, branch: BranchMark, fingerprint: str, application: str
    ) -> Slot:
        """The slot that publishes a branch as it is now. branch: as it was opened, with the number of statements.

        Raises: OutputUnsupported: its files are outside of the table's location."""
        ...

    async def drop_branch(self, branch: BranchMark) -> None:
        """Drops the branch of a block that is never published, if it is there."""
        ...


def opening_of(key: SinkKey, token: int, *, nonce: str, fingerprint: str, on_rerun: OnRerun, table: str) -> Slot:
    """The slot that opens a block. table: identity of the table that its statements write."""
    position = StreamMark(part=StreamPart.OPENING, query_id="", first_batch=0, native=True)
    return _slot(key, token, position, nonce=nonce, fingerprint=fingerprint, on_rerun=on_rerun, table=table)


def statement_of(chain: Chain, key: SinkKey, token: int, *, nonce: str, statement: str, digest: str) -> Slot:
    """The slot of the statement that follows `chain`, without counts, which are not known yet. statement, digest: see `StreamMark`."""
    before, number = mark(chain.last), chain.next
    changed = {
        "part": StreamPart.BATCH,
        "last_batch": number,
        "batches": before.batches + 1,
        "input": digest,
        "statement": statement,
    }
    return _next(chain, key, token, before.model_copy(update=changed), nonce=nonce)


def end_of(chain: Chain, key: SinkKey, token: int, *, nonce: str, measured: Measured) -> Slot:
    """The slot that ends a block after `chain`, with its totals."""
    changed = {
        "part": StreamPart.END,
        "input": "" if measured.complete else UNMEASURED,
        "rows": measured.rows,
        "bytes": sum(file.bytes for file in measured.files),
        "files": len(measured.files),
    }
    return _next(chain, key, token, mark(chain.last).model_copy(update=changed), nonce=nonce)


def _next(chain: Chain, key: SinkKey, token: int, position: StreamMark, *, nonce: str) -> Slot:
    first = chain.opening
    at = stream.place(stream.within(key, first), chain.next)
    return _slot(
        at, token, position, nonce=nonce, fingerprint=first.fingerprint, on_rerun=first.on_rerun, table=first.table
    )


def _slot(
    key: SinkKey,
    token: int,
    position: StreamMark,
    *,
    nonce: str,
    fingerprint: str,
    on_rerun: OnRerun,
    table: str | None,
) -> Slot:
    drawn = hashlib.sha256(f"{nonce} {key} {position.part}".encode()).hexdigest()[:32]
    return Slot(
        schema_=NATIVE_SCHEMA,
        state=SlotState.COMMITTED,
        sink_key=str(key),
        token=token,
        nonce=drawn,
        fingerprint=fingerprint,
        on_rerun=on_rerun,
        stream=position,
        table=table,
    )
