"""The dashboard and the rules as files: generated from their sources, limited to existing metrics, and documented."""

from __future__ import annotations

import functools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_command

from harness.helm import BACKUPS, CHART, PROXY, ROOT, one, rendered
from sparkonce.cli.app import program
from sparkonce.cli.kubectl.app import app as kubectl
from sparkonce.observe.gateway_metrics import GatewayMetrics
from sparkonce.observe.lane_metrics import LaneMetrics
from sparkonce.observe.metrics import GAUGES, Metrics
from sparkonce.observe.reply_metrics import ReplyMetrics

pytestmark = pytest.mark.operator

DASHBOARD = CHART / "dashboards" / "sparkonce.json"
DOCS = ROOT / "docs" / "monitoring.md"
MADE = "run scripts/dashboard.py > charts/sparkonce/dashboards/sparkonce.json"


def panels() -> list[dict[str, Any]]:
    """The dashboard's panels, without the titles of rows."""
    return [each for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    files = sorted((CHART / "rules").glob("*.yaml"))
    return [rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def queries() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def samples(text: str) -> set[str]:
    """The names of the samples in an exposition text, those too that have no value yet."""
    found = set()
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + suffix for suffix in suffixes}
    return found


def names_of_lanes() -> set[str]:
    """The samples of a program with writers of lanes."""
    registry = CollectorRegistry()
    LaneMetrics(registry).opened("tap", lambda: (0, 0.0))
    return samples(generate_latest(registry).decode())


@functools.cache
def names() -> set[str]:
    """The name of every sample that an operator, a gateway or a proxy may expose."""
    metrics, gateway, proxy = Metrics(), GatewayMetrics(announced=lambda: True), ReplyMetrics()
    metrics.watch(lambda: dict.fromkeys(GAUGES, 1.0), dict, dict)
    found = {"sparkonce_api_requests_total", "sparkonce_store_requests_total"}
    for each in (metrics, gateway, proxy):
        found |= samples(each.text()[0].decode())
    return {name for name in found if name.startswith("sparkonce_")}  # without the metrics that every process has


def test_the_dashboard_is_what_its_list_makes() -> None:
    """The file in the chart is the output of scripts/dashboard.py."""
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "dashboard.py"], capture_output=True, text=True, check=True
    )
    assert DASHBOARD.read_text() == made.stdout, MADE


def test_queries_are_about_metrics_that_exist() -> None:
    """Each metric name in the dashboard and the rules is exposed by operators, gateways or proxies."""
    asked = {name for query in queries() for name in re.findall(r"\bsparkonce_\w+", query)}
    assert len(asked) > 25
    assert asked <= names(), asked - names()


def test_every_metric_is_shown() -> None:
    """Every metric has a panel, except the count and sum of histograms and the creation time of counters."""
    shown = {name for panel in panels() for t in panel["targets"] for name in re.findall(r"\bsparkonce_\w+", t["expr"])}
    hidden = {name for name in names() - shown if not name.endswith(("_sum", "_count", "_created"))}
    assert not hidden


def test_panels_explain_themselves() -> None:
    """Each panel has its own title, a description, a unit and the variable data source, and overlaps no other panel."""
    titles: set[tuple[int, str]] = set()
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        titles.add((panel["id"], panel["title"]))
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        for target in panel["targets"]:
            assert 'namespace="$namespace"' in target["expr"]
    assert len({title for _, title in titles}) == len(titles) == len({number for number, _ in titles})


def test_the_guide_names_every_panel_and_alert() -> None:
    """docs/monitoring.md explains each panel and alert by name."""
    told = DOCS.read_text()
    for panel in panels():
        assert f"*{panel['title']}*" in told, panel["title"]
    for rule in rules():
        assert (f"\n### {rule['alert']}\n" if "alert" in rule else f"`{rule['record']}`") in told


