"""`asked`, `place` and `plan`: the relation of each object of a key to the key's record, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.key_objects import (
    DEFAULT,
    REJECT,
    RERUN,
    SUPERSEDE,
    edited,
    ended,
    entry,
    held,
    obj,
    opened,
    record,
    told,
    view,
)
from harness.jobs import job
from harness.manifests import document
from sparkonce.attempt.decide import Policy
from sparkonce.attempt.rerun import digest
from sparkonce.controller.desired import Desired
from sparkonce.controller.objects import ObjectView
from sparkonce.controller.plan import LatestRequest, Opening, Relation, asked, leader_of, place, plan
from sparkonce.errors import RecordTooNew
from sparkonce.model.identity import fingerprint
from sparkonce.model.record import (
    MOST_OBJECTS,
    Bound,
    HeldReason,
    NoEffect,
    Opener,
    Outcome,
    Record,
    Settling,
    StopWanted,
    Why,
)
from sparkonce.model.spec import IdempotentJob, OnDelete, OnMismatch
from sparkonce.model.validation import InvalidJob
from sparkonce.store.protocol import View

STATUS = {"ledgerRevision": 5, "epoch": 1, "fingerprint": "A", "requestNumber": 3}
BOTH = (entry("X"), entry("Y"))
CROWD = (entry("X"), *(entry(f"F{number}") for number in range(1, MOST_OBJECTS)))
NEW_Y = obj("Y")
ANSWERED_X = told(obj(), view(record()))
REFUSES: dict[str, Any] = {"contradiction": "spec.template.spec.sparkConf[...]: must be absent"}
"""For an object whose template contradicts the attempt."""


@pytest.mark.parametrize(
    ("status", "openers", "number", "known", "answered"),
    [
        pytest.param({}, (), 1, False, False, id="a new object"),
        pytest.param(STATUS, (), 3, True, True, id="its status names it"),
        pytest.param(STATUS | {"fingerprint": "B"}, (), 4, False, False, id="edited since"),
        pytest.param({"requestNumber": 3, "fingerprint": "A"}, (), 1, False, False, id="a status that is no answer"),
        pytest.param({}, (opened("X", 2),), 2, True, False, id="it opened, and its status was not written"),
        pytest.param({}, (opened("Y", 7),), 1, False, False, id="another one opened"),
        pytest.param(STATUS, (opened("X", 4, "B"),), 5, False, False, id="there and back, and the way there was heard"),
        pytest.param(STATUS, (opened("X", 1, "B"),), 3, True, True, id="an older request of another kind"),
        pytest.param(STATUS, (opened("X", 3, "B"),), 3, True, True, id="two under one number, answered"),
        pytest.param(
            STATUS | {"fingerprint": "B"}, (opened("X", 3),), 3, True, False, id="two under one number, opened"
        ),
        pytest.param({}, (Opener(nonce="rerun"),), 1, False, False, id="a command opened"),
    ],
)
def test_what_it_asks_now(
    status: dict[str, Any], openers: tuple[Opener, ...], number: int, known: bool, answered: bool
) -> None:
    """A request's number is one above the newest known request of its object, unless it is that request."""
    got = asked(obj(status=status), record(openers=openers))
    assert got == LatestRequest(number, "A", known=known, answered=answered)


def test_an_answer_outlives_the_version_of_its_fingerprint() -> None:
    """A request answered under an older version of the fingerprint stays answered: an upgrade runs nothing again."""
    upgraded = obj(fingerprints={1: "A", 2: "A2"}, status=STATUS)
    assert asked(upgraded, None) == LatestRequest(3, "A2", known=True, answered=True)
    assert place(view(None, floor=1), upgraded).relation is Relation.EXPIRED


