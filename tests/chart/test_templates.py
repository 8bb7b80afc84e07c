"""What the chart renders: golden files, and what must hold for every set of values.

A change that is meant is taken over by `SPARKONCE_UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/chart/test_templates.py`; what git then
shows as a difference is what a release changes.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from harness.helm import CHART, NAMESPACE, ROOT, helm, one, rendered, template
from sparkonce.cli.app import app
from sparkonce.engine.replica import ReplicaSettings
from sparkonce.gateway.serving import FINISH
from sparkonce.observe.gateway_metrics import GatewayMetrics
from sparkonce.observe.metrics import GAUGES, Metrics
from sparkonce.store.etcd_address import PASSWORD, parsed
from sparkonce.store.etcd_keys import Layout

HERE = Path(__file__).parent
VALUES = sorted((HERE / "values").glob("*.yaml"))
UPDATE = "SPARKONCE_UPDATE_GOLDEN"
every_set = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By name, the spec of everything that runs."""
    found = {}
    for each in objects:
        if each["kind"] in {"Deployment", "StatefulSet"}:
            found[each["metadata"]["name"]] = each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            found[each["metadata"]["name"]] = each["spec"]
    return found


# --- files ---


@every_set
def test_lint_finds_nothing(values: Path) -> None:
    """`helm lint --strict` accepts the chart with each set of values."""
    done = helm("lint", "--strict", CHART, "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr


@every_set
def test_the_rendered_objects_are_golden(values: Path) -> None:
    """A change of what a release installs shows in a file; the CRD, which is long, has a test of its own."""
    done = template(values, sets=["crds.install=false"])
    assert done.returncode == 0, done.stderr
    golden = HERE / "golden" / values.name
    if os.environ.get(UPDATE):
        golden.write_text(done.stdout)
    assert done.stdout == golden.read_text(), f"if this is meant, run these tests with {UPDATE}=1"


def test_the_charts_crd_is_the_repositorys() -> None:
    """The copy in the chart is what `make crd` made; rendered, it differs by its labels and by being kept when the release goes."""
    ours = (ROOT / "crds" / "idempotentjobs.yaml").read_text()
    assert (CHART / "files" / "crds" / "idempotentjobs.yaml").read_text() == ours, (
        "copy crds/ to charts/sparkonce/files/crds/"
    )
    installed = one(rendered(VALUES[0]), "CustomResourceDefinition", "idempotentjobs.sparkonce.dev")
    assert installed["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert installed["metadata"].pop("labels")["app.kubernetes.io/managed-by"] == "Helm"
    assert installed == yaml.safe_load(ours)


def test_the_chart_has_the_packages_version() -> None:
    """One version: of the package, of the chart and of the image that the chart takes by default."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version[1], version[1])


def test_every_value_has_a_comment_or_a_commented_section() -> None:
    """Each top-level value and each component says what it is for."""
    text = (CHART / "values.yaml").read_text()
    for name in yaml.safe_load(text):
        block = re.search(rf"(?:^#.*\n)?^{name}:.*\n(?:^ .*\n|^\n)*", text, re.MULTILINE)
        assert block is not None
        assert "#" in block[0] or name == "nameOverride", f"{name} has no comment"


# --- what runs ---


@every_set
def test_every_container_may_nothing(values: Path) -> None:
    """Whatever the values add: not root, a root file system that is read-only, no capabilities, no new privileges, seccomp."""
    running = pods(rendered(values))
    assert len(running) >= 3
    for name, spec in running.items():
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name


@every_set
def test_a_rollout_takes_no_replica_away(values: Path) -> None:
    """The successor of each operator and gateway is ready before it goes, a drain takes one at a time, and replicas spread."""
    objects = rendered(values)
    for component in ("operator", "gateway"):
        deployment = one(objects, "Deployment", component)
        assert deployment["spec"]["replicas"] >= 2
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
        selector = deployment["spec"]["selector"]["matchLabels"]
        assert one(objects, "PodDisruptionBudget", component)["spec"]["selector"]["matchLabels"] == selector
        (spread,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == selector
        assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@every_set
def test_the_grace_period_is_longer_than_a_hand_over(values: Path) -> None:
    """An operator that is told to stop waits for what is being written, then for its lease's revocation; a gateway drains, then finishes
    what was begun. Each is given more than that before it is killed."""
    objects = rendered(values)
    operator = one(objects, "Deployment", "operator")["spec"]["template"]["spec"]
    assert operator["terminationGracePeriodSeconds"] > 2 * (ReplicaSettings().drain + 10)
    gateway = one(objects, "Deployment", "gateway")["spec"]["template"]["spec"]
    (drain,) = (each for each in gateway["containers"][0]["args"] if each.startswith("--drain-seconds="))
    assert gateway["terminationGracePeriodSeconds"] > float(drain.partition("=")[2]) + FINISH


@every_set
def test_the_programs_know_what_they_are_told(values: Path) -> None:
    """Each argument is an option that the command line has, and the address of the store is read by the code that reads it."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined] # of a group
    secrets = {PASSWORD: "secret"}
    for name, spec in pods(rendered(values)).items():
        for container in spec["containers"]:
            if container["name"] not in {"operator", "gateway"}:
                continue
            command, *options = container["args"]
            known = {each for parameter in commands[command].params for each in parameter.opts}
            assert {each.partition("=")[0] for each in options} <= known, (
                f"{name} has options that {command} does not know"
            )
            environment = {each["name"]: each for each in container["env"]}
            said = parsed(environment["SPARKONCE_STORE"]["value"], secrets if PASSWORD in environment else {})
            assert len(said["endpoints"]) in {1, 2, 3}
            mounted = {each["mountPath"] for each in container["volumeMounts"]}
            if said["tls"] is not None:
                assert "/etc/sparkonce/etcd" in mounted
            assert Layout(environment["SPARKONCE_INSTALL"]["value"]).root.startswith("/sparkonce/v1/")


def test_the_operators_store_is_the_bundled_etcd() -> None:
    """Every member is an endpoint, and the quota that the operator is told is the one that the members have."""
    objects = rendered(HERE / "values" / "trio.yaml")
    etcd = one(objects, "StatefulSet", "etcd")
    service = etcd["spec"]["serviceName"]
    assert one(objects, "Service", "etcd")["metadata"]["name"] == service
    hosts = [f"{etcd['metadata']['name']}-{number}.{service}.{NAMESPACE}.svc" for number in range(3)]
    command = etcd["spec"]["template"]["spec"]["containers"][0]["command"]
    members = next(each for each in command if each.startswith("--initial-cluster="))
    assert re.findall(r"http://([^:,]+):2380", members) == hosts
    for component in ("operator", "gateway"):
        environment = one(objects, "Deployment", component)["spec"]["template"]["spec"]["containers"][0]["env"]
        store = parsed(next(each["value"] for each in environment if each["name"] == "SPARKONCE_STORE"), {})
        assert store["endpoints"] == [f"{host}:2379" for host in hosts]
        assert f"--quota-backend-bytes={store['quota']}" in command


def test_drivers_reach_the_gateways_service() -> None:
    """The address that the operator hands to drivers is that of the Service, with the scheme that the gateway speaks."""
    for values, scheme in (("bundled", "http"), ("tenants", "https")):
        objects = rendered(HERE / "values" / f"{values}.yaml")
        service = one(objects, "Service", "gateway")
        (port,) = service["spec"]["ports"]
        told = f"--gateway-url={scheme}://{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"
        assert told in one(objects, "Deployment", "operator")["spec"]["template"]["spec"]["containers"][0]["args"]
        assert (
            service["spec"]["selector"].items()
            <= one(objects, "Deployment", "gateway")["spec"]["template"]["metadata"]["labels"].items()
        )


# --- what watches ---


def test_rules_and_dashboards_are_the_files() -> None:
    """The PrometheusRule has the groups of rules/, the ConfigMap each dashboard, with Grafana's label; without flags neither."""
    sets = ["etcd.bundled.enabled=true", "metrics.prometheusRule.enabled=true", "metrics.grafanaDashboard.enabled=true"]
    objects = rendered(sets=sets)
    groups = [
        group
        for path in sorted((CHART / "rules").glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]
    installed = one(objects, "PrometheusRule", "sparkonce")["spec"]["groups"]
    names = [[rule.get("alert") or rule["record"] for rule in group["rules"]] for group in groups]
    assert [[rule.get("alert") or rule["record"] for rule in group["rules"]] for group in installed] == names
    dashboards = {path.name: json.loads(path.read_text()) for path in (CHART / "dashboards").glob("*.json")}
    maps = [each for each in objects if each["kind"] == "ConfigMap"]
    assert {name: json.loads(text) for each in maps for name, text in each["data"].items()} == dashboards
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in maps} == {"1"}
    kinds = {each["kind"] for each in rendered(sets=sets[:1])}
    assert not kinds & {"PrometheusRule", "ConfigMap", "ServiceMonitor", "NetworkPolicy"}


def test_every_metric_that_is_asked_for_exists() -> None:
    """Alerts and panels name metrics that the operator, the gateway or etcd has: a renamed one is noticed here, not by silence."""
    ours: set[str] = {f"sparkonce_{name}" for name in GAUGES} | {"sparkonce_jobs"}
    for registry in (Metrics().registry, GatewayMetrics(announced=lambda: True).registry):
        for metric in registry.collect():
            endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(metric.type, [""])
            ours |= {metric.name + ending for ending in endings}
    files = [*(CHART / "rules").glob("*.yaml"), *(CHART / "dashboards").glob("*.json")]
    asked = {name for path in files for name in re.findall(r"\bsparkonce_[a-z_]+\b", path.read_text())}
    assert asked
    assert asked <= ours, f"nobody has {', '.join(sorted(asked - ours))}"


# --- what is refused ---


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([], "set etcd.external.endpoints to yours, or etcd.bundled.enabled=true"),
        (["etcd.bundled.enabled=true", "etcd.external.endpoints={a:2379}"], "both set"),
        (["etcd.external.endpoints={a:2379}", "etcd.external.auth.user=me"], "etcd.external.auth.passwordSecret.name"),
        (
            [
                "etcd.external.endpoints={a:2379}",
                "etcd.external.tls.enabled=true",
                "etcd.external.tls.clientCertificate=true",
            ],
            "etcd.external.tls.secretName",
        ),
    ],
)
def test_a_decision_that_is_missing_is_asked_for(sets: list[str], said: str) -> None:
    """Values that make no release are refused by a sentence that names the value to set."""
    done = template(sets=sets)
    assert done.returncode != 0
    assert said in done.stderr
