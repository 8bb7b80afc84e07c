"""Test cases for each alert of the chart: the metrics of a fault, when the alert must fire, and similar metrics for which it must not.

Times are minutes of promtool's simulated clock, so that `for`, windows and thresholds are tested as the chart has them.
tests/api/test_monitoring.py proves that a real fault makes a real operator expose such metrics, and compares names and labels with a real
scrape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.helm import RELEASE

Values = Sequence[float | None]
"""One value per scrape; None: the scrape failed, or had no such series."""

STEP = 0.5
"""Minutes between two scrapes: the chart's `metrics.serviceMonitor.interval`."""
WELL = 35.0
"""Minutes without a fault before it, enough to fill the windows of all alerts but one."""
AFTER = 40.0
"""Minutes without a fault afterwards, longer than the windows of all alerts but that one."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One fault, which begins after `WELL`; all other times are minutes."""

    series: Mapping[str, Values]
    """Values by series, without the namespace, which all have; `service` defaults to the operator's."""
    not_yet: float
    """Minutes after the fault's start at which the alert must not fire yet."""
    by_then: float
    """Minutes after the fault's start from which the alert fires until the fault ends."""
    lasts: float
    gone: float = 0.0
    """Minutes after the fault's end from which the alert no longer fires."""


@dataclass(frozen=True, kw_only=True)
class Cases:
    faults: Sequence[Case]
    near: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    """Near misses: description, and metrics for which the alert never fires."""


def _spread(parts: Sequence[tuple[float, float | None]]) -> list[float | None]:
    return [value for minutes, value in parts for _ in range(int(minutes / STEP))]


def level(well: float | None, fault: float | None, lasts: float = 20) -> Values:
    """Values of a gauge: `well`, then `fault` for `lasts` minutes, then `well`."""
    return _spread([(WELL, well), (lasts, fault), (AFTER, well)])


def rate(well: float, fault: float, lasts: float = 20) -> Values:
    """Values of a counter with these increases per minute."""
    made, count = [], 0.0
    for each in _spread([(WELL, well), (lasts, fault), (AFTER, well)]):
        count += (each or 0.0) * STEP
        made.append(count)
    return made


def bursts(size: float, *, every: float, count: int) -> Values:
    """Values of a counter that grows by `size` at once, `count` times."""
    made, total = [0.0] * int(WELL / STEP), 0.0
    for _ in range(count):
        total += size
        made += [total] * int(every / STEP)
    return made + [total] * int(AFTER / STEP)


def rollouts(count: int) -> Values:
    """Values of a counter of takeovers: each replica hands over all of its keys at once, a minute after the other."""
    made, total = [0.0] * int(WELL / STEP), 0.0
    for _ in range(count):
        total += 200
        made += [total] * int(1 / STEP)
        total += 200
        made += [total] * int(14 / STEP)
    return made + [total] * int(AFTER / STEP)


def _gauge(
    name: str, well: float, fault: float, near: float, *, minutes: float, labels: str = "", lasts: float = 20
) -> Cases:
    """Cases of a gauge of one replica; the alert fires once the fault has lasted `minutes`."""
    series = f"{name}{{{labels}pod='a'}}"
    return Cases(
        faults=[Case(series={series: level(well, fault, lasts)}, not_yet=minutes - STEP, by_then=minutes, lasts=lasts)],
        near={"below what it compares with": {series: level(well, near)}}
        | ({"it ends in time": {series: level(well, fault, minutes - STEP)}} if minutes else {}),
    )


def _none_left(name: str, *, minutes: float, service: str = "") -> Cases:
    """Cases of two replicas that expose 1 while healthy."""
    a, b = f"{name}{{{service}pod='a'}}", f"{name}{{{service}pod='b'}}"
    times = {"not_yet": minutes - STEP, "by_then": minutes, "lasts": 20.0}
    return Cases(
        faults=[
            Case(series={a: level(1, 0), b: level(1, 0)}, **times),
            Case(series={a: level(1, None), b: level(1, None)}, **times),
        ],
        near={
            "another one does its work": {a: level(1, 0), b: level(1, 1)},
            "it ends in time": {a: level(1, 0, minutes - STEP), b: level(1, 0, minutes - STEP)},
        },
    )


