"""Serves `/healthz`, `/readyz` and `/metrics` over HTTP for the kubelet, Services and Prometheus.

Healthy means that the event loop runs. A restart does not help a process that cannot reach the store or the API server, so that process
stays healthy but is not ready. Both endpoints answer with one sentence. Served by aiohttp, which kopf depends on anyway. No TLS and no
authentication: nothing served is secret, and network policy restricts access to the port.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from sparkonce.errors import InvalidInput
from sparkonce.listening.address import host_and_port

Check = Callable[[], str | None]
"""Returns None if all is well, else one sentence about what is wrong."""


@asynccontextmanager
async def serve(
    address: str, *, ready: Check, healthy: Check, metrics: Callable[[], tuple[bytes, str]]
) -> AsyncIterator[None]:
    """Serves until the context exits. `address`: HOST:PORT. `metrics`: the exposition text and its content type.

    Raises:
        InvalidInput: the address is malformed, or cannot be bound.
    """
    at = host_and_port(address)
    if at is None:
        raise InvalidInput(f"--http is {address!r}; give HOST:PORT, such as 0.0.0.0:8080")

    def answers(check: Check) -> Callable[[web.Request], object]:
        async def answer(_: web.Request) -> web.Response:
            said = check()
            return web.Response(text=f"{said or 'ok'}\n", status=503 if said else 200)

        return answer

    async def scrape(_: web.Request) -> web.Response:
        body, kind = metrics()
        return web.Response(body=body, headers={"Content-Type": kind})

    app = web.Application()
    app.router.add_get("/healthz", answers(healthy))  # type: ignore[arg-type]  # aiohttp accepts more than its Handler type says
    app.router.add_get("/readyz", answers(ready))  # type: ignore[arg-type]  # as above
    app.router.add_get("/metrics", scrape)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, *at).start()
        except OSError as problem:
            raise InvalidInput(f"--http {address} cannot be served ({problem.strerror}); give another port") from None
        yield
    finally:
        await runner.cleanup()
