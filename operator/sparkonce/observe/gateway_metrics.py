"""The gateway's Prometheus metrics. Naming and registry as in `metrics.py`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sparkonce.observe.metrics import STORE, StoreRequests, closed_connections


class GatewayMetrics(StoreRequests):
    def __init__(
        self,
        *,
        announced: Callable[[], bool],
        reports: Callable[[], float] = lambda: 0.0,
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        """`reports`: bytes of reports divided by the limit, of the fullest realm; `connections`: how many are open."""
        super().__init__()
        self.closed = closed_connections("gateway", self.registry, connections)
        self._requests = Counter(
            "sparkonce_gateway_requests",
            "Answered requests, by declared route and status.",
            ("route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "sparkonce_gateway_request_seconds",
            "From a request's headers to its response.",
            ("route",),
            buckets=STORE,
            registry=self.registry,
        )
        self._tokens = Counter(
            "sparkonce_gateway_tokens",
            "Presented tokens: answered from the cache, or accepted or refused by the API server.",
            ("answer",),
            registry=self.registry,
        )
        self._called = Counter(
            "sparkonce_api_requests",
            "Requests to the API server.",
            ("verb", "kind", "result"),
            registry=self.registry,
        )
        serves = Gauge(
            "sparkonce_gateway_announced",
            "1 while the ledger has this gateway's announcement.",
            registry=self.registry,
        )
        serves.set_function(lambda: float(announced()))
        room = Gauge(
            "sparkonce_gateway_reports_ratio",
            "Bytes of reports divided by the limit, of the fullest realm that reported through this gateway lately.",
            registry=self.registry,
        )
        room.set_function(reports)

    def requested(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, 503)  # created at 0, so that the first failure shows as an increase
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def token(self, answer: str) -> None:
        self._tokens.labels(answer).inc()

    def called(self, verb: str, kind: str, result: str) -> None:
        self._called.labels(verb, kind, "unavailable")
        self._called.labels(verb, kind, result).inc()

    def text(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
