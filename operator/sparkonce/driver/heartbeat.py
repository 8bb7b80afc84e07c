"""Renews the attempt lease from a thread of the driver, and sends progress with each heartbeat.

Never ends the driver: silence of the store proves nothing, and the answer that the attempt is over is only recorded, for the next write to
find. A job that computes in native code still beats, because the thread needs the interpreter only for microseconds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from sparkonce.driver.channel import Channel

STOP_PATIENCE = 5.0
"""Seconds to wait for a beat in progress: a local store answers in milliseconds, or reports that it is busy after a few seconds."""


class Heartbeat:
    def __init__(self, channel: Channel, *, interval: float, progress: Callable[[], Mapping[str, Any]]) -> None:
        self.channel, self.interval, self.progress = channel, interval, progress
        self._spark = SparkProgress()
        self.over = False
        """The ledger has answered that this attempt is over."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="sparkonce-heartbeat", daemon=True)

    def start(self) -> None:
        self._spark.begin()
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread. Afterwards no beat is in progress, unless the store has not answered it within STOP_PATIENCE."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_PATIENCE)

    def beat(self) -> None:
        """Beats now: called after a commit, so that the displayed progress is current."""
        try:
            self.over = self.over or not self.channel.renew({**self.progress(), **self._spark()})
        except Exception:  # noqa: BLE001 - unknown; the next beat retries, and a dead thread would end a healthy attempt
            return

    def _beat(self) -> None:
        while not self.over and not self._stopped.wait(self.interval):
            self.beat()


class SparkProgress:
    """Completed and total stages that Spark knows of; empty if Spark has not been started. Jobs that ended before the attempt do not count.

    A Spark job that has ended is queried once, and all job numbers come in one call: queried one by one, each costs the JVM and this
    process ten calls, so that a beat in a long session would cost more than the work that it describes."""

    def __init__(self) -> None:
        self._ended: tuple[Any, dict[int, int]] = None, {}
        """A SparkContext, and the number of stages of each ended job that it still knows; 0 for failed jobs and for jobs before the
        attempt."""

    def begin(self) -> None:
        """Excludes the jobs that have ended by now."""
        context = _context()
        if context is None:
            return
        with suppress(Exception):  # see `__call__`
            tracker = context.statusTracker()
            ended = set(_jobs(context, tracker)) - set(tracker.getActiveJobsIds())
            self._ended = context, dict.fromkeys(ended, 0)

    def __call__(self) -> dict[str, Any]:
        context = _context()
        if context is None:
            return {}
        try:
            return self._stages(context)
        except Exception:  # noqa: BLE001 - the JVM may be gone; progress is best effort and must not end a job
            return {}

    def _stages(self, context: Any) -> dict[str, Any]:
        tracker, (of, before) = context.statusTracker(), self._ended
        running, ended = [], {}
        for number in _jobs(context, tracker):
            if of is context and number in before:
                ended[number] = before[number]
            elif (info := tracker.getJobInfo(number)) is None:
                continue
            elif info.status == "RUNNING":
                running.append(info)
            elif info.status in ("SUCCEEDED", "FAILED"):
                ended[number] = len(info.stageIds) if info.status == "SUCCEEDED" else 0
        self._ended = context, ended
        active = set(tracker.getActiveStageIds()) if running else set()
        under_way = [stage for info in running for stage in info.stageIds]
        complete = sum(1 for stage in under_way if _complete(tracker, stage, active))
        done = sum(ended.values())
        return {"stagesDone": done + complete, "stages": done + len(under_way)}


def _context() -> Any:
    """The SparkContext of this process, if its code has created one."""
    return getattr(getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None)


def _jobs(context: Any, tracker: Any) -> list[int]:
    """Numbers of the jobs that Spark knows, in one call: PySpark's own list calls the JVM three times for each."""
    numbers = tracker._jtracker.getJobIdsForGroup(None)  # noqa: SLF001 - see above
    text = context._jvm.java.util.Arrays.toString(numbers)  # noqa: SLF001 - see above
    return [int(number) for number in text.strip("[]").split(",") if number]


def _complete(tracker: Any, stage: int, active: set[int]) -> bool:
    info = tracker.getStageInfo(stage)
    return stage not in active and info is not None and info.numCompletedTasks >= info.numTasks > 0
