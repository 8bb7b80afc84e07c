"""The operator's Prometheus metrics. Names and units follow Prometheus' conventions: base units, seconds, `_total`.

Each instance has its own registry instead of the library's global one, so that two operators in one process (tests) count separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from sparkonce import __version__

WHYS = (
    "Completed", "Exited", "Permanent", "Expectation", "Lost", "Preempted", "Stale", "NameTaken", "Timeout", "Cancelled",
    "Superseded", "Resolved",
)  # fmt: skip
OUTCOMES = ("Succeeded", "Failed", "Cancelled")
HELD = ("Partial", "Unknown", "NameTaken", "StillThere", "KeyConflict", "Stuck", "CannotSettle", "CannotPlace")
RESERVED = ("Owned", "Duplicate", "Mismatch", "Moved", "Lost", "Refused", "Full")
PHASES = (
    "Pending", "Running", "Recovering", "Held", "Succeeded", "Failed", "Cancelled", "Mismatch", "Expired",
)  # fmt: skip
"""Label values known in advance: their counters start at 0, so that the first event shows as an increase."""

STORE = (0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TAKEOVER = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
JOBS = (1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
GAUGES: Mapping[str, str] = {
    "queue_depth": "Keys waiting to be reconciled.",
    "queue_seconds": "Seconds for which the oldest due key has waited to be reconciled.",
    "work_seconds": "Duration of the longest running reconcile, in seconds.",
    "lease_seconds": "Seconds until this process must stop acting on its lease; below 0 when it must not act.",
    "drives": "Keys that this process owns and drives.",
    "objects": "IdempotentJobs known to this process.",
    "slots": "Permits for new keys, taken or not.",
    "slots_taken": "Permits for new keys that are taken.",
    "slots_open": "Permits that the namespace with the most of them may still take; at 0 its new jobs wait.",
    "ready": "1 while this process is ready, as in /readyz.",
    "store_alarm": "1 while the store is older than this process has seen it; needs an administrator.",
    "store_quota_ratio": "Size of the store divided by its quota, at the last admission of a new key.",
    "live_keys_ratio": "Live keys divided by the limit, of the fullest realm, at the last admission of a new key.",
}


UNFINISHED = ("Pending", "Running", "Recovering")
"""Phases of jobs that wait for nothing but time: their age is a gauge."""


def registry_of_process() -> CollectorRegistry:
    """A registry with what every process of ours exposes: its version, and its memory, CPU time, open files and start time (on Linux)."""
    registry = CollectorRegistry()
    build = Gauge("sparkonce_build_info", "1, by the version that this process runs.", ("version",), registry=registry)
    build.labels(__version__).set(1)
    ProcessCollector(registry=registry)
    return registry


class StoreRequests:
    """The metrics of requests to a store, which every process with a store has; its registry."""

    def __init__(self) -> None:
        self.registry = registry_of_process()
        self._stored = Counter(
            "sparkonce_store_requests", "Requests to the store.", ("verb", "result"), registry=self.registry
        )
        self._store_seconds = Histogram(
            "sparkonce_store_request_seconds",
            "Latency of requests to the store.",
            ("verb",),
            buckets=STORE,
            registry=self.registry,
        )

    def stored(self, verb: str, result: str, seconds: float) -> None:
        self._stored.labels(verb, "StoreUnavailable")  # created at 0, so that the first failure shows as an increase
        self._stored.labels(verb, result).inc()
        self._store_seconds.labels(verb).observe(seconds)


def closed_connections(
    server: str, registry: CollectorRegistry, connections: Callable[[], int]
) -> Callable[[str], None]:
    """Registers the metrics of a server's connections. Returns what counts a connection that the server closed by itself, by the reason.

    `connections`: how many are open."""
    closed = Counter(
        f"sparkonce_{server}_connections_closed",
        f"Connections that the {server} closed by itself: overdue, to make room for another, or refused.",
        ("why",),
        registry=registry,
    )
    for why in ("overdue", "room", "refused"):  # created at 0, so that the first one shows as an increase
        closed.labels(why)
    open_now = Gauge(f"sparkonce_{server}_connections", "Open connections of clients.", registry=registry)
    open_now.set_function(lambda: float(connections()))
    return lambda why: closed.labels(why).inc()


class Metrics(StoreRequests):
    """Implements `Meter`."""

    def __init__(self) -> None:
        super().__init__()
        counter = self._counter
        self._reserved = counter("reservations", "Reserves and reopens, by outcome.", outcome=RESERVED)
        self._takeovers = counter("takeovers", "Keys taken over from an owner whose claim ended.")
        self._latency = Histogram(
            "sparkonce_takeover_seconds",
            "From the end of the old claim, as reported by the store, to the new claim.",
            buckets=TAKEOVER,
            registry=self.registry,
        )
        self._granted = counter(
            "attempts", "Attempts granted after the first, by how the previous one ended.", why=WHYS
        )
        self._finalized = counter("finalized", "Generations that got their result, by outcome.", outcome=OUTCOMES)
        self._seconds = Histogram(
            "sparkonce_job_seconds",
            "From the opening of a generation to its result.",
            buckets=JOBS,
            registry=self.registry,
        )
        self._held = counter("held", "Keys held for a person, by reason.", reason=HELD)
        self._replayed = counter("replays", "Duplicates that got the recorded result.")
        self._avoided = counter(
            "duplicates_avoided", "Duplicate requests that were replayed or attached instead of run."
        )
        self._saved = counter("executor_seconds_saved", "Executor core seconds that replays saved.")
        self._mismatched = counter("mismatches", "Objects refused because their key has another fingerprint.")
        self._alarmed = counter("store_rewound", "Times that the store was found older than previously seen.")
        self._called = counter("api_requests", "Requests to the API server.", verb=(), kind=(), result=())
        self._conflicted = counter("status_conflicts", "Status writes that conflicted with a newer object.")
        self._triggered = counter("events", "Watch events, by kind.", kind=())

    def _counter(self, name: str, said: str, **labels: Sequence[str]) -> Counter:
        """Creates a counter. `labels`: label names, with the values known in advance."""
        made = Counter(f"sparkonce_{name}", said, tuple(labels), registry=self.registry)
        for values in labels.values():
            for value in values:
                made.labels(value)
        return made

    def watch(
        self,
        gauges: Callable[[], Mapping[str, float]],
        phases: Callable[[], Mapping[str, int]] | None = None,
        ages: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Registers gauges that are read at each scrape. `phases`: number of objects per phase. `ages`: seconds, of the oldest job in each
        phase of `UNFINISHED` that has one."""
        self.registry.register(_Gauges(gauges, phases, ages))

    def text(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def reserved(self, outcome: str) -> None:
        self._reserved.labels(outcome).inc()

    def taken_over(self, latency: float | None) -> None:
        self._takeovers.inc()
        if latency is not None:
            self._latency.observe(latency)

    def granted(self, why: str) -> None:
        self._granted.labels(why).inc()

    def finalized(self, outcome: str, *, attempts: int, seconds: float) -> None:
        del attempts  # counted as they are granted
        self._finalized.labels(outcome).inc()
        self._seconds.observe(seconds)

    def held(self, reason: str) -> None:
        self._held.labels(reason).inc()

    def replayed(self, *, executor_seconds: float) -> None:
        self._replayed.inc()
        self._avoided.inc()
        self._saved.inc(executor_seconds)

    def followed(self) -> None:
        self._avoided.inc()

    def mismatched(self) -> None:
        self._mismatched.inc()

    def alarmed(self) -> None:
        self._alarmed.inc()

    def called(self, verb: str, kind: str, result: str) -> None:
        self._called.labels(verb, kind, "unavailable")  # created at 0, like the known labels above
        self._called.labels(verb, kind, result).inc()

    def conflicted(self) -> None:
        self._conflicted.inc()

    def triggered(self, kind: str) -> None:
        self._triggered.labels(kind).inc()


class _Gauges(Collector):
    def __init__(
        self,
        read: Callable[[], Mapping[str, float]],
        phases: Callable[[], Mapping[str, int]] | None,
        ages: Callable[[], Mapping[str, float]],
    ) -> None:
        self._read, self._phases, self._ages = read, phases, ages

    def collect(self) -> Iterator[Metric]:
        values = self._read()
        for name, said in GAUGES.items():
            if name in values:
                yield GaugeMetricFamily(f"sparkonce_{name}", said, value=values[name])
        if self._phases is None:
            return
        jobs = GaugeMetricFamily("sparkonce_jobs", "IdempotentJobs known to this process, by phase.", labels=["phase"])
        for phase, count in {**dict.fromkeys(PHASES, 0), **self._phases()}.items():
            jobs.add_metric([phase], count)
        yield jobs
        oldest = GaugeMetricFamily(
            "sparkonce_oldest_job_seconds",
            "Time since the last change of a condition of the oldest IdempotentJob in this phase; 0 without one.",
            labels=["phase"],
        )
        ages = self._ages()
        for phase in UNFINISHED:
            oldest.add_metric([phase], ages.get(phase, 0.0))
        yield oldest
