"""The IdempotentJobs of this process's namespaces, as last seen, by key; and what may be asked or done about one of them.

Filled by the trigger's events and by a list of its own once per sweep, because kopf does not tell what was deleted while it was away. What
is not here proves nothing: `fate` asks the API server. Implements `engine.objects.Objects`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from sparkonce.engine.object_view import ObjectView
from sparkonce.engine.objects import Fate, Json, ObjectRef
from sparkonce.engine.rewound import Witness
from sparkonce.engine.told import ENDS
from sparkonce.engine.wanted import Reader
from sparkonce.kube.events import EventRecorder, Level
from sparkonce.kube.fate import fate_of
from sparkonce.kube.status import StatusWriter, Written
from sparkonce.launch.kubernetes import JOBS, Kubernetes, Resource
from sparkonce.model.record import Address, Record

log = logging.getLogger(__name__)

LATELY = 5.0
"""Seconds for which an object that was there may be named as an owner without asking again: what is made for one that has gone
meanwhile is collected, as it would be if it went a moment later."""
PATIENCE = 1.0
"""Seconds for which one status write is tried. A look waits for it, and other keys wait for looks: what is not written in this time is
written by the next look at the key."""
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Pages(Protocol):
    def pages(
        self, resource: Resource, namespace: str | None, *, selector: str = ""
    ) -> AsyncIterator[tuple[Sequence[Json], str]]: ...


class KnownJobs:
    def __init__(
        self,
        kubernetes: Kubernetes,
        pages: Pages,
        reader: Reader,
        *,
        namespaces: Sequence[str] | None,
        recorder: EventRecorder,
        listed: Callable[[], bool],
        on_change: Callable[[Address, bool], None],
    ) -> None:
        """`listed`: whether the trigger has handed over a first list. `on_change`: this key wants a look; False: only for the sake of a
        status, which somebody has written."""
        self._kubernetes, self._pages, self._reader, self._namespaces = kubernetes, pages, reader, namespaces
        self._recorder, self._listed, self._on_change = recorder, listed, on_change
        self._writer = StatusWriter(kubernetes, patience=PATIENCE)
        self._bodies: dict[str, tuple[Json, Address]] = {}  # by UID
        self._lived: dict[str, float] = {}  # by UID: when the API server said that it is there (monotonic)
        self._keys: dict[Address, dict[str, None]] = {}  # UIDs, in the order they were seen
        self._relisted = False
        self._newest: tuple[Address, Witness] | None = None

    # --- what is seen

    @property
    def synced(self) -> bool:
        return self._relisted and self._listed()

    @property
    def newest(self) -> tuple[Address, Witness] | None:
        """Of all statuses ever seen, the one that has seen most of the ledger, and the key of its object."""
        return self._newest

    def __len__(self) -> int:
        return len(self._bodies)

    def phases(self) -> Mapping[str, int]:
        """How many objects show each phase; Pending is also one that shows none yet."""
        return Counter((body.get("status") or {}).get("phase") or "Pending" for body, _ in self._bodies.values())

    def addresses(self) -> Sequence[Address]:
        return list(self._keys)

    def waiting(self) -> Sequence[Address]:
        """Of the objects that show no end yet."""
        return [
            address for body, address in self._bodies.values() if (body.get("status") or {}).get("phase") not in ENDS
        ]

    def of(self, address: Address) -> Sequence[Json]:
        bodies = [self._bodies[uid][0] for uid in self._keys.get(address, ())]
        return sorted(
            bodies, key=lambda body: (body["metadata"].get("creationTimestamp") or "", body["metadata"]["uid"])
        )

    def told(self, kind: str | None, body: Json) -> None:
        """An event of the trigger; a hint like any other."""
        if kind == "DELETED":
            self._drop(body["metadata"]["uid"])
        else:
            self._keep(body)

    def _keep(self, body: Json) -> None:
        """Unless what is known is not older."""
        metadata = body["metadata"]
        uid, known = metadata["uid"], self._bodies.get(metadata["uid"])
        if known is not None and known[0]["metadata"]["resourceVersion"] == metadata["resourceVersion"]:
            return
        if known is not None and not _newer(metadata, known[0]["metadata"]):
            return
        if metadata.get("deletionTimestamp"):
            self._lived.pop(uid, None)
        pruned = _pruned(body)
        address = self._reader.read(pruned).address
        if known is not None and known[1] != address:  # an invalid spec became valid, or the other way round
            self._forget(uid)
        self._bodies[uid] = pruned, address
        self._keys.setdefault(address, {})[uid] = None
        witness = Witness.of(ObjectView.of(pruned, None))
        if witness is not None and (self._newest is None or _seen(witness) > _seen(self._newest[1])):
            self._newest = address, witness
        self._on_change(address, known is None or _asks(known[0]) != _asks(pruned))

    def _drop(self, uid: str) -> None:
        if (address := self._forget(uid)) is not None:
            self._on_change(address, True)

    def _forget(self, uid: str) -> Address | None:
        self._lived.pop(uid, None)
        known = self._bodies.pop(uid, None)
        if known is None:
            return None
        uids = self._keys[known[1]]
        uids.pop(uid, None)
        if not uids:
            del self._keys[known[1]]
        return known[1]

    async def relist(self) -> None:
        """What no event told. ApiUnavailable, ApiRefused."""
        left = set(self._bodies)
        for namespace in [None] if self._namespaces is None else self._namespaces:
            async for page, _ in self._pages.pages(JOBS, namespace):
                for body in page:
                    left.discard(body["metadata"]["uid"])
                    self._keep(body)
        for uid in left:
            self._drop(uid)
        self._relisted = True

    def told_all(self, record: Record) -> bool:
        """Every object of the key shows an end: the record may be forgotten without an object that waits for ever."""
        return all((body.get("status") or {}).get("phase") in ENDS for body in self.of(record.address))

    # --- what is asked and done

    async def live(self, ref: ObjectRef) -> Json | None:
        found = await self._kubernetes.get(JOBS, ref.namespace, ref.name)
        self._lived.pop(ref.uid, None)
        if found is None or found["metadata"]["uid"] != ref.uid:
            return None
        if ref.uid in self._bodies and "deletionTimestamp" not in found["metadata"]:
            self._lived[ref.uid] = time.monotonic()
        return _pruned(found)

    async def lives(self, ref: ObjectRef) -> bool:
        """It is there, and not being deleted: as the API server said within `LATELY`, or says now."""
        if time.monotonic() - self._lived.get(ref.uid, -LATELY) < LATELY:
            return True
        live = await self.live(ref)
        return live is not None and "deletionTimestamp" not in live["metadata"]

    async def fate(self, ref: ObjectRef) -> Fate:
        return await fate_of(self._kubernetes, ref, scope=self._namespaces, on_found=lambda body: self.told(None, body))

    async def write_status(self, ref: ObjectRef, make: Callable[[Json], Json | None]) -> None:
        known = self._bodies.get(ref.uid)
        fresh = known[0] if known is not None else None
        done = await self._writer.write(ref.namespace, ref.name, ref.uid, make, fresh=fresh)
        if isinstance(done, Written) and ref.uid in self._bodies:
            self._keep(done.stored)

    async def delete(self, ref: ObjectRef) -> None:
        await self._kubernetes.delete(JOBS, ref.namespace, ref.name, uid=ref.uid)

    def emit(self, body: Json, kind: str, reason: str, message: str) -> None:
        about = body if "kind" in body else {"apiVersion": JOBS.api_version, "kind": JOBS.kind, **body}
        self._recorder.record(about, reason, message, level=Level(kind))


def _pruned(body: Json) -> Json:
    """Without what nobody here reads: it is more than half of an object that was applied."""
    metadata: dict[str, Any] = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    annotations = metadata.get("annotations")
    if annotations and APPLIED in annotations:
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != APPLIED}
    return {**body, "metadata": metadata}


def _asks(body: Json) -> tuple[object, bool]:
    """What changes when the object asks something else, and not when its status is written."""
    return body["metadata"].get("generation"), bool(body["metadata"].get("deletionTimestamp"))


def _newer(one: Json, other: Json) -> bool:
    """By resourceVersion, which is a number on every API server that is backed by etcd; where it is none, what comes later is newer."""
    mine, theirs = one.get("resourceVersion", ""), other.get("resourceVersion", "")
    return not (mine.isdigit() and theirs.isdigit()) or int(mine) > int(theirs)


def _seen(witness: Witness) -> tuple[int, int]:
    return witness.epoch, witness.revision
