"""The order of keys that write one table (`spec.series`): whether a slot comes too late, and what is committed in its place.

The table decides, in the commit itself: it keeps the latest position of each series, which never goes back, so a key that is late once is
late for good. With `onLate: Skip` a late key commits a slot without rows. That slot is its result, and everything that holds of commits
holds of it: one per key and generation, whichever attempt, successor, roll-forward or second sender makes it.

| it dies, or | then |
| --- | --- |
| before the skipped slot is put beside the table | nothing is there; the next attempt is late again and skips |
| between that and the commit that names it | the slot is staging, as of any commit that was never made: the same, and a sweep deletes it |
| after the commit, before the ledger knows | settling finds the slot: Succeeded, skipped |
| after rows were staged, which then came too late | no commit names their files: a sweep deletes them |
| the reply of the commit is lost | the table is read again and has the slot, or it is sent again |
| a commit of its rows was sent before, without a reply | it cannot land any more: the later key took its version or moved its tag |
| two senders skip, or two processes roll a sealed slot forward | each makes a slot, the table commits one, both get that one |
| a later key commits between staging and commit | the slot that was staged is skipped |
| an attempt that was fenced wakes up | its skipped slot is fenced like any other |

A sealed slot that claims to be skipped and is not one of these is refused (`sink.sealed`).
"""

from __future__ import annotations

import hashlib
import secrets
import time

from sparkonce.model.spec import OnLate, OnRerun, Series, order_of
from sparkonce.sink.protocol import (
    LATE_INSTEAD,
    REPLACING_SCHEMA,
    Evidence,
    Probed,
    SeriesPlace,
    SinkKey,
    Slot,
    SlotState,
)


def place_of(series: Series | None) -> SeriesPlace | None:
    """The place of a job's slots."""
    if series is None:
        return None
    late = series.on_late
    return SeriesPlace(
        series=series.name,
        position=series.position,
        allow_late=late is OnLate.ALLOW,
        skip_late=True if late is OnLate.SKIP else None,
    )


def is_before(place: SeriesPlace, committed: str | None) -> bool:
    """Whether a place is before the latest position that its series has committed; None: it has committed none."""
    return committed is not None and place.order < order_of(committed)


def lateness(place: SeriesPlace | None, committed: str | None) -> str | None:
    """Why a slot of this place comes too late; None if it does not. committed: the latest position that its series has committed."""
    if place is None or place.allow_late or not is_before(place, committed):
        return None
    return (
        f"position {place.position} of the series {place.series} is late: {committed} has been committed; nothing was "
        "committed here. A backfill on purpose declares `series.onLate: Allow`"
    )


def skips(place: SeriesPlace | None, committed: str | None) -> str | None:
    """The latest position that its series has committed, if a slot of this place comes too late and is skipped for that; else None."""
    return committed if place is not None and place.skip_late and lateness(place, committed) is not None else None


NO_COLUMNS = '{"type":"struct","fields":[]}'
"""Spark's JSON schema of rows without columns."""


def skipping(slot: Slot, committed: str) -> Slot:
    """The slot that is committed in place of a late one whose job declares `onLate: Skip`. It is made where the late slot is committed, so
    that every process that rolls a sealed one forward decides alike.

    Several processes may make it after different positions. The nonce is derived from both, so that each of theirs is a slot of its own;
    the table commits one. It appends, so that neither this run of the key nor a later one takes it for a replacement of rows.

    committed: the latest position that the series has committed."""
    nonce = hashlib.sha256(f"{slot.nonce} {committed}".encode()).hexdigest()[:32]
    without_rows = {"files": (), "listing": None, "rows": 0, "mode": None, "on_rerun": OnRerun.APPEND}
    of_no_rows = {"data_schema": NO_COLUMNS, "partition_by": None, "merge_schema": None}
    change = {**without_rows, **of_no_rows, "nonce": nonce, "skipped": committed, "schema_": REPLACING_SCHEMA}
    return slot.model_copy(update=change)


def skipped_unstaged(
    key: SinkKey, token: int, *, fingerprint: str, place: SeriesPlace | None, table: str, committed: str
) -> Slot:
    """The same for a key that is late before its rows run. table: its identity."""
    slot = Slot(
        state=SlotState.COMMITTED,
        sink_key=str(key),
        token=token,
        nonce=secrets.token_hex(16),
        fingerprint=fingerprint,
        place=place,
        table=table,
        committed_at=time.time(),
    )
    return skipping(slot, committed)


def skipped_result(slot: Slot) -> Probed | None:
    """What a probe says of a skipped slot that the table records; None of any other one. It holds whatever becomes of the table's rows."""
    if slot.skipped is None or slot.place is None:
        return None
    why = f"nothing was written: position {slot.skipped} of the series {slot.place.series} had been committed"
    return Probed(verdict=Evidence.PRESENT, why=why, remedy=LATE_INSTEAD)


def noted_place(series: object, position: object) -> tuple[str, str]:
    """`Change.series` and `Change.position` of a commit, from what it notes; both empty if that is not a place."""
    if not (isinstance(series, str) and isinstance(position, str)):
        return "", ""
    try:
        Series(name=series, position=position)
    except ValueError:
        return "", ""
    return series, position
