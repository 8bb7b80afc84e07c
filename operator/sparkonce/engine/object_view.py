"""One IdempotentJob object as deciding sees it: which one, how often edited, what it asks for, and what its status says. Pure.

A value and not the API server's JSON, so that the tables in `requests` and `project` can be asked about any object. It holds one
fingerprint per live version of the algorithm, because "this object has been answered" must stay true when the version moves on: an
upgrade that forgot it would run every finished job again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from sparkonce.engine.objects import ObjectRef
from sparkonce.engine.policy import Policy
from sparkonce.errors import RecordTooNew
from sparkonce.model.fingerprint import CURRENT
from sparkonce.model.record import Record

if TYPE_CHECKING:
    from sparkonce.engine.wanted import Wanted  # parsing a spec opens its outputs, which is no business of deciding

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ObjectView:
    ref: ObjectRef
    generation: int = 1
    """Of its metadata: grows with every edit of the spec."""
    resource_version: str = ""
    created: str = ""
    """creationTimestamp (RFC 3339, UTC), which sorts as text."""
    deleting: bool = False
    fingerprints: Mapping[int, str] = field(default_factory=dict)
    """Version of the algorithm -> fingerprint; none when the spec is not valid: no fingerprint, no job."""
    policy: Policy | None = None
    """The object's own, which rules what it may replace (onMismatch, onFinalized)."""
    key: str = ""
    key_hash: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    """As stored; empty when nobody has written one."""

    @classmethod
    def of(cls, body: Json, wanted: Wanted | None, *, record: Record | None = None) -> Self:
        """`wanted`: None when the spec is not valid. `record`: of its key, which is compared by its own version of the algorithm.
        UnknownFingerprintVersion: this process cannot."""
        metadata = body["metadata"]
        bare = cls(
            ref=ObjectRef.of(body),
            generation=int(metadata.get("generation") or 1),
            resource_version=str(metadata.get("resourceVersion") or ""),
            created=str(metadata.get("creationTimestamp") or ""),
            deleting=bool(metadata.get("deletionTimestamp")),
            status=body.get("status") or {},
        )
        if wanted is None:
            return bare
        versions = set(range(1, CURRENT + 1))  # a status may have been answered under any of them
        if record is not None:
            versions.add(record.fingerprint_version)
        return replace(
            bare,
            fingerprints={version: wanted.fingerprint(version) for version in versions},
            policy=wanted.policy,
            key=wanted.key.text,
            key_hash=wanted.key.key_hash,
        )

    @property
    def uid(self) -> str:
        return self.ref.uid

    @property
    def fingerprint(self) -> str:
        """By the newest version known here: what a generation opened for this object is recorded with."""
        return self.fingerprints[max(self.fingerprints)]

    def asks(self, fingerprint: object) -> bool:
        """Whether this is a fingerprint of what it asks, by any version: digests of two versions are never equal."""
        return fingerprint is not None and fingerprint in self.fingerprints.values()

    def same(self, record: Record) -> bool:
        """By the record's version. RecordTooNew: not computed here, so nothing can be said about equality."""
        mine = self.fingerprints.get(record.fingerprint_version)
        if mine is None:
            raise RecordTooNew(
                f"the record of {record.key} is compared by fingerprint version {record.fingerprint_version}, which was not computed "
                f"for {self.ref.namespace}/{self.ref.name} (known: {sorted(self.fingerprints)}); upgrade sparkonce"
            )
        return mine == record.fingerprint

    def wanting(self, record: Record) -> bool:
        """The record names it: whoever ends the generation must have seen that it is gone."""
        return self.uid in uids(record)

    def reread(self, body: Json) -> Self | None:
        """The same object with the status that it has now; None when it is another one, or was edited since: then it is looked at
        anew, because a status names what its writer had read."""
        metadata = body["metadata"]
        if (metadata["uid"], int(metadata.get("generation") or 1)) != (self.uid, self.generation):
            return None
        return replace(
            self,
            resource_version=str(metadata.get("resourceVersion") or ""),
            deleting=bool(metadata.get("deletionTimestamp")),
            status=body.get("status") or {},
        )


def uids(record: Record) -> tuple[str, ...]:
    """UIDs of the objects that want the generation; an entry is a UID, or a UID with the name under which the object can be asked for."""
    return tuple(entry.partition("/")[0] for entry in record.objects)
