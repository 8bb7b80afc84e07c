"""`.status` of an IdempotentJob: a pure function of the key's record and the object.

Nothing is remembered anywhere but in the record and in the status that stands there, so any process, after any crash, writes the same; and
nothing is read here, so that it can be asked about any record and any object. A status that names the fingerprint of what its object
asks, beside a ledgerRevision, *is* the answer to it, and an answered object opens nothing for ever. So an object that will open a
generation, or waits for its turn or for its name in the record, gets a status that keeps the answer it had before and only says what
is waited for.

`Failed` and `Cancelled` are said of a generation that ended so, and of a spec that never reached the ledger; never of a duplicate that was
refused, since somebody might read there that no effect exists. A finished object whose key went to another job stays finished and
says so in its Mismatch condition. Complete is withheld when a result is told for the first time and its output is gone; it is not taken
back when the output goes later.

Heartbeats are in no record and cause no write. Progress is rounded to as few digits as the caller asks. Source: DESIGN section 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkonce.engine import project_conditions as conditions
from sparkonce.engine.object_view import Json, ObjectView
from sparkonce.engine.policy import Policy
from sparkonce.engine.progress import rounded
from sparkonce.engine.project_conditions import (
    COMPLETE,
    FAILED,
    HELD,
    MISMATCH,
    RESERVED,
    RESULT_GONE,
    Fact,
    fact,
    kept,
)
from sparkonce.engine.project_running import iso, phase_of, said_of
from sparkonce.engine.request import Answer
from sparkonce.engine.requests import (
    DUPLICATE_REJECTED,
    SUPERSEDED,
    UNANSWERED,
    Placed,
    Standing,
    place,
    was_superseded,
)
from sparkonce.model.record import Outcome, Record, State
from sparkonce.model.result import Result
from sparkonce.sink.protocol import Evidence
from sparkonce.store.protocol import View

PROGRESS_DIGITS = 2
"""90 values per power of ten: a job that writes a billion rows changes its status for it some hundreds of times, not millions."""
_PATHS_NAMED = 5  # in a message; all of them are listed in `mismatch`
_ROLES = {Standing.LEADS: "Leader", Standing.FOLLOWS: "Follower", Standing.REPLAYS: "Replay"}


@dataclass(frozen=True)
class Trouble:
    """Why nothing is done for an object at the moment, when the record does not say it: an invalid spec, a full realm, no answer."""

    reason: str
    message: str
    final: bool = False
    """Nothing will be done until the object is edited."""
    unknown: bool = False
    """The ledger did not answer: it may have reserved all the same."""


def project(
    view: View | None,
    obj: ObjectView,
    *,
    now_text: str,
    leader: Policy | None = None,
    result: Result | None = None,
    evidence: Mapping[str, Evidence] | None = None,
    mismatch_paths: Sequence[str] | None = None,
    progress: Mapping[str, Any] | None = None,
    progress_digits: int = PROGRESS_DIGITS,
    trouble: Trouble | None = None,
) -> Json:
    """`view`: None when the ledger was not read. `leader`: policies of the record's generation. `result`: of that generation.
    `evidence`: per output, from a probe. `mismatch_paths`: where the object differs from the record. `progress`: of the running attempt.
    What is None was not looked at, and what the stored status says of it stays. `now_text`: RFC 3339. RecordTooNew."""
    if view is None:
        return _Status(obj, now_text).unanswered(None, "NotRead", "the ledger has not been read yet", trouble)
    placed = place(view, obj, leader=leader, evidence=evidence)
    status, record = _Status(obj, now_text), view.record
    if placed.standing in UNANSWERED:
        why = placed.why or _WAITING.get(placed.standing, "")
        return status.unanswered(placed, str(placed.standing), why, trouble)
    if record is None:
        return status.expired(view, placed)
    status.answered(view, record, placed)
    match placed.standing:
        case Standing.SUPERSEDED:
            return status.superseded(record, placed)
        case Standing.MISMATCH:
            return status.mismatch(record, placed, mismatch_paths)
        case Standing.REFUSED:
            return status.refused(record)
    match record.state:
        case State.FINALIZED:
            return status.finalized(record, placed, result, evidence)
        case State.HELD:
            return status.held(record, placed)
        case State.IN_PROGRESS:
            coarse = None if progress is None else rounded(progress, digits=progress_digits)
            status.running(view, record, placed, coarse)
            return status.done(phase_of(view, record), trouble.message if trouble else said_of(view, record, leader))


_WAITING = {
    Standing.OPENS: "the key is being reserved",
    Standing.ATTACHES: "this object is being attached to the running job",
    Standing.INVALID: "the spec is not valid",
    Standing.IGNORED: "the object is being deleted",
}


class _Status:
    """One status in the making."""

    def __init__(self, obj: ObjectView, now_text: str) -> None:
        self.obj, self.stored, self.now_text = obj, dict(obj.status), now_text
        self.body: Json = {"observedGeneration": obj.generation}
        self.facts: dict[str, Fact] = {}

    # what the answer is to
    def answered(self, view: View, record: Record, placed: Placed) -> None:
        assert placed.asked is not None  # an answer is to something asked
        told = self.stored.get("fingerprint")
        self.body |= {
            "epoch": view.epoch,
            "ledgerRevision": record.revision,
            "fingerprint": told if self.obj.asks(told) else self.obj.fingerprints[record.fingerprint_version],
            "requestNumber": placed.asked.number,
            "key": record.key,
            "keyHash": record.key_hash,
            "generation": record.generation,
        }

    def carried(self, *names: str) -> None:
        self.body |= {name: self.stored[name] for name in names if name in self.stored}

    @property
    def same_generation(self) -> bool:
        """The stored status is about the generation that this one is about."""
        about = ("generation", "keyHash", "fingerprint", "epoch")
        return all(self.stored.get(name) == self.body.get(name) for name in about)

    def done(self, phase: str, message: str = "") -> Json:
        self.body["phase"] = phase
        if message:
            self.body["message"] = conditions.sentence(message)
        self.body["conditions"] = conditions.conditions(
            self.facts, self.stored, phase=phase, observed=self.obj.generation, now_text=self.now_text
        )
        return self.body

    # without an answer
    def unanswered(self, placed: Placed | None, reason: str, message: str, trouble: Trouble | None) -> Json:
        ask = placed.asked if placed is not None else None
        told = "ledgerRevision" in self.stored
        if told and (ask.answered if ask is not None else self.obj.asks(self.stored.get("fingerprint"))):
            return self.stored | {"observedGeneration": self.obj.generation}  # the answer stands
        self.carried("epoch", "ledgerRevision", "fingerprint", "requestNumber", "generation", "key", "keyHash")
        self.body |= {"key": self.obj.key, "keyHash": self.obj.key_hash} if self.obj.key_hash else {}
        trouble = trouble or Trouble(reason, message, final=reason == Standing.INVALID)
        holds = conditions.UNKNOWN if trouble.unknown else conditions.FALSE
        self.facts[RESERVED] = fact(trouble.reason, trouble.message, holds=holds)
        if not trouble.final or told:
            return self.done("Pending", trouble.message)
        self.facts[FAILED] = fact(trouble.reason, trouble.message)
        return self.done("Failed", trouble.message)

    def expired(self, view: View, placed: Placed) -> Json:
        assert placed.asked is not None  # only who has been answered expires
        self.carried("key", "keyHash", "fingerprint", "result", "replayed")
        self.body |= {"epoch": view.epoch, "ledgerRevision": view.revision, "generation": view.floor}
        self.body["requestNumber"] = placed.asked.number
        if self.stored.get("phase") == "Expired" and self.same_generation:
            self.carried("ledgerRevision")  # the store moves on with every other key, and nothing has changed here
        said = "the record of this key is gone (retention has ended, or it was forgotten); apply a new object to run the job again"
        self.facts = kept(self.stored, COMPLETE) | kept(self.stored, FAILED)
        self.facts[RESERVED] = fact("Expired", said, holds=conditions.FALSE)
        return self.done("Expired", said)

    # the key is not for this
    def superseded(self, record: Record, placed: Placed) -> Json:
        if was_superseded(self.obj):
            return self.stored | {"observedGeneration": self.obj.generation}  # terminal until edited
        assert placed.said is not None  # a row said that the key is for another job
        said = f"generation {record.generation} of {record.key} is for another job, which took this one's place"
        self.facts[RESERVED] = fact(SUPERSEDED, said, holds=conditions.FALSE)
        self.facts[MISMATCH] = fact(SUPERSEDED, said)
        if self.obj.asks(self.stored.get("fingerprint")):
            self.facts |= kept(self.stored, COMPLETE) | kept(self.stored, FAILED)
            if self.stored.get("phase") in ("Succeeded", "Failed"):  # Cancelled is no result
                self.carried("role", "generation", "attempt", "result", "replayed", "message")
                return self.done(str(self.stored["phase"]))
        return self.done("Mismatch", f"{said}; {placed.said.unblock}")

    def mismatch(self, record: Record, placed: Placed, paths: Sequence[str] | None) -> Json:
        assert placed.said is not None  # a row said so
        if paths is not None:
            self.body["mismatch"] = list(paths)
        elif self.same_generation:
            self.carried("mismatch")
        listed = self.body.get("mismatch") or []
        more = f" and {len(listed) - _PATHS_NAMED} more" if len(listed) > _PATHS_NAMED else ""
        fields = f" (it differs in {', '.join(listed[:_PATHS_NAMED])}{more})" if listed else ""
        other = f"generation {record.generation} of {record.key} is for another job"
        said = f"{other}{fields}; {placed.said.unblock}"
        self.facts[MISMATCH] = fact("Mismatch", said)
        self.facts[RESERVED] = fact("Mismatch", other, holds=conditions.FALSE)
        return self.done("Mismatch", said)

    def refused(self, record: Record) -> Json:
        said = (
            f"refused: generation {record.generation} of {record.key} has not ended, and its onDuplicate is Reject; "
            "its result is shown here once there is one"
        )
        self.facts[RESERVED] = fact(DUPLICATE_REJECTED, said, holds=conditions.FALSE)
        return self.done("Pending", said)

    # the key is for this
    def served(self, record: Record, placed: Placed) -> None:
        self.body |= {"role": _ROLES[placed.standing], "attempt": record.attempt}
        if record.application is not None:
            self.body["application"] = record.application.name
        reserved = {
            Standing.LEADS: f"generation {record.generation} was opened for this object",
            Standing.FOLLOWS: f"generation {record.generation} runs for this object, too",
            Standing.REPLAYS: f"generation {record.generation} is answered with its recorded result",
        }
        said = reserved[placed.standing]
        if record.bound is not None:
            said += f"; it follows application {record.bound.application}, which sparkonce did not start"
        self.facts[RESERVED] = fact(_ROLES[placed.standing], said)

    def running(self, view: View, record: Record, placed: Placed, progress: Json | None) -> None:
        self.served(record, placed)
        if view.claim is not None:
            self.body["owner"] = view.claim.owner
        if progress is not None:
            self.body |= {"progress": progress} if progress else {}
        elif self.same_generation and self.stored.get("attempt") == record.attempt:
            self.carried("progress")

    def held(self, record: Record, placed: Placed) -> Json:
        self.served(record, placed)
        assert placed.said is not None  # the row that says how to resolve it
        said = f"{record.note or record.held}; {placed.said.unblock}"
        self.facts[HELD] = fact(str(record.held), said)
        return self.done("Held", said)

    def finalized(
        self, record: Record, placed: Placed, result: Result | None, evidence: Mapping[str, Evidence] | None
    ) -> Json:
        self.served(record, placed)
        self.body["replayed"] = placed.standing is not Standing.LEADS
        if result is not None:
            self.body["result"] = _result(result)
        elif self.same_generation:
            self.carried("result")
        if record.outcome is not Outcome.SUCCEEDED:
            failure = result.failure if result is not None else None
            said = f"{record.note or record.outcome}; sparkonce rerun {record.key}"
            why = failure.class_ if failure and record.outcome is Outcome.FAILED else str(record.outcome)
            self.ends(FAILED, fact(why, said), known=result is not None)
            return self.done(str(record.outcome), said)
        gone = self._gone(placed, evidence)
        self.facts |= gone
        if not gone or (self.same_generation and kept(self.stored, COMPLETE)):
            said = f"generation {record.generation} succeeded" + (f": {result.evidence}" if result else "")
            reason = "Committed" if result is not None and result.outputs else "Completed"
            self.ends(COMPLETE, fact(reason, said), known=result is not None)
        else:
            self.facts[COMPLETE] = fact(RESULT_GONE, gone[RESULT_GONE].message, holds=conditions.FALSE)
        return self.done("Succeeded", gone[RESULT_GONE].message if gone else "")

    def ends(self, kind: str, said: Fact, *, known: bool) -> None:
        """`known`: the result was read; what was said with it is not replaced by what can be said without."""
        before = kept(self.stored, kind) if self.same_generation and not known else {}
        self.facts[kind] = before.get(kind, said)

    def _gone(self, placed: Placed, evidence: Mapping[str, Evidence] | None) -> dict[str, Fact]:
        """ResultGone, if it holds; without a probe, what the last one found."""
        looked = [found for found in (evidence or {}).values() if found is not Evidence.NOT_CHECKED]
        if not looked:
            return kept(self.stored, RESULT_GONE) if self.same_generation else {}
        assert placed.said is not None  # REPLAY or RESULT_GONE
        if placed.said.answer is not Answer.RESULT_GONE:
            return {}
        reason = "Gone" if Evidence.GONE in looked else "Replaced"
        said = f"{placed.said.evidence}; nothing runs until `{placed.said.unblock}`"
        return {RESULT_GONE: fact(reason, said)}


def _result(result: Result) -> Json:
    body = result.dump()
    times = {"startedAt": result.started_at, "finishedAt": result.finished_at}
    kept_out = {"outcome", "generation", *times}  # said beside it, or in a form that people read
    return {name: value for name, value in body.items() if name not in kept_out} | {
        name: iso(seconds) for name, seconds in times.items() if seconds
    }
