"""What a command's exit code says. Scripts and schedulers act on it, so a code never changes its meaning.

Two functions map facts to codes, one for errors and one for answers, so that two commands cannot give one fact two codes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sparkonce import errors

if TYPE_CHECKING:
    from sparkonce.engine.embedded import Ending
    from sparkonce.engine.request import Answer


class ExitCode(IntEnum):
    SUCCEEDED = 0
    """The job has its result: it ran now, or the recorded result was replayed. Of other commands: what was asked is done."""
    FAILED = 1
    """The job failed for good, now or earlier: a failure is a result, and is replayed. Of `audit`: it found defects."""
    INVALID = 2
    """The request itself is wrong: nothing was sent and nothing was written."""
    UNAVAILABLE = 3
    """The ledger, or the store of an output, cannot be reached or used. Nothing is lost: send it again when that is mended."""
    MISMATCH = 4
    """The key belongs to another job; the fields and files that differ are named."""
    HELD = 5
    """A person must decide: `sparkonce keys resolve`."""
    IN_PROGRESS = 6
    """It runs elsewhere, and the job says `onDuplicate: Reject`."""
    RESULT_GONE = 7
    """It succeeded, and an output of it is not there any more: `sparkonce rerun`."""
    CANCELLED = 8
    """It was stopped and settled: nothing of it took effect, and nothing will."""
    BROKEN = 70
    """A defect of sparkonce: the sentence names a file with the details. Sending the job again is safe."""
    DETACHED = 130
    """This command stopped waiting; the job runs on elsewhere."""


_INVALID = (
    errors.InvalidInput,
    errors.LaunchRefused,
    errors.NotInJob,
    errors.OutputUnsafe,
    errors.OutputUnsupported,
    errors.UndeclaredOutput,
)


def code_of_error(error: errors.SparkonceError | OSError) -> ExitCode:
    """Beside invalid input there are errors that prove nothing, and what the machine refuses: the same command may be given again."""
    return ExitCode.INVALID if isinstance(error, _INVALID) else ExitCode.UNAVAILABLE


def code_of(ending: Ending) -> ExitCode:
    """Of a request that has its answer."""
    from sparkonce.engine.request import Answer
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
    """Of what a request would get: 0 for whatever runs, follows or replays."""
    from sparkonce.engine.request import Answer

    refusals = {
        Answer.MISMATCH: ExitCode.MISMATCH,
        Answer.HELD: ExitCode.HELD,
        Answer.IN_PROGRESS: ExitCode.IN_PROGRESS,
        Answer.RESULT_GONE: ExitCode.RESULT_GONE,
    }
    return refusals.get(answer, ExitCode.SUCCEEDED)
