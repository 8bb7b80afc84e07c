"""The chain of a stream under thousands of random schedules: the real code, one request to the store at a time, in any order.

Drivers (at times two of one token), settlers and zombies run as coroutines over a store in which any request can be delayed for ever, or
lost before or after it took effect, and in which listings may miss newly created objects. After each schedule the slots themselves are
checked. With one rule removed, the same schedules must find the defect.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness import effort
from harness.slots import committing
from sparkonce.errors import OutputUnavailable
from sparkonce.model.spec import OnRerun
from sparkonce.sink import stream
from sparkonce.sink.objects.protocol import Listed, Tail
from sparkonce.sink.protocol import AlreadyCommitted, Committed, SinkKey, Slot, SlotState, StreamPart
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog import sink as slots
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.stream import Chain, mark

KEY = SinkKey(key_hash="a1b2", output="orders", generation=1)
FINGERPRINT = "f"
BATCHES = 4
TOKENS = 4
SCHEDULES = effort.size("stream schedules")
PARTS: dict[str, Any] = {"fingerprint": FINGERPRINT}


class _Step:
    """A request that is in flight, or its reply."""

    def __await__(self) -> Any:
        yield


class Store:
    """Objects in memory. Each request takes two steps: it arrives, and it is answered."""

    uri = "memory:///orders"

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.objects = dice, dict[str, bytes]()
        self.clock = 0
        self.created: dict[str, int] = {}
        """The time at which each object was created."""

    def where(self, path: str) -> str:
        return path

    async def _way(self) -> None:
        await _Step()
        if self.dice.random() < 0.02:
            raise OutputUnavailable("no answer")

    async def create(self, path: str, data: bytes) -> bool:
        await self._way()
        fresh = path not in self.objects
        if fresh:
            self.objects[path], self.created[path] = data, self.clock
        await self._way()
        return fresh

    async def get(self, path: str) -> bytes | None:
        await self._way()
        return self.objects.get(path)

    async def tail(self, path: str, length: int) -> Tail | None:
        raise NotImplementedError

    async def list(self, prefix: str) -> tuple[Listed, ...]:
        await self._way()
        stale = self.dice.random() < 0.1
        return tuple(Listed(path, 1) for path in sorted(self.objects) if path.startswith(f"{prefix}/") and not stale)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        raise NotImplementedError

    async def persist(self, paths: Iterable[str]) -> None:
        await self._way()

    async def delete(self, path: str) -> None:
        raise NotImplementedError

    async def delete_folder(self, prefix: str) -> None:
        raise NotImplementedError


@dataclass
class Verdict:
    """A settler's answer, and when it got it."""

    attempt: int
    at: int
    slot: Slot | None
    ended: bool


@dataclass(eq=False)
class Running:
    coroutine: Coroutine[Any, Any, None]
    until: int
    """It takes no step before this time."""


