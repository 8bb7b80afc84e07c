"""etcd's endpoints: one gRPC channel each, and the choice of the endpoint to use next.

This module balances, not gRPC: with one channel per endpoint, each host name is verified against its own certificate, a timeout moves
the *next* call to another endpoint, and a frozen member costs one timeout. A gRPC target with several addresses and round_robin takes
only IP literals, and one certificate override for all of them. Clients start at a random endpoint to spread load over the members.
`Endpoints` serves asyncio channels and the keeper's blocking ones; one instance is used by one thread.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import grpc

from sparkonce.errors import InvalidInput

C = TypeVar("C")
Options = Sequence[tuple[str, int | str]]
Connect = Callable[[str, grpc.ChannelCredentials | None, Options], C]

RANDOM: Final = random.SystemRandom()

OPTIONS: Final[Options] = (
    ("grpc.enable_retries", 0),  # gRPC may resend calls on its own; a transaction must be sent once
    ("grpc.keepalive_time_ms", 10_000),  # etcd closes connections that are pinged more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # without it a frozen peer is noticed after 70 s instead of 13 (measured)
    ("grpc.http2.max_pings_without_data", 0),  # unlimited: the default stops pinging an idle watch after two
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also the timeout of one connection attempt
    ("grpc.max_reconnect_backoff_ms", 2_000),  # after a long outage a client reconnects within 2 s; the default is 120
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),  # a restarted pod has a new address; the default is 30 s
    ("grpc.enable_http_proxy", 0),  # a proxy configured for the process is meant for other traffic
    (
        "grpc.max_receive_message_length",
        -1,
    ),  # unlimited: a larger reply would always fail, and requests bound their replies
    ("grpc.use_local_subchannel_pool", 1),  # gives the keeper its own connection, never queued behind a large reply
)

NEEDS_LEADER: Final = ("hasleader", "true")
"""Metadata: a member without a quorum refuses at once, or ends the stream, instead of blocking."""

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+):\d{1,5}")


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files. They are re-read when a connection fails, so certificates may be renewed in place."""

    ca: Path | None = None
    """CA bundle that etcd's certificate is verified against; None: gRPC's default roots."""
    cert: Path | None = None
    """Client certificate chain; etcd may use its common name as the user."""
    key: Path | None = None
    server_name: str = ""
    """Name expected in etcd's certificate, if it differs from the endpoint's host."""

    def read(self) -> tuple[bytes | None, ...]:
        """Contents of the files: CA bundle, key, certificate chain.

        Raises:
            InvalidInput: a file cannot be read.
        """
        try:
            return tuple(path.read_bytes() if path else None for path in (self.ca, self.key, self.cert))
        except OSError as error:
            raise InvalidInput(f"the TLS file {error.filename} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, eq=False)
class Endpoint(Generic[C]):
    address: str
    channel: C
    material: tuple[bytes | None, ...]


class Endpoints(Generic[C]):
    """The endpoints, their channels (created on first use), and the current one."""

    def __init__(self, addresses: Sequence[str], tls: Tls | None, connect: Connect[C]) -> None:
        for address in addresses:
            if not _ADDRESS.fullmatch(address):
                raise InvalidInput(f"the etcd endpoint {address!r} is not of the form host:port")
        if not addresses:
            raise InvalidInput("no etcd endpoint is given; name at least one as host:port")
        self._addresses = tuple(addresses)
        self._tls = tls
        self._connect = connect
        self._open: dict[str, Endpoint[C]] = {}
        self._retired: list[C] = []
        self._index = RANDOM.randrange(len(self._addresses))

    @property
    def several(self) -> bool:
        return len(self._addresses) > 1

    def current(self) -> Endpoint[C]:
        address = self._addresses[self._index]
        if address not in self._open:
            self._open[address] = self._make(address)
        return self._open[address]

    def failed(self, endpoint: Endpoint[C]) -> None:
        """Moves on to the next endpoint, unless another call has already done so."""
        if self._addresses[self._index] == endpoint.address:
            self._index = (self._index + 1) % len(self._addresses)
        if self._open.get(endpoint.address) is endpoint and self._renewed(endpoint):
            # It may have calls in flight, so it is closed later, with the rest.
            self._retired.append(endpoint.channel)
            self.forget(endpoint)

    def forget(self, endpoint: Endpoint[C]) -> None:
        """The next use opens a new channel and connection; the caller closes this one."""
        if self._open.get(endpoint.address) is endpoint:
            del self._open[endpoint.address]

    def drop(self) -> list[C]:
        """Removes and returns all open and retired channels; the caller closes them."""
        channels = [each.channel for each in self._open.values()] + self._retired
        self._open, self._retired = {}, []
        return channels

    def _renewed(self, endpoint: Endpoint[C]) -> bool:
        try:
            return self._tls is not None and self._tls.read() != endpoint.material
        except InvalidInput:
            return False  # being replaced right now: the next failure checks again

    def _make(self, address: str) -> Endpoint[C]:
        material: tuple[bytes | None, ...] = ()
        credentials, options = None, list(OPTIONS)
        if self._tls is not None:
            material = self._tls.read()
            credentials = grpc.ssl_channel_credentials(*material)
            if self._tls.server_name:
                options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        return Endpoint(address, self._connect(f"dns:///{address}", credentials, options), material)


def metadata(token: str | None, *, needs_leader: bool = True) -> tuple[tuple[str, str], ...]:
    login = (("token", token),) if token else ()
    return (NEEDS_LEADER, *login) if needs_leader else login


def connect_async(target: str, credentials: grpc.ChannelCredentials | None, options: Options) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options)
    return grpc.aio.secure_channel(target, credentials, options)


def connect_blocking(target: str, credentials: grpc.ChannelCredentials | None, options: Options) -> grpc.Channel:
    if credentials is None:
        return grpc.insecure_channel(target, options)
    return grpc.secure_channel(target, credentials, options)
