"""One version of a Delta table, read through delta-rs, which knows checkpoints, compacted logs and features.

Every answer of a `DeltaSnapshot` comes from one loaded table. A commit decided on it creates exactly the next version, so that any entry in
between is a conflict.

"No such table" needs proof: delta-rs also reports it for folders that it may not read. It is believed only when the store itself lists no
log and has no version 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from sparkonce.errors import OutputUnavailable
from sparkonce.sink.delta.log import (
    LOG,
    Live,
    entry_path,
    idem,
    plain_path,
    position_of,
    series,
    series_text,
    value_texts,
)
from sparkonce.sink.delta.numbering import numbering
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import SeriesPlace, SinkKey

if TYPE_CHECKING:
    import pyarrow as pa

CHECKPOINT_INTERVAL = 10
"""Versions between checkpoints unless the table sets it: the default of Delta's own writer."""

LIBRARY_ERRORS = (DeltaError, OSError, ValueError, RuntimeError)
"""Errors that delta-rs raises for a failing store and for an invalid log alike."""


class DeltaSnapshot:
    """One version. The list of live files is built only when it is needed."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table
        metadata = table.metadata()
        self.version: int = table.version()
        self.identity = str(metadata.id)
        self.name, self.description = metadata.name, metadata.description
        self.partition_by = tuple(metadata.partition_columns)
        self.configuration: Mapping[str, str] = dict(metadata.configuration)
        self.created: int | None = metadata.created_time
        self.schema: dict[str, Any] = json.loads(table.schema().to_json())
        protocol = table.protocol()
        self.min_reader, self.min_writer = protocol.min_reader_version, protocol.min_writer_version
        self.reader_features = frozenset(protocol.reader_features or ())
        self.features = frozenset(protocol.writer_features or ()) | self.reader_features

    def committed(self, key: SinkKey | str) -> int | None:
        """Number of a key's committed slot (`numbering.slot_number`); None when there is none."""
        number = self._table.transaction_version(idem(key))
        return number if number is not None and numbering(key).commits(number) else None

    def fenced(self, key: SinkKey | str) -> int:
        """The lowest token that may still commit; 0 when the key was never fenced."""
        return numbering(key).fenced(self._table.transaction_version)

    def latest(self, place: SeriesPlace | None) -> str | None:
        """The latest position that the series of a place has committed; None when none, or without a place."""
        order = None if place is None else self._table.transaction_version(series(place))
        if place is None or order is None:
            return None
        return position_of(order, self._table.transaction_version(series_text(place)))

    @cached_property
    def _adds(self) -> pa.Table:
        import pyarrow as pa

        return pa.table(self._table.get_add_actions(flatten=False))

    @cached_property
    def live(self) -> dict[str, Live]:
        """Files whose rows are visible, by their path on disk."""
        paths = cast("list[str]", self._adds["path"].to_pylist())
        sizes = cast("list[int]", self._adds["size_bytes"].to_pylist())
        return {plain_path(raw): Live(raw, size) for raw, size in zip(paths, sizes, strict=True)}

    @cached_property
    def partitions(self) -> dict[str, Mapping[str, str | None]]:
        """The partition values of the live files by column, as the log spells them; null is None. By the files' paths on disk."""
        from pyarrow import compute

        texts = {name: value_texts(compute.struct_field(self._adds["partition"], name)) for name in self.partition_by}
        return {path: {name: column[row] for name, column in texts.items()} for row, path in enumerate(self.live)}

    @cached_property
    def records(self) -> dict[str, int | None]:
        """Live files -> their rows as the log has them, hidden ones too; None where it does not."""
        adds = self._adds
        rows = adds["num_records"].to_pylist() if "num_records" in adds.column_names else [None] * adds.num_rows
        return {plain_path(str(raw)): count for raw, count in zip(adds["path"].to_pylist(), rows, strict=True)}

    @cached_property
    def masked(self) -> frozenset[str]:
        """Those of the live files of which a deletion vector hides rows. Raises: OutputUnavailable."""
        return frozenset(path for path, _ in self._masks(rows=False))

    @cached_property
    def masked_rows(self) -> dict[str, int]:
        """As `masked`, with the number of hidden rows. Raises: OutputUnavailable."""
        return dict(self._masks(rows=True))

    def _masks(self, *, rows: bool) -> Iterator[tuple[str, int]]:
        """Paths of files with a deletion vector, with the number of rows that it hides; 0 unless `rows`."""
        if "deletionVectors" not in self.features:
            return
        root = unquote(self._table.table_uri).rstrip("/") + "/"
        try:
            for batch in self._table.deletion_vectors():
                vectors = batch["selection_vector"] if rows else ()
                for number, uri in enumerate(batch["filepath"].to_pylist()):
                    kept = vectors[number].as_py() if rows else ()
                    yield unquote(uri).removeprefix(root), len(kept) - sum(kept)
        except LIBRARY_ERRORS as error:
            raise OutputUnavailable(
                f"cannot read the deletion vectors of the Delta table {self._table.table_uri}"
            ) from error

    @property
    def checkpoint_interval(self) -> int:
        text = self.configuration.get("delta.checkpointInterval", "")
        return int(text) if text.isdigit() and int(text) > 0 else CHECKPOINT_INTERVAL


class Log:
    """The log of one table. Every method raises OutputUnavailable when the state of the log is unknown."""

    def __init__(self, objects: TableObjects) -> None:
        self.objects = objects

    def open(self) -> DeltaTable:
        """Opens the table with delta-rs, whose errors pass through. Credentials and endpoints come from the environment."""
        return DeltaTable(self.objects.uri, storage_options=_storage_options(self.objects.uri))

    async def load(self) -> DeltaSnapshot | None:
        """The current table; None when it certainly does not exist. Raises: OutputUnavailable, also for a log that does not parse."""
        try:
            return DeltaSnapshot(self.open())
        except TableNotFoundError as error:
            listed = await self.objects.list(LOG)
            if not any(each.path.endswith((".json", ".parquet")) for each in listed) and (
                await self.objects.get(entry_path(0)) is None
            ):
                return None
            # The table was just created, or the library cannot read it.
            try:
                return DeltaSnapshot(self.open())
            except LIBRARY_ERRORS:
                raise self._unreadable(error) from error
        except LIBRARY_ERRORS as error:
            raise self._unreadable(error) from error

    async def checkpoint(self, snapshot: DeltaSnapshot) -> None:
        """Writes a checkpoint of the newest version and deletes expired entries. Not needed for correctness: after a failure the next
        commit that is due tries again."""
        try:
            table = self.open()
            if snapshot.configuration.get("delta.checkpointPolicy", "classic") != "classic":
                return
            table.create_checkpoint()
            if snapshot.configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
                table.cleanup_metadata()
        except LIBRARY_ERRORS:
            return

    def _unreadable(self, error: Exception) -> OutputUnavailable:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        return OutputUnavailable(f"cannot read the Delta table {self.objects.uri}: {said}")


def _storage_options(uri: str) -> dict[str, str] | None:
    """Environment settings that obstore reads and delta-rs does not: every name of an endpoint, and that an http:// endpoint permits plain
    HTTP. No secrets pass through here."""
    if uri.startswith("s3a://"):
        names = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
    elif uri.startswith(("abfs", "az://")):
        names = ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]
    else:
        return None
    endpoint = next(filter(None, (os.environ.get(name) for name in names)), None)
    if endpoint is None:
        return None
    plain = {"allow_http": "true"} if endpoint.lower().startswith("http://") else {}
    return {"aws_endpoint" if uri.startswith("s3a://") else "azure_endpoint": endpoint, **plain}
