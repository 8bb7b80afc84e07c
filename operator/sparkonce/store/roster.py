"""The operator processes and gateways of one install, from entries that they write under their leases.

Hints only: the roster determines which operator takes over first (a rendezvous hash), the clock skew to allow for in a purge, which
record fields and which parts of a status may be written, and whether missing heartbeats mean anything. No safety property depends on it. A
store of one process needs no roster.

A gateway's entry says for how long it has served by its own monotonic clock, and is rewritten every few seconds. A reader compares that
with its own monotonic clock (`GatewayUptime`), so no clocks need to agree across machines. A lease alone is not enough: etcd gives every
lease its full TTL again after an outage, so an entry could outlive a period in which its gateway was unreachable.
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
    """Roster entry of an operator process."""

    nonce: str
    """Drawn when the process starts."""
    owner: str
    """Human-readable: host and pid, or the pod's name."""
    clock: float
    """Unix seconds of its own clock at its last announcement."""
    schema: int
    """Schema version of the records it writes."""
    slots: int
    """Permits for concurrent keys."""
    statuses: int = 0
    """Version of the statuses that it writes (`controller.status.STATUS_VERSION`); 0: a release that does not announce it."""


def replica_of(text: str | bytes) -> Replica | None:
    """Parses an entry; None if it does not parse, because an unreadable hint is ignored."""
    try:
        said: dict[str, Any] = json.loads(text)
        return Replica(
            nonce=str(said["nonce"]),
            owner=str(said["owner"]),
            clock=float(said["clock"]),
            schema=int(said["schema"]),
            slots=int(said["slots"]),
            statuses=int(said.get("statuses", 0)),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """Roster entry of a gateway."""

    nonce: str
    """Identifies one uninterrupted period of service; after an interruption the gateway draws another."""
    owner: str
    """Human-readable: host and pid, or the pod's name."""
    served: float
    """Length of this period in seconds at its last announcement, by its own monotonic clock."""


def gateway_of(text: str | bytes) -> Gateway | None:
    """Parses an entry; None if it does not parse."""
    try:
        said: dict[str, Any] = json.loads(text)
        return Gateway(nonce=str(said["nonce"]), owner=str(said["owner"]), served=float(said["served"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


ANNOUNCE = 2.0
"""Seconds between a gateway's announcements."""
SILENT = 3 * ANNOUNCE
"""Seconds without an announcement after which both the gateway and readers consider its period of service ended."""


class GatewayUptime:
    """How long gateways have served, as observed by this process; forgets gateways without an entry."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[float, float]] = {}
        """Per period: when it was first seen here, and the smallest difference between this clock and `served`."""

    def serving_for(self, entries: Sequence[Gateway]) -> float | None:
        """Records all current entries; returns the longest uninterrupted service in seconds, or None if no gateway serves."""
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
    """The gateways' part of a store's roster."""

    async def announce_gateway(self, gateway: Gateway, *, lease: Lease) -> None:
        """Writes or rewrites the entry, which is deleted with the lease.

        Raises: StoreUnavailable (it may have been written)."""
        ...

    async def gateways_serving_for(self) -> float | None:
        """Seconds for which a gateway has served without interruption, as observed by this process: counted from its first
        observation, and anew after a gateway's restart or an outage of the store. None: no gateway serves now.

        The end of service shows up to `SILENT` seconds or a lease's TTL late, so missing heartbeats for a shorter time prove nothing.

        Raises: StoreUnavailable (unknown)."""
        ...


class Roster(Protocol):
    """The operators' part of a store's roster."""

    async def announce(self, replica: Replica, *, lease: Lease) -> None:
        """Writes or rewrites the entry, which is deleted with the lease.

        Raises: StoreUnavailable (it may have been written)."""
        ...

    async def replicas(self) -> Sequence[Replica]:
        """Processes with live leases; entries that do not parse are omitted.

        Raises: StoreUnavailable (unknown)."""
        ...
