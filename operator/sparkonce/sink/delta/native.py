"""Reads what the statements of a native block did to a Delta table, from the entries that Spark wrote for them.

Spark records the counts of a statement as text in its entry (`operationMetrics`). They inform and decide nothing. The files that the
statements added, and that readers still see at the block's end, are what a later probe looks for.
"""

from __future__ import annotations

import json
from typing import Any

from sparkonce.sink.delta.log import IDEM, entry_path, idem, plain_path
from sparkonce.sink.delta.snapshot import DeltaSnapshot
from sparkonce.sink.native import Measured
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import DataFile, SinkKey

LOOK_BACK = 10_000
"""Entries that are read at most: those of other writers between the first statement and the last are among them."""
ROWS = (
    ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    ("numUpdatedRows",),
    ("numDeletedRows",),
    ("numOutputRows",),
)
"""Counts by kind of statement: the first group of which an entry has one is its number of rows."""
DIGEST = "size"
"""Kind of a digest that identifies a file of Spark by its length only: its content is not read."""


async def measured(objects: TableObjects, table: DeltaSnapshot, key: SinkKey) -> Measured:
    """See `TakesStatements.measured`. Raises: OutputUnavailable."""
    statements, opening = f"{IDEM}{key}-s", idem(key)
    rows, opened = 0, False
    added: dict[str, DataFile] = {}
    removed: set[str] = set()
    for version in range(table.version, max(-1, table.version - LOOK_BACK), -1):
        entry = await objects.get(entry_path(version))
        if entry is None:
            break
        actions = _actions(entry)
        identifiers = {str(body.get("appId", "")) for name, body in actions if name == "txn"}
        if any(each.startswith(statements) for each in identifiers):
            rows += next((_rows(body) for name, body in actions if name == "commitInfo"), 0)
            for name, body in actions:
                path = plain_path(str(body.get("path", "")))
                if name == "add" and path not in removed and not body.get("deletionVector"):
                    added.setdefault(path, _file(path, body))
            removed.update(plain_path(str(body.get("path", ""))) for name, body in actions if name == "remove")
        if opening in identifiers:
            opened = True
            break
    files = tuple(added[path] for path in sorted(added) if path in table.live)
    return Measured(rows=rows, files=files, complete=opened)


def _actions(entry: bytes) -> list[tuple[str, dict[str, Any]]]:
    try:
        return [next(iter(json.loads(line).items())) for line in entry.splitlines() if line.strip()]
    except (ValueError, StopIteration, AttributeError):
        return []  # delta-rs has read the table: an entry that does not parse here is before a checkpoint


def _rows(info: dict[str, Any]) -> int:
    metrics = info.get("operationMetrics") or {}
    for names in ROWS:
        counts = [int(metrics[name]) for name in names if str(metrics.get(name, "")).isdigit()]
        if counts:
            return sum(counts)
    return 0


def _file(path: str, body: dict[str, Any]) -> DataFile:
    size = int(body.get("size", 0))
    try:
        rows = int(json.loads(body.get("stats") or "{}").get("numRecords", 0))
    except (ValueError, TypeError, AttributeError):
        rows = 0
    return DataFile(path=path, rows=rows, bytes=size, digest=f"{DIGEST}:{size}")
