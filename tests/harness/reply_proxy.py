"""`sparkonce proxy` as a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from harness.child import Child, free_port

STARTS = 30.0
"""Seconds until a process serves, on a busy machine."""


@contextmanager
def started_proxy(
    folder: Path, upstream: str, *options: str, shows: str, failpoints: str = ""
) -> Iterator[tuple[str, Child]]:
    """A proxy's URL and process, once it answers GET of `shows`. Proxies of one folder share a ledger."""
    port = free_port()
    command = [sys.executable, "-m", "sparkonce", "proxy", "--listen", f"127.0.0.1:{port}", "--upstream", upstream]
    command += ["--store", f"sqlite:///{folder / 'replies.db'}", *options]
    child = Child(f"proxy {port}", command, folder / f"proxy-{port}.log", {"SPARKONCE_FAILPOINTS": failpoints})
    child.start()
    url = f"http://127.0.0.1:{port}"
    try:
        child.until(lambda: serves(f"{url}{shows}"), STARTS)
        yield url, child
    finally:
        child.kill()


def serves(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False
