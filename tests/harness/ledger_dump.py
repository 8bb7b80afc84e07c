"""The ledger as its server has it, read independently of the operator, for comparison with statuses, applications and outputs.

It uses etcd's JSON gateway, or statements of its own, and `json` instead of the store under test: an audit that read the ledger with the
code that wrote it would share its mistakes. Only the layout comes from the store; it is documented in `store/etcd/layout.py` and
`store/postgres/schema.py`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.etcd import Etcd
from harness.postgres import PostgresServer
from sparkonce.store.etcd.layout import BESIDE, ROOT
from sparkonce.store.postgres.address import schema_of

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
    """Key hashes under `open/`, or of records that are not finalized."""


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


def claims(server: Etcd | PostgresServer, install: str) -> dict[str, Json]:
    """Current owners by key hash."""
    if isinstance(server, PostgresServer):
        found = rows(server, install, "SELECT key_hash, lease, owner, nonce FROM claims")
        return {row[0]: dict(zip(("lease", "owner", "nonce"), row[1:], strict=True)) for row in found}
    return {each.parts[2]: each.value for each in entries(server, install, "own")}


def realm_of(etcd: Etcd, install: str, realm: str) -> dict[tuple[str, ...], tuple[int, Any]]:
    """Everything that the ledger has of a realm: the revision and value of each key, by its parts."""
    kinds = ("key", "own", "open", "gen", *BESIDE, "event", "exp")
    found = [each for kind in kinds for each in entries(etcd, install, kind) if realm in each.parts]
    return {each.parts: (each.revision, each.value) for each in found}


def dump(server: Etcd | PostgresServer, install: str) -> Dump:
    events: dict[str, list[Json]] = {}
    if isinstance(server, PostgresServer):
        return _of_postgres(server, install, events)
    etcd = server
    for each in sorted(entries(etcd, install, "event"), key=lambda entry: entry.created):
        events.setdefault(each.parts[2], []).append(each.value)
    return Dump(
        records={each.parts[2]: each for each in entries(etcd, install, "key")},
        events=events,
        results={(each.parts[2], int(each.parts[3])): each for each in entries(etcd, install, "result")},
        claims=claims(etcd, install),
        unfinished=frozenset(each.parts[3] for each in entries(etcd, install, "open")),
    )


def rows(server: PostgresServer, install: str, statement: str) -> list[tuple[Any, ...]]:
    """What a statement returns in the schema of an install."""
    with server.connect() as connection:
        connection.execute(f'SET search_path TO "{schema_of(install)}"'.encode())
        return connection.execute(statement.encode()).fetchall()


def _of_postgres(server: PostgresServer, install: str, events: dict[str, list[Json]]) -> Dump:
    for key_hash, body in rows(server, install, "SELECT key_hash, body FROM events ORDER BY key_hash, seq"):
        events.setdefault(key_hash, []).append(json.loads(body))
    records = rows(server, install, "SELECT realm, key_hash, revision, state, body FROM records")
    results = rows(server, install, "SELECT realm, key_hash, generation, body FROM results")
    return Dump(
        records={row[1]: _entry("key", row[0], row[1], body=row[4], revision=row[2]) for row in records},
        events=events,
        results={(row[1], row[2]): _entry("result", row[0], row[1], str(row[2]), body=row[3]) for row in results},
        claims=claims(server, install),
        unfinished=frozenset(row[1] for row in records if row[3] != "Finalized"),
    )


def _entry(*parts: str, body: str, revision: int = 0) -> Entry:
    """A row. It has no version; a result is inserted, never updated."""
    return Entry(parts=parts, value=json.loads(body), revision=revision, version=1, created=0)


def _value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
