"""The order service of the examples as real processes that share one ledger of answers and one table of orders."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import httpx

from harness.child import Child, free_port

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "orders"
STARTS = 30.0
"""Seconds until a process serves: imports, mostly."""


class OrderService:
    """One process. `failpoints`: as in SPARKONCE_FAILPOINTS. `app`: `service:service` for the service without the middleware."""

    def __init__(
        self,
        folder: Path,
        *,
        failpoints: str = "",
        lease: float = 1.0,
        replies: str | None = None,
        app: str = "service:app",
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {
            "ORDERS": str(folder / "orders.db"),
            "REPLIES": replies or f"sqlite:///{folder / 'replies.db'}",
            "LEASE": str(lease),
            "SPARKONCE_FAILPOINTS": failpoints,
        }
        command = [sys.executable, "-m", "uvicorn", app, "--app-dir", str(EXAMPLE), "--port", str(self.port)]
        self.process = Child(f"order service {self.port}", command, folder / f"service-{self.port}.log", environment)

    def start(self) -> Self:
        self.process.start()
        self.process.until(self._serves, STARTS)
        return self

    def _serves(self) -> bool:
        try:
            return httpx.get(f"{self.url}/openapi.json", timeout=1.0).status_code == 200
        except httpx.TransportError:
            return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.process.kill()


def order(url: str, key: str, *, timeout: float = 60.0, item: str = "chair", caller: str = "") -> httpx.Response:
    """Sends one order. Raises: httpx.TransportError: no answer."""
    headers = {"Idempotency-Key": key} | ({"Authorization": caller} if caller else {})
    return httpx.post(f"{url}/orders", headers=headers, json={"item": item, "count": 2}, timeout=timeout)


def placed(folder: Path) -> Counter[Any]:
    """Orders by key."""
    with closing(sqlite3.connect(folder / "orders.db", timeout=60)) as table:
        if not table.execute("SELECT 1 FROM sqlite_master WHERE name = 'orders'").fetchone():
            return Counter()  # no request has reached the table
        return Counter(key for (key,) in table.execute("SELECT key FROM orders"))
