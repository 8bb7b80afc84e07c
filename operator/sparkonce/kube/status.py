"""`StatusWriter`: makes an object's `.status` equal to a pure function of the object, and never overwrites a newer status.

The status is a projection of the record, so a status that is not written now is written by the sweep. An old status must never replace a
new one: two replicas write, a reply is lost, a process freezes for an hour between its read and its write. So each write names the
resourceVersion that it was computed from, and after every conflict `make` is called again with the current object; it returns None if the
stored status is not older (`controller.status` defines the order). In the prototype a blind retry after a 409 made two finished jobs show
Running.

A write without an answer is repeated unchanged: if it was applied, the repeat fails on the newer resourceVersion, and the next read finds
nothing to do. Server-side apply was rejected: it merges by manager and would mix the fields of two replicas.

Changes are sent as JSON merge patches (RFC 7386), which `difference` computes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkonce.kube.watch import pauses
from sparkonce.launch.kubernetes import JOBS, ApiConflict, ApiRefused, ApiUnavailable, Json, Kubernetes, Resource

Make = Callable[[Json], Mapping[str, Any] | None]
"""Computes the whole status for the current object; None keeps the stored one."""
CONFLICTS = 3
"""Consecutive conflicts that are retried at once; after that another writer is faster than our reads, and we back off."""


@dataclass(frozen=True)
class StatusStored:
    """The status was written; `stored` is the object."""

    stored: Json


@dataclass(frozen=True)
class Left:
    """Nothing was written: `make` returned None, or the status is equal already."""

    stored: Json


@dataclass(frozen=True)
class NoObject:
    """No object with this name has this UID. Whether it is gone is decided by `jobs.fate_of`."""


class StatusWriter:
    """Writes `.status` of objects of one kind."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        *,
        resource: Resource = JOBS,
        patience: float = 30.0,
        first: float = 0.1,
        cap: float = 5.0,
    ) -> None:
        """patience: seconds for which one write is retried. first, cap: first and longest pause between retries."""
        self._kubernetes, self._resource = kubernetes, resource
        self._patience, self._first, self._cap = patience, first, cap

    async def write(
        self, namespace: str, name: str, uid: str, make: Make, *, fresh: Json | None = None
    ) -> StatusStored | Left | NoObject:
        """Writes the status that `make` computes. fresh: the object from an event, which saves a read; a stale one only costs a conflict.

        Raises:
            ApiUnavailable, ApiRefused (429 after `patience`, 403, 422): perhaps not written; the sweep will write it.
        """
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
                return NoObject() if stored is None else StatusStored(stored)
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
        desired = make(live)
        if desired is None:
            return None
        stored = live.get("status")
        change = difference(stored if isinstance(stored, dict) else {}, desired)
        if not change:
            return None
        metadata = live["metadata"]
        return {
            "metadata": {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]},
            "status": change,
        }


def difference(stored: Mapping[str, Any], desired: Mapping[str, Any]) -> Json:
    """The JSON merge patch from `stored` to `desired`; empty if they are equal. Null in a patch deletes a key, so null values count as
    absent."""
    patch: Json = {}
    for name in stored:
        if desired.get(name) is None and stored[name] is not None:
            patch[name] = None
    for name, value in desired.items():
        if value is None:
            continue
        before = stored.get(name)
        if isinstance(value, Mapping):
            inner = difference(before if isinstance(before, Mapping) else {}, value)
            if inner or not isinstance(before, Mapping):
                patch[name] = inner
        elif not _same(before, value):
            patch[name] = value
    return patch


def _same(one: Any, other: Any) -> bool:
    """JSON equality: True and 1 are equal in Python, not in JSON."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