@dataclass
class World:
    dice: random.Random
    running: list[Running] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    told: list[Slot] = field(default_factory=list)
    """Slots that were reported as committed to some process."""
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store = Store(self.dice)

    def sink(self) -> SlotLogSink:
        return SlotLogSink(self.store, name="orders")

    # --- processes ---

    async def driver(self, token: int, name: str) -> None:
        with contextlib.suppress(OutputUnavailable):  # it dies of it; the next attempt finds out
            await self._drive(token, name)

    async def _drive(self, token: int, name: str) -> None:
        sink = self.sink()
        opening = await sink.fence(KEY, token, by=name, **PARTS)
        if opening is None:
            mine = stream.opening_of(
                KEY, token, query_id="q", first_batch=0, fingerprint=FINGERPRINT, on_rerun=OnRerun.REPLACE
            )
            decision = await sink.commit(KEY, mine)
            if not isinstance(decision, Committed | AlreadyCommitted):
                self.counts["opening refused"] += 1
                return
            opening = decision.slot
        chain = await stream.close(sink, KEY, opening, token, by=name, **PARTS)
        while not chain.ended and chain.next < BATCHES:
            number = chain.next
            staged = committing(stream.place(KEY, number), token, nonce=f"{name}-{number}")
            slot = stream.batch_of(chain, number, staged, plan=f"plan of {number}")
            decision = await stream.commit(sink, KEY, chain, slot)
            if not isinstance(decision, Committed | AlreadyCommitted):
                self.counts["batch refused"] += 1
                return
            self.counts[type(decision).__name__] += 1
            self.told.append(decision.slot)
            chain = chain.followed_by(decision.slot)
        chain, barred = await stream.finish(sink, KEY, chain, token, by=name)
        self.counts["end refused" if barred else "ended"] += 1
        if not barred:
            self.told.append(chain.last)

    async def settler(self, attempt: int, name: str, *, end: bool) -> None:
        sink = self.sink()
        while True:
            with contextlib.suppress(OutputUnavailable):  # a settle is repeated until it is answered
                opening = await sink.fence(KEY, attempt + 1, by=name, **PARTS)
                slot, ended = None, False
                if opening is not None:
                    slot, ended = await stream.settled(sink, KEY, opening, attempt, by=name, end=end, **PARTS)
                self.verdicts.append(Verdict(attempt, self.store.clock, slot, ended))
                self.counts[f"settled: {'nothing' if slot is None else 'end' if ended else 'some'}"] += 1
                return

    # --- the schedule ---

    def play(self) -> None:
        """Runs attempts one after another, each begun after the one before was settled; an earlier attempt may still be running."""
        token, settling = 1, False
        self._begin(token)
        while self.running:
            self.store.clock += 1
            if not settling and self.dice.random() < 0.02:
                settling = True
                end = self.dice.random() < 0.15
                for twin in range(1 + (self.dice.random() < 0.3)):
                    self._start(self.settler(token, f"settle-{token}-{twin}", end=end))
            if settling and token < TOKENS and any(each.attempt == token for each in self.verdicts):
                token, settling = token + 1, False
                self._begin(token)
            awake = [each for each in self.running if each.until <= self.store.clock]
            if awake:
                self._step(self.dice.choice(awake))

    def _step(self, one: Running) -> None:
        try:
            one.coroutine.send(None)
        except StopIteration:
            self.running.remove(one)
            return
        if self.dice.random() < 0.002:
            one.coroutine.close()
            self.running.remove(one)
            self.counts["killed"] += 1
        elif self.dice.random() < 0.02:
            one.until = self.store.clock + self.dice.randrange(20, 400)
            self.counts["frozen"] += 1

    def _begin(self, token: int) -> None:
        for twin in range(1 + (self.dice.random() < 0.4)):
            self._start(self.driver(token, f"d{token}-{twin}"))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Starts a process that may be delayed: a takeover does not wait for the old one."""
        late = self.dice.randrange(20, 400) if self.dice.random() < 0.3 else 0
        self.running.append(Running(coroutine, self.store.clock + late))

    # --- invariants of the slots ---

    def committed(self) -> list[tuple[int, Slot]]:
        """The committed slots with their creation times, in the order of the chain."""
        found = []
        for path, data in self.store.objects.items():
            _, sink_key, _ = path.split("/")
            slot = layout.decode(data, where=path, sink_key=sink_key, token=layout.numbered(path) or 0)
            if slot.state is SlotState.COMMITTED:
                found.append((self.store.created[path], slot))
        return sorted(found, key=lambda each: -1 if (n := layout.batch_of(each[1].sink_key)) is None else n)

    def check(self) -> None:
        chain = self.committed()
        places = [layout.batch_of(slot.sink_key) for _, slot in chain]
        assert places == [None, *range(len(chain) - 1)][: len(chain)], "one commit per place, and no gap"
        tokens = [slot.token for _, slot in chain]
        assert tokens == sorted(tokens), "tokens never fall along the chain"
        kinds = [mark(slot).part for _, slot in chain]
        assert StreamPart.END not in kinds[:-1], "nothing comes after the end"
        assert [mark(s).batches for _, s in chain if mark(s).part is StreamPart.BATCH] == list(
            range(1, kinds.count(StreamPart.BATCH) + 1)
        )
        for verdict in self.verdicts:
            for created, slot in chain:
                late = created > verdict.at and slot.token <= verdict.attempt
                assert not late, f"{slot.sink_key}/{slot.token} after attempt {verdict.attempt} was settled"
                mine = slot.token <= verdict.attempt and mark(slot).part is StreamPart.BATCH
                assert not (mine and verdict.slot is None), "settled as nothing, and there is a batch"
            if verdict.slot is not None:
                assert verdict.slot in [slot for _, slot in chain]
        for slot in self.told:
            assert slot in [each for _, each in chain]


def played(seed: int) -> World:
    world = World(random.Random(seed))
    world.play()
    return world


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once, since the schedules, not the clock, decide the order."""
    monkeypatch.setattr(slots, "RESEND_AFTER", (0.0, 0.0, 0.0))


@pytest.fixture
def seed() -> int:
    drawn = effort.seed("stream model")
    print(f"SEED={effort.base()}")
    return drawn


def test_no_schedule_breaks_the_chain(seed: int) -> None:
    """Whatever is lost, delayed or killed, there is one commit per place, no gap, tokens never decrease, nothing follows the end, and an
    attempt commits nothing, in any place, after it was settled."""
    counts: Counter[str] = Counter()
    for number in range(SCHEDULES):
        world = played(seed + number)
        world.check()
        counts += world.counts
    print(dict(counts))
    needed = (
        "Committed",
        "AlreadyCommitted",
        "opening refused",
        "batch refused",
        "end refused",
        "ended",
        "settled: nothing",
        "settled: some",
        "settled: end",
        "killed",
        "frozen",
    )
    assert [name for name in needed if not counts[name]] == []


async def _without_chain_rule(sink: Any, key: SinkKey, chain: Chain, slot: Slot) -> Any:
    return await sink.commit(stream.place(key, chain.next), slot, lowest=chain.last.token)


async def _looks_only(sink: Any, key: SinkKey, opening: Slot, *_: Any, **__: Any) -> Chain:
    return await stream.walk(sink, key, opening)


async def _fences_one_place(sink: Any, key: SinkKey, opening: Slot, token: int, *, fingerprint: str, by: str) -> Chain:
    chain = await stream.walk(sink, key, opening)
    if not chain.ended:
        await sink.fence(stream.place(key, chain.next), token, fingerprint=fingerprint, by=by, lowest=chain.last.token)
    return chain


@pytest.mark.parametrize(
    ("rule", "without"),
    [
        ("commit", _without_chain_rule),
        ("close", _looks_only),
        ("close", _fences_one_place),
    ],
    ids=["chain rule", "closing", "going on"],
)
def test_each_rule_is_needed(monkeypatch: pytest.MonkeyPatch, seed: int, rule: str, without: Any) -> None:
    """Without one of the rules, the same schedules soon end in a broken chain."""
    monkeypatch.setattr(stream, rule, without)
    for number in range(SCHEDULES * 5):
        try:
            played(seed + number).check()
        except AssertionError as broken:
            print(f"schedule {number}: {broken}")
            return
    pytest.fail("no schedule needed the rule")
