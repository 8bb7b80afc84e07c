"""`asked`, `place` and `plan`: what the objects of one key are to its record, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.key_objects import (
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
from harness.manifests import document
from sparkonce.engine.object_view import ObjectView
from sparkonce.engine.policy import Policy
from sparkonce.engine.requests import Asked, Opening, Standing, asked, leader_of, place, plan
from sparkonce.engine.wanted import Wanted
from sparkonce.errors import RecordTooNew
from sparkonce.model.policy import OnDelete
from sparkonce.model.record import HeldReason, Opener, Outcome, Record, Settling, StopWanted, Why
from sparkonce.store.protocol import View

STATUS = {"ledgerRevision": 5, "epoch": 1, "fingerprint": "A", "requestNumber": 3}
BOTH = (entry("X"), entry("Y"))
NEW_Y = obj("Y")
ANSWERED_X = told(obj(), view(record()))


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
    """A request is numbered one more than the newest one known of its object, unless it is that one."""
    got = asked(obj(status=status), record(openers=openers))
    assert got == Asked(number, "A", known=known, answered=answered)


def test_an_answer_outlives_the_version_of_its_fingerprint() -> None:
    """What was answered under an older version of the fingerprint is answered: an upgrade runs nothing again."""
    upgraded = obj(fingerprints={1: "A", 2: "A2"}, status=STATUS)
    assert asked(upgraded, None) == Asked(3, "A2", known=True, answered=True)
    assert place(view(None, floor=1), upgraded).standing is Standing.EXPIRED


A_AFTER_B = ended(generation=2, fingerprint="B", openers=(opened("X"), opened("Y", 1, "B")), objects=(entry("Y"),))
CANCELLING = Settling(attempt=1, why=Why.CANCELLED)
TABLE: list[tuple[str, Standing, View, ObjectView, Policy]] = [
    ("a new key", Standing.OPENS, view(None), obj(), DEFAULT),
    ("its record is gone", Standing.EXPIRED, view(None, floor=1), ANSWERED_X, DEFAULT),
    ("its record is gone, and it was edited", Standing.OPENS, view(None, floor=1), edited(ANSWERED_X, "B"), DEFAULT),
    ("not valid", Standing.INVALID, view(None), obj(spec=""), DEFAULT),
    ("not valid any more", Standing.INVALID, view(record()), edited(ANSWERED_X, ""), DEFAULT),
    ("being deleted, unheard", Standing.IGNORED, view(None), obj(deleting=True), DEFAULT),
    ("being deleted, heard", Standing.LEADS, view(record()), replace(ANSWERED_X, deleting=True), DEFAULT),
    ("the leader", Standing.LEADS, view(record()), obj(), REJECT),
    ("the leader, sent again", Standing.LEADS, view(record()), ANSWERED_X, REJECT),
    ("nobody owns it", Standing.LEADS, view(record(), owned=False), obj(), DEFAULT),
    ("a duplicate", Standing.ATTACHES, view(record()), NEW_Y, DEFAULT),
    ("a duplicate of an unowned run", Standing.ATTACHES, view(record(), owned=False), NEW_Y, DEFAULT),
    ("a duplicate, named", Standing.FOLLOWS, view(record(objects=BOTH)), NEW_Y, DEFAULT),
    ("a duplicate, named, and the leader rejects", Standing.FOLLOWS, view(record(objects=BOTH)), NEW_Y, REJECT),
    ("a duplicate, and the leader rejects", Standing.REFUSED, view(record()), NEW_Y, REJECT),
    ("its own wish to reject is not the leader's", Standing.ATTACHES, view(record()), obj("Y", policy=REJECT), DEFAULT),
    ("refused and still refused", Standing.REFUSED, view(record()), told(NEW_Y, view(record()), leader=REJECT), REJECT),
    ("refused, then ended", Standing.REPLAYS, view(ended()), told(NEW_Y, view(record()), leader=REJECT), REJECT),
    ("a duplicate of a held key", Standing.ATTACHES, view(held()), NEW_Y, DEFAULT),
    ("told a result, then rerun", Standing.ATTACHES, view(record(generation=2)), told(NEW_Y, view(ended())), REJECT),
    ("a duplicate while it is cancelled", Standing.WAITS, view(record(settling=CANCELLING)), NEW_Y, DEFAULT),
    (
        "a duplicate while somebody cancels",
        Standing.WAITS,
        view(record(stop_wanted=StopWanted(why=Why.CANCELLED, by="ann"))),
        NEW_Y,
        DEFAULT,
    ),
    (
        "a duplicate while it is lost",
        Standing.ATTACHES,
        view(record(settling=Settling(attempt=1, why=Why.LOST))),
        NEW_Y,
        DEFAULT,
    ),
    (
        "a follower while it is cancelled",
        Standing.FOLLOWS,
        view(record(settling=CANCELLING, objects=BOTH)),
        NEW_Y,
        DEFAULT,
    ),
    ("after success", Standing.REPLAYS, view(ended()), NEW_Y, DEFAULT),
    ("the leader after success", Standing.LEADS, view(ended()), ANSWERED_X, DEFAULT),
    ("after failure", Standing.REPLAYS, view(ended(Outcome.FAILED)), NEW_Y, DEFAULT),
    (
        "after failure, and it runs failures again",
        Standing.OPENS,
        view(ended(Outcome.FAILED)),
        obj("Y", policy=RERUN),
        DEFAULT,
    ),
    ("the failed one itself", Standing.LEADS, view(ended(Outcome.FAILED)), obj(policy=RERUN), DEFAULT),
    ("after cancelling", Standing.OPENS, view(ended(Outcome.CANCELLED)), NEW_Y, DEFAULT),
    ("the cancelled one itself", Standing.LEADS, view(ended(Outcome.CANCELLED)), ANSWERED_X, DEFAULT),
    ("another job", Standing.MISMATCH, view(record()), obj("Y", "B"), DEFAULT),
    ("another job, told so", Standing.MISMATCH, view(record()), told(obj("Y", "B"), view(record())), DEFAULT),
    ("another job, after cancelling", Standing.MISMATCH, view(ended(Outcome.CANCELLED)), obj("Y", "B"), DEFAULT),
    (
        "told a mismatch, then superseding",
        Standing.MISMATCH,
        view(record()),
        replace(told(obj("Y", "B"), view(record())), policy=SUPERSEDE),
        DEFAULT,
    ),
    ("a superseder of a run", Standing.SUPERSEDES, view(record()), obj("Y", "B", policy=SUPERSEDE), DEFAULT),
    ("a superseder of a result", Standing.OPENS, view(ended()), obj("Y", "B", policy=SUPERSEDE), DEFAULT),
    ("a superseder of a held, unsettled run", Standing.WAITS, view(held()), obj("Y", "B", policy=SUPERSEDE), DEFAULT),
    (
        "a superseder of a held, settled run",
        Standing.OPENS,
        view(held(HeldReason.PARTIAL)),
        obj("Y", "B", policy=SUPERSEDE),
        DEFAULT,
    ),
    (
        "the leader, edited to supersede",
        Standing.SUPERSEDES,
        view(record()),
        edited(ANSWERED_X, "B", policy=SUPERSEDE),
        DEFAULT,
    ),
    ("the superseded leader", Standing.SUPERSEDED, view(A_AFTER_B), replace(ANSWERED_X, policy=SUPERSEDE), DEFAULT),
    ("the superseded leader, never told", Standing.SUPERSEDED, view(A_AFTER_B), obj(policy=SUPERSEDE), DEFAULT),
    ("a superseded follower", Standing.SUPERSEDED, view(A_AFTER_B), told(NEW_Y, view(record(objects=BOTH))), DEFAULT),
    (
        "superseded, and the key is back",
        Standing.SUPERSEDED,
        view(record(generation=3)),
        told(ANSWERED_X, view(A_AFTER_B)),
        DEFAULT,
    ),
    ("superseded, edited", Standing.MISMATCH, view(A_AFTER_B), edited(told(ANSWERED_X, view(A_AFTER_B)), "C"), DEFAULT),
]


@pytest.mark.parametrize(
    ("standing", "at", "which", "leader"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_place(standing: Standing, at: View, which: ObjectView, leader: Policy) -> None:
    """An object is this to its key."""
    assert place(at, which, leader=leader).standing is standing


def test_every_standing_has_a_case() -> None:
    """No standing is left without a case that leads to it."""
    assert {row[1] for row in TABLE} == set(Standing)


def test_a_record_of_an_unknown_version_is_not_compared() -> None:
    """A fingerprint version that was not computed is an error, never a mismatch and never a duplicate."""
    with pytest.raises(RecordTooNew, match=r"fingerprint version 2.*etl/job-X.*upgrade"):
        place(view(record(fingerprint_version=2)), obj())


def body(**metadata: Any) -> dict[str, Any]:
    """An object as the API server returns it; it has no outputs, whose places would have to exist."""
    known = {"uid": "u1", "generation": 3, "resourceVersion": "77", "creationTimestamp": "2026-11-21T10:00:00Z"}
    sent = document()
    spec = {name: value for name, value in sent["spec"].items() if name != "outputs"}
    return {**sent, "metadata": sent["metadata"] | known | metadata, "spec": spec, "status": STATUS}


def test_an_object_as_the_api_server_returns_it() -> None:
    """An object is taken apart as it is: name, edits, status, what it asks, and whether it is being deleted."""
    wanted = Wanted.of(body(), realm="etl")
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


def test_an_object_read_again_is_the_same_object_with_the_status_it_has_now() -> None:
    """Reading again takes the new status; after an edit, and for another object of that name, there is nothing to go on with."""
    got = ObjectView.of(body(), Wanted.of(body(), realm="etl"))
    now = got.reread(body(resourceVersion="78") | {"status": {"phase": "Held"}})
    assert now == replace(got, resource_version="78", status={"phase": "Held"})
    assert got.reread(body(generation=4)) is None and got.reread(body(uid="u2")) is None


# --- plan


def test_one_of_many_opens() -> None:
    """Of the objects that may open, the oldest does, whatever the order of the list; the others wait and are not answered."""
    objects = [obj("Z", created="2026-01-03"), obj("X", created="2026-01-01"), obj("Y", created="2026-01-02")]
    for given in (objects, objects[::-1]):
        said = plan(view(None, floor=4), given)
        assert said.opening == Opening("X", opened("X"), reserve=True)
        assert [one.uid for one in said.placed] == [one.uid for one in given]
        assert (said.uids(Standing.OPENS), set(said.uids(Standing.WAITS))) == (("X",), {"Y", "Z"})


def test_objects_of_one_age_are_told_apart_by_their_uid() -> None:
    """Two processes that see the same objects choose the same opener, also among objects of the same second."""
    twins = [obj("Y", created="2026-01-01"), obj("X", created="2026-01-01")]
    assert (
        plan(view(None), twins).opening
        == plan(view(None), twins[::-1]).opening
        == Opening("X", opened("X"), reserve=True)
    )


def test_who_ended_a_run_goes_before_who_repeats_it() -> None:
    """After a supersede has cancelled a run, the superseder opens the next one, and not an older object that asks for the old job."""
    older = obj("Y", created="2026-01-01")
    superseder = obj("Z", "B", policy=SUPERSEDE, created="2026-01-02")
    said = plan(view(ended(Outcome.CANCELLED)), [older, superseder])
    assert said.opening == Opening("Z", opened("Z", 1, "B"), reserve=False, supersedes=True)
    assert said.of("Y").standing is Standing.WAITS


def test_an_edited_object_opens_with_the_next_number() -> None:
    """The opener names object, number and fingerprint of this request, by which the store recognises it."""
    again = edited(told(obj(), view(ended())), "B", policy=SUPERSEDE)
    assert plan(view(ended()), [again]).opening == Opening("X", opened("X", 2, "B"), reserve=False, supersedes=True)


def test_answered_objects_of_a_key_without_a_record_run_nothing() -> None:
    """Objects whose record is gone are Expired, and a new one beside them opens the next generation."""
    expired, new = told(obj(), view(ended())), obj("Y")
    assert plan(view(None, floor=1), [expired]).opening is None
    both = plan(view(None, floor=1), [expired, new])
    assert (both.uids(Standing.EXPIRED), both.opening) == (("X",), Opening("Y", opened("Y"), reserve=True))


def test_a_superseder_ends_the_run_before_it_opens() -> None:
    """While a generation runs, a superseder only makes it end."""
    said = plan(view(record()), [ANSWERED_X, obj("Y", "B", policy=SUPERSEDE)])
    assert said.superseded and said.opening is None and not said.gone


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
    """A run is unwanted when every object that the record names is proved to be gone, and nobody is about to join."""
    assert plan(view(of), others, gone=gone, on_delete=on_delete).gone is expected


def test_an_object_that_is_gone_asks_nothing() -> None:
    """An object that a live read proved to be gone is ignored, although a list still holds it."""
    said = plan(view(None), [obj()], gone={"X"})
    assert (said.opening, said.of("X").standing) == (None, Standing.IGNORED)


def test_an_object_that_was_not_given_has_no_place() -> None:
    """Asking for an object that the plan was not made for is an error."""
    with pytest.raises(KeyError):
        plan(view(None), []).of("X")


def test_the_leader_of_a_rerun_by_command_is_the_first_that_wanted_it() -> None:
    """A generation that a command opened is led by the first object that the record names; without objects by nobody."""
    rerun = record(openers=(opened("X"), Opener(nonce="n")), objects=BOTH)
    assert leader_of(rerun) == "X"
    assert leader_of(rerun.changed(objects=())) is None
    assert leader_of(record(openers=(opened("X"), opened("Y", 1)), objects=BOTH)) == "Y"
