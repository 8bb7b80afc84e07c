"""Rows that say what became of a thing: `writer("lake/orders", name="tap-7", keys=["id"])`.

The values of the *keys* name the thing. Each row is its state from then on; true in the column `_deleted` says that it is gone. The table
keeps all of them, in the order of the lane: a row of one append follows those of the appends before it. Readers that want one row for each
thing take the last (`sink.slotlog.latest`). A topic of Kafka keeps at least the last (`lanes.kafka_log`).

Rejected: one chain for each of a number of buckets. The rows of an append would be in several chains, and no single step commits those with
their position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.errors import InvalidInput
from sparkonce.sink.slotlog.latest import DELETED, key_columns

if TYPE_CHECKING:
    import pyarrow as pa

KEYS_LIMIT = 16
"""Columns of a key. Each place repeats their names."""


def key_names(keys: Any) -> tuple[str, ...]:
    """The names of the key columns, in the one order that a lane stores.

    Raises:
        InvalidInput: not a list of 1 to 16 different names of columns.
    """
    names = key_columns(keys, "keys")
    if len(names) > KEYS_LIMIT:
        raise InvalidInput(f"keys has {len(names)} columns, and may have {KEYS_LIMIT}")
    if DELETED in names:
        raise InvalidInput(f"the column {DELETED} says which rows are gone, and cannot be one of the keys")
    return names


def keys_text(keys: Sequence[str]) -> str:
    """What a lane has, for a sentence."""
    return f"has the keys {', '.join(keys)}" if keys else "has no keys"


def refuse_other_keys(given: Sequence[str] | None, keys: Sequence[str], *, lane: str, other: str) -> None:
    """given: by the lane's writer; None: it takes those that the lane has. keys: of the lane. lane: for errors. other: "path" or "topic".

    Raises:
        InvalidInput: the writer gives others.
    """
    if given is not None and tuple(given) != tuple(keys):
        raise InvalidInput(
            f"{lane} {keys_text(keys)}, and its writer gives keys={list(given)}; keys cannot be changed: give the lane's own, or write to "
            f"another {other}"
        )


def refuse_rows(table: pa.Table, keys: Sequence[str]) -> None:
    """Checks rows of an append to a lane with these keys.

    Raises:
        InvalidInput: a row has no value in a key column, or the column's type has no equality to rely on, or `_deleted` is not boolean.
    """
    if not keys or not table.num_rows:
        return
    from pyarrow import types as t

    for name in keys:
        if name not in table.schema.names:
            raise InvalidInput(f"the rows have no column {name}, which is one of the lane's keys")
        kind = table.schema.field(name).type
        if t.is_nested(kind) or t.is_floating(kind):
            raise InvalidInput(
                f"column {name} is {kind} and one of the lane's keys, which are compared for equality; cast it to a text or a whole number"
            )
        if table.column(name).null_count:
            raise InvalidInput(f"a row has no value in {name}, which is one of the lane's keys")
    if DELETED in table.schema.names and not t.is_boolean(kind := table.schema.field(DELETED).type):
        raise InvalidInput(
            f"column {DELETED} is {kind}, and says with true or false whether a row is gone; cast or rename it"
        )


def as_deleted(table: pa.Table) -> pa.Table:
    """The rows, marked as gone."""
    import pyarrow as pa

    at, marks = table.schema.get_field_index(DELETED), pa.repeat(True, table.num_rows)
    return table.append_column(DELETED, marks) if at < 0 else table.set_column(at, DELETED, marks)
