"""A job with outputs on a cluster without nodes: operator, gateway, and a real driver process that reaches the ledger over HTTP only."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import ledgers
from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.gateways import ACCOUNT, Attempts, a_gateway
from harness.jobs import job
from harness.kube_api import Json
from harness.kubeflow import Driver, FakeKubeflow, Script
from harness.kubeflow.drivers import runs
from harness.kubeflow.script import Code
from harness.operators import OperatorProcess
from sparkonce.blocking import run
from sparkonce.launch.kubeflow.labels import ATTEMPT_LABEL, ROLE_LABEL, Role
from sparkonce.launch.kubernetes import JOBS
from sparkonce.model.record import COMMITTED, ENVIRONMENT, Assignment
from sparkonce.store.protocol import Query

DRIVER = textwrap.dedent("""
    import sys
    from harness.arrow_stage import arrow_stage, table_of
    from sparkonce.driver.current import current

    job = current(stager=arrow_stage)
    job.write(table_of(1, 2, 3), "single")
    with job.transaction() as both:
        both.write(table_of(4, 5), "left")
        both.write(table_of(6), "right")
    job.result(written=6)
    job.heartbeat.stop()
""")


@pytest.fixture
def ledger(store: ledgers.Server) -> str:
    """Of each kind."""
    return ledgers.url_of(store)


SETTLES = {ROLE_LABEL: Role.SETTLE.value}


class Place:
    """A cluster with a gateway that serves TLS, and an operator that passes its address to drivers."""

    def __init__(self, attempts: Attempts, operator: OperatorProcess, folder: Path) -> None:
        self.attempts, self.operator, self.folder = attempts, operator, folder
        self.namespace, self.api = attempts.namespace, attempts.cluster.api

    def as_pod(self, *command: str) -> Code:
        """A driver that runs this command as a process with its pod's environment and token, but without access to the store."""

        def code(driver: Driver) -> int | None:
            assert Assignment.model_validate_json(driver.environment[ENVIRONMENT]).store == ""
            token = self.folder / f"token-{driver.name}"
            token.write_text(self.attempts.token(driver.pod))
            ours = {"PYTHONPATH": os.pathsep.join(sys.path), "SPARKONCE_TOKEN_FILE": str(token)}
            return runs([sys.executable, *command], self.log)(
                replace(driver, environment={**driver.environment, **ours})
            )

        return code

    @property
    def log(self) -> Path:
        return self.folder / "drivers.log"

    def send(self, name: str, **spec: Any) -> None:
        outputs = [{"name": each, "slotLog": {"path": str(self.folder / each)}} for each in ("single", "left", "right")]
        document = job(name, key=f"key-{name}", outputs=outputs, **spec)
        document["spec"]["template"]["spec"]["driver"]["serviceAccount"] = ACCOUNT
        self.api.create(JOBS, document, self.namespace)

    def succeeded(self, name: str) -> Json:
        """The job's status, once it has succeeded."""

        def look() -> Json:
            status: Json = (self.api.get(JOBS, name, self.namespace) or {}).get("status") or {}
            said = self.log.read_text() if self.log.exists() else "no driver"
            assert status.get("phase") == "Succeeded", f"{status}\n{said}\n{self.operator.tail()}"
            return status

        return assert_eventually(look, timeout=60)


@contextmanager
def placed(cluster: Cluster, namespace: str, ledger: str, folder: Path, *options: str) -> Iterator[Place]:
    install, servers = f"i-{namespace}", cluster.certificates
    with a_gateway(ledger, install, cluster.kubeconfig, folder, certificates=servers) as gateway:
        told = ["--gateway-url", gateway.url, "--gateway-ca", str(servers.ca), *options]
        operator = OperatorProcess(ledger, install, cluster.kubeconfig, [namespace], folder, options=told)
        attempts = Attempts(cluster, namespace, ledger, install, gateway.url)
        try:
            yield Place(attempts, operator.start(), folder)
        finally:
            operator.end()
            attempts.close()


@pytest.mark.operator
def test_a_job_with_a_transaction_over_http(
    cluster: Cluster, namespace: str, ledger: str, kubeflow: FakeKubeflow, tmp_path: Path
) -> None:
    """The driver's own process uses `current()`, a write and a transaction: one attempt, Succeeded, with rows and values."""
    with placed(cluster, namespace, ledger, tmp_path) as place:
        kubeflow.on(Script(code=place.as_pod("-c", DRIVER)))
        place.send("load")
        result = place.succeeded("load")["result"]
        assert {each["name"]: each["rows"] for each in result["outputs"]} == {"single": 3, "left": 2, "right": 1}
        assert result["values"] == {"written": 6}
        store = place.attempts.store
        [record] = run(store.list(Query(realm=namespace))).records
        assert (record.attempt, record.intent) == (1, 1)
        assert run(store.beats(record.address, 1))[1, "driver"].progress["rows"] == 6


@pytest.mark.parametrize("silent", [False, True], ids=["reports", "dies before its report"])
def test_commits_are_told_over_http(
    cluster: Cluster, namespace: str, ledger: str, kubeflow: FakeKubeflow, tmp_path: Path, *, silent: bool
) -> None:
    """The operator reaches no output. Attempt 1 wrote nothing, as a settle run finds; attempt 2 wrote everything, as its driver reports or,
    if that died with its last commit, a settle run finds."""
    with placed(cluster, namespace, ledger, tmp_path, "--settle", "run", "--settle-after", "0.5") as place:
        dies = "import os; os.environ['SPARKONCE_FAILPOINTS'] = 'sink.slots.create.after=2*off->kill'\n"
        kubeflow.on(Script(code=place.as_pod("-c", (dies if silent else "") + DRIVER)))
        kubeflow.on(Script(exit_code=3), labels={ATTEMPT_LABEL: "1"})
        kubeflow.on(Script(code=place.as_pod("-m", "sparkonce.driver.settle")), labels=SETTLES)
        place.send("settled", retry={"maxAttempts": 2, "backoff": {"initial": "0s", "max": "0s"}})
        result = place.succeeded("settled")["result"]
        assert {each["name"]: each["rows"] for each in result["outputs"]} == {"single": 3, "left": 2, "right": 1}
        store = place.attempts.store
        [record] = run(store.list(Query(realm=namespace))).records
        assert record.attempt == 2
        reports = run(store.reports(record.address, 1))
        told = {(each.attempt, each.body["verdict"]) for each in reports if each.kind == "verdict"}
        assert told == ({(1, "None"), (2, "All")} if silent else {(1, "None")})
        assert [each.attempt for each in reports if each.kind == COMMITTED] == ([] if silent else [2])
