"""What a gateway counts, as Prometheus metrics. Names and units as in `metrics.py`; one registry per object."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

ANSWERS = (0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class GatewayMetrics:
    def __init__(self, *, announced: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "sparkonce_gateway_requests",
            "Answered requests, by route as it is declared and status.",
            ("route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "sparkonce_gateway_request_seconds",
            "From the head of a request to its answer.",
            ("route",),
            buckets=ANSWERS,
            registry=self.registry,
        )
        self._tokens = Counter(
            "sparkonce_gateway_tokens",
            "Tokens that were shown: remembered, accepted or refused by the API server.",
            ("answer",),
            registry=self.registry,
        )
        self._called = Counter(
            "sparkonce_api_requests",
            "Requests to the API server.",
            ("verb", "kind", "result"),
            registry=self.registry,
        )
        self._stored = Counter(
            "sparkonce_store_requests", "Requests to the store.", ("verb", "result"), registry=self.registry
        )
        self._store_seconds = Histogram(
            "sparkonce_store_request_seconds",
            "From a request to the store to its answer.",
            ("verb",),
            buckets=ANSWERS,
            registry=self.registry,
        )
        serves = Gauge(
            "sparkonce_gateway_announced",
            "1 while the ledger says that this gateway serves.",
            registry=self.registry,
        )
        serves.set_function(lambda: float(announced()))

    def requested(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, 503)  # there before the first one, whose increase is then seen
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def token(self, answer: str) -> None:
        self._tokens.labels(answer).inc()

    def called(self, verb: str, kind: str, result: str) -> None:
        self._called.labels(verb, kind, "unavailable")
        self._called.labels(verb, kind, result).inc()

    def stored(self, verb: str, result: str, seconds: float) -> None:
        self._stored.labels(verb, "StoreUnavailable")
        self._stored.labels(verb, result).inc()
        self._store_seconds.labels(verb).observe(seconds)

    def text(self) -> tuple[bytes, str]:
        """As scraped, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
