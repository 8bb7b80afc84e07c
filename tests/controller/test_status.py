"""`project`: what a status contains, case by case."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.key_objects import (
    DEFAULT,
    HASH,
    LATER,
    NOW,
    REJECT,
    SUPERSEDE,
    condition,
    edited,
    ended,
    entry,
    held,
    holds,
    obj,
    opened,
    record,
    result,
    told,
    view,
)
from sparkonce.attempt.decide import Policy
from sparkonce.attempt.rerun import ANNOTATION, digest
from sparkonce.controller.objects import Json, ObjectRef, ObjectView
from sparkonce.controller.plan import asked, plan
from sparkonce.controller.status import STATUS_VERSION, Trouble, project
from sparkonce.controller.status_writer import NO_SLOT, JobStatusWriter, KeyReading
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Failure, HeldReason, Opener, Outcome, Record, Settling, StopWanted, Why
from sparkonce.model.spec import OnResultChanged
from sparkonce.observe.meter import NoMeter
from sparkonce.sink.protocol import Change, Evidence, Found, Probed
from sparkonce.store.protocol import View

BOTH = (entry("X"), entry("Y"))
B_RUNS = record(
    generation=2, fingerprint="B", openers=(opened("X"), opened("Y", 1, "B")), objects=(entry("Y"),), revision=30
)


def said(at: View | None, of: Any = None, **known: Any) -> dict[str, Any]:
    return project(at, of or obj(), now_text=NOW, **known)


def command(uid: str) -> str:
    """By which a person runs this object again."""
    return f"kubectl annotate --overwrite idempotentjobs -n etl job-{uid} sparkonce.dev/rerun=REASON"


def test_a_running_job_in_full() -> None:
    """The leader's status has the job's state and the request that was answered."""
    status = said(view(record(), epoch=3), progress={"stages": 123456, "stagesDone": 17})
    conditions = status.pop("conditions")
    assert status == {
        "phase": "Running",
        "role": "Leader",
        "observedGeneration": 1,
        "epoch": 3,
        "ledgerRevision": 10,
        "fingerprint": "A",
        "requestNumber": 1,
        "key": "load/may@1",
        "keyHash": HASH,
        "generation": 1,
        "attempt": 1,
        "owner": "operator-1",
        "application": "so-1",
        "progress": {"stages": 120000, "stagesDone": 17},
        "message": "attempt 1 runs",
    }
    at = {"observedGeneration": 1, "lastTransitionTime": NOW}
    said_of = [(each.pop("type"), each.pop("status"), each.pop("reason"), each.pop("message")) for each in conditions]
    assert said_of == [
        ("Reserved", "True", "Leader", "generation 1 was opened for this object"),
        ("Ready", "Unknown", "Running", "attempt 1 runs"),
        ("Reconciling", "True", "Running", "attempt 1 runs"),
        ("Stalled", "False", "Running", "the job is Running"),
    ]
    assert conditions == [at] * 4


def test_a_result_in_full() -> None:
    """A finished job's status has its result, with readable times, and the condition Complete as a batch/v1 Job has it."""
    status = said(view(ended()), result=result())
    assert (status["phase"], status["replayed"]) == ("Succeeded", False)
    assert status["result"] == {
        "outputs": [result().outputs[0].dump()],
        "values": {"rows_seen": 7},
        "attempts": 1,
        "evidence": "slots committed by attempt 1",
        "startedAt": "2026-09-21T14:13:20Z",
        "finishedAt": "2026-09-21T14:14:20Z",
    }
    complete = condition(status, "Complete")
    assert (complete["status"], complete["reason"]) == ("True", "Committed")
    assert complete["message"] == "generation 1 succeeded: slots committed by attempt 1"
    assert not condition(status, "Failed")
    json.dumps(status, allow_nan=False)


LOST = Settling(attempt=1, why=Why.LOST, note="the pod vanished")
NOT_SEEN: dict[str, Any] = {"application": None, "phase": None}
WISH = StopWanted(why=Why.CANCELLED, by="ann", reason="too slow")
COMPLETED = Settling(attempt=1, why=Why.COMPLETED)
GRANTED: dict[str, Any] = {"attempt": 2, "settling": LOST, "application": None, "phase": None}
NO_OWNER = "attempt 1 has no owner; the next operator process continues it"
AGAIN = "attempt 1 ended: the pod vanished; attempt 2 is"
RUNS: list[tuple[str, str, str, View]] = [
    ("granted", "Pending", "attempt 1 is about to be launched", view(record(**NOT_SEEN))),
    ("accepted", "Pending", "attempt 1 waits for its driver", view(record(phase=Phase.ACCEPTED))),
    ("queued", "Pending", "attempt 1 waits for its queue", view(record(phase=Phase.HELD))),
    ("running", "Running", "attempt 1 runs", view(record(phase=Phase.RUNNING))),
    ("finishing", "Running", "attempt 1 runs", view(record(phase=Phase.FINISHING))),
    ("unowned", "Recovering", NO_OWNER, view(record(), owned=False)),
    ("lost", "Recovering", "attempt 1 is being settled: the pod vanished", view(record(settling=LOST))),
    ("completed", "Running", "attempt 1 is being settled: Completed", view(record(settling=COMPLETED))),
    ("granted again", "Recovering", f"{AGAIN} about to be launched", view(record(**GRANTED))),
    (
        "backing off",
        "Recovering",
        f"{AGAIN} launched at 2026-09-21T14:13:20Z",
        view(record(**GRANTED, not_before=1_790_000_000.7)),
    ),
    (
        "started again",
        "Recovering",
        "attempt 2 waits for its driver",
        view(record(attempt=2, settling=LOST, phase=Phase.STARTING)),
    ),
    ("runs again", "Running", "attempt 2 runs", view(record(attempt=2, settling=LOST))),
    ("cancelled", "Running", "cancelled by ann: too slow; attempt 1 ends", view(record(stop_wanted=WISH))),
]


