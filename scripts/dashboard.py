"""The chart's Grafana dashboard, from the list of its panels: `python scripts/dashboard.py > charts/sparkonce/dashboards/sparkonce.json`.

A dashboard is a page of positions, ids and data sources around a few dozen queries; here stand the queries, with their units and what
they mean, and the rest follows. Written by hand, or exported from Grafana, no review would see which query changed. It uses no recorded
series, so that it works without the chart's rules.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

OPERATOR = 'namespace="$namespace",service="$operator"'
GATEWAY = 'namespace="$namespace",service="$gateway"'
PROBES = 'route!~"/(readyz|healthz|metrics)"'
SILENT = 'OPERATOR,result=~"StoreUnavailable|StoreUnusable"'
FAILED = 'OPERATOR,result=~"unavailable|refused"'
WIDTH, STAT, HEIGHT = 24, 4, 7
"""Columns of a page, and rows of a number and of a graph."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    says: str
    """What it means, and what is well: the text behind the panel's i."""
    queries: Mapping[str, str]
    """By legend; OPERATOR and GATEWAY are replaced."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False


def p(title: str, says: str, queries: Mapping[str, str], unit: str = "short", **more: Any) -> Panel:
    return Panel(title=title, says=says, queries=queries, unit=unit, **more)


def number(title: str, says: str, query: str, unit: str = "short") -> Panel:
    return Panel(title=title, says=says, queries={"": query}, unit=unit, kind="stat", width=4)


def quantiles(metric: str, *, by: str = "") -> dict[str, str]:
    """p50 and p99 of a histogram."""
    group, legend = (f", {by}", f" {{{{{by}}}}}") if by else ("", "")
    return {
        f"p{part * 100:g}{legend}": f"histogram_quantile({part}, sum by (le{group}) (rate({metric}[$__rate_interval])))"
        for part in (0.5, 0.99)
    }


ROWS: Mapping[str, Sequence[Panel]] = {
    "What users see": [
        number("Running", "Jobs with an attempt now.", 'max(sparkonce_jobs{OPERATOR,phase="Running"})'),
        number("Held", "Jobs that wait for a person; well is 0.", 'max(sparkonce_jobs{OPERATOR,phase="Held"})'),
        number(
            "Succeeded",
            "In the time shown.",
            'sum(increase(sparkonce_finalized_total{OPERATOR,outcome="Succeeded"}[$__range]))',
        ),
        number(
            "Failed",
            "In the time shown.",
            'sum(increase(sparkonce_finalized_total{OPERATOR,outcome="Failed"}[$__range]))',
        ),
        number(
            "Duplicates avoided",
            "Requests in the time shown that did not run again: answered from the record, or attached to a running job.",
            "sum(increase(sparkonce_duplicates_avoided_total{OPERATOR}[$__range]))",
        ),
        number(
            "Executor time saved",
            "Core time that answers from the record would have cost, as far as the specs of the jobs tell.",
            "sum(increase(sparkonce_executor_seconds_saved_total{OPERATOR}[$__range]))",
            "s",
        ),
        p(
            "Jobs by phase",
            "IdempotentJobs that exist. Each replica knows all of them.",
            {"{{phase}}": "max by (phase) (sparkonce_jobs{OPERATOR})"},
            stacked=True,
        ),
        p(
            "Jobs per minute",
            "Generations that got their result.",
            {"{{outcome}}": "60 * sum by (outcome) (rate(sparkonce_finalized_total{OPERATOR}[$__rate_interval]))"},
            "opm",
            stacked=True,
        ),
        p(
            "From opening to result",
            "All attempts together, waits between them included.",
            quantiles("sparkonce_job_seconds_bucket{OPERATOR}"),
            "s",
        ),
        p(
            "Requests for keys",
            "What the ledger answered to whoever wanted to open one. Owned runs; Full is refused for want of room.",
            {"{{outcome}}": "60 * sum by (outcome) (rate(sparkonce_reservations_total{OPERATOR}[$__rate_interval]))"},
            "opm",
        ),
        p(
            "Duplicates per minute",
            "Replays got a recorded result. Mismatches asked for something else under a key that was taken.",
            {
                "replayed": "60 * sum(rate(sparkonce_replays_total{OPERATOR}[$__rate_interval]))",
                "attached or replayed": "60 * sum(rate(sparkonce_duplicates_avoided_total{OPERATOR}[$__rate_interval]))",
                "mismatch": "60 * sum(rate(sparkonce_mismatches_total{OPERATOR}[$__rate_interval]))",
            },
            "opm",
        ),
        p(
            "Held, by reason",
            "When jobs began to wait for a person, and why.",
            {"{{reason}}": "sum by (reason) (increase(sparkonce_held_total{OPERATOR}[$__rate_interval])) > 0"},
        ),
    ],
    "Attempts and takeovers": [
        p(
            "More attempts, by why",
            "Attempts after the first one. Stale and Lost are drivers that were replaced; Exited and Permanent failed by themselves.",
            {"{{why}}": "sum by (why) (increase(sparkonce_attempts_total{OPERATOR}[$__rate_interval]))"},
            stacked=True,
        ),
        p(
            "Takeovers",
            "Keys whose operator ended and that another one drives. A rollout shows as a spike; no attempt is added.",
            {"{{pod}}": "sum by (pod) (increase(sparkonce_takeovers_total{OPERATOR}[$__rate_interval]))"},
            stacked=True,
        ),
        p(
            "Time of a takeover",
            "From the end of the old claim to the new one. A hand-over takes below a second; after a death the lease ends first.",
            quantiles("sparkonce_takeover_seconds_bucket{OPERATOR}"),
            "s",
        ),
    ],
    "Health of the operator": [
        p("Ready", "1 while a replica does all of its work.", {"{{pod}}": "sparkonce_ready{OPERATOR}"}, "bool_yes_no"),
        p(
            "Lease",
            "Seconds until a replica must stop to act; below 0 it does not act. Well is a line close to the lease's length.",
            {"{{pod}}": "sparkonce_lease_seconds{OPERATOR}"},
            "s",
        ),
        p(
            "Ledger older than it was",
            "1 after a restore: nothing starts until `sparkonce doctor accept-restore`.",
            {"{{pod}}": "sparkonce_store_alarm{OPERATOR}"},
            "bool_yes_no",
        ),
        p(
            "Oldest key in the queue, longest look",
            "Seconds that a due key waited, and that a look at one key goes on. Well is below a few seconds.",
            {"waits {{pod}}": "sparkonce_queue_seconds{OPERATOR}", "look {{pod}}": "sparkonce_work_seconds{OPERATOR}"},
            "s",
        ),
        p(
            "Keys in hand",
            "Keys that replicas drive, and keys that wait for a look, due or not.",
            {"driven {{pod}}": "sparkonce_drives{OPERATOR}", "queued {{pod}}": "sparkonce_queue_depth{OPERATOR}"},
        ),
        p(
            "Slots",
            "New jobs that may be unfinished at once; the rest waits.",
            {"taken": "sum(sparkonce_slots_taken{OPERATOR})", "all": "sum(sparkonce_slots{OPERATOR})"},
        ),
        p(
            "Objects known, changes told",
            "IdempotentJobs by replica, and how often watches told of a job, an application or a pod.",
            {
                "known {{pod}}": "sparkonce_objects{OPERATOR}",
                "{{kind}} per second": "sum by (kind) (rate(sparkonce_events_total{OPERATOR}[$__rate_interval]))",
            },
        ),
        p(
            "Room in the ledger",
            "At 80 % of etcd's quota, and at the ceiling of keys of a namespace, new keys are refused. As a new key saw it last.",
            {"quota": "max(sparkonce_store_quota_ratio{OPERATOR})", "keys": "max(sparkonce_live_keys_ratio{OPERATOR})"},
            "percentunit",
        ),
        p(
            "Ledger found older",
            "How often in the time shown.",
            {"{{pod}}": "increase(sparkonce_store_rewound_total{OPERATOR}[$__range])"},
        ),
    ],
    "Ledger (etcd)": [
        p(
            "Requests by verb",
            "Of operators.",
            {"{{verb}}": "sum by (verb) (rate(sparkonce_store_requests_total{OPERATOR}[$__rate_interval]))"},
            "reqps",
            stacked=True,
        ),
        p(
            "Requests without an answer",
            "Timeouts and lost connections are repeated, and harmless when few; StoreUnusable is a right or a login that is refused.",
            {
                "{{verb}} {{result}}": "sum by (verb, result) "
                f"(rate(sparkonce_store_requests_total{{{SILENT}}}[$__rate_interval]))"
            },
            "reqps",
        ),
        p(
            "Time of a request",
            "With its repetitions by the client. Some milliseconds are usual; a slow disk of etcd shows here first.",
            quantiles("sparkonce_store_request_seconds_bucket{OPERATOR}"),
            "s",
        ),
    ],
    "API server": [
        p(
            "Requests by kind",
            "Of operators.",
            {
                "{{verb}} {{kind}}": "sum by (verb, kind) (rate(sparkonce_api_requests_total{OPERATOR}[$__rate_interval]))"
            },
            "reqps",
            stacked=True,
        ),
        p(
            "Requests that failed",
            "unavailable is repeated; refused is a missing right or a quota.",
            {
                "{{kind}} {{result}}": "sum by (kind, result) "
                f"(rate(sparkonce_api_requests_total{{{FAILED}}}[$__rate_interval]))"
            },
            "reqps",
        ),
        p(
            "Status conflicts",
            "Status writes that met a newer object and were repeated. Some are usual.",
            {"conflicts": "sum(rate(sparkonce_status_conflicts_total{OPERATOR}[$__rate_interval]))"},
            "reqps",
        ),
    ],
    "Gateway": [
        p(
            "Serves",
            "1 while the ledger says that this gateway listens to drivers; a driver's silence counts only then.",
            {"{{pod}}": "sparkonce_gateway_announced{GATEWAY}"},
            "bool_yes_no",
        ),
        p(
            "Requests by status",
            "Without probes and scrapes.",
            {
                "{{status}}": f"sum by (status) (rate(sparkonce_gateway_requests_total{{GATEWAY,{PROBES}}}[$__rate_interval]))"
            },
            "reqps",
            stacked=True,
        ),
        p(
            "Time of an answer",
            "Without probes and scrapes, by route.",
            {
                "p99 {{route}}": "histogram_quantile(0.99, sum by (le, route) "
                f"(rate(sparkonce_gateway_request_seconds_bucket{{GATEWAY,{PROBES}}}[$__rate_interval])))"
            },
            "s",
        ),
        p(
            "Tokens",
            "Shown tokens: remembered, accepted or refused by the API server.",
            {"{{answer}}": "sum by (answer) (rate(sparkonce_gateway_tokens_total{GATEWAY}[$__rate_interval]))"},
            "reqps",
        ),
        p(
            "Requests to the API server",
            "Reviews of tokens and of rights, and what settles who a driver is.",
            {
                "{{kind}} {{result}}": "sum by (kind, result) (rate(sparkonce_api_requests_total{GATEWAY}[$__rate_interval]))"
            },
            "reqps",
        ),
        p(
            "Time of a request to the ledger",
            "Of gateways.",
            quantiles("sparkonce_store_request_seconds_bucket{GATEWAY}"),
            "s",
        ),
    ],
}


def dashboard() -> Json:
    """As Grafana takes it, for version 9 and later."""
    return {
        "uid": "sparkonce",
        "title": "sparkonce",
        "description": "Jobs, attempts and the health of a release of sparkonce; docs/monitoring.md says what to do.",
        "tags": ["sparkonce", "spark"],
        "schemaVersion": 37,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables()},
        "panels": panels(),
    }


def variables() -> list[Json]:
    def values(name: str, said: str, query: str) -> Json:
        source = {"type": "prometheus", "uid": "${datasource}"}
        return {
            "name": name, "label": said, "type": "query", "datasource": source, "query": {"query": query, "refId": name},
            "definition": query, "refresh": 2, "sort": 1, "includeAll": False, "multi": False,
        }  # fmt: skip

    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        values("namespace", "Namespace", "label_values(sparkonce_ready, namespace)"),
        values("operator", "Release", 'label_values(sparkonce_ready{namespace="$namespace"}, service)'),
        values("gateway", "Gateway", 'label_values(sparkonce_gateway_announced{namespace="$namespace"}, service)'),
    ]


def panels() -> list[Json]:
    made: list[Json] = []
    y = 0
    for title, row in ROWS.items():
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": _at(0, y, WIDTH, 1),
            }
        )
        y, x, height = y + 1, 0, 0
        for panel in row:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            height = STAT if panel.kind == "stat" else HEIGHT
            made.append({"id": len(made) + 1, **_body(panel), "gridPos": _at(x, y, panel.width, height)})
            x += panel.width
        y += height
    return made


def _at(x: int, y: int, w: int, h: int) -> Json:
    return {"x": x, "y": y, "w": w, "h": h}


def _body(panel: Panel) -> Json:
    source = {"type": "prometheus", "uid": "${datasource}"}
    drawn = {"fillOpacity": 20, "showPoints": "never", "stacking": {"mode": "normal" if panel.stacked else "none"}}
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": source,
            "expr": query.replace("OPERATOR", OPERATOR).replace("GATEWAY", GATEWAY),
            "legendFormat": legend,
        }
        for place, (legend, query) in enumerate(panel.queries.items())
    ]
    stat = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": source,
        "fieldConfig": {
            "defaults": {"unit": panel.unit} | ({"custom": drawn} if panel.kind == "timeseries" else {}),
            "overrides": [],
        },
        "options": stat if panel.kind == "stat" else {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": targets,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=1) + "\n")
