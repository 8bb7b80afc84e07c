"""One entry of a Delta log, as text. Pure.

An entry is a file `_delta_log/<version>.json`, one action per line, created only if it is absent: that is all the atomicity that Delta
has, and all that is needed. Ours carry two transaction identifiers of the sink key:

    idem:<sink key>    63 bits of the digest of the slot that is committed: "my own commit" is known from the table alone
    fence:<sink key>   the lowest token that may still commit

Readers keep the newest version of each identifier in their checkpoints, so both outlive the entries themselves.

Source: the Delta transaction log protocol (actions, partition value serialization, paths as RFC 2396 URIs).
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from sparkonce.sink import layout
from sparkonce.sink.protocol import DataFile, SinkKey, Slot

LOG = "_delta_log"
ENGINE = "sparkonce"
IDEM = "idem:"
"""Begins the identifier under which the committed slot of a key stands."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
_SAFE = "/=:@!$&'()*+,;~"
"""Characters that RFC 2396 lets stand in a path, beside letters, digits and `-._`."""
_BLANK = ("Z", "C")
"""Categories of Unicode (spaces, controls) that Java's URIs escape; other characters beyond ASCII they leave as they are."""

Action = dict[str, Any]


@dataclass(frozen=True)
class Live:
    """A file whose rows the table shows."""

    raw: str
    """Its path as the log writes it: a `remove` must name the very same."""
    bytes: int


def entry_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def idem(key: SinkKey | str) -> str:
    """Identifier under which the committed slot of a key stands."""
    return f"{IDEM}{key}"


def fence(key: SinkKey | str) -> str:
    """Identifier under which the lowest token that may commit stands."""
    return f"fence:{key}"


def slot_number(slot: Slot) -> int:
    """63 bits that stand for the slot's bytes: versions of transactions are signed 64-bit numbers."""
    return int.from_bytes(hashlib.sha256(layout.encode(slot)).digest()[:8], "big") >> 1


def render(actions: Iterable[Action]) -> bytes:
    return "".join(
        json.dumps(each, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n" for each in actions
    ).encode()


def commit_info(
    operation: str, parameters: Mapping[str, str], *, now: int, blind: bool, notes: Mapping[str, Any]
) -> Action:
    """What `DESCRIBE HISTORY` shows. `notes` go where every engine shows a writer's own text."""
    return {
        "commitInfo": {
            "timestamp": now,
            "operation": operation,
            "operationParameters": dict(parameters),
            "isBlindAppend": blind,
            "engineInfo": ENGINE,
            "userMetadata": json.dumps({"sparkonce": dict(notes)}, ensure_ascii=False),
            "txnId": str(uuid.uuid4()),
        }
    }


def txn(identifier: str, version: int, *, now: int) -> Action:
    return {"txn": {"appId": identifier, "version": version, "lastUpdated": now}}


def add(file: DataFile, *, partition_by: Sequence[str], stats: str | None, modified: int) -> Action:
    return {
        "add": {
            "path": log_path(file.path),
            "partitionValues": partition_values(file.path, partition_by),
            "size": file.bytes,
            "modificationTime": modified,
            "dataChange": True,
            "stats": stats or json.dumps({"numRecords": file.rows}),
        }
    }


def remove(live: Live, values: Mapping[str, str | None], *, now: int) -> Action:
    return {
        "remove": {
            "path": live.raw,
            "deletionTimestamp": now,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": dict(values),
            "size": live.bytes,
        }
    }


def new_table(schema: Mapping[str, Any], partition_by: Sequence[str], *, features: Sequence[str], now: int) -> bytes:
    """Version 0 of a table without rows. `features`: table features that its types need."""
    protocol: Action = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        named = sorted(features)
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": named, "writerFeatures": named}
    table = meta_data(
        identity=str(uuid.uuid4()), schema=schema, partition_by=partition_by, configuration={}, created=now
    )
    parameters = {"isManaged": "false", "description": "", "partitionBy": json.dumps(list(partition_by))}
    info = commit_info("CREATE TABLE", parameters, now=now, blind=True, notes={})
    return render([info, {"protocol": protocol}, table])


def meta_data(
    *,
    identity: str,
    schema: Mapping[str, Any],
    partition_by: Sequence[str],
    configuration: Mapping[str, str],
    created: int | None,
    name: str | None = None,
    description: str | None = None,
) -> Action:
    body: Action = {
        "id": identity,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema, separators=(",", ":"), ensure_ascii=False),
        "partitionColumns": list(partition_by),
        "configuration": dict(configuration),
    }
    optional = {"name": name, "description": description, "createdTime": created}
    return {"metaData": body | {field: value for field, value in optional.items() if value is not None}}


def partition_values(path: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    """From Hive's folder names (`day=2024-05-01/`), unescaped; null where the folder says so, or where there is none."""
    named = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    found = {unquote(column): None if value == _NULL else unquote(value) for column, _, value in named}
    return {column: found.get(column) for column in partition_by}


def log_path(path: str) -> str:
    """As the log writes a path. Not just any spelling that decodes to it: VACUUM compares the texts, as Java's URIs write them, and
    deletes the rows of a file that is spelled in another way."""
    return "".join(
        letter if letter > "\x7f" and unicodedata.category(letter)[0] not in _BLANK else quote(letter, safe=_SAFE)
        for letter in path
    )


def plain_path(raw: str) -> str:
    """A path of the log, decoded: relative to the table, unless another writer wrote an absolute one."""
    return unquote(raw)
