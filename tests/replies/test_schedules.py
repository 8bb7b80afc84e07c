"""Random schedules of several processes that serve one key over every ledger, with crashes, freezes, lost replies and the passing of time.

The process is a small program of ledger verbs, one per turn, as the coordinator sends them. The service that it serves keeps its fence in
the transaction of its effect, as docs/http.md asks of it. Rules are taken out in turn, and each absence must be found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness import effort
from harness.clocks import Clocks
from harness.etcd_replies import by_clock
from sparkonce.blocking import run
from sparkonce.replies.ledger import rules
from sparkonce.replies.ledger.memory import MemoryReplies
from sparkonce.replies.ledger.sqlite import SqliteReplies
from sparkonce.replies.protocol import KeyStanding, Reply, ReplyLedger, WriteOutcome

KEY = "ab" * 32
LEASE, LIFETIME = 10.0, 100_000.0
PROCESSES = 3
TURNS = 60
SHARES = {"memory": 1, "sqlite": 10, "etcd": 30}
"""Each ledger plays one schedule of so many: verbs take longer where others can see them."""


@dataclass
class Orders:
    """The service's own table: effects, and the largest token seen."""

    effects: list[str] = field(default_factory=list)
    fence: int = 0
    fenced: bool = True

    def place(self, process: str, token: int) -> str | None:
        if self.fenced and token < self.fence:
            return None
        self.effects.append(f"{process}/{token}")
        return self.effects[-1]

    def look(self, token: int) -> str | None:
        if not self.effects:
            self.fence = max(self.fence, token)
        return self.effects[0] if self.effects else None


class Lost(Exception):
    """The reply to a verb was lost."""


Turns = Generator[Callable[[], Any], Any, str | None]


def served(ledger: ReplyLedger, orders: Orders, process: str, nonce: str) -> Turns:
    """One request: yields each verb, and is sent its outcome; returns the answer, or None for 503."""
    while True:
        found = yield lambda: ledger.reserve(
            KEY, caller="c", fingerprint="f", nonce=nonce, lease=LEASE, lifetime=LIFETIME
        )
        token = found.record.takeovers + 1
        if found.standing is KeyStanding.ANSWERED:
            return str(found.record.reply.body.decode())
        if found.standing is KeyStanding.RUNNING:
            continue
        if found.standing is KeyStanding.STALE:
            seen, token = found.record.nonce, token + 1
            taken = yield lambda: ledger.take_over(KEY, seen=seen, nonce=nonce, lease=LEASE)  # noqa: B023 - called at once
            if taken is not WriteOutcome.WRITTEN:
                continue
            order = orders.look(token)
            yield _nothing
            if order is not None:
                return (yield from recorded(ledger, nonce, f"{order} as {process} found it"))
        yield _nothing
        order = orders.place(process, token)
        if order is None:
            return None
        yield _nothing
        return (yield from recorded(ledger, nonce, order))


def recorded(ledger: ReplyLedger, nonce: str, order: str) -> Turns:
    outcome = yield lambda: ledger.finalize(KEY, nonce, Reply(201, body=order.encode()), lifetime=LIFETIME)
    return order if outcome in (WriteOutcome.WRITTEN, WriteOutcome.ALREADY) else None


async def _nothing() -> None:
    """A turn in which the process does not speak to the ledger."""


