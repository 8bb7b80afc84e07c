"""The life of a gateway as a process: its server, what runs beside it, and how it ends.

On SIGTERM it says that it is not ready and withdraws its announcement, goes on answering until whoever routes to it has noticed
(`drain`), finishes what was begun, and ends. Nothing is lost when it is killed instead: a request that was not answered is repeated
elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from sparkonce.errors import InvalidInput
from sparkonce.gateway.announcing import Announcer
from sparkonce.gateway.readiness import Readiness

log = logging.getLogger(__name__)

MAX_PORT = 65535
KEPT = 75
"""Seconds for which an idle connection is kept: drivers beat every few seconds, and a handshake costs more than a beat."""
FINISH = 10
"""Seconds for requests under way when it ends: longer than any call of ours takes."""
CERTIFICATE = 20.0
"""Seconds between two looks at the certificate's files: they are renewed days before they expire."""
BACKLOG = 2048


@dataclass(frozen=True, kw_only=True)
class Listening:
    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def of(cls, address: str, *, certificate: Path | None = None, key: Path | None = None) -> Listening:
        """InvalidInput."""
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
            raise InvalidInput(f"--listen is {address!r}; give HOST:PORT, such as 0.0.0.0:8443")
        if (certificate is None) != (key is None):
            raise InvalidInput("--tls-cert and --tls-key belong together; give both, or neither for plain HTTP")
        for file in filter(None, (certificate, key)):
            if not file.is_file():
                raise InvalidInput(f"there is no file {file}; --tls-cert and --tls-key name PEM files")
        return cls(host=host.strip("[]"), port=int(port), certificate=certificate, key=key)

    @property
    def tls(self) -> bool:
        return self.certificate is not None

    @property
    def own(self) -> str:
        """Where this process reaches itself."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104 - compared

    def socket(self) -> socket.socket:
        """Bound and listening. InvalidInput: somebody has the port."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # The protocol is named: asyncio turns Nagle's algorithm off for such sockets only, and with it an answer takes 40 ms longer.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((self.host, self.port))
            made.listen(BACKLOG)
            return made
        except OSError as problem:
            made.close()
            raise InvalidInput(
                f"--listen {self.host}:{self.port} cannot be served ({problem.strerror}); give another port"
            ) from None


class Server(uvicorn.Server):
    """uvicorn's own handling of signals ends the process by the signal that it got; here they mean a graceful end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: FastAPI,
    listening: Listening,
    *,
    readiness: Readiness,
    announcer: Announcer,
    signals: Sequence[signal.Signals],
    drain: float,
) -> None:
    """Until a signal; a second one ends the process as signals do. InvalidInput."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEPT,
        timeout_graceful_shutdown=FINISH,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
        h11_max_incomplete_event_size=64 * 1024,
    )
    try:
        config.load()
    except OSError as problem:
        raise InvalidInput(f"the certificate {listening.certificate} cannot be used: {problem}") from None
    server = Server(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(number: signal.Signals) -> None:
        log.info("%s: no more requests after %g s", number.name, drain)
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for number in signals:
        loop.add_signal_handler(number, told, number)
    beside = [asyncio.create_task(readiness.run()), asyncio.create_task(_renewed(config, listening))]
    serving = asyncio.create_task(server.serve([listening.socket()]))
    stopping = asyncio.create_task(stop.wait())
    announcer.start()
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        readiness.ending = True
        await asyncio.to_thread(announcer.stop)
        if not serving.done():
            await asyncio.sleep(drain)
            server.should_exit = True
        await serving
    finally:
        for task in (*beside, stopping):
            task.cancel()
        await asyncio.gather(*beside, stopping, return_exceptions=True)


async def _renewed(config: uvicorn.Config, listening: Listening) -> None:
    """New connections use a renewed certificate; one that cannot be read leaves the one before."""
    if listening.certificate is None or listening.key is None or config.ssl is None:
        return
    files = listening.certificate, listening.key
    known = [file.stat().st_mtime_ns for file in files]
    while True:
        await asyncio.sleep(CERTIFICATE)
        try:
            found = [file.stat().st_mtime_ns for file in files]
            if found != known:
                config.ssl.load_cert_chain(*files)
                known = found
                log.info("the certificate was renewed")
        except OSError as problem:
            log.warning("the renewed certificate cannot be used yet: %s", problem)
