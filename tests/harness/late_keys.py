"""Keys of one daily series that overwrite a table (`harness.lakes`), of which yesterday's comes late and is skipped."""

from __future__ import annotations

from typing import Any

from harness import iceberg_tables
from harness.delta_stage import transactions
from harness.lakes import DeltaLake, Lake, days
from sparkonce.blocking import run
from sparkonce.model.spec import OnLate, OnRerun, Series, WriteMode
from sparkonce.sink.protocol import Committed, SinkKey, Slot

YESTERDAY, TODAY, TOMORROW = "2024-05-01", "2024-05-02", "2024-05-03"
KEYS = {
    day: SinkKey(key_hash=hash_ * 4, output="orders", generation=1)
    for day, hash_ in ((YESTERDAY, "a"), (TODAY, "b"), (TOMORROW, "c"))
}
LATE = KEYS[YESTERDAY]


def sink_of(lake: Lake, day: str, on_late: OnLate = OnLate.SKIP) -> Any:
    return lake.sink(WriteMode.OVERWRITE, Series(name="daily", position=day, on_late=on_late))


def load(lake: Lake, day: str, number: int, on_late: OnLate = OnLate.SKIP, key: SinkKey | None = None) -> Slot:
    """Overwrites the table as the job of that day; returns the slot that is committed."""
    sink = sink_of(lake, day, on_late)
    decided = run(sink.commit(key or KEYS[day], lake.stage(sink, key or KEYS[day], days(mon=number))))
    assert isinstance(decided, Committed)
    return decided.slot


def commits_of(lake: Lake, key: SinkKey) -> int:
    """How often the table records a commit of the key."""
    if isinstance(lake, DeltaLake):
        return sum(each["appId"] == f"idem:{key}" for each in transactions(lake.folder))
    return sum(name == f"idem.{key}" for name in iceberg_tables.tags())


def skipped_once(lake: Lake, number: int = 2) -> None:
    """The table has today's row and nothing else, and records once that the late key was skipped."""
    assert (lake.rows(), commits_of(lake, LATE)) == ({"mon": [number]}, 1)
    slot = run(sink_of(lake, YESTERDAY).find(LATE))
    assert slot is not None and slot.skipped is not None
    assert (slot.rows, slot.file_count, slot.mode, slot.on_rerun) == (0, 0, None, OnRerun.APPEND)
