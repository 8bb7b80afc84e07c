"""Generates the chart's Grafana dashboard: `python scripts/dashboard.py > charts/sparkonce/dashboards/sparkonce.json`.

A dashboard's JSON is a few dozen queries surrounded by positions, ids and data sources. This module lists the queries with their units and
meaning, and generates the rest; in JSON that was written by hand or exported from Grafana, a reviewer could not see which query changed.
The queries use no recorded series, so the dashboard works without the chart's rules.
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
PROXY = 'namespace="$namespace",service="$proxy"'
ALL = 'namespace="$namespace",service=~"$operator|$gateway|$proxy"'
PROBES = 'route!~"/(readyz|healthz|metrics)"'
SILENT = 'OPERATOR,result=~"StoreUnavailable|StoreUnusable"'
FAILED = 'OPERATOR,result=~"unavailable|refused"'
WIDTH, STAT, HEIGHT = 24, 4, 7
"""Columns of the grid; heights of a number and of a graph, in rows of the grid."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    says: str
    """What the panel shows and which values are normal: the text behind its info icon."""
    queries: Mapping[str, str]
    """PromQL by legend; OPERATOR, GATEWAY, PROXY and ALL are replaced by label matchers."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False


def p(title: str, says: str, queries: Mapping[str, str], unit: str = "short", **more: Any) -> Panel:
    return Panel(title=title, says=says, queries=queries, unit=unit, **more)


def number(title: str, says: str, query: str, unit: str = "short") -> Panel:
    return Panel(title=title, says=says, queries={"": query}, unit=unit, kind="stat", width=4)


def connections(title: str, server: str) -> Panel:
    return p(
        title,
        f"Open connections of clients, and those that the {server} closed: overdue, refused, or to make room for another client.",
        {
            "open {{pod}}": f"sparkonce_{server}_connections{{{server.upper()}}}",
            "closed per minute: {{why}}": "60 * sum by (why) "
            f"(rate(sparkonce_{server}_connections_closed_total{{{server.upper()}}}[$__rate_interval]))",
        },
    )


def quantiles(metric: str, *, by: str = "") -> dict[str, str]:
    """p50 and p99 of a histogram."""
    group, legend = (f", {by}", f" {{{{{by}}}}}") if by else ("", "")
    return {
        f"p{part * 100:g}{legend}": f"histogram_quantile({part}, sum by (le{group}) (rate({metric}[$__rate_interval])))"
        for part in (0.5, 0.99)
    }


ROWS: Mapping[str, Sequence[Panel]] = {
    "What users see": [
        number("Running", "Jobs whose attempt is running now.", 'max(sparkonce_jobs{OPERATOR,phase="Running"})'),
        number(
            "Held",
            "Jobs that wait for a decision by a person; normally 0.",
            'max(sparkonce_jobs{OPERATOR,phase="Held"})',
        ),
        number(
            "Succeeded",
            "Generations that succeeded in the time range shown.",
            'sum(increase(sparkonce_finalized_total{OPERATOR,outcome="Succeeded"}[$__range]))',
        ),
        number(
            "Failed",
            "Generations that failed in the time range shown.",
            'sum(increase(sparkonce_finalized_total{OPERATOR,outcome="Failed"}[$__range]))',
        ),
        number(
            "Duplicates avoided",
            "Duplicate requests in the time range shown that did not run: answered from the record, or attached to a running job.",
            "sum(increase(sparkonce_duplicates_avoided_total{OPERATOR}[$__range]))",
        ),
        number(
            "Executor time saved",
            "Core time that replays would have cost as runs, estimated from the specs of the jobs.",
            "sum(increase(sparkonce_executor_seconds_saved_total{OPERATOR}[$__range]))",
            "s",
        ),
        p(
            "Jobs by phase",
            "Existing IdempotentJobs, by phase. Each replica sees all of them.",
            {"{{phase}}": "max by (phase) (sparkonce_jobs{OPERATOR})"},
            stacked=True,
        ),
        p(
            "Jobs per minute",
            "Generations that got their result, by outcome.",
            {"{{outcome}}": "60 * sum by (outcome) (rate(sparkonce_finalized_total{OPERATOR}[$__rate_interval]))"},
            "opm",
            stacked=True,
        ),
        p(
            "From opening to result",
            "Time from the opening of a generation to its result, with all attempts and the waits between them.",
            quantiles("sparkonce_job_seconds_bucket{OPERATOR}"),
            "s",
        ),
        p(
            "Requests for keys",
            "The ledger's answers to requests that open a key. Owned: the job runs. Full: refused because there is no room.",
            {"{{outcome}}": "60 * sum by (outcome) (rate(sparkonce_reservations_total{OPERATOR}[$__rate_interval]))"},
            "opm",
        ),
        p(
            "Duplicates per minute",
            "Replays got a recorded result. Mismatches are requests whose key belongs to a job with another fingerprint.",
            {
                "replayed": "60 * sum(rate(sparkonce_replays_total{OPERATOR}[$__rate_interval]))",
                "attached or replayed": "60 * sum(rate(sparkonce_duplicates_avoided_total{OPERATOR}[$__rate_interval]))",
                "mismatch": "60 * sum(rate(sparkonce_mismatches_total{OPERATOR}[$__rate_interval]))",
            },
            "opm",
        ),
        p(
            "Oldest job, by phase",
            "Time since the oldest job that is Pending, Running or Recovering was opened; or created, while its key is not reserved.",
            {"{{phase}}": "max by (phase) (sparkonce_oldest_job_seconds{OPERATOR})"},
            "s",
        ),
        p(
            "Held, by reason",
            "When jobs began to wait for a decision by a person, and why.",
            {"{{reason}}": "sum by (reason) (increase(sparkonce_held_total{OPERATOR}[$__rate_interval])) > 0"},
        ),
    ],
    "Attempts and takeovers": [
        p(
            "More attempts, by why",
            "Attempts after the first, by how the previous one ended. Stale, Lost: the driver was replaced. Exited, Permanent: it failed.",
            {"{{why}}": "sum by (why) (increase(sparkonce_attempts_total{OPERATOR}[$__rate_interval]))"},
            stacked=True,
        ),
        p(
            "Takeovers",
            "Keys that another operator took over from one that ended. A rollout shows as a spike; takeovers add no attempt.",
            {"{{pod}}": "sum by (pod) (increase(sparkonce_takeovers_total{OPERATOR}[$__rate_interval]))"},
            stacked=True,
        ),
        p(
            "Time of a takeover",
            "From the end of the old claim to the new one. A hand-over takes less than a second; after a crash the lease expires first.",
            quantiles("sparkonce_takeover_seconds_bucket{OPERATOR}"),
            "s",
        ),
    ],
    "Health of the operator": [
        p(
            "Ready",
            "1 while the replica is ready, as in /readyz.",
            {"{{pod}}": "sparkonce_ready{OPERATOR}"},
            "bool_yes_no",
        ),
        p(
            "Lease",
            "Seconds until a replica must stop acting; below 0 it does not act. Normally a line close to the lease's length.",
            {"{{pod}}": "sparkonce_lease_seconds{OPERATOR}"},
            "s",
        ),
        p(
            "Ledger older than it was",
            "1 after a restore of etcd: nothing starts until `sparkonce doctor accept-restore` was run.",
            {"{{pod}}": "sparkonce_store_alarm{OPERATOR}"},
            "bool_yes_no",
        ),
        p(
            "Oldest key in the queue, longest look",
            "Waiting time of the oldest due key, and duration of the longest running reconciliation. Normally below a few seconds.",
            {"waits {{pod}}": "sparkonce_queue_seconds{OPERATOR}", "look {{pod}}": "sparkonce_work_seconds{OPERATOR}"},
            "s",
        ),
        p(
            "Keys in hand",
            "Keys that replicas drive, and keys in the queue, due or not.",
            {"driven {{pod}}": "sparkonce_drives{OPERATOR}", "queued {{pod}}": "sparkonce_queue_depth{OPERATOR}"},
        ),
        p(
            "Slots",
            "How many new jobs may be unfinished at once, and how many are; the rest wait.",
            {
                "taken": "sum(sparkonce_slots_taken{OPERATOR})",
                "open to the busiest namespace": "sum(sparkonce_slots_open{OPERATOR})",
                "all": "sum(sparkonce_slots{OPERATOR})",
            },
        ),
        p(
            "Objects known, changes told",
            "IdempotentJobs by replica, and watch events of jobs, applications and pods.",
            {
                "known {{pod}}": "sparkonce_objects{OPERATOR}",
                "{{kind}} per second": "sum by (kind) (rate(sparkonce_events_total{OPERATOR}[$__rate_interval]))",
            },
        ),
        p(
            "Room in the ledger",
            "New keys are refused at 80 % of etcd's quota and at a namespace's limit of keys, repor"
            "ts at its limit of reports. As of the last one.",
            {
                "quota": "max(sparkonce_store_quota_ratio{OPERATOR})",
                "keys": "max(sparkonce_live_keys_ratio{OPERATOR})",
                "reports": "max(sparkonce_gateway_reports_ratio{GATEWAY})",
            },
            "percentunit",
        ),
        p(
            "Ledger found older",
            "How often the ledger was found older than seen before, in the time range shown.",
            {"{{pod}}": "increase(sparkonce_store_rewound_total{OPERATOR}[$__range])"},
        ),
    ],
    "Ledger (etcd)": [
        p(
            "Requests by verb",
            "Requests of operators to etcd.",
            {"{{verb}}": "sum by (verb) (rate(sparkonce_store_requests_total{OPERATOR}[$__rate_interval]))"},
            "reqps",
            stacked=True,
        ),
        p(
            "Requests without an answer",
            "Timeouts and lost connections are retried; a few are harmless. StoreUnusable means a refused login or a missing right.",
            {
                "{{verb}} {{result}}": "sum by (verb, result) "
                f"(rate(sparkonce_store_requests_total{{{SILENT}}}[$__rate_interval]))"
            },
            "reqps",
        ),
        p(
            "Time of a request",
            "Latency, including the client's retries. A few milliseconds are normal; a slow disk of etcd shows here first.",
            quantiles("sparkonce_store_request_seconds_bucket{OPERATOR}"),
            "s",
        ),
    ],
    "API server": [
        p(
            "Requests by kind",
            "Requests of operators to the API server.",
            {
                "{{verb}} {{kind}}": "sum by (verb, kind) (rate(sparkonce_api_requests_total{OPERATOR}[$__rate_interval]))"
            },
            "reqps",
            stacked=True,
        ),
        p(
            "Requests that failed",
            "Requests with result unavailable are retried; refused means a missing right or a quota.",
            {
                "{{kind}} {{result}}": "sum by (kind, result) "
                f"(rate(sparkonce_api_requests_total{{{FAILED}}}[$__rate_interval]))"
            },
            "reqps",
        ),
        p(
            "Status conflicts",
            "Status writes that conflicted with a newer object and were retried. A few are normal.",
            {"conflicts": "sum(rate(sparkonce_status_conflicts_total{OPERATOR}[$__rate_interval]))"},
            "reqps",
        ),
    ],
    "Gateway": [
        p(
            "Serves",
            "1 while the ledger has this gateway's announcement; missing heartbeats count only while a gateway is announced.",
            {"{{pod}}": "sparkonce_gateway_announced{GATEWAY}"},
            "bool_yes_no",
        ),
        p(
            "Requests by status",
            "Requests of drivers and users, without probes and scrapes.",
            {
                "{{status}}": f"sum by (status) (rate(sparkonce_gateway_requests_total{{GATEWAY,{PROBES}}}[$__rate_interval]))"
            },
            "reqps",
            stacked=True,
        ),
        p(
            "Time of an answer",
            "Latency by route, without probes and scrapes.",
            {
                "p99 {{route}}": "histogram_quantile(0.99, sum by (le, route) "
                f"(rate(sparkonce_gateway_request_seconds_bucket{{GATEWAY,{PROBES}}}[$__rate_interval])))"
            },
            "s",
        ),
        p(
            "Tokens",
            "Bearer tokens of requests: cached, or accepted or refused by the API server.",
            {"{{answer}}": "sum by (answer) (rate(sparkonce_gateway_tokens_total{GATEWAY}[$__rate_interval]))"},
            "reqps",
        ),
        connections("Connections", "gateway"),
        p(
            "Requests to the API server",
            "Reviews of tokens and of rights, and reads that identify drivers.",
            {
                "{{kind}} {{result}}": "sum by (kind, result) (rate(sparkonce_api_requests_total{GATEWAY}[$__rate_interval]))"
            },
            "reqps",
        ),
        p(
            "Time of a request to the ledger",
            "Latency of gateways' requests to etcd.",
            quantiles("sparkonce_store_request_seconds_bucket{GATEWAY}"),
            "s",
        ),
    ],
    "Proxy": [
        p(
            "Requests with a key",
            "By outcome: ran and replayed are usual; failed is a 5xx of the service; all other outcomes are refusals.",
            {"{{outcome}}": "sum by (outcome) (rate(sparkonce_keyed_requests_total{PROXY}[$__rate_interval]))"},
            "reqps",
            stacked=True,
        ),
        p(
            "Time to an outcome",
            "From the headers of a request with a key to its outcome, with the service's own time.",
            quantiles("sparkonce_keyed_request_seconds_bucket{PROXY}", by="outcome"),
            "s",
        ),
        p(
            "Unknown requests that were looked for",
            "What became of requests whose answer was lost: answered, had no effect, still unknown, or sent again.",
            {
                "{{verdict}}": "sum by (verdict) (increase(sparkonce_reconciled_requests_total{PROXY}[$__rate_interval]))"
            },
            stacked=True,
        ),
        connections("Connections of clients", "proxy"),
        p(
            "Requests to the ledger of answers",
            "Two for a request that runs and one for a replay, and beats of those that run long.",
            {
                "{{verb}} {{result}}": "sum by (verb, result) (rate(sparkonce_store_requests_total{PROXY}[$__rate_interval]))"
            },
            "reqps",
        ),
        p(
            "Time of a request to the ledger of answers",
            "Latency of proxies' requests to their ledger.",
            quantiles("sparkonce_store_request_seconds_bucket{PROXY}"),
            "s",
        ),
    ],
    "Processes": [
        p(
            "Versions",
            "Processes of the release by the version that they run; a rollout shows two of them for minutes.",
            {"{{service}} {{version}}": "count by (service, version) (sparkonce_build_info{ALL})"},
        ),
        p(
            "Memory",
            "Resident memory; a process beyond its limit is killed.",
            {"{{pod}}": "process_resident_memory_bytes{ALL}"},
            "bytes",
        ),
        p(
            "CPU",
            "Cores in use. An operator that has less than it wants renews its lease late.",
            {"{{pod}}": "rate(process_cpu_seconds_total{ALL}[$__rate_interval])"},
        ),
        p(
            "Open files",
            "Files and connections, and how many a process may have.",
            {"{{pod}}": "process_open_fds{ALL}", "limit {{pod}}": "process_max_fds{ALL}"},
        ),
        p(
            "Running since",
            "Time since each process started; a short line after a long one is a restart.",
            {"{{pod}}": "time() - process_start_time_seconds{ALL}"},
            "s",
        ),
    ],
}


def dashboard() -> Json:
    """Grafana's JSON model of the dashboard, for version 9 and later."""
    return {
        "uid": "sparkonce",
        "title": "sparkonce",
        "description": "Jobs, attempts and health of a sparkonce release; docs/monitoring.md describes what to do.",
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
        values("proxy", "Proxy", 'label_values(sparkonce_keyed_requests_total{namespace="$namespace"}, service)'),
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
            "expr": query.replace("OPERATOR", OPERATOR)
            .replace("GATEWAY", GATEWAY)
            .replace("PROXY", PROXY)
            .replace("ALL", ALL),
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
