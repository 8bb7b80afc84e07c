"""Identity of a request: its key, and the fingerprint that says whether it is the same job (docs/design.md, section 3).

A key has a text for people and a hash that orders the store. The hash is SHA-256 over a domain tag and length-prefixed parts, the realm
included: no part can contain a separator (`a/b` + `c` and `a` + `b/c` read alike as text), and a key chosen by a client never equals a
derived one. The install is not included, because it prefixes the store: a key keeps its name wherever a ledger is copied to. Texts and
hashes never change within v1 (golden tests).

A fingerprint is SHA-256 over the canonical form (RFC 8785 JSON) of everything that must match. Documents are never compared as text, which
would compare key order and blanks and so refuse genuine duplicates. A record names the version of its fingerprint and a duplicate is
compared by that version and the newer ones, so every version that ledgers may hold stays here; each canonical form is a frozen module.

Version 2 leaves out settings that say who asks (`lineage`, `spec.ignoredConf`) and hashes the rest as version 1 does. So a job without such
settings has one digest under both, and a duplicate that has them equals a record, of either version, of a job that had none.

Beside the fingerprint a record has one digest per field, 8 bytes, keyed with a secret of the record: they name the fields of a mismatch
without revealing the other job's values and without letting anyone test guesses of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import rfc8785
from pydantic import JsonValue

from sparkonce.model import fingerprint_v1, fingerprint_v2
from sparkonce.model.fingerprint_v1 import Canonical
from sparkonce.model.spec import IdempotentJob, JobSpec
from sparkonce.model.validation import InvalidJob

EXPLICIT = "sparkonce/key/explicit/v1"
DERIVED = "sparkonce/key/derived/v1"

FINGERPRINT_VERSION = fingerprint_v2.VERSION
"""The version of new fingerprints. A new record names the oldest version with the same digest (`store/rules.py`)."""

_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.ASCII)
_REALM = re.compile(r"[!-.0-~]{1,255}", re.ASCII)  # visible ASCII but "/": it is one step of a path in the store
_HASH20 = 20
_VERSIONS: Mapping[int, Callable[[IdempotentJob, Mapping[str, str]], Canonical]] = {
    fingerprint_v1.VERSION: fingerprint_v1.canonical,
    fingerprint_v2.VERSION: fingerprint_v2.canonical,
}
_FORM = b"sparkonce/fingerprint/v1\n"
"""Domain tag of both versions: version 2 is version 1 of a smaller job."""
_NOTHING: Mapping[str, str] = MappingProxyType({})
_DIGEST_BYTES = 8  # names a field in a message; equality of jobs depends on the fingerprint alone
_DIGEST_SHOWN = 12  # hex digits of a content digest in the key's text; the hash has all of them


@dataclass(frozen=True)
class Binding:
    """The operation, resource and realm that a key stands for. A job with an explicit key may leave out operation and resource."""

    operation: str | None
    resource: str | None
    realm: str


@dataclass(frozen=True)
class Key:
    text: str
    """For display; not unique if contents are part of the key, unlike the hash."""
    key_hash: str
    """64 hex digits."""
    binding: Binding

    @property
    def hash20(self) -> str:
        """The first 20 hex digits, for names."""
        return self.key_hash[:_HASH20]


def explicit(text: str, realm: str) -> Key:
    """A key chosen by a client. A UUID is lower-cased, so that its spellings are one key. Raises: ValueError: invalid key or realm."""
    text = explicit_text(text)
    return Key(text, hash_of(EXPLICIT, _checked(realm), text), Binding(None, None, realm))


def explicit_text(text: str) -> str:
    """The one spelling of a key chosen by a client. Raises: ValueError."""
    if not re.fullmatch(r"[!-~]{1,255}", text):
        raise ValueError("a key has 1 to 255 visible ASCII characters, without spaces")
    return text.lower() if _UUID.fullmatch(text) else text


def derive(spec: JobSpec, realm: str, *, content_digests: Mapping[str, str] | None = None) -> Key:
    """The key of a job, explicit or derived.

    `content_digests`: SHA-256 in hex by the name in `spec.keyFrom` (ApplicationFile, Image); others are ignored.

    Raises: InvalidJob: a content of `spec.keyFrom` has no digest here. ValueError: invalid realm."""
    if spec.idempotency_key is not None:
        key = explicit(spec.idempotency_key, realm)
        return replace(key, binding=Binding(spec.operation, spec.resource, realm))
    operation, resource, revision = spec.operation or "", spec.resource or "", spec.effective_revision or ""
    digests = content_digests or {}
    names = sorted(spec.key_from)
    missing = [str(name) for name in names if not digests.get(name)]
    if missing:
        raise InvalidJob([("spec.keyFrom", f"asks for the digest of {' and '.join(missing)}, which is not known here")])
    contents = [part for name in names for part in (str(name), digests[name].lower())]
    text = f"{operation}/{resource}@{revision}" + "".join(f"+{digests[name].lower()[:_DIGEST_SHOWN]}" for name in names)
    key_hash = hash_of(DERIVED, _checked(realm), operation, resource, revision, *contents)
    return Key(text, key_hash, Binding(operation, resource, realm))


def derived_hash(operation: str, resource: str, revision: str, *, realm: str) -> str:
    """Hash of a derived key without contents. Raises: ValueError: invalid realm."""
    return hash_of(DERIVED, _checked(realm), operation, resource, revision)


def _checked(realm: str) -> str:
    if not _REALM.fullmatch(realm):
        raise ValueError("a realm has 1 to 255 visible ASCII characters, without spaces and slashes")
    return realm


def hash_of(*parts: str) -> str:
    """SHA-256 in hex over length-prefixed parts, the first of which is a domain tag."""
    digest = hashlib.sha256()
    for part in parts:
        octets = part.encode()
        digest.update(len(octets).to_bytes(8, "big") + octets)
    return digest.hexdigest()


class UnknownFingerprintVersion(ValueError):
    """The record's fingerprint version is not supported here, so equality cannot be decided."""


