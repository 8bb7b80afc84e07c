"""The proxy's Prometheus metrics, of requests with an Idempotency-Key. Naming and registry as in `metrics.py`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sparkonce.observe.metrics import StoreRequests, closed_connections

OUTCOMES = (
    "ran", "released", "replayed", "failed", "left", "key-reused", "in-progress", "unknown-outcome", "store-down", "claim-lost",
    "shutting-down",
)  # fmt: skip
VERDICTS = ("answered", "not-done", "unknown", "rerun")
"""Label values known in advance: their counters start at 0, so that the first event shows as an increase."""
SECONDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)


class ReplyMetrics(StoreRequests):
    """Implements `ReplyMeter`."""

    def __init__(self, *, connections: Callable[[], int] = lambda: 0) -> None:
        """`connections`: how many are open."""
        super().__init__()
        self.closed = closed_connections("proxy", self.registry, connections)
        self._requests = Counter(
            "sparkonce_keyed_requests",
            "Requests with an Idempotency-Key, by outcome.",
            ("outcome",),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "sparkonce_keyed_request_seconds",
            "From the headers of a request with an Idempotency-Key to its outcome.",
            ("outcome",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self._reconciled = Counter(
            "sparkonce_reconciled_requests",
            "Requests whose outcome was unknown and was looked for, by what was found.",
            ("verdict",),
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        for verdict in VERDICTS:
            self._reconciled.labels(verdict)

    def answered(self, outcome: str, seconds: float) -> None:
        self._requests.labels(outcome).inc()
        self._seconds.labels(outcome).observe(seconds)

    def reconciled(self, verdict: str) -> None:
        self._reconciled.labels(verdict).inc()

    def text(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