@pytest.mark.parametrize(("phase", "message", "at"), [row[1:] for row in RUNS], ids=[row[0] for row in RUNS])
def test_in_progress(phase: str, message: str, at: View) -> None:
    """A job in progress has this phase, and this sentence beside it."""
    status = said(at)
    assert (status["phase"], status["message"]) == (phase, message)
    assert not any(holds(status, kind) for kind in ("Complete", "Failed", "Held", "Mismatch", "ResultGone"))


def test_suspended() -> None:
    """A suspended job that has not started says what to do; a running one does not mention it."""
    suspended = replace(DEFAULT, suspend=True)
    assert "set spec.suspend to false" in said(view(record(**NOT_SEEN)), leader=suspended)["message"]
    assert said(view(record()), leader=suspended)["message"] == "attempt 1 runs"


def test_trouble_of_a_running_job() -> None:
    """The message says why nothing moves at the moment; the phase is the record's."""
    status = said(view(record(**NOT_SEEN)), trouble=Trouble("LaunchUnavailable", "the API server asked to wait"))
    assert (status["phase"], status["message"]) == ("Pending", "the API server asked to wait")


@pytest.mark.parametrize(
    ("outcome", "reason", "message"),
    [
        (Outcome.FAILED, "Exited", f"exit code 3; to run it again: {command('X')}"),
        (Outcome.CANCELLED, "Cancelled", f"exit code 3; to run it again: {command('X')}"),
    ],
)
def test_failed(outcome: Outcome, reason: str, message: str) -> None:
    """A failure has its phase, the condition Failed with its class, and a sentence with the remedy."""
    status = said(view(ended(outcome, note="exit code 3")), result=result(outcome))
    failed = condition(status, "Failed")
    assert (status["phase"], failed["status"], failed["reason"], failed["message"]) == (
        outcome,
        "True",
        reason,
        message,
    )
    assert status["message"] == message and not condition(status, "Complete")


def test_the_remedy_in_a_failure_is_a_command_of_the_plugin() -> None:
    """A driver writes the command of the ledger, which those who read the object cannot reach; the end of its log stays as it was."""
    message, log = "declare onRerun: Append for it and run `sparkonce rerun -f FILE`", "`sparkonce rerun -f FILE`"
    failed = result(Outcome.FAILED, failure=Failure(class_="Permanent", message=message, log_tail=log))
    failure = said(view(ended(Outcome.FAILED, note=message)), result=failed)["result"]["failure"]
    assert (
        failure["message"]
        == "declare onRerun: Append for it and run `kubectl sparkonce rerun -n etl -f FILE --reason TEXT`"
    )
    assert failure["logTail"] == log


def test_held() -> None:
    """A held job names its reason and the command by which a person decides."""
    status = said(view(held(HeldReason.UNKNOWN)))
    reason = condition(status, "Held")
    assert (status["phase"], reason["status"], reason["reason"]) == ("Held", "True", "Unknown")
    assert (
        "nobody can tell" in reason["message"]
        and "kubectl sparkonce resolve -n etl load/may@1 --reason TEXT" in status["message"]
    )


def test_a_follower_follows_and_then_has_the_result_replayed() -> None:
    """A follower has the leader's phase while it runs, and its result, as replayed, when it has ended."""
    runs = said(view(record(objects=BOTH)), obj("Y"))
    assert (runs["role"], runs["phase"], "replayed" in runs) == ("Follower", "Running", False)
    done = said(view(ended(objects=BOTH)), obj("Y"), result=result())
    assert (done["role"], done["phase"], done["replayed"]) == ("Follower", "Succeeded", True)
    late = said(view(ended(objects=BOTH)), obj("Z"), result=result())
    assert (late["role"], late["phase"], late["replayed"], late["result"]) == (
        "Replay",
        "Succeeded",
        True,
        done["result"],
    )