@dataclass(frozen=True)
class Fingerprint:
    version: int
    digest: str
    """64 hex digits."""


def fingerprint(
    job: IdempotentJob, *, contents: Mapping[str, str] = _NOTHING, version: int = FINGERPRINT_VERSION
) -> Fingerprint:
    """The fingerprint that a duplicate of this job must equal.

    `contents`: content digests that must match (local mode: the script and its --py-files), by the name that a mismatch reports, such as
    `application file flights.py`.

    Raises: UnknownFingerprintVersion. UnknownTemplateKind."""
    form = _canonical(job, contents, version)
    octets = rfc8785.dumps({"contents": dict(form.contents), **form.document})
    return Fingerprint(version, hashlib.sha256(_FORM + octets).hexdigest())


def fingerprints(job: IdempotentJob, *, contents: Mapping[str, str] = _NOTHING) -> dict[int, str]:
    """The job's fingerprint by every version known here. Raises: UnknownTemplateKind."""
    return {version: fingerprint(job, contents=contents, version=version).digest for version in _VERSIONS}


def version_of(digest: str, job: IdempotentJob) -> int | None:
    """The oldest version in which this is the job's fingerprint; None: another job's, or an unsupported version."""
    return next((version for version in _VERSIONS if fingerprint(job, version=version).digest == digest), None)


def same(digest: str, version: int, mine: Mapping[int, str]) -> bool:
    """Whether a record with this fingerprint, of this version, is for the job whose fingerprints are `mine`: by the record's version, or by
    a newer one, which leaves out more. Raises: UnknownFingerprintVersion: `mine` lacks the record's version."""
    if version not in mine:
        raise UnknownFingerprintVersion(
            f"it is compared by fingerprint version {version}, which was not computed (known: {sorted(mine)}); upgrade sparkonce"
        )
    return any(each == digest for known, each in mine.items() if known >= version)


def path_digests(
    job: IdempotentJob, *, secret: bytes, contents: Mapping[str, str] = _NOTHING, version: int = FINGERPRINT_VERSION
) -> dict[str, str]:
    """Field path -> 16 hex digits, keyed with the record's secret (1 to 64 bytes), for `differing`."""
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
    version: int = FINGERPRINT_VERSION,
) -> list[str]:
    """Paths of the fields in which a job differs from the one whose `path_digests` were stored: changed, added, then removed.
    Compares by every version from `version` on, and returns the shortest list.

    Empty if and only if the fingerprints are equal (`same`)."""
    _canonical(job, contents, version)
    named = [
        _differing(stored, job, secret=secret, contents=contents, version=each) for each in _VERSIONS if each >= version
    ]
    return min(named, key=len)


def version_of_digests(
    stored: Mapping[str, str], job: IdempotentJob, *, secret: bytes, contents: Mapping[str, str] = _NOTHING
) -> int:
    """The oldest version in which these are the job's `path_digests`; the newest if there is none, or no secret to compute them with."""
    if not secret:
        return FINGERPRINT_VERSION
    found = (each for each in _VERSIONS if path_digests(job, secret=secret, contents=contents, version=each) == stored)
    return next(found, FINGERPRINT_VERSION)


def _differing(
    stored: Mapping[str, str], job: IdempotentJob, *, secret: bytes, contents: Mapping[str, str], version: int
) -> list[str]:
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
    message = len(octets).to_bytes(8, "big") + octets + rfc8785.dumps(value)
    return hashlib.blake2b(message, digest_size=_DIGEST_BYTES, key=secret, person=b"sparkonce/field").hexdigest()
