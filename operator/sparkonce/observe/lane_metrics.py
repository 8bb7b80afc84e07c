"""Prometheus metrics of writers of lanes, for the process that has them: `sparkonce.writer(..., meter=LaneMetrics())`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

OUTCOMES = ("applied", "refused", "fenced", "unknown")
"""Label values known in advance: their counters start at 0, so that the first event shows as an increase."""
SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class LaneMetrics:
    """Implements `LaneMeter`. One object serves all writers of a process; the library's global registry is the default, which most programs
    expose."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._waiting: dict[str, Callable[[], tuple[int, float]]] = {}
        self._lock = Lock()
        self._appends = Counter(
            "sparkonce_lane_appends", "Appends with an outcome.", ("lane", "outcome"), registry=registry
        )
        self._rows = Counter("sparkonce_lane_rows", "Rows that were written.", ("lane",), registry=registry)
        self._seconds = Histogram(
            "sparkonce_lane_append_seconds",
            "From an append to its outcome, of the oldest one of each place.",
            ("lane",),
            buckets=SECONDS,
            registry=registry,
        )
        registry.register(self)

    def opened(self, lane: str, waiting: Callable[[], tuple[int, float]]) -> None:
        with self._lock:
            self._waiting[lane] = waiting
        for outcome in OUTCOMES:
            self._appends.labels(lane, outcome)
        self._rows.labels(lane)

    def ended(self, lane: str, appends: int, *, outcome: str, rows: int, seconds: float) -> None:
        self._appends.labels(lane, outcome).inc(appends)
        if outcome == "applied":
            self._rows.labels(lane).inc(rows)
            self._seconds.labels(lane).observe(seconds)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the gauges have no values before a writer is opened."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """The gauges, as of now."""
        size = GaugeMetricFamily(
            "sparkonce_lane_waiting_bytes", "Bytes of appends without an outcome.", labels=("lane",)
        )
        age = GaugeMetricFamily(
            "sparkonce_lane_waiting_seconds", "Age of the oldest append without an outcome.", labels=("lane",)
        )
        with self._lock:
            writers = dict(self._waiting)
        for lane, waiting in sorted(writers.items()):
            octets, seconds = waiting()
            size.add_metric((lane,), octets)
            age.add_metric((lane,), seconds)
        yield from (size, age)