def test_nobody_follows_before_the_record_names_it() -> None:
    """A duplicate that the record does not name yet has no role, no phase of the job, and nothing that counts as an answer."""
    status = said(view(record()), obj("Y"))
    assert status["phase"] == "Pending" and not {"role", "fingerprint", "ledgerRevision", "requestNumber"} & set(status)
    assert condition(status, "Reserved")["reason"] == "Attaches"


def test_mismatch_names_the_fields() -> None:
    """A mismatch names the first fields, lists all of them, and says what to do; it is not Failed."""
    paths = [f"spec.template.spec.field{n}" for n in range(7)]
    status = said(view(record()), obj("Y", "B"), mismatch_paths=paths)
    assert (status["phase"], status["mismatch"], status["fingerprint"]) == ("Mismatch", paths, "B")
    assert "field4 and 2 more" in status["message"] and "field5" not in status["message"]
    assert "another revision or key" in status["message"] and holds(status, "Mismatch")
    assert not {"role", "attempt", "owner", "result"} & set(status) and not condition(status, "Failed")
    again = said(view(record(revision=11)), obj("Y", "B", status=status))
    assert (again["mismatch"], again["message"]) == (paths, status["message"]), "not looked at again, and kept"


def test_a_refused_duplicate_is_answered_and_never_failed() -> None:
    """A refused duplicate has a condition but is not Failed, which would mean that no effect exists: one may."""
    status = said(view(record()), obj("Y"), leader=REJECT)
    assert (status["phase"], status["fingerprint"], "role" in status) == ("Pending", "A", False)
    reserved = condition(status, "Reserved")
    assert (reserved["status"], reserved["reason"], bool(condition(status, "Failed"))) == (
        "False",
        "DuplicateRejected",
        False,
    )


def test_a_superseder_that_waits_is_not_answered() -> None:
    """A status written while a superseder waits does not answer it, so that it still gets its turn."""
    fresh = told(obj("Y", "B", policy=SUPERSEDE), view(record()))
    assert not asked(fresh, None).known and "ends first" in fresh.status["message"]
    leader = told(obj(), view(record()))
    waits = told(edited(leader, "B", policy=SUPERSEDE), view(record()))
    assert asked(waits, record()).number == 2 and not asked(waits, record()).known
    kept = {name: waits.status[name] for name in ("fingerprint", "requestNumber", "ledgerRevision", "generation")}
    assert kept == {"fingerprint": "A", "requestNumber": 1, "ledgerRevision": 10, "generation": 1}
    assert (waits.status["observedGeneration"], "role" in waits.status) == (2, False)


def test_superseded_while_it_ran() -> None:
    """The status of an object whose run was replaced by another job makes no statement about effects: it is neither Failed nor
    Cancelled."""
    status = said(view(B_RUNS), told(obj(), view(record())))
    assert (status["phase"], condition(status, "Mismatch")["reason"]) == ("Mismatch", "Superseded")
    assert not condition(status, "Failed") and "role" not in status
    cancelled = told(obj(), view(ended(Outcome.CANCELLED)))
    status = said(view(B_RUNS), cancelled)
    assert (status["phase"], condition(status, "Failed")["reason"]) == ("Mismatch", "Cancelled"), (
        "no result, and not taken back"
    )


def test_superseded_after_it_ended() -> None:
    """A finished object stays finished when another job takes the key: Complete is not taken back, its result stays."""
    done = told(obj(), view(ended()), result=result())
    status = said(view(B_RUNS), done)
    assert (status["phase"], status["generation"], status["result"]) == ("Succeeded", 1, done.status["result"])
    assert holds(status, "Complete") and condition(status, "Mismatch")["reason"] == "Superseded"
    assert status["ledgerRevision"] == 30


def test_superseded_is_terminal() -> None:
    """A superseded object stays so when the key returns to its job; only an edit is a new request."""
    gone = told(told(obj(), view(record())), view(B_RUNS))
    back = view(
        record(
            generation=3, revision=40, openers=(opened("X"), opened("Y", 1, "B"), opened("Z")), objects=(entry("Z"),)
        )
    )
    assert said(back, gone) == gone.status
    assert said(back, edited(gone, "B", policy=SUPERSEDE))["phase"] == "Pending"


def test_expired() -> None:
    """An answered object whose record is gone is Expired, keeps its other fields, and is not rewritten when the store's revision rises."""
    done = told(obj(), view(ended()), result=result())
    gone = told(done, view(None, floor=1, revision=200))
    status = gone.status
    assert (status["phase"], status["ledgerRevision"], status["generation"], "role" in status) == (
        "Expired",
        200,
        1,
        False,
    )
    assert holds(status, "Complete") and status["result"] == done.status["result"]
    assert condition(status, "Reserved")["reason"] == "Expired" and asked(gone, None).answered
    assert said(view(None, floor=1, revision=300), gone)["ledgerRevision"] == 200
    assert said(view(None, floor=1, revision=3, epoch=2), gone)["ledgerRevision"] == 3, "another epoch counts anew"


GONE, PRESENT = {"orders": Evidence.GONE}, {"orders": Evidence.PRESENT}


