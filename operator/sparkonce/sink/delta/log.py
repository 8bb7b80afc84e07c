"""Renders entries of a Delta log, and the statistics of files in them. Pure.

An entry is a file `_delta_log/<version>.json`, one action per line, created only if absent: Delta has no other atomicity and needs none.
Ours carry two transaction identifiers per sink key:

    idem:<sink key>    63 bits of the digest of the committed slot, by which a writer recognises its own commit from the table alone
    fence:<sink key>   the lowest token that may still commit

and, for a key of a series, one that all keys of the series share:

    series:<name>           the latest order (`model.spec.order_of`) that was committed; it never decreases
    series-text:<name>      the same with the form in which its position was written (`spelled`)

Checkpoints keep the newest version of each identifier, so they outlive the entries.

Source: the Delta transaction log protocol (actions, partition value serialization, paths as RFC 2396 URIs).

Statistics come from the footers that staging reads anyway. Readers skip a file whose bounds exclude what they look for, so a wrong bound
silently loses rows. Bounds are therefore omitted for all types that engines order or write differently: floats (NaN, two zeros), timestamps
(zones, INT96), decimals (JSON has no exact numbers), booleans, bytes, nested types, dates before the calendar reform or beyond the
year 9999, and text that is long or has characters that engines order differently. A column without bounds is read, never skipped.

Statistics are not part of a slot: the entry of the driver, which has read the footers, contains them; the entry of a process that rolls a
sealed slot forward does not. No decision depends on them.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import unicodedata
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from sparkonce.sink import groups
from sparkonce.sink.protocol import DataFile, SeriesPlace, SinkKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ColumnChunkMetaData, FileMetaData

LOG = "_delta_log"
ENGINE = "sparkonce"
IDEM = "idem:"
"""Prefix of the identifier that names a key's committed slot."""

_SAFE = "/=:@!$&'()*+,;~"
"""Characters that RFC 2396 allows in a path, beside letters, digits and `-._`."""
_BLANK = ("Z", "C")
"""Unicode categories (spaces, controls) that Java's URIs escape; other characters beyond ASCII stay unescaped."""

Action = dict[str, Any]


@dataclass(frozen=True)
class Live:
    """A file whose rows are visible."""

    raw: str
    """Its path as spelled in the log: a `remove` must use the same spelling."""
    bytes: int


def entry_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def idem(key: SinkKey | str) -> str:
    """Identifier of a key's committed slot."""
    return f"{IDEM}{key}"


def fence(key: SinkKey | str) -> str:
    """Identifier of the lowest token that may commit."""
    return f"fence:{key}"


def series(place: SeriesPlace) -> str:
    """Identifier of the latest order of a series."""
    return f"series:{place.series}"


def series_text(place: SeriesPlace) -> str:
    """Identifier of the latest position of a series, as it was written."""
    return f"series-text:{place.series}"


FORMS = 200
"""More than there are forms of positions. An order has at most 15 digits, so their product fits into a signed 64-bit number."""


def spelled(place: SeriesPlace) -> int:
    """A position as a number: its order times `FORMS`, plus its form, which is its length and, for times, 100. The forms of times all have
    different lengths."""
    return place.order * FORMS + len(place.position) + (0 if place.position.isdigit() else 100)


def position_of(order: int, text: int | None) -> str:
    """A position of this order. text: `spelled` of the latest position. It is None, or of another order, in a table whose series was last
    moved by a release that did not write it; a number that reads as a time is then taken for one."""
    known, form = (None, 0) if text is None else divmod(text, FORMS)
    digits = str(order)
    if known == order and form < 100:
        return digits.zfill(form)
    if known == order:
        time = digits.zfill(14)
        full = f"{time[:4]}-{time[4:6]}-{time[6:8]}T{time[8:10]}:{time[10:12]}:{time[12:14]}Z"
        zone = "Z" if form - 100 in (14, 17) else ""
        return full[: form - 100 - len(zone)] + zone
    if len(digits) != 14 or not ("01" <= digits[4:6] <= "12" and digits[6:8] <= "31" and digits[8:10] <= "23"):
        return digits
    day = "-".join(part for part in (digits[:4], digits[4:6], digits[6:8]) if part != "00")
    return day if digits[8:14] == "000000" else f"{day}T{digits[8:10]}:{digits[10:12]}:{digits[12:14]}Z"


