"""The chart's monitoring of a release, with a real Prometheus beside real operators: alerts fire by their faults, and every query returns
data.

Faults are caused where they happen: processes are killed and frozen, etcd is restored and filled, jobs fail, the API server refuses. Each
alert is silent before its fault. tests/chart/test_alert_times.py tests when alerts with windows of ten minutes and more fire and end; no
test here waits for that.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from harness import backup, ballast
from harness.alert_cases import ALERTS
from harness.apiserver import ADMIN, Cluster
from harness.binaries import or_skip
from harness.eventually import assert_eventually
from harness.gateways import Attempts
from harness.helm import CHART, NAMESPACE, rule_groups
from harness.kubeflow import Moment, Script
from harness.operators import OperatorProcess
from harness.prometheus import check_rules, needed
from harness.stage import held
from harness.watched import IN_TIME, SERVICE, Scene, watched
from sparkonce.launch.kubernetes import JOBS, NAMESPACES
from sparkonce.store.etcd.layout import Layout

VANISHES = Script(code=held(threading.Event()), vanishes=Moment.RUNNING)


def with_prometheus() -> None:
    or_skip(needed)


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    with_prometheus()
    with watched(cluster) as made:
        yield made


# --- faults: each holds inside its block and is repaired afterwards


@contextmanager
def no_gateway(scene: Scene) -> Iterator[None]:
    """Kills the gateway."""
    scene.gateway.kill()
    yield
    scene.gateway.start(wait=False)


@contextmanager
def no_proxy(scene: Scene) -> Iterator[None]:
    """Kills the proxy."""
    scene.proxied.proxy.kill()
    yield
    scene.proxied.proxy.start()


@contextmanager
def no_outcome(scene: Scene) -> Iterator[None]:
    """A service fails, and its client sends the request again."""
    key = scene.key("fails")
    assert [scene.proxied.post(key, "?status=500") for _ in range(2)] == [500, 503]
    yield


@contextmanager
def silent_store(scene: Scene) -> Iterator[None]:
    """Freezes etcd while a job arrives and requests reach the gateway and the proxy."""

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            scene.gateway.ask("GET", f"/v1/namespaces/{scene.stage.namespace}/keys", token=ADMIN)

    def post() -> None:
        assert scene.proxied.post(scene.key("post")) in (201, 503)

    with scene.meanwhile(ask, pause=0.2), scene.meanwhile(post, pause=0.2):
        scene.stage.etcd.one.freeze()
        try:
            names = scene.send(1, "patient")
            yield
        finally:
            scene.stage.etcd.one.thaw()
    scene.until(names, "Succeeded")


@contextmanager
def rewound(scene: Scene) -> Iterator[None]:
    """Restores etcd to its state before the last job."""
    kept = backup.take(scene.stage.etcd.one, scene.stage.folder / scene.key("backup"))
    scene.until(scene.send(2, "forgotten"), "Succeeded")
    backup.put_back(scene.stage.etcd.one, kept)
    asks = scene.send(1, "asks")
    yield
    done = scene.stage.cli(
        "doctor", "accept-restore", "--yes", "--namespace", scene.stage.namespace,
        "--kubeconfig", str(scene.stage.cluster.kubeconfig),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for each in scene.operators:
        each.wait_ready()
    scene.until(asks, "Succeeded")


@contextmanager
def a_job_is_held(scene: Scene) -> Iterator[None]:
    """The driver of an opaque job vanishes; a person decides afterwards."""
    [name] = scene.send(1, "held", VANISHES)
    scene.until([name], "Held")
    yield
    done = scene.stage.cli("keys", "resolve", name, "--succeeded", "--reason", "its table has its rows", "--yes")
    assert done.returncode == 0, done.stderr
    scene.until([name], "Succeeded")


@contextmanager
def jobs_fail(scene: Scene) -> Iterator[None]:
    """More jobs fail than jobs end in any other way, each after several attempts."""
    count = 8 + int(scene.prometheus.value("sum(increase(sparkonce_reservations_total[30s]))"))
    names = scene.send(count, "fails", Script(exit_code=1), retry={"maxAttempts": 3})
    yield
    scene.until(names, "Failed")


@contextmanager
def drivers_vanish(scene: Scene) -> Iterator[None]:
    """Three drivers vanish, each once."""
    names = [scene.key("vanishes") for _ in range(3)]
    for name in names:
        scene.stage.play(name, VANISHES, attempt="g1-a1")
        scene.stage.send(name, name, onUnknown="Retry", retry={"maxAttempts": 2})
    yield
    scene.until(names, "Succeeded")


@contextmanager
def no_room(scene: Scene) -> Iterator[None]:
    """All operators are killed. Then one starts, with three slots, for six keys more than there are records, on an etcd that has used three
    quarters of its quota. An operator takes seconds to start, so these are one fault after another."""
    began = time.monotonic()
    small = scene.operators[0]
    options, ledger = small.options, small.ledger
    go = threading.Event()
    try:
        for each in scene.operators:
            each.kill()
        size = ballast.loaded(scene.stage.etcd, pieces=20)
        scene.until_fired(began, "SparkonceNoOperatorReady")
        records = len(scene.stage.etcd.content(Layout(scene.stage.install).records(scene.stage.namespace)))
        small.options = ["--slots", "3", "--max-live-keys", str(records + 6)]
        small.ledger = f"{ledger}&quota={int(size / 0.74)}"
        scene.restart(small)
        names = scene.send(6, "wide", Script(code=held(go)))
        scene.until_fired(began, "SparkonceSlotsExhausted", "SparkonceJobsPending", "SparkonceJobsRunning")
        go.set()
        scene.until(names, "Succeeded")
        names = scene.send(2, "refused")
        yield
    finally:
        go.set()
        small.kill()
        small.options, small.ledger = options, ledger
        scene.restart(*scene.operators)
    scene.until(names, "Succeeded")


@contextmanager
def leases_end(scene: Scene) -> Iterator[None]:
    """Ends the lease of a key's owner again and again while its process lives."""
    go = threading.Event()
    [name] = scene.send(1, "passed", Script(code=held(go)))
    scene.until([name], "Running")

    def end() -> None:
        scene.stage.etcd.revoke_under(f"{Layout(scene.stage.install).root}own/".encode())

    with scene.meanwhile(end, pause=0.8):
        yield
    go.set()
    scene.until([name], "Succeeded")


