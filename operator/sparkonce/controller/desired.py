"""The desired state that one IdempotentJob object asks for, computed once per edit: key, policies, fingerprints, outputs. Pure.

Also describes a running generation whose leading object may still be edited: policies and tunable fields come from that object as it is
now, as long as it is the same job; everything else, and everything once the object is gone, comes from the spec recorded at the reserve.
Source: docs/design.md, sections 3 and 7.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sparkonce.attempt import rerun
from sparkonce.attempt.decide import Policy
from sparkonce.attempt.drive import DrivenJob
from sparkonce.attempt.request import replaces
from sparkonce.controller.objects import ObjectRef
from sparkonce.errors import SparkonceError
from sparkonce.model import entrance, identity
from sparkonce.model.identity import Key, derive
from sparkonce.model.record import Address, Bound, Opener, Record, SpecBody
from sparkonce.model.spec import IdempotentJob
from sparkonce.model.validation import InvalidJob
from sparkonce.sink.open import sinks_or_absent
from sparkonce.sink.protocol import Sink
from sparkonce.store.protocol import Request

NO_REALM = "-"
"""Realm of objects without a valid key; not a legal namespace name."""


@dataclass(frozen=True, kw_only=True)
class Desired:
    """One object's request."""

    ref: ObjectRef
    generation: int
    """metadata.generation of the object."""
    realm: str
    job: IdempotentJob
    key: Key
    policy: Policy
    answered: bool = False
    """The object's status says that the ledger answered this very spec. Any writer of the status can claim that."""
    _digests: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, body: dict[str, Any], *, realm: str) -> Desired:
        """Parses an object. Raises: InvalidInput (InvalidJob): its spec is not valid."""
        document = {name: value for name, value in body.items() if name != "status"}
        status = body.get("status") or {}
        answered = _answered(document, status)
        job = IdempotentJob.of(document) if answered else entrance.admit(document)
        key = derive(job.spec, realm)
        desired = cls(
            ref=ObjectRef.of(body),
            generation=int(body["metadata"].get("generation") or 1),
            realm=realm,
            job=job,
            key=key,
            policy=Policy.of(job.spec),
            answered=answered,
        )
        _ = desired.sinks  # refuses an output of an unknown kind before anything is reserved
        return desired

    @property
    def address(self) -> Address:
        return Address(realm=self.realm, key_hash=self.key.key_hash)

    @property
    def bound(self) -> Bound | None:
        """The application that a generation opened by this object follows; None: it launches its own."""
        bind = self.job.spec.bind
        return None if bind is None else Bound(application=bind.application, uid=bind.uid)

    @cached_property
    def sinks(self) -> Sequence[Sink]:
        return tuple(sinks_or_absent(self.job, None).values())

    @cached_property
    def contradiction(self) -> str:
        """Why this job may not open a generation: its template contradicts the attempt (`model/reserved.py`), or only its status exempts it
        from the checks of new jobs. Empty: it may. An object whose key was recorded by an earlier version keeps its answer."""
        try:
            if self.answered:
                entrance.admit(self.job.document())
            entrance.check_template(self.job)
        except InvalidJob as problem:
            return str(problem)
        return ""

    def fingerprint(self, version: int = identity.FINGERPRINT_VERSION) -> str:
        """The fingerprint by this version of the algorithm. Raises: UnknownFingerprintVersion: this process does not know that version."""
        if version not in self._digests:
            self._digests[version] = identity.fingerprint(self.job, version=version).digest
        return self._digests[version]

    def fingerprints(self) -> dict[int, str]:
        """Version of the algorithm -> fingerprint, for every version that this process knows."""
        return {version: self.fingerprint(version) for version in range(1, identity.FINGERPRINT_VERSION + 1)}

    def same(self, record: Record) -> bool:
        """Whether the record is for the same job (`identity.same`). Raises: UnknownFingerprintVersion."""
        return identity.same(record.fingerprint, record.fingerprint_version, self.fingerprints())

    def differing(self, record: Record, spec: SpecBody) -> list[str]:
        """Paths of the fields in which this object differs from the recorded job."""
        secret = bytes.fromhex(spec.secret)
        return identity.differing(spec.digests, self.job, secret=secret, version=record.fingerprint_version)

    def spec_body(self, version: int = identity.FINGERPRINT_VERSION) -> SpecBody:
        """The spec to record, for a fingerprint of this version. Its secret is new each time, so that digests of two records cannot be
        compared."""
        secret = secrets.token_bytes(32)
        digests = identity.path_digests(self.job, secret=secret, version=version)
        return SpecBody(job=self.job.document(), digests=digests, secret=secret.hex())

    def request(self, nonce: str, *, number: int, objects: Sequence[ObjectRef], rerun: str | None = None) -> Request:
        """The request to reserve or reopen; repeat the same value when its answer is lost. `rerun`: digest of the annotation's text."""
        return Request(
            address=self.address,
            key=self.key.text,
            by=Opener(uid=self.ref.uid, number=number, fingerprint=self.fingerprint(), rerun=rerun),
            nonce=nonce,
            fingerprints=self.fingerprints(),
            spec=self.spec_body(),
            operation=self.key.binding.operation,
            resource=self.key.binding.resource,
            job_revision=self.job.spec.effective_revision,
            objects=tuple(map(str, objects)),
            bound=self.bound,
        )

    def supersedes(self, record: Record) -> str:
        """The sentence for the history that names this object, which takes the place of the record's generation. The API server does not
        report who edited an object; its audit log does, by the object's name and generation."""
        return f"{self._named} {replaces(record, self.policy)}"

    def reruns(self, text: str) -> str:
        """The sentence for the history that names this object, whose annotation has this text."""
        return f"{self._named} asks for it by {rerun.ANNOTATION}: {rerun.quoted(text)}"

    @property
    def _named(self) -> str:
        return f"IdempotentJob {self.ref.namespace}/{self.ref.name} (metadata.generation {self.generation})"

    def leads(self, record: Record) -> bool:
        """Whether this object opened the record's generation."""
        return any(by.uid == self.ref.uid for by in record.openers[-1:])


