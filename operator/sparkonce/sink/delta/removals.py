"""What became of files of a Delta table that readers do not see any more, from the entries of its log (see `sink.trace`).

`dataChange: false` is Delta's word for a commit that only moves rows. A deletion vector leaves a file in the table and hides rows of it:
delta-rs lists the files that have one (`DeltaSnapshot.masked`), and the log has the commit that added it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sparkonce.model.spec import WriteMode
from sparkonce.sink.delta.log import IDEM, entry_path, plain_path
from sparkonce.sink.delta.numbering import numbering
from sparkonce.sink.delta.snapshot import DeltaSnapshot
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import Change
from sparkonce.sink.series import noted_place
from sparkonce.sink.trace import LOOK_BACK, Group, RowTrace, Step, operation_name

DIGITS = 12
"""Of a digest, to tell entries of one version apart."""


async def traced(
    objects: TableObjects, table: DeltaSnapshot, lost: Iterable[str], *, back: int = LOOK_BACK, every: bool = False
) -> RowTrace:
    """Follows files through the log: `back` entries at most, one request each, and no further than the log goes back. every: see
    `RowTrace`."""
    trace = RowTrace(lost, table.live.keys() - table.masked, every=every)
    for version in range(table.version, max(-1, table.version - back), -1):
        if trace.done or (entry := await objects.get(entry_path(version))) is None:
            break
        try:
            step = step_of(version, entry, every=every)
        except (ValueError, TypeError, AttributeError, LookupError):
            break  # delta-rs reads no entries before a checkpoint, so one that does not parse may be met here: the history ends with it
        trace.step(step)
    return trace


def step_of(version: int, entry: bytes, *, every: bool = False) -> Step:
    """What an entry of the log did to files. every: with what `RowTrace` needs to name every commit."""
    lines = (json.loads(line) for line in entry.splitlines() if line.strip())
    actions = [next(iter(line.items())) for line in lines if line]
    adds = [body for name, body in actions if name == "add"]
    removes = [body for name, body in actions if name == "remove"]
    moves = [body for body in removes if not body.get("dataChange", True)]
    changes = [body for body in removes if body.get("dataChange", True)]
    rewrites = changes if every and not _replaces_all(actions) else []
    return Step(
        change=_change(version, entry, actions),
        removed=[plain_path(body["path"]) for body in changes],
        moved={plain_path(body["path"]): _partition(body) for body in moves},
        added={plain_path(body["path"]): _partition(body) for body in adds} if moves or rewrites else {},
        marks=[
            plain_path(body["path"]) for body in adds if body.get("deletionVector") and body.get("dataChange", True)
        ],
        marked={plain_path(body["path"]) for body in (removes if every else moves) if body.get("deletionVector")},
        rewritten={plain_path(body["path"]): _partition(body) for body in rewrites},
    )


def _change(version: int, entry: bytes, actions: Collection[tuple[str, Mapping[str, Any]]]) -> Change:
    key, noted = _sink_key(actions), _noted(actions)
    series, position = noted_place(noted.get("series"), noted.get("position")) if key else ("", "")
    return Change(
        commit=f"version {version}",
        operation=_operation(actions),
        key=key,
        series=series,
        position=position,
        overwrites=bool(key) and noted.get("mode") == WriteMode.OVERWRITE,
        digest=hashlib.sha256(entry).hexdigest()[:DIGITS],
    )


def _noted(actions: Iterable[tuple[str, Mapping[str, Any]]]) -> Mapping[str, Any]:
    """What a commit of sparkonce notes of itself; empty of another writer's, and of one by an earlier release."""
    for name, body in actions:
        text = body.get("userMetadata") if name == "commitInfo" else None
        if isinstance(text, str) and '"sparkonce"' in text:
            with contextlib.suppress(ValueError):
                noted = json.loads(text)
                found = noted.get("sparkonce") if isinstance(noted, dict) else None
                return found if isinstance(found, dict) else {}
    return {}


def _replaces_all(actions: Iterable[tuple[str, Mapping[str, Any]]]) -> bool:
    """Whether the files that a commit adds hold no row of those that it removes: it is one of sparkonce's own writer, or overwrites without
    a predicate. A statement of a native block is Spark's, and copies rows."""
    info = next((body for name, body in actions if name == "commitInfo"), {})
    predicate = (info.get("operationParameters") or {}).get("predicate")
    key = _sink_key(actions)
    return (key != "" and numbering(key).own_rows) or (
        info.get("operation") == "WRITE" and predicate in (None, "", "[]")
    )


def _partition(body: Mapping[str, Any]) -> Group:
    values = body.get("partitionValues")
    return None if values is None else frozenset(values.items())


def _operation(actions: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    return next((operation_name(body.get("operation")) for name, body in actions if name == "commitInfo"), "")


def _sink_key(actions: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    identifiers = (str(body.get("appId", "")) for name, body in actions if name == "txn")
    return next((each.removeprefix(IDEM) for each in identifiers if each.startswith(IDEM)), "")