@contextmanager
def much_is_reported(scene: Scene) -> Iterator[None]:
    """Drivers of one namespace report until nine tenths of its room are used; the gateway's room is one megabyte."""
    child, api, namespace = scene.gateway.child, scene.stage.cluster.api, scene.key("reports")
    environment = child.environment
    api.create(NAMESPACES, {"metadata": {"name": namespace}})
    attempts = Attempts(
        scene.stage.cluster, namespace, f"http://{scene.stage.etcd.one.address}", scene.stage.install, scene.gateway.url
    )
    try:
        scene.gateway.kill()
        child.environment = {**(environment or {}), "SPARKONCE_MAX_REPORT_BYTES": str(2**20)}
        scene.gateway.start()
        for each in (attempts.granted("one"), attempts.granted("two")):
            token = attempts.token(each.driver())
            for number in range(29):
                body = {"reporter": f"r-{number}", "kind": "values", "body": {"x": "a" * 16_000}}
                said = {"nonce": each.record.nonce, **body}
                assert scene.gateway.ask("POST", f"{each.path}/report", token=token, body=said).status == 200
        yield
    finally:
        scene.gateway.kill()
        child.environment = environment
        scene.gateway.start()
        attempts.close()
        api.delete(NAMESPACES, namespace)


@contextmanager
def somebody_else_writes(scene: Scene) -> Iterator[None]:
    """Another client changes objects faster than a slow API server accepts their statuses."""
    slow = scene.api.delay(0.3, method="PATCH", path="/idempotentjobs/fought-.*/status$")
    names = scene.send(6, "fought")
    turn = iter(range(1_000_000))

    def write() -> None:
        number = next(turn)
        change = {"metadata": {"annotations": {"example.org/seen": str(number)}}}
        scene.stage.cluster.api.patch(JOBS, names[number % len(names)], change, namespace=scene.stage.namespace)

    with scene.meanwhile(write, pause=0.01):
        yield
    slow.clear()
    scene.until(names, "Succeeded")


@contextmanager
def unavailable(scene: Scene) -> Iterator[None]:
    """The API server answers 503 to status writes."""
    fault = scene.api.answer(503, method="PATCH", path="/idempotentjobs/untold-.*/status$", times=None)
    names = scene.send(10, "untold")
    yield
    fault.clear()
    scene.until(names, "Succeeded")


@contextmanager
def slow(scene: Scene) -> Iterator[None]:
    """The API server takes seconds for a status write, for more jobs than two operators handle at once."""
    fault = scene.api.delay(6, method="PATCH", path="/idempotentjobs/late-.*/status$")
    names = scene.send(36, "late")
    yield
    fault.clear()
    scene.until(names, "Succeeded")


