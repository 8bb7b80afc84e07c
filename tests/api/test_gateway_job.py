"""A job with outputs on a cluster without nodes: operator, gateway, and a real driver process that knows the ledger by HTTP alone."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.eventually import assert_eventually
from harness.gateways import ACCOUNT, Attempts, a_gateway
from harness.jobs import job
from harness.kubeflow import Driver, FakeKubeflow, Script
from harness.kubeflow.drivers import runs
from harness.operators import OperatorProcess
from sparkonce.blocking import run
from sparkonce.launch.kubernetes import JOBS
from sparkonce.model.assignment import ENVIRONMENT, Assignment
from sparkonce.store.protocol import Query

DRIVER = textwrap.dedent("""
    import sys
    from harness.arrow_stage import arrow_stage, table_of
    from sparkonce.driver.attempt import current

    job = current(stager=arrow_stage)
    job.write(table_of(1, 2, 3), "single")
    with job.transaction() as both:
        both.write(table_of(4, 5), "left")
        both.write(table_of(6), "right")
    job.result(written=6)
    job.heartbeat.stop()
""")


@pytest.fixture
def made(cluster: Cluster, namespace: str, ledger: str, install: str, tmp_path: Path) -> Iterator[Attempts]:
    """A gateway that serves TLS, and an operator that tells drivers of it; what looks into their ledger."""
    servers = cluster.certificates
    with a_gateway(ledger, install, cluster.kubeconfig, tmp_path, certificates=servers) as gateway:
        options = ["--gateway-url", gateway.url, "--gateway-ca", str(servers.ca)]
        operator = OperatorProcess(ledger, install, cluster.kubeconfig, [namespace], tmp_path, options=options)
        attempts = Attempts(cluster, namespace, ledger, install, gateway.url)
        try:
            operator.start()
            yield attempts
        finally:
            operator.end()
            attempts.close()


def test_a_job_with_a_transaction_over_http(
    made: Attempts, kubeflow: FakeKubeflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`current()`, a write and a transaction by the driver's own process: one attempt, Succeeded, with rows and values; the driver was
    told no store."""
    api, namespace = made.cluster.api, made.namespace
    log = tmp_path / "driver.log"
    tokens = tmp_path / "token"
    process = runs([sys.executable, "-c", DRIVER], log)

    def code(driver: Driver) -> int | None:
        assert Assignment.model_validate_json(driver.environment[ENVIRONMENT]).store == ""
        tokens.write_text(made.token(driver.pod))
        return process(driver)

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("SPARKONCE_TOKEN_FILE", str(tokens))
    kubeflow.on(Script(code=code))
    document = job(
        "load",
        key="over-http",
        outputs=[{"name": name, "slotLog": {"path": str(tmp_path / name)}} for name in ("single", "left", "right")],
    )
    document["spec"]["template"]["spec"]["driver"]["serviceAccount"] = ACCOUNT
    api.create(JOBS, document, namespace)

    def succeeded() -> None:
        stored = api.get(JOBS, "load", namespace)
        said = log.read_text() if log.exists() else "no driver"
        assert stored is not None
        assert (stored.get("status") or {}).get("phase") == "Succeeded", f"{stored.get('status')}\n{said}"

    assert_eventually(succeeded, timeout=60)
    status = (api.get(JOBS, "load", namespace) or {})["status"]
    assert {o["name"]: o["rows"] for o in status["result"]["outputs"]} == {"single": 3, "left": 2, "right": 1}
    assert status["result"]["values"] == {"written": 6}
    [record] = run(made.store.list(Query(realm=namespace))).records
    assert (record.attempt, record.intent) == (1, 1)
    assert run(made.store.beats(record.address, 1))[1, "driver"].progress["rows"] == 6
