"""`/healthz`, `/readyz` and `/metrics` over HTTP, for whoever restarts, routes and watches this process.

Healthy means that the loop turns: a process that merely cannot reach the store or the API server is not made well by a restart, so it
stays healthy and is not ready. Both answer with one sentence. aiohttp serves it, since kopf brings it; a server of our own would have to
be as careful with half-open connections. There is no TLS and no login here: nothing that is served is a secret, and who may reach the
port is a matter of the network.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from sparkonce.errors import InvalidInput

MAX_PORT = 65535
Check = Callable[[], str | None]
"""None: all is well; else one sentence that says what is not."""


@asynccontextmanager
async def serve(
    address: str, *, ready: Check, healthy: Check, metrics: Callable[[], tuple[bytes, str]]
) -> AsyncIterator[None]:
    """`address`: HOST:PORT. `metrics`: the text and its content type. InvalidInput: no address, or somebody has it."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
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
    app.router.add_get("/healthz", answers(healthy))  # type: ignore[arg-type]  # aiohttp's Handler is narrower than it takes
    app.router.add_get("/readyz", answers(ready))  # type: ignore[arg-type]  # as above
    app.router.add_get("/metrics", scrape)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        except OSError as problem:
            raise InvalidInput(f"--http {address} cannot be served ({problem.strerror}); give another port") from None
        yield
    finally:
        await runner.cleanup()
