"""Measures jobs from `apply` to finalized on one operator: jobs per minute, cost per job, and the operator's memory.

A run is timed from the first create of a fast client to the last end that its watch sees, with the fake Spark operator in its `least` mode
(two status writes for each application, one for its pod). The rate of kubeflow's controller alone on such a machine, with Spark stubbed out
in the same way, was measured on another day, so it serves as a goal and not as the raw side.

It counts the operator's requests to the API server per job and the transactions that its ledger applied, both from counters read before and
after, so lease renewals and the sweep are included. Every run's effect is checked: each job ended Succeeded, once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import Goal, Row, WrongEffect
from operator_stage import Stage, staged, until

WRITES = ("create", "patch", "update", "delete")
LIVE = 20
"""Jobs that run while the operator's CPU is measured, beside the finished ones."""
WATCHED = 60.0
"""Seconds over which that CPU is measured."""
SETTLES = 1.0
"""Seconds to wait after the last end, for Events that are still being written."""


@dataclass
class OperatorJobs:
    """The part `operator`; `say` gets a line per run."""

    scratch: Path
    pairs: int
    say: Callable[[str], None]
    jobs: int = 300
    finished: int = 1_000
    active: int = 100
    runs: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    cpu: float = 0.0
    """CPU in percent of a core."""

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a job did not end as Succeeded."""
        self.say(f"operator: {self.pairs} runs of {self.jobs} jobs and one of 30 to warm up")
        with staged() as stage:
            self._run(stage, 30)
            for number in range(1, self.pairs + 1):
                found = self._run(stage, self.jobs)
                self.runs.append(found)
                self.say(f"operator: run {number} of {self.pairs}: {_sentence(found)}")
        self._memory()
        return [*self._rows(), *self._remembered()]

    def _run(self, stage: Stage, jobs: int) -> dict[str, Any]:
        cpu, counters, written, load = stage.cpu(), stage.counters(), stage.written(), os.getloadavg()[0]
        seen = stage.jobs(jobs)
        if seen["ends"] != {"Succeeded": jobs}:
            raise WrongEffect(f"of {jobs} jobs, these ended so: {seen['ends']}")
        time.sleep(SETTLES)
        calls = _grown(stage.counters(), counters)
        return {
            "jobsPerMinute": 60 * jobs / seen["seconds"],
            "seconds": seen["seconds"],
            "creating": seen["creating"],
            "medianLatency": seen["latencies"][jobs // 2],
            "load": load,
            "statuses": seen["statuses"],
            "statusWrites": seen["writes"] / jobs,
            "apiWrites": sum(n for (name, verb), n in calls.items() if name == "api" and verb in WRITES) / jobs,
            "apiReads": sum(n for (name, verb), n in calls.items() if name == "api" and verb in ("get", "list")) / jobs,
            "storeTransactions": (stage.written() - written) / jobs,
            "storeRequests": {verb: n / jobs for (name, verb), n in calls.items() if name == "store"},
            "cpu": {name: 1000 * (now - cpu[name]) / jobs for name, now in stage.cpu().items()},
        }

    def _rows(self) -> list[Row]:
        def of(name: str) -> list[float]:
            return [run[name] for run in self.runs]

        rate, what = of("jobsPerMinute"), "operator: apply to finalized"
        cpu = [run["cpu"]["operator"] for run in self.runs]
        together = [sum(run["cpu"].values()) for run in self.runs]
        return [
            Row(what=what, unit="jobs/min", ours=rate, goal=Goal(388, ">= 388", absolute=True, least=True)),
            Row(what=what, unit="jobs/min", ours=rate, goal=Goal(2140, ">= 2,140", absolute=True, least=True)),
            Row(what="operator: its CPU", unit="CPU ms/job", ours=cpu),
            Row(what="operator: CPU of all servers", unit="CPU ms/job", ours=together),
            Row(what="operator: API writes", unit="per job", ours=of("apiWrites"), goal=Goal(8, "<= 8", absolute=True)),
            Row(what="operator: API reads", unit="per job", ours=of("apiReads")),
            Row(what="operator: status writes", unit="per job", ours=of("statusWrites")),
            Row(
                what="operator: etcd txns",
                unit="per job",
                ours=of("storeTransactions"),
                goal=Goal(6, "<= 6", absolute=True),
            ),
        ]

    def _memory(self) -> None:
        """Measures the memory of one operator process across all jobs."""
        self.say(f"operator: memory at {self.finished:,} finished and {self.active:,} active jobs")
        with staged(long=True, options=["--slots", str(2 * self.active)]) as stage:
            self.memory["atStart"] = stage.resident()
            for done in range(0, self.finished, 500):
                stage.jobs(min(500, self.finished - done))
            self.memory["finished"] = stage.resident()
            stage.jobs(LIVE, namespace=f"{stage.namespace}-long", ends=False)
            until(stage, LIVE, timeout=600)
            time.sleep(SETTLES)
            before, began = stage.cpu()["operator"], time.monotonic()
            time.sleep(WATCHED)
            self.cpu = 100 * (stage.cpu()["operator"] - before) / (time.monotonic() - began)
            self.memory["live"], self.memory["peak"] = stage.resident(), stage.resident(peak=True)
            stage.jobs(self.active - LIVE, namespace=f"{stage.namespace}-long", ends=False)
            until(stage, self.active, timeout=600)
            self.memory["active"] = stage.resident()

    def _remembered(self) -> list[Row]:
        told = {
            "idle": self.memory["atStart"],
            f"{self.finished:,} finished": self.memory["finished"],
            f"{self.finished:,} finished, {LIVE} live": self.memory["live"],
            "its peak until then": self.memory["peak"],
            f"{self.finished:,} finished, {self.active:,} active": self.memory["active"],
        }
        rows = [Row(what=f"operator: memory, {what}", unit="MB", ours=[number]) for what, number in told.items()]
        what = f"operator: CPU, {self.finished:,} finished, {LIVE} live"
        return [*rows, Row(what=what, unit="% of a core", ours=[self.cpu])]

    def dump(self) -> dict[str, Any]:
        return {
            "jobs": self.jobs,
            "runs": self.runs,
            "memory": self.memory,
            "cpu": self.cpu,
            "finished": self.finished,
            "active": self.active,
        }


def _grown(
    now: Mapping[tuple[str, str], float], before: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    """Requests since `before`, by ("api" or "store", verb)."""
    grown: dict[tuple[str, str], float] = {}
    for (name, labels), value in now.items():
        found = re.fullmatch(r"sparkonce_(api|store)_requests_total", name)
        verb = re.search(r'verb="(\w+)"', labels)
        if found and verb and (more := value - before.get((name, labels), 0.0)) > 0:
            grown[found[1], verb[1]] = grown.get((found[1], verb[1]), 0.0) + more
    return grown


def _sentence(run: Mapping[str, Any]) -> str:
    cpu = ", ".join(f"{name} {spent:.1f}" for name, spent in run["cpu"].items())
    return (
        f"{run['jobsPerMinute']:.0f} jobs a minute at load {run['load']:.1f}; per job {run['apiWrites']:.1f} API writes, "
        f"{run['storeTransactions']:.1f} etcd transactions, CPU ms: {cpu}"
    )
