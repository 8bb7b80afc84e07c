"""The two servers beside the measured proxy: the service that it stands before, and a forwarder that knows nothing of keys.

    python http_forwarder.py service PORT
    python http_forwarder.py forwarder PORT URL

The forwarder is the proxy's own `Upstream` behind the proxy's own server, so that the difference is the middleware, its ledger, and the
connection of its own that each request with a key gets.
"""

from __future__ import annotations

import sys

import uvicorn

from http_requests import BareOrders
from sparkonce.asgi import Asgi, Receive, Send
from sparkonce.proxy.upstream import Upstream


class ServedOrders(BareOrders):
    """The bare application as a server runs it. GET answers with the number of runs."""

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            text = str(self.runs).encode()
            headers = [(b"content-length", str(len(text)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": text})
            return
        await super().__call__(scope, receive, send)


def main(which: str, port: str, url: str = "") -> None:
    if which == "service":
        uvicorn.run(ServedOrders(), port=int(port), lifespan="off", log_level="warning")
    else:
        uvicorn.run(Upstream(url, timeout=60.0), port=int(port), lifespan="on", log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