def _share(name: str, bad: str, good: str, *, service: str = "") -> Cases:
    """Cases of an error rate above 5 % over ten minutes, which must last for five."""
    failed, done = f"{name}{{{service}{bad}}}", f"{name}{{{service}{good}}}"
    return Cases(
        faults=[Case(series={failed: rate(0, 2), done: rate(10, 10)}, not_yet=5, by_then=12, lasts=20, gone=15)],
        near={"one in twenty-five": {failed: rate(0, 2), done: rate(48, 48)}},
    )


def _joined(*cases: Cases) -> Cases:
    return Cases(
        faults=[each for one in cases for each in one.faults],
        near={f"{number} {what}": near for number, one in enumerate(cases) for what, near in one.near.items()},
    )


GATEWAY = "service='gateway',"
_JOBS = "sparkonce_finalized_total{{outcome='{}'}}".format
_AGAIN = "sparkonce_attempts_total{{why='{}'}}".format
_OWNED = "sparkonce_reservations_total{outcome='Owned'}"
_PATCHES = "sparkonce_api_requests_total{verb='patch',kind='IdempotentJob',result='ok'}"
_REFUSED = "sparkonce_api_requests_total{verb='patch',kind='IdempotentJob',result='conflict'}"
_CONFLICTS = "sparkonce_status_conflicts_total{}"
_TAKEOVERS = "sparkonce_takeovers_total{}"
_ROUTE = "/v1/namespaces/{namespace}/keys"


def _api(result: str) -> Cases:
    return _share(
        "sparkonce_api_requests_total", f"verb='get',kind='Pod',result='{result}'", "verb='get',kind='Pod',result='ok'"
    )


def _store(result: str, service: str = "") -> Cases:
    return _share(
        "sparkonce_store_requests_total", f"verb='txn',result='{result}'", "verb='txn',result='ok'", service=service
    )


PROXY = "service='proxy',"
_KEYED = f"sparkonce_keyed_requests_total{{{{{PROXY}outcome='{{}}'}}}}".format
ETCD = "service='etcd',"
_ELECTED = f"etcd_server_leader_changes_seen_total{{{ETCD}pod='a'}}"


def _fsync(le: str) -> str:
    return f"etcd_disk_wal_fsync_duration_seconds_bucket{{{ETCD}pod='a',le='{le}'}}"


def _fsyncs(slow: float) -> Mapping[str, Values]:
    """A hundred writes a minute, of which so many take longer than half a second while there is a fault."""
    return {_fsync("0.256"): rate(100, 100 - slow, 30), _fsync("0.512"): rate(100, 100 - slow, 30)} | {
        _fsync(each): rate(100, 100, 30) for each in ("1.024", "+Inf")
    }


def _database(share: float) -> Mapping[str, Values]:
    size, quota = (
        f"etcd_mvcc_db_total_size_in_bytes{{{ETCD}pod='a'}}",
        f"etcd_server_quota_backend_bytes{{{ETCD}pod='a'}}",
    )
    return {size: level(20e8 * 0.3, 20e8 * share), quota: level(20e8, 20e8)}


_CRONJOB = f"cronjob='{RELEASE}-sparkonce-etcd-backup'"
_CREATED = f"kube_cronjob_created{{{_CRONJOB}}}"
_TAKEN = f"kube_cronjob_status_last_successful_time{{{_CRONJOB}}}"


def _snapshots(first: float | None, lasts: float) -> Mapping[str, Values]:
    """Seconds at which the newest snapshot was taken: `first`, and after so many minutes of a fault one at that moment."""
    return {
        _CREATED: level(0, 0, lasts),
        _TAKEN: _spread([(WELL + lasts, first), (AFTER, (WELL + lasts) * 60)]),
    }


