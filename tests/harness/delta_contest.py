"""The contest on a Delta table, in a folder or on a store: counts effects in its log, and reads rows with delta-rs."""

from __future__ import annotations

import json
from collections import Counter
from multiprocessing.context import ForkServerProcess
from typing import cast

from harness import delta_attempts
from harness.contest import Contest
from harness.sink_attempts import Plan, key_of
from sparkonce.blocking import run
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.delta.sink import DeltaTableSink
from sparkonce.sink.delta.snapshot import DeltaSnapshot
from sparkonce.sink.objects.protocol import TableObjects
from sparkonce.sink.protocol import Sink, Slot

TABLE_POINTS = ("sink.delta.table.before", "sink.delta.table.after")
COMMIT_POINTS = (*TABLE_POINTS, "sink.delta.commit.before", "sink.delta.commit.after", "sink.delta.checkpoint.before")
FENCE_POINTS = ("sink.delta.noted", "sink.delta.fence.before", "sink.delta.fence.after")
POINTS = (*COMMIT_POINTS, *FENCE_POINTS, "driver.abort.closed", "sink.delta.sweep.before")


class DeltaContest(Contest):
    """Its processes meet less often than those of a slot log, whose commits cost a tenth."""

    points = POINTS
    pace = (0.01, 0.1)
    wakes = 16

    def begin(self, plan: Plan) -> ForkServerProcess:
        return delta_attempts.start(plan)

    def sink(self) -> Sink:
        return delta_attempts.sink_at(self.table)

    def effects(self) -> Counter[str]:
        commits = Counter(committed(self._sink()._objects))
        return Counter({name: commits[delta_log.idem(key_of(name))] for name in self.keys})

    def barred(self, name: str, token: int, verdict: Slot | None) -> bool:
        if verdict is not None:
            return verdict.token > token
        table = run(self._sink()._log.load())
        return cast("DeltaSnapshot", table).fenced(key_of(name)) > token

    def rows(self) -> list[int]:
        return sorted(cast("list[int]", self._sink()._log.open().to_pyarrow_table()["n"].to_pylist()))

    def staged(self) -> int:
        objects = self._sink()._objects
        return sum(len(run(objects.folders(f"so-{key_of(name)}"))) for name in self.keys)

    def _sink(self) -> DeltaTableSink:
        return cast("DeltaTableSink", self.sink())


def committed(objects: TableObjects) -> list[str]:
    """Identifiers of all transactions in the log, once per entry that has them."""
    found = []
    for each in run(objects.list(delta_log.LOG)):
        if each.path.endswith(".json"):
            lines = (run(objects.get(each.path)) or b"").splitlines()
            found += [json.loads(line)["txn"]["appId"] for line in lines if line.startswith(b'{"txn"')]
    return found
