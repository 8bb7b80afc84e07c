"""Keys: which request is which. The text a person sees, and the hash the store is ordered by.

A key's hash is SHA-256 over a domain tag and length-prefixed parts, the realm among them: no separator can be smuggled into a part, and
a key that a client chose can never equal one that was derived. The install is not among them: it prefixes the store, so that
one key has one name wherever a ledger is copied to. Texts and hashes never change within v1 (golden tests).

Hashing the readable text was not taken: `a/b` + `c` and `a` + `b/c` would read alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparkonce.model.problems import InvalidJob
from sparkonce.model.spec import JobSpec

EXPLICIT = "sparkonce/key/explicit/v1"
DERIVED = "sparkonce/key/derived/v1"

_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.ASCII)
_REALM = re.compile(r"[!-.0-~]{1,255}", re.ASCII)  # visible ASCII but "/": it is one step of a path in the store
_HASH20 = 20
_DIGEST_SHOWN = 12  # hex digits of a content digest in the key's text; the hash has all of them


@dataclass(frozen=True)
class Binding:
    """What a key is for."""

    operation: str | None
    resource: str | None
    realm: str


@dataclass(frozen=True)
class Key:
    text: str
    """As a person knows it; not unique where contents are part of the key, the hash is."""
    key_hash: str
    """64 hex digits."""
    binding: Binding

    @property
    def hash20(self) -> str:
        """The first 20 hex digits, for names."""
        return self.key_hash[:_HASH20]


def explicit(text: str, realm: str) -> Key:
    """The key that a client chose. A UUID is lower-cased, so that case cannot split one key in two. ValueError: no key, no realm."""
    if not re.fullmatch(r"[!-~]{1,255}", text):
        raise ValueError("a key has 1 to 255 visible ASCII characters, without spaces")
    text = text.lower() if _UUID.fullmatch(text) else text
    return Key(text, _hash(EXPLICIT, _checked(realm), text), Binding(None, None, realm))


def derive(spec: JobSpec, realm: str, *, content_digests: Mapping[str, str] | None = None) -> Key:
    """The key of a job.

    `content_digests` maps each of `spec.keyFrom` (ApplicationFile, Image) to its SHA-256 in hex; others are ignored. InvalidJob:
    a content that the key is made from has no digest here.
    """
    if spec.idempotency_key is not None:
        return explicit(spec.idempotency_key, realm)
    operation, resource, revision = spec.operation or "", spec.resource or "", spec.effective_revision or ""
    digests = content_digests or {}
    names = sorted(spec.key_from)
    missing = [str(name) for name in names if not digests.get(name)]
    if missing:
        raise InvalidJob([("spec.keyFrom", f"asks for the digest of {' and '.join(missing)}, which is not known here")])
    contents = [part for name in names for part in (str(name), digests[name].lower())]
    text = f"{operation}/{resource}@{revision}" + "".join(f"+{digests[name].lower()[:_DIGEST_SHOWN]}" for name in names)
    key_hash = _hash(DERIVED, _checked(realm), operation, resource, revision, *contents)
    return Key(text, key_hash, Binding(operation, resource, realm))


def derived_hash(operation: str, resource: str, revision: str, *, realm: str) -> str:
    """Of a derived key that no contents are part of. ValueError: no realm."""
    return _hash(DERIVED, _checked(realm), operation, resource, revision)


def _checked(realm: str) -> str:
    if not _REALM.fullmatch(realm):
        raise ValueError("a realm has 1 to 255 visible ASCII characters, without spaces and slashes")
    return realm


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        octets = part.encode()
        digest.update(len(octets).to_bytes(8, "big") + octets)
    return digest.hexdigest()
