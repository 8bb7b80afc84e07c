"""A monitored release without pods: two operators, a gateway and a proxy, real processes, and a Prometheus that runs the chart's rules.

Prometheus scrapes each second and runs the rules at `harness.prometheus.SPEED`. `SOONER` lowers the thresholds of four alerts on tens of
seconds and more, and of one on many takeovers. The operators reach the API server through a proxy that can fail, and have their own ledger.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from harness.api_faults import ApiProxy
from harness.apiserver import ADMIN, Cluster, folder_in_memory
from harness.beside import beside
from harness.etcd import running
from harness.eventually import assert_eventually
from harness.gateways import GatewayProcess
from harness.helm import NAMESPACE, RELEASE, rule_groups
from harness.kubeflow import FakeKubeflow, Script
from harness.operators import OperatorProcess
from harness.prometheus import Prometheus, faster
from harness.reply_proxy import Proxied, proxied
from harness.stage import Stage
from sparkonce.launch.kubernetes import JOBS, NAMESPACES

Json = dict[str, Any]

IN_TIME = 60.0
"""Seconds for an alert that takes three to ten on a quiet machine."""
SOONER = {
    "SparkonceLookHangs": ("> 60", "> 2"),
    "SparkonceQueueOld": ("> 30", "> 1"),
    "SparkonceTakeoversFrequent": ("> 12", "> 5"),
    "SparkonceJobsPending": ("> 3600", "> 2"),
    "SparkonceJobsRunning": ("> 86400", "> 2"),
}
"""Thresholds in the chart and here."""
PATIENT = "?timeout=4"
"""Operators here wait four seconds for etcd, so that a reconciliation can be seen to hang."""
SERVICE = f"{RELEASE}-sparkonce"


def quick(groups: list[Json]) -> list[Json]:
    """The rules at test speed."""

    def each(rule: Json) -> Json:
        made = faster(rule)
        there, here = SOONER.get(rule.get("alert", ""), ("", ""))
        assert there in made["expr"]
        return {**made, "expr": made["expr"].replace(there, here)} if there else made

    return [{**group, "rules": [each(rule) for rule in group["rules"]]} for group in groups]


@dataclass
class Scene:
    stage: Stage
    api: ApiProxy
    prometheus: Prometheus
    gateway: GatewayProcess
    proxied: Proxied
    rules: Mapping[str, Json]
    """By the name of the alert or recording, as in the chart."""

    @property
    def operators(self) -> list[OperatorProcess]:
        return self.stage.operators

    def scraped(self) -> None:
        """Prometheus scrapes all targets."""
        for each in self.operators:
            self.prometheus.target(
                each.name, f"127.0.0.1:{each.port}", namespace=NAMESPACE, service=f"{SERVICE}-operator"
            )
        self.prometheus.target("gateway", self.gateway.address, namespace=NAMESPACE, service=f"{SERVICE}-gateway")
        self.prometheus.target("proxy", self.proxied.metrics, namespace=NAMESPACE, service=f"{SERVICE}-proxy")
        self.prometheus.target("etcd", self.stage.etcd.one.address, namespace=NAMESPACE, service=f"{SERVICE}-etcd")

    def restart(self, *operators: OperatorProcess) -> None:
        for each in operators:
            each.start(wait=False)
        for each in operators:
            each.wait_ready()
        self.scraped()

    def key(self, what: str) -> str:
        return f"{what}-{uuid.uuid4().hex[:6]}"

    def send(self, count: int, what: str, script: Script | None = None, **spec: Any) -> list[str]:
        """Sends jobs that run this script, each under its own key, which is its name."""
        names = [self.key(what) for _ in range(count)]
        for name in names:
            if script is not None:
                self.stage.play(name, script)
            self.stage.send(name, name, **spec)
        return names

    def until(self, names: list[str], *phases: str) -> None:
        for each in names:
            self.stage.until(each, *phases)

    @contextmanager
    def meanwhile(self, again: Callable[[], object], *, pause: float) -> Iterator[None]:
        """Repeats an action in the background, with this many seconds between."""

        def on(over: threading.Event) -> None:
            while not over.wait(pause):
                again()

        with beside(on):
            yield

    # alerts

    def until_fired(self, since: float, *alerts: str) -> None:
        """Waits until each of these alerts has fired since `since` (monotonic seconds)."""

        def look() -> None:
            missing = set(alerts) - self.prometheus.fired(max(1, int(time.monotonic() - since)))
            assert not missing, f"{missing}\n{self.state()}"

        assert_eventually(look, IN_TIME, interval=0.3)

    def until_silent(self, *alerts: str) -> None:
        assert_eventually(lambda: not set(alerts) & self.prometheus.firing(), IN_TIME, interval=0.3)

    def about_now(self, *alerts: str) -> list[str]:
        """Those of these alerts that have no window: they end as soon as their fault does."""
        return [each for each in alerts if "increase(" not in self.rules[each]["expr"]]

    def state(self) -> str:
        said = "\n".join(line[:200] for line in self.stage.logs().splitlines()[-8:])
        jobs = self.stage.cluster.api.list(JOBS, self.stage.namespace)
        told = Counter(str(each.get("status", {}).get("message"))[:200] for each in jobs)
        last = "\n".join(f"{count} jobs: {text}" for text, count in told.items())
        return f"firing: {self.prometheus.firing()}\n{said}\n{last}"


@contextmanager
def watched(cluster: Cluster) -> Iterator[Scene]:
    """Raises PartMissing: see `harness.prometheus.needed`, which must be called first."""
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
        gateway = GatewayProcess(ledger, install, cluster.kubeconfig, folder, accept_api_tokens=True)
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
        before_service = stack.enter_context(proxied(folder, f"etcd://{etcd.one.address}"))
        groups = rule_groups()
        prometheus = Prometheus(folder, quick(groups))
        stack.callback(prometheus.close)
        rules = {rule.get("alert") or rule["record"]: rule for group in groups for rule in group["rules"]}
        made = Scene(stage, api, prometheus, gateway, before_service, rules)
        made.scraped()
        prometheus.start()
        for each in stage.operators:
            each.wait_ready()
        gateway.wait_ready()
        assert_eventually(lambda: prometheus.value("sum(sparkonce_ready)") == 2, IN_TIME, interval=0.2)
        assert_eventually(lambda: prometheus.value("sum(sparkonce_gateway_announced)") == 1, IN_TIME, interval=0.2)
        yield made
