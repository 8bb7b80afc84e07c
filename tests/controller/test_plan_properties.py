"""Properties of a key's objects over whole histories: processes with stale reads create, edit and answer them.

The in-memory store is used, so that every write is really compared. The processes do the minimum that an operator does with a plan.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.key_objects import DEFAULT, HASH, NOW, RERUN, SUPERSEDE, entry, obj
from controller.key_strategies import objects as any_object
from controller.key_strategies import policies, views
from harness.memory_store import MemoryLease, MemoryStore
from sparkonce.attempt.decide import Policy
from sparkonce.attempt.rerun import ANNOTATION, digest
from sparkonce.controller.objects import ObjectView
from sparkonce.controller.plan import Opening, Plan, Relation, asked, place, plan
from sparkonce.controller.rewind_guard import Witness, rewound
from sparkonce.controller.status import newer, next_status, project
from sparkonce.model.record import NEVER_RAN, Address, Event, Outcome, Record, Result, SpecBody, State
from sparkonce.model.spec import OnDuplicate
from sparkonce.store.protocol import Owned, Request, View

ADDRESS = Address(realm="etl", key_hash=HASH)
ENDS = {"succeed": Outcome.SUCCEEDED, "fail": Outcome.FAILED, "cancel": Outcome.CANCELLED}
REJECTING = replace(SUPERSEDE, on_duplicate=OnDuplicate.REJECT)
POLICIES = [DEFAULT, SUPERSEDE, RERUN, REJECTING]


@given(views(), st.lists(any_object(), max_size=4, unique_by=lambda each: each.uid), st.none() | policies)
def test_a_plan_is_whole(at: View, objects: list[ObjectView], leader: Policy | None) -> None:
    """Every object has one relation, at most one opens, only a new request opens, and the order of the list does not matter."""
    said = plan(at, objects, leader=leader)
    assert [one.uid for one in said.placed] == [each.uid for each in objects]
    assert len(said.uids(Relation.OPENS)) == (said.opening is not None)
    backwards = plan(at, objects[::-1], leader=leader)
    assert (backwards.opening, backwards.placed[::-1]) == (said.opening, said.placed)
    if said.opening is None:
        return
    opener = next(each for each in objects if each.uid == said.opening.uid)
    ask = said.of(opener.uid).asked
    assert ask is not None
    assert (said.opening.by.uid, said.opening.by.number, said.opening.by.fingerprint) == (
        opener.uid,
        ask.number,
        ask.fingerprint,
    )
    assert not ask.known and not opener.deleting
    assert said.opening.by.rerun == (digest(opener.rerun) if opener.rerun else None)
    assert said.opening.rerun in ("", opener.rerun)
    assert said.opening.reserve is (at.record is None)
    if at.record is not None:
        assert at.record.reopenable and said.opening.by not in at.record.openers
        assert said.opening.rerun or said.opening.supersedes is not opener.same(at.record)


@dataclass
class Look:
    """The reads of a process, not necessarily at one time: first the key, then its objects."""

    view: View
    objects: list[ObjectView]


@dataclass
class Cluster:
    """One key, its objects, and processes that act on earlier looks."""

    store: MemoryStore = field(default_factory=MemoryStore)
    objects: dict[str, ObjectView] = field(default_factory=dict)
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often the object with this UID was created or edited to request this fingerprint, by (UID, fingerprint)."""
    deleted: set[str] = field(default_factory=set)
    """UIDs that are never used again."""
    opened: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    reran: Counter[tuple[Any, str]] = field(default_factory=Counter)
    """The number of generations that an annotation opened, by (UID, text of the annotation)."""
    looks: list[Look] = field(default_factory=list)
    nonces: int = 0
    forgot: bool = False
    lease: MemoryLease | None = None

    async def claims(self) -> MemoryLease:
        self.lease = self.lease or await self.store.open_lease(owner="operator")
        return self.lease

    def create(self, uid: str, spec: str, policy: Policy) -> None:
        if uid not in self.objects and uid not in self.deleted:
            self.objects[uid] = obj(uid, spec, policy=policy)
            self.asked[uid, spec] += 1

    def edit(self, uid: str, spec: str) -> None:
        if (now := self.objects.get(uid)) is not None and not now.asks(spec):
            self.objects[uid] = replace(now, fingerprints={1: spec}, generation=now.generation + 1)
            self.asked[uid, spec] += 1

    def annotate(self, uid: str, text: str) -> None:
        """Does not change the object's generation, as at the API server."""
        if (now := self.objects.get(uid)) is not None:
            self.objects[uid] = replace(now, annotation=text)

    def change(self, uid: str, policy: Policy) -> None:
        """Edits only the policies."""
        now = self.objects.get(uid)
        if now is None or now.policy == policy:
            return
        self.objects[uid] = replace(now, policy=policy, generation=now.generation + 1)
        self.asked[uid, now.fingerprint] += now.policy is None or now.policy.on_mismatch != policy.on_mismatch

    async def look(self) -> Look:
        return Look(await self.store.load(ADDRESS), list(self.objects.values()))

    async def act(self, look: Look) -> None:
        """Carries out the plan for these reads: opens, attaches, ends superseded generations, writes the other statuses."""
        said = plan(look.view, look.objects, leader=self.leader(look))
        if said.opening is not None:
            await self.open(look.view, said.opening)
        record = look.view.record
        if record is not None:
            for uid in said.uids(Relation.ATTACHES):
                if uid in self.objects:
                    await self.store.attach(record, entry(uid))
            if said.superseded:
                await self.end(record, Outcome.CANCELLED)
        self.tell(look, said)

    def leader(self, look: Look) -> Policy | None:
        record = look.view.record
        leads = record.openers[-1].uid if record is not None else None
        return next((each.policy for each in look.objects if each.uid == leads), None)

    async def open(self, at: View, opening: Opening) -> None:
        self.nonces += 1
        assert opening.by.fingerprint is not None
        request = Request(
            address=ADDRESS,
            key="load/may@1",
            by=opening.by,
            nonce=f"n{self.nonces}",
            fingerprints={1: opening.by.fingerprint},
            spec=SpecBody(job={}),
            objects=(entry(opening.uid),),
        )
        lease = await self.claims()
        if opening.reserve:
            got: object = await self.store.reserve(request, lease=lease, floor=at.floor)
        else:
            assert at.record is not None
            got = await self.store.reopen(at.record, request, lease=lease)
        if isinstance(got, Owned):
            by = opening.by
            self.opened[by.uid, by.number, by.fingerprint] += 1
            if opening.rerun:
                self.reran[by.uid, opening.rerun] += 1
            else:
                self.opened[by.uid, by.fingerprint] += 1

    async def end(self, record: Record, outcome: Outcome) -> None:
        now = await self.store.load(ADDRESS)
        if (
            now.record is None
            or now.claim is None
            or now.record.revision != record.revision
            or record.state is not State.IN_PROGRESS
        ):
            return
        # An attempt that was not seen to run may end with the proof that it did not, or without.
        proven = outcome is not Outcome.SUCCEEDED and record.revision % 2
        evidence = NEVER_RAN if proven else "it was seen"
        done = Result(outcome=outcome, generation=record.generation, attempts=1, evidence=evidence)
        await self.store.finalize(record, now.claim, done, retention=60.0)

    async def forget(self, record: Record | None) -> None:
        """Forgets the key if that is allowed: every object of the key has been answered."""
        if record is not None and all(asked(each, record).answered for each in self.objects.values()):
            self.forgot = True
            await self.store.forget(record, Event(what="Forgotten"))

    def tell(self, look: Look, said: Plan) -> None:
        for seen in look.objects:
            now = self.objects.get(seen.uid)
            if now is None or (now.generation, now.annotation) != (seen.generation, seen.annotation):
                continue
            if said.of(seen.uid).relation is Relation.IGNORED:
                continue
            conflicted = now.status != seen.status
            wanted = next_status(
                now.status, project(look.view, now, now_text=NOW, leader=self.leader(look)), conflicted=conflicted
            )
            if wanted is not None:
                assert not newer(now.status, wanted)
                self.objects[seen.uid] = replace(now, status=wanted)

    async def happens(self, step: Sequence[Any]) -> None:
        match step:
            case ("create", uid, spec, policy):
                self.create(uid, spec, policy)
            case ("edit", uid, spec, _):
                self.edit(uid, spec)
            case ("annotate", uid, text, _):
                self.annotate(uid, text)
            case ("change", uid, _, policy):
                self.change(uid, policy)
            case ("delete", uid, _, _):
                if self.objects.pop(uid, None) is not None:
                    self.deleted.add(uid)
            case ("look", *_):
                self.looks.append(await self.look())
            case ("act", uid, *_) if self.looks:
                await self.act(self.looks[ord(uid) % len(self.looks)])
            case ("look and act", *_):
                await self.act(await self.look())
            case ("forget", *_):
                await self.forget((await self.store.load(ADDRESS)).record)
            case (end, *_) if end in ENDS:
                record = (await self.store.load(ADDRESS)).record
                if record is not None:
                    await self.end(record, ENDS[end])

    async def peace(self) -> None:
        """Acts on fresh looks only and lets every run succeed, until nothing changes any more."""
        for _ in range(60):
            before = (await self.store.load(ADDRESS), dict(self.objects))
            await self.act(await self.look())
            if (await self.store.load(ADDRESS), self.objects) == before:
                if before[0].record is None or before[0].record.state is not State.IN_PROGRESS:
                    return
                await self.end(before[0].record, Outcome.SUCCEEDED)
        raise AssertionError("the objects of the key never come to an end")

    async def check(self) -> None:
        """Asserts what holds at every moment."""
        for by, times in self.opened.items():
            allowed = 1 if len(by) == 3 else self.asked[by]
            assert times <= allowed, f"{by} opened {times} generations"
        texts: Counter[str] = Counter()
        for (uid, text), times in self.reran.items():
            assert times <= 1, f"the text {text} of {uid} opened {times} generations"
            texts[text] += times
        assert self.forgot or all(times <= 1 for times in texts.values()), texts
        found = [one for one in map(Witness.of, self.objects.values()) if one is not None]
        assert rewound(found, await self.store.load(ADDRESS), HASH) is None


