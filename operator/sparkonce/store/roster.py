"""Which operator processes live on one install, as they say themselves under their leases.

Hints only: the roster decides who goes first after an owner's end (a rendezvous hash), how old a clock may be for a purge and which
fields of records may be written. Nothing that must be true rests on it. Stores of one process need none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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


class Roster(Protocol):
    async def announce(self, replica: Replica, *, lease: Lease) -> None:
        """Writes or renews the entry; it vanishes with the lease. StoreUnavailable."""
        ...

    async def replicas(self) -> Sequence[Replica]:
        """Those whose leases live; an entry that does not parse is left out."""
        ...