def test_a_result_that_is_gone_when_it_is_first_told() -> None:
    """A new object whose output is gone is not Complete: a pipeline would read a missing table."""
    late = told(obj("Z"), view(ended()), result=result(), evidence=GONE)
    status = late.status
    assert (status["phase"], holds(status, "Complete"), holds(status, "ResultGone")) == ("Succeeded", False, True)
    assert "orders is gone" in status["message"]
    assert status["message"].endswith(f"; nothing runs until `{command('Z')}`")
    unprobed = told(late, view(ended()))
    assert not holds(unprobed.status, "Complete") and holds(unprobed.status, "ResultGone"), (
        "not looked at: as found last"
    )
    unchecked = told(unprobed, view(ended()), evidence={"orders": Evidence.NOT_CHECKED})
    assert holds(unchecked.status, "ResultGone"), "out of reach: as found last"
    repaired = told(unprobed, view(ended()), result=result(), evidence=PRESENT)
    assert holds(repaired.status, "Complete") and condition(repaired.status, "ResultGone")["status"] == "False"


def test_a_result_that_goes_later_was_complete() -> None:
    """Once true, Complete stays true; that the output is gone now is an additional condition."""
    done = told(obj(), view(ended()), result=result(), evidence=PRESENT)
    status = said(view(ended()), done, result=result(), evidence={"orders": Evidence.REPLACED})
    assert holds(status, "Complete") and condition(status, "ResultGone")["reason"] == "Replaced"
    unchecked = said(view(ended()), done, result=result(), evidence={"orders": Evidence.NOT_CHECKED})
    assert not condition(unchecked, "ResultGone")


CHANGED: dict[str, Found] = {
    "orders": Probed(
        verdict=Evidence.CHANGED,
        why="rows of it were removed or rewritten by version 7 (DELETE)",
        changes=(Change(commit="version 7", operation="DELETE"),),
    )
}
WITHHOLDS = Policy(declared=True, on_result_changed=OnResultChanged.GONE)


def test_a_result_that_others_changed_is_told_with_their_commits() -> None:
    """A new object gets the result: it is Complete and Ready, and a condition and the message name the commits. Without another look they
    stay; a look that finds every row takes them back."""
    late = told(obj("Z"), view(ended()), result=result(), evidence=CHANGED)
    status = late.status
    assert (status["phase"], holds(status, "Complete"), holds(status, "Ready")) == ("Succeeded", True, True)
    assert condition(status, "ResultChanged")["reason"] == "Changed"
    assert "version 7 (DELETE)" in condition(status, "ResultChanged")["message"]
    assert status["message"] == condition(status, "ResultChanged")["message"]
    assert status["message"].endswith(f"; its rows are written anew by `{command('Z')}`")
    assert not condition(status, "ResultGone")
    unprobed = told(late, view(ended()))
    assert holds(unprobed.status, "ResultChanged"), "not looked at: as found last"
    restored = told(unprobed, view(ended()), result=result(), evidence=PRESENT)
    assert condition(restored.status, "ResultChanged")["status"] == "False"
    assert "version 7" not in restored.status["message"]


def test_a_result_that_its_series_superseded_is_told_with_the_later_key() -> None:
    """The same condition with a reason of its own; the object stays Complete and Ready, also where it withholds changed results."""
    why = "its rows were replaced by version 8 (WRITE, key bbbb, position 2024-05-02 of the series daily)"
    found: dict[str, Found] = {"orders": Probed(verdict=Evidence.SUPERSEDED, why=why, remedy="declare Allow")}
    for policy in (Policy(declared=True), WITHHOLDS):
        status = told(obj("Z", policy=policy), view(ended()), result=result(), evidence=found).status
        assert (holds(status, "Complete"), holds(status, "Ready")) == (True, True)
        assert condition(status, "ResultChanged")["reason"] == "Superseded"
        assert "key bbbb, position 2024-05-02" in status["message"]


def test_a_skipped_result_says_which_position_barred_it() -> None:
    """In the message, which `kubectl get` shows, in the conditions' reason, and in the output itself."""
    done = result()
    skipped = done.outputs[0].model_copy(update={"rows": 0, "skipped": "2024-05-02"})
    said_so = "orders: skipped, nothing was written, because position 2024-05-02 of the series daily had been committed"
    each = done.model_copy(update={"outputs": (skipped,), "evidence": said_so})
    status = told(obj("Z"), view(ended()), result=each, evidence=PRESENT).status
    assert (status["phase"], holds(status, "Complete"), holds(status, "Ready")) == ("Succeeded", True, True)
    assert {condition(status, kind)["reason"] for kind in ("Complete", "Ready")} == {"Skipped"}
    assert status["message"].endswith(said_so)
    assert status["result"]["outputs"][0]["skipped"] == "2024-05-02"


