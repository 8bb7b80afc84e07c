"""The dashboard and the rules, as files: made from what they are made from, about metrics that exist, and explained."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from harness.helm import CHART, ROOT, one, rendered
from sparkonce.observe.gateway_metrics import GatewayMetrics
from sparkonce.observe.metrics import GAUGES, Metrics

DASHBOARD = CHART / "dashboards" / "sparkonce.json"
DOCS = ROOT / "docs" / "monitoring.md"
MADE = "run scripts/dashboard.py > charts/sparkonce/dashboards/sparkonce.json"


def panels() -> list[dict[str, Any]]:
    """Without the titles of rows."""
    return [each for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    files = sorted((CHART / "rules").glob("*.yaml"))
    return [rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def queries() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def names() -> set[str]:
    """Of every sample that an operator or a gateway may expose, with the labels that it has."""
    metrics, gateway = Metrics(), GatewayMetrics(announced=lambda: True)
    metrics.watch(lambda: dict.fromkeys(GAUGES, 1.0), dict)
    found = {"sparkonce_api_requests_total", "sparkonce_store_requests_total"}
    for each in (metrics, gateway):
        for family in text_string_to_metric_families(each.text()[0].decode()):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            found |= {family.name + suffix for suffix in suffixes}
    return found


def test_the_dashboard_is_what_its_list_makes() -> None:
    """The file in the chart is the output of scripts/dashboard.py."""
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "dashboard.py"], capture_output=True, text=True, check=True
    )
    assert DASHBOARD.read_text() == made.stdout, MADE


def test_queries_are_about_metrics_that_exist() -> None:
    """Every name in the dashboard and the rules is one that operators or gateways expose."""
    asked = {name for query in queries() for name in re.findall(r"\bsparkonce_\w+", query)}
    assert len(asked) > 25
    assert asked <= names(), asked - names()


def test_every_metric_is_shown() -> None:
    """What is counted can be seen: no metric without a panel, but for the count and the sum of histograms, and for when a counter began."""
    shown = {name for panel in panels() for t in panel["targets"] for name in re.findall(r"\bsparkonce_\w+", t["expr"])}
    hidden = {name for name in names() - shown if not name.endswith(("_sum", "_count", "_created"))}
    assert not hidden


def test_panels_explain_themselves() -> None:
    """Each has a title of its own, a description, a unit, the variable data source, and a place where no other panel is."""
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
    """docs/monitoring.md says what each one means."""
    told = DOCS.read_text()
    for panel in panels():
        assert f"*{panel['title']}*" in told, panel["title"]
    for rule in rules():
        assert f"`{rule.get('alert') or rule['record']}`" in told


@pytest.mark.parametrize("gateway", [True, False])
def test_rules_are_about_this_release(gateway: bool) -> None:
    """As rendered, every selector names the namespace and a service of the release; without a gateway nobody is alarmed for want of it."""
    sets = [
        "etcd.bundled.enabled=true",
        "metrics.prometheusRule.enabled=true",
        f"gateway.enabled={str(gateway).lower()}",
    ]
    objects = rendered(sets=sets)
    services = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    groups = one(objects, "PrometheusRule", "")["spec"]["groups"]
    text = yaml.safe_dump(groups, width=10_000)
    assert not re.search(r"\$(operator|gateway|release)", text)
    for rule in (rule for group in groups for rule in group["rules"]):
        selectors = re.findall(r"sparkonce_\w+\{([^}]*)\}", rule["expr"])
        assert selectors
        for selector in selectors:
            assert 'namespace="platform"' in selector
            match = re.search(r'service(?:=|=~)"([^"]+)"', selector)
            assert match is not None
            assert any(re.fullmatch(match[1], service) for service in services), selector
    assert ("SparkonceGatewayDown" in text) is gateway
