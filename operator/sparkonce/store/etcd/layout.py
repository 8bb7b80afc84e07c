"""Keys in etcd: the layout of one install, and what a key says about its record.

    /sparkonce/v1/<install>/
        key/<realm>/<hash>                                  the record; its mod_revision is the record's revision
        own/<realm>/<hash>                                  the claim, on its owner's lease: etcd deletes it when the lease ends
        open/<shard>/<realm>/<hash>                         unfinished keys; the shard is the hash's first byte
        gen/<realm>/<hash>                                  the generation floor, never deleted
        spec|result|intent/<realm>/<hash>/<generation>      values beside the record, once per generation
        report/<realm>/<hash>/<generation>/<attempt>/<reporter>
        size/<realm>/<hash>/<generation>/<attempt>          how many reports of the attempt, and of how many bytes
        beat/<realm>/<hash>/<generation>/<attempt>/<by>
        event/<realm>/<hash>/<milliseconds>-<nonce>         the history; its order is that of the create revisions, not of the names
        exp/<utc-minute>/<realm>/<hash>                     finalized keys by the minute in which they expire
        replica/<nonce>                                     the operator's processes, each under its lease
        gateway/<nonce>                                     the gateways that serve, each under its lease
        epoch                                               the store's epoch; absent means 1

Parts are percent-encoded, so that a realm with slashes is one part: a namespace stays as it is, and no key of one realm begins with
another's prefix. Keys of several realms are therefore in the order of the encoded names. The objects that want a generation are in
its record; a copy under separate keys would have no reader and could only disagree.

`CHANGES` spans `key/` to `report/`: one watch sees records, claims and reports in one order, with all that one transaction wrote at one
revision. Three watches would have to be merged, and could not distinguish an owner that died from one that finished.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote, unquote

from sparkonce.etcd.kv import prefix_end
from sparkonce.model.record import Address

ROOT = "/sparkonce/v1/"
BESIDE = ("spec", "result", "intent", "report", "size", "beat")
"""Kinds of keys that are removed with the record."""


@lru_cache(maxsize=4096)
def _part(text: str) -> str:
    """The percent-encoded part. Cached: a dozen keys of each transaction name one realm."""
    return quote(text, safe="")


class Layout:
    def __init__(self, install: str) -> None:
        self.root = f"{ROOT}{_part(install)}/"
        self.epoch = f"{self.root}epoch".encode()
        self.changes = self._name("key/"), prefix_end(self._name("report/"))
        """The range of the one watch over records, claims and reports."""

    def _name(self, rest: str) -> bytes:
        return f"{self.root}{rest}".encode()

    def _at(self, kind: str, address: Address) -> str:
        return f"{kind}/{_part(address.realm)}/{address.key_hash}"

    def record(self, address: Address) -> bytes:
        return self._name(self._at("key", address))

    def claim(self, address: Address) -> bytes:
        return self._name(self._at("own", address))

    def floor(self, address: Address) -> bytes:
        return self._name(self._at("gen", address))

    def open(self, address: Address) -> bytes:
        return self._name(self._at(f"open/{address.key_hash[:2]}", address))

    def beside(self, kind: str, address: Address, generation: int) -> bytes:
        """Key of the spec, result or intent of one generation."""
        return self._name(f"{self._at(kind, address)}/{generation}")

    def all_beside(self, kind: str, address: Address) -> bytes:
        """Prefix of such keys of all generations."""
        return self._name(f"{self._at(kind, address)}/")

    def of_generation(self, kind: str, address: Address, generation: int) -> bytes:
        """Prefix of the reports or beats of one generation."""
        return self._name(f"{self._at(kind, address)}/{generation}/")

    def report(self, address: Address, generation: int, attempt: int, reporter: str) -> bytes:
        return self.of_generation("report", address, generation) + f"{attempt}/{_part(reporter)}".encode()

    def size(self, address: Address, generation: int, attempt: int) -> bytes:
        return self.of_generation("size", address, generation) + str(attempt).encode()

    def sizes(self, realm: str) -> bytes:
        """Prefix of the sizes of a realm's reports."""
        return self._name(f"size/{_part(realm)}/")

    def beat(self, address: Address, generation: int, attempt: int, by: str) -> bytes:
        return self.of_generation("beat", address, generation) + f"{attempt}/{_part(by)}".encode()

    def new_event(self, address: Address, at: float) -> bytes:
        """A key that was never used: a history is only ever added to."""
        return self.all_beside("event", address) + f"{int(at * 1000):014d}-{uuid.uuid4().hex[:12]}".encode()

    def expiry(self, address: Address, at: float) -> bytes:
        return self.expiries_before(at) + f"/{_part(address.realm)}/{address.key_hash}".encode()

    def expiries_before(self, at: float) -> bytes:
        """Key in the expiry index that separates earlier minutes from this and later ones."""
        return self._name(f"exp/{_minute(at)}")

    def expiries(self) -> bytes:
        return self._name("exp/")

    def replica(self, nonce: str) -> bytes:
        return self._name(f"replica/{_part(nonce)}")

    def replicas(self) -> bytes:
        return self._name("replica/")

    def gateway(self, nonce: str) -> bytes:
        return self._name(f"gateway/{_part(nonce)}")

    def gateways(self) -> bytes:
        return self._name("gateway/")

    def records(self, realm: str | None = None, hash_prefix: str = "") -> bytes:
        """Prefix of all records, or of a realm's records whose hash begins with `hash_prefix`."""
        return self._name("key/" if realm is None else f"key/{_part(realm)}/{_part(hash_prefix)}")

    def floors(self, realm: str | None = None) -> bytes:
        """Prefix of all generation floors, or of a realm's."""
        return self._name("gen/" if realm is None else f"gen/{_part(realm)}/")

    def unfinished(self) -> bytes:
        return self._name("open/")

    def kind_of(self, key: bytes) -> str:
        return key[len(self.root) :].partition(b"/")[0].decode()

    def address_of(self, key: bytes) -> Address:
        """The address that a key under key/, own/, gen/, report/, open/ or exp/ names."""
        parts = key[len(self.root) :].decode().split("/")
        at = 2 if parts[0] in ("open", "exp") else 1
        return Address(realm=unquote(parts[at]), key_hash=parts[at + 1])


def _minute(at: float) -> str:
    """The UTC minute as text that sorts by time. A time beyond the calendar becomes its last minute."""
    try:
        return datetime.fromtimestamp(max(at, 0.0), UTC).strftime("%Y%m%dT%H%M")
    except (ValueError, OverflowError, OSError):
        return "99991231T2359"
