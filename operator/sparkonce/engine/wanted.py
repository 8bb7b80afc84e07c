"""What one IdempotentJob object wants, worked out once per edit: key, policies, fingerprints, outputs. Pure.

Also how a running generation is seen while its leader can still be edited: policies and tunable fields are taken from the leader's
object as it is now, as long as it is the same job; what was recorded at the reserve rules everything else, and everything once the
object is gone. Source: DESIGN sections 3 and 7.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sparkonce.driver.attempt import sinks_or_absent
from sparkonce.engine.drive import Job
from sparkonce.engine.objects import ObjectRef
from sparkonce.engine.policy import Policy
from sparkonce.errors import SparkonceError
from sparkonce.model import fingerprint as fingerprints
from sparkonce.model.key import Key, derive
from sparkonce.model.record import Address, Bound, Opener, Record, SpecBody
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.protocol import Sink
from sparkonce.store.protocol import Request

NO_REALM = "-"
"""Of objects that have no key; namespaces are never called so."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One object's request. InvalidInput (InvalidJob) when its spec is not one."""

    ref: ObjectRef
    generation: int
    """Of the object's metadata."""
    realm: str
    job: IdempotentJob
    key: Key
    policy: Policy
    _digests: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, body: dict[str, Any], *, realm: str) -> Wanted:
        job = IdempotentJob.of({name: value for name, value in body.items() if name != "status"})
        key = derive(job.spec, realm)
        wanted = cls(
            ref=ObjectRef.of(body),
            generation=int(body["metadata"].get("generation") or 1),
            realm=realm,
            job=job,
            key=key,
            policy=Policy.of(job.spec),
        )
        _ = wanted.sinks  # an output that can be written nowhere is said before anything is reserved
        return wanted

    @property
    def address(self) -> Address:
        return Address(realm=self.realm, key_hash=self.key.key_hash)

    @property
    def bound(self) -> Bound | None:
        """What a generation that this object opens follows."""
        bind = self.job.spec.bind
        return None if bind is None else Bound(application=bind.application, uid=bind.uid)

    @cached_property
    def sinks(self) -> Sequence[Sink]:
        return tuple(sinks_or_absent(self.job, None).values())

    def fingerprint(self, version: int = fingerprints.CURRENT) -> str:
        """UnknownFingerprintVersion: this process cannot compare with such a record."""
        if version not in self._digests:
            self._digests[version] = fingerprints.fingerprint(self.job, version=version).digest
        return self._digests[version]

    def same(self, record: Record) -> bool:
        """By the record's own version of the algorithm."""
        return self.fingerprint(record.fingerprint_version) == record.fingerprint

    def differing(self, record: Record, spec: SpecBody) -> list[str]:
        """Paths of the fields in which this object differs from what the record is for."""
        secret = bytes.fromhex(spec.secret)
        return fingerprints.differing(spec.digests, self.job, secret=secret, version=record.fingerprint_version)

    def spec_body(self) -> SpecBody:
        """With a secret of its own each time: digests of two records cannot be compared."""
        secret = secrets.token_bytes(32)
        digests = fingerprints.path_digests(self.job, secret=secret)
        return SpecBody(job=self.job.document(), digests=digests, secret=secret.hex())

    def request(self, nonce: str, *, number: int, objects: Sequence[ObjectRef]) -> Request:
        """Send it again unchanged when its answer is lost."""
        current = fingerprints.CURRENT
        return Request(
            address=self.address,
            key=self.key.text,
            by=Opener(uid=self.ref.uid, number=number, fingerprint=self.fingerprint()),
            nonce=nonce,
            fingerprints={current: self.fingerprint(current)},
            spec=self.spec_body(),
            operation=self.key.binding.operation,
            resource=self.key.binding.resource,
            job_revision=self.job.spec.effective_revision,
            objects=tuple(map(str, objects)),
            bound=self.bound,
        )

    def leads(self, record: Record) -> bool:
        """It opened the generation."""
        return any(by.uid == self.ref.uid for by in record.openers[-1:])


def describe(record: Record, spec: SpecBody, leader: Wanted | None) -> Job:
    """A generation's job as the engine needs it; `leader`: its object as it is now, if it is still there."""
    if leader is None or not leader.leads(record) or not leader.same(record):
        job = IdempotentJob.of(spec.job)
        return Job(spec=spec, policy=Policy.of(job.spec), sinks=tuple(sinks_or_absent(job, spec.base).values()))
    current = spec.model_copy(update={"job": leader.job.document()})
    return Job(spec=current, policy=leader.policy, sinks=leader.sinks)


@dataclass(frozen=True, kw_only=True)
class Invalid:
    """An object that asks for nothing that could be run: said in its status, and everything else goes on."""

    ref: ObjectRef
    generation: int
    message: str

    @property
    def address(self) -> Address:
        """Of no key: one of its own, under which the object is looked at like any other."""
        return Address(realm=NO_REALM, key_hash=hashlib.sha256(self.ref.uid.encode()).hexdigest())


class Reader:
    """From bodies to what they want, with the newest few thousand kept: a key is looked at several times while it runs."""

    def __init__(self, *, realm_of: Callable[[str], str] = lambda namespace: namespace, size: int = 4096) -> None:
        """`realm_of`: from a namespace to the realm that its keys live in."""
        self._realm_of, self._size = realm_of, size
        self._kept: OrderedDict[tuple[str, int], Wanted | Invalid] = OrderedDict()

    def read(self, body: dict[str, Any]) -> Wanted | Invalid:
        ref = ObjectRef.of(body)
        generation = int(body["metadata"].get("generation") or 1)
        at = (ref.uid, generation)
        if (kept := self._kept.get(at)) is not None:
            self._kept.move_to_end(at)
            return kept
        read: Wanted | Invalid
        try:
            read = Wanted.of(body, realm=self._realm_of(ref.namespace))
        except (SparkonceError, ValueError) as problem:
            read = Invalid(ref=ref, generation=generation, message=str(problem))
        self._kept[at] = read
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return read
