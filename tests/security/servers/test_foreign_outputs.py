"""A tenant names another team's table as its output: the operator does not use its own credentials for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.apiserver import Cluster
from harness.arrow_stage import table_of
from harness.child import free_port
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import rows_of
from harness.kubeflow import Driver, Script
from harness.kubeflow.drivers import assignment_in, job_of, settles, writes_outputs
from harness.kubeflow.script import Code
from harness.metadata import metadata
from harness.stage import IN_TIME, Stage, rows, staged
from harness.tenants import Tenants, tenants
from sparkonce.blocking import run
from sparkonce.driver.channel import DirectChannel
from sparkonce.launch.kubernetes import NAMESPACES
from sparkonce.sink.transaction import intent_of, sink_key
from sparkonce.store.open import open_blocking
from sparkonce.store.protocol import Sealed

GATEWAY = ("--gateway-url", "http://gateway.invalid")
"""The settle runs of these tests reach the ledger directly."""


def forges(store: str, install: str) -> Code:
    """A driver that seals three rows into the table that its job names, and dies. Sealing needs no right to the table: the staged files are
    in the intent, and the process that settles commits them."""

    def code(driver: Driver) -> int:
        assignment = assignment_in(driver)
        ledger = open_blocking(store, install=install)
        job = job_of(driver, DirectChannel(ledger, assignment))
        (sink,) = job._sinks.values()
        key = sink_key(assignment.key_hash, assignment.generation, sink)
        slot = sink.stage(table_of(1, 2, 3), key, assignment.attempt, fingerprint=assignment.fingerprint)
        answer = job.channel.seal(intent_of(assignment.attempt, {sink.name: slot}))
        assert isinstance(answer, Sealed), answer
        run(ledger.close())
        return 1

    return code


def store_of(stage: Stage) -> str:
    return f"etcd://{stage.etcd.one.address}"


def has_no_rights(_: Driver) -> int:
    """A settle run in the attacker's own pod, which has no access to the other team's table."""
    return 75


def attacked(both: Tenants, table: Path, key: str) -> None:
    """The other team's table has three rows; the attacker declares that table, seals three more rows into it, and dies."""
    both.other.play("mine", Script(code=writes_outputs(1, 2, 3)))
    both.other.play(
        "mine", Script(code=settles(store_of(both.other), both.other.folder / "mine.log")), attempt="g*-a*-s*"
    )
    both.other.send("mine", "mine", outputs=rows(table))
    both.other.until("mine", "Succeeded")
    assert rows_of(table) == {1: 1, 2: 1, 3: 1}
    both.attacker.play(key, Script(code=forges(store_of(both.attacker), both.attacker.install)))
    both.attacker.play(key, Script(code=has_no_rights), attempt="g*-a*-s*")
    both.attacker.send(key, key, outputs=rows(table), retry={"maxAttempts": 1})


def goes_on(both: Tenants, table: Path) -> None:
    """The other team's table still has its three rows, and its next job adds one."""
    assert rows_of(table) == {1: 1, 2: 1, 3: 1}
    log = both.other.folder / "next.log"
    both.other.play("next", Script(code=writes_outputs(4)))
    both.other.play("next", Script(code=settles(store_of(both.other), log)), attempt="g*-a*-s*")
    both.other.send("next", "next", outputs=rows(table))
    both.other.until("next", "Succeeded")
    assert rows_of(table) == {1: 1, 2: 1, 3: 1, 4: 1}


def held(both: Tenants, key: str) -> str:
    """The message of the attacker's key once its settle runs were all lost."""
    status = both.attacker.until(key, "Held", timeout=90)
    assert both.attacker.record(key)["record"]["held"] == "CannotSettle"
    return str(status["message"])


def refused(both: Tenants, key: str) -> str:
    """The message of an object that is refused and opens nothing."""

    def look() -> str:
        condition = both.attacker.condition(key, "Failed")
        assert (condition.get("status"), condition.get("reason")) == ("True", "InvalidSpec"), both.attacker.logs()
        return str(condition["message"])

    return assert_eventually(look, IN_TIME)


def test_a_job_that_names_another_teams_table_is_refused(cluster: Cluster, ledger_server: Etcd, tmp_path: Path) -> None:
    """With a list of allowed outputs, the job is refused before a key is reserved, in one sentence that names the field, and no driver
    runs; even an operator that settles everything itself refuses. As the sentence says, the job runs with an output that is allowed."""
    listed = allows(tmp_path, "lake/{namespace}/")
    with tenants(cluster, ledger_server, tmp_path, options=("--outputs-allowed", str(listed))) as both:
        table = tmp_path / "lake" / both.other.namespace / "orders"
        attacked(both, table, "forged")
        said = refused(both, "forged")
        assert said == (
            f"spec.outputs[0].slotLog.path: {table.as_uri()} is not among the outputs allowed for namespace "
            f"{both.attacker.namespace} ({tmp_path}/lake/{both.attacker.namespace}/); write to one of them, or have the operator's "
            "administrator add it to outputs.allowed"
        )
        assert both.attacker.until_event("forged", "Failed") == said
        assert both.attacker.cli("keys", "show", "forged").returncode != 0  # nothing was reserved
        assert both.attacker.runs("forged") == []
        goes_on(both, table)
        own = tmp_path / "lake" / both.attacker.namespace / "orders"  # one that the sentence names
        both.attacker.play("forged", Script(code=writes_outputs(7)))
        both.attacker.edit("forged", outputs=rows(own))
        both.attacker.until("forged", "Succeeded")
        assert rows_of(own) == {7: 1}