steps = st.tuples(
    st.sampled_from(
        [
            *("create", "create", "edit", "edit", "delete", "annotate", "change", "look", "act", "act"),
            *["look and act"] * 4,
            *("forget", *ENDS),
        ]
    ),
    st.sampled_from(["X", "Y", "Z"]),
    st.sampled_from(["A", "B"]),
    st.sampled_from(POLICIES),
)


async def play(history: Sequence[Sequence[Any]]) -> Cluster:
    cluster = Cluster()
    for step in history:
        await cluster.happens(step)
        await cluster.check()
    await cluster.peace()
    await cluster.check()
    return cluster


@given(st.lists(steps, max_size=30))
def test_a_request_opens_at_most_one_generation(history: list[Sequence[Any]]) -> None:
    """Whatever is edited, deleted, forgotten and done on stale reads: each (UID, number, fingerprint) opens at most one generation, an
    object that requested a job n times opens it at most n times, no status is ahead of the store, and in the end every object has its
    answer."""
    cluster = asyncio.run(play(history))
    view = asyncio.run(cluster.store.load(ADDRESS))
    for each in cluster.objects.values():
        assert asked(each, view.record).answered
        assert each.status["phase"] not in ("Pending", "Running", "Recovering"), each.status


def test_two_superseders_end_after_one_generation_each() -> None:
    """Two objects that would each replace the other's job open one generation each; the second one's result stays."""
    history = [("create", "X", "A", SUPERSEDE), ("look and act", "X", "A", None), ("create", "Y", "B", SUPERSEDE)]
    cluster = asyncio.run(play(history))
    assert cluster.opened["X", 1, "A"] == cluster.opened["Y", 1, "B"] == 1
    assert cluster.objects["Y"].status["phase"] == "Succeeded"
    assert cluster.objects["X"].status["phase"] == "Mismatch"


