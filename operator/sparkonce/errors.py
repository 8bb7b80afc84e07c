"""The package's exceptions: each message is one sentence that says what is wrong, where, and what to do.

Each docstring says what the error *proves*. `StoreUnavailable`, `OutputUnavailable` and `LaunchUnavailable` prove nothing about the request
(it may have been applied, or may be later); every other error is an answer. Errors never carry specs, values or credentials. Refusals that
are a normal part of the protocol (Lost, Changed, Duplicate, ...) are return values of the store's and the sink's verbs, not errors.
"""

from __future__ import annotations

from enum import StrEnum


class SparkonceError(Exception):
    """Base of everything this package raises on purpose; `str()` is one sentence for a person."""


class InvalidInput(SparkonceError):
    """The request itself is wrong: nothing was sent and nothing was written."""


class ReportTooLarge(InvalidInput):
    """A report is larger than one may be, or its attempt has reported as much as it may. It is not stored, and a repetition will not be."""


class RealmReportsFull(ReportTooLarge):
    """The reports of the realm have used up its room in the ledger: none but a verdict is stored until keys of the realm are removed."""


class StoreUnavailable(SparkonceError):
    """The store did not answer. Proves nothing: the request may have been applied; send it again with the same nonce."""


class PoolExhausted(StoreUnavailable):
    """All connections of this process to the store were in use for too long: nothing was sent."""


class StoreUnusable(SparkonceError):
    """The store answered but cannot be used here (a network file system, a newer layout, not a ledger)."""


class StoreFull(SparkonceError):
    """The realm has reached its limit of live keys: a new key is refused, known keys are served. Nothing was written."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds until the realm's next record expires, or a default if none does."""


class QuotaUsed(StoreFull):
    """The store itself is nearly full, independent of the realm: its remaining space is kept for finalizing generations in progress."""


class RecordUnreadable(SparkonceError):
    """The record of this key does not parse. It exists: the key is never treated as unknown."""


class RecordTooNew(SparkonceError):
    """The record requires a newer reader (`min_reader`). It is left unclaimed and unchanged."""


class CallRefused(SparkonceError):
    """A call of an idempotent function was not carried out: its key is in use, was used for another call, or has an unknown outcome."""

    def __init__(self, message: str, *, reason: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.reason = reason
        """As the title of an HTTP problem: `in-progress`, `key-reused`, `unknown-outcome`, `store-down`, ..."""
        self.retry_after = retry_after
        """Seconds after which a repetition may succeed; None: it will not."""


class RecordedFailure(SparkonceError):
    """The call was carried out before, and failed. It was not repeated."""

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind
        """Class name of the exception that the call raised."""


class NotInJob(SparkonceError):
    """`sparkonce.current()` was called outside an attempt."""


class UndeclaredOutput(SparkonceError):
    """A write names an output that the job does not declare. Nothing was written: no later owner would check that output."""


class Fenced(SparkonceError):
    """A later attempt, or a settle, closed this attempt's slot: it can never commit, and its files never become visible."""


class KeyConflict(SparkonceError):
    """The slot is committed under another fingerprint: another job's rows, never this job's result."""


class AttemptEnded(SparkonceError):
    """The record says that this attempt is over (settling, superseded by a later one, finalized or forgotten)."""


class OutputUnavailable(SparkonceError):
    """The output's store did not answer, or refused. Whether the request was applied is unknown unless the message says otherwise."""


class OutputUnsafe(SparkonceError):
    """The output's store ignores create-if-absent: exactly-once is impossible there, so nothing was written."""


class OutputCorrupt(SparkonceError):
    """A slot of this output does not parse. It exists: it is never treated as empty."""


class NothingCommitted(SparkonceError):
    """No job has committed to the table: it has neither rows nor a schema to return an empty frame with."""


class FilesMissing(SparkonceError):
    """Files that a committed slot names are missing or were changed; no part of the table was read."""


class OutputUnsupported(SparkonceError):
    """This version does not support this kind of output; it is never replaced by another kind."""


class LibraryMissing(OutputUnsupported):
    """A library that this kind of output needs is not installed in this environment."""


class OutputChanged(SparkonceError):
    """The table was dropped, recreated or altered, so that the staged files do not fit; nothing was committed."""


class TableMoved(SparkonceError):
    """Another writer changed the table after a native block had begun, whose statements may have read what is different now. Nothing of the
    block is visible, and the same block may succeed when it is run again."""


class LateInSeries(SparkonceError):
    """A key of a later position of `spec.series` has committed to the table; nothing of this one was committed."""


class StreamBroken(SparkonceError):
    """A stream's checkpoint contradicts its committed batches: it was deleted, restored or used elsewhere. Nothing was committed."""


class StatementsDiffer(SparkonceError):
    """A native block does not issue the statements that an earlier attempt of it committed. The statement that showed it was not run."""


class ExpectationUnmet(SparkonceError):
    """The staged rows violate `spec.outputs[].expect`; nothing was committed."""


class RowsLost(SparkonceError):
    """The rows counted while writing differ from the rows in the written files; nothing was committed."""


class LaunchRefused(SparkonceError):
    """The application was refused as invalid and never ran; a retry cannot succeed."""


class LaunchUnavailable(SparkonceError):
    """The platform did not answer, or refused for now. The request may have been applied unless the message says otherwise; retry later."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which the server asked for a retry; None: it did not say."""


class Busy(SparkonceError):
    """Another process runs the key right now. Nothing was written."""


class JobMismatch(SparkonceError):
    """The key belongs to another job. Nothing was written."""


class HeldForPerson(SparkonceError):
    """The key is held until a person resolves it."""


class ResultGone(SparkonceError):
    """The key has a result whose output is gone or was replaced; nothing runs until a rerun."""


class ResultChanged(UserWarning):
    """The key has a result, and later commits, which the warning names, removed or rewrote rows of its output."""


class JobFailed(SparkonceError):
    """The key's recorded outcome is a failure, or this attempt took no effect."""


class Certainty(StrEnum):
    """What is known of an append that was asked for."""

    APPLIED = "applied"
    REFUSED = "refused"
    """It is not in the log and never will be."""
    UNKNOWN = "unknown"
    """It may be in the log, or come into it."""


class LaneError(SparkonceError):
    """An append, flush or close failed. `certainty`: of all appends that it speaks of, the least certain one."""

    def __init__(self, message: str, *, certainty: Certainty = Certainty.REFUSED) -> None:
        super().__init__(message)
        self.certainty = certainty


class WriterFenced(LaneError, Fenced):
    """Another writer has acquired the lane. Appends that this writer has no answer for are refused, and so is every later one."""


class BufferFull(LaneError):
    """No room became free in the writer's buffer in time. The rows were not taken; the writer goes on."""


class LaneBusy(LaneError):
    """The lane has a writer, and was not taken from it (`if_busy="refuse"`)."""


class LaneRetired(LaneError):
    """The lane was retired: it takes no batch and no writer."""
