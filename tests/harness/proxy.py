"""A TCP proxy in front of a server, which a test may tell to delay, hold or drop what goes through it, or to cut it off.

It stands for the network between a client and etcd or an API server: requests that arrive and whose replies do not (`replies =
DROP`), messages that arrive late (`requests = HOLD`, later PASS), a link on which nothing moves and nothing is closed (`both HOLD`), a
connection that breaks (`cut`), an address where nobody listens (`refuse`). It never looks into the bytes, so it serves TLS as well.
Its event loop runs in a thread of its own: the test may block.
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

TICK = 0.005
"""Seconds between two looks of a pump that holds: short beside any timeout of a test."""
CHUNK = 65536
ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER that turns a close into a reset: the other side gets an error at once instead of an orderly end."""


class Flow(StrEnum):
    PASS = "pass"
    HOLD = "hold"
    """Kept here, in order, until it may pass: a message that is late."""
    DROP = "drop"
    """Read and thrown away: a message that is lost. The connection is of no use afterwards."""


class Proxy:
    def __init__(self, target: str) -> None:
        self.requests = Flow.PASS
        self.replies = Flow.PASS
        self.delay = 0.0
        """Seconds that each chunk waits, in each direction."""
        self.refuse = False
        """New connections are reset at once."""
        self.cut_after: int | None = None
        """Resets all connections once, when so many more bytes of replies have passed."""
        self.lose = 0
        """So many of the next pieces of replies are thrown away, and their connections reset: answered, and nobody heard it."""
        self.connections = 0
        """How many were ever accepted."""
        self.requested = 0
        """Bytes of requests that arrived here, whatever became of them."""
        self.dropped = 0
        """Bytes of replies that were thrown away."""
        host, _, port = target.rpartition(":")
        self._target = (host.strip("[]"), int(port))
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
        """Of the requests that are held, the first piece arrives; what its sender said later (that it gave up) is lost."""
        self._may_pass = True

    def strand(self) -> None:
        """The connections of now carry nothing any more and are not closed; new ones work. For good: `heal` does not help them."""
        self._stranded.update(self._open)

    def heal(self) -> None:
        """Everything passes, also what was held."""
        self.requests = self.replies = Flow.PASS
        self.delay, self.refuse = 0.0, False

    def cut(self) -> None:
        """Resets all connections of now; done when this returns."""
        self._run(self._cut())

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(timeout=10)

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
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
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            self._reset(writer)
            return
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
def in_front_of(target: str) -> Iterator[Proxy]:
    """A proxy to `host:port`, gone afterwards."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
