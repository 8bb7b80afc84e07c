"""Where etcd is: its endpoints, one gRPC channel for each, and which of them is asked next.

We choose the endpoint, not gRPC: with one channel per endpoint a host name and its certificate are checked as they stand, a
timeout sends the *next* call elsewhere, and a frozen member costs one timeout. A target with several addresses and round_robin
takes only address literals, and a certificate override for all of them. Clients start at a random endpoint, so that a fleet of them does
not begin at the same member. The class serves asyncio channels and blocking ones, the keeper's; an object of it is used by one thread.
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
    ("grpc.enable_retries", 0),  # gRPC may send a call again by itself; a transaction leaves once
    ("grpc.keepalive_time_ms", 10_000),  # etcd cuts connections that are pinged more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # without it a frozen peer is noticed after 70 s instead of 13 (measured)
    ("grpc.http2.max_pings_without_data", 0),  # an idle watch is pinged for as long as it lives, not twice
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also how long one attempt to connect may hang
    ("grpc.max_reconnect_backoff_ms", 2_000),  # after a long outage a client is back within 2 s, by default within 120
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),  # a restarted pod has a new address; by default 30 s stale
    ("grpc.enable_http_proxy", 0),  # a proxy set for the process is for other traffic
    ("grpc.max_receive_message_length", -1),  # a reply beyond it would fail for ever; requests bound their replies
    ("grpc.use_local_subchannel_pool", 1),  # the keeper has a connection of its own, behind no large reply
)

NEEDS_LEADER: Final = ("hasleader", "true")
"""Metadata: a member that has lost the others refuses at once, or ends the stream, instead of keeping us waiting."""

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+):\d{1,5}")


@dataclass(frozen=True)
class Tls:
    """Files in PEM format. They are read again when a connection fails, so a certificate may be renewed in place."""

    ca: Path | None = None
    """Who may have signed etcd's certificate; None: the roots that gRPC ships."""
    cert: Path | None = None
    """Our own certificate chain; etcd may take its common name as the user."""
    key: Path | None = None
    server_name: str = ""
    """The name in etcd's certificate, where it is not the endpoint's."""

    def read(self) -> tuple[bytes | None, ...]:
        """The files' content: authorities, key, chain."""
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
    """The endpoints, their channels (made when first used), and the one that is asked at the moment."""

    def __init__(self, addresses: Sequence[str], tls: Tls | None, connect: Connect[C]) -> None:
        for address in addresses:
            if not _ADDRESS.fullmatch(address):
                raise InvalidInput(f"the etcd endpoint {address!r} is not of the form host:port")
        if not addresses:
            raise InvalidInput("no etcd endpoint is given: name at least one as host:port")
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
        """Ask another one from now on, unless somebody has already moved on."""
        if self._addresses[self._index] == endpoint.address:
            self._index = (self._index + 1) % len(self._addresses)
        if self._open.get(endpoint.address) is endpoint and self._renewed(endpoint):
            # Its calls may still be under way: it is closed with the rest.
            self._retired.append(endpoint.channel)
            self.forget(endpoint)

    def forget(self, endpoint: Endpoint[C]) -> None:
        """Its next channel is a new one, with a connection of its own; this one is the caller's to close."""
        if self._open.get(endpoint.address) is endpoint:
            del self._open[endpoint.address]

    def drop(self) -> list[C]:
        """All channels ever made, for their owner to close."""
        channels = [each.channel for each in self._open.values()] + self._retired
        self._open, self._retired = {}, []
        return channels

    def _renewed(self, endpoint: Endpoint[C]) -> bool:
        try:
            return self._tls is not None and self._tls.read() != endpoint.material
        except InvalidInput:
            return False  # in the middle of being replaced: the next failure looks again

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
