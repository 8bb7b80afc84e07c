"""Exit codes. Scripts and schedulers act on them, so a code never changes its meaning.

Two functions map facts to codes, one for errors and one for answers, so that two commands cannot give one fact two codes. An unexpected
error becomes one sentence that names the file with its traceback.
"""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce import errors

if TYPE_CHECKING:
    from sparkonce.attempt.request import Answer
    from sparkonce.local.runner import Ending


class ExitCode(IntEnum):
    SUCCEEDED = 0
    """The job has its result: it ran now, or the recorded result was replayed. Of other commands: done."""
    FAILED = 1
    """The job failed for good, now or earlier: a failure is a result, and is replayed. Of `audit`: it found defects."""
    INVALID = 2
    """The request itself is wrong: nothing was sent and nothing was written."""
    UNAVAILABLE = 3
    """The ledger, or the store of an output, cannot be reached or used. Nothing is lost: send it again when the cause is fixed."""
    MISMATCH = 4
    """The key belongs to another job; the fields and files that differ are named."""
    HELD = 5
    """A person must decide: `sparkonce keys resolve`."""
    IN_PROGRESS = 6
    """The job runs elsewhere and declares `onDuplicate: Reject`."""
    RESULT_GONE = 7
    """The job succeeded, and one of its outputs no longer exists: `sparkonce rerun`."""
    CANCELLED = 8
    """The job was stopped and settled: nothing of it took effect, and nothing will."""
    BROKEN = 70
    """A defect of sparkonce: the sentence names a file with the details. Sending the job again is safe."""
    DETACHED = 130
    """This command stopped waiting; the job continues elsewhere."""


_INVALID = (
    errors.InvalidInput,
    errors.LaneRetired,
    errors.LaunchRefused,
    errors.NotInJob,
    errors.OutputUnsafe,
    errors.OutputUnsupported,
    errors.UndeclaredOutput,
)


def code_of_error(error: errors.SparkonceError | OSError) -> ExitCode:
    """The exit code for an error. Only invalid input proves something about the request: after others the command may be repeated."""
    return ExitCode.INVALID if isinstance(error, _INVALID) else ExitCode.UNAVAILABLE


def code_of(ending: Ending) -> ExitCode:
    """The exit code of an answered request."""
    from sparkonce.attempt.request import Answer
    from sparkonce.model.record import Outcome

    if ending.detached:
        return ExitCode.DETACHED
    if ending.answer is Answer.REPLAY and ending.record is not None:
        match ending.record.outcome:
            case Outcome.FAILED:
                return ExitCode.FAILED
            case Outcome.CANCELLED:
                return ExitCode.CANCELLED
    return code_of_answer(ending.answer)


def code_of_answer(answer: Answer) -> ExitCode:
    """The exit code of a planned request: 0 for all that would run, follow or replay."""
    from sparkonce.attempt.request import Answer

    refusals = {
        Answer.MISMATCH: ExitCode.MISMATCH,
        Answer.HELD: ExitCode.HELD,
        Answer.IN_PROGRESS: ExitCode.IN_PROGRESS,
        Answer.RESULT_GONE: ExitCode.RESULT_GONE,
    }
    return refusals.get(answer, ExitCode.SUCCEEDED)


def defect_sentence(error: BaseException) -> str:
    """Writes the traceback beside the default ledger, else to the temporary folder, and returns the sentence that names the file."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    kept = _keep("".join(traceback.format_exception(error)))
    details = f"details are in {kept}" if kept else "and its details could not be written anywhere"
    return f"a defect of sparkonce ({said}); {details}; nothing is lost, sending the job again is safe"


def _keep(text: str) -> Path | None:
    name = f"defect-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    for folder in (_data_folder, lambda: Path(tempfile.gettempdir())):
        try:
            path = folder() / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            path.write_text(text)
        except (OSError, ImportError):
            continue
        return path
    return None


def _data_folder() -> Path:
    import platformdirs

    return platformdirs.user_data_path("sparkonce")