def test_a_result_that_others_changed_is_withheld_where_the_object_says_so() -> None:
    """`onResultChanged: Gone`: not Complete, and ResultGone names the commits."""
    status = told(obj("Z", policy=WITHHOLDS), view(ended()), result=result(), evidence=CHANGED).status
    assert (holds(status, "Complete"), holds(status, "Stalled")) == (False, True)
    assert condition(status, "ResultGone")["reason"] == "Changed"
    assert "version 7 (DELETE)" in condition(status, "ResultGone")["message"]
    assert not condition(status, "ResultChanged")


def test_a_rerun_that_the_output_would_refuse_is_not_advised() -> None:
    """The output's remedy takes the place of the command."""
    found: dict[str, Found] = {
        "orders": Probed(verdict=Evidence.GONE, why="its slot is gone", remedy="restore it from a backup")
    }
    status = told(obj("Z"), view(ended()), result=result(), evidence=found).status
    assert status["message"].endswith(
        "orders is gone (its slot is gone); nothing runs until a person acts (orders: restore it from a backup)"
    )


FOLLOWED = told(obj("Y"), view(record(objects=BOTH)))
FAILED, CANCELLED = ended(Outcome.FAILED, objects=BOTH), ended(Outcome.CANCELLED, objects=BOTH)
AGAINS: list[tuple[str, ObjectView, Record, dict[str, Any]]] = [
    ("failed", obj(), FAILED, {"result": result(Outcome.FAILED)}),
    ("failed, a follower", FOLLOWED, FAILED, {"result": result(Outcome.FAILED)}),
    ("failed, replayed", obj("Z"), FAILED, {"result": result(Outcome.FAILED)}),
    ("cancelled", obj(), CANCELLED, {"result": result(Outcome.CANCELLED)}),
    ("cancelled, a follower", FOLLOWED, CANCELLED, {"result": result(Outcome.CANCELLED)}),
    ("gone", obj("Z"), ended(), {"result": result(), "evidence": GONE}),
    ("gone later", told(obj(), view(ended()), result=result()), ended(), {"result": result(), "evidence": GONE}),
    ("changed", obj("Z"), ended(), {"result": result(), "evidence": CHANGED}),
]
"""States whose message names the annotation."""


@pytest.mark.parametrize(("of", "recorded", "known"), [row[1:] for row in AGAINS], ids=[row[0] for row in AGAINS])
def test_the_command_in_a_message_opens_the_next_generation(
    of: ObjectView, recorded: Record, known: dict[str, Any]
) -> None:
    """The annotation that the message prints is carried out in each state that prints it. Without it nothing is opened."""
    one = told(of, view(recorded), **known)
    words = shlex.split(one.status["message"].partition("kubectl annotate ")[2].partition("`")[0])
    annotation, _, text = words.pop().partition("=")
    assert (words, annotation) == (["--overwrite", "idempotentjobs", "-n", "etl", one.ref.name], ANNOTATION)
    assert plan(view(recorded), [one]).opening is None
    opening = plan(view(recorded), [replace(one, annotation=text)]).opening
    assert opening is not None and (opening.uid, opening.rerun, opening.reserve) == (one.uid, "REASON", False)


def test_a_job_that_followed_an_application_is_run_again_by_the_plugin() -> None:
    """The annotation would follow the application again, so the message names the command that launches the recorded job."""
    status = said(view(ended(Outcome.FAILED, note="exit code 3")), obj(bound=True), result=result(Outcome.FAILED))
    assert status["message"] == "exit code 3; to run it again: kubectl sparkonce rerun load/may@1 -n etl"


def test_the_condition_of_a_changed_result_waits_for_every_operator() -> None:
    """An operator of an earlier version would remove it at each sweep, so it is written only once there is none."""
    for version, listed in ((2, False), (STATUS_VERSION, True)):
        status = project(view(ended()), obj("Z"), now_text=NOW, version=version, result=result(), evidence=CHANGED)
        assert bool(condition(status, "ResultChanged")) == listed
        assert holds(status, "Complete")


def test_a_rerun_takes_complete_back() -> None:
    """A rerun makes Complete False while it runs, with the time of the change."""
    done = told(obj(), view(ended()), result=result())
    rerun = record(generation=2, revision=30)
    status = project(view(rerun), done, now_text=LATER)
    complete = condition(status, "Complete")
    assert (status["phase"], complete["status"], complete["lastTransitionTime"]) == ("Running", "False", LATER)
    assert condition(status, "Reserved")["lastTransitionTime"] == NOW, "it was reserved all the time"
    assert "result" not in status and "replayed" not in status


def test_what_was_not_looked_at_stays() -> None:
    """A process that did not read result and progress keeps those of the stored status, but only for the same run."""
    runs = told(obj(), view(record()), progress={"stages": 4})
    assert said(view(record(revision=11)), runs)["progress"] == {"stages": 4}
    assert "progress" not in said(view(record(attempt=2, revision=11)), runs)
    assert "progress" not in said(view(record(revision=11)), runs, progress={})
    done = told(runs, view(ended()), result=result())
    assert said(view(ended()), done) == done.status
    assert "result" not in said(view(ended(generation=2)), done), "of another generation"
    failed = told(runs, view(ended(Outcome.FAILED, note="x")), result=result(Outcome.FAILED))
    assert said(view(ended(Outcome.FAILED, note="x")), failed) == failed.status


