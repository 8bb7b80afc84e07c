"""Facts that end a call: each is one sentence that says what is wrong, where, and what to do.

An error here says what it *proves*. `StoreUnavailable` proves nothing about the request (it may have landed, or may land
later); every other error is an answer. Errors never carry specs, values or credentials. Refusals that are a normal part
of the protocol (Lost, Changed, Duplicate, ...) are return values of the store's and the sink's verbs, not errors.
"""

from __future__ import annotations


class SparkonceError(Exception):
    """Everything this package raises on purpose; `str()` is one sentence for a person."""


class InvalidInput(SparkonceError):
    """The request itself is wrong: nothing was sent and nothing was written."""


class StoreUnavailable(SparkonceError):
    """The store did not answer. Proves nothing: the same request may be sent again, with the same nonce."""


class StoreUnusable(SparkonceError):
    """The store answered and cannot be used here (a network file system, a newer layout, not a ledger)."""


class StoreFull(SparkonceError):
    """The realm holds as many live keys as it may; a new key is refused, a known one is not. Nothing was written."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds until the next record of the realm expires, or a default when none does."""


class QuotaUsed(StoreFull):
    """The store itself is nearly full, whatever the realm holds: what is left of it is for finalizing what was begun."""


class RecordUnreadable(SparkonceError):
    """The record of this key does not parse. It exists: the key is never treated as unseen."""


class RecordTooNew(SparkonceError):
    """The record asks for a newer reader (`min_reader`). It is left unclaimed and unchanged."""


class NotInJob(SparkonceError):
    """`sparkonce.current()` was called outside an attempt."""


class UndeclaredOutput(SparkonceError):
    """A write names an output that the job does not declare; a takeover would not know where to look."""


class Fenced(SparkonceError):
    """A later attempt, or a settle, closed this attempt's slot: it can never commit, and its files are not visible."""


class KeyConflict(SparkonceError):
    """The slot is committed under another fingerprint: somebody else's rows, never this job's result."""


class AttemptEnded(SparkonceError):
    """The record says that this attempt is over (settling, superseded by a later one, finalized or forgotten)."""


class OutputUnavailable(SparkonceError):
    """The output's store did not answer or refused; what was asked is unknown unless the sentence says otherwise."""


class OutputUnsafe(SparkonceError):
    """The output's store ignores create-if-absent: exactly-once cannot be kept there, so nothing is written."""


class OutputCorrupt(SparkonceError):
    """A slot of this output does not parse. It exists: it is never treated as empty."""


class NothingCommitted(SparkonceError):
    """A table is read to which no job has committed: there are no rows, and no schema to say so with."""


class FilesMissing(SparkonceError):
    """Files that a committed slot names are not there any more, or not as they were; the rows are not read in part."""


class OutputUnsupported(SparkonceError):
    """This kind of output does not exist in this version; never replaced by another kind."""


class LibraryMissing(OutputUnsupported):
    """What this kind of output needs is not installed here; elsewhere it may be."""


class OutputChanged(SparkonceError):
    """The table was dropped, made anew or changed so that what was staged does not fit any more; nothing was committed."""


class StreamBroken(SparkonceError):
    """A stream's checkpoint does not fit what is committed: it was reset, put back, or used elsewhere. Nothing was committed for it."""


class ExpectationUnmet(SparkonceError):
    """What was written is not what `spec.outputs[].expect` demands; nothing was committed."""


class RowsLost(SparkonceError):
    """The rows counted while writing differ from the rows in the written files; nothing was committed."""


class LaunchRefused(SparkonceError):
    """The application was refused as invalid before it ran: trying again cannot help."""


class LaunchUnavailable(SparkonceError):
    """Not now, or not known: what was asked may have been done unless the sentence says otherwise. It may be asked again after a while."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds, when whoever refused said so."""


class Busy(SparkonceError):
    """Somebody else runs the key right now. Nothing was written."""


class JobMismatch(SparkonceError):
    """The key is for something else. Nothing was written."""


class HeldForPerson(SparkonceError):
    """The key is held: a person must resolve it."""


class ResultGone(SparkonceError):
    """The key has its result, and the result's output is gone or was replaced; nothing runs until a rerun."""


class JobFailed(SparkonceError):
    """The key's recorded outcome is a failure, or this attempt took no effect."""