Fault = Callable[[Scene], AbstractContextManager[None]]
TOGETHER: tuple[dict[Fault, tuple[str, ...]], ...] = (
    {
        jobs_fail: ("JobsFailing", "AttemptsFailing"),
        drivers_vanish: ("DriversReplaced",),
        a_job_is_held: ("JobHeld",),
    },
    {somebody_else_writes: ("StatusConflicts",), unavailable: ("ApiErrors",)},
    {slow: ("LookHangs", "QueueOld")},
    {much_is_reported: ("ReportsNear",), no_outcome: ("ProxyUnknownOutcomes",)},
    {leases_end: ("TakeoversFrequent",), no_gateway: ("GatewayDown",), no_proxy: ("ProxyDown",)},
    {
        silent_store: (
            "OperatorNotReady", "StoreSilent", "StoreErrors", "GatewayNotServing", "GatewayErrors", "EtcdMemberDown",
            "ProxyLedgerSilent",
        ),
    },
    {
        no_room: (
            "NoOperatorReady", "SlotsExhausted", "LiveKeysNear", "NewKeysRefused", "StoreQuotaNear", "JobsPending",
            "JobsRunning",
        ),
    },
    {rewound: ("StoreRewound",)},
)  # fmt: skip
"""Faults that hold at the same time, each with its alerts."""
PLAYED = ("EtcdNoLeader", "EtcdLeaderChanges", "EtcdDiskSlow", "EtcdQuotaNear", "BackupOld")
"""Alerts about a ledger of several members, a slow or full disk, or a CronJob, which this test has not: promtool plays their faults with
the metric names that this etcd exposes, and those of kube-state-metrics (tests/chart/test_alert_times.py)."""


@pytest.mark.parametrize("faults", TOGETHER, ids=lambda faults: "-".join(each.__name__ for each in faults))
def test_a_fault_fires_its_alerts(scene: Scene, faults: dict[Fault, tuple[str, ...]]) -> None:
    """The alerts are silent before the fault and fire while it lasts, with all their text filled in; alerts about the present state end
    with it."""
    alerts = [f"Sparkonce{each}" for some in faults.values() for each in some]
    scene.until_silent(*alerts)
    since = time.monotonic()
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault(scene))
        scene.until_fired(since, *alerts)
        for text in scene.prometheus.annotations().values():
            words = re.sub(r"StoreErrors|#sparkonce\w+", "", text)
            assert not re.search(r"error|<no value>|\{\{|\}\}", words), text
    scene.until_silent(*scene.about_now(*alerts))


def test_every_alert_has_its_fault() -> None:
    """The faults here cover exactly the chart's alerts, except those that are only played."""
    named = [rule["alert"] for group in rule_groups() for rule in group["rules"] if "alert" in rule]
    broken = [alert for faults in TOGETHER for alerts in faults.values() for alert in alerts]
    assert sorted(named) == sorted(f"Sparkonce{each}" for each in [*broken, *PLAYED])


def test_rules_are_checked_and_say_what_to_do(tmp_path: Path) -> None:
    """promtool accepts the rendered rules; each alert has a severity, a summary, a description, and a runbook as a sentence and as a
    URL."""
    with_prometheus()
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": rule_groups()}))
    assert "SUCCESS" in check_rules(file)
    for rule in (rule for group in rule_groups() for rule in group["rules"]):
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"critical", "warning"}
            assert set(rule["annotations"]) == {"summary", "description", "runbook", "runbook_url"}


# --- queries


def traffic(scene: Scene) -> None:
    """Jobs of every kind (done, failed, retried, answered from the record, attached, refused, held, taken over) and requests to the
    gateway, some while it has no right to the ledger."""
    stage = scene.stage
    stage.etcd.turn_auth_on()
    assert scene.gateway.ask("GET", f"/v1/namespaces/{stage.namespace}/keys", token=ADMIN).status >= 500
    stage.etcd.turn_auth_off()
    once = scene.key("once")
    assert [scene.proxied.post(once) for _ in range(2)] == [201, 201]
    go = threading.Event()
    scene.api.answer(403, method="POST", path="/events$", times=1)
    done = scene.send(2, "done")
    failed = scene.send(1, "failed", Script(exit_code=1), retry={"maxAttempts": 2})
    [waits] = scene.send(1, "waits", Script(code=held(go)))
    with a_job_is_held(scene):
        for token, status in ((ADMIN, 200), ("nobody's", 401)):
            assert scene.gateway.ask("GET", f"/v1/namespaces/{stage.namespace}/keys", token=token).status == status
    scene.until(done, "Succeeded")
    stage.send(f"{done[0]}-again", done[0])
    stage.send(f"{done[0]}-other", done[0], "another argument")
    stage.until(waits, "Running")
    stage.send(f"{waits}-too", waits)
    stage.until(f"{waits}-too", "Running", role="Follower")
    scene.until(failed, "Failed")
    stage.until(f"{done[0]}-again", "Succeeded", role="Replay")
    stage.until(f"{done[0]}-other", "Mismatch")
    before, frozen = taken_over(scene), owner(scene, waits)
    frozen.freeze()
    assert_eventually(lambda: taken_over(scene) > before, IN_TIME, interval=0.2)
    frozen.thaw()
    go.set()
    scene.until([waits], "Succeeded")
    frozen.wait_ready()