def test_a_template_that_contradicts_its_attempt_is_an_invalid_spec() -> None:
    """An object that may not open is Failed with the sentence, which is no answer; one that was answered keeps its answer."""
    sentence = "spec.template.spec.sparkConf: must be absent"
    fresh = said(view(None), obj(contradiction=sentence))
    failed = condition(fresh, "Failed")
    assert (fresh["phase"], failed["reason"], failed["message"]) == ("Failed", "InvalidSpec", sentence)
    assert "ledgerRevision" not in fresh
    done = told(obj(), view(ended()), result=result())
    assert said(view(ended()), replace(done, contradiction=sentence), result=result()) == done.status


def test_an_invalid_spec_is_failed_until_it_is_edited() -> None:
    """A spec that never reached the ledger is Failed with the field, which is no answer. The run from before the edit continues, but is not
    shown."""
    trouble = Trouble("InvalidSpec", "spec.outputs[0].name is required", final=True)
    fresh = said(None, obj(spec=""), trouble=trouble)
    assert (fresh["phase"], condition(fresh, "Failed")["reason"], "ledgerRevision" in fresh) == (
        "Failed",
        "InvalidSpec",
        False,
    )
    assert condition(fresh, "Failed")["message"] == fresh["message"] == trouble.message
    running = edited(told(obj(), view(record())), "")
    spoilt = said(view(record()), running, trouble=trouble)
    assert (spoilt["phase"], spoilt["message"], bool(condition(spoilt, "Failed"))) == (
        "Pending",
        trouble.message,
        False,
    )
    assert (spoilt["generation"], spoilt["fingerprint"]) == (1, "A"), "what it was answered is still known"
    assert said(view(record()), edited(obj(status=spoilt), "A"))["phase"] == "Running"


@pytest.mark.parametrize(("unknown", "status"), [(False, "False"), (True, "Unknown")])
def test_trouble_before_anything_is_reserved(unknown: bool, status: str) -> None:
    """With a full realm nothing is reserved; while the ledger is silent this is unknown."""
    got = said(None, trouble=Trouble("StoreFull", "realm etl is full", unknown=unknown))
    assert (got["phase"], condition(got, "Reserved")["status"], got["key"]) == ("Pending", status, "load/may@1")


def test_a_ledger_that_cannot_be_read_changes_no_answer() -> None:
    """An answered object keeps its status while the ledger does not answer."""
    running = told(obj(), view(record()))
    assert said(None, running, trouble=Trouble("StoreUnavailable", "no answer", unknown=True)) == running.status


def test_an_edit_that_changes_nothing_is_observed() -> None:
    """An edit of an ignored field changes observedGeneration, in the status and in its conditions, and nothing else."""
    running = told(obj(), view(record()))
    status = said(view(record()), edited(running))
    assert (status["observedGeneration"], condition(status, "Reserved")["observedGeneration"]) == (2, 2)
    assert {**status, "observedGeneration": 1, "conditions": 0} == {**running.status, "conditions": 0}


