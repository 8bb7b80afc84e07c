"""Memory and etcd answer any sequence of calls alike. Memory decides under a lock; etcd believes, compares and decides again.

Revisions of etcd count what memory's do not, so each is known by when it was first seen: what was written together, or later, shows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkonce.blocking import run
from sparkonce.model.record import State
from sparkonce.store.etcd_keys import BESIDE
from sparkonce.store.memory import MemoryLease, MemoryStore
from sparkonce.store.protocol import Lease, View
from store.backends import Clock
from store.drawn import CARRIED_OUT, KEYS, Side, Step, answer, drawn, everything, known, pick
from store.etcd_backend import Etcd
from store.samples import address_of

EXAMPLES = 12
"""Of up to 60 calls each, with a look at all that stands after each of them: some seconds."""


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
    """Every index says what the records say, and nothing stands beside a record that is gone."""
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
    """Carries the calls out on both stores."""
    seconds = 0.0
    limits: dict[str, Any] = {"clock": lambda: seconds, "monotonic": lambda: seconds, "max_live_keys": 2}
    backend = Etcd(Clock(), members=1)
    memory = MemoryStore(**limits)
    one = Numbered(memory, MemoryLease.expire)

    def expire(lease: Lease) -> None:
        """And its holder knows: what is refused for an ended lease is refused before anything else."""
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
    """Whatever is called in whatever order, both stores give the same answers and hold the same; and nearly every verb was carried out."""
    reached: Counter[tuple[str, str]] = Counter()

    @settings(max_examples=EXAMPLES)
    @given(st.integers(0, 2**32))
    def examples(seed: int) -> None:
        compare(drawn(seed), reached)

    examples()
    print(sorted(reached.items()))
    assert len([pair for pair in CARRIED_OUT if reached[pair]]) >= len(CARRIED_OUT) - 3
