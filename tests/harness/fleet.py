"""Several operator processes on one ledger, their jobs, and the checks of everything that they did.

with Fleet(cluster, ledger_server, namespace, install, tmp_path) as fleet:
    fleet.start(3)
    names = fleet.apply(plain(20))
    fleet.members[0].kill()
    fleet.until_ended(names, 30)
    fleet.audit(names)
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyarrow import parquet

from harness.apiserver import Cluster
from harness.audit import Audit, Expected
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.forked import PROGRAM
from harness.jobs import job
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import writes_outputs
from harness.ledger_dump import claims, dump
from harness.ledgers import Server, url_of
from harness.operators import OperatorProcess
from harness.witness import Witness
from sparkonce.launch.kubeflow.labels import ATTEMPT_LABEL
from sparkonce.launch.kubernetes import JOBS
from sparkonce.sink.slotlog.snapshot import Table

Json = dict[str, Any]

TTL = 3
"""Seconds of a lease in these tests."""
SOON = {"initial": "0.1s", "max": "1s"}
"""Backoff between attempts."""
FAILS_ONCE, WRITES, WRITES_AND_FAILS = "fails-once", "writes", "writes-and-fails"
"""Arguments that select a driver's behaviour in `scripted`."""
ROWS = (1, 2, 3)
"""Rows that a driver with an output writes."""

ONCE = Expected()


@dataclass(frozen=True)
class Applied:
    """A job and its expected outcome."""

    body: Json
    expected: Expected = ONCE

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])


def plain(count: int, *, name: str = "plain") -> list[Applied]:
    """Opaque jobs that succeed."""
    return [Applied(job(f"{name}-{n:04d}", key=f"{name}-{n}")) for n in range(count)]


def failing_once(count: int, *, name: str = "fails") -> list[Applied]:
    """Opaque jobs whose first attempt exits with 1 and which allow two attempts."""
    retry = {"maxAttempts": 2, "backoff": SOON}
    return [
        Applied(job(f"{name}-{n:04d}", key=f"{name}-{n}", arguments=(FAILS_ONCE,), retry=retry), Expected(attempts=2))
        for n in range(count)
    ]


def writing(count: int, folder: Path, *, name: str = "writes", fails: bool = False) -> list[Applied]:
    """Jobs with one declared output each, in one table shared by all; `fails`: attempt 1 writes nothing and exits with 1."""
    spec: Json = {
        "outputs": [{"name": "rows", "slotLog": {"path": str(folder)}}],
        "retry": {"maxAttempts": 3, "backoff": SOON},
    }
    said = WRITES_AND_FAILS if fails else WRITES
    return [
        Applied(
            job(f"{name}-{n:04d}", key=f"{name}-{n}", arguments=(said,), **spec), Expected(attempts=2 if fails else 1)
        )
        for n in range(count)
    ]


def scripted(kubeflow: FakeKubeflow) -> None:
    """The drivers of the jobs above."""
    kubeflow.on(Script(exit_code=1), argument=FAILS_ONCE, labels={ATTEMPT_LABEL: "1"})
    kubeflow.on(Script(code=writes_outputs(*ROWS)), argument=WRITES)
    kubeflow.on(Script(code=writes_outputs(*ROWS)), argument=WRITES_AND_FAILS)
    kubeflow.on(Script(exit_code=1), argument=WRITES_AND_FAILS, labels={ATTEMPT_LABEL: "1"})


def rows_of(folder: Path) -> Counter[object]:
    """How often each number is in the table, as a reader sees it."""
    numbers: Counter[object] = Counter()
    for path in Table(folder).files():
        numbers.update(parquet.read_table(path).column("n").to_pylist())
    return numbers


