"""Compares PostgreSQL with etcd as the operator's ledger: jobs per minute, and one reservation, in the same run.

Two operators run beside each other on one API server, each with its own ledger and namespace; only one of them has jobs at a time. Both
ledgers keep their data on the measured disk and flush every commit, as in production. A pair of reservations is OPERATIONS fresh keys
each, one at a time and then OUTSTANDING at a time, by the asynchronous store that an operator uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import Row, WrongEffect, measured, pair_text
from operator_reserve import FSYNC, OPERATIONS, OUTSTANDING, Times, reservations, timed
from operator_stage import Stage, stage_on

from harness.apiserver import started_cluster
from harness.etcd import running
from harness.postgres import PostgresServer
from sparkonce.store.open import open_shared

OURS, RAW = "PostgreSQL", "etcd"


@dataclass
class OperatorLedgers:
    """The part `operator-postgres`; `say` gets a line per pair."""

    scratch: Path
    pairs: int
    say: Callable[[str], None]
    jobs: int = 300

    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def measure(self) -> list[Row]:
        """Raises WrongEffect if a job did not end as Succeeded, or a key was not reserved."""
        self.say(f"operator-postgres: {self.pairs} pairs of {self.jobs} jobs and of {OPERATIONS} reservations")
        with ExitStack() as stack:
            etcd = stack.enter_context(running(self.scratch, flags=[FSYNC]))
            postgres = PostgresServer(fsync="on", full_page_writes="on")
            stack.callback(postgres.close)
            postgres.start()
            urls = {OURS: postgres.url, RAW: f"etcd://{etcd.one.address}"}
            reserved = self._reservations(urls)
            cluster = stack.enter_context(started_cluster())
            stages = {name: stage_on(stack, cluster, url, self.scratch / name) for name, url in urls.items()}
            rates = measured(
                {name: lambda stage=stage: self._rate(stage) for name, stage in stages.items()},  # type: ignore[misc] # a default in a lambda has no type
                self.pairs,
                self._told_rates,
            )
        rows = [Row(what="operator-postgres: apply to finalized", unit="jobs/min", ours=rates[OURS], raw=rates[RAW])]
        for place, what in enumerate(("reserve, one at a time", f"reserve, {OUTSTANDING} outstanding")):
            ours, raw = ([times[place] for times in reserved[name]] for name in (OURS, RAW))
            rows.append(Row(what=f"operator-postgres: {what}", unit="ms", ours=ours, raw=raw))
        return rows

    def _rate(self, stage: Stage) -> float:
        seen = stage.jobs(self.jobs)
        if seen["ends"] != {"Succeeded": self.jobs}:
            raise WrongEffect(f"of {self.jobs} jobs, these ended so: {seen['ends']}")
        return float(60 * self.jobs / seen["seconds"])

    def _reservations(self, urls: Mapping[str, str]) -> dict[str, list[Times]]:
        with self._runner:
            stores = {name: open_shared(url, install="bench-keys", by="the benchmark") for name, url in urls.items()}
            leases = {name: self._runner.run(store.open_lease(owner="benchmark")) for name, store in stores.items()}
            found = measured(
                {
                    name: lambda name=name: self._runner.run(
                        timed(reservations(self.scratch, stores[name], leases[name]))
                    )  # type: ignore[misc] # a default in a lambda has no type
                    for name in stores
                },
                self.pairs,
                self._told_times,
            )
            for store in stores.values():
                self._runner.run(store.close())
        return found

    def _told_rates(self, pair: int, found: Mapping[str, float]) -> None:
        self._told(pair, ", ".join(f"{name} {rate:.0f} jobs a minute" for name, rate in found.items()))

    def _told_times(self, pair: int, found: Mapping[str, Times]) -> None:
        self._told(pair, ", ".join(f"{name} {one:.2f} and {many:.2f} ms" for name, (one, many) in found.items()))

    def _told(self, pair: int, what: str) -> None:
        which = pair_text(pair, self.pairs)
        self.say(f"operator-postgres: {which}: {what}")

    def dump(self) -> dict[str, Any]:
        return {"jobsPerRun": self.jobs, "operationsPerPair": OPERATIONS, "outstanding": OUTSTANDING}
