"""Two namespaces on one install: an attacker's and another team's, with operators that watch both."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from harness.apiserver import ADMIN, Cluster
from harness.etcd import Etcd
from harness.gateways import ACCOUNT, bound_token, grant
from harness.kube_api import SERVICE_ACCOUNTS, Json
from harness.kubeflow import FakeKubeflow
from harness.operators import OperatorProcess
from harness.patience import stretched
from harness.stage import Stage
from sparkonce.launch.kubernetes import NAMESPACES

ADMINISTRATOR = "administrator"
"""The service account of a tenant that may do everything in its own namespace."""
EVERYTHING: list[Json] = [
    {
        "apiGroups": ["sparkonce.dev", "sparkoperator.k8s.io", "", "rbac.authorization.k8s.io"],
        "resources": ["*"],
        "verbs": ["*"],
    }
]
"""More than the chart and Kubernetes' own role `admin` give: nothing in the namespace is out of a tenant's reach."""
ANSWERS = 2.0
"""Seconds within which an operator answers its liveness probe whatever tenants do; the kubelet gives it five."""


@dataclass(frozen=True)
class Tenants:
    attacker: Stage
    other: Stage

    @property
    def operators(self) -> list[OperatorProcess]:
        return self.other.operators


@contextmanager
def tenants(
    cluster: Cluster,
    etcd: Etcd,
    folder: Path,
    *,
    operators: int = 1,
    options: Sequence[str] = (),
    sweep: float = 300.0,
    install: str = "",
) -> Iterator[Tenants]:
    """Two tenants, each with its own Spark operator and node; the operators are ready. `install`: a new one by default."""
    install = install or f"i-{uuid.uuid4().hex[:10]}"
    shared: list[OperatorProcess] = []
    stages = []
    with ExitStack() as stack:
        for role in ("attacker", "other"):
            namespace = f"t-{role}-{uuid.uuid4().hex[:8]}"
            cluster.api.create(NAMESPACES, {"metadata": {"name": namespace}})
            stack.callback(cluster.api.delete, NAMESPACES, namespace)
            fake = FakeKubeflow(cluster.url, ca=cluster.certificates.ca, token=ADMIN, namespace=namespace)
            own = folder / role
            own.mkdir()
            stages.append(Stage(cluster, etcd, namespace, install, own, stack.enter_context(fake), shared))
        for number in range(1, operators + 1):
            process = OperatorProcess(
                f"http://{etcd.one.address}",
                install,
                cluster.kubeconfig,
                [each.namespace for each in stages],
                folder,
                name=f"operator-{number}",
                sweep_seconds=sweep,
                options=options,
            )
            stack.callback(process.end)
            shared.append(process.start(wait=False))
        for each in shared:
            each.wait_ready()
        yield Tenants(*stages)


def administrator(cluster: Cluster, namespace: str) -> str:
    """The token, for the API server, of a tenant's administrator; makes the accounts of the administrator and of the drivers."""
    for account in (ADMINISTRATOR, ACCOUNT):
        cluster.api.create(SERVICE_ACCOUNTS, {"metadata": {"name": account}}, namespace)
    grant(cluster, namespace, f"system:serviceaccount:{namespace}:{ADMINISTRATOR}", EVERYTHING)
    return bound_token(cluster.api, namespace, ADMINISTRATOR, [], None)


class Process(Protocol):
    """An operator or a gateway."""

    port: int

    @property
    def running(self) -> bool: ...

    @property
    def pid(self) -> int: ...

    def tail(self, lines: int = 60) -> str: ...


@dataclass
class Liveness:
    """Asks a process's `/healthz` all the time, as the kubelet does. `slowest`: seconds, as of a quiet machine."""

    process: Process
    slowest: float = 0.0
    failed: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        self._pid = self.process.pid
        url = f"http://127.0.0.1:{self.process.port}/healthz"
        while not self._over.wait(0.1):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(url, timeout=stretched(3 * ANSWERS)) as answer:  # loopback
                    answer.read()
            except (OSError, http.client.HTTPException) as problem:
                self.failed.append(str(problem))
            self.slowest = max(self.slowest, (time.monotonic() - began) / stretched(1.0))

    def well(self) -> None:
        """The process lives and has always answered in time."""
        assert (self.process.running, self.process.pid) == (True, self._pid), self.process.tail()
        assert not self.failed, f"{self.failed[:3]}\n{self.process.tail()}"
        assert self.slowest < ANSWERS, f"/healthz took {self.slowest:.1f} s"