def anchors(text: str) -> list[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("page", ["", "https://runbooks.example.com/spark/"])
def test_each_alert_has_the_address_of_its_section(page: str) -> None:
    """`runbook_url` is the page that the values name, or docs/monitoring.md, with an anchor that is exactly one section of
    docs/monitoring.md."""
    sets = [f"metrics.prometheusRule.runbookUrl={page}"] if page else []
    objects = rendered(
        sets=["etcd.bundled.enabled=true", BACKUPS, *PROXY, "metrics.prometheusRule.enabled=true", *sets]
    )
    groups = one(objects, "PrometheusRule", "")["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    there = anchors(DOCS.read_text())
    assert len(alerts) > 20
    for each in alerts:
        address, _, anchor = each["annotations"]["runbook_url"].partition("#")
        assert address == (page or "docs/monitoring.md")
        assert (ROOT / "docs" / "monitoring.md").exists()
        assert there.count(anchor) == 1, f"docs/monitoring.md has no section {anchor}"
    assert {each["annotations"]["runbook_url"].partition("#")[2] for each in alerts} == {
        anchor for anchor in there if anchor.startswith("sparkonce")
    }


_PAST = "decisions.md"
"""Names things that no longer exist."""
PAGES = [
    *(page for page in (ROOT / "docs").glob("*.md") if page.name != _PAST),
    ROOT / "README.md",
    *(ROOT / "examples").rglob("*.md"),
    CHART / "README.md",
]
_FIELD = re.compile(r"(?<![\w./-])\.?((?:spec|status)(?:\.[A-Za-z]\w*(?:\[[^\]]*\])?)+)")
_VALUE = re.compile(r"([a-z][A-Za-z]*(?:\.[a-z][A-Za-z]*)+)(?::.*)?")
WORDS = {"metadata.managedFields"}
"""Words of every Kubernetes object."""


@functools.cache
def document(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def code(text: str) -> list[str]:
    """Inline code of a text: what is in backticks, without blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def has_field(path: str) -> bool:
    """Whether the CRD has the field, as far as its schema is closed."""
    [version] = document(ROOT / "crds" / "idempotentjobs.yaml")["spec"]["versions"]
    here = version["schema"]["openAPIV3Schema"]
    for part in re.sub(r"\[[^\]]*\]", "", path).split("."):
        while here.get("type") == "array":
            here = here["items"]
        if part in here.get("properties", {}):
            here = here["properties"][part]
        elif isinstance(more := here.get("additionalProperties"), dict):
            here = more
        else:
            return bool(here.get("x-kubernetes-preserve-unknown-fields"))
    return True


def has_value(path: str) -> bool:
    """Whether the chart has the value; any value fits below an empty map or list."""
    here = document(CHART / "values.yaml")
    for part in path.split("."):
        if not here and isinstance(here, dict | list):
            return True
        if not isinstance(here, dict) or part not in here:
            return False
        here = here[part]
    return True


def is_value(text: str) -> str | None:
    """The path of the chart's value that the text is, or was meant to be."""
    path = _VALUE.fullmatch(text)
    top = document(CHART / "values.yaml")
    return path[1] if path and path[1].split(".")[0] in top else None


def unknown_command(text: str) -> str | None:
    """The part of `sparkonce ...` or `kubectl sparkonce ...` that the command line does not have; None if it has everything."""
    plugin = text.startswith("kubectl ")
    words = shlex.split(text)[2 if plugin else 1 :]
    if words[:2] == ["doctor", "accept-restore"]:
        words = words[1:]
    command: Any = get_command(kubectl if plugin else program())
    options = {each for parameter in command.params for each in parameter.opts}
    while words and hasattr(command, "commands"):
        word = words.pop(0)
        if word not in command.commands:
            return word
        command = command.commands[word]
    options |= {each for parameter in command.params for each in parameter.opts}
    return next((word for word in words if word.startswith("-") and word not in options), None)


def test_alerts_name_only_what_exists() -> None:
    """Each command, field of the CRD, value of the chart and label value in an alert's text exists."""
    verbs = set(get_command(kubectl).commands)  # type: ignore[attr-defined] # a group
    looked = 0
    for rule in rules():
        told = " ".join(rule.get("annotations", {}).values())
        for label in re.findall(r"\$labels\.(\w+)", told):
            assert label in {"pod", "service", "namespace"}, f"{rule['alert']}: {label} is no label of a target"
        for text in code(told):
            looked += 1
            if text.startswith(("sparkonce ", "kubectl sparkonce ")):
                wrong = unknown_command(text)
            elif text.startswith("kubectl "):
                wrong = None
            elif text.startswith(("spec.", "status.")):
                wrong = None if has_field(text) else text
            elif (path := is_value(text)) is not None:
                wrong = None if has_value(path) else path
            else:
                wrong = None if text in WORDS | verbs or re.search(rf"\b{re.escape(text)}\b", rule["expr"]) else text
            assert wrong is None, f"{rule['alert']}: there is no {wrong} (in `{text}`)"
    assert looked > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_name_only_fields_and_values_that_exist(page: Path) -> None:
    """A name that begins with `spec.` or `.status.` is a field of the CRD, one that begins with a group of values is a value of the chart,
    and `sparkonce_` begins a metric."""
    exposed = names() | names_of_lanes()
    known = exposed | {name.removesuffix(end) for name in exposed for end in ("_bucket", "_total")}
    for text in code(page.read_text()):
        if text.endswith(": must be absent"):
            continue  # a refusal, which names a field of a template that is none of the CRD's
        for path in _FIELD.findall(text):
            assert has_field(path), f"`{text}`: the CRD has no {path}"
        if (path := is_value(text)) is not None:
            assert has_value(path), f"`{text}`: the chart has no {path}"
        for metric in re.findall(r"\bsparkonce_\w+", text):
            assert metric in known, f"`{text}`: no process exposes {metric}"


def test_what_does_not_exist_is_found() -> None:
    """The checks above notice a field, a value, a command and an option that do not exist."""
    assert not has_field("spec.ttl")
    assert has_field("spec.retention.succeeded")
    assert not has_value("operator.slot")
    assert unknown_command("sparkonce keys lists") == "lists"
    assert unknown_command("sparkonce keys list --phase Held") == "--phase"
    assert unknown_command("kubectl sparkonce list --phase Held") is None


@pytest.mark.parametrize("gateway", [True, False])
@pytest.mark.parametrize("etcd", ["etcd.bundled.enabled=true", "etcd.external.endpoints={a:2379}"])
def test_rules_are_about_this_release(gateway: bool, etcd: str) -> None:
    """Every rendered selector names the namespace and a service of the release; without a gateway no alert is about one, and without the
    bundled etcd none about its members."""
    sets = [etcd, "acceptInsecure=true", "metrics.prometheusRule.enabled=true"]
    objects = rendered(sets=[*sets, f"gateway.enabled={str(gateway).lower()}"])
    services = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    groups = one(objects, "PrometheusRule", "")["spec"]["groups"]
    text = yaml.safe_dump(groups, width=10_000)
    assert not re.search(r"\$[a-z]\w+", re.sub(r"\{\{.*?\}\}", "", text))
    for rule in (rule for group in groups for rule in group["rules"]):
        selectors = re.findall(r"\b(?:(?:sparkonce|etcd)_\w+|up)\{([^}]*)\}", rule["expr"])
        assert selectors
        for selector in selectors:
            assert 'namespace="platform"' in selector
            match = re.search(r'service(?:=|=~)"([^"]+)"', selector)
            assert match is not None
            assert any(re.fullmatch(match[1], service) for service in services), selector
    assert ("SparkonceGatewayDown" in text) is gateway
    assert ("SparkonceEtcdNoLeader" in text) is ("bundled" in etcd)
    assert "SparkonceBackupOld" not in text


def test_the_alert_on_backups_is_about_the_cronjob_of_this_release() -> None:
    """It names the CronJob that the release has, in its namespace."""
    objects = rendered(sets=["etcd.bundled.enabled=true", BACKUPS, "metrics.prometheusRule.enabled=true"])
    cronjob = one(objects, "CronJob", "")["metadata"]
    selectors = re.findall(r"\bkube_cronjob_\w+\{([^}]*)\}", exprs()["SparkonceBackupOld"])
    assert selectors == [f'namespace="{cronjob["namespace"]}",cronjob="{cronjob["name"]}"'] * 2


def exprs(*sets: str) -> dict[str, str]:
    """The expressions of the alerts that a release with these settings has, by name."""
    objects = rendered(
        sets=["etcd.bundled.enabled=true", BACKUPS, *PROXY, "metrics.prometheusRule.enabled=true", *sets]
    )
    groups = one(objects, "PrometheusRule", "")["spec"]["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"] if "alert" in rule}


def test_bounds_are_values() -> None:
    """The age at which a job raises an alert is set in seconds: 0 leaves the alert out, and a missing value means the default. The number
    of etcd members that the alert expects is that of the values."""
    of = {
        "SparkonceJobsPending": "pendingSeconds",
        "SparkonceJobsRunning": "runningSeconds",
        "SparkonceBackupOld": "backupSeconds",
    }
    usual = exprs()
    assert [usual[alert].rpartition(" > ")[2] for alert in of] == ["3600", "86400", "43200"]
    for alert, value in of.items():
        name = f"metrics.prometheusRule.{value}"
        assert exprs(f"{name}=null") == usual
        assert exprs(f"{name}=1209600")[alert].endswith(" > 1209600")
        assert set(usual) - set(exprs(f"{name}=0")) == {alert}
    assert usual["SparkonceEtcdMemberDown"].endswith(" < 1")
    assert exprs("etcd.bundled.replicas=3")["SparkonceEtcdMemberDown"].endswith(" < 3")
