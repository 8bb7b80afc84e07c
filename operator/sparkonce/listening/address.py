"""Where a process serves HTTP, with which certificate, and until when."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkonce.errors import InvalidInput

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger(__name__)

MAX_PORT = 65535
CERTIFICATE = 20.0
"""Seconds between checks of the certificate files, which are renewed days before they expire."""
BACKLOG = 2048


def host_and_port(text: str) -> tuple[str, int] | None:
    """The parts of HOST:PORT, without the brackets of an IPv6 address; None: it is something else."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        return None
    return host.strip("[]"), int(port)


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
        at = host_and_port(address)
        if at is None:
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
        return cls(host=at[0], port=at[1], certificate=certificate, key=key, client_ca=client_ca)

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

    def load(self, config: uvicorn.Config) -> None:
        """Loads application and certificate.

        Raises:
            InvalidInput: the certificate cannot be used.
        """
        try:
            config.load()
        except OSError as problem:  # also of TLS
            raise InvalidInput(f"the certificate {self.certificate} cannot be used: {problem}") from None

    async def renewed(self, context: ssl.SSLContext | None) -> None:
        """Reloads a renewed certificate for new connections until it is cancelled; keeps the previous one while the new one cannot be read.

        context: the server's; None: plain HTTP, and nothing to do."""
        if self.certificate is None or self.key is None or context is None:
            return
        files = self.certificate, self.key
        known = [file.stat().st_mtime_ns for file in files]
        while True:
            await asyncio.sleep(CERTIFICATE)
            try:
                found = [file.stat().st_mtime_ns for file in files]
                if found != known:
                    context.load_cert_chain(*files)
                    known = found
                    log.info("the certificate was renewed")
            except OSError as problem:
                log.warning("the renewed certificate cannot be used yet: %s", problem)


def first_of(signals: Sequence[signal.Signals], *, drain: float) -> asyncio.Event:
    """Set by the first signal; a second one has its default effect. `drain`: seconds for which requests are still taken, for the log."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        log.info("%s: shutting down; no new requests after %g s", number.name, drain)
        stop.set()
        for each in signals:
            loop.remove_signal_handler(each)

    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
    return stop
