"""Objects, records and views of one key, as the tests of requests, statuses and rewound stores make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkonce.attempt.decide import Policy
from sparkonce.controller.objects import ObjectRef, ObjectView
from sparkonce.controller.status import project
from sparkonce.model.record import (
    Application,
    Failure,
    HeldReason,
    Opener,
    Outcome,
    OutputResult,
    Record,
    Result,
    State,
)
from sparkonce.model.spec import OnDuplicate, OnFinalized, OnMismatch
from sparkonce.store.protocol import Claim, View

HASH = "ab" * 32
NOW, LATER = "2026-11-21T12:00:00Z", "2026-11-21T13:00:00Z"
DEFAULT = Policy(declared=True)
SUPERSEDE = Policy(declared=True, on_mismatch=OnMismatch.SUPERSEDE)
RERUN = Policy(declared=True, on_finalized=OnFinalized.RERUN_IF_FAILED)
REJECT = Policy(declared=True, on_duplicate=OnDuplicate.REJECT)


def entry(uid: str) -> str:
    """An object's entry in a record."""
    return f"{uid}/etl/job-{uid}"


def opened(uid: str, number: int = 1, fingerprint: str = "A") -> Opener:
    return Opener(uid=uid, number=number, fingerprint=fingerprint)


def record(**changes: Any) -> Record:
    """An unfinished record: generation 1 for job A, opened by object X, with attempt 1 running."""
    fields: dict[str, Any] = {
        "realm": "etl",
        "key_hash": HASH,
        "key": "load/may@1",
        "generation": 1,
        "attempt": 1,
        "nonce": "nonce-1",
        "fingerprint": "A",
        "fingerprint_version": 1,
        "openers": (opened("X"),),
        "objects": (entry("X"),),
        "phase": "Running",
        "application": Application(name="so-1", uid="app-1"),
        "revision": 10,
        "epoch": 1,
    }
    return Record(**(fields | changes))


def ended(outcome: Outcome = Outcome.SUCCEEDED, **changes: Any) -> Record:
    return record(**({"state": State.FINALIZED, "outcome": outcome, "revision": 20, "note": ""} | changes))


def held(reason: HeldReason = HeldReason.UNKNOWN, **changes: Any) -> Record:
    return record(**({"state": State.HELD, "held": reason, "note": "nobody can tell", "revision": 15} | changes))


def view(of: Record | None, *, owned: bool = True, floor: int = 0, revision: int = 100, epoch: int = 1) -> View:
    claim = None
    if of is not None and owned and of.state is State.IN_PROGRESS:
        claim = Claim(address=of.address, lease="lease", owner="operator-1", revision=9, nonce="claim")
    return View(record=of, claim=claim, floor=floor, revision=revision, epoch=epoch)


def obj(uid: str = "X", spec: str = "A", **changes: Any) -> ObjectView:
    """An object. `spec` is its fingerprint in version 1."""
    fields: dict[str, Any] = {
        "ref": ObjectRef(uid, "etl", f"job-{uid}"),
        "fingerprints": {1: spec} if spec else {},
        "policy": DEFAULT if spec else None,
        "key": "load/may@1",
        "key_hash": HASH,
        "created": f"2026-11-21T10:00:0{len(uid)}Z",
    }
    return ObjectView(**(fields | changes))


def edited(of: ObjectView, spec: str | None = None, **changes: Any) -> ObjectView:
    """The same object after one more edit."""
    fingerprints = of.fingerprints if spec is None else {1: spec} if spec else {}
    return replace(of, generation=of.generation + 1, fingerprints=fingerprints, **changes)


def told(of: ObjectView, at: View, **known: Any) -> ObjectView:
    """The object with the status that this view of the ledger gives it."""
    return replace(of, status=project(at, of, now_text=NOW, **known))


def result(outcome: Outcome = Outcome.SUCCEEDED, **changes: Any) -> Result:
    outputs = (
        OutputResult(
            name="orders", kind="slotLog", uri="s3://t/orders", commit="c/1", rows=7, bytes=70, files=1, digest="d"
        ),
    )
    failure = (
        None if outcome is Outcome.SUCCEEDED else Failure(class_="Exited", message="the driver ended with exit code 3")
    )
    fields: dict[str, Any] = {
        "outcome": outcome,
        "generation": 1,
        "attempts": 1,
        "outputs": outputs if outcome is Outcome.SUCCEEDED else (),
        "values": {"rows_seen": 7} if outcome is Outcome.SUCCEEDED else {},
        "evidence": "slots committed by attempt 1",
        "started_at": 1_790_000_000.0,
        "finished_at": 1_790_000_060.5,
        "failure": failure,
    }
    return Result(**(fields | changes))


def condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The condition of this type; {} if the status has none."""
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})


def holds(status: Mapping[str, Any], kind: str) -> bool:
    return condition(status, kind).get("status") == "True"
