"""How tests are divided among pytest's workers: xdist's work stealing, except that one worker runs all tests on the real cluster.

A machine has one cluster at a time. A worker that steals one of its tests waits for the lock of the one that has it, longer than the test's
limit. xdist's own groups were rejected: they are for `--dist loadgroup`, which scatters the other tests, and the servers of their modules
are then started by each worker.
"""

from __future__ import annotations

from xdist.scheduler import WorkStealingScheduling
from xdist.scheduler.worksteal import MIN_PENDING
from xdist.workermanage import WorkerController

BOUND = "cluster"
"""The folder whose tests stay together. They come first in a run (tests/conftest.py)."""


def bound(test: str) -> bool:
    """Whether this test, by its node ID, stays with the others of its folder."""
    return BOUND in test.partition("::")[0].split("/")[:-1]


class OneWorkerPerCluster(WorkStealingScheduling):  # type: ignore[misc] # xdist ships no types
    """Work stealing that never steals a bound test."""

    def check_schedule(self) -> None:
        """Hides bound tests from idle workers, but leaves enough that their own worker does not seem idle."""
        hidden = {}
        for node, pending in self.node2pending.items():
            kept = max(0, sum(map(self._bound, pending)) - MIN_PENDING)
            hidden[node], pending[:kept] = pending[:kept], []
        super().check_schedule()
        for node, tests in hidden.items():
            self.node2pending[node][:0] = tests

    def _send_tests(self, node: WorkerController, num: int) -> None:
        first = sum(map(self._bound, self.pending)) if self.pending and self._bound(self.pending[0]) else 0
        super()._send_tests(node, max(num, first))

    def _bound(self, place: int) -> bool:
        assert self.collection is not None
        return bound(self.collection[place])
