"""What is known of an attempt beside its application: what its driver reported, when it was heard last, for how long it may have run.

Reads the store, writes nothing and decides nothing. Silence is told together with for how long anybody could have been heard: a driver
that speaks through gateways is silent, too, when none of them serves, and an owner that has just taken over has heard nothing yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import inf

from sparkonce.engine.decide import Observation
from sparkonce.launch.protocol import Phase, Seen, StillThere, Stopped
from sparkonce.model.record import Record, Report, Why
from sparkonce.model.result import Verdict
from sparkonce.store.protocol import IdempotencyStore
from sparkonce.store.roster import SILENT


async def listen(
    store: IdempotencyStore,
    record: Record,
    seen: Seen | None,
    *,
    hears: Callable[[], Awaitable[float | None]] | None = None,
) -> Observation:
    """`hears`: seconds for which a driver could have been heard, None: nobody can be; without it everybody who speaks is heard."""
    reports = await store.reports(record.address, record.generation)
    beats = await store.beats(record.address, record.generation)
    errors = [each for each in reports if each.kind == "permanent-error" and each.attempt == record.attempt]
    of = {by: beat for (attempt, by), beat in beats.items() if attempt == record.attempt and beat.nonce == record.nonce}
    driver, owner = of.get("driver"), of.get("owner")
    heard: float | None = inf
    if hears is not None and driver is not None:
        could = await hears()
        # A gateway is gone for so long before anybody can notice it: what was not heard since then says nothing.
        heard = None if could is None else max(0.0, min(could, driver.age) - SILENT)
    return Observation(
        seen=seen,
        rewound=seen is not None and seen.rewound,
        permanent_error=str(errors[0].body.get("message", "")) if errors else None,
        permanent_why=_permanent_why(errors),
        driver_age=driver.age if driver else None,
        heard_for=heard,
        owner_age=owner.age if owner else None,
        progress=driver.progress if driver else {},
    )


def hearing(
    serving: Callable[[], Awaitable[float | None]], owned: Callable[[], float]
) -> Callable[[], Awaitable[float | None]]:
    """For `listen`, where drivers speak through gateways. `serving`: seconds for which these have served without a gap; `owned`: for which
    this owner has had the key. The shorter of both."""

    async def hears() -> float | None:
        served = await serving()
        return None if served is None else min(served, owned())

    return hears


async def unstarted(store: IdempotencyStore, record: Record, seen: Seen | None) -> float | None:
    """Seconds since an attempt that has not begun to run might have; None: it runs, or waits for its queue."""
    if seen is not None and seen.phase not in (Phase.ACCEPTED, Phase.STARTING):
        return None
    return max(0.0, await store.now() - max(record.granted_at, record.not_before or 0.0))


def opaque_verdict(record: Record, stopped: Stopped | StillThere) -> Verdict:
    """After Stop: an exit code counts only for the driver in the record, of an application that ran once."""
    if isinstance(stopped, StillThere):
        return Verdict.STILL_THERE
    seen = stopped.seen
    if seen is None or seen.nonce != record.nonce or seen.repeated:
        return Verdict.UNKNOWN
    noted = record.application
    if noted is None or noted.uid != seen.uid or (seen.driver is not None and noted.driver != seen.driver):
        return Verdict.UNKNOWN
    if seen.phase is Phase.SUCCEEDED:
        return Verdict.COMPLETED
    return Verdict.EXITED if seen.phase is Phase.FAILED_KNOWN else Verdict.UNKNOWN


def _permanent_why(errors: Sequence[Report]) -> Why:
    """A word that a later driver said and we do not know is a permanent error all the same."""
    said = errors[0].body.get("failure") if errors else None
    return Why.EXPECTATION if said == Why.EXPECTATION else Why.PERMANENT
