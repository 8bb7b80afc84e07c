"""Spark jobs whose effects happen exactly once: the API for job authors.

    job = sparkonce.current()        # inside a job that `sparkonce run` started
    job.write(df, "orders")          # the one effect on a declared output

    with sparkonce.job("load-2024-05-01", outputs={"orders": "lake/orders"}) as job:   # notebooks
        job.write(df, "orders")

    sparkonce.read(spark, "lake/orders")

    with sparkonce.writer("lake/orders", name="tap-7") as writer:    # any process, without Spark
        writer.append(rows, position=offset)

    @sparkonce.idempotent(store="sqlite:///replies.db", key=lambda order: order)     # any function, without Spark

Importing this module is cheap: names are resolved on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkonce.driver.current import current
    from sparkonce.errors import (
        BufferFull,
        CallRefused,
        Fenced,
        KeyConflict,
        LaneBusy,
        LaneError,
        LaneRetired,
        NotInJob,
        RecordedFailure,
        SparkonceError,
        WriterFenced,
    )
    from sparkonce.functions import idempotent
    from sparkonce.lanes.writer import async_writer, writer
    from sparkonce.local.notebook import job
    from sparkonce.sink.slotlog.reader import files, read
    from sparkonce.sink.slotlog.source import register

__version__ = "0.1.0"

_HOMES = {
    "current": "sparkonce.driver.current",
    "job": "sparkonce.local.notebook",
    "files": "sparkonce.sink.slotlog.reader",
    "read": "sparkonce.sink.slotlog.reader",
    "register": "sparkonce.sink.slotlog.source",
    "idempotent": "sparkonce.functions",
    "writer": "sparkonce.lanes.writer",
    "async_writer": "sparkonce.lanes.writer",
    "BufferFull": "sparkonce.errors",
    "LaneBusy": "sparkonce.errors",
    "LaneError": "sparkonce.errors",
    "LaneRetired": "sparkonce.errors",
    "WriterFenced": "sparkonce.errors",
    "CallRefused": "sparkonce.errors",
    "RecordedFailure": "sparkonce.errors",
    "Fenced": "sparkonce.errors",
    "KeyConflict": "sparkonce.errors",
    "NotInJob": "sparkonce.errors",
    "SparkonceError": "sparkonce.errors",
}

__all__ = [
    "BufferFull", "CallRefused", "Fenced", "KeyConflict", "LaneBusy", "LaneError", "LaneRetired", "NotInJob", "RecordedFailure",
    "SparkonceError", "WriterFenced", "__version__", "async_writer", "current", "files", "idempotent", "job", "read", "register",
    "writer",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sparkonce' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
