"""IdempotentJob objects as a controller sees them: the protocol through which it reads and writes them, and one object as a value. Pure.

`kube/` implements the protocol. A cache may be stale. An object's absence from a cache or a list never stops a job: only `fate` does, which
asks the API server for the object by name.

`ObjectView` is what `plan` and `status` need of an object: a value instead of the API server's JSON, so that tests can put any object to
the decision tables. It holds one fingerprint per live version of the algorithm, because "this object has been answered" must survive an
upgrade: otherwise a new version would run every finished job again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self

from sparkonce.attempt import rerun
from sparkonce.attempt.decide import Policy
from sparkonce.errors import RecordTooNew
from sparkonce.model.crd_status import UNWRITTEN
from sparkonce.model.identity import UnknownFingerprintVersion, same
from sparkonce.model.record import Address, Record

if TYPE_CHECKING:
    from sparkonce.controller.desired import Desired


Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class ObjectRef:
    """An object as a record names it: its UID, with the namespace and name to get it by."""

    uid: str
    namespace: str
    name: str
    created: str = ""
    """creationTimestamp (RFC 3339, UTC), which shows whether its CustomResourceDefinition was recreated since; "": unknown."""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.uid, self.namespace, self.name, self.created)))

    @classmethod
    def parse(cls, text: str) -> ObjectRef:
        """Reads `str(ref)` back. Raises: ValueError: not an ObjectRef."""
        uid, namespace, name, *created = text.split("/")
        return cls(uid, namespace, name, *created[:1])

    @classmethod
    def of(cls, body: Json) -> ObjectRef:
        metadata = body["metadata"]
        return cls(metadata["uid"], metadata["namespace"], metadata["name"], metadata.get("creationTimestamp") or "")


class Fate(StrEnum):
    """What became of an object, as live answers of the API server prove it."""

    THERE = "There"
    """It exists, or nothing is proved."""
    GONE = "Gone"
    """A user deleted it, or its deletion has begun."""
    SWEPT_AWAY = "SweptAway"
    """It was deleted with its CustomResourceDefinition, which has been recreated: no user withdrew it."""


class JobObjects(Protocol):
    """A cache of the objects, and requests to the API server about single ones."""

    @property
    def synced(self) -> bool:
        """Whether the cache holds every object that existed when this process began to watch."""
        ...

    def of(self, address: Address) -> Sequence[Json]:
        """The cached objects of one key, oldest first."""
        ...

    def addresses(self) -> Collection[Address]:
        """The addresses of all cached objects."""
        ...

    async def live(self, ref: ObjectRef) -> Json | None:
        """Gets the object from the API server. None: it answered that no object with this UID exists.

        Raises: ApiUnavailable, ApiRefused: nothing is known."""
        ...

    async def fate(self, ref: ObjectRef) -> Fate:
        """GONE: the API server, which serves the kind and the namespace, answered that this UID does not exist or is being deleted.

        Raises: ApiUnavailable, ApiRefused: nothing is known."""
        ...

    async def write_status(self, ref: ObjectRef, make: Callable[[Json], Json | None]) -> None:
        """Writes the status that `make` returns for the object as it is now; None: writes nothing. `make` is called again after each
        conflict. An object that is gone is not an error.

        Raises: ApiUnavailable: the status may have been written. ApiRefused: it was not."""
        ...

    async def delete(self, ref: ObjectRef) -> None:
        """Deletes by UID (ttlSecondsAfterFinished)."""
        ...

    def emit(self, body: Json, kind: str, reason: str, message: str) -> None:
        """Emits an event, best effort. `kind`: Normal or Warning."""
        ...


@dataclass(frozen=True, kw_only=True)
class ObjectView:
    ref: ObjectRef
    generation: int = 1
    """metadata.generation: grows with every edit of the spec."""
    resource_version: str = ""
    created: str = ""
    """creationTimestamp (RFC 3339, UTC), which sorts as text."""
    deleting: bool = False
    fingerprints: Mapping[int, str] = field(default_factory=dict)
    """Version of the algorithm -> fingerprint; empty for an invalid spec."""
    policy: Policy | None = None
    """The object's own policies, which rule what it may replace (onMismatch, onFinalized)."""
    contradiction: str = ""
    """Why the object may not open a generation, although its spec can be read; empty: it may."""
    annotation: str | None = None
    """`sparkonce.dev/rerun` as it is, valid or not; None: there is none."""
    bound: bool = False
    """Whether a generation that it opens follows an application (`spec.bind`)."""
    key: str = ""
    key_hash: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    """As stored, without an implausible epoch and revision; empty: never written."""
    implausible: str = ""
    """Why epoch and revision of the stored status are ignored; empty: they are not."""

    @classmethod
    def of(cls, body: Json, desired: Desired | None, *, record: Record | None = None) -> Self:
        """Builds the view. `desired`: None for an invalid spec. `record`: of its key, compared by the record's version of the algorithm.

        Raises: UnknownFingerprintVersion: this process does not know the record's version."""
        metadata = body["metadata"]
        bare = cls(
            ref=ObjectRef.of(body),
            generation=int(metadata.get("generation") or 1),
            resource_version=str(metadata.get("resourceVersion") or ""),
            created=str(metadata.get("creationTimestamp") or ""),
            deleting=bool(metadata.get("deletionTimestamp")),
            annotation=annotation_of(body),
            **_status_of(body),
        )
        if desired is None:
            return bare
        if record is not None:
            desired.fingerprint(record.fingerprint_version)
        return replace(
            bare,
            fingerprints=desired.fingerprints(),  # a status may have been answered under any of them
            policy=desired.policy,
            contradiction=desired.contradiction or bare.rerun_refused,
            bound=desired.bound is not None,
            key=desired.key.text,
            key_hash=desired.key.key_hash,
        )

    @property
    def uid(self) -> str:
        return self.ref.uid

    @property
    def fingerprint(self) -> str:
        """The fingerprint by the newest version known here, with which a generation opened for this object is recorded."""
        return self.fingerprints[max(self.fingerprints)]

    @property
    def rerun(self) -> str:
        """The text of the annotation; empty: none, or it is refused."""
        return "" if self.annotation is None or self.rerun_refused else self.annotation

    @property
    def rerun_refused(self) -> str:
        """Why the annotation is refused; empty: it is not."""
        return "" if self.annotation is None else rerun.problem_of(self.annotation)

    def asks(self, fingerprint: object) -> bool:
        """Whether this is the fingerprint of its spec by any version."""
        return fingerprint is not None and fingerprint in self.fingerprints.values()

    def same(self, record: Record) -> bool:
        """Whether the record is for the same job (`identity.same`).

        Raises: RecordTooNew: the fingerprint of that version was not computed; equality is unknown."""
        try:
            return same(record.fingerprint, record.fingerprint_version, self.fingerprints)
        except UnknownFingerprintVersion as unknown:
            where = f"{self.ref.namespace}/{self.ref.name}"
            raise RecordTooNew(f"the record of {record.key} cannot be compared with {where}: {unknown}") from None

    def wanting(self, record: Record) -> bool:
        """Whether the record names this object: then its generation is only cancelled once this object is proved to be gone."""
        return self.uid in uids(record)

    def reread(self, body: Json) -> Self | None:
        """The same object with its current status. None: it is another object or was edited since, and must be reconciled anew, because
        a status must describe the spec that its writer read."""
        metadata = body["metadata"]
        if (metadata["uid"], int(metadata.get("generation") or 1)) != (self.uid, self.generation):
            return None
        if annotation_of(body) != self.annotation:
            return None
        return replace(
            self,
            resource_version=str(metadata.get("resourceVersion") or ""),
            deleting=bool(metadata.get("deletionTimestamp")),
            **_status_of(body),
        )


