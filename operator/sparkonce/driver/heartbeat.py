"""Keeps the attempt lease from a thread of the driver, and carries progress with it.

It never ends the driver: silence of the store proves nothing, and an answer that the attempt is over is only noted, for the next write
to see. A job that computes in native code still beats, since the thread needs the interpreter for microseconds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sparkonce.driver.channel import Channel

STOP_PATIENCE = 5.0
"""Seconds for the beat that is under way: a local store answers in milliseconds, or says that it is busy after a few seconds."""


class Heartbeat:
    def __init__(self, channel: Channel, *, interval: float, progress: Callable[[], Mapping[str, Any]]) -> None:
        self.channel, self.interval, self.progress = channel, interval, progress
        self.over = False
        """The ledger has answered that this attempt is over."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="sparkonce-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No beat is under way afterwards, unless the store keeps one waiting."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_PATIENCE)

    def beat(self) -> None:
        """One beat now: after a commit, so that what people are shown last is what is there."""
        try:
            self.over = self.over or not self.channel.renew({**self.progress(), **spark_progress()})
        except Exception:  # noqa: BLE001 - unknown; the next beat asks again, and a dead thread would end a sound attempt
            return

    def _beat(self) -> None:
        while not self.over and not self._stopped.wait(self.interval):
            self.beat()


def spark_progress() -> dict[str, Any]:
    """Stages done of all that Spark knows of now; empty when the job has not started Spark."""
    pyspark = sys.modules.get("pyspark")
    context = getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)
    if context is None:
        return {}
    try:
        tracker = context.statusTracker()
        jobs = [info for number in tracker.getJobIdsForGroup() if (info := tracker.getJobInfo(number)) is not None]
        done = sum(len(info.stageIds) for info in jobs if info.status == "SUCCEEDED")
        running = [info for info in jobs if info.status == "RUNNING"]
        active = set(tracker.getActiveStageIds())
        done += sum(1 for info in running for stage in info.stageIds if _complete(tracker, stage, active))
        return {
            "stagesDone": done,
            "stages": done + sum(len(i.stageIds) for i in running) - _counted(tracker, running, active),
        }
    except Exception:  # noqa: BLE001 - the JVM may be gone; progress is a courtesy and must not end a job
        return {}


def _complete(tracker: Any, stage: int, active: set[int]) -> bool:
    info = tracker.getStageInfo(stage)
    return stage not in active and info is not None and info.numCompletedTasks >= info.numTasks > 0


def _counted(tracker: Any, running: list[Any], active: set[int]) -> int:
    return sum(1 for info in running for stage in info.stageIds if _complete(tracker, stage, active))
