"""Which operator processes live on one install, and which gateways serve it, as they say themselves under their leases.

Hints only: the roster decides who goes first after an owner's end (a rendezvous hash), how old a clock may be for a purge, which
fields of records may be written, and whether a driver's silence says anything. Nothing that must be true rests on it. Stores of one
process need none.

A gateway's entry says for how long it has served, by its own monotonic clock, and is written anew every few seconds. Whoever reads it
compares that with a monotonic clock of its own (`Service`), so that no two machines' clocks have to agree. The lease alone was not
taken for it: etcd gives every lease its full life again when it comes back from an outage, and an entry of a gateway that nobody could
reach meanwhile would still stand there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sparkonce.store.protocol import Lease


@dataclass(frozen=True, kw_only=True)
class Replica:
    nonce: str
    """Drawn at the start of the process."""
    owner: str
    """For a person: host and pid, or the pod's name."""
    clock: float
    """Unix seconds of its own clock when it announced itself last."""
    schema: int
    """Of the records it writes."""
    slots: int


def replica_of(text: str | bytes) -> Replica | None:
    """None for an entry of another make: a hint that cannot be read is none."""
    try:
        said: dict[str, Any] = json.loads(text)
        return Replica(
            nonce=str(said["nonce"]),
            owner=str(said["owner"]),
            clock=float(said["clock"]),
            schema=int(said["schema"]),
            slots=int(said["slots"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


@dataclass(frozen=True, kw_only=True)
class Gateway:
    nonce: str
    """Of one stretch of service without a gap: a gateway that could not serve draws another one when it can."""
    owner: str
    """For a person: host and pid, or the pod's name."""
    served: float
    """Seconds of this stretch, by its own monotonic clock, when it announced itself last."""


def gateway_of(text: str | bytes) -> Gateway | None:
    """None for an entry of another make."""
    try:
        said: dict[str, Any] = json.loads(text)
        return Gateway(nonce=str(said["nonce"]), owner=str(said["owner"]), served=float(said["served"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


ANNOUNCE = 2.0
"""Seconds between two entries of a gateway."""
SILENT = 3 * ANNOUNCE
"""Seconds without a new entry after which a stretch of service has ended: for the gateway itself, and for whoever reads it."""


class Service:
    """What one process has seen of the gateways; it remembers, and forgets those that went."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[float, float]] = {}
        """Of each stretch: when it was first seen here, and the least by which this clock has been ahead of `served`."""

    def serving_for(self, entries: Sequence[Gateway]) -> float | None:
        """Of all entries that stand at this moment."""
        now = self._monotonic()
        seen: dict[str, tuple[float, float]] = {}
        spans: list[float] = []
        for entry in entries:
            ahead = now - entry.served
            first, least = self._seen.get(entry.nonce, (now, ahead))
            seen[entry.nonce] = first, min(least, ahead)
            if ahead - least <= SILENT:
                spans.append(now - first)
        self._seen = seen
        return max(spans, default=None)


class Gateways(Protocol):
    async def announce_gateway(self, gateway: Gateway, *, lease: Lease) -> None:
        """Writes or renews the entry; it vanishes with the lease. StoreUnavailable."""
        ...

    async def gateways_serving_for(self) -> float | None:
        """Seconds for which one gateway has been serving without a gap, as far as this process has seen it: it counts from its first
        look, in full again after a gateway's restart or an outage of the store. None: none serves now. StoreUnavailable.

        What just ended shows up to `SILENT` seconds or a lease's life later: a driver's silence that is shorter proves nothing."""
        ...


class Roster(Protocol):
    async def announce(self, replica: Replica, *, lease: Lease) -> None:
        """Writes or renews the entry; it vanishes with the lease. StoreUnavailable."""
        ...

    async def replicas(self) -> Sequence[Replica]:
        """Those whose leases live; an entry that does not parse is left out."""
        ...
