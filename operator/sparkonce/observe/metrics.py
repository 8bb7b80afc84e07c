"""What the operator counts, as Prometheus metrics. Names and units follow Prometheus' conventions: seconds, `_total`, base units.

One registry per object, not the library's global one: two operators in one process (tests) count apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

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
"""Labels that are known beforehand: their counters stand at 0 from the start, so that the first event is an increase like any other."""

STORE = (0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TAKEOVER = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
JOBS = (1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
GAUGES: Mapping[str, str] = {
    "queue_depth": "Keys that wait for a look.",
    "queue_seconds": "Seconds for which the oldest due key has waited for a look.",
    "work_seconds": "Seconds for which the longest look at a key has gone on.",
    "lease_seconds": "Seconds until this process must stop to act; below 0 when it must not act now.",
    "drives": "Keys that this process owns and drives.",
    "objects": "IdempotentJobs that this process knows.",
    "slots": "Slots for new keys, taken or not.",
    "slots_taken": "Slots for new keys that are taken.",
    "ready": "1 while this process does all of its work: what /readyz says.",
    "store_alarm": "1 while the store is older than what was seen of it; a person must look.",
    "store_quota_ratio": "Size of the store by its quota, when a new key last asked for room.",
    "live_keys_ratio": "Keys by the ceiling, of the realm that is nearest to it, when a new key last asked for room.",
}


class Metrics:
    """Implements `Meter`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = self._counter
        self._reserved = counter("reservations", "Reserves and reopens, by what the store answered.", outcome=RESERVED)
        self._takeovers = counter("takeovers", "Keys taken over from an owner that ended.")
        self._latency = Histogram(
            "sparkonce_takeover_seconds",
            "From the end of the old claim, as told by the store, to the new claim.",
            buckets=TAKEOVER,
            registry=self.registry,
        )
        self._granted = counter(
            "attempts", "Attempts granted after the first one, by why the one before ended.", why=WHYS
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
            "duplicates_avoided", "Requests for a key that did not run again: replayed or attached."
        )
        self._saved = counter("executor_seconds_saved", "Executor core seconds that replays would have cost.")
        self._mismatched = counter("mismatches", "Objects refused because their key is for something else.")
        self._alarmed = counter("store_rewound", "Times that the store was found older than what had been seen of it.")
        self._called = counter("api_requests", "Requests to the API server.", verb=(), kind=(), result=())
        self._stored = counter("store_requests", "Requests to the store.", verb=(), result=())
        self._store_seconds = Histogram(
            "sparkonce_store_request_seconds",
            "From a request to the store to its answer.",
            ("verb",),
            buckets=STORE,
            registry=self.registry,
        )
        self._conflicted = counter("status_conflicts", "Status writes that met a newer object.")
        self._triggered = counter("events", "Objects that a watch told of, by kind.", kind=())

    def _counter(self, name: str, said: str, **labels: Sequence[str]) -> Counter:
        """Labels with the values that are known beforehand, of a counter with one label."""
        made = Counter(f"sparkonce_{name}", said, tuple(labels), registry=self.registry)
        for values in labels.values():
            for value in values:
                made.labels(value)
        return made

    def watch(
        self, gauges: Callable[[], Mapping[str, float]], phases: Callable[[], Mapping[str, int]] | None = None
    ) -> None:
        """Values that are read whenever somebody scrapes. `phases`: how many objects show each phase."""
        self.registry.register(_Gauges(gauges, phases))

    def text(self) -> tuple[bytes, str]:
        """As scraped, and its content type."""
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
        del attempts  # counted one by one, when they are granted
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
        self._called.labels(verb, kind, "unavailable")  # there before the first one, as `WHYS` are
        self._called.labels(verb, kind, result).inc()

    def stored(self, verb: str, result: str, seconds: float) -> None:
        self._stored.labels(verb, "StoreUnavailable")
        self._stored.labels(verb, result).inc()
        self._store_seconds.labels(verb).observe(seconds)

    def conflicted(self) -> None:
        self._conflicted.inc()

    def triggered(self, kind: str) -> None:
        self._triggered.labels(kind).inc()


class _Gauges(Collector):
    def __init__(self, read: Callable[[], Mapping[str, float]], phases: Callable[[], Mapping[str, int]] | None) -> None:
        self._read, self._phases = read, phases

    def collect(self) -> Iterator[Metric]:
        values = self._read()
        for name, said in GAUGES.items():
            if name in values:
                yield GaugeMetricFamily(f"sparkonce_{name}", said, value=values[name])
        if self._phases is None:
            return
        jobs = GaugeMetricFamily(
            "sparkonce_jobs", "IdempotentJobs that this process knows, by phase.", labels=["phase"]
        )
        for phase, count in {**dict.fromkeys(PHASES, 0), **self._phases()}.items():
            jobs.add_metric([phase], count)
        yield jobs
