"""Decides how a request for a key is answered, before anything is written. Pure; `sparkonce plan` prints it, `LocalRunner` and `plan` act
on it.

The key is looked up first: replaying, following and refusing need no ownership. Only an unknown key, one without an owner, and one whose
end allows a new generation lead to a write, and each such write is conditional on what was read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sparkonce.attempt.decide import Policy, held_remedy
from sparkonce.model.record import Outcome, Record, State
from sparkonce.model.spec import OnDuplicate, OnFinalized, OnMismatch, OnResultChanged
from sparkonce.sink.protocol import Evidence, Found
from sparkonce.store.protocol import View

_COMMAND = re.compile(r"(?<!kubectl )\bsparkonce (?:keys )?(list|show|history|explain|rerun|cancel|resolve|forget)\b")
"""Of the ledger's commands, those that the plugin has."""


class Answer(StrEnum):
    """The kind of answer to a request."""

    NEW = "New"
    """The key is unknown: reserve and run."""
    REPLAY = "Replay"
    """Finalized: return the recorded result."""
    RESULT_GONE = "ResultGone"
    """Finalized, but its output is gone or was replaced (with onResultChanged: Gone also if it was changed): nothing runs until a person
    acts."""
    FOLLOW = "Follow"
    """Another process runs it: wait for the result."""
    TAKE_OVER = "TakeOver"
    """In progress without an owner: resume it."""
    IN_PROGRESS = "InProgress"
    """Another process runs it, and onDuplicate is Reject."""
    HELD = "Held"
    """A person must resolve it first."""
    MISMATCH = "Mismatch"
    """The key belongs to another job."""
    SUPERSEDE = "Supersede"
    """The key belongs to another job, and onMismatch is Supersede, or that job ended without effect: end that generation, then open the
    next."""
    REOPEN = "Reopen"
    """The last generation was cancelled, or failed and may run again: open the next."""


@dataclass(frozen=True)
class Answered:
    """An answer with its reason."""

    answer: Answer
    row: str
    """Name of the row that decided."""
    evidence: str
    """One sentence: what was read."""
    unblock: str = ""
    """What a person can do."""


def answer(
    view: View,
    *,
    same: bool,
    policy: Policy,
    outputs: Mapping[str, Found] | None = None,
    key: str = "KEY",
    opened: bool = False,
) -> Answered:
    """Answers a request from the key's view.

    `same`: the fingerprints agree (by the record's version). `outputs`: what a probe found of a finalized result; None: not probed.
    `opened`: this very request is among the record's openers. One request opens one generation, so here it only gets that generation's
    result; otherwise a job whose rerun fails would run for ever, and two jobs would supersede each other without end."""
    record = view.record
    if record is None:
        return unknown(view)
    if not same:
        return _mismatch(record, policy, key, opened=opened)
    match record.state:
        case State.FINALIZED:
            return _finalized(record, policy, outputs or {}, key, opened=opened)
        case State.HELD:
            return _held(record, key)
        case State.IN_PROGRESS:
            return _in_progress(view, record, policy, key)


def unknown(view: View) -> Answered:
    """The answer while the key has no record, whatever the job and its policies."""
    known = f"generation {view.floor + 1} (earlier ones were forgotten)" if view.floor else "no job has used this key"
    return Answered(Answer.NEW, "unknown key", known)


def for_kubectl(text: str, namespace: str = "") -> str:
    """A sentence with the ledger's commands as the plugin has them, for people who cannot reach the ledger. namespace: of the key, if the
    sentence is not printed by the plugin itself, which knows it."""
    scope = f" -n {namespace}" if namespace else ""
    told = _COMMAND.sub(lambda found: f"kubectl sparkonce {found[1]}{scope}", text)
    return told.replace(" -f FILE`", " -f FILE --reason TEXT`")  # required there, beside a file


def _held(record: Record, key: str) -> Answered:
    return Answered(Answer.HELD, "held", f"{record.held}: {record.note}", held_remedy(key))