def test_what_is_added_to_the_list_runs(cluster: Cluster, ledger_server: Etcd, tmp_path: Path) -> None:
    """After the administrator has added the output to the list, here by a label of the namespace, the refused object runs."""
    shared = tmp_path / "shared"
    listed = tmp_path / "allowed.yaml"
    gold = {"namespaceSelector": {"matchLabels": {"tier": "gold"}}, "prefixes": [str(shared)]}
    listed.write_text(json.dumps([gold]))
    options = ("--outputs-allowed", str(listed))
    with tenants(cluster, ledger_server, tmp_path, options=options, sweep=1.0) as both:
        both.attacker.play("shared", Script(code=writes_outputs(5)))
        both.attacker.send("shared", "shared", outputs=rows(shared))
        assert f"allowed for namespace {both.attacker.namespace} (none)" in refused(both, "shared")
        (operator,) = both.operators
        operator.end()
        listed.write_text(json.dumps([gold, {"namespace": both.other.namespace, "prefixes": [str(shared)]}]))
        cluster.api.patch(NAMESPACES, both.attacker.namespace, {"metadata": {"labels": {"tier": "gold"}}})
        operator.start()
        both.attacker.until("shared", "Succeeded")
        both.other.play("beside", Script(code=writes_outputs(6)))
        both.other.send("beside", "beside", outputs=rows(shared))
        both.other.until("beside", "Succeeded")
        assert rows_of(shared) == {5: 1, 6: 1}


def test_without_a_list_the_operator_of_two_teams_settles_nothing_itself(
    cluster: Cluster, ledger_server: Etcd, tmp_path: Path
) -> None:
    """Only a pod of the attacker's would roll the forged transaction forward, and it has no access: Held, with one sentence. The other
    team's keys are settled in its own pods."""
    options = ("--settle", "auto", "--settle-after", "0.5", *GATEWAY)
    with tenants(cluster, ledger_server, tmp_path, options=options) as both:
        table = tmp_path / "orders"
        attacked(both, table, "forged")
        assert "3 settle runs of attempt 1 were lost" in held(both, "forged")
        goes_on(both, table)
        assert "it touches no output" in both.operators[0].tail(400)


def test_a_record_from_before_the_list_is_not_acted_on(cluster: Cluster, ledger_server: Etcd, tmp_path: Path) -> None:
    """The forged transaction is sealed under an operator without a list, which has no gateway for settle runs and so settles nothing. Its
    successor has a list, reads the record and leaves the output alone."""
    frozen = ("--settle", "auto", "--settle-after", "600")
    with tenants(cluster, ledger_server, tmp_path, options=frozen) as both:
        table = tmp_path / "lake" / both.other.namespace / "orders"
        both.other.play("early", Script(code=writes_outputs(1)))
        attacked_without_a_gateway = "there is no gateway: start the operator with --gateway-url, or give it that list"
        both.attacker.play("forged", Script(code=forges(store_of(both.attacker), both.attacker.install)))
        both.attacker.play("forged", Script(code=has_no_rights), attempt="g*-a*-s*")
        both.attacker.send("forged", "forged", outputs=rows(table), retry={"maxAttempts": 1})
        assert_eventually(lambda: attacked_without_a_gateway in str(both.attacker.status("forged")), 60, interval=0.2)
        assert rows_of(table) == {}
        (first,) = both.operators
        first.end()
        first.options = (
            "--settle-after",
            "0.5",
            "--outputs-allowed",
            str(allows(tmp_path, "lake/{namespace}/")),
            *GATEWAY,
        )
        first.start()
        held(both, "forged")
        assert rows_of(table) == {}
        both.other.send("early", "early", outputs=rows(table))
        both.other.until("early", "Succeeded")
        assert rows_of(table) == {1: 1}


@pytest.mark.parametrize("ambient", [False, True])
def test_a_tenants_bucket_is_not_opened_with_the_machines_role(
    ambient: bool, cluster: Cluster, ledger_server: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant declares a table in any bucket and its driver fails. An operator without credentials of its own asks the machine for some
    only if its administrator allows it; otherwise it starts a settle run, and the key's history says why."""
    for planted in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(planted, raising=False)
    store = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}", "AWS_REGION": "us-east-1", "HOME": str(tmp_path)}
    options = ("--settle", "auto", "--settle-after", "0.5", *GATEWAY, *(["--ambient-credentials"] * ambient))
    with metadata() as machine:
        environment = store | machine.variables
        with staged(cluster, ledger_server, tmp_path, options=options, environment=environment) as stage:
            stage.play("bucket", Script(exit_code=3))
            stage.play("bucket", Script(code=has_no_rights), attempt="g*-a*-s*")
            table = [{"name": "rows", "slotLog": {"path": "s3://payroll/orders"}}]
            stage.send("bucket", "bucket", outputs=table, retry={"maxAttempts": 1})
            if ambient:
                assert_eventually(lambda: machine.calls, IN_TIME)
                return
            stage.until("bucket", "Held", timeout=90)
            assert machine.calls == []
            assert "no credentials of its own for S3" in stage.cli("keys", "history", "bucket").stdout


def allows(folder: Path, *prefixes: str) -> Path:
    """The administrator's list: each namespace may write below these folders."""
    listed = folder / "allowed.yaml"
    listed.write_text(json.dumps([{"prefixes": [f"{folder}/{each}" for each in prefixes]}]))
    return listed
