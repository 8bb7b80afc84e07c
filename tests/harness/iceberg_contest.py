"""The contest on an Iceberg table of the catalog in the environment: counts effects in its snapshots, and reads rows with pyiceberg."""

from __future__ import annotations

from collections import Counter
from multiprocessing.context import ForkServerProcess

from harness import iceberg_attempts, iceberg_tables
from harness.contest import Contest
from harness.sink_attempts import Plan, key_of
from sparkonce.blocking import run
from sparkonce.sink.iceberg.evidence import COMMITTED, evidence_of, staging
from sparkonce.sink.iceberg.objects import objects_at
from sparkonce.sink.protocol import Sink, Slot

COMMIT_POINTS = ("sink.iceberg.staged", "sink.iceberg.commit.before", "sink.iceberg.commit.after")
FENCE_POINTS = ("sink.iceberg.fence.before", "sink.iceberg.fence.after")
POINTS = (*COMMIT_POINTS, *FENCE_POINTS, "driver.abort.closed", "sink.iceberg.sweep.before")


class IcebergContest(Contest):
    """A contest whose kills leave staging, or hit the rarer steps, less often, since each costs a whole write."""

    points = (*COMMIT_POINTS[1:], *FENCE_POINTS)
    ways = ("kill", "stop", "sleep(20)", "raise")
    pace = (0.02, 0.2)
    wakes = 18

    def armed(self) -> list[str]:
        rare = (("sink.iceberg.staged", 60), ("driver.abort.closed", 6), ("sink.iceberg.sweep.before", 6))
        return super().armed() + [f"{point}={self.dice.randrange(limit)}*off->1*kill->off" for point, limit in rare]

    def begin(self, plan: Plan) -> ForkServerProcess:
        return iceberg_attempts.start(plan)

    def judge(self) -> Counter[str]:
        outcome = super().judge()
        assert sum(tag.startswith(COMMITTED) for tag in iceberg_tables.tags()) == outcome["one commit"]
        return outcome

    def sink(self) -> Sink:
        return iceberg_tables.opened()

    def effects(self) -> Counter[str]:
        made = commits()
        return Counter({name: made[str(key_of(name))] for name in self.keys})

    def barred(self, name: str, token: int, verdict: Slot | None) -> bool:
        if verdict is not None:
            return verdict.token > token
        return evidence_of(iceberg_tables.table().metadata, key_of(name)).barred_below > token

    def rows(self) -> list[int]:
        return iceberg_tables.rows()

    def staged(self) -> int:
        table = iceberg_tables.table()
        objects = objects_at(table.location(), table.io, durable=False)
        return sum(len(run(objects.folders(staging(key_of(name))))) for name in self.keys)


def commits() -> Counter[str]:
    """Snapshots with rows in the history of `main`, by sink key: what readers saw, independent of any tag."""
    found: Counter[str] = Counter()
    for snapshot in iceberg_tables.table().metadata.snapshots:
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if "sparkonce.nonce" in said and "sparkonce.snapshot" not in said:
            found[said["sparkonce.sink-key"]] += 1
    return found
