"""What the chart brings to watch a release: its rules on a real Prometheus, beside real operators, a gateway and faults.

Prometheus scrapes each second and runs the chart's rules at `harness.prometheus.SPEED`. Two alerts compare with tens of seconds, which
`SOONER` shortens. Each test has its alert silent before its fault, and heals what it broke.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import backup
from harness.api_faults import ApiProxy
from harness.apiserver import ADMIN, Cluster, folder_in_memory
from harness.binaries import PartMissing
from harness.etcd import running
from harness.eventually import assert_eventually
from harness.gateways import GatewayProcess
from harness.helm import NAMESPACE, RELEASE, one, rendered
from harness.kubeflow import FakeKubeflow, Moment, Script
from harness.operators import OperatorProcess
from harness.prometheus import Prometheus, check_rules, faster, needed
from harness.stage import Stage, held
from sparkonce.launch.kubernetes import NAMESPACES

Json = dict[str, Any]

IN_TIME = 60.0
"""Seconds for an alert that takes three to ten on a quiet machine."""
SOONER = {"SparkonceLookHangs": ("> 60", "> 2"), "SparkonceQueueOld": ("> 30", "> 1")}
"""What they compare with, here and in the chart: seconds."""
PATIENT = "?timeout=5"
"""Seconds the operators here wait for etcd, so that a look can be seen to hang."""
SERVICE = f"{RELEASE}-sparkonce"
VANISHES = Script(code=held(threading.Event()), vanishes=Moment.RUNNING)


def rules() -> list[Json]:
    """The groups that a release with everything gets."""
    objects = rendered(sets=["etcd.bundled.enabled=true", "metrics.prometheusRule.enabled=true"])
    groups: list[Json] = one(objects, "PrometheusRule", "")["spec"]["groups"]
    return groups


def quick(groups: list[Json]) -> list[Json]:
    """As fast as these tests want them."""

    def each(rule: Json) -> Json:
        made = faster(rule)
        here, there = SOONER.get(rule.get("alert", ""), ("", ""))
        assert here in made["expr"]
        return {**made, "expr": made["expr"].replace(here, there)} if here else made

    return [{**group, "rules": [each(rule) for rule in group["rules"]]} for group in groups]


@dataclass
class Scene:
    """A release without pods: two operators, a gateway, and Prometheus."""

    stage: Stage
    api: ApiProxy
    prometheus: Prometheus
    gateway: GatewayProcess
    ended: set[str] = field(default_factory=set)

    @property
    def operators(self) -> list[OperatorProcess]:
        return self.stage.operators

    def scraped(self) -> None:
        """Everything is where Prometheus looks for it."""
        for each in self.operators:
            self.prometheus.target(
                each.name, f"127.0.0.1:{each.port}", namespace=NAMESPACE, service=f"{SERVICE}-operator"
            )
        self.prometheus.target("gateway", self.gateway.address, namespace=NAMESPACE, service=f"{SERVICE}-gateway")

    def restart(self, *operators: OperatorProcess) -> None:
        for each in operators:
            each.start(wait=False)
        for each in operators:
            each.wait_ready()
        self.scraped()

    def key(self, what: str) -> str:
        return f"{what}-{uuid.uuid4().hex[:6]}"

    def send(self, count: int, what: str, script: Script | None = None, **spec: Any) -> list[str]:
        """So many jobs that do what the script says, each under a key of its own, which is its name."""
        names = [self.key(what) for _ in range(count)]
        for name in names:
            if script is not None:
                self.stage.play(name, script)
            self.stage.send(name, name, **spec)
        return names

    def until(self, names: list[str], *phases: str) -> None:
        for each in names:
            self.stage.until(each, *phases)

    def until_fired(self, since: float, *alerts: str) -> None:
        """Each was firing at some time since then (monotonic seconds)."""

        def look() -> None:
            missing = set(alerts) - self.prometheus.fired(max(1, int(time.monotonic() - since)))
            assert not missing, f"{missing}\n{self.state()}"

        assert_eventually(look, IN_TIME, interval=0.3)

    def until_silent(self, *alerts: str) -> None:
        assert_eventually(lambda: not set(alerts) & self.prometheus.firing(), IN_TIME, interval=0.3)

    def state(self) -> str:
        return f"firing: {self.prometheus.firing()}\n{self.stage.logs()[-3000:]}"


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    try:
        needed()
    except PartMissing as missing:
        pytest.skip(str(missing))
    namespace, install = f"t-{uuid.uuid4().hex[:10]}", f"i-{uuid.uuid4().hex[:10]}"
    cluster.api.create(NAMESPACES, {"metadata": {"name": namespace}})
    with ExitStack() as stack:
        stack.callback(cluster.api.delete, NAMESPACES, namespace)
        folder = stack.enter_context(folder_in_memory())
        etcd = stack.enter_context(running(folder))
        api = stack.enter_context(ApiProxy(cluster))
        kubeflow = stack.enter_context(
            FakeKubeflow(cluster.url, ca=cluster.certificates.ca, token=ADMIN, namespace=namespace)
        )
        stage = Stage(cluster, etcd, namespace, install, folder, kubeflow)
        ledger = f"http://{etcd.one.address}"
        gateway = GatewayProcess(ledger, install, cluster.kubeconfig, folder)
        stack.callback(gateway.kill)
        gateway.start(wait=False)
        for number in (1, 2):
            process = OperatorProcess(
                ledger + PATIENT,
                install,
                api.kubeconfig,
                [namespace],
                folder,
                name=f"operator-{number}",
                sweep_seconds=300,
            )
            stack.callback(process.end)
            stage.operators.append(process.start(wait=False))
        for each in stage.operators:
            each.wait_ready()
        gateway.wait_ready()
        prometheus = Prometheus(folder, quick(rules()))
        made = Scene(stage, api, prometheus, gateway)
        made.scraped()
        stack.callback(prometheus.close)
        prometheus.start()
        assert_eventually(lambda: prometheus.value("sum(sparkonce_ready)") == 2, IN_TIME, interval=0.2)
        assert_eventually(lambda: prometheus.value("sum(sparkonce_gateway_announced)") == 1, IN_TIME, interval=0.2)
        yield made


# --- faults: each is there inside its block, and healed afterwards


@contextmanager
def nobody(scene: Scene) -> Iterator[None]:
    """All operators are killed."""
    for each in scene.operators:
        each.kill()
    yield
    scene.restart(*scene.operators)


@contextmanager
def no_gateway(scene: Scene) -> Iterator[None]:
    """The gateway is killed."""
    scene.gateway.kill()
    yield
    scene.gateway.start()


@contextmanager
def rewound(scene: Scene) -> Iterator[None]:
    """etcd is put back to what it was before the last job."""
    kept = backup.take(scene.stage.etcd.one, scene.stage.folder / scene.key("backup"))
    scene.until(scene.send(2, "forgotten"), "Succeeded")
    backup.put_back(scene.stage.etcd.one, kept)
    scene.send(1, "asks")
    yield
    done = scene.stage.cli(
        "doctor", "accept-restore", "--yes", "--namespace", scene.stage.namespace,
        "--kubeconfig", str(scene.stage.cluster.kubeconfig),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for each in scene.operators:
        each.wait_ready()


@contextmanager
def a_job_is_held(scene: Scene) -> Iterator[None]:
    """The driver of an opaque job vanishes; a person decides."""
    [name] = scene.send(1, "held", VANISHES)
    scene.until([name], "Held")
    yield
    done = scene.stage.cli("keys", "resolve", name, "--succeeded", "--reason", "its table has its rows", "--yes")
    assert done.returncode == 0, done.stderr
    scene.until([name], "Succeeded")


@contextmanager
def jobs_fail(scene: Scene) -> Iterator[None]:
    """More fail than anything else ended, each twice."""
    count = 6 + int(scene.prometheus.value("sum(increase(sparkonce_reservations_total[30s]))"))
    names = scene.send(count, "fails", Script(exit_code=1), retry={"maxAttempts": 3})
    yield
    scene.until(names, "Failed")


@contextmanager
def drivers_vanish(scene: Scene) -> Iterator[None]:
    """Three of them, each once."""
    names = [scene.key("vanishes") for _ in range(3)]
    for name in names:
        scene.stage.play(name, VANISHES, attempt="g1-a1")
        scene.stage.send(name, name, onUnknown="Retry", retry={"maxAttempts": 2})
    yield
    scene.until(names, "Succeeded")


Fault = Callable[[Scene], AbstractContextManager[None]]
FAULTS: dict[Fault, tuple[str, ...]] = {
    nobody: ("NoOperatorReady",),
    no_gateway: ("GatewayDown",),
    rewound: ("StoreRewound",),
    a_job_is_held: ("JobHeld",),
    jobs_fail: ("JobsFailing", "AttemptsFailing"),
    drivers_vanish: ("DriversReplaced",),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_fires_its_alerts(scene: Scene, fault: Fault) -> None:
    """Not before it, each while it lasts, and none of them once it is healed and its window has passed."""
    alerts = [f"Sparkonce{each}" for each in FAULTS[fault]]
    scene.until_silent(*alerts)
    since = time.monotonic()
    with fault(scene):
        scene.until_fired(since, *alerts)
    scene.until_silent(*alerts)


def test_rules_are_checked_and_say_what_to_do(scene: Scene, tmp_path: Path) -> None:
    """promtool accepts them as rendered; each alert has a severity, what happened, what it means and what to do."""
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": rules()}))
    assert "SUCCESS" in check_rules(file)
    for group in rules():
        for rule in group["rules"]:
            if "alert" in rule:
                assert rule["labels"]["severity"] in {"critical", "warning"}
                assert set(rule["annotations"]) == {"summary", "description", "runbook"}
