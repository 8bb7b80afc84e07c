"""The IdempotentJobs of this process's namespaces, cached by key, and the operations on them. Implements `controller.objects.JobObjects`.

Filled by the trigger's events and by one list per sweep, because kopf does not report deletions that happened while it was down. The
absence of an object from the cache proves nothing: `fate` asks the API server.

`fate_of` decides whether an object is gone, which allows running work to be stopped. That requires an answer, not an absence: a DELETED
event also occurs when an object stops matching a selector, a list may come from another API server, a 404 may concern a kind that is not
served. So everything is read live, in this order, because each read vouches for the one before it:

1. the object: 404 for this object, or another UID under its name, or it is being deleted (a finalizer of another party keeps it);
2. its namespace is one of those that this process serves, and exists;
3. its CustomResourceDefinition exists, is established, is not being deleted, and is not younger than the object.

When a CRD is deleted the API server first deletes all its objects, one by one, while it still serves the kind. The users did not withdraw
those objects, so nothing is stopped. A CRD has its deletion timestamp from the start of its deletion, and reading it is linearizable, which
discovery is not. After it is created again the objects are absent, the kind is served, and the CRD is younger than they were: this proves
only that they were swept away. A namespace that is being deleted is different: its deletion is meant to delete its content. A namespace
that is not visible at all proves nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from sparkonce.commands.remote import ENDS
from sparkonce.controller.desired import NO_REALM, DesiredReader
from sparkonce.controller.objects import Fate, Json, ObjectRef, ObjectView, annotation_of
from sparkonce.controller.rewind_guard import Witness
from sparkonce.kube.events import EventRecorder, Level
from sparkonce.kube.status import StatusStored, StatusWriter
from sparkonce.launch.kubernetes import JOBS, NAMESPACES, Kubernetes, Resource, time_of
from sparkonce.model.record import Address, Record

DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
OWNER_TTL = 5.0
"""Seconds for which an object that existed may be named as an owner without another read: the dependents of an object that was deleted
since are garbage-collected, as they would be after a later deletion."""
PATIENCE = 1.0
"""Seconds for which one status write is retried. A reconciliation waits for it, and other keys wait for their turn; a status that is not
written in this time is written by the key's next reconciliation."""
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Pages(Protocol):
    def pages(
        self, resource: Resource, namespace: str | None, *, selector: str = ""
    ) -> AsyncIterator[tuple[Sequence[Json], str]]: ...