def describe(record: Record, spec: SpecBody, leader: Desired | None) -> DrivenJob:
    """A generation's job as its drive needs it. `leader`: the leading object as it is now; None: it is gone."""
    if leader is None or not leader.leads(record) or not leader.same(record):
        job = IdempotentJob.of(spec.job)
        return DrivenJob(spec=spec, policy=Policy.of(job.spec), sinks=tuple(sinks_or_absent(job, spec.base).values()))
    current = spec.model_copy(update={"job": leader.job.document()})
    return DrivenJob(spec=current, policy=leader.policy, sinks=leader.sinks, live=True)


def _answered(document: dict[str, Any], status: dict[str, Any]) -> bool:
    """Whether the ledger has answered this very spec: it is recorded then, and rules that came later do not refuse it."""
    told = status.get("fingerprint")
    if not told or not status.get("ledgerRevision"):
        return False
    return identity.version_of(told, IdempotentJob.of(document)) is not None


@dataclass(frozen=True, kw_only=True)
class Invalid:
    """An object whose spec is not valid; only its status says so."""

    ref: ObjectRef
    generation: int
    message: str

    @property
    def address(self) -> Address:
        """An address of its own in NO_REALM, so that the object is queued like any other."""
        return Address(realm=NO_REALM, key_hash=hashlib.sha256(self.ref.uid.encode()).hexdigest())


class DesiredReader:
    """Parses object bodies and caches the newest few thousand results: a key is reconciled several times while it runs."""

    def __init__(self, *, realm_of: Callable[[str], str] = lambda namespace: namespace, size: int = 4096) -> None:
        """`realm_of` maps a namespace to the realm of its keys."""
        self._realm_of, self._size = realm_of, size
        self._kept: OrderedDict[tuple[str, int], Desired | Invalid] = OrderedDict()

    def read(self, body: dict[str, Any]) -> Desired | Invalid:
        """Parses one body; never raises for an invalid spec."""
        ref = ObjectRef.of(body)
        generation = int(body["metadata"].get("generation") or 1)
        at = (ref.uid, generation)
        if (kept := self._kept.get(at)) is not None:
            self._kept.move_to_end(at)
            return kept
        try:
            read: Desired | Invalid = Desired.of(body, realm=self._realm_of(ref.namespace))
        except (SparkonceError, ValueError, RecursionError) as problem:
            read = Invalid(ref=ref, generation=generation, message=str(problem))
        self._kept[at] = read
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return read
