"""Memory and etcd give the same answers to any sequence of calls. Memory decides under a lock; etcd decides from its cache, compares in the
transaction, and decides again on a difference.

etcd's revisions count writes that memory's do not, so each revision is replaced by its rank of first appearance, which still shows which
writes shared a transaction, and which came later.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness import effort
from harness.memory_store import MemoryLease, MemoryStore
from sparkonce.blocking import run
from sparkonce.model.record import State
from sparkonce.store.etcd.layout import BESIDE
from sparkonce.store.protocol import Lease, View
from store.backends import Clock
from store.drawn import CARRIED_OUT, KEYS, Side, Step, answer, drawn, everything, known, pick
from store.etcd_backend import Etcd
from store.samples import address_of

EXAMPLES = effort.size("differential examples on servers")
"""Examples of up to 60 calls each, with a full comparison after each call, take some seconds."""
MORE = 20
"""Maximum number of further examples."""
SELDOM = 3
"""Answers that a run of so few examples may miss."""


class Numbered(Side):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._numbers: dict[int, int] = {}

    def revision(self, value: int) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def plain(self, value: Any) -> Any:
        if isinstance(value, View):
            return [self.plain(value.record), self.plain(value.claim), value.floor, value.epoch]
        return super().plain(value)


def agree(backend: Etcd, memory: MemoryStore) -> None:
    """Every index agrees with the records, and nothing remains beside a removed record."""
    layout = backend.layout
    stands = sorted(backend.cluster.content(layout.root.encode()))
    records = [record for key in KEYS if (record := run(memory.load(address_of(key))).record) is not None]
    unfinished = [layout.open(record.address) for record in records if record.state is not State.FINALIZED]
    expiring = [layout.expiry(record.address, record.expires_at) for record in records if record.expires_at is not None]
    assert [key for key in stands if layout.kind_of(key) == "open"] == sorted(unfinished)
    assert [key for key in stands if layout.kind_of(key) == "exp"] == sorted(expiring)
    beside = {layout.address_of(key) for key in stands if layout.kind_of(key) in ("own", *BESIDE)}
    assert beside <= {record.address for record in records}


def compare(calls: list[Step], reached: Counter[tuple[str, str]]) -> None:
    """Makes the calls on both stores and compares."""
    seconds = 0.0
    limits: dict[str, Any] = {"clock": lambda: seconds, "monotonic": lambda: seconds, "max_live_keys": 2}
    backend = Etcd(Clock(), members=1)
    memory = MemoryStore(**limits)
    one = Numbered(memory, MemoryLease.expire)

    def expire(lease: Lease) -> None:
        """Ends the lease, and lets its holder know: a call under an ended lease is refused before anything else is checked."""
        backend.expire(lease)
        assert run(lease.keep_alive()) is False

    other = Numbered(backend.open(**limits), expire)
    try:
        for side in (one, other):
            side.open_lease()
        for step in calls:
            seconds += 0.5
            answers = [answer(side, step) for side in (one, other)]
            assert answers[0] == answers[1], step
            assert known(one, pick(KEYS, step.key)) == known(other, pick(KEYS, step.key)), step
            reached[step.verb, answers[0][0] if isinstance(answers[0], tuple) else str(answers[0])] += 1
        assert everything(one) == everything(other)
        agree(backend, memory)
        for lease in other.leases:
            run(lease.revoke())
    finally:
        backend.close()


def test_memory_and_etcd_answer_alike() -> None:
    """For any calls in any order both stores give the same answers and have the same content, and nearly every verb has been called."""
    reached: Counter[tuple[str, str]] = Counter()

    @settings(max_examples=EXAMPLES)
    @given(st.integers(0, 2**32))
    def examples(seed: int) -> None:
        compare(drawn(seed), reached)

    def missing() -> list[tuple[str, str]]:
        return [pair for pair in CARRIED_OUT if not reached[pair]]

    examples()
    for seed in range(MORE):  # a few examples may miss a rare verb
        if len(missing()) > SELDOM:
            compare(drawn(seed), reached)
    print(sorted(reached.items()))
    assert len(missing()) <= SELDOM, missing()
