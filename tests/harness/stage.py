"""A namespace with operators, a Spark operator and a node, shared by all tests of a module, and the tests' requests and observations.

Starting an operator costs seconds and a job fractions of one, so the tests of a module run one after the other on one stage, each with its
own keys. The behaviour of applications is set by key (`play`), not by their arguments, since two manifests that differ under one key are
what these tests are about.

The sweep interval is minutes unless a test is about the sweep: whatever is seen within seconds came through a watch.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.apiserver import ADMIN, Cluster
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.jobs import job
from harness.kubeflow import Driver, FakeKubeflow, Script
from harness.kubeflow.kubelet import Run
from harness.kubeflow.script import Code
from harness.operators import OperatorProcess
from harness.patience import completed
from sparkonce.launch.kubeflow.labels import ROLE_LABEL
from sparkonce.launch.kubernetes import EVENTS, JOBS, NAMESPACES, PODS, SPARK_APPLICATIONS
from sparkonce.model.identity import explicit

Json = dict[str, Any]

SOON = {"initial": "0.1s", "max": "0.2s"}
"""Backoff between attempts."""
IN_TIME = 45.0
"""Seconds for something that takes one or two on a quiet machine."""
A_MOMENT = 1.0
"""Seconds in which something that must not happen would have happened: a reconciliation takes a tenth of one."""
ENDS = ("Succeeded", "Failed", "Cancelled", "Held", "Mismatch", "Expired")


@dataclass
class Stage:
    cluster: Cluster
    etcd: Etcd
    namespace: str
    install: str
    folder: Path
    kubeflow: FakeKubeflow
    operators: list[OperatorProcess] = field(default_factory=list)

    # requests of clients

    def hash20(self, key: str) -> str:
        return explicit(key, self.namespace).hash20

    def play(self, key: str, script: Script, *, attempt: str = "g*-a*") -> None:
        """Sets the behaviour of this key's applications; `attempt` is a pattern: "g1-a1", "g2-*"."""
        self.kubeflow.on(script, name=f"so-{self.hash20(key)}-{attempt}")

    def job(self, name: str, key: str, *arguments: str, **spec: Any) -> Json:
        spec["retry"] = {"backoff": SOON} | spec.get("retry", {})
        return copy.deepcopy(job(name, key=key, arguments=arguments, **spec))

    def apply(self, body: Json) -> Json:
        return self.cluster.api.apply({**body, "metadata": {**body["metadata"], "namespace": self.namespace}})

    def send(self, name: str, key: str, *arguments: str, **spec: Any) -> str:
        """Applies the job; returns its name."""
        self.apply(self.job(name, key, *arguments, **spec))
        return name

    def flood(self, key: str, *, clients: int = 3, names: int = 5, times: int = 2) -> list[str]:
        """Sends the same job from several clients at once, under several names each, several times each. Returns the names."""
        gate = threading.Barrier(clients * names * times)
        sent = [f"{key}-{client}-{number}" for client in range(clients) for number in range(names)]
        speaking = [self.cluster.server.client(user_agent=f"client-{number}") for number in range(clients)]

        def send(number: int) -> None:
            body = self.job(sent[number], key)
            body["metadata"]["namespace"] = self.namespace
            gate.wait()
            speaking[number // names].apply(body)

        with ThreadPoolExecutor(clients * names * times) as pool:
            list(pool.map(send, [*range(len(sent))] * times))
        for client in speaking:
            client.close()
        return sent

    def edit(self, name: str, **spec: Any) -> None:
        """Edits the spec with a JSON merge patch."""
        self.cluster.api.patch(JOBS, name, {"spec": spec}, namespace=self.namespace)

    def arguments(self, name: str, *arguments: str) -> None:
        """Edits a field that must match."""
        self.edit(name, template={"spec": {"arguments": list(arguments)}})

    def delete(self, name: str) -> None:
        self.cluster.api.delete(JOBS, name, self.namespace)

    def cli(
        self, *command: str, install: str | None = None, settle: str = "operator"
    ) -> subprocess.CompletedProcess[str]:
        """Runs `sparkonce …` on this stage's ledger."""
        store = f"etcd://{self.etcd.one.address}"
        return completed(
            [sys.executable, "-m", "sparkonce", *command],
            60,
            env={
                **os.environ,
                "SPARKONCE_STORE": store,
                "SPARKONCE_INSTALL": self.install if install is None else install,
                "SPARKONCE_SETTLE": settle,  # by default this machine is that of the drivers
            },
            stdin=subprocess.DEVNULL,
        )

    # observations

    def object(self, name: str) -> Json | None:
        return self.cluster.api.get(JOBS, name, self.namespace)

    def uid(self, name: str) -> str:
        found = self.object(name)
        assert found is not None, f"there is no IdempotentJob {name}"
        return str(found["metadata"]["uid"])

    def status(self, name: str) -> Json:
        found = self.object(name)
        assert found is not None, f"there is no IdempotentJob {name}"
        status = found.get("status") or {}
        assert isinstance(status, dict)
        return status

    def statuses(self, key: str) -> dict[str, Json]:
        """Statuses of all objects of a key, by name."""
        listed = self.cluster.api.list(JOBS, self.namespace)
        return {
            each["metadata"]["name"]: each.get("status") or {}
            for each in listed
            if each["spec"].get("idempotencyKey") == key
        }

    def until_all(self, key: str, phase: str, timeout: float = IN_TIME) -> list[Json]:
        """The statuses of all objects of a key, once they are all in this phase."""

        def look() -> list[Json]:
            statuses = self.statuses(key)
            phases = Counter(each.get("phase") for each in statuses.values())
            assert set(phases) == {phase}, f"{key}: {phases}\n{self.logs()}"
            return list(statuses.values())

        return assert_eventually(look, timeout, interval=0.1)

    def until(self, name: str, *phases: str, timeout: float = IN_TIME, **fields: Any) -> Json:
        """The status, once it is in one of these phases (without any, in a final one) and has these fields."""

        def look() -> Json:
            status = self.status(name)
            said = f"{name} is {json.dumps(status)[:2000]}\n{self.logs()}"
            assert status.get("phase") in (phases or ENDS), said
            assert {each: status.get(each) for each in fields} == fields, said
            return status

        return assert_eventually(look, timeout)

    def record(self, key: str) -> Json:
        """The record, as `sparkonce keys show KEY --json` prints it."""
        done = self.cli("keys", "show", key, "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert isinstance(told, dict)
        return told

    def until_record(self, key: str, *, phase: str) -> Json:
        def look() -> Json:
            told = self.record(key)
            assert told["phase"] == phase, f"{told['record']}\n{self.logs()}"
            return told

        return assert_eventually(look, IN_TIME, interval=0.2)

    def settled(self, *names: str) -> None:
        """Waits until the statuses of these objects do not change for a moment."""

        def versions() -> list[str]:
            found = [self.object(name) for name in names]
            return [each["metadata"]["resourceVersion"] for each in found if each is not None]

        since, seen = time.monotonic(), versions()

        def quiet() -> bool:
            nonlocal since, seen
            now = versions()
            if now != seen:
                since, seen = time.monotonic(), now
            return time.monotonic() - since > A_MOMENT

        assert_eventually(quiet, IN_TIME)

    def condition(self, name: str, kind: str) -> Json:
        """The condition; empty if it was never set."""
        listed = self.status(name).get("conditions") or []
        return next((each for each in listed if each["type"] == kind), {})

    def applications(self, key: str, *, placeholders: bool = False) -> list[Json]:
        """Applications of this key, sorted by name; without placeholders, which run nothing, or only these."""
        prefix = f"so-{self.hash20(key)}-"
        listed = self.cluster.api.list(SPARK_APPLICATIONS, self.namespace)
        found = [each for each in listed if each["metadata"]["name"].startswith(prefix)]
        return [each for each in found if (ROLE_LABEL in (each["metadata"].get("labels") or {})) == placeholders]

    def attempts(self, key: str) -> list[str]:
        """The applications' attempts, as "g1-a1"."""
        return ["-".join(each["metadata"]["name"].split("-")[2:]) for each in self.applications(key)]

    def runs(self, key: str) -> list[Run]:
        """Every driver of this key that ever started."""
        return [run for run in self.kubeflow.runs if run.application.startswith(f"so-{self.hash20(key)}-")]

    def pods(self, application: str) -> list[str]:
        """Pods of an application that may still run."""
        listed = self.cluster.api.list(PODS, self.namespace, labels=f"sparkoperator.k8s.io/app-name={application}")
        return [
            each["metadata"]["name"] for each in listed if each.get("status", {}).get("phase") in ("Pending", "Running")
        ]

    def until_runs(self, key: str, count: int = 1, timeout: float = IN_TIME) -> list[Run]:
        """The drivers of this key, once this many have started."""

        def look() -> list[Run]:
            runs = self.runs(key)
            assert len(runs) >= count, f"{len(runs)} drivers of {key}\n{self.logs()}"
            return runs

        return assert_eventually(look, timeout)

    def events(self, name: str) -> dict[str, Json]:
        """The latest event of each reason about this object."""
        selector = f"involvedObject.name={name},involvedObject.kind=IdempotentJob"
        listed = self.cluster.api.list(EVENTS, self.namespace, fields=selector)
        return {each["reason"]: each for each in listed}

    def until_event(self, name: str, reason: str) -> str:
        """The event's message."""

        def look() -> str:
            events = self.events(name)
            assert reason in events, f"{name} has {sorted(events)}"
            return str(events[reason]["message"])

        return assert_eventually(look, IN_TIME)

    def until_history(self, key: str, what: str, count: int) -> None:
        """Waits until the key's history, which unlike Kubernetes' Events loses nothing, has this many events of this kind."""

        def look() -> None:
            told = json.loads(self.cli("keys", "history", key, "--json").stdout)["events"]
            found = [each["what"] for each in told]
            assert found.count(what) >= count, f"{found}\n{self.logs()}"

        assert_eventually(look, IN_TIME, interval=0.5)

    def until_events(self, name: str, reason: str, count: int) -> None:
        """Waits until this many events of this reason about the object were counted."""
        assert_eventually(lambda: int(self.events(name).get(reason, {}).get("count", 0)) >= count, IN_TIME)

    def logs(self) -> str:
        return "\n".join(each.tail(40) for each in self.operators)


def rows(folder: Path) -> list[Json]:
    """`spec.outputs` with one table of the slot log."""
    return [{"name": "rows", "slotLog": {"path": str(folder)}}]


def held(event: threading.Event, exit_code: int = 0) -> Code:
    """A driver that runs until the test sets the event or its pod is deleted."""

    def code(driver: Driver) -> int:
        while not event.wait(0.02):
            if driver.stop.is_set():
                return 143
        return exit_code

    return code


@contextmanager
def staged(
    cluster: Cluster,
    etcd: Etcd,
    folder: Path,
    *,
    operators: int = 1,
    sweep: float = 300.0,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    kubeconfig: Path | None = None,
) -> Iterator[Stage]:
    """A namespace with its own install, and `operators` ready operators. `environment`: of them, beside this process's. `kubeconfig`: how
    they reach the API server; default: as everybody does."""
    namespace, install = f"t-{uuid.uuid4().hex[:10]}", f"i-{uuid.uuid4().hex[:10]}"
    cluster.api.create(NAMESPACES, {"metadata": {"name": namespace}})
    with ExitStack() as stack:
        stack.callback(cluster.api.delete, NAMESPACES, namespace)
        fake = FakeKubeflow(cluster.url, ca=cluster.certificates.ca, token=ADMIN, namespace=namespace)
        stage = Stage(cluster, etcd, namespace, install, folder, stack.enter_context(fake))
        for number in range(1, operators + 1):
            process = OperatorProcess(
                f"http://{etcd.one.address}",
                install,
                kubeconfig or cluster.kubeconfig,
                [namespace],
                folder,
                name=f"operator-{number}",
                sweep_seconds=sweep,
                options=options,
                environment=environment or {},
            )
            stack.callback(process.end)
            stage.operators.append(process.start(wait=False))
        for each in stage.operators:
            each.wait_ready()
        yield stage
