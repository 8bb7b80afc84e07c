"""Processes that write streams to one table at the same time, and the answers that they got.

As `sink_attempts`, for streams: each process runs drivers of one token over many streams (open, batch after batch, end), some settle
first, as an owner would. Each starts from the state that it finds and continues until it is refused or the stream has ended; none knows
whether another one is dead.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from multiprocessing.context import ForkServerProcess
from typing import Any

from harness import sink_attempts
from harness.arrow_stage import table_of
from harness.sink_attempts import FINGERPRINT, Plan, key_of
from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.errors import Fenced, SparkonceError
from sparkonce.model.spec import OnRerun
from sparkonce.sink import stream
from sparkonce.sink.protocol import AlreadyCommitted, Committed, Slot
from sparkonce.sink.stream import Chain, mark

BATCHES = 5


def rows_of(name: str, number: int) -> list[int]:
    """The rows of one batch of a stream, independent of its writer."""
    return [int(name[1:]) * 1000 + number * 10 + row for row in range(4)]


def start(plan: Plan) -> ForkServerProcess:
    """Starts a process that carries out the plan; the fork server runs already."""
    process = multiprocessing.get_context("forkserver").Process(target=carry_out, args=(plan,), daemon=True)
    process.start()
    return process


def carry_out(plan: Plan) -> None:
    os.environ.update(plan.environment)
    os.environ["SPARKONCE_FAILPOINTS"] = plan.failpoints
    os.environ["SPARKONCE_FAILPOINTS_LOG"] = plan.hits
    failpoints.reset()
    dice = random.Random(plan.seed)
    for name in sink_attempts.keys_of(plan):
        _tell(plan, name, "begin", None)
        if dice.random() < 0.4:
            _settle(plan, name, _sink(plan), end=dice.random() < 0.1)
        if dice.random() < 0.9:
            _drive(plan, name, _sink(plan), dice)


def _sink(plan: Plan) -> Any:
    """The sink, of any kind: a process for tables replaces the way to open them."""
    return sink_attempts.sink_at(plan.table)


def _tell(plan: Plan, name: str, what: str, slot: Slot | None, *, attempt: int = 0) -> None:
    line = {
        "token": plan.token,
        "key": name,
        "what": what,
        "nonce": slot.nonce if slot else None,
        "attempt": attempt,
        "last": mark(slot).last_batch if slot else None,
    }
    descriptor = os.open(plan.answers, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, json.dumps(line).encode() + b"\n")
    os.close(descriptor)


def _settle(plan: Plan, name: str, sink: Any, *, end: bool) -> None:
    """Settles as the owner of the previous attempt."""
    key, attempt = key_of(name), plan.token - 1
    opening = run(sink.fence(key, attempt + 1, fingerprint=FINGERPRINT, by=plan.process))
    slot, ended = None, False
    if opening is not None:
        slot, ended = run(
            stream.settled(sink, key, opening, attempt, fingerprint=FINGERPRINT, by=plan.process, end=end)
        )
    _tell(plan, name, "settled end" if ended else "settled some" if slot else "settled none", slot, attempt=attempt)


def _drive(plan: Plan, name: str, sink: Any, dice: random.Random) -> None:
    key, token = key_of(name), plan.token
    opening = run(sink.fence(key, token, fingerprint=FINGERPRINT, by=plan.process))
    if opening is None:
        mine = stream.opening_of(
            key, token, query_id=f"q-{name}", first_batch=0, fingerprint=FINGERPRINT, on_rerun=OnRerun.REPLACE
        )
        decision = run(sink.commit(key, mine))
        if not isinstance(decision, Committed | AlreadyCommitted):
            _tell(plan, name, "opening refused", None)
            return
        opening = decision.slot
    chain = run(stream.close(sink, key, opening, token, fingerprint=FINGERPRINT, by=plan.process))
    while not chain.ended and chain.next < BATCHES:
        decided = _batch(plan, name, sink, chain)
        if decided is None:
            return
        chain = decided
        if dice.random() < 0.1:
            run(sink.sweep(key))
    chain, barred = run(stream.finish(sink, key, chain, token, by=plan.process))
    _tell(plan, name, "end refused" if barred else "Ended", None if barred else chain.last)


def _batch(plan: Plan, name: str, sink: Any, chain: Chain) -> Chain | None:
    key, number = key_of(name), chain.next
    place = stream.place(key, number)
    try:
        staged = sink.stage(table_of(*rows_of(name, number)), place, plan.token, fingerprint=FINGERPRINT)
    except (SparkonceError, OSError) as error:  # swept as hopeless during the write
        _tell(plan, name, "staging Fenced" if isinstance(error, Fenced) else "staging failed", None)
        return None
    slot = stream.batch_of(chain, number, staged, plan=f"{number}")
    decision = run(stream.commit(sink, key, chain, slot))
    if not isinstance(decision, Committed | AlreadyCommitted):
        _tell(plan, name, "batch refused", None)
        return None
    _tell(plan, name, type(decision).__name__, decision.slot)
    return chain.followed_by(decision.slot)
