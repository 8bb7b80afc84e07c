"""SIGKILL before and after every request of every verb that writes: etcd holds the state before or the state after, never between.

A case prepares a key. Another process, which has nothing about it in its cache, carries out the verb and is killed at the K-th request, for
K = 0, 1, ... until the verb completes. The number of these requests is the verb's maximum cost, without cached records.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from harness import effort
from store.backends import Clock
from store.etcd_backend import Etcd
from store.kills import CASES, answered, carry_out, killed, likeness, prepared, standing
from store.worker import Worker

LOOK_FIRST = {"drop", "reopen", "seal", "renew", "purge", "forget"}
"""Verbs that are not given a record to start from, or whose generation depends on a floor, and so read first."""


@pytest.fixture(scope="module")
def ledger() -> Iterator[Etcd]:
    """One store for all tests: each kill has a key of its own."""
    made = Etcd(Clock(), members=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def mortal(ledger: Etcd) -> Iterator[Worker]:
    """Carries out one verb per process."""
    made = Worker(ledger.opening(), mortal=True)
    yield made
    made.end()


def cost(verb: str) -> int:
    """Number of requests when the process has cached nothing: a new key also counts its realm's keys and reads etcd's size, and a report
    counts the realm's reports."""
    return 3 if verb in {"reserve", "report"} else 2 if verb in LOOK_FIRST else 1


@pytest.mark.parametrize("verb", effort.sampled(list(CASES)))
def test_a_killed_verb_happened_or_did_not(ledger: Etcd, mortal: Worker, verb: str) -> None:
    """Killed before its writing request a verb changed nothing; killed after it, everything; repeated, it ends as if it had been called
    once."""
    store = ledger.open()
    case = CASES[verb]
    whole = prepared(store, verb)
    assert answered(carry_out(store, None, whole), case.done)
    after = likeness(standing(store, whole))
    for point in ("before", "after"):
        for number in count():
            call = prepared(store, verb)
            before = standing(store, call)
            if not killed(mortal, call, f"store.etcd.request.{point}={number}*off->kill"):
                break
            stands = standing(store, call)
            written = point == "after" and number == cost(verb) - 1
            if written:
                assert likeness(stands) == after
            else:
                assert stands == before
            assert answered(carry_out(store, None, call), case.again if written and case.again else case.done)
            repeated = standing(store, call)
            assert likeness(repeated) == after
            assert not written or verb == "renew" or repeated == stands
        assert number == cost(verb)
