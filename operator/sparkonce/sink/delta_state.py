"""A Delta table as its log says it is, at one version: read through delta-rs, which knows checkpoints, compacted logs and features.

Every answer of a `Snapshot` comes from one loaded table. Whoever decides on it commits exactly the version after it, so that anything in
between is a conflict, and then looks again.

No table is a claim like any other: delta-rs also says it of folders that it may not read. It is believed only when the place itself lists
no log and has no version 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from sparkonce.errors import OutputUnavailable
from sparkonce.sink.delta_log import LOG, Live, entry_path, fence, idem, plain_path
from sparkonce.sink.objects import Objects
from sparkonce.sink.protocol import SinkKey

CHECKPOINT_INTERVAL = 10
"""Versions between checkpoints where the table does not say: what Delta's own writer takes."""
LOOK_BACK = 200
"""Entries of the log that are read, at most, to learn who removed a file; each is one request to the store."""

LIBRARY_ERRORS = (DeltaError, OSError, ValueError, RuntimeError)
"""What delta-rs raises for a store that fails, and for a log that does not parse; it does not tell them apart."""


class Snapshot:
    """One version. Cheap questions first: the list of live files is made only when it is asked for."""

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
        self.features = frozenset(protocol.writer_features or ()) | frozenset(protocol.reader_features or ())

    def committed(self, key: SinkKey | str) -> int | None:
        """Number of the slot that stands for a key (`delta_log.slot_number`)."""
        return self._table.transaction_version(idem(key))

    def fenced(self, key: SinkKey | str) -> int:
        """The lowest token that may still commit; 0 when none was ever fenced."""
        return self._table.transaction_version(fence(key)) or 0

    @cached_property
    def live(self) -> dict[str, Live]:
        """Files whose rows the table shows, by their path as it is on disk."""
        import pyarrow as pa

        adds = pa.table(self._table.get_add_actions(flatten=False))
        paths, sizes = cast("list[str]", adds["path"].to_pylist()), cast("list[int]", adds["size_bytes"].to_pylist())
        return {plain_path(raw): Live(raw, size) for raw, size in zip(paths, sizes, strict=True)}

    @property
    def checkpoint_interval(self) -> int:
        text = self.configuration.get("delta.checkpointInterval", "")
        return int(text) if text.isdigit() and int(text) > 0 else CHECKPOINT_INTERVAL


class Log:
    """Of one table. OutputUnavailable from every method: unknown."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def open(self) -> DeltaTable:
        """As the library opens it; its errors pass through. Credentials and endpoints come from the environment."""
        return DeltaTable(self.objects.uri, storage_options=_storage_options(self.objects.uri))

    async def load(self) -> Snapshot | None:
        """The table as it is now; None: there is none, and that is certain. A log that does not parse is one that cannot be read, too."""
        try:
            return Snapshot(self.open())
        except TableNotFoundError as error:
            listed = await self.objects.list(LOG)
            if not any(each.path.endswith((".json", ".parquet")) for each in listed) and (
                await self.objects.get(entry_path(0)) is None
            ):
                return None
            # It was being made while we looked, or the library cannot read what is there.
            try:
                return Snapshot(self.open())
            except LIBRARY_ERRORS:
                raise self._unreadable(error) from error
        except LIBRARY_ERRORS as error:
            raise self._unreadable(error) from error

    async def checkpoint(self, snapshot: Snapshot) -> None:
        """A summary of the log up to its newest version, and the end of entries past their retention. Not needed for correctness: a failure
        is left to the next one who commits."""
        try:
            table = self.open()
            if snapshot.configuration.get("delta.checkpointPolicy", "classic") != "classic":
                return
            table.create_checkpoint()
            if snapshot.configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
                table.cleanup_metadata()
        except LIBRARY_ERRORS:
            return

    async def rewritten(self, snapshot: Snapshot, paths: frozenset[str]) -> bool | None:
        """Whether every one of these files, which are not live, was removed by somebody who only wrote its rows elsewhere (OPTIMIZE).
        None: the log does not reach back that far."""
        left = set(paths)
        for version in range(snapshot.version, max(-1, snapshot.version - LOOK_BACK), -1):
            data = await self.objects.get(entry_path(version))
            if data is None:
                break
            for line in data.splitlines():
                removed = json.loads(line).get("remove") if b'"remove"' in line else None
                if removed is None or (path := plain_path(removed["path"])) not in left:
                    continue
                if removed.get("dataChange", True):
                    return False
                left.discard(path)
            if not left:
                return True
        return None

    def _unreadable(self, error: Exception) -> OutputUnavailable:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        return OutputUnavailable(f"cannot read the Delta table {self.objects.uri}: {said}")


def _storage_options(uri: str) -> dict[str, str] | None:
    """What delta-rs does not take from the environment by itself as the rest of us does: endpoints by every name, and that whoever sets an
    http:// endpoint has said that it is one. Nothing secret goes through here."""
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
