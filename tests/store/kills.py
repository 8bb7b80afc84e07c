"""The calls that are killed half-way: each verb that writes, on a key prepared for it, carried out by another process.

After a kill this process reads the store and repeats the call, as a caller without an answer must.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sparkonce.blocking import run
from sparkonce.model.record import Beat, Event, HeldReason, Intent, Opener, Record, Report, State, StopWanted, Why
from sparkonce.store.ledger import HeldLease
from sparkonce.store.protocol import (
    Attached,
    Claim,
    Finalized,
    Gone,
    IdempotencyStore,
    NotFound,
    Owned,
    Request,
    Sealed,
    Updated,
)
from store.samples import Key, fresh, request, reserved, result
from store.worker import Killed, Worker

SEED = Event(what="Granted", by="me")
UNLIKE = {"keyHash", "key", "nonce", "openers", "createdAt", "grantedAt", "finalizedAt", "expiresAt", "at", "owner"}
"""Fields in which two keys with the same history may differ."""


@dataclass(frozen=True)
class Borrowed(HeldLease):
    """The lease of the parent process, which lives on when this process is killed."""

    id: str
    owner: str

    @property
    def ended(self) -> bool:
        return False

    async def keep_alive(self) -> bool:
        raise NotImplementedError

    async def revoke(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Call:
    """The input of the other process: the key as its caller knows it, and the values that a repetition must send again."""

    verb: str
    record: Record
    claim: Claim
    lease: Borrowed
    asked: Request


@dataclass(frozen=True)
class Case:
    prepare: Callable[[Key], object]
    carry_out: Callable[[IdempotencyStore, Call], Coroutine[Any, Any, Any]]
    done: Any
    """The expected answer of the verb: its type or its value."""
    again: Any = None
    """The expected answer to a repetition after the verb was done, if it differs."""


def nothing(key: Key) -> None:
    """Leaves the key as reserved."""


def unowned(key: Key) -> None:
    run(key.store.drop(key.claim))


def absent(key: Key) -> None:
    key.finalize()
    run(key.store.purge(key.record, now=1e12))


def ended(key: Key) -> None:
    """Finalized, with an entry of every kind beside the record."""
    nonce = key.record.nonce
    run(key.store.report(key.address, 1, Report(attempt=1, reporter="d", kind="values")))
    run(key.store.renew(key.address, 1, Beat(attempt=1, nonce=nonce, by="driver")))
    run(key.store.seal(key.address, generation=1, token=1, nonce=nonce, intent=INTENT))
    key.record = key.now()
    key.finalize()


INTENT = Intent(token=1, slots={"orders": {"digest": "d"}})
STOP = StopWanted(why=Why.CANCELLED, by="ann")
REPORT = Report(attempt=1, reporter="driver", kind="values", body={"n": 1})

CASES: dict[str, Case] = {
    "reserve": Case(absent, lambda store, call: store.reserve(call.asked, lease=call.lease, floor=1), Owned),
    "take_over": Case(
        unowned, lambda store, call: store.take_over(call.record, lease=call.lease, nonce=call.asked.nonce), Owned
    ),
    "heartbeat": Case(nothing, lambda store, call: store.heartbeat(call.claim), Updated),
    "drop": Case(nothing, lambda store, call: store.drop(call.claim), None),
    "update": Case(
        nothing,
        lambda store, call: store.update(call.record, call.claim, call.record.changed(phase="Running"), event=SEED),
        Updated,
    ),
    "update that holds": Case(
        nothing,
        lambda store, call: store.update(
            call.record, call.claim, call.record.changed(state=State.HELD, held=HeldReason.UNKNOWN)
        ),
        Updated,
    ),
    "finalize": Case(
        nothing, lambda store, call: store.finalize(call.record, call.claim, result(), retention=1.0), Finalized
    ),
    "reopen": Case(ended, lambda store, call: store.reopen(call.record, call.asked, lease=call.lease), Owned),
    "attach": Case(nothing, lambda store, call: store.attach(call.record, "follower"), Attached),
    "request_stop": Case(nothing, lambda store, call: store.request_stop(call.record, STOP), Updated),
    "seal": Case(
        nothing,
        lambda store, call: store.seal(
            call.record.address, generation=1, token=1, nonce=call.record.nonce, intent=INTENT
        ),
        Sealed,
    ),
    "report": Case(nothing, lambda store, call: store.report(call.record.address, 1, REPORT), True),
    "renew": Case(
        nothing,
        lambda store, call: store.renew(call.record.address, 1, Beat(attempt=1, nonce=call.record.nonce, by="driver")),
        True,
    ),
    "purge": Case(ended, lambda store, call: store.purge(call.record, now=1e12), Gone, again=NotFound),
    "forget": Case(ended, lambda store, call: store.forget(call.record, Event(what="Forgotten")), Gone, again=NotFound),
}


def carry_out(store: IdempotencyStore, lease: object, call: Call) -> Any:
    """Runs in the process that is killed."""
    return run(CASES[call.verb].carry_out(store, call))


def prepared(store: IdempotencyStore, verb: str) -> Call:
    """A new key, prepared for the verb."""
    key = reserved(store)
    CASES[verb].prepare(key)
    nonce = fresh()
    asked = request(key.record.key, nonce=nonce, by=Opener(nonce=nonce))
    return Call(verb, key.record, key.claim, Borrowed(key.lease.id, key.claim.owner), asked)


def standing(store: IdempotencyStore, call: Call) -> dict[str, Any]:
    """Everything that the store holds about the key."""
    address = call.record.address
    view = run(store.load(address))
    beside = {
        generation: (
            run(store.spec(address, generation)),
            run(store.result(address, generation)),
            run(store.intent(address, generation)),
            list(run(store.reports(address, generation))),
            sorted(run(store.beats(address, generation))),
        )
        for generation in (1, 2)
    }
    return {
        "record": view.record and view.record.dump(),
        "revision": view.record and view.record.revision,
        "claim": view.claim,
        "floor": view.floor,
        "events": [event.dump() for event in run(store.events(address))],
        "beside": beside,
    }


def likeness(stands: dict[str, Any]) -> dict[str, Any]:
    """What two keys with the same history must have in common."""

    def known(values: dict[str, Any] | None) -> dict[str, Any] | None:
        return values and {name: value for name, value in values.items() if name not in UNLIKE}

    return {
        "record": known(stands["record"]),
        "claim": stands["claim"] is not None,
        "floor": stands["floor"],
        "events": [known(event | {"by": ""}) for event in stands["events"]],
        "beside": stands["beside"],
    }


def answered(done: Any, expected: Any) -> bool:
    return isinstance(done, expected) if isinstance(expected, type) else done == expected


def killed(mortal: Worker, call: Call, fail: str) -> bool:
    """Whether the process was killed while it carried out the verb."""
    mortal.ask(carry_out, call, fail=fail)
    try:
        mortal.answer()
    except Killed:
        return True
    return False