ALERTS: Mapping[str, Cases] = {
    "NoOperatorReady": _none_left("sparkonce_ready", minutes=2),
    "OperatorNotReady": _gauge("sparkonce_ready", 1, 0, 1, minutes=10),
    "StoreSilent": Cases(
        faults=[
            Case(
                series={f"sparkonce_lease_seconds{{pod='{pod}'}}": level(15, -5) for pod in "ab"},
                not_yet=0.5, by_then=1, lasts=20,
            )
        ],
        near={
            "one of them holds a lease": {
                "sparkonce_lease_seconds{pod='a'}": level(15, -5), "sparkonce_lease_seconds{pod='b'}": level(15, 3)
            },
            "it ends in time": {"sparkonce_lease_seconds{pod='a'}": level(15, -1, 0.5)},
        },
    ),
    "StoreRewound": _gauge("sparkonce_store_alarm", 0, 1, 0, minutes=0),
    "LookHangs": _gauge("sparkonce_work_seconds", 0.1, 61, 60, minutes=1),
    "QueueOld": _gauge("sparkonce_queue_seconds", 0.1, 31, 30, minutes=2),
    "TakeoversFrequent": Cases(
        # One key moves every five minutes: the seventh move comes after half an hour.
        faults=[Case(series={_TAKEOVERS: bursts(1, every=5, count=13)}, not_yet=29.5, by_then=31, lasts=65, gone=30)],
        near={
            "three rollouts of two replicas that move everything": {_TAKEOVERS: rollouts(3)},
            "each twelve minutes": {_TAKEOVERS: bursts(1, every=12, count=8)},
        },
    ),
    "StatusConflicts": Cases(
        faults=[
            Case(
                series={_CONFLICTS: rate(0, 4), _REFUSED: rate(0, 4), _PATCHES: rate(4, 4)},
                not_yet=9.5, by_then=10.5, lasts=20, gone=10,
            )
        ],
        near={
            "two of seven": {_CONFLICTS: rate(0, 4), _REFUSED: rate(0, 4), _PATCHES: rate(10, 10)},
            "twenty": {_CONFLICTS: rate(0, 2), _REFUSED: rate(0, 2), _PATCHES: rate(2, 2)},
        },
    ),
    "ApiErrors": _joined(_api("unavailable"), _api("refused")),
    "StoreErrors": _joined(
        _store("StoreUnavailable"), _store("StoreUnusable"), _store("StoreUnavailable", GATEWAY), _store("StoreUnavailable", PROXY),
    ),
    "StoreQuotaNear": _gauge("sparkonce_store_quota_ratio", 0.3, 0.71, 0.7, minutes=5),
    "JobHeld": _gauge("sparkonce_jobs", 0, 1, 0, minutes=1, labels="phase='Held',"),
    "JobsPending": _gauge("sparkonce_oldest_job_seconds", 60, 3601, 3600, minutes=5, labels="phase='Pending',"),
    "JobsRunning": _joined(
        _gauge("sparkonce_oldest_job_seconds", 60, 86401, 86400, minutes=5, labels="phase='Running',"),
        _gauge("sparkonce_oldest_job_seconds", 60, 86401, 86400, minutes=5, labels="phase='Recovering',"),
    ),
    "JobsFailing": Cases(
        # After ten minutes there are as many failures as other results in the last half hour.
        faults=[
            Case(
                series={_JOBS("Failed"): rate(0, 6), _JOBS("Succeeded"): rate(1, 1), _JOBS("Cancelled"): rate(1, 1)},
                not_yet=14, by_then=16, lasts=30, gone=22,
            ),
            Case(series={_JOBS("Failed"): rate(0, 2)}, not_yet=6.5, by_then=7.5, lasts=20, gone=30),
        ],
        near={
            "half of them": {_JOBS("Failed"): rate(0, 4), _JOBS("Succeeded"): rate(4, 4)},
            "four": {_JOBS("Failed"): bursts(1, every=5, count=4)},
        },
    ),
    "AttemptsFailing": Cases(
        # After five minutes there are half as many failed attempts as keys in the last half hour.
        faults=[
            Case(series={_AGAIN(why): rate(0, 6), _OWNED: rate(2, 2)}, not_yet=9, by_then=11, lasts=20, gone=27)
            for why in ("Exited", "Permanent", "Expectation", "Timeout")
        ],
        near={
            "half of them": {_AGAIN("Exited"): rate(0, 2), _OWNED: rate(4, 4)},
            "for other reasons": {_AGAIN("Lost"): rate(0, 6), _AGAIN("Cancelled"): rate(0, 6), _OWNED: rate(2, 2)},
            "four": {_AGAIN("Exited"): bursts(1, every=5, count=4), _OWNED: bursts(1, every=5, count=4)},
        },
    ),
    "DriversReplaced": Cases(
        faults=[
            Case(series={_AGAIN(why): rate(0, 2)}, not_yet=1.5, by_then=2.5, lasts=20, gone=30)
            for why in ("Lost", "Stale")
        ],
        near={
            "two": {_AGAIN("Lost"): bursts(1, every=5, count=1), _AGAIN("Stale"): bursts(1, every=5, count=1)},
            "for other reasons": {_AGAIN("Exited"): rate(0, 2)},
        },
    ),
    "SlotsExhausted": Cases(
        faults=[
            Case(
                series={f"sparkonce_slots_open{{pod='{pod}'}}": level(3, 0) for pod in "ab"},
                not_yet=9.5, by_then=10, lasts=20,
            )
        ],
        near={
            "one is open": {"sparkonce_slots_open{pod='a'}": level(3, 0), "sparkonce_slots_open{pod='b'}": level(3, 1)},
        },
    ),
    "LiveKeysNear": _gauge("sparkonce_live_keys_ratio", 0.3, 0.81, 0.8, minutes=5),
    "NewKeysRefused": Cases(
        faults=[
            Case(
                series={"sparkonce_reservations_total{outcome='Full'}": bursts(1, every=14, count=1), _OWNED: rate(1, 1)},
                not_yet=-0.5, by_then=0, lasts=14, gone=1.5,
            )
        ],
        near={"others were answered": {"sparkonce_reservations_total{outcome='Mismatch'}": rate(0, 5), _OWNED: rate(1, 5)}},
    ),
    "EtcdMemberDown": Cases(
        faults=[
            Case(series={f"up{{{ETCD}pod='a'}}": level(1, value)}, not_yet=2.5, by_then=3, lasts=20)
            for value in (0, None)
        ],
        near={
            "it ends in time": {f"up{{{ETCD}pod='a'}}": level(1, 0, 2.5)},
            "another target is down": {f"up{{{ETCD}pod='a'}}": level(1, 1), f"up{{{GATEWAY}pod='b'}}": level(1, 0)},
        },
    ),
    "EtcdNoLeader": _gauge("etcd_server_has_leader", 1, 0, 1, minutes=1, labels=ETCD),
    "EtcdLeaderChanges": Cases(
        faults=[Case(series={_ELECTED: rate(0, 2)}, not_yet=1, by_then=2.5, lasts=20, gone=15)],
        near={"three in a rollout": {_ELECTED: bursts(1, every=1, count=2)}},
    ),
    "EtcdDiskSlow": Cases(
        faults=[Case(series=_fsyncs(3), not_yet=9.5, by_then=12.5, lasts=30, gone=5)],
        near={"one in two hundred": _fsyncs(0.5)},
    ),
    "EtcdQuotaNear": Cases(
        faults=[Case(series=_database(0.71), not_yet=4.5, by_then=5, lasts=20)], near={"seven tenths": _database(0.7)}
    ),
    "BackupOld": Cases(
        faults=[
            Case(series=_snapshots(first, 900), not_yet=690, by_then=690.5, lasts=900, gone=STEP) for first in (0, None)
        ],
        near={"one was left out": _snapshots(0, 680), "none was due yet": _snapshots(None, 680)},
    ),
    "GatewayDown": _none_left("sparkonce_gateway_announced", minutes=2, service=GATEWAY),
    "GatewayNotServing": _gauge("sparkonce_gateway_announced", 1, 0, 1, minutes=5, labels=GATEWAY),
    "ReportsNear": _gauge("sparkonce_gateway_reports_ratio", 0.3, 0.81, 0.8, minutes=5, labels=GATEWAY),
    "GatewayErrors": _joined(
        _share(
            "sparkonce_gateway_requests_total", f"route='{_ROUTE}',status='503'", f"route='{_ROUTE}',status='200'",
            service=GATEWAY,
        ),
        Cases(
            faults=(),
            near={
                "probes fail": {
                    f"sparkonce_gateway_requests_total{{{GATEWAY}route='/readyz',status='503'}}": rate(0, 10),
                    f"sparkonce_gateway_requests_total{{{GATEWAY}route='{_ROUTE}',status='200'}}": rate(1, 1),
                }
            },
        ),
    ),
    "ProxyDown": _none_left("sparkonce_build_info", minutes=2, service=f"{PROXY}version='1',"),
    "ProxyLedgerSilent": _joined(
        *(
            _share("sparkonce_keyed_requests_total", f"outcome='{refused}'", "outcome='ran'", service=PROXY)
            for refused in ("store-down", "claim-lost")
        ),
        Cases(faults=(), near={"keys are used again": {_KEYED("key-reused"): rate(0, 10), _KEYED("ran"): rate(10, 10)}}),
    ),
    "ProxyUnknownOutcomes": Cases(
        faults=[
            Case(series={_KEYED("unknown-outcome"): bursts(1, every=1, count=1)}, not_yet=-STEP, by_then=STEP, lasts=29, gone=2)
        ],
        near={"services fail": {_KEYED("failed"): rate(0, 10), _KEYED("unknown-outcome"): level(0, 0)}},
    ),
}  # fmt: skip
"""Cases by the name of the alert without its prefix."""