A_AFTER_B = ended(generation=2, fingerprint="B", openers=(opened("X"), opened("Y", 1, "B")), objects=(entry("Y"),))
A_AFTER_B_AGAIN = ended(generation=3, openers=(opened("X"), opened("Y", 1, "B"), opened("X", 2)), objects=(entry("X"),))
SUPERSEDED_X = replace(told(told(obj(), view(ended())), view(A_AFTER_B)), policy=SUPERSEDE)
"""It had onMismatch: Reject when its status said that another job took its key."""
ANNOTATED = obj(annotation="again")
RERUN_X = (opened("X"), Opener(uid="X", number=2, fingerprint="A", rerun=digest("again")))
ANNOTATED_SUPERSEDED_X = replace(SUPERSEDED_X, policy=DEFAULT, annotation="again")
A_RERAN = ended(generation=3, openers=(*A_AFTER_B.openers, RERUN_X[1]), objects=(entry("X"),))
CANCELLING = Settling(attempt=1, why=Why.CANCELLED)
EDITED_X = edited(ANSWERED_X, "B")
PULLING: dict[str, Any] = {"phase": "Starting", "note": "its image cannot be pulled"}
"""For a record whose driver was never seen to run, and why."""
TABLE: list[tuple[str, Relation, View, ObjectView, Policy]] = [
    ("a new key", Relation.OPENS, view(None), obj(), DEFAULT),
    ("its record is gone", Relation.EXPIRED, view(None, floor=1), ANSWERED_X, DEFAULT),
    ("its record is gone, and it was edited", Relation.OPENS, view(None, floor=1), edited(ANSWERED_X, "B"), DEFAULT),
    ("not valid", Relation.INVALID, view(None), obj(spec=""), DEFAULT),
    ("not valid any more", Relation.INVALID, view(record()), edited(ANSWERED_X, ""), DEFAULT),
    ("contradictory, a new key", Relation.INVALID, view(None), obj(**REFUSES), DEFAULT),
    (
        "contradictory, its record is gone",
        Relation.EXPIRED,
        view(None, floor=1),
        replace(ANSWERED_X, **REFUSES),
        DEFAULT,
    ),
    ("contradictory, recorded before", Relation.LEADS, view(record()), replace(ANSWERED_X, **REFUSES), DEFAULT),
    ("contradictory, a duplicate", Relation.ATTACHES, view(record()), obj("Y", **REFUSES), DEFAULT),
    ("contradictory, a recorded result", Relation.REPLAYS, view(ended()), obj("Y", **REFUSES), DEFAULT),
    ("contradictory, after cancelling", Relation.INVALID, view(ended(Outcome.CANCELLED)), obj("Y", **REFUSES), DEFAULT),
    (
        "contradictory, a superseder",
        Relation.INVALID,
        view(record()),
        obj("Y", "B", policy=SUPERSEDE, **REFUSES),
        DEFAULT,
    ),
    ("being deleted, unheard", Relation.IGNORED, view(None), obj(deleting=True), DEFAULT),
    ("being deleted, heard", Relation.LEADS, view(record()), replace(ANSWERED_X, deleting=True), DEFAULT),
    ("the leader", Relation.LEADS, view(record()), obj(), REJECT),
    ("the leader, sent again", Relation.LEADS, view(record()), ANSWERED_X, REJECT),
    ("nobody owns it", Relation.LEADS, view(record(), owned=False), obj(), DEFAULT),
    ("a duplicate", Relation.ATTACHES, view(record()), NEW_Y, DEFAULT),
    ("a duplicate of an unowned run", Relation.ATTACHES, view(record(), owned=False), NEW_Y, DEFAULT),
    ("a duplicate, named", Relation.FOLLOWS, view(record(objects=BOTH)), NEW_Y, DEFAULT),
    ("a duplicate, named, and the leader rejects", Relation.FOLLOWS, view(record(objects=BOTH)), NEW_Y, REJECT),
    ("a duplicate, and the leader rejects", Relation.REFUSED, view(record()), NEW_Y, REJECT),
    ("its own wish to reject is not the leader's", Relation.ATTACHES, view(record()), obj("Y", policy=REJECT), DEFAULT),
    ("a duplicate of a full run", Relation.WAITS, view(record(objects=CROWD)), NEW_Y, DEFAULT),
    ("the leader of a full run", Relation.LEADS, view(record(objects=CROWD)), obj(), DEFAULT),
    ("a full run that has ended", Relation.REPLAYS, view(ended(objects=CROWD)), NEW_Y, DEFAULT),
    ("refused and still refused", Relation.REFUSED, view(record()), told(NEW_Y, view(record()), leader=REJECT), REJECT),
    ("refused, then ended", Relation.REPLAYS, view(ended()), told(NEW_Y, view(record()), leader=REJECT), REJECT),
    ("a duplicate of a held key", Relation.ATTACHES, view(held()), NEW_Y, DEFAULT),
    ("told a result, then rerun", Relation.ATTACHES, view(record(generation=2)), told(NEW_Y, view(ended())), REJECT),
    ("a duplicate while it is cancelled", Relation.WAITS, view(record(settling=CANCELLING)), NEW_Y, DEFAULT),
    (
        "a duplicate while somebody cancels",
        Relation.WAITS,
        view(record(stop_wanted=StopWanted(why=Why.CANCELLED, by="ann"))),
        NEW_Y,
        DEFAULT,
    ),
    (
        "a duplicate while it is lost",
        Relation.ATTACHES,
        view(record(settling=Settling(attempt=1, why=Why.LOST))),
        NEW_Y,
        DEFAULT,
    ),
    (
        "a follower while it is cancelled",
        Relation.FOLLOWS,
        view(record(settling=CANCELLING, objects=BOTH)),
        NEW_Y,
        DEFAULT,
    ),
    ("after success", Relation.REPLAYS, view(ended()), NEW_Y, DEFAULT),
    ("the leader after success", Relation.LEADS, view(ended()), ANSWERED_X, DEFAULT),
    ("after failure", Relation.REPLAYS, view(ended(Outcome.FAILED)), NEW_Y, DEFAULT),
    (
        "after failure, and it runs failures again",
        Relation.OPENS,
        view(ended(Outcome.FAILED)),
        obj("Y", policy=RERUN),
        DEFAULT,
    ),
    ("the failed one itself", Relation.LEADS, view(ended(Outcome.FAILED)), obj(policy=RERUN), DEFAULT),
    ("after cancelling", Relation.OPENS, view(ended(Outcome.CANCELLED)), NEW_Y, DEFAULT),
    ("the cancelled one itself", Relation.LEADS, view(ended(Outcome.CANCELLED)), ANSWERED_X, DEFAULT),
    ("another job", Relation.MISMATCH, view(record()), obj("Y", "B"), DEFAULT),
    ("another job, told so", Relation.MISMATCH, view(record()), told(obj("Y", "B"), view(record())), DEFAULT),
    ("another job, after cancelling", Relation.MISMATCH, view(ended(Outcome.CANCELLED)), obj("Y", "B"), DEFAULT),
    (
        "told a mismatch, then superseding",
        Relation.SUPERSEDES,
        view(record()),
        replace(told(obj("Y", "B"), view(record())), policy=SUPERSEDE),
        DEFAULT,
    ),
    (
        "told a mismatch by an earlier version, then superseding",
        Relation.MISMATCH,
        view(record()),
        replace(told(obj("Y", "B"), view(record()), version=1), policy=SUPERSEDE),
        DEFAULT,
    ),
    ("told a mismatch, unchanged", Relation.MISMATCH, view(record()), told(obj("Y", "B"), view(record())), DEFAULT),
    ("superseded, then superseding", Relation.OPENS, view(A_AFTER_B), SUPERSEDED_X, DEFAULT),
    ("superseded, and its request opened", Relation.LEADS, view(A_AFTER_B_AGAIN), SUPERSEDED_X, DEFAULT),
    ("annotated, a new key", Relation.OPENS, view(None), ANNOTATED, DEFAULT),
    (
        "annotated, its record is gone",
        Relation.EXPIRED,
        view(None, floor=1),
        replace(ANSWERED_X, annotation="again"),
        DEFAULT,
    ),
    ("annotated, it runs", Relation.LEADS, view(record()), ANNOTATED, DEFAULT),
    ("annotated, a duplicate of a run", Relation.ATTACHES, view(record()), obj("Y", annotation="again"), DEFAULT),
    ("annotated, another job runs", Relation.WAITS, view(record()), obj("Y", "B", annotation="again"), DEFAULT),
    (
        "annotated, another job runs, and it supersedes",
        Relation.SUPERSEDES,
        view(record()),
        obj("Y", "B", policy=SUPERSEDE, annotation="again"),
        DEFAULT,
    ),
    ("annotated, held", Relation.LEADS, view(held()), ANNOTATED, DEFAULT),
    ("annotated, held and settled", Relation.OPENS, view(held(HeldReason.PARTIAL)), ANNOTATED, DEFAULT),
    ("annotated, another job is held", Relation.WAITS, view(held()), obj("Y", "B", annotation="again"), DEFAULT),
    ("annotated, it succeeded", Relation.OPENS, view(ended()), ANNOTATED, DEFAULT),
    ("annotated, it failed", Relation.OPENS, view(ended(Outcome.FAILED)), ANNOTATED, DEFAULT),
    ("annotated, a mismatch of a result", Relation.OPENS, view(ended()), obj("Y", "B", annotation="again"), DEFAULT),
    (
        "annotated, superseded",
        Relation.OPENS,
        view(A_AFTER_B),
        replace(SUPERSEDED_X, policy=DEFAULT, annotation="again"),
        DEFAULT,
    ),
    ("superseded, annotated, and it opened", Relation.LEADS, view(A_RERAN), ANNOTATED_SUPERSEDED_X, DEFAULT),
    ("annotated and answered", Relation.LEADS, view(ended(openers=RERUN_X)), ANNOTATED, DEFAULT),
    (
        "annotated as another object was",
        Relation.REPLAYS,
        view(ended(openers=RERUN_X)),
        obj("Y", annotation="again"),
        DEFAULT,
    ),
    (
        "annotated, answered before its record was forgotten",
        Relation.LEADS,
        view(ended()),
        told(ANNOTATED, view(ended(openers=RERUN_X))),
        DEFAULT,
    ),
    ("annotated, being deleted", Relation.LEADS, view(ended()), replace(ANNOTATED, deleting=True), DEFAULT),
    ("annotated and contradictory", Relation.INVALID, view(ended()), replace(ANNOTATED, **REFUSES), DEFAULT),
    ("a superseder of a run", Relation.SUPERSEDES, view(record()), obj("Y", "B", policy=SUPERSEDE), DEFAULT),
    ("a superseder of a result", Relation.OPENS, view(ended()), obj("Y", "B", policy=SUPERSEDE), DEFAULT),
    ("a superseder of a held, unsettled run", Relation.WAITS, view(held()), obj("Y", "B", policy=SUPERSEDE), DEFAULT),
    (
        "a superseder of a held, settled run",
        Relation.OPENS,
        view(held(HeldReason.PARTIAL)),
        obj("Y", "B", policy=SUPERSEDE),
        DEFAULT,
    ),
    (
        "the leader, edited to supersede",
        Relation.SUPERSEDES,
        view(record()),
        edited(ANSWERED_X, "B", policy=SUPERSEDE),
        DEFAULT,
    ),
    ("the leader, edited while its driver waits", Relation.SUPERSEDES, view(record(**PULLING)), EDITED_X, DEFAULT),
    (
        "the leader, edited before its application",
        Relation.SUPERSEDES,
        view(record(phase=None, application=None)),
        EDITED_X,
        DEFAULT,
    ),
    (
        "the leader, edited while attempts fail that never ran",
        Relation.SUPERSEDES,
        view(record(attempt=2, phase=None, application=None, no_effect=NoEffect(generation=1, attempt=1))),
        EDITED_X,
        DEFAULT,
    ),
    (
        "the leader, edited while its driver may start",
        Relation.WAITS,
        view(record(phase="Starting")),
        EDITED_X,
        DEFAULT,
    ),
    ("the leader, edited while its driver runs", Relation.MISMATCH, view(record()), EDITED_X, DEFAULT),
    (
        "the leader, edited after an attempt that may have run",
        Relation.MISMATCH,
        view(record(attempt=2, **PULLING)),
        EDITED_X,
        DEFAULT,
    ),
    ("the leader, edited after a seal", Relation.MISMATCH, view(record(intent=1, **PULLING)), EDITED_X, DEFAULT),
    (
        "the leader, edited, and it never replaces",
        Relation.MISMATCH,
        view(record(**PULLING)),
        replace(EDITED_X, policy=Policy(declared=True, on_mismatch=OnMismatch.REJECT_ALWAYS)),
        DEFAULT,
    ),
    (
        "the leader, edited, and another object wants its job",
        Relation.MISMATCH,
        view(record(objects=BOTH, **PULLING)),
        EDITED_X,
        DEFAULT,
    ),
    ("another object, while a driver waits", Relation.MISMATCH, view(record(**PULLING)), obj("Y", "B"), DEFAULT),
    (
        "the leader, edited, which follows an application",
        Relation.MISMATCH,
        view(record(bound=Bound(application="nightly", uid="app-1"), **PULLING)),
        EDITED_X,
        DEFAULT,
    ),
    (
        "told a mismatch, and then its attempt is repeated",
        Relation.MISMATCH,
        view(record(**PULLING)),
        told(EDITED_X, view(record())),
        DEFAULT,
    ),
    (
        "the leader, edited, and its generation took no effect",
        Relation.OPENS,
        view(ended(Outcome.CANCELLED, no_effect=NoEffect(generation=1, attempt=1), **PULLING)),
        EDITED_X,
        DEFAULT,
    ),
    (
        "the leader, edited, and its driver had run",
        Relation.MISMATCH,
        view(ended(Outcome.CANCELLED)),
        EDITED_X,
        DEFAULT,
    ),
    ("the superseded leader", Relation.SUPERSEDED, view(A_AFTER_B), replace(ANSWERED_X, policy=SUPERSEDE), DEFAULT),
    ("the superseded leader, never told", Relation.SUPERSEDED, view(A_AFTER_B), obj(policy=SUPERSEDE), DEFAULT),
    ("a superseded follower", Relation.SUPERSEDED, view(A_AFTER_B), told(NEW_Y, view(record(objects=BOTH))), DEFAULT),
    (
        "superseded, and the key is back",
        Relation.SUPERSEDED,
        view(record(generation=3)),
        told(ANSWERED_X, view(A_AFTER_B)),
        DEFAULT,
    ),
    ("superseded, edited", Relation.MISMATCH, view(A_AFTER_B), edited(told(ANSWERED_X, view(A_AFTER_B)), "C"), DEFAULT),
]


