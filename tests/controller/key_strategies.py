"""Strategies of hypothesis: any record, any object, and all that a process may know when it writes a status."""

from __future__ import annotations

from hypothesis import strategies as st

from controller.key_objects import HASH, entry, obj, opened, result
from sparkonce.attempt.decide import Policy
from sparkonce.attempt.rerun import digest
from sparkonce.controller.objects import ObjectView
from sparkonce.controller.status import Trouble
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Application, HeldReason, Opener, Outcome, Record, Settling, State, StopWanted, Why
from sparkonce.model.spec import OnDuplicate, OnFinalized, OnMismatch, OnResultChanged
from sparkonce.sink.protocol import Evidence
from sparkonce.store.protocol import Claim, View

UIDS, SPECS = ["X", "Y", "Z"], ["A", "B"]

texts = st.text(max_size=8)
openers = st.one_of(
    st.builds(Opener, nonce=st.just("n")),
    st.builds(opened, st.sampled_from(UIDS), st.integers(1, 3), st.sampled_from(SPECS)),
    st.builds(Opener, uid=st.sampled_from(UIDS), number=st.integers(1, 3), rerun=st.just(digest("again"))),
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    state = draw(st.sampled_from(State))
    attempt = draw(st.integers(1, 3))
    return Record(
        realm="etl",
        key_hash=HASH,
        key="load/may@1",
        generation=draw(st.integers(1, 3)),
        attempt=attempt,
        nonce="n",
        fingerprint=draw(st.sampled_from(SPECS)),
        fingerprint_version=1,
        openers=tuple(draw(st.lists(openers, max_size=3))),
        objects=tuple(map(entry, draw(st.lists(st.sampled_from(UIDS), unique=True)))),
        state=state,
        phase=draw(st.sampled_from([None, *Phase])),
        held=draw(st.sampled_from(HeldReason)) if state is State.HELD else None,
        outcome=draw(st.sampled_from(Outcome)) if state is State.FINALIZED else None,
        note=draw(texts),
        application=draw(st.sampled_from([None, Application(name="so-1", uid="u")])),
        settling=draw(
            st.none() | st.builds(Settling, attempt=st.integers(1, attempt), why=st.sampled_from(Why), note=texts)
        ),
        stop_wanted=draw(st.none() | st.builds(StopWanted, why=st.just(Why.CANCELLED), by=texts, reason=texts)),
        not_before=draw(st.sampled_from([None, 0.0, 1_790_000_000.5])),
        revision=draw(st.integers(1, 50)),
        epoch=1,
    )


@st.composite
def views(draw: st.DrawFn) -> View:
    of = draw(st.none() | records())
    claim = (
        Claim(address=of.address, lease="l", owner=draw(texts), revision=1, nonce="c")
        if of and draw(st.booleans())
        else None
    )
    return View(
        record=of,
        claim=claim,
        floor=draw(st.integers(0, 3)),
        revision=draw(st.integers(50, 90)),
        epoch=draw(st.integers(1, 2)),
    )


policies = st.builds(
    Policy,
    declared=st.booleans(),
    on_duplicate=st.sampled_from(OnDuplicate),
    on_mismatch=st.sampled_from(OnMismatch),
    on_finalized=st.sampled_from(OnFinalized),
    on_result_changed=st.sampled_from(OnResultChanged),
    suspend=st.booleans(),
)
numbers = st.integers() | st.floats() | st.booleans() | texts | st.none()
looked = st.fixed_dictionaries(
    {},
    optional={
        "leader": policies,
        "result": st.sampled_from([result(), result(Outcome.FAILED), result(outputs=(), started_at=0.0)]),
        "evidence": st.dictionaries(st.sampled_from(["orders", "totals"]), st.sampled_from(Evidence)),
        "mismatch_paths": st.lists(texts, max_size=8),
        "progress": st.dictionaries(texts, numbers | st.lists(numbers, max_size=2), max_size=3),
        "progress_digits": st.integers(1, 4),
        "trouble": st.builds(Trouble, reason=texts, message=texts, final=st.booleans(), unknown=st.booleans()),
    },
)
"""What a process may have read when it writes a status."""


@st.composite
def objects(draw: st.DrawFn) -> ObjectView:
    return obj(
        draw(st.sampled_from(UIDS)),
        draw(st.sampled_from([*SPECS, ""])),
        generation=draw(st.integers(1, 3)),
        deleting=draw(st.booleans()),
        policy=draw(policies),
        annotation=draw(st.sampled_from([None, "again", "once more", "re\nfused"])),
    )


lives = st.lists(st.tuples(st.none() | views(), looked, st.sampled_from([*SPECS, "", None])), min_size=1, max_size=4)
"""A series of looks, each with what the process sees and knows. A string edits the object before that look."""