def test_an_edit_there_and_back_that_was_heard_is_two_requests() -> None:
    """A, B, A, each seen by an operator, are requests 1, 2 and 3 of the object and open three generations."""
    both = ("look and act", "X", "A", None)
    history = [("create", "X", "A", SUPERSEDE), both, ("succeed", "X", "A", None), both]
    history += [("edit", "X", "B", None), both, ("succeed", "X", "A", None), both, ("edit", "X", "A", None)]
    cluster = asyncio.run(play(history))
    assert [cluster.opened[by] for by in (("X", 1, "A"), ("X", 2, "B"), ("X", 3, "A"))] == [1, 1, 1]


def test_an_edit_there_and_back_that_nobody_heard_is_no_request() -> None:
    """A, B, A is one request if no operator saw B."""
    both = ("look and act", "X", "A", None)
    history = [
        ("create", "X", "A", RERUN),
        both,
        ("fail", "X", "A", None),
        both,
        ("edit", "X", "B", None),
        ("edit", "X", "A", None),
    ]
    cluster = asyncio.run(play(history))
    assert sum(times for by, times in cluster.opened.items() if len(by) == 3) == 1


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_the_annotation_that_a_message_prints_runs_the_job_again_once(end: str) -> None:
    """The object of a generation that failed or was cancelled gets the printed text as its annotation: one generation more, however often
    the object is looked at, and its result is in the status."""
    both = ("look and act", "X", "A", None)
    history = [("create", "X", "A", DEFAULT), both, (end, "X", "A", None), both]
    said = asyncio.run(play(history)).objects["X"].status
    assert (said["phase"], said["generation"]) == (str(ENDS[end]), 1)
    _, _, text = str(said["message"]).partition(f" job-X {ANNOTATION}=")
    cluster = asyncio.run(
        play([*history, ("annotate", "X", text, None), both, both, ("succeed", "X", "A", None), both])
    )
    assert cluster.reran == {("X", "REASON"): 1}
    said = cluster.objects["X"].status
    assert (said["phase"], said["generation"], said["rerun"]) == ("Succeeded", 2, "REASON")


def test_answered_objects_of_a_forgotten_key_open_nothing() -> None:
    """After forget the old object is Expired and runs nothing; a new object opens the next generation, and the old one then follows it."""
    both = ("look and act", "X", "A", None)
    history = [("create", "X", "A", DEFAULT), both, ("succeed", "X", "A", None), both, ("forget", "X", "A", None), both]
    cluster = asyncio.run(play(history))
    assert cluster.objects["X"].status["phase"] == "Expired" and cluster.opened["X", "A"] == 1
    cluster = asyncio.run(play([*history, ("create", "Y", "A", DEFAULT)]))
    assert (cluster.opened["X", "A"], cluster.opened["Y", 1, "A"]) == (1, 1)
    view = asyncio.run(cluster.store.load(ADDRESS))
    assert view.record is not None and view.record.generation == 2
    assert place(view, cluster.objects["X"]).relation is Relation.FOLLOWS
