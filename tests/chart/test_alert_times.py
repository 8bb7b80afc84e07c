"""When alerts fire and end: promtool runs the chart's rendered rules over the metric series of `harness.alert_cases`, with hours of
simulated time.

Windows, thresholds and `for` are those of the chart. tests/api/test_monitoring.py causes the same alerts by real faults, with a real
Prometheus beside real operators, but runs the rules much faster: neither test alone shows both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.alert_cases import AFTER, ALERTS, STEP, WELL, Case, Values
from harness.binaries import or_skip
from harness.helm import NAMESPACE, RELEASE, rule_groups
from harness.patience import completed
from harness.prometheus import needed

Json = dict[str, Any]


@functools.cache
def alerts() -> Mapping[str, Json]:
    """The alerting rules of a release with every component, by name."""
    return {rule["alert"]: rule for group in rule_groups() for rule in group["rules"] if "alert" in rule}


@pytest.fixture(scope="module")
def promtool() -> str:
    or_skip(needed)
    return "promtool"


def input_series(series: Mapping[str, Values]) -> Iterator[Json]:
    """The series with the labels that a scrape of this release gives them."""
    for name, values in series.items():
        metric, _, labels = name.rstrip("}").partition("{")
        kind = next((each for each in ("gateway", "etcd", "proxy") if f"service='{each}'" in labels), "operator")
        mine = [each for each in labels.split(",") if each and not each.startswith("service=")]
        mine += [f"namespace='{NAMESPACE}'", f"service='{RELEASE}-sparkonce-{kind}'"]
        text = " ".join("stale" if value is None else f"{value:g}" for value in values)
        yield {"series": f"{metric}{{{','.join(mine)}}}".replace("'", '"'), "values": text}


def says(alert: str, minutes: float, fires: bool, *, ever: bool = False) -> Json:
    """A promtool test: the alert fires at this minute since the first scrape, or does not. `ever`: it has not fired up to then."""
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    return {
        "expr": f"count by (alertname) ({f'count_over_time({firing}[1d])' if ever else firing})",
        "eval_time": f"{int(minutes * 60)}s",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if fires else [],
    }


def expected(alert: str, case: Case) -> Iterator[Json]:
    """The alert does not fire before the fault or too early, fires from then on until the fault ends, and is over soon after."""
    yield says(alert, WELL + case.not_yet, fires=False, ever=True)
    at = case.by_then
    while at < case.lasts:
        yield says(alert, WELL + at, fires=True)
        at += max(STEP, case.lasts / 8 // STEP * STEP)
    yield says(alert, WELL + case.lasts + case.gone, fires=False)
    yield says(alert, WELL + case.lasts + AFTER - STEP, fires=False)


def played(alert: str) -> Iterator[Json]:
    cases = ALERTS[alert.removeprefix("Sparkonce")]
    for number, case in enumerate(cases.faults):
        yield {
            "name": f"{alert}, fault {number}",
            "interval": f"{int(STEP * 60)}s",
            "input_series": list(input_series(case.series)),
            "promql_expr_test": list(expected(alert, case)),
        }
    for what, series in cases.near.items():
        end = max(len(values) for values in series.values()) * STEP - STEP
        yield {
            "name": f"{alert}, {what}",
            "interval": f"{int(STEP * 60)}s",
            "input_series": list(input_series(series)),
            "promql_expr_test": [says(alert, end, fires=False, ever=True)],
        }


@pytest.mark.parametrize("alert", [f"Sparkonce{each}" for each in ALERTS])
def test_an_alert_fires_in_its_time(alert: str, promtool: str, tmp_path: Path) -> None:
    """An alert fires after the minutes of its `for` and not before, as long as its fault lasts and not after its window, and never for a
    near miss."""
    rule = alerts()[alert]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
    file = tmp_path / "tests.yaml"
    tests = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{int(STEP * 60)}s",
        "tests": list(played(alert)),
    }
    file.write_text(yaml.safe_dump(tests, width=100_000))
    done = completed([promtool, "test", "rules", file], 60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_cases() -> None:
    """Each alert of the chart has a fault and a near miss, and each case belongs to an alert of the chart."""
    assert sorted(f"Sparkonce{each}" for each in ALERTS) == sorted(alerts())
    assert all(cases.faults and cases.near for cases in ALERTS.values())
