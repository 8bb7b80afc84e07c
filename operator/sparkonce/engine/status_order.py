"""Which of two statuses is newer, and whether one is worth a write. Pure.

Statuses are ordered by (epoch, ledgerRevision, observedGeneration) and only move forward: any number of processes, frozen ones among
them, may hold a projection of an older record. The API server's resourceVersion makes each write a compare-and-set; this is the compare.
A clock in the status was not taken as the order: the oldest process may have the fastest clock.

A write that would only move lastTransitionTime or ledgerRevision is not worth making: a record that names a hundred followers moves a
hundred times, and no reader of a hundred objects learns anything from it. A stored ledgerRevision is therefore a lower bound of what
its object has been told, which is all that telling a rewound store needs. It also lets a projection of a record in between win for a
moment; whoever is told of that write looks again, and what they then write is newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkonce.engine.object_view import Json

Order = tuple[int, int, int]

_UNTOLD = frozenset({"ledgerRevision"})
_UNTOLD_OF_A_CONDITION = frozenset({"lastTransitionTime"})


def order(status: Mapping[str, Any] | None) -> Order:
    """(0, 0, n) where the ledger was never asked."""
    status = status or {}
    return (
        int(status.get("epoch") or 0),
        int(status.get("ledgerRevision") or 0),
        int(status.get("observedGeneration") or 0),
    )


def newer(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Whether `one` was made from a later record, or from a later edit of the object, than `other`."""
    return order(one) > order(other)


def next_status(stored: Mapping[str, Any] | None, wanted: Json, *, conflicted: bool = False) -> Json | None:
    """What to write where `stored` stands; None: nothing. `conflicted`: this was to be written before and the object had changed, so
    that only what is strictly newer may still be right; of two projections of one record the one that was read later stays."""
    if not stored:
        return wanted
    if newer(stored, wanted) or (conflicted and not newer(wanted, stored)):
        return None
    return None if _told(stored) == _told(wanted) else wanted


def _told(status: Mapping[str, Any]) -> Json:
    """What a reader learns from it."""
    told = {name: value for name, value in status.items() if name not in _UNTOLD}
    told["conditions"] = [
        {name: value for name, value in each.items() if name not in _UNTOLD_OF_A_CONDITION}
        for each in status.get("conditions") or ()
    ]
    return told
