"""`StatusWriter`: makes `.status` of an object what a pure function of the object says, and never takes it back.

The status is a projection, the record is the truth, so a status that is not written now is written by the sweep. What must not happen
is that an old one lands on a new one: two replicas write, a reply is lost, a process freezes for an hour between its read and its
write. So each write names the resourceVersion that it was made from, and after every conflict `make` is asked again with the object as
it is now; it answers None when the stored status is not older (`engine.project` knows the order). A blind second try after a 409 is
what made two finished jobs say Running in the prototype.

A write without an answer is sent again as it was: had it landed, the repeat meets a newer resourceVersion, is refused, and the next look
finds nothing to do. Server-side apply was not taken: it merges by manager and would let two replicas' fields stand side by side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.kube.backoff import pauses
from sparkonce.kube.merge_patch import difference
from sparkonce.launch.kubernetes import JOBS, ApiConflict, ApiRefused, ApiUnavailable, Json, Kubernetes, Resource

Make = Callable[[Json], Mapping[str, Any] | None]
"""The whole status for the object as it is now; None: leave what is there."""
CONFLICTS = 3
"""Conflicts in a row that are answered at once; after that somebody writes faster than we read, and we wait our turn."""


@dataclass(frozen=True)
class Written:
    """It is there, as stored."""

    stored: Json


@dataclass(frozen=True)
class Left:
    """Nothing was written: `make` gave up, or the status was already so."""

    stored: Json


@dataclass(frozen=True)
class NoObject:
    """There is no object of this UID under this name. Whether it is gone, `fate.fate_of` says."""


class StatusWriter:
    def __init__(
        self,
        kubernetes: Kubernetes,
        *,
        resource: Resource = JOBS,
        patience: float = 30.0,
        first: float = 0.1,
        cap: float = 5.0,
    ) -> None:
        """`patience`: seconds for which one write is tried; `first` and `cap`: the first and the longest pause between two tries."""
        self._kubernetes, self._resource = kubernetes, resource
        self._patience, self._first, self._cap = patience, first, cap

    async def write(
        self, namespace: str, name: str, uid: str, make: Make, *, fresh: Json | None = None
    ) -> Written | Left | NoObject:
        """`fresh`: the object as an event brought it, which saves a read; an old one costs a conflict, nothing else.

        ApiUnavailable, ApiRefused (429 after `patience`, 403, 422): not known to be written; the sweep completes it."""
        deadline = time.monotonic() + self._patience
        waits = pauses(self._first, self._cap)
        conflicts = 0
        live = fresh
        while True:
            try:
                if live is None:
                    live = await self._kubernetes.get(self._resource, namespace, name)
                if live is None or live["metadata"].get("uid") != uid:
                    return NoObject()
                patch = self._patch(live, make)
                if patch is None:
                    return Left(live)
                stored = await self._kubernetes.patch(self._resource, namespace, name, patch, subresource="status")
                return NoObject() if stored is None else Written(stored)
            except ApiConflict:
                live, conflicts = None, conflicts + 1
                if conflicts <= CONFLICTS:
                    continue
                pause = next(waits)
                if time.monotonic() + pause > deadline:
                    raise
            except (ApiUnavailable, ApiRefused) as error:
                refused = isinstance(error, ApiRefused)
                if refused and getattr(error, "code", 0) != 429:
                    raise
                pause = max(next(waits), min(getattr(error, "retry_after", None) or 0.0, self._cap))
                if time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)

    def _patch(self, live: Json, make: Make) -> Json | None:
        wanted = make(live)
        if wanted is None:
            return None
        stored = live.get("status")
        change = difference(stored if isinstance(stored, dict) else {}, wanted)
        if not change:
            return None
        metadata = live["metadata"]
        return {
            "metadata": {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]},
            "status": change,
        }
