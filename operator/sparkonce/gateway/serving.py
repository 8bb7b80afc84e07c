"""Lifecycle of a gateway process: HTTP server, background tasks, graceful shutdown.

On SIGTERM it reports not ready and withdraws its announcement, keeps answering for `drain` seconds until load balancers have removed it,
finishes requests in flight, and exits. SIGKILL loses nothing: clients repeat unanswered requests at another replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from sparkonce.errors import InvalidInput
from sparkonce.gateway.accepting import Acceptor, OnClosed, TimedProtocol
from sparkonce.gateway.announcing import Announcer
from sparkonce.gateway.connections import KEPT, Connection, ConnectionLimits, Connections
from sparkonce.gateway.gate import HEAD_BYTES
from sparkonce.gateway.readiness import Readiness

log = logging.getLogger(__name__)

MAX_PORT = 65535
FINISH = 10
"""Seconds for requests in flight at shutdown: longer than the deadlines of the calls they make."""
CERTIFICATE = 20.0
"""Seconds between checks of the certificate files, which are renewed days before they expire."""
BACKLOG = 2048
OTHER_FILES = 256
"""File descriptors for everything but clients' connections: etcd, the API server, outputs that a decision reads."""


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Listen address and TLS files."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    """CA of client certificates, read once; None: none is asked for."""

    @classmethod
    def of(
        cls, address: str, *, certificate: Path | None = None, key: Path | None = None, client_ca: Path | None = None
    ) -> Listening:
        """Parses HOST:PORT and checks that the files exist.

        Raises:
            InvalidInput: a malformed address, one file without the other, a missing or unusable file.
        """
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
            raise InvalidInput(f"--listen is {address!r}; give HOST:PORT, such as 0.0.0.0:8443")
        if (certificate is None) != (key is None):
            raise InvalidInput("--tls-cert and --tls-key belong together; give both, or neither for plain HTTP")
        for file in filter(None, (certificate, key)):
            if not file.is_file():
                raise InvalidInput(f"there is no file {file}; --tls-cert and --tls-key take PEM files")
        if client_ca is not None:
            if certificate is None:
                raise InvalidInput("--client-ca needs TLS: give --tls-cert and --tls-key, too")
            try:
                ssl.create_default_context(cafile=str(client_ca))
            except OSError as problem:  # also of TLS
                raise InvalidInput(f"--client-ca {client_ca} is no PEM file with a CA: {problem}") from None
        return cls(host=host.strip("[]"), port=int(port), certificate=certificate, key=key, client_ca=client_ca)

    @property
    def tls(self) -> bool:
        return self.certificate is not None

    @property
    def own(self) -> str:
        """The host under which this process reaches itself."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104 - compared

    def socket(self) -> socket.socket:
        """A bound, listening socket.

        Raises:
            InvalidInput: the address cannot be bound.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # With an explicit protocol: asyncio sets TCP_NODELAY only on such sockets, and without it a response takes 40 ms longer.
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
    """uvicorn's server, with connections accepted by `accepting.py`.

    Disables uvicorn's signal handling, which re-raises the signal after shutdown; `serve` exits gracefully instead.
    """

    def __init__(self, config: uvicorn.Config, connections: Connections, on_closed: OnClosed) -> None:
        super().__init__(config)
        self._open, self._on_closed = connections, on_closed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def protocol(connection: Connection) -> TimedProtocol:
            parts = {"config": self.config, "server_state": self.server_state, "app_state": {}}
            return TimedProtocol(connection, self._open.leave, **parts)

        self.servers = [
            Acceptor(each, protocol, connections=self._open, tls=self.config.ssl, on_closed=self._on_closed)  # type: ignore[misc]
            for each in sockets or ()  # uvicorn closes its servers and waits for that, and nothing else
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def fitting(limits: ConnectionLimits) -> ConnectionLimits:
    """The limits, reduced to the file descriptors that this process may open; raises its own soft limit where permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.total + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    total = max(1, soft - OTHER_FILES)
    log.warning("at most %d connections: this process may open %d files only (ulimit -n)", total, soft)
    return replace(limits, total=total)


async def serve(
    app: FastAPI,
    listening: Listening,
    *,
    readiness: Readiness,
    announcer: Announcer,
    signals: Sequence[signal.Signals],
    drain: float,
    connections: Connections,
    on_closed: OnClosed,
) -> None:
    """Serves until the first signal, then shuts down gracefully; a second signal has its default effect.

    Raises:
        InvalidInput: the certificate cannot be used, or the address cannot be bound.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,  # only the limit per client depends on an address, and it uses the connection's own
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEPT,
        timeout_graceful_shutdown=FINISH,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
        ssl_ca_certs=str(listening.client_ca) if listening.client_ca else None,
        # Optional: drivers have tokens, and probes neither.
        ssl_cert_reqs=ssl.CERT_OPTIONAL if listening.client_ca else ssl.CERT_NONE,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    try:
        config.load()
    except OSError as problem:
        raise InvalidInput(f"the certificate {listening.certificate} cannot be used: {problem}") from None
    server = Server(config, connections, on_closed)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        log.info("%s: shutting down; no new requests after %g s", number.name, drain)
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
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
    """Reloads a renewed certificate for new connections; keeps the previous one while the new one cannot be read."""
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
