"""The last row of each key of a table's lanes, for `read(spark, path, latest=["id"])`.

The rows of a lane have an order: the numbers of their batches, which never restart, and the place within the file of a batch. Rows of two
lanes have none, so a key that two lanes have written is an error of the query, and so are rows of jobs beside lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkonce.errors import InvalidInput
from sparkonce.sink.groups import HELPER, quoted
from sparkonce.sink.slotlog.visibility import Shown, path_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELETED = "_deleted"
"""Column with true in rows that say that their key is gone."""
_LANE, _BATCH, _ROW, _LAST, _OTHER = (f"{HELPER}{name}" for name in ("lane", "batch", "row", "last", "other"))


def key_columns(keys: Any, argument: str) -> tuple[str, ...]:
    """Names of key columns, sorted. argument: for errors.

    Raises:
        InvalidInput: not a list of different names.
    """
    names = list(keys) if isinstance(keys, Sequence) and not isinstance(keys, str | bytes) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidInput(f'{argument} is {keys!r}, and must be a list of columns, as in {argument}=["id"]')
    if len({name.lower() for name in names}) < len(names):
        raise InvalidInput(f"{argument} names a column twice: {', '.join(names)}")
    return tuple(sorted(names))


def refuse_unordered(seen: Shown, keys: Any, *, where: str) -> tuple[str, ...]:
    """The names of the key columns, if these slots have them. where: the table, for errors.

    Raises:
        InvalidInput: a lane has other keys or none, or rows are of a job.
    """
    names = key_columns(keys, "latest")
    for slot, _ in seen:
        if slot.lane is None:
            raise InvalidInput(
                f"{where} also has rows of jobs ({path_of(slot)}), and only a lane's rows have a last one; let jobs write to another path"
            )
        if (own := slot.lane.keys) != names:
            has = (
                f"the keys {', '.join(own)}; give latest={list(own)}"
                if own
                else "no keys; keys are given to its writer from the first row on"
            )
            raise InvalidInput(f"latest is {list(names)}, and the lane {slot.lane.name} of {where} has {has}")
    return names


def order_columns(scan: DataFrame) -> list[Column]:
    """Where each row of a scan of a lane's files stands, as columns beside its own."""
    from pyspark.sql import functions as F

    metadata = scan.metadataColumn("_metadata")  # a lane may have a column of that name
    lane = F.regexp_extract(metadata["file_path"], r"/([0-9a-f]{64})-lane-g[0-9]+-b[0-9]+/[^/]+/[^/]+$", 1)
    batch = F.regexp_extract(metadata["file_name"], r"^([0-9]+)\.parquet$", 1)
    return [lane.alias(_LANE), batch.cast("long").alias(_BATCH), metadata["row_index"].alias(_ROW)]


def last_of(frame: DataFrame, keys: Sequence[str], *, deleted: bool) -> DataFrame:
    """The last row of each key. frame: rows with `order_columns`; without these it has no rows. deleted: keep the rows that say that their
    key is gone, and tell them by true in the last column, `_deleted`."""
    from pyspark.sql import functions as F

    if _LANE not in frame.columns:
        return frame.withColumn(DELETED, F.lit(False)) if deleted else frame.drop(DELETED)
    names = [name for name in frame.columns if name not in (_LANE, _BATCH, _ROW)]
    row = F.struct(*(F.col(quoted(name)) for name in names))
    last = frame.groupBy(*(F.col(quoted(name)) for name in keys)).agg(
        F.max_by(row, F.struct(_BATCH, _ROW)).alias(_LAST),
        F.min(_LANE).alias(_LANE),
        F.max(_LANE).alias(_OTHER),
    )
    gone = F.coalesce(F.col(_LAST)[DELETED], F.lit(False)) if DELETED in names else F.lit(False)
    columns = [F.col(_LAST)[name].alias(name) for name in names if name != DELETED]
    which = F.concat_ws(", ", *(F.col(quoted(name)).cast("string") for name in keys))
    two = F.concat(
        F.lit(f"two lanes have written the key {', '.join(keys)} = "), which, F.lit("; neither row is the last one")
    )
    one = F.when(F.col(quoted(_LANE)) != F.col(quoted(_OTHER)), F.raise_error(two)).otherwise(
        F.lit(True) if deleted else ~gone
    )
    return last.where(one).select(*columns, *([gone.alias(DELETED)] if deleted else []))
