"""From a manifest on a laptop to all that a request needs: key, fingerprints, content digests, paths. Reads files, writes nothing."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparkonce.driver.attempt import sinks_of, sinks_or_absent
from sparkonce.engine.drive import Job
from sparkonce.engine.policy import Policy
from sparkonce.errors import InvalidInput
from sparkonce.launch.submit import absolute
from sparkonce.model import fingerprint as fingerprints
from sparkonce.model.key import Key, derive
from sparkonce.model.local_template import LocalTemplate
from sparkonce.model.record import Address, Opener, Record, SpecBody
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.protocol import Sink
from sparkonce.store.protocol import Request

REALM = "local"
HEARTBEAT_TIMEOUT = 30
"""Seconds; local default of heartbeatTimeoutSeconds (no node, no network: silence is suspicious sooner)."""
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One request, ready to be sent any number of times."""

    job: IdempotentJob
    key: Key
    policy: Policy
    contents: Mapping[str, str]
    spec: SpecBody
    sinks: Sequence[Sink]
    application: str | None = None
    """Replaces the template's main file (--application)."""

    @property
    def address(self) -> Address:
        return Address(realm=REALM, key_hash=self.key.key_hash)

    def fingerprint(self, version: int) -> str:
        return fingerprints.fingerprint(self.job, contents=self.contents, version=version).digest

    def same(self, record: Record) -> bool:
        """By the record's own version of the algorithm."""
        return self.fingerprint(record.fingerprint_version) == record.fingerprint

    def differing(self, record: Record, spec: SpecBody) -> list[str]:
        """Field paths and files in which this request differs from the record."""
        return fingerprints.differing(
            spec.digests,
            self.job,
            secret=bytes.fromhex(spec.secret),
            contents=self.contents,
            version=record.fingerprint_version,
        )

    def request(self, nonce: str) -> Request:
        """With a nonce of its own; send it again unchanged when its answer is lost."""
        return Request(
            address=self.address,
            key=self.key.text,
            by=Opener(nonce=nonce),
            nonce=nonce,
            fingerprints={fingerprints.CURRENT: self.fingerprint(fingerprints.CURRENT)},
            spec=self.spec,
            operation=self.key.binding.operation,
            resource=self.key.binding.resource,
            job_revision=self.job.spec.effective_revision,
        )

    def replacing(self, sinks: Sequence[Sink]) -> Prepared:
        return replace(self, sinks=sinks)


def prepare(job: IdempotentJob, *, base: str, application: str | None = None) -> Prepared:
    """`base`: the folder that relative paths are relative to. InvalidInput: a file is missing, or an output is of a kind that does
    not exist here."""
    return assemble(
        job, contents=contents_of(job, base=base, application=application), base=base, application=application
    )


def assemble(job: IdempotentJob, *, contents: Mapping[str, str], base: str, application: str | None = None) -> Prepared:
    """The same from content digests that are known already."""
    if job.spec.bind is not None:
        raise InvalidInput(
            f"spec.bind names application {job.spec.bind.application} of a cluster, which an operator can follow; apply it with kubectl"
        )
    main = next(iter(contents.values()), "")
    key = derive(job.spec, REALM, content_digests={"ApplicationFile": main})
    secret = secrets.token_bytes(32)
    spec = SpecBody(
        job=job.document(),
        digests=fingerprints.path_digests(job, secret=secret, contents=contents),
        secret=secret.hex(),
        contents=dict(contents),
        base=base,
    )
    sinks = tuple(sinks_of(job, base).values())
    policy = Policy.of(job.spec, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    return Prepared(job=job, key=key, policy=policy, contents=contents, spec=spec, sinks=sinks, application=application)


def contents_of(job: IdempotentJob, *, base: str, application: str | None = None) -> dict[str, str]:
    """SHA-256 of the script and its --py-files, by the words that a mismatch shall name them with; the main file first."""
    template = LocalTemplate.of(job)
    main = application or absolute(template.main_file, base)
    if "://" in main:
        raise InvalidInput(
            f"spec.template.spec.mainApplicationFile is {template.main_file}, which is inside an image; "
            "say where it is on this machine with --application FILE"
        )
    contents = {
        f"application file {Path(template.main_file).name}": _digest(main, "spec.template.spec.mainApplicationFile")
    }
    for number, file in enumerate(template.py_files):
        if "://" not in file:
            field = f"spec.template.spec.deps.pyFiles[{number}]"
            contents[f"py file {file}"] = _digest(absolute(file, base), field)
    return contents


def _digest(path: str, field: str) -> str:
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as problem:
        raise InvalidInput(
            f"{field}: {path} cannot be read ({problem.strerror}); the path is relative to the job file"
        ) from None
    return digest.hexdigest()


def describe(_: Record, spec: SpecBody) -> Job:
    """A generation's job as the engine needs it, from what the store has of it."""
    job = IdempotentJob.of(spec.job)
    policy = Policy.of(job.spec, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    return Job(spec=spec, policy=policy, sinks=tuple(sinks_or_absent(job, spec.base).values()))
