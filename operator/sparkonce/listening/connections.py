"""Which connections a server keeps, and for how long each part of a request may take: decisions only, no sockets.

A client that sends half a request, drips it byte by byte or never reads its answer occupies only a connection, until the next part of the
request is overdue. A client that is at its limit and opens another connection loses one on which the server waits for it; when the server
is full, the client with the most connections loses one. So the newest request is let in, a probe of `/readyz` too, and a client that floods
the server harms only itself.

Refusing the newest connection was rejected: the first clients to connect would keep all others out, health checks among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

PATIENT = 1.0
"""Seconds that a server at its limit leaves a client for the rest of a request: one that has just connected is no slow one."""


@dataclass(frozen=True, kw_only=True)
class ConnectionTimes:
    """Seconds for each part of a request. The defaults are the gateway's."""

    head: float = 10.0
    """From a connection's begin, or a request's first byte, to the end of its headers; the TLS handshake included."""
    body: float = 20.0
    """From the headers to the end of the body: longer than the review of a token and the gateway's own limit for a body (408) take."""
    body_rate: float = math.inf
    """Bytes of a body that give it one second more, until it has `body` again. Infinite: its time is fixed. Time in which the application
    does not take what has arrived is not the client's."""
    linger: float = 5.0
    """In which a client that was answered early may end its body: closed at once, it would see a reset instead of the answer."""
    answer: float = 120.0
    """For an answer: longer than any route takes, so that it ends only connections that a defect left open."""
    kept: int = 75
    """For which an idle connection is kept: drivers send heartbeats every few seconds, a TLS handshake costs more than one, and load
    balancers reuse connections for 60 s."""
    close: float = 10.0
    """For the last bytes of an answer to leave, once the connection is to be closed."""
    unread: float = 20.0
    """For which a client may not read what is sent to it."""

    def of(self, phase: ConnectionPhase) -> float:
        if phase is ConnectionPhase.IDLE:
            return self.kept + self.close  # uvicorn closes it after `kept`; this one aborts what does not close
        return float(getattr(self, phase))


class ConnectionPhase(StrEnum):
    HEAD = "head"
    BODY = "body"
    LINGER = "linger"
    """Answered before its body was complete."""
    ANSWER = "answer"
    IDLE = "idle"
    CLOSE = "close"


class ClosedFor(StrEnum):
    """Why a server closed a connection by itself."""

    OVERDUE = "overdue"
    ROOM = "room"
    """To make room for a newer one."""
    REFUSED = "refused"
    """All others were being answered."""


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """How many connections may be open at once."""

    total: int
    """Of one process; each takes a file descriptor and some 100 KB with TLS."""
    per_client: int
    """From one address. Behind a proxy, a NAT or a load balancer many clients share an address."""


class Connection:
    """One accepted connection: its client, and what it waits for."""

    def __init__(self, client: str, now: float, abort: Callable[[], object], times: ConnectionTimes) -> None:
        """`abort`: closes it at once, whatever its client does."""
        self.client, self.abort, self._times = client, abort, times
        self.phase, self.since = ConnectionPhase.HEAD, now
        self.unread_since: float | None = None
        """Since when the client does not read; None while it does."""

    def enter(self, phase: ConnectionPhase, now: float) -> None:
        """Begins a phase. Continuing a phase does not extend its time, so dripping bytes gains nothing."""
        if phase is not self.phase:
            self.phase, self.since = phase, now

    def received(self, size: int, now: float) -> None:
        """Bytes have arrived: those of a body give it more time."""
        if self.phase is ConnectionPhase.BODY:
            self.since = min(now, self.since + size / self._times.body_rate)

    def overdue(self, now: float) -> bool:
        unread = self.unread_since is not None and now - self.unread_since >= self._times.unread
        return unread or now - self.since >= self._times.of(self.phase)

    @property
    def waits_since(self) -> float | None:
        """Since when the server waits for the client; None: the client waits for the server."""
        if self.unread_since is not None:
            return self.unread_since
        return None if self.phase is ConnectionPhase.ANSWER else self.since


class Connections:
    """The open connections of one process."""

    def __init__(self, limits: ConnectionLimits, times: ConnectionTimes) -> None:
        self.limits, self.times = limits, times
        self._of: dict[str, dict[Connection, None]] = {}
        """By client; the oldest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Connection]:
        """A snapshot, so that connections may leave meanwhile."""
        return iter([each for mine in self._of.values() for each in mine])

    def room_for(self, client: str, now: float) -> tuple[bool, Connection | None]:
        """Whether a new connection of this client may be kept, and which one has to leave for it."""
        mine = self._of.get(client, {})
        if len(mine) >= self.limits.per_client:
            victim = _slowest(mine, now)
            return victim is not None, victim
        if self._count >= self.limits.total:
            victim = self.slowest_of_the_largest(now)
            return victim is not None, victim
        return True, None

    def slowest_of_the_largest(self, now: float) -> Connection | None:
        """The connection to close when the process has too many: one of the client with the most."""
        for mine in sorted(self._of.values(), key=len, reverse=True):
            if (victim := _slowest(mine, now)) is not None:
                return victim
        return None

    def enter(self, connection: Connection) -> None:
        self._of.setdefault(connection.client, {})[connection] = None
        self._count += 1

    def leave(self, connection: Connection) -> bool:
        """Removes a connection. False: it was removed before."""
        mine = self._of.get(connection.client, {})
        if connection not in mine:
            return False
        del mine[connection]
        self._count -= 1
        if not mine:
            del self._of[connection.client]
        return True


def _slowest(connections: Mapping[Connection, None], now: float) -> Connection | None:
    """The oldest of those that are late with a request or with reading their answer; else the oldest idle one, whose client loses nothing;
    else the oldest of those that the server waits for."""
    waiting = [(each, since) for each in connections if (since := each.waits_since) is not None]
    busy = [(each, since) for each, since in waiting if each.phase is not ConnectionPhase.IDLE]
    late = (each for each, since in busy if now - since >= PATIENT)
    idle = (each for each, _ in waiting if each.phase is ConnectionPhase.IDLE)
    return next(late, None) or next(idle, None) or (busy[0][0] if busy else None)
