"""A wish that a running generation ends, written for whoever drives it, by somebody who does not wait for the end."""

from __future__ import annotations

from sparkonce.errors import InvalidInput
from sparkonce.model.record import Record, State, StopWanted, Why
from sparkonce.store.protocol import Changed, IdempotencyStore, NotFound, Updated


async def ask_to_stop(store: IdempotencyStore, record: Record, *, by: str, reason: str) -> Record:
    """The record as it stands then: with a wish (the first one stands), or finalized. InvalidInput: there is nothing to stop. Repeated
    after a lost reply it finds its own wish."""
    wish = StopWanted(why=Why.CANCELLED, by=by, reason=reason)
    now = record
    while now.stop_wanted is None and now.state is not State.FINALIZED:
        if now.state is State.HELD:
            raise InvalidInput(
                f"{now.key} is held, and held is not running; `sparkonce keys resolve {now.key} --failed`"
            )
        match await store.request_stop(now, wish):
            case NotFound():
                raise InvalidInput(f"generation {record.generation} of {record.key} is over; look at the key again")
            case Updated(stands) | Changed(stands):
                now = stands
            case finalized:
                return finalized.record
        if now.generation != record.generation:
            raise InvalidInput(f"generation {record.generation} of {record.key} is over; look at the key again")
    return now