def _mismatch(record: Record, policy: Policy, key: str, *, opened: bool) -> Answered:
    said = f"generation {record.generation} is for another job"
    remedy = (
        f"give the changed job another revision or key, or run it in the place of {key} with `sparkonce rerun -f FILE`"
    )
    if record.state is State.IN_PROGRESS:  # a rerun waits for its end
        remedy += f" once that has ended (`sparkonce cancel {key}` ends it)"
    if opened:
        return Answered(Answer.MISMATCH, "was superseded", f"{said}, which took this one's place", remedy)
    if record.effectless and policy.on_mismatch is not OnMismatch.REJECT_ALWAYS:
        said = f"{said} and ended as {record.outcome} without effect"
        return Answered(Answer.SUPERSEDE, "nothing to protect", said)
    if policy.on_mismatch is not OnMismatch.SUPERSEDE:
        return Answered(Answer.MISMATCH, "mismatch", said, remedy)
    if record.state is State.HELD and not record.reopenable:
        return _held(record, key)  # no generation may follow it before a person has resolved it
    return Answered(Answer.SUPERSEDE, "superseded", f"{said}, and onMismatch is Supersede")


def replaces(record: Record, policy: Policy) -> str:
    """The sentence for the history when the job with this policy ends another job's generation, or opens the next one in its place."""
    why = "onMismatch: Supersede"
    if policy.on_mismatch is not OnMismatch.SUPERSEDE:
        why = "of which no driver has started" if record.state is State.IN_PROGRESS else "which took no effect"
    return f"takes the place of generation {record.generation} ({why})"


def _finalized(record: Record, policy: Policy, outputs: Mapping[str, Found], key: str, *, opened: bool) -> Answered:
    said = f"generation {record.generation}: {record.outcome}"
    rerun = f"sparkonce rerun {key}"
    match record.outcome:
        case Outcome.CANCELLED if not opened:
            return Answered(
                Answer.REOPEN, "cancelled", f"generation {record.generation} was cancelled, which is not a result"
            )
        case Outcome.FAILED if not opened and policy.on_finalized is OnFinalized.RERUN_IF_FAILED:
            return Answered(
                Answer.REOPEN, "failed, and onFinalized is RerunIfFailed", f"{said}, {record.note}".rstrip(", ")
            )
        case Outcome.SUCCEEDED:
            return _succeeded(record, policy, outputs, rerun)
    return Answered(Answer.REPLAY, "finalized", said, rerun)


def _succeeded(record: Record, policy: Policy, outputs: Mapping[str, Found], rerun: str) -> Answered:
    lost = {name: found for name, found in outputs.items() if found.verdict in (Evidence.GONE, Evidence.REPLACED)}
    changed = {name: found for name, found in outputs.items() if found.verdict is Evidence.CHANGED}
    superseded = {name: found for name, found in outputs.items() if found.verdict is Evidence.SUPERSEDED}
    said = f"generation {record.generation} succeeded, and its output "
    if lost:
        return Answered(
            Answer.RESULT_GONE, "result gone", said + _named(lost), _remedy({**lost, **changed, **superseded}, rerun)
        )
    if not changed and superseded:
        return Answered(Answer.REPLAY, "result superseded", said + _named(superseded), _remedy(superseded, rerun))
    if not changed:
        finalized = f"generation {record.generation}: {record.outcome}"
        return Answered(Answer.REPLAY, "finalized", finalized, _remedy(outputs, rerun))
    said, remedy = said + _named({**changed, **superseded}), _remedy({**changed, **superseded}, rerun)
    if policy.on_result_changed is OnResultChanged.GONE:
        return Answered(Answer.RESULT_GONE, "result changed, and onResultChanged is Gone", said, remedy)
    return Answered(Answer.REPLAY, "result changed", said, remedy)


def _named(outputs: Mapping[str, Found]) -> str:
    return ", ".join(
        f"{name} is {found.verdict}" + (f" ({found.why})" if found.why else "") for name, found in outputs.items()
    )


def _remedy(outputs: Mapping[str, Found], rerun: str) -> str:
    """How the rows are written anew: a rerun, except where an output would refuse it."""
    return "; ".join(f"{name}: {found.remedy}" for name, found in outputs.items() if found.remedy) or rerun


def _in_progress(view: View, record: Record, policy: Policy, key: str) -> Answered:
    if view.claim is None:
        said = f"generation {record.generation}, attempt {record.attempt} has no owner (it ended)"
        return Answered(Answer.TAKE_OVER, "stale owner", said, "send the job again to continue it")
    said = f"generation {record.generation}, attempt {record.attempt} is owned by {view.claim.owner}"
    if policy.on_duplicate is OnDuplicate.REJECT:
        wait = "wait until it ends; onDuplicate: Attach would follow it"
        return Answered(Answer.IN_PROGRESS, "running elsewhere", said, wait)
    return Answered(Answer.FOLLOW, "running elsewhere", said, f"wait, or `sparkonce cancel {key}`")
