"""Reads from the store what it holds of an attempt besides its application: its driver's reports, its heartbeats, how long it has waited.

Writes nothing and decides nothing. The age of the last heartbeat comes with the time during which heartbeats could have been received: a
driver that reports through gateways also seems silent while none of them serves, and a new owner has received no heartbeat yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from sparkonce.attempt.decide import Observation
from sparkonce.launch.driver_log import LoggedFailure, explained, find
from sparkonce.launch.protocol import ApplicationState, Phase, StillThere, Stopped
from sparkonce.model import masking
from sparkonce.model.record import LINGERS, UNCAUGHT, Application, Record, Report, Verdict, Why
from sparkonce.store.protocol import IdempotencyStore
from sparkonce.store.roster import SILENT

PLACING = 60.0
"""Seconds after which a driver pod without a node waits in a queue. A scheduler places it, or says that it cannot, in a second or two."""
UNPLACED = "no node takes its driver pod, and no scheduler says why"


async def observe_heartbeats(
    store: IdempotencyStore,
    record: Record,
    seen: ApplicationState | None,
    *,
    receivable: Callable[[], Awaitable[float | None]] | None = None,
) -> Observation:
    """Reads the attempt's heartbeats. `receivable` returns the seconds during which heartbeats could have been received without
    interruption, or None while no gateway serves; without it, drivers write to the store itself and every heartbeat arrives.

    Raises: StoreUnavailable: nothing was observed."""
    reports = await store.reports(record.address, record.generation)
    beats = await store.beats(record.address, record.generation)
    errors = [each for each in reports if each.kind == "permanent-error" and each.attempt == record.attempt]
    of = {by: beat for (attempt, by), beat in beats.items() if attempt == record.attempt and beat.nonce == record.nonce}
    driver, owner = of.get("driver"), of.get("owner")
    receivable_for: float | None = inf
    if receivable is not None and driver is not None:
        served = await receivable()
        # It takes SILENT seconds before a dead gateway is noticed: that part of the silence proves nothing.
        receivable_for = None if served is None else max(0.0, min(served, driver.age) - SILENT)
    if seen is not None and driver is not None:
        seen = replace(seen, lingers=_lingers(driver.progress, silence=min(driver.age, receivable_for or 0.0)))
    if seen is not None and seen.phase is Phase.FAILED_KNOWN:
        seen = _with_trace(seen, reports, attempt=record.attempt)
    return Observation(
        seen=seen,
        rewound=seen is not None and seen.rewound,
        permanent_error=str(errors[0].body.get("message", "")) if errors else None,
        permanent_why=_permanent_why(errors),
        driver_age=driver.age if driver else None,
        receivable_for=receivable_for,
        owner_age=owner.age if owner else None,
        progress={name: value for name, value in driver.progress.items() if name != LINGERS} if driver else {},
    )


def _with_trace(seen: ApplicationState, reports: Sequence[Report], *, attempt: int) -> ApplicationState:
    """The state with what the driver reported of the exception that ended its program. It is read like a log, and is better evidence than
    one: nothing was printed after it, and no right to read logs is needed. A log that was read keeps its place in the message."""
    traces = [each.body.get("trace") for each in reports if each.kind == UNCAUGHT and each.attempt == attempt]
    found = find(traces[-1], exit_code=seen.exit_code) if traces and isinstance(traces[-1], str) else LoggedFailure()
    if not found.cause:  # no traceback
        return seen
    said = explained(seen, found, attempt=attempt)
    return replace(seen, script_error=said.script_error or seen.script_error) if seen.log_tail else said


def _lingers(progress: Mapping[str, Any], *, silence: float) -> float | None:
    """Seconds for which the driver has had nothing left to do: those that it reported, and its silence since."""
    said = progress.get(LINGERS)
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said < inf:
        return None
    return float(said) + silence


def without_secrets(observation: Observation, job: Mapping[str, Any]) -> Observation:
    """The observation with likely secrets of the job hidden in the texts that its driver wrote."""
    seen, error = observation.seen, observation.permanent_error
    if not error and (seen is None or not (seen.log_tail or seen.message or seen.waits)):
        return observation
    values = masking.values_of(job)
    if seen is not None:
        seen = replace(
            seen,
            log_tail=masking.redacted(seen.log_tail, values),
            message=masking.redacted(seen.message, values),
            waits=masking.redacted(seen.waits, values),
        )
    return replace(observation, seen=seen, permanent_error=error and masking.redacted(error, values))


def receivable_through(
    serving: Callable[[], Awaitable[float | None]], owned: Callable[[], float]
) -> Callable[[], Awaitable[float | None]]:
    """Makes `receivable` for drivers that report through gateways: the shorter of `serving` (seconds that gateways have served without a
    gap) and `owned` (seconds that this process has owned the key)."""

    async def receivable() -> float | None:
        served = await serving()
        return None if served is None else min(served, owned())

    return receivable


async def unstarted(
    store: IdempotencyStore, record: Record, seen: ApplicationState | None, looked: dict[str, float]
) -> float | None:
    """Seconds since an attempt without a running driver could have started: it was granted, its backoff was over, and it had left its
    queue. None: its driver runs, or it waits for its queue.

    Where the store's clock has not reached that time, it was set back, by hours perhaps, and the seconds count from the first look at the
    attempt since then. `looked`: those looks, by nonce; the caller keeps them between calls."""
    if seen is not None and seen.phase not in (Phase.ACCEPTED, Phase.STARTING):
        return None
    since = max(record.granted_at, record.not_before or 0.0, record.queued_until or 0.0)
    now = await store.now()
    looked[record.nonce] = min(now, looked.get(record.nonce, inf)) if now < since else inf
    return now - min(since, looked[record.nonce])


def as_queued(
    record: Record, seen: ApplicationState | None, waits: float | None, *, start_timeout: float
) -> ApplicationState | None:
    """The state, set to Held if the driver has had no machine for longer than placing takes. A scheduler's reason is kept; there is none if
    the scheduler does not report, or is down. `waits`: seconds (`unstarted`)."""
    if seen is None or not seen.unplaced or seen.phase is not Phase.STARTING or waits is None:
        return seen
    if record.phase != Phase.HELD and waits <= min(PLACING, start_timeout):
        return seen
    return replace(seen, phase=Phase.HELD, waits=seen.waits or UNPLACED)


def opaque_verdict(record: Record, stopped: Stopped | StillThere, *, never_created: bool = False) -> Verdict:
    """The verdict on a stopped opaque attempt: NONE if it never ran. An exit code counts only if it is that of the driver in the record,
    and the application ran one driver. `never_created`: nothing was ever created for it, as the refusal of its only launch proves."""
    if isinstance(stopped, StillThere):
        return Verdict.STILL_THERE
    seen = stopped.seen
    if never_created and record.application is None and (seen is None or not seen.repeated):
        return Verdict.NONE
    if seen is None or seen.nonce != record.nonce or seen.repeated:
        return Verdict.UNKNOWN
    noted = record.application
    if seen.never_ran and (noted is None or (_covers(seen, noted) and noted.driver in {None, *seen.unstarted})):
        return Verdict.NONE
    if noted is None or noted.uid != seen.uid or (seen.driver is not None and noted.driver != seen.driver):
        return Verdict.UNKNOWN
    if seen.phase is Phase.SUCCEEDED:
        return Verdict.COMPLETED
    return Verdict.EXITED if seen.phase is Phase.FAILED_KNOWN else Verdict.UNKNOWN


def _covers(seen: ApplicationState, noted: Application) -> bool:
    """Whether the proof that no driver ever ran is about this application: the one that was stopped, or one before it under its name."""
    return noted.uid == seen.uid or (noted.pods_since is not None and noted.pods_since == seen.pods_since)


def _permanent_why(errors: Sequence[Report]) -> Why:
    """Why the driver failed for good. A class that only a newer driver knows counts as PERMANENT."""
    said = errors[0].body.get("failure") if errors else None
    return Why.EXPECTATION if said == Why.EXPECTATION else Why.PERMANENT
