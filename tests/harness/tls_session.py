"""An aiohttp session to servers with our CA that has closed all sockets when `close` returns.

aiohttp leaves connections to the event loop to end, and a loop that its thread closes right afterwards ends with open sockets, which Python
then reports in a later, unrelated test. So this session knows its sockets and waits for them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from harness.patience import stretched

CLOSE_TIMEOUT = 2.0
"""Seconds for connections to end; a frozen server never closes its side."""
LOOK = 0.002
"""Poll interval in seconds."""


@asynccontextmanager
async def tls_session(ca: Path, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """`options` are ClientSession's."""
    sockets: list[socket.socket] = []

    def made(address: Any) -> socket.socket:
        family, kind, protocol, _, _ = address
        new = socket.socket(family=family, type=kind, proto=protocol)
        new.setblocking(False)
        sockets[:] = [*(each for each in sockets if each.fileno() != -1), new]
        return new

    trusted = ssl.create_default_context(cafile=str(ca))
    connector = aiohttp.TCPConnector(ssl=trusted, limit=0, socket_factory=made)
    try:
        async with aiohttp.ClientSession(connector=connector, **options) as session:
            yield session
    finally:
        deadline = time.monotonic() + stretched(CLOSE_TIMEOUT)
        while any(each.fileno() != -1 for each in sockets) and time.monotonic() < deadline:  # noqa: ASYNC110 # sockets have no event for it
            await asyncio.sleep(LOOK)
