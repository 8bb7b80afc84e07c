"""Fingerprints: is this the same job? And if not, in which fields does it differ?

The fingerprint is SHA-256 over the canonical form (RFC 8785 JSON) of everything that must match. Documents are never compared as text: a
ledger that stored text compared key orders and blanks (research: amp, section 1.3), and refused every honest repetition.

The record names the version that its fingerprint was made with; a duplicate is fingerprinted by that version, so all versions that
ledgers may hold are kept here. Beside the fingerprint stand digests per field, 8 bytes each, keyed with a secret of the record: they
name the fields of a mismatch without revealing, or letting anyone test guesses of, the values of the other job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import rfc8785
from pydantic import JsonValue

from sparkonce.model import fingerprint_v1
from sparkonce.model.fingerprint_v1 import Canonical
from sparkonce.model.spec import IdempotentJob

CURRENT = fingerprint_v1.VERSION
_VERSIONS: Mapping[int, Callable[[IdempotentJob, Mapping[str, str]], Canonical]] = {1: fingerprint_v1.canonical}
_NOTHING: Mapping[str, str] = MappingProxyType({})
_DIGEST_BYTES = 8  # names a field in a message; equality of jobs rests on the fingerprint alone


class UnknownFingerprintVersion(ValueError):
    """The record was fingerprinted by rules that this version of sparkonce does not have; nothing can be said about equality."""


@dataclass(frozen=True)
class Fingerprint:
    version: int
    digest: str
    """64 hex digits."""


def fingerprint(job: IdempotentJob, *, contents: Mapping[str, str] = _NOTHING, version: int = CURRENT) -> Fingerprint:
    """What a duplicate must have in common with this job.

    `contents` are content digests that must match (local mode: the script and its --py-files), under the words that a mismatch
    shall name them by, such as `application file flights.py`.
    """
    form = _canonical(job, contents, version)
    octets = _json({"contents": dict(form.contents), **form.document})
    return Fingerprint(version, hashlib.sha256(b"sparkonce/fingerprint/v%d\n" % version + octets).hexdigest())


def version_of(digest: str, job: IdempotentJob) -> int | None:
    """The version by which this is the job's fingerprint; None: it is another job's, or of a version that is not known here."""
    return next((version for version in _VERSIONS if fingerprint(job, version=version).digest == digest), None)


def path_digests(
    job: IdempotentJob, *, secret: bytes, contents: Mapping[str, str] = _NOTHING, version: int = CURRENT
) -> dict[str, str]:
    """Field path -> 16 hex digits, keyed with the record's secret (1 to 64 bytes); what `differing` compares."""
    if not secret:
        raise ValueError("the digests of a record's fields are keyed with a secret, and none was given")
    form = _canonical(job, contents, version)
    return {leaf.path: _digest(leaf.path, leaf.value, secret) for leaf in form.leaves()}


def differing(
    stored: Mapping[str, str],
    job: IdempotentJob,
    *,
    secret: bytes,
    contents: Mapping[str, str] = _NOTHING,
    version: int = CURRENT,
) -> list[str]:
    """Paths of the fields in which a job differs from the one whose `path_digests` were stored: changed, added, then removed.

    Empty exactly where the fingerprints are equal.
    """
    form = _canonical(job, contents, version)
    now = path_digests(job, secret=secret, contents=contents, version=version)
    changed = [path for path, digest in now.items() if stored.get(path) != digest]
    removed = [path for path in stored if path not in now]
    return list(dict.fromkeys(form.shown(path) for path in changed + removed))


def _canonical(job: IdempotentJob, contents: Mapping[str, str], version: int) -> Canonical:
    if version not in _VERSIONS:
        known = ", ".join(map(str, _VERSIONS))
        raise UnknownFingerprintVersion(
            f"fingerprints of version {version} are not known here (known: {known}); upgrade sparkonce"
        )
    return _VERSIONS[version](job, contents)


def _digest(path: str, value: JsonValue, secret: bytes) -> str:
    octets = path.encode()
    message = len(octets).to_bytes(8, "big") + octets + _json(value)
    return hashlib.blake2b(message, digest_size=_DIGEST_BYTES, key=secret, person=b"sparkonce/field").hexdigest()


def _json(value: JsonValue) -> bytes:
    return rfc8785.dumps(value)