@dataclass
class Fleet:
    cluster: Cluster
    server: Server
    namespace: str
    install: str
    folder: Path
    lease_seconds: int = TTL
    sweep_seconds: float = 120.0
    """The default: nothing that these tests wait for may need a sweep."""
    options: Sequence[str] = ()
    kubeconfig: Path | None = None
    """Kubeconfig of the operators if they use a proxy; None: the cluster's own."""
    ledger: str = ""
    """The ledger's address for the operators if they use a proxy or more options; empty: that of `server`."""
    members: list[OperatorProcess] = field(default_factory=list)
    """All operators ever started, in order."""
    applied: dict[str, Expected] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.witness = Witness(self.cluster, self.namespace)

    def __enter__(self) -> Self:
        self.witness.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.members:
            each.end()
        self.witness.__exit__(kind, value, trace)

    # processes

    @property
    def url(self) -> str:
        return self.ledger or url_of(self.server)

    @property
    def etcd(self) -> Etcd:
        assert isinstance(self.server, Etcd), "this fleet's ledger is not on etcd"
        return self.server

    def add(
        self,
        *,
        program: Sequence[str] = PROGRAM,
        options: Sequence[str] | None = None,
        python: str = sys.executable,
        **environment: str,
    ) -> OperatorProcess:
        """Starts an operator without waiting for it. `options` override those of the fleet."""
        process = OperatorProcess(
            self.url,
            self.install,
            self.kubeconfig or self.cluster.kubeconfig,
            [self.namespace],
            self.folder,
            name=f"operator-{len(self.members) + 1}",
            lease_seconds=self.lease_seconds,
            sweep_seconds=self.sweep_seconds,
            options=self.options if options is None else options,
            environment=environment,
            python=python,
            program=program,
        )
        self.members.append(process)
        return process.start(wait=False)

    def start(self, count: int) -> list[OperatorProcess]:
        """Starts more operators and waits until they are ready."""
        started = [self.add() for _ in range(count)]
        for each in started:
            each.wait_ready()
        return started

    def owners(self) -> Mapping[str, int]:
        """Owner's process id by key hash, for every claimed key."""
        return {key: int(each["owner"].rpartition("/")[2]) for key, each in claims(self.server, self.install).items()}

    # jobs

    def apply(self, jobs: Iterable[Applied]) -> list[str]:
        """Applies the jobs one after the other, as fast as the API server accepts them; returns their names."""
        names = []
        with self.cluster.server.client() as api:
            for each in jobs:
                self.applied[each.name] = each.expected
                api.create(JOBS, each.body, self.namespace)
                names.append(each.name)
        return names

    @contextmanager
    def load(self, jobs: Sequence[Applied], *, per_second: float) -> Iterator[list[str]]:
        """Applies the jobs at this rate during the block; all are applied when it ends."""
        for each in jobs:
            self.applied[each.name] = each.expected
        stop = threading.Event()
        failed: list[BaseException] = []

        def work() -> None:
            began = time.monotonic()
            try:
                with self.cluster.server.client() as api:
                    for number, each in enumerate(jobs):
                        if stop.wait(max(0.0, began + number / per_second - time.monotonic())):
                            return
                        api.create(JOBS, each.body, self.namespace)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, name="load", daemon=True)
        thread.start()
        try:
            yield [each.name for each in jobs]
        except BaseException:
            stop.set()  # the rest will not be looked at
            raise
        finally:
            thread.join()
        if failed:
            raise failed[0]

    def ended(self) -> int:
        return sum(count for phase, count in self.witness.phases().items() if phase in ("Succeeded", "Failed"))

    def some_end(self, seconds: float = 2.0) -> None:
        """Returns when a job has ended, and after this time in any case."""
        before = self.ended()
        with contextlib.suppress(AssertionError):
            assert_eventually(lambda: self.ended() > before, seconds, interval=0.1)

    def until_ended(self, timeout: float) -> float:
        """Waits until all applied jobs have ended; returns the seconds that it took."""
        began = time.monotonic()
        self.witness.until_ended(self.applied, timeout, hint=self.tails)
        return time.monotonic() - began

    def tails(self, lines: int = 25) -> str:
        return "\n".join(f"--- {each.name}\n{each.tail(lines)}" for each in self.members[-6:])

    # afterwards

    def audit(self, kubeflow: FakeKubeflow | None = None) -> None:
        """Checks that all witnesses agree on every job that was applied."""
        found = dump(self.server, self.install)
        try:
            Audit(found, self.witness, kubeflow.runs if kubeflow is not None else None).check(self.applied)
        except AssertionError as wrong:
            raise AssertionError(f"{wrong}\n{self.tails()}") from wrong
