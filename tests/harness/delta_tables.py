"""Delta sinks on a local folder that stage without a JVM, and shorthands for their tests."""

from __future__ import annotations

from pathlib import Path

from harness.arrow_stage import table_of
from harness.delta_stage import delta_stage, transactions
from sparkonce.model.spec import OnRerun
from sparkonce.sink.delta.sink import DeltaTableSink, open_delta
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import SinkKey, Slot


def sink_on(table: Path, on_rerun: OnRerun = OnRerun.REPLACE) -> DeltaTableSink:
    """A sink without fsync: no machine loses power in these tests."""
    return open_delta(FolderObjects(table, durable=False), name="orders", on_rerun=on_rerun, stage=delta_stage)


def staged(sink: DeltaTableSink, key: SinkKey, token: int, *numbers: int, fingerprint: str = "f") -> Slot:
    """Stages a column `n` with these numbers."""
    return sink.stage(table_of(*numbers), key, token, fingerprint=fingerprint)


def later(key: SinkKey, generation: int) -> SinkKey:
    """The key's next generation."""
    return key.model_copy(update={"generation": generation})


def idem_commits(table: Path, key: SinkKey) -> int:
    """Number of log entries that commit the key."""
    return sum(each["appId"] == f"idem:{key}" for each in transactions(table))