@pytest.mark.parametrize(
    ("standing", "at", "which", "leader"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_place(standing: Relation, at: View, which: ObjectView, leader: Policy) -> None:
    """Each row's object has this relation to its key."""
    assert place(at, which, leader=leader).relation is standing


def test_what_contradicts_its_attempt_opens_and_ends_nothing() -> None:
    """A contradictory object neither opens a generation nor ends a running one, and another object of the key opens instead."""
    superseder = obj("Z", "B", policy=SUPERSEDE, **REFUSES)
    assert not plan(view(record()), [ANSWERED_X, superseder]).superseded
    both = plan(view(None), [obj("X", created="2026-01-01", **REFUSES), obj("Y", created="2026-01-02")])
    assert both.opening == Opening("Y", opened("Y"), reserve=True)
    assert both.of("X").why == REFUSES["contradiction"]


def test_an_object_knows_why_it_may_not_open() -> None:
    """The reason is computed from the object's spec as it is, with the field's path; an ordinary object has none."""
    forged = body()
    forged["spec"]["template"]["metadata"] = {"labels": {"sparkonce.dev/key": "x"}}
    assert "sparkonce.dev/key" in ObjectView.of(forged, Desired.of(forged, realm="etl")).contradiction
    assert ObjectView.of(body(), Desired.of(body(), realm="etl")).contradiction == ""


def test_a_status_that_claims_an_answer_opens_nothing() -> None:
    """A forged status may claim that the ledger answered this spec; the rules for new jobs still apply before it opens."""
    forged = body()
    forged["spec"]["template"]["spec"]["sparkConf"] = {"a=b": "x"}
    print_of_it = fingerprint(IdempotentJob.of({name: forged[name] for name in forged if name != "status"})).digest
    forged["status"] = {"fingerprint": print_of_it, "ledgerRevision": 1}
    wanted = Desired.of(forged, realm="etl")
    assert wanted.answered
    assert 'spec.template.spec.sparkConf["a=b"]' in ObjectView.of(forged, wanted).contradiction
    with pytest.raises(InvalidJob):
        Desired.of({**forged, "status": {}}, realm="etl")


def test_every_standing_has_a_case() -> None:
    """The table has a case for every relation."""
    assert {row[1] for row in TABLE} == set(Relation)


def test_a_record_of_an_unknown_version_is_not_compared() -> None:
    """A fingerprint version that was not computed is an error, never a mismatch and never a duplicate."""
    with pytest.raises(RecordTooNew, match=r"etl/job-X.*fingerprint version 2.*upgrade"):
        place(view(record(fingerprint_version=2)), obj())


def body(**metadata: Any) -> dict[str, Any]:
    """An object as the API server returns it; it has no outputs, whose places would have to exist."""
    known = {"uid": "u1", "generation": 3, "resourceVersion": "77", "creationTimestamp": "2026-11-21T10:00:00Z"}
    sent = document()
    spec = {name: value for name, value in sent["spec"].items() if name != "outputs"}
    return {**sent, "metadata": sent["metadata"] | known | metadata, "spec": spec, "status": STATUS}


def test_an_object_as_the_api_server_returns_it() -> None:
    """The parsed object has the name, edits, status and request of the object, and knows whether it is being deleted."""
    wanted = Desired.of(body(), realm="etl")
    got = ObjectView.of(body(), wanted, record=record())
    assert (str(got.ref), got.generation, got.resource_version) == (
        "u1/etl/flights-2013-01/2026-11-21T10:00:00Z",
        3,
        "77",
    )
    assert (got.created, got.deleting, got.status) == ("2026-11-21T10:00:00Z", False, STATUS)
    assert (got.key, got.key_hash, got.policy) == (wanted.key.text, wanted.key.key_hash, wanted.policy)
    assert got.fingerprint == wanted.fingerprint() and got.asks(wanted.fingerprint(1)) and not got.asks(None)
    assert ObjectView.of(body(deletionTimestamp="2026-11-21T11:00:00Z"), wanted).deleting
    assert ObjectView.of(body(), wanted).fingerprints == got.fingerprints, "also before there is a record"
    assert ObjectView.of(body(), None).fingerprints == {}, "its spec is not valid"
    assert not got.bound


def test_an_object_knows_whether_it_follows_an_application() -> None:
    """By its own `spec.bind`, whatever the record says."""
    follows = job("nightly", key="nightly", bind={"application": "nightly", "uid": "app-1"})
    follows["metadata"] |= {"namespace": "etl", "uid": "u1"}
    assert ObjectView.of(follows, Desired.of(follows, realm="etl"), record=record()).bound


def test_a_rule_that_came_later_does_not_refuse_what_was_answered() -> None:
    """An object whose spec would be refused today keeps its answer; a new object with that spec, or an edited one, is refused."""
    old = body()
    old["spec"]["template"]["spec"]["sparkConf"]["a=b"] = "x"
    with pytest.raises(InvalidJob, match="must not contain `=`"):
        Desired.of(old, realm="etl")
    answered = STATUS | {"fingerprint": fingerprint(IdempotentJob.of(old | {"status": {}})).digest}
    assert Desired.of(old | {"status": answered}, realm="etl").fingerprint() == answered["fingerprint"]
    with pytest.raises(InvalidJob):
        Desired.of(old | {"status": {name: answered[name] for name in ("fingerprint", "epoch")}}, realm="etl")
    old["spec"]["template"]["spec"]["arguments"] = ["edited"]
    with pytest.raises(InvalidJob):
        Desired.of(old | {"status": answered}, realm="etl")


def test_an_object_read_again_is_the_same_object_with_the_status_it_has_now() -> None:
    """An object read again has its new status; after an edit, or for another object under that name, nothing can be reused."""
    got = ObjectView.of(body(), Desired.of(body(), realm="etl"))
    now = got.reread(body(resourceVersion="78") | {"status": {"phase": "Held"}})
    assert now == replace(got, resource_version="78", status={"phase": "Held"})
    assert got.reread(body(generation=4)) is None and got.reread(body(uid="u2")) is None


# --- plan


def test_one_of_many_opens() -> None:
    """The oldest of the objects that may open does, whatever the order of the list; the others wait without an answer."""
    objects = [obj("Z", created="2026-01-03"), obj("X", created="2026-01-01"), obj("Y", created="2026-01-02")]
    for given in (objects, objects[::-1]):
        said = plan(view(None, floor=4), given)
        assert said.opening == Opening("X", opened("X"), reserve=True)
        assert [one.uid for one in said.placed] == [one.uid for one in given]
        assert (said.uids(Relation.OPENS), set(said.uids(Relation.WAITS))) == (("X",), {"Y", "Z"})


def test_objects_of_one_age_are_told_apart_by_their_uid() -> None:
    """Two processes that see the same objects choose the same opener, even among objects created in the same second."""
    twins = [obj("Y", created="2026-01-01"), obj("X", created="2026-01-01")]
    assert (
        plan(view(None), twins).opening
        == plan(view(None), twins[::-1]).opening
        == Opening("X", opened("X"), reserve=True)
    )


def test_who_ended_a_run_goes_before_who_repeats_it() -> None:
    """After a supersede has cancelled a run, the superseder opens the next one, not an older object that requests the old job."""
    older = obj("Y", created="2026-01-01")
    superseder = obj("Z", "B", policy=SUPERSEDE, created="2026-01-02")
    said = plan(view(ended(Outcome.CANCELLED)), [older, superseder])
    assert said.opening == Opening("Z", opened("Z", 1, "B"), reserve=False, supersedes=True)
    assert said.of("Y").relation is Relation.WAITS


def test_an_edited_object_opens_with_the_next_number() -> None:
    """The opener names object, number and fingerprint of the request, by which the store recognises it."""
    again = edited(told(obj(), view(ended())), "B", policy=SUPERSEDE)
    assert plan(view(ended()), [again]).opening == Opening("X", opened("X", 2, "B"), reserve=False, supersedes=True)


def test_answered_objects_of_a_key_without_a_record_run_nothing() -> None:
    """Objects whose record is gone are Expired, and a new one beside them opens the next generation."""
    expired, new = told(obj(), view(ended())), obj("Y")
    assert plan(view(None, floor=1), [expired]).opening is None
    both = plan(view(None, floor=1), [expired, new])
    assert (both.uids(Relation.EXPIRED), both.opening) == (("X",), Opening("Y", opened("Y"), reserve=True))


def test_a_superseder_ends_the_run_before_it_opens() -> None:
    """While a generation runs, a superseder only cancels it."""
    said = plan(view(record()), [ANSWERED_X, obj("Y", "B", policy=SUPERSEDE)])
    assert said.superseded and said.opening is None and not said.gone


def test_an_edit_ends_what_never_started_and_then_opens() -> None:
    """The edited object ends its own generation, of which no driver has started. It opens the next one only if the end proves that."""
    said = plan(view(record(**PULLING)), [EDITED_X])
    assert said.superseded and said.opening is None and not said.gone
    proof = ended(Outcome.CANCELLED, no_effect=NoEffect(generation=1, attempt=1))
    assert plan(view(proof), [EDITED_X]).opening == Opening("X", opened("X", 2, "B"), reserve=False, supersedes=True)
    assert plan(view(ended(Outcome.CANCELLED)), [EDITED_X]).opening is None


def test_a_known_superseder_ends_nothing() -> None:
    """An object that had its turn does not end the generation that took its place: two superseders end after one generation each."""
    back = record(generation=2, fingerprint="B", openers=(opened("X"), opened("Y", 1, "B")), objects=(entry("Y"),))
    said = plan(view(back), [obj(policy=SUPERSEDE), obj("Y", "B", policy=SUPERSEDE)])
    assert (said.superseded, said.opening) == (False, None)


@pytest.mark.parametrize(
    ("of", "gone", "others", "on_delete", "expected"),
    [
        pytest.param(record(objects=BOTH), {"X", "Y"}, [], OnDelete.STOP, True, id="both are gone"),
        pytest.param(record(objects=BOTH), {"X"}, [], OnDelete.STOP, False, id="one is gone"),
        pytest.param(record(objects=("X", "Y")), {"X", "Y"}, [], OnDelete.STOP, True, id="named by UID alone"),
        pytest.param(record(objects=BOTH), {"X", "Y"}, [], OnDelete.DETACH, False, id="detached"),
        pytest.param(record(objects=()), set(), [], OnDelete.STOP, False, id="no object ever wanted it"),
        pytest.param(record(), {"X"}, [obj("Z")], OnDelete.STOP, False, id="another is about to follow"),
        pytest.param(record(), {"X"}, [obj("Z", "B")], OnDelete.STOP, True, id="the other is for another job"),
        pytest.param(ended(), {"X"}, [], OnDelete.STOP, False, id="it has ended"),
        pytest.param(None, {"X"}, [], OnDelete.STOP, False, id="there is no record"),
    ],
)
def test_gone(of: Record | None, gone: set[str], others: list[ObjectView], on_delete: OnDelete, expected: bool) -> None:
    """A run is no longer needed once every object that the record names is proved to be gone and no other is about to join."""
    assert plan(view(of), others, gone=gone, on_delete=on_delete).gone is expected


def test_an_object_that_is_gone_asks_nothing() -> None:
    """An object that a live read proved to be gone is ignored, although a list still has it."""
    said = plan(view(None), [obj()], gone={"X"})
    assert (said.opening, said.of("X").relation) == (None, Relation.IGNORED)


def test_an_object_that_was_not_given_has_no_place() -> None:
    """Asking about an object that the plan was not made for is an error."""
    with pytest.raises(KeyError):
        plan(view(None), []).of("X")


def test_the_leader_of_a_rerun_by_command_is_the_first_that_wanted_it() -> None:
    """A generation opened by a command is led by the first object that the record names; without objects it has no leader."""
    rerun = record(openers=(opened("X"), Opener(nonce="n")), objects=BOTH)
    assert leader_of(rerun) == "X"
    assert leader_of(rerun.changed(objects=())) is None
    assert leader_of(record(openers=(opened("X"), opened("Y", 1)), objects=BOTH)) == "Y"