def play(draw: random.Random, ledger: ReplyLedger, clocks: Clocks, orders: Orders) -> list[str]:
    """The answers that clients got."""
    running: dict[str, Turns] = {}
    waiting: dict[str, Callable[[], Any]] = {}
    answers: list[str] = []
    born = 0
    for turn in range(TURNS + 200):
        ending = turn >= TURNS  # no more faults: a client repeats until it is answered
        while len(running) < PROCESSES:
            born += 1
            name = f"p{born}"
            running[name] = served(ledger, orders, name, f"{born:04x}")
            waiting[name] = next(running[name])
        name = draw.choice(list(running))
        event = 1.0 if ending else draw.random()
        if event < 0.08:
            del running[name], waiting[name]  # killed
            continue
        if event < 0.25 or (ending and draw.random() < 0.3):
            clocks.move(draw.choice([1.0, 5.0, LEASE]))
        outcome = run(waiting[name]())
        if event > 0.92 and not ending:
            continue  # the reply was lost: the same verb again
        try:
            waiting[name] = running[name].send(outcome)
        except StopIteration as done:
            del running[name], waiting[name]
            if done.value is not None:
                answers.append(done.value)
        if ending and answers:
            break
    return answers


def judge(answers: list[str], orders: Orders) -> None:
    assert len(orders.effects) == 1, f"{len(orders.effects)} effects"
    assert len(set(answers)) == 1, f"answers that differ: {set(answers)}"
    assert answers[0].startswith(orders.effects[0]), "an answer that names no effect"


@pytest.mark.parametrize("kind", SHARES)
def test_every_schedule_ends_in_one_effect_and_one_answer(kind: str, tmp_path: Path) -> None:
    """One effect, whoever died, froze or was not answered; all answers agree, and name it."""
    seed, number = effort.seed("reply schedules"), effort.size("reply schedules")
    print(f"seed {seed}, {number} schedules")
    takeovers = 0
    for each in range(number // SHARES[kind]):
        clocks, draw = Clocks(), random.Random(f"{seed}/{each}")
        times: dict[str, Any] = {"clock": lambda: clocks.now, "monotonic": lambda: clocks.ticks}  # noqa: B023 - used in this round
        ledger: ReplyLedger
        if kind == "memory":
            ledger = MemoryReplies(**times)
        elif kind == "etcd":
            ledger = by_clock(clocks, **times)
        else:
            ledger = SqliteReplies(tmp_path / f"{each}.db", synchronous="OFF", **times)
        orders = Orders()
        answers = play(draw, ledger, clocks, orders)
        judge(answers, orders)
        found = run(ledger.look(KEY))
        assert found is not None
        takeovers += found.record.takeovers
        run(ledger.close())
    assert takeovers > 0  # not a few: most schedules have a death or a freeze


MUTANTS: dict[str, tuple[str, Any]] = {
    "a stale key is reserved again": (
        "reserve",
        lambda found, time, **given: rules.reserve(
            None if found and found.reply is None and not rules.left(found, time) else found, time, **given
        ),
    ),
    "the last to finalize is right": (
        "finalize",
        lambda found, time, *, nonce, **given: rules.finalize(
            found and replace(found, reply=None, nonce=nonce), time, nonce=nonce, **given
        ),
    ),
}


def _found_by(schedules: int, fenced: bool = True) -> bool:
    """Whether one of so many schedules shows a defect."""
    for each in range(schedules):
        clocks, draw, orders = Clocks(), random.Random(each), Orders(fenced=fenced)
        ledger = MemoryReplies(clock=lambda: clocks.now, monotonic=lambda: clocks.ticks)  # noqa: B023 - used in this round
        try:
            judge(play(draw, ledger, clocks, orders), orders)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_missing_rule_of_the_ledger_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mutant of the rules breaks a schedule."""
    verb, mutant = MUTANTS[rule]
    real = getattr(rules, verb)
    monkeypatch.setattr("sparkonce.replies.ledger.memory.rules", _Mutated(verb, mutant))
    assert real is getattr(rules, verb)
    assert _found_by(500)


class _Mutated:
    def __init__(self, verb: str, mutant: Any) -> None:
        self._verb, self._mutant = verb, mutant

    def __getattr__(self, name: str) -> Any:
        return self._mutant if name == self._verb else getattr(rules, name)


def test_a_service_without_a_fence_is_found() -> None:
    """Why NotDone must mean that there can be no effect any more: a frozen process wakes up and places its order."""
    assert _found_by(500, fenced=False)
