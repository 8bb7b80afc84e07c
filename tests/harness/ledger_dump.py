"""The ledger as bytes in etcd, read independently of the operator, for comparison with statuses, applications and outputs.

It uses etcd's JSON gateway and `json` instead of the store under test: an audit that read the ledger with the code that wrote it would
share its mistakes. Only the layout of keys comes from the store; it is documented in `store/etcd/layout.py`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.etcd import Etcd
from sparkonce.store.etcd.layout import BESIDE, ROOT

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One key: its parts below the install, its value, the revision that wrote it, and its version."""

    parts: tuple[str, ...]
    value: Any
    revision: int
    version: int
    created: int


@dataclass(frozen=True, kw_only=True)
class Dump:
    """Everything of one install, in one linearizable read for each kind."""

    records: Mapping[str, Entry]
    """By key hash."""
    events: Mapping[str, Sequence[Json]]
    """By key hash, in the order of writing."""
    results: Mapping[tuple[str, int], Entry]
    """By key hash and generation."""
    claims: Mapping[str, Json]
    """By key hash: lease, owner, nonce."""
    unfinished: frozenset[str]
    """Key hashes under `open/`."""


def entries(etcd: Etcd, install: str, kind: str) -> list[Entry]:
    root = f"{ROOT}{install}/"
    prefix = f"{root}{kind}/"
    body = {"key": _b64(prefix), "range_end": _b64(prefix[:-1] + "0")}  # "0" follows "/"
    found = etcd.members[0].post("kv/range", body, timeout=30.0).get("kvs", [])
    return [
        Entry(
            parts=tuple(base64.b64decode(kv["key"]).decode()[len(root) :].split("/")),
            value=_value(base64.b64decode(kv.get("value", ""))),
            revision=int(kv["mod_revision"]),
            version=int(kv["version"]),
            created=int(kv["create_revision"]),
        )
        for kv in found
    ]


def claims(etcd: Etcd, install: str) -> dict[str, Json]:
    """Current owners by key hash."""
    return {each.parts[2]: each.value for each in entries(etcd, install, "own")}


def realm_of(etcd: Etcd, install: str, realm: str) -> dict[tuple[str, ...], tuple[int, Any]]:
    """Everything that the ledger has of a realm: the revision and value of each key, by its parts."""
    kinds = ("key", "own", "open", "gen", *BESIDE, "event", "exp")
    found = [each for kind in kinds for each in entries(etcd, install, kind) if realm in each.parts]
    return {each.parts: (each.revision, each.value) for each in found}


def dump(etcd: Etcd, install: str) -> Dump:
    events: dict[str, list[Json]] = {}
    for each in sorted(entries(etcd, install, "event"), key=lambda entry: entry.created):
        events.setdefault(each.parts[2], []).append(each.value)
    return Dump(
        records={each.parts[2]: each for each in entries(etcd, install, "key")},
        events=events,
        results={(each.parts[2], int(each.parts[3])): each for each in entries(etcd, install, "result")},
        claims=claims(etcd, install),
        unfinished=frozenset(each.parts[3] for each in entries(etcd, install, "open")),
    )


def _value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