class KnownJobs:
    """The cache, and the API calls on its objects."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        pages: Pages,
        reader: DesiredReader,
        *,
        namespaces: Sequence[str] | None,
        recorder: EventRecorder,
        listed: Callable[[], bool],
        on_change: Callable[[Address, bool], None],
    ) -> None:
        """listed: whether the trigger has delivered its first list. on_change: called with a key to reconcile, and False if only a status
        has changed."""
        self._kubernetes, self._pages, self._reader, self._namespaces = kubernetes, pages, reader, namespaces
        self._recorder, self._listed, self._on_change = recorder, listed, on_change
        self._writer = StatusWriter(kubernetes, patience=PATIENCE)
        self._bodies: dict[str, tuple[Json, Address]] = {}  # by UID
        self._confirmed: dict[str, float] = {}  # by UID: when the API server last confirmed that it exists (monotonic)
        self._keys: dict[Address, dict[str, None]] = {}  # UIDs, in the order they were seen
        self._relisted = False
        self._newest: dict[str, tuple[Address, Witness]] = {}

    # --- cache

    @property
    def synced(self) -> bool:
        return self._relisted and self._listed()

    @property
    def newest(self) -> Mapping[str, tuple[Address, Witness]]:
        """Realm -> the status with the newest ledger revision ever seen, and the key of its object."""
        return self._newest

    def __len__(self) -> int:
        return len(self._bodies)

    def phases(self) -> Mapping[str, int]:
        """Number of objects in each phase; an object without a phase counts as Pending."""
        return Counter((body.get("status") or {}).get("phase") or "Pending" for body, _ in self._bodies.values())

    def ages(self, now: datetime | None = None) -> Mapping[str, float]:
        """Phase -> seconds that the object longest in it has been there, counted from its creation or the last change of one of its
        conditions, whichever is later. Both are in the object, so a restart of this process changes nothing. Suspended objects do not
        count."""
        oldest: dict[str, str] = {}
        for body, _ in self._bodies.values():
            status = body.get("status") or {}
            phase = str(status.get("phase") or "Pending")
            if phase not in ENDS and not (body.get("spec") or {}).get("suspend"):
                oldest[phase] = min(_since(body["metadata"], status), oldest.get(phase, "9"))
        at = now or datetime.now(UTC)
        return {
            phase: max(0.0, (at - begun).total_seconds())
            for phase, since in oldest.items()
            if (begun := time_of(since))
        }

    def addresses(self) -> Sequence[Address]:
        return list(self._keys)

    def waiting(self) -> Sequence[Address]:
        """Keys of the objects whose status is not final."""
        return [
            address for body, address in self._bodies.values() if (body.get("status") or {}).get("phase") not in ENDS
        ]

    def of(self, address: Address) -> Sequence[Json]:
        bodies = [self._bodies[uid][0] for uid in self._keys.get(address, ())]
        return sorted(
            bodies, key=lambda body: (body["metadata"].get("creationTimestamp") or "", body["metadata"]["uid"])
        )

    def told(self, kind: str | None, body: Json) -> None:
        """Takes an event of the trigger, which is only a hint."""
        if kind == "DELETED":
            self._drop(body["metadata"]["uid"])
        else:
            self._keep(body)

    def _keep(self, body: Json) -> None:
        """Caches an object unless the cached one is as new."""
        metadata = body["metadata"]
        uid, known = metadata["uid"], self._bodies.get(metadata["uid"])
        if known is not None and known[0]["metadata"]["resourceVersion"] == metadata["resourceVersion"]:
            return
        if known is not None and not _newer(metadata, known[0]["metadata"]):
            return
        if metadata.get("deletionTimestamp"):
            self._confirmed.pop(uid, None)
        pruned = _pruned(body)
        address = self._reader.read(pruned).address
        if known is not None and known[1] != address:  # an invalid spec became valid, or vice versa
            self._forget(uid)
        self._bodies[uid] = pruned, address
        self._keys.setdefault(address, {})[uid] = None
        witness = Witness.of(ObjectView.of(pruned, None))
        if witness is not None and address.realm != NO_REALM:
            newest = self._newest.get(address.realm)
            if newest is None or _seen(witness) > _seen(newest[1]):
                self._newest[address.realm] = address, witness
        self._on_change(address, known is None or _intent(known[0]) != _intent(pruned))

    def _drop(self, uid: str) -> None:
        if (address := self._forget(uid)) is not None:
            self._on_change(address, True)

    def _forget(self, uid: str) -> Address | None:
        self._confirmed.pop(uid, None)
        known = self._bodies.pop(uid, None)
        if known is None:
            return None
        uids = self._keys[known[1]]
        uids.pop(uid, None)
        if not uids:
            del self._keys[known[1]]
        return known[1]

    async def relist(self) -> None:
        """Lists all objects, to find changes without an event.

        Raises:
            ApiUnavailable, ApiRefused: the list is incomplete; nothing was removed from the cache.
        """
        left = set(self._bodies)
        for namespace in [None] if self._namespaces is None else self._namespaces:
            async for page, _ in self._pages.pages(JOBS, namespace):
                for body in page:
                    left.discard(body["metadata"]["uid"])
                    self._keep(body)
        for uid in left:
            self._drop(uid)
        self._relisted = True

    def reported_all(self, record: Record) -> bool:
        """Whether every object of the key has a final status, so that no object waits for ever once the record is deleted."""
        return all((body.get("status") or {}).get("phase") in ENDS for body in self.of(record.address))

    # --- API calls

    async def live(self, ref: ObjectRef) -> Json | None:
        found = await self._kubernetes.get(JOBS, ref.namespace, ref.name)
        self._confirmed.pop(ref.uid, None)
        if found is None or found["metadata"]["uid"] != ref.uid:
            return None
        if ref.uid in self._bodies and "deletionTimestamp" not in found["metadata"]:
            self._confirmed[ref.uid] = time.monotonic()
        return _pruned(found)

    async def lives(self, ref: ObjectRef) -> bool:
        """Whether it exists and is not being deleted, as the API server confirmed within `OWNER_TTL` or confirms now."""
        if time.monotonic() - self._confirmed.get(ref.uid, -OWNER_TTL) < OWNER_TTL:
            return True
        live = await self.live(ref)
        return live is not None and "deletionTimestamp" not in live["metadata"]

    async def fate(self, ref: ObjectRef) -> Fate:
        return await fate_of(self._kubernetes, ref, scope=self._namespaces, on_found=lambda body: self.told(None, body))

    async def write_status(self, ref: ObjectRef, make: Callable[[Json], Json | None]) -> None:
        known = self._bodies.get(ref.uid)
        fresh = known[0] if known is not None else None
        done = await self._writer.write(ref.namespace, ref.name, ref.uid, make, fresh=fresh)
        if isinstance(done, StatusStored) and ref.uid in self._bodies:
            self._keep(done.stored)

    async def delete(self, ref: ObjectRef) -> None:
        await self._kubernetes.delete(JOBS, ref.namespace, ref.name, uid=ref.uid)

    def emit(self, body: Json, kind: str, reason: str, message: str) -> None:
        about = body if "kind" in body else {"apiVersion": JOBS.api_version, "kind": JOBS.kind, **body}
        self._recorder.record(about, reason, message, level=Level(kind))


def _pruned(body: Json) -> Json:
    """The object without fields that the operator does not read, more than half of an applied object."""
    metadata: dict[str, Any] = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    annotations = metadata.get("annotations")
    if annotations and APPLIED in annotations:
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != APPLIED}
    return {**body, "metadata": metadata}


def _since(metadata: Json, status: Json) -> str:
    """When the object was created or a condition of it last changed, whichever is later. Kubernetes' time texts sort as the times do. A
    status is input: a condition with a false time can make its own object look younger, but never older than it is."""
    conditions = (
        status.get("conditions") or () if status.get("generation") else ()
    )  # before its key is reserved an object waits
    return max(str(each or "") for each in (metadata.get("creationTimestamp"), *map(_changed, conditions)))


def _changed(condition: Json) -> str:
    return str(condition.get("lastTransitionTime") or "")


def _intent(body: Json) -> tuple[object, bool, object]:
    """Values that change with an edit or deletion of the object and not with its status. An annotation leaves the generation as it is."""
    return body["metadata"].get("generation"), bool(body["metadata"].get("deletionTimestamp")), annotation_of(body)


def _newer(one: Json, other: Json) -> bool:
    """Compares resourceVersions, which are numbers on every API server backed by etcd; if not numeric, the later arrival is newer."""
    mine, theirs = one.get("resourceVersion", ""), other.get("resourceVersion", "")
    return not (mine.isdigit() and theirs.isdigit()) or int(mine) > int(theirs)


def _seen(witness: Witness) -> tuple[int, int]:
    return witness.epoch, witness.revision


async def fate_of(
    kubernetes: Kubernetes,
    ref: ObjectRef,
    *,
    resource: Resource = JOBS,
    scope: Collection[str] | None = None,
    on_found: Callable[[Json], None] = lambda _: None,
) -> Fate:
    """Whether an object is gone, was swept away with its CRD, or must be assumed to exist (see the module).

    scope: namespaces that this process serves; None for all. on_found: called with the object if it exists.

    Raises:
        ApiUnavailable, ApiRefused: not known.
    """
    if scope is not None and ref.namespace not in scope:
        return Fate.THERE
    found = await kubernetes.get(resource, ref.namespace, ref.name)
    deleting = found is not None and found["metadata"].get("deletionTimestamp") is not None
    if found is not None and not deleting and _uid(found) in {ref.uid, None}:
        on_found(found)
        return Fate.THERE
    if await kubernetes.get(NAMESPACES, None, ref.namespace) is None:
        return Fate.THERE
    definition = await kubernetes.get(DEFINITIONS, None, f"{resource.plural}.{resource.group}")
    if definition is None or not _in_force(definition):
        return Fate.THERE
    younger = ref.created and str(definition["metadata"].get("creationTimestamp") or "") > ref.created
    return Fate.SWEPT_AWAY if younger else Fate.GONE


def _uid(found: Json) -> str | None:
    uid = found["metadata"].get("uid")
    return uid if isinstance(uid, str) else None


def _in_force(definition: Json) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    by_type = {each.get("type"): each.get("status") for each in conditions}
    return definition["metadata"].get("deletionTimestamp") is None and by_type.get("Established") == "True"
