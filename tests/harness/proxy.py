"""A TCP proxy in front of a server that can delay, hold or drop data, or cut connections.

It stands for the network between a client and etcd or an API server: requests that arrive and whose replies do not (`replies =
DROP`), messages that arrive late (`requests = HOLD`, later PASS), a link on which nothing moves and nothing is closed (`both HOLD`), a
connection that breaks (`cut`), an address without a listener (`refuse`). It never looks into the bytes, so it works with TLS as well.
Its event loop runs in its own thread, so the test may block.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from harness.eventually import assert_eventually

TICK = 0.005
"""Poll interval in seconds while data is held: short compared with any timeout of a test."""
CHUNK = 65536
ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER value that turns a close into a reset: the other side gets an error at once instead of an orderly end."""


class Flow(StrEnum):
    PASS = "pass"
    HOLD = "hold"
    """Kept here, in order, until released: a late message."""
    DROP = "drop"
    """Read and discarded: a lost message. The connection is useless afterwards."""


class Proxy:
    def __init__(self, target: str, *others: str) -> None:
        """`others`: connected to, in order, while the target is not reachable, as a balancer does."""
        self.requests = Flow.PASS
        self.replies = Flow.PASS
        self.delay = 0.0
        """Seconds of delay for each chunk, in each direction."""
        self.refuse = False
        """Resets new connections at once."""
        self.cut_after: int | None = None
        """Resets all connections once, after this many more bytes of replies."""
        self.lose = 0
        """Number of next pieces of replies to discard with a reset of their connections: replies that were sent and never received."""
        self.connections = 0
        """Connections accepted so far."""
        self.requested = 0
        """Bytes of requests that arrived here, delivered or not."""
        self.dropped = 0
        """Bytes of replies that were discarded."""
        self._targets = [
            (host.strip("[]"), int(port)) for host, _, port in (each.rpartition(":") for each in (target, *others))
        ]
        self._open: set[asyncio.StreamWriter] = set()
        self._stranded: set[asyncio.StreamWriter] = set()
        self._may_pass = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy to {target}", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def black_hole(self) -> None:
        """Nothing moves in either direction, and nothing is closed."""
        self.requests = self.replies = Flow.HOLD

    def release_one(self) -> None:
        """Delivers the first piece of the held requests; what its sender sent later (that it gave up) is lost."""
        self._may_pass = True

    def strand(self) -> None:
        """Silences the current connections for good without closing them (`heal` does not revive them); new ones work."""
        self._stranded.update(self._open)

    def heal(self) -> None:
        """Lets everything pass, including held data."""
        self.requests = self.replies = Flow.PASS
        self.delay, self.refuse = 0.0, False

    def cut(self) -> None:
        """Resets all current connections; they are reset when this returns."""
        self._run(self._cut())

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, step: Coroutine[Any, Any, Any]) -> Any:
        done = asyncio.run_coroutine_threadsafe(step, self._loop)
        assert_eventually(done.done, 10, interval=TICK)
        return done.result()

    async def _close(self) -> None:
        for each in self._server.sockets:
            self._loop.remove_reader(each.fileno())
        await asyncio.sleep(
            0
        )  # accepted connections get their transports: a closed server has none for them (CPython 3.11)
        self._server.close()
        while True:  # a connection that was just accepted gets its task, and opens the next one, while others end
            await self._cut()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not others and not self._open:
                return
            await asyncio.sleep(
                0
            )  # each takes its first step: one that is cancelled before leaves its connection to nobody
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _cut(self) -> None:
        for writer in list(self._open):
            self._reset(writer)
        await asyncio.sleep(0)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        self._stranded.discard(writer)
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        if self.refuse:
            self._reset(writer)
            return
        connection = await self._connected()
        if connection is None:
            self._reset(writer)
            return
        there, back = connection
        self._open.add(back)
        pumps = [
            asyncio.create_task(self._pump(reader, back, of_replies=False)),
            asyncio.create_task(self._pump(there, writer, of_replies=True)),
        ]
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the proxy is closed
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self._reset(writer)
            self._reset(back)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for host, port in self._targets:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(host, port)
        return None

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, of_replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                self.requested += 0 if of_replies else len(data)
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._may_go(sink, of_replies=of_replies)
                if of_replies and self.lose > 0:
                    self.lose -= 1
                    self.dropped += len(data)
                    return
                if self._flow(of_replies=of_replies) is Flow.DROP:
                    self.dropped += len(data) if of_replies else 0
                    continue
                if self._may_pass and not of_replies:
                    self._may_pass, self.requests = False, Flow.DROP
                ends = of_replies and self._used_up(len(data))
                sink.write(data)
                await sink.drain()
                if ends:
                    await self._cut()
                    return

    async def _may_go(self, sink: asyncio.StreamWriter, *, of_replies: bool) -> None:
        while self._holds(sink, of_replies=of_replies):
            if self._may_pass and not of_replies:
                return
            await asyncio.sleep(TICK)

    def _holds(self, sink: asyncio.StreamWriter, *, of_replies: bool) -> bool:
        return sink in self._stranded or self._flow(of_replies=of_replies) is Flow.HOLD

    def _used_up(self, size: int) -> bool:
        if self.cut_after is None:
            return False
        self.cut_after -= size
        if self.cut_after > 0:
            return False
        self.cut_after = None
        return True

    def _flow(self, *, of_replies: bool) -> Flow:
        return self.replies if of_replies else self.requests


@contextmanager
def in_front_of(target: str, *others: str) -> Iterator[Proxy]:
    """A proxy to `host:port`, or to the first of these that is reachable; closed afterwards."""
    proxy = Proxy(target, *others)
    try:
        yield proxy
    finally:
        proxy.close()