SUSPENDS = replace(DEFAULT, suspend=True)
INVALID = Trouble("InvalidSpec", "spec.outputs[0].name is required", final=True)
REWOUND = Trouble("StoreRewound", "the ledger is older than this status", unknown=True)
GONE_KEY = view(None, floor=1, revision=200)
DONE = told(obj(), view(ended()), result=result())
STANDARD: list[tuple[str, dict[str, Any], str, str]] = [
    ("granted", said(view(record(**NOT_SEEN))), "Reconciling", "Pending"),
    ("suspended", said(view(record(**NOT_SEEN)), leader=SUSPENDS), "Reconciling", "Suspended"),
    ("suspended, and stopped", said(view(record(**NOT_SEEN, stop_wanted=WISH)), leader=SUSPENDS), "Reconciling", "Pending"),
    ("running", said(view(record())), "Reconciling", "Running"),
    ("lost", said(view(record(settling=LOST))), "Reconciling", "Recovering"),
    ("in trouble", said(view(record()), trouble=Trouble("Trouble", "no answer")), "Reconciling", "Running"),
    ("follower", said(view(record(objects=BOTH)), obj("Y")), "Reconciling", "Running"),
    ("not attached yet", said(view(record()), obj("Y")), "Reconciling", "Attaches"),
    ("refused duplicate", said(view(record()), obj("Y"), leader=REJECT), "Reconciling", "DuplicateRejected"),
    ("superseder", said(view(record()), obj("Y", "B", policy=SUPERSEDE)), "Reconciling", "Supersedes"),
    ("full realm", said(None, trouble=Trouble("RealmFull", "full")), "Reconciling", "RealmFull"),
    ("rewound store, new object", said(None, trouble=REWOUND), "Reconciling", "StoreRewound"),
    ("rewound store, running", said(None, told(obj(), view(record())), trouble=REWOUND), "Reconciling", "Running"),
    ("rewound store, ended", said(None, DONE, trouble=REWOUND), "Ready", "Committed"),
    ("succeeded", dict(DONE.status), "Ready", "Committed"),
    ("replay", said(view(ended(objects=BOTH)), obj("Z"), result=result()), "Ready", "Committed"),
    ("gone before it was reported", said(view(ended()), result=result(), evidence={"orders": Evidence.GONE}), "Stalled", "ResultGone"),
    ("gone after it was reported", said(view(ended()), DONE, result=result(), evidence={"orders": Evidence.GONE}), "Ready", "Committed"),
    ("failed", said(view(ended(Outcome.FAILED)), result=result(Outcome.FAILED)), "Stalled", "Failed"),
    ("cancelled", said(view(ended(Outcome.CANCELLED)), result=result(Outcome.CANCELLED)), "Stalled", "Cancelled"),
    ("held", said(view(held(HeldReason.UNKNOWN))), "Stalled", "Held"),
    ("mismatch", said(view(record()), obj("Y", "B")), "Stalled", "Mismatch"),
    ("superseded while it ran", said(view(B_RUNS), told(obj(), view(record()))), "Stalled", "Mismatch"),
    ("superseded after it ended", said(view(B_RUNS), DONE), "Ready", "Committed"),
    ("expired with its result", said(GONE_KEY, DONE), "Ready", "Committed"),
    ("expired without one", said(GONE_KEY, told(obj(), view(ended(Outcome.FAILED)))), "Stalled", "Expired"),
    ("invalid", said(None, obj(spec=""), trouble=INVALID), "Stalled", "InvalidSpec"),
    ("invalid after an edit", said(view(record()), edited(DONE, ""), trouble=INVALID), "Stalled", "InvalidSpec"),
    ("rerun", said(view(record(generation=2, revision=30)), DONE), "Reconciling", "Running"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "kind", "reason"), [row[1:] for row in STANDARD], ids=[row[0] for row in STANDARD])
def test_standard_conditions(status: dict[str, Any], kind: str, reason: str) -> None:
    """Exactly one of Ready, Reconciling and Stalled is True, with the row's reason and the status' message; Ready is Unknown while the job
    may still get its result, and False once it needs a person."""
    found = {each: condition(status, each) for each in ("Ready", "Reconciling", "Stalled")}
    assert [each for each, one in found.items() if one["status"] == "True"] == [kind]
    assert (found[kind]["reason"], found[kind]["message"]) == (reason, status["message"])
    ready = found["Ready"]
    assert ready["status"] == {"Ready": "True", "Reconciling": "Unknown", "Stalled": "False"}[kind]
    assert (ready["reason"], ready["message"]) == (reason, status["message"])


def test_an_answer_that_stays_is_one_to_the_newest_edit() -> None:
    """After an edit of an ignored field, the conditions of a superseded object name the edit and keep their times. A status written by an
    earlier version gets the standard conditions."""
    gone = told(told(obj(), view(record())), view(B_RUNS))
    status = said(view(B_RUNS), edited(gone))
    assert {each.pop("observedGeneration") for each in status["conditions"]} == {2}
    assert {each.pop("observedGeneration") for each in gone.status["conditions"]} == {1}
    assert status == {**gone.status, "observedGeneration": 2}
    older = replace(gone, status=project(view(B_RUNS), told(obj(), view(record())), now_text=NOW, version=0))
    assert not condition(older.status, "Stalled")
    assert condition(said(view(B_RUNS), older), "Stalled")["reason"] == "Mismatch"


@pytest.mark.parametrize("at", [view(record()), view(ended()), view(held()), view(B_RUNS)])
def test_beside_a_process_that_writes_older_statuses(at: View) -> None:
    """Beside a process of an earlier version, a status has neither the standard conditions, which that process would remove, nor the
    message that it would not write for a success, whether or not the stored status has them."""
    for of in (obj(), told(obj(), view(record()))):
        status = project(at, of, now_text=NOW, version=0)
        assert not {each["type"] for each in status["conditions"]} & {"Ready", "Reconciling", "Stalled"}
        assert (status["phase"] == "Succeeded") == ("message" not in status)


def test_a_status_that_was_never_written() -> None:
    """The initial status that the API server gives a new object counts as none, so a process that cannot read the record may report
    that."""
    body = {"metadata": {"uid": "X", "namespace": "etl", "name": "job-X"}, "status": {"observedGeneration": -1}}
    assert ObjectView.of(body, None).status == {}
    assert ObjectView.of({**body, "status": {"observedGeneration": 1}}, None).status == {"observedGeneration": 1}


def test_texts_are_sentences_of_bounded_length() -> None:
    """Any message of a library becomes one short line; an unknown class of failure becomes Other."""
    noisy = ended(Outcome.FAILED, note="first\nsecond   third " + "x" * 5000)
    bad = result(Outcome.FAILED)
    assert bad.failure is not None
    bad = bad.model_copy(update={"failure": bad.failure.model_copy(update={"class_": "no reason!"})})
    status = said(view(noisy), result=bad)
    assert status["message"].startswith("first second third x") and len(status["message"]) == 1024
    assert condition(status, "Failed")["reason"] == "Other"


