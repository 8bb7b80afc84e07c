"""Delta sinks on a local folder that stage without a JVM, and shorthands for their tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.arrow_stage import table_of
from harness.delta_stage import delta_stage, transactions
from sparkonce.model.spec import OnRerun
from sparkonce.sink.delta.sink import DeltaTableSink, open_delta
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import Declared, SinkKey, Slot

ORDERS = Declared(name="orders", kind="delta", location="lake/orders")
"""An output as a job declares it; where it lies is said by the objects that a sink is opened with."""


def sink_on(table: Path, on_rerun: OnRerun = OnRerun.REPLACE) -> DeltaTableSink:
    """A sink without fsync: no machine loses power in these tests."""
    output = replace(ORDERS, on_rerun=on_rerun)
    return open_delta(output, FolderObjects(table, durable=False), stage=delta_stage)


def staged(sink: DeltaTableSink, key: SinkKey, token: int, *numbers: int, fingerprint: str = "f") -> Slot:
    """Stages a column `n` with these numbers."""
    return sink.stage(table_of(*numbers), key, token, fingerprint=fingerprint)


def later(key: SinkKey, generation: int) -> SinkKey:
    """The key's next generation."""
    return key.model_copy(update={"generation": generation})


def idem_commits(table: Path, key: SinkKey) -> int:
    """Number of log entries that commit the key."""
    return sum(each["appId"] == f"idem:{key}" for each in transactions(table))
