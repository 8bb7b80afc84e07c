"""SIGKILL before and after every statement of every verb that writes: the store holds the state before or the state after, never between.

A case prepares a key; another process carries out the verb and is killed at the K-th point, for K = 0, 1, ... until the verb completes.
After each kill this process reads the store and repeats the call, as a caller without an answer must.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from harness import effort
from sparkonce.blocking import run
from store.backends import DURABLE, Durable
from store.kills import CASES, answered, carry_out, killed, likeness, prepared, standing
from store.worker import Worker

POINTS = ("statement.before", "statement.after", "commit.before", "commit.after")


UNWRITTEN = {("postgres", "heartbeat")}
"""Verbs that write nothing in a store where a claim lives by its lease alone."""


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
    """One store for all tests: each kill has a key of its own."""
    made = DURABLE[request.param](tmp_path_factory.mktemp("kill"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def mortal(ledger: Durable) -> Iterator[Worker]:
    """Carries out one verb per process."""
    ledger.open()
    made = Worker(ledger.opening(), mortal=True)
    yield made
    made.end()


@pytest.mark.parametrize("verb", effort.sampled(list(CASES)))
def test_a_killed_verb_happened_or_did_not(ledger: Durable, mortal: Worker, verb: str) -> None:
    """Killed before its commit a verb changed nothing; killed after it, everything; repeated, it ends as if it had been called once;
    revisions grow."""
    store = ledger.open()
    case = CASES[verb]
    whole = prepared(store, verb)
    assert answered(carry_out(store, None, whole), case.done)
    after = likeness(standing(store, whole))
    kills = dict.fromkeys(POINTS, 0)
    for point in POINTS:
        for number in count():
            call = prepared(store, verb)
            before = standing(store, call)
            revision = run(store.load(call.record.address)).revision
            if not killed(mortal, call, f"store.sql.{point}={number}*off->kill"):
                break
            kills[point] += 1
            stands = standing(store, call)
            if point == "commit.after":
                assert likeness(stands) == after
            else:
                assert stands == before
            assert run(store.load(call.record.address)).revision >= revision
            expected = case.again if point == "commit.after" and case.again else case.done
            assert answered(carry_out(store, None, call), expected)
            repeated = standing(store, call)
            assert likeness(repeated) == after
            if point == "commit.after":
                assert repeated == stands
    writes = (type(ledger).__name__.lower(), verb) not in UNWRITTEN
    assert kills["statement.before"] == kills["statement.after"] >= 2 + writes  # BEGIN, one read, one write
    assert kills["commit.before"] == kills["commit.after"] == writes