def test_an_upgrade_of_the_fingerprint_is_no_reason_to_write() -> None:
    """A status keeps the fingerprint under which it was answered, as long as it is one of the object's fingerprints."""
    running = told(obj(), view(record()))
    upgraded = replace(running, fingerprints={1: "A", 2: "A2"})
    newer = record(fingerprint="A2", fingerprint_version=2)
    assert said(view(newer), upgraded) == running.status
    assert said(view(newer), obj(fingerprints={1: "A", 2: "A2"}))["fingerprint"] == "A2"


def test_a_status_names_the_recorded_fingerprint() -> None:
    """The status names the fingerprint, of whichever version, by which the object equals the recorded job, so that it stays valid after an
    edit of ignored fields."""
    by_a_newer = obj(fingerprints={1: "A with a run id", 2: "A"})
    status = said(view(record()), by_a_newer)
    assert status["fingerprint"] == "A"
    edited = replace(by_a_newer, fingerprints={1: "A with another run id", 2: "A"})
    assert edited.asks(status["fingerprint"])


@pytest.mark.parametrize("of", [record(), ended(), held(), record(fingerprint="B", openers=(opened("Y", 1, "B"),))])
def test_a_heartbeat_is_not_in_a_status(of: Record) -> None:
    """A status depends on record, claim and object alone, not on the store's revision, which every heartbeat of every key raises."""
    assert said(view(of, revision=100)) == said(view(of, revision=999))


def test_fields_of_requests_wait_for_every_operator() -> None:
    """An operator of an earlier version would remove these fields at each sweep, so they are written only once there is none."""
    reran = ended(openers=(opened("X"), Opener(uid="X", number=2, fingerprint="A", rerun=digest("again"))))
    for version, found in ((1, None), (STATUS_VERSION, "again")):
        status = project(view(reran), obj(annotation="again"), now_text=NOW, version=version)
        assert status.get("rerun") == found
        assert condition(status, "Ready")
    for version, policy in ((1, None), (STATUS_VERSION, "Reject")):
        status = project(view(record()), obj("Y", "B"), now_text=NOW, version=version)
        assert (status["phase"], status.get("onMismatch")) == ("Mismatch", policy)


def test_the_text_outlives_its_annotation_and_its_record() -> None:
    """A text that has run is still known when the annotation is removed and set again, or after the record was forgotten."""
    reran = ended(openers=(opened("X"), Opener(uid="X", number=2, fingerprint="A", rerun=digest("again"))))
    seen = told(obj(annotation="again"), view(reran))
    assert told(replace(seen, annotation=None), view(ended())).status["rerun"] == "again"
    assert told(seen, view(None, floor=1)).status["rerun"] == "again"


def test_a_refused_annotation_is_said_first() -> None:
    """It comes first in the message of every phase, since a long message is cut at its end."""
    for at in (view(record()), view(ended()), view(held())):
        message = project(at, obj(annotation="a\nb"), now_text=NOW)["message"]
        assert message.startswith("the annotation sparkonce.dev/rerun is refused: it has the control character U+000A")


class Written:
    """The objects of an API server, as far as a status writer needs them."""

    def __init__(self, one: ObjectView) -> None:
        self.statuses: list[Json | None] = []
        annotations = {ANNOTATION: one.annotation} if one.annotation else {}
        self._body = {
            "metadata": {"uid": one.uid, "generation": 1, "annotations": annotations},
            "status": dict(one.status),
        }

    async def write_status(self, _: ObjectRef, make: Callable[[Json], Json | None]) -> None:
        self.statuses.append(make(self._body))

    def emit(self, *_: object) -> None:
        raise AssertionError("a wait for a slot is no event")


@pytest.mark.parametrize("before", [None, "cancelled", "annotated"])
def test_a_wait_for_a_slot_is_told_for_a_further_generation_too(before: str | None) -> None:
    """Of a new key, of one whose last generation was cancelled, and of a finished object that is annotated to run again."""
    seen = view(None)
    one = obj("new")
    if before == "cancelled":
        seen = view(ended(Outcome.CANCELLED))
    elif before == "annotated":
        seen = view(ended())
        one = replace(told(obj("X"), seen, result=result()), annotation="the source was corrected")
    objects: Any = Written(one)
    writer = JobStatusWriter(objects=objects, meter=NoMeter())
    todo = plan(seen, [one])
    assert todo.opening is not None
    desired: Any = SimpleNamespace(address=record().address)
    for _ in range(2):
        writer.waits_for_slot(desired.address)
        asyncio.run(writer.publish(KeyReading(view=seen, plan=todo), [(one, desired)]))
    [said, *_] = objects.statuses
    assert (said["phase"], said["message"]) == ("Pending", NO_SLOT)
