"""What a request for a key gets, before anything is written. Pure; `sparkonce plan` prints it, `embedded` acts on it.

A request is looked up first: replay, follow and refuse need no ownership. Only a key that nobody has asked for, an unowned one, and
one whose end may be followed by a new generation lead to a write, and each such write compares what was seen here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sparkonce.engine.policy import Policy
from sparkonce.model.policy import OnDuplicate, OnFinalized, OnMismatch
from sparkonce.model.record import Outcome, Record, State
from sparkonce.sink.protocol import Evidence
from sparkonce.store.protocol import View


class Answer(StrEnum):
    NEW = "New"
    """Nobody has asked for it: reserve and run."""
    REPLAY = "Replay"
    """Finalized: the recorded result."""
    RESULT_GONE = "ResultGone"
    """Finalized, and its output is gone or replaced: nothing runs until a rerun."""
    FOLLOW = "Follow"
    """Somebody runs it: wait for the result."""
    TAKE_OVER = "TakeOver"
    """In progress and nobody owns it: go on where it stands."""
    IN_PROGRESS = "InProgress"
    """Somebody runs it, and onDuplicate says Reject."""
    HELD = "Held"
    """A person must decide."""
    MISMATCH = "Mismatch"
    """The key is for something else."""
    SUPERSEDE = "Supersede"
    """The key is for something else, and onMismatch says Supersede: end that generation, then open the next."""
    REOPEN = "Reopen"
    """The last generation is no result (cancelled), or a failure that may run again."""


@dataclass(frozen=True)
class Answered:
    answer: Answer
    row: str
    evidence: str
    unblock: str = ""


def answer(
    view: View,
    *,
    same: bool,
    policy: Policy,
    outputs: Mapping[str, Evidence] | None = None,
    key: str = "KEY",
    opened: bool = False,
) -> Answered:
    """`same`: the fingerprints agree (by the record's version). `outputs`: what a probe found of a finalized result; None: not probed.
    `opened`: this very request is among the record's openers; one request opens one generation, so it can only be told what became of
    it. Without that, a job whose rerun fails would run for ever, and two that supersede each other would never end."""
    record = view.record
    if record is None:
        known = (
            f"generation {view.floor + 1} (earlier ones were forgotten)" if view.floor else "nobody has asked for it"
        )
        return Answered(Answer.NEW, "unknown key", known)
    if not same:
        return _mismatch(record, policy, key, opened=opened)
    match record.state:
        case State.FINALIZED:
            return _finalized(record, policy, outputs or {}, key, opened=opened)
        case State.HELD:
            return _held(record, key)
        case State.IN_PROGRESS:
            return _in_progress(view, record, policy, key)


def _held(record: Record, key: str) -> Answered:
    resolve = f"sparkonce keys resolve {key} --succeeded | --failed | --retry"
    return Answered(Answer.HELD, "held", f"{record.held}: {record.note}", resolve)


def _mismatch(record: Record, policy: Policy, key: str, *, opened: bool) -> Answered:
    said = f"generation {record.generation} is for another job"
    remedy = f"give the changed job another revision or key, or replace the old one with `sparkonce rerun` (key {key})"
    if opened:
        return Answered(Answer.MISMATCH, "was superseded", f"{said}, which took this one's place", remedy)
    if policy.on_mismatch is not OnMismatch.SUPERSEDE:
        return Answered(Answer.MISMATCH, "mismatch", said, remedy)
    if record.state is State.HELD and not record.reopenable:
        return _held(record, key)  # nothing may follow it before a person has decided
    return Answered(Answer.SUPERSEDE, "superseded", f"{said}, and onMismatch is Supersede")


def _finalized(record: Record, policy: Policy, outputs: Mapping[str, Evidence], key: str, *, opened: bool) -> Answered:
    said = f"generation {record.generation}: {record.outcome}"
    rerun = f"sparkonce rerun {key}"
    match record.outcome:
        case Outcome.CANCELLED if not opened:
            return Answered(
                Answer.REOPEN, "cancelled", f"generation {record.generation} was cancelled, which is no result"
            )
        case Outcome.FAILED if not opened and policy.on_finalized is OnFinalized.RERUN_IF_FAILED:
            return Answered(
                Answer.REOPEN, "failed, and onFinalized is RerunIfFailed", f"{said}, {record.note}".rstrip(", ")
            )
        case Outcome.SUCCEEDED:
            missing = [
                f"{name} is {found}" for name, found in outputs.items() if found in (Evidence.GONE, Evidence.REPLACED)
            ]
            if missing:
                said = f"generation {record.generation} succeeded, and its output {', '.join(missing)}"
                return Answered(Answer.RESULT_GONE, "result gone", said, rerun)
    return Answered(Answer.REPLAY, "finalized", said, rerun)


def _in_progress(view: View, record: Record, policy: Policy, key: str) -> Answered:
    if view.claim is None:
        said = f"generation {record.generation}, attempt {record.attempt}: nobody owns it (its owner ended)"
        return Answered(Answer.TAKE_OVER, "stale owner", said, "send the job again: it goes on where it stands")
    said = f"generation {record.generation}, attempt {record.attempt} is owned by {view.claim.owner}"
    if policy.on_duplicate is OnDuplicate.REJECT:
        wait = "wait until it ends; onDuplicate: Attach would follow it"
        return Answered(Answer.IN_PROGRESS, "running elsewhere", said, wait)
    return Answered(Answer.FOLLOW, "running elsewhere", said, f"wait, or `sparkonce cancel {key}`")
