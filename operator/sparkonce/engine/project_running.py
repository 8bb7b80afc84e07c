"""The phase of a job in progress, and the sentence beside it. Pure.

Recovering means: something was lost, and nobody has seen the job running since. That is an attempt that nobody owns (its operator
ended), one that is being settled because it was lost, and one that follows another until its own driver has been seen to run. An
owner that takes over finds the application in the record, where its predecessor noted it, so the phase is Running again at once.

A phase never comes from a guess about time, and no sentence holds a number that changes by itself: each would be a write.
"""

from __future__ import annotations

import datetime as dt

from sparkonce.engine.decide import wished
from sparkonce.engine.policy import Policy
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Record, Settling, Why
from sparkonce.store.protocol import View

_LOSSES = frozenset({Why.LOST, Why.PREEMPTED, Why.STALE, Why.NAME_TAKEN})
_RUNS = frozenset({Phase.RUNNING, Phase.FINISHING})


def settling_now(record: Record) -> Settling | None:
    settling = record.settling
    return settling if settling is not None and settling.attempt >= record.attempt else None


def phase_of(view: View, record: Record) -> str:
    settling = settling_now(record)
    if view.claim is None or (settling is not None and settling.why in _LOSSES):
        return "Recovering"
    if record.phase in _RUNS:
        return "Running"
    return "Pending" if record.attempt == 1 else "Recovering"


def said_of(view: View, record: Record, leader: Policy | None) -> str:
    """What is going on, or what is waited for."""
    number = f"attempt {record.attempt}"
    settling = settling_now(record)
    if view.claim is None:
        return f"{number} has no owner; the next operator process goes on where it stands"
    if settling is not None:
        return f"{number} is being settled: {settling.note or settling.why}"
    if record.stop_wanted is not None:
        ends = (
            f"{number} ends"
            if record.bound is None
            else f"it waits for the end of application {record.bound.application}"
        )
        return f"{wished(record.stop_wanted)}; {ends}"
    if record.bound is not None:
        return _followed(record)
    if record.application is None:
        if leader is not None and leader.suspend:
            return "suspended; set spec.suspend to false to start it"
        return _granted(record, number)
    if record.phase == Phase.HELD:
        return f"{number} waits for its queue"
    return f"{number} runs" if record.phase in _RUNS else f"{number} waits for its driver"


def _followed(record: Record) -> str:
    assert record.bound is not None  # asked of bound records only
    name = record.bound.application
    if record.application is None:
        return f"application {name} is looked at"
    if record.phase == Phase.HELD:
        return f"follows application {name}, which is suspended"
    return f"follows application {name}, which " + ("runs" if record.phase in _RUNS else "waits for its driver")


def _granted(record: Record, number: str) -> str:
    """Not launched yet."""
    before = (
        f"attempt {record.settling.attempt} ended: {record.settling.note or record.settling.why}; "
        if record.settling
        else ""
    )
    if record.not_before is None:
        return f"{before}{number} is about to be launched"
    return f"{before}{number} is launched at {iso(record.not_before)}"


def iso(seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC, to the second, as Kubernetes writes times."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
