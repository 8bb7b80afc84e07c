"""Random sequences of calls to two stores, and their answers in comparable form.

Calls use few keys, leases and nonces, and records and claims of any age, so that most kinds of refusal occur.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from sparkonce.blocking import run
from sparkonce.errors import SparkonceError
from sparkonce.model.record import (
    Beat,
    Event,
    HeldReason,
    Opener,
    Outcome,
    Record,
    Report,
    Settling,
    State,
    StopWanted,
    Why,
)
from sparkonce.store.protocol import Claim, IdempotencyStore, Lease, Query, Request
from store.samples import address_of, intent, request, result

KEYS = ("a", "b", "c")
CARRIED_OUT = (
    ("reserve", "Owned"),
    ("take_over", "Owned"),
    ("heartbeat", "Updated"),
    ("update", "Updated"),
    ("finalize", "Finalized"),
    ("reopen", "Owned"),
    ("attach", "Attached"),
    ("request_stop", "Updated"),
    ("seal", "Sealed"),
    ("report", "True"),
    ("renew", "True"),
    ("purge", "Gone"),
    ("forget", "Gone"),
)


class Side:
    """One of the two stores, with the leases, records and claims that its caller has seen."""

    def __init__(self, store: IdempotencyStore, expire: Callable[[Any], object]) -> None:
        self.store, self.expire = store, expire
        self.leases: list[Lease] = []
        self.records: list[Record] = []
        self.claims: list[Claim] = []

    def open_lease(self) -> None:
        self.leases.append(run(self.store.open_lease(owner=f"owner {len(self.leases)}")))

    def revision(self, value: int) -> int:
        """The revision in comparable form."""
        return value

    def plain(self, value: Any) -> Any:
        """The value in comparable form. Remembers its records and claims, which later calls use."""
        if isinstance(value, Record):
            self.records.append(value)
            return value.dump() | {"revision": self.revision(value.revision), "epoch": value.epoch}
        if isinstance(value, Claim):
            self.claims.append(value)
            number = [one.id for one in self.leases].index(value.lease)
            return number, value.address, value.owner, self.revision(value.revision), value.nonce
        if isinstance(value, BaseModel):
            return value.model_dump()
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: self.plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return type(value).__name__, fields
        if isinstance(value, dict):
            return {name: self.plain(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(one) for one in value]
        return value


@dataclasses.dataclass(frozen=True)
class Step:
    """One call; its numbers select from the existing choices, modulo their count."""

    verb: str
    key: int
    lease: int
    variant: int
    old: bool
    """Whether to use a record and a claim that this caller saw some time ago, perhaps of another key, instead of the current ones."""


def pick(choices: Any, number: int) -> Any:
    return choices[number % len(choices)]


def asked(step: Step) -> Request:
    """A request with one of few nonces, openers and fingerprints, so that repetitions, duplicates and mismatches are common."""
    nonce = f"n{step.variant % 7}"
    by = Opener(nonce=nonce) if step.variant % 3 else Opener(uid="u", number=step.variant % 2, fingerprint="f")
    fingerprint = "other" if step.variant % 11 == 5 else "same"
    return request(
        pick(KEYS, step.key), nonce=nonce, by=by, fingerprints={1: fingerprint}, objects=(f"o{step.variant % 2}",)
    )


def lease(side: Side, step: Step) -> Lease:
    """Usually the newest lease, which is usually alive."""
    return pick(side.leases, step.lease) if step.old else side.leases[-1]


def floor(side: Side, step: Step) -> int:
    """The current floor, or an earlier one."""
    return run(side.store.load(address_of(pick(KEYS, step.key)))).floor - step.old


def changed(record: Record, variant: int) -> Record:
    match variant % 6:
        case 0:
            return record.changed(attempt=record.attempt + 1, nonce=f"g{variant}")
        case 1:
            return record.changed(settling=Settling(attempt=record.attempt, why=Why.LOST))
        case 2:
            return record.changed(state=State.HELD, held=pick(list(HeldReason), variant // 6))
        case 3:
            return record.changed(state=State.IN_PROGRESS, held=None)
        case _:
            return record.changed(phase=f"p{variant % 3}")


VERBS: dict[str, Callable[[Side, Step, Record, Claim], Any]] = {
    "reserve": lambda s, t, r, c: s.store.reserve(asked(t), lease=lease(s, t), floor=floor(s, t)),
    "take_over": lambda s, t, r, c: s.store.take_over(r, lease=lease(s, t), nonce=f"t{t.variant % 5}"),
    "heartbeat": lambda s, t, r, c: s.store.heartbeat(c),
    "drop": lambda s, t, r, c: s.store.drop(c),
    "update": lambda s, t, r, c: s.store.update(r, c, changed(r, t.variant), event=Event(what="e", by="x")),
    "finalize": lambda s, t, r, c: s.store.finalize(
        r, c, result(r.generation, outcome=pick(list(Outcome), t.variant // 4)), retention=t.variant % 4
    ),
    "reopen": lambda s, t, r, c: s.store.reopen(
        r, dataclasses.replace(asked(t), address=r.address, key=r.key), lease=lease(s, t)
    ),
    "attach": lambda s, t, r, c: s.store.attach(r, f"f{t.variant % 3}"),
    "request_stop": lambda s, t, r, c: s.store.request_stop(r, StopWanted(why=Why.CANCELLED, by=f"p{t.variant}")),
    "seal": lambda s, t, r, c: s.store.seal(
        r.address,
        generation=r.generation,
        token=r.attempt,
        nonce=r.nonce,
        intent=intent(r.attempt, f"d{t.variant % 2}"),
    ),
    "report": lambda s, t, r, c: s.store.report(
        r.address, r.generation, Report(attempt=r.attempt, reporter=f"r{t.variant % 2}", kind=f"k{t.variant % 3}")
    ),
    "renew": lambda s, t, r, c: s.store.renew(
        r.address, r.generation, Beat(attempt=r.attempt, nonce=r.nonce, by=pick(("driver", "owner"), t.variant))
    ),
    "purge": lambda s, t, r, c: s.store.purge(r, now=float(t.variant)),
    "forget": lambda s, t, r, c: s.store.forget(r, Event(what="Forgotten", by="x")),
}
LEASES = ("open", "open", "expire", "revoke", "keep_alive")
WEIGHTS = {"reserve": 6, "update": 5, "finalize": 5, "take_over": 4, "reopen": 5, "forget": 3}
"""Relative frequency of a verb; 2 for any other."""


def drawn(seed: int) -> list[Step]:
    """Random steps. Few of them end leases; otherwise no key would ever be owned."""
    rng = random.Random(seed)
    often = [verb for verb in VERBS for _ in range(WEIGHTS.get(verb, 2))]
    verbs = ["reserve"] + [rng.choice(LEASES if rng.random() < 0.1 else often) for _ in range(rng.randint(20, 60))]

    def number() -> int:
        return rng.randrange(1000)

    return [Step(verb, number(), number(), number(), rng.random() < 0.2) for verb in verbs]


def answer(side: Side, step: Step) -> Any:
    """The store's answer, errors included."""
    if step.verb in LEASES:
        return leased(side, step)
    view = run(side.store.load(address_of(pick(KEYS, step.key))))
    record, claim = view.record, view.claim
    if step.old or record is None:
        record = pick(side.records[-12:], step.variant) if side.records else None
    if step.old or claim is None:
        claim = pick(side.claims[-6:], step.variant) if side.claims else None
    if step.verb != "reserve" and (record is None or claim is None):
        return "nothing yet"
    try:
        return side.plain(run(VERBS[step.verb](side, step, record, claim)))  # type: ignore[arg-type]  # reserve needs neither
    except (SparkonceError, ValueError) as error:
        return type(error).__name__, str(error)


def leased(side: Side, step: Step) -> Any:
    chosen = pick(side.leases, step.lease)
    match step.verb:
        case "open":
            side.open_lease()
        case "keep_alive":
            return run(chosen.keep_alive())
        case "revoke":
            run(chosen.revoke())
        case _:
            side.expire(chosen)
    return None


def known(side: Side, key: str) -> Any:
    """Everything that can be read about a key."""
    store, at = side.store, address_of(key)
    view = run(store.load(at))
    seen: list[Any] = [view, run(store.events(at))]
    for generation in range(1, view.floor + 4):
        seen += [run(store.spec(at, generation)), run(store.result(at, generation)), run(store.intent(at, generation))]
        seen += [run(store.reports(at, generation)), run(store.beats(at, generation))]
    return side.plain(seen)


def everything(side: Side) -> Any:
    """Everything that can be read."""
    store = side.store
    seen: list[Any] = [run(store.list(Query(states=["Finalized"], limit=1))), run(store.list(Query()))]
    seen += [run(store.list(Query(states=["InProgress", "Held"], limit=2)))]
    seen += [run(store.count()), run(store.count(live_only=True)), run(store.realms())]
    return [side.plain(seen), [known(side, key) for key in KEYS]]
