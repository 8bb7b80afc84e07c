"""The environment of the operator's benchmark: a real API server, two real etcds, the fake Spark operator and one operator, a process each.

They share the cores of this machine. CPU is read per process, from /proc, so that each figure belongs to one program. The etcds keep their
data in memory, as in the tests: the part `etcd` measures the cost of flushes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from measure import WrongEffect

from harness.apiserver import ADMIN, Cluster, folder_in_memory, started_cluster
from harness.etcd import Etcd, running
from harness.eventually import assert_eventually
from harness.kubeflow.process import kubeflow_process
from harness.kubeflow.script import Script
from harness.operators import OperatorProcess
from machine import resident
from sparkonce.launch.kubernetes import NAMESPACES

HERE = Path(__file__).resolve().parent
_TICK = os.sysconf("SC_CLK_TCK")
_SAMPLE = re.compile(r"(?P<name>\w+)\{(?P<labels>.*)\} (?P<value>\S+)")


@dataclass
class Stage:
    cluster: Cluster
    folder: Path
    operator: OperatorProcess
    namespace: str
    ledger: Etcd | None = None
    """None: it is no etcd of the stage's own."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Pids of the processes that stand in for Spark, by name."""

    @property
    def pids(self) -> dict[str, int]:
        return {
            "operator": self.operator.pid,
            "API server": self.cluster.server.child.pid,
            "its etcd": self.cluster.etcd.one.child.pid,
            "controllers": self.cluster.controllers.pid,
            **({} if self.ledger is None else {"ledger": self.ledger.one.child.pid}),
            **self.others,
        }

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each process since it started."""
        return {name: cpu_of(pid) for name, pid in self.pids.items()}

    def counters(self) -> dict[tuple[str, str], float]:
        """The operator's counters: (metric, labels) to value."""
        found = (_SAMPLE.fullmatch(line) for line in self.operator.metrics().splitlines())
        return {(each["name"], each["labels"]): float(each["value"]) for each in found if each is not None}

    def written(self) -> float:
        """Transactions that the ledger's etcd has applied; those that only read do not count."""
        assert self.ledger is not None
        return self.ledger.one.counted("etcd_server_proposals_applied_total")

    def gauge(self, name: str) -> float:
        return float(re.search(rf"^sparkonce_{name} (\S+)$", self.operator.metrics(), re.MULTILINE)[1])  # type: ignore[index]

    def resident(self, *, peak: bool = False) -> float:
        """Resident memory of the operator in MiB, now or at its peak."""
        return resident(self.operator.pid, peak=peak)

    def jobs(self, number: int, *, namespace: str | None = None, ends: bool = True) -> Mapping[str, Any]:
        """Creates jobs with a client process; returns its report once all have ended, or were created."""
        out = self.folder / f"client-{uuid4().hex[:8]}.json"
        command = [sys.executable, str(HERE / "operator_client.py"), "--server", self.cluster.url]
        command += ["--ca", str(self.cluster.certificates.ca), "--token", ADMIN, "--out", str(out)]
        command += [
            "--namespace",
            namespace or self.namespace,
            "--prefix",
            f"j{uuid4().hex[:8]}",
            "--jobs",
            str(number),
        ]
        command += [] if ends else ["--only-create"]
        path = os.pathsep.join([str(HERE.parent / "tests"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise WrongEffect(f"the client of {number} jobs: {done.stderr[-1000:]}\n{self.operator.tail(5)}")
        seen: Mapping[str, Any] = json.loads(out.read_text())
        return seen


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


@contextmanager
def staged(*, long: bool = False, options: Sequence[str] = ()) -> Iterator[Stage]:
    """A running stage. `long`: adds a namespace `<first>-long` whose applications never end. `options`: further options for the
    operator."""
    with ExitStack() as stack:
        cluster = stack.enter_context(started_cluster())
        folder = stack.enter_context(folder_in_memory())
        ledger = stack.enter_context(running(folder))
        stage = stage_on(stack, cluster, f"etcd://{ledger.one.address}", folder, long=long, options=options)
        stage.ledger = ledger
        yield stage


def stage_on(
    stack: ExitStack, cluster: Cluster, url: str, folder: Path, *, long: bool = False, options: Sequence[str] = ()
) -> Stage:
    """A namespace of the cluster with an operator whose ledger is at `url`, until `stack` is closed. Otherwise as `staged`."""
    folder.mkdir(exist_ok=True)
    namespace = f"bench-{uuid4().hex[:8]}"
    scripts = {namespace: Script()} | ({f"{namespace}-long": Script(run_seconds=1e6)} if long else {})
    others = {}
    for name, script in scripts.items():
        cluster.api.create(NAMESPACES, {"metadata": {"name": name}})
        fake = stack.enter_context(kubeflow_process(cluster, name, script=script, least=True))
        others["fake Spark" + name.removeprefix(namespace)] = fake.pid
    operator = OperatorProcess(
        url,
        "bench",
        cluster.kubeconfig,
        list(scripts),
        folder,
        lease_seconds=10,
        sweep_seconds=120.0,
        options=options,
    )
    stack.callback(operator.end)
    operator.start()
    return Stage(cluster, folder, operator, namespace, others=others)


def until(stage: Stage, drives: int, *, timeout: float) -> None:
    """Waits until the operator drives this many keys."""

    def enough() -> None:
        assert stage.gauge("drives") == drives, f"{stage.gauge('drives'):.0f} of {drives}"

    assert_eventually(enough, timeout=timeout, interval=0.5)