def render(actions: Iterable[Action]) -> bytes:
    return "".join(
        json.dumps(each, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n" for each in actions
    ).encode()


def commit_info(
    operation: str, parameters: Mapping[str, str], *, now: int, blind: bool, notes: Mapping[str, Any]
) -> Action:
    """The action that `DESCRIBE HISTORY` shows. notes: stored as user metadata, which every engine displays."""
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


def new_table(
    schema: Mapping[str, Any],
    partition_by: Sequence[str],
    *,
    protocol: Action,
    now: int,
    notes: Mapping[str, Any] | None = None,
) -> bytes:
    """Version 0 of a table without rows. protocol: the body of its action. notes: see `commit_info`."""
    table = meta_data(
        identity=str(uuid.uuid4()), schema=schema, partition_by=partition_by, configuration={}, created=now
    )
    parameters = {"isManaged": "false", "description": "", "partitionBy": json.dumps(list(partition_by))}
    info = commit_info("CREATE TABLE", parameters, now=now, blind=True, notes=notes or {})
    return render([info, {"protocol": protocol}, table])


def created_for(entry: bytes | None) -> str:
    """The sink key for whose statements a table was created by this version 0; empty: for another reason, or the entry is gone."""
    try:
        info = json.loads((entry or b"").splitlines()[0])["commitInfo"]
        return str(json.loads(info["userMetadata"])["sparkonce"]["sinkKey"])
    except (ValueError, LookupError, TypeError):
        return ""


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
    """Values from the names of a file's folders, null for absent columns. Files that an earlier version staged have Hive's names
    (`day=2024-05-01/`), unescaped here."""
    if named := groups.named(path):
        return {column: groups.value_of(named[column]) if column in named else None for column in partition_by}
    parts = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    found = {unquote(column): None if value == groups.NULL else unquote(value) for column, _, value in parts}
    return {column: found.get(column) for column in partition_by}


def value_texts(values: pa.ChunkedArray[Any]) -> list[str | None]:
    """Partition values as the log spells them. Arrow spells dates and times: Python has none outside of the years 1 to 9999."""
    import pyarrow as pa

    if not pa.types.is_temporal(values.type):
        return [_value_text(value) for value in values.to_pylist()]
    plain = pa.timestamp("us") if pa.types.is_timestamp(values.type) else values.type
    texts = values.cast(plain).cast(pa.string()).to_pylist()
    return [text and re.sub(r"^(?=[0-9]{5})", "+", text) for text in texts]


def _value_text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float():
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
        case bytes():
            return value.decode("utf-8", "replace")
        case _:
            return str(value)


def is_misread(text: str | None, kind: object) -> bool:
    """Whether delta-rs cannot read a partition value of the log, and so not the table either: beyond 9999 it takes years with a sign only.
    kind: Spark's type."""
    return text is not None and kind in ("date", "timestamp_ntz") and re.match("[0-9]{5}", text) is not None


def typed(text: str | None, kind: str) -> Any:
    """A partition value of the log in a form that is equal for equal values, however they are spelled. kind: Spark's name of the type."""
    if text is None or text == "":
        return None  # the protocol's null
    try:
        if kind in ("byte", "short", "integer", "long"):
            return int(text)
        if kind == "boolean":
            return text.lower()
        if kind in ("float", "double"):
            return "NaN" if text == "NaN" else groups.single(text) if kind == "float" else float(text)
        if kind.startswith("decimal"):
            return Decimal(text)
        if kind.startswith("timestamp"):
            return dt.datetime.fromisoformat(text).replace(tzinfo=None)
    except (ValueError, InvalidOperation):
        return text
    return text


def log_path(path: str) -> str:
    """A path as spelled in the log. Equivalent escapes are not enough: VACUUM compares texts as Java's URIs spell them, and deletes
    files that are spelled differently."""
    return "".join(
        letter if letter > "\x7f" and unicodedata.category(letter)[0] not in _BLANK else quote(letter, safe=_SAFE)
        for letter in path
    )


def plain_path(raw: str) -> str:
    """A path of the log, decoded: relative to the table, unless another writer wrote an absolute one."""
    return unquote(raw)


COLUMNS = 32
"""Columns with statistics, the first ones: as many as Delta's own writer has. The log holds them once per file."""
TEXT = 32
"""Longest text used as a bound, in characters."""

_BOUNDED = ("byte", "short", "integer", "long", "date", "string")
_REFORM = dt.date(1583, 1, 1)
_SURROGATES = "\ud800"
"""From here on, engines that compare UTF-16 and engines that compare bytes order text differently."""


def of_file(footer: FileMetaData, rows: Mapping[str, Any]) -> str:
    """Statistics in the form of an `add` action. rows: their Spark schema."""
    wanted = {field["name"]: field["type"] for field in rows["fields"][:COLUMNS] if "." not in field["name"]}
    found: dict[str, list[ColumnChunkMetaData]] = {}
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            chunk = footer.row_group(group).column(number)
            if isinstance(wanted.get(chunk.path_in_schema), str):
                found.setdefault(chunk.path_in_schema, []).append(chunk)
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, chunks in found.items():
        said: list[tuple[Any, int]] = [(chunk.statistics, chunk.num_values) for chunk in chunks]
        counts = [each.null_count for each, _ in said if each is not None and each.has_null_count]
        if len(counts) < len(chunks):
            continue
        nulls[name] = sum(count or 0 for count in counts)
        filled = [each for each, values in said if each is not None and (each.null_count or 0) < values]
        if wanted[name] in _BOUNDED and filled and all(each.has_min_max for each in filled):
            bounds = _bounds(wanted[name], filled)
            if bounds is not None:
                least[name], most[name] = bounds
    stats: dict[str, Any] = {"numRecords": footer.num_rows}
    if nulls:
        stats |= {"minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(stats, separators=(",", ":"), ensure_ascii=False)


def _bounds(kind: str, statistics: list[Any]) -> tuple[Any, Any] | None:
    try:
        values = [value for each in statistics for value in (each.min, each.max)]
    except (ValueError, OverflowError):  # text that is not UTF-8; dates outside of Python's years 1 to 9999
        return None
    if kind == "string":
        if not all(
            isinstance(each, str) and len(each) <= TEXT and all(c < _SURROGATES for c in each) for each in values
        ):
            return None
    elif kind == "date":
        if not all(isinstance(each, dt.date) and each >= _REFORM for each in values):
            return None
        return min(values).isoformat(), max(values).isoformat()
    elif not all(type(each) is int for each in values):
        return None
    return min(values), max(values)
