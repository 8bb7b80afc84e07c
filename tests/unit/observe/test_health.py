"""Health, readiness and metrics over HTTP, as other programs see them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import aiohttp
import pytest

from harness.child import free_port
from sparkonce.errors import InvalidInput
from sparkonce.observe.health import serve
from sparkonce.observe.metrics import Metrics


def served(scenario: Callable[[str], Awaitable[None]], said: dict[str, str | None], metrics: Metrics) -> None:
    """Runs the scenario with the server's base address. `said` holds the answers of the two checks, by path."""

    async def whole() -> None:
        address = f"127.0.0.1:{free_port()}"
        ready, healthy = lambda: said["readyz"], lambda: said["healthz"]
        async with serve(address, ready=ready, healthy=healthy, metrics=metrics.text):
            await scenario(f"http://{address}")

    asyncio.run(whole())


async def got(url: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as answer:
        return answer.status, await answer.text(), answer.headers["Content-Type"]


def test_checks_are_asked_at_every_request() -> None:
    """Each request runs its path's own check: 200 and ok, or 503 and the check's sentence."""
    said: dict[str, str | None] = {"readyz": "no lease is held yet", "healthz": None}

    async def scenario(base: str) -> None:
        assert (await got(f"{base}/readyz"))[:2] == (503, "no lease is held yet\n")
        assert (await got(f"{base}/healthz"))[:2] == (200, "ok\n")
        said.update(readyz=None, healthz="a look at a key has taken 400 s")
        assert (await got(f"{base}/readyz"))[:2] == (200, "ok\n")
        assert (await got(f"{base}/healthz"))[:2] == (503, "a look at a key has taken 400 s\n")
        assert (await got(f"{base}/elsewhere"))[0] == 404

    served(scenario, said, Metrics())


def test_metrics_are_text_that_prometheus_reads() -> None:
    """A scrape has the current counters, under the content type that names the format."""
    metrics = Metrics()

    async def scenario(base: str) -> None:
        metrics.reserved("Owned")
        status, text, kind = await got(f"{base}/metrics")
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        assert 'sparkonce_reservations_total{outcome="Owned"} 1.0' in text.splitlines()

    served(scenario, {"readyz": None, "healthz": None}, metrics)


def test_it_is_gone_afterwards() -> None:
    """When the block is left the port is free again, even after an error inside."""
    address = f"127.0.0.1:{free_port()}"

    async def fails() -> None:
        async with serve(address, ready=lambda: None, healthy=lambda: None, metrics=Metrics().text):
            assert (await got(f"http://{address}/healthz"))[0] == 200
            raise RuntimeError("inside")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="inside"):
            asyncio.run(fails())


@pytest.mark.parametrize("address", ["", "8080", "host:", ":80x", "127.0.0.1:99999", "127.0.0.1:²", "no such host:80"])
def test_what_is_no_address(address: str) -> None:
    """One sentence says what to give instead."""
    with pytest.raises(InvalidInput, match="--http"):
        asyncio.run(opened(address))


def test_a_port_that_somebody_has() -> None:
    """One sentence names the address and what to do."""
    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidInput, match=f"{address} cannot be served .*; give another port") as refused:
            asyncio.run(opened(address))
    assert "\n" not in str(refused.value)


async def opened(address: str) -> None:
    async with serve(address, ready=lambda: None, healthy=lambda: None, metrics=Metrics().text):
        pass
