"""`sparkonce proxy` as a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from harness.child import Child, free_port

SERVICE = Path(__file__).parent / "counting_service.py"
STARTS = 30.0
"""Seconds until a process serves, on a busy machine."""


@contextmanager
def started_proxy(
    folder: Path, upstream: str, *options: str, shows: str, failpoints: str = "", store: str = ""
) -> Iterator[tuple[str, Child]]:
    """A proxy's URL and process, once it answers GET of `shows`. Proxies of one folder share a ledger, unless
    `store` names another."""
    port = free_port()
    command = [sys.executable, "-m", "sparkonce", "proxy", "--listen", f"127.0.0.1:{port}", "--upstream", upstream]
    command += ["--store", store or f"sqlite:///{folder / 'replies.db'}", *options]
    child = Child(f"proxy {port}", command, folder / f"proxy-{port}.log", {"SPARKONCE_FAILPOINTS": failpoints})
    child.start()
    url = f"http://127.0.0.1:{port}"
    try:
        child.until(lambda: serves(f"{url}{shows}"), STARTS)
        yield url, child
    finally:
        child.kill()


@contextmanager
def counting_service(folder: Path) -> Iterator[tuple[int, Child]]:
    """The port and the process of a service that writes its effects to `effects` in this folder."""
    port = free_port()
    command = [sys.executable, str(SERVICE), str(port), str(folder / "effects")]
    service = Child("service", command, folder / "service.log")
    service.start()
    try:
        service.until(lambda: serves(f"http://127.0.0.1:{port}"), STARTS)
        yield port, service
    finally:
        service.kill()


@dataclass(frozen=True)
class Proxied:
    """A service that counts its effects, and a proxy before it."""

    proxy: Child
    url: str
    metrics: str
    """HOST:PORT of the proxy's /metrics."""

    def post(self, key: str, query: str = "") -> int:
        """The status of a request with this key."""
        answer = httpx.post(f"{self.url}/orders{query}", content=b"x", headers={"Idempotency-Key": key}, timeout=60.0)
        return answer.status_code


@contextmanager
def proxied(folder: Path, store: str) -> Iterator[Proxied]:
    """A service of this folder, and a proxy with this ledger."""
    options = ("--http", metrics := f"127.0.0.1:{free_port()}")
    with (
        counting_service(folder) as (port, _),
        started_proxy(folder, f"http://127.0.0.1:{port}", *options, shows="/", store=store) as (url, proxy),
    ):
        yield Proxied(proxy, url, metrics)


def serves(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False