def annotation_of(body: Json | None) -> str | None:
    """The annotation `sparkonce.dev/rerun` as it is, valid or not; None: there is none."""
    annotations = body["metadata"].get("annotations") if body else None
    return annotations.get(rerun.ANNOTATION) if annotations else None


EPOCH_MOST = 2**31 - 1
"""Largest plausible epoch of a ledger: a person raises it, by one each time."""
REVISION_MOST = 2**48
"""Largest plausible revision of a ledger: about a century at a hundred thousand writes a second."""


def _status_of(body: Json) -> dict[str, Any]:
    """The stored status, which is input: any user with the right to edit it may have written it. If epoch or revision is impossible for a
    ledger, both are ignored, so that the status counts as never written from the ledger and is written anew."""
    status = body.get("status") or {}
    if status == UNWRITTEN:
        return {"status": {}, "implausible": ""}
    for name, most in (("epoch", EPOCH_MOST), ("ledgerRevision", REVISION_MOST)):
        value = status.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            said = f"status.{name} is {str(value)[:40]}, and a ledger's is a number from 0 to {most}; it is ignored and written anew"
            kept = {each: held for each, held in status.items() if each not in ("epoch", "ledgerRevision")}
            return {"status": kept, "implausible": said}
    return {"status": status, "implausible": ""}


def uids(record: Record) -> tuple[str, ...]:
    """UIDs of the objects that want the generation. An entry is a UID, or a UID with the object's namespace and name."""
    return tuple(entry.partition("/")[0] for entry in record.objects)