def taken_over(scene: Scene) -> float:
    """The number of takeovers so far, including those by operators that are now frozen and cannot be scraped."""
    return scene.prometheus.value("sum(max_over_time(sparkonce_takeovers_total[1h]))")


def owner(scene: Scene, key: str) -> OperatorProcess:
    """The process that drives it now."""
    name = str(scene.stage.record(key)["owner"])
    return next(each for each in scene.operators if name.endswith(f"/{each.pid}"))


def asked(expr: str) -> str:
    """A dashboard query as Grafana sends it, for this release and the last minutes."""
    values = {
        "$namespace": NAMESPACE, "$operator": f"{SERVICE}-operator", "$gateway": f"{SERVICE}-gateway",
        "$proxy": f"{SERVICE}-proxy",
        "$__rate_interval": "2m", "$__range": "1h",
    }  # fmt: skip
    for name, value in values.items():
        expr = expr.replace(name, value)
    return expr


def names_in(query: str) -> set[str]:
    return set(re.findall(r"\bsparkonce_\w+", query))


def test_every_query_returns_data(scene: Scene) -> None:
    """After one job of each kind every query of the dashboard returns data with the labels of its legend, as does every recorded series and
    every selector of an alert. All of them parse and use existing metrics and label values, and the rules are evaluated."""
    traffic(scene)
    page = json.loads((CHART / "dashboards" / "sparkonce.json").read_text())
    legends = {asked(t["expr"]): t["legendFormat"] for panel in page["panels"] for t in panel.get("targets", ())}
    of_rules = [rule["expr"] for rule in scene.rules.values()]
    selected = {each for expr in of_rules for each in re.findall(r"\b(?:(?:sparkonce|etcd)_\w+|up)\{[^}]*\}", expr)}
    recorded = {name for name, rule in scene.rules.items() if "record" in rule}
    assert len(legends) > 40 and len(selected) > 20 and len(recorded) == 5
    for expr in of_rules:
        scene.prometheus.query(expr)

    def look() -> None:
        there = {each["metric"]["__name__"] for each in scene.prometheus.query(f'{{namespace="{NAMESPACE}"}}')}
        unknown = {name for query in [*legends, *of_rules] for name in names_in(query)} - there
        assert not unknown, f"nobody exports {unknown}"
        for query in [*legends, *selected, *recorded]:
            found = scene.prometheus.query(query)
            assert found, query
            shown = set(re.findall(r"\{\{(\w+)\}\}", legends.get(query, "")))
            assert all(shown <= set(each["metric"]) for each in found), query

    assert_eventually(look, IN_TIME, interval=1.0)
    assert not scene.prometheus.broken_rules()
    of_labels(scene, [*legends, *of_rules])
    of_variables(scene, page["templating"]["list"])
    of_cases(scene)


def of_labels(scene: Scene, queries: list[str]) -> None:
    """Each label value that a query selects exists."""
    wanted = {pair for query in queries for pair in re.findall(r'(\w+)=~"([\w|]+)"', query)}
    values = {(label, value) for label, listed in wanted for value in listed.split("|")}
    assert {label for label, _ in values} >= {"why", "result"}
    assert not {pair for pair in values if not scene.prometheus.query('{{{}="{}"}}'.format(*pair))}


def of_variables(scene: Scene, variables: list[dict[str, object]]) -> None:
    """Grafana's variables offer exactly this release."""
    chosen = {}
    for each in variables:
        if each["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", str(each["definition"]))
            assert match is not None
            chosen[each["name"]] = {found["metric"][match[2]] for found in scene.prometheus.query(asked(match[1]))}
    assert chosen == {
        "namespace": {NAMESPACE}, "operator": {f"{SERVICE}-operator"}, "gateway": {f"{SERVICE}-gateway"},
        "proxy": {f"{SERVICE}-proxy"},
    }  # fmt: skip


def of_cases(scene: Scene) -> None:
    """The metrics in the cases of the alerts' times have the names and label names of the scraped ones; nobody here exposes CronJobs."""
    target = {"namespace", "service", "pod", "instance", "job", "__name__"}
    series = {name for cases in ALERTS.values() for case in cases.faults for name in case.series}
    for each in series | {name for cases in ALERTS.values() for near in cases.near.values() for name in near}:
        metric, _, labels = each.rstrip("}").partition("{")
        if metric.startswith("kube_cronjob_"):
            continue
        found = scene.prometheus.query(metric)
        assert found, f"{each} is not scraped"
        assert set(re.findall(r"(\w+)=", labels)) | target == set(found[0]["metric"]) | target, each
