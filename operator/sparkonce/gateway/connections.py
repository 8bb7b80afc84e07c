"""Which connections a gateway keeps, and for how long each part of a request may take: decisions only, no sockets.

A client that sends half a request, drips it byte by byte or never reads its answer occupies only a connection, until the next part of the
request is overdue. A client that is at its limit and opens another connection loses the oldest one on which the gateway waits for it; when
the gateway is full, the client with the most connections loses one. So the newest request is let in, a probe of `/readyz` too, and a client
that floods the gateway harms only itself.

Refusing the newest connection was rejected: the first clients to connect would keep all others out, health checks among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

HEAD = 10.0
"""Seconds from a connection's begin, or a request's first byte, to the end of its headers; the TLS handshake included."""
BODY = 20.0
"""Seconds from the headers to the end of the body: longer than the review of a token and the gateway's own limit for a body (408) take."""
LINGER = 5.0
"""Seconds in which a client that was answered early may end its body: closed at once, it would see a reset instead of the answer."""
ANSWER = 120.0
"""Seconds for an answer: longer than any route takes, so that it ends only connections that a defect left open."""
KEPT = 75
"""Seconds for which an idle connection is kept: drivers send heartbeats every few seconds, and a TLS handshake costs more than one."""
CLOSE = 10.0
"""Seconds for the last bytes of an answer to leave, once the connection is to be closed."""
UNREAD = 20.0
"""Seconds for which a client may not read what is sent to it."""


class ConnectionPhase(StrEnum):
    HEAD = "head"
    BODY = "body"
    LINGER = "linger"
    """Answered before its body was complete."""
    ANSWER = "answer"
    IDLE = "idle"
    CLOSE = "close"


SECONDS: Mapping[ConnectionPhase, float] = {
    ConnectionPhase.HEAD: HEAD,
    ConnectionPhase.BODY: BODY,
    ConnectionPhase.LINGER: LINGER,
    ConnectionPhase.ANSWER: ANSWER,
    ConnectionPhase.IDLE: KEPT + CLOSE,  # the server closes it after KEPT; this one aborts what does not close
    ConnectionPhase.CLOSE: CLOSE,
}


class ClosedFor(StrEnum):
    """Why the gateway closed a connection by itself."""

    OVERDUE = "overdue"
    ROOM = "room"
    """To make room for a newer one."""
    REFUSED = "refused"
    """All others were being answered."""


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """How many connections may be open at once."""

    total: int = 1000
    """Of one gateway process; each takes a file descriptor and some 100 KB with TLS."""
    per_client: int = 200
    """From one address. A driver has two or three; behind a proxy or a NAT many drivers share an address."""


class Connection:
    """One accepted connection: its client, and what it waits for."""

    def __init__(self, client: str, now: float, abort: Callable[[], object]) -> None:
        """`abort`: closes it at once, whatever its client does."""
        self.client, self.abort = client, abort
        self.phase, self.since = ConnectionPhase.HEAD, now
        self.unread_since: float | None = None
        """Since when the client does not read; None while it does."""

    def enter(self, phase: ConnectionPhase, now: float) -> None:
        """Begins a phase. Continuing a phase does not extend its time, so dripping bytes gains nothing."""
        if phase is not self.phase:
            self.phase, self.since = phase, now

    def overdue(self, now: float) -> bool:
        unread = self.unread_since is not None and now - self.unread_since >= UNREAD
        return unread or now - self.since >= SECONDS[self.phase]

    @property
    def waits_for_client(self) -> bool:
        return self.phase is not ConnectionPhase.ANSWER or self.unread_since is not None


class Connections:
    """The open connections of one process."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._of: dict[str, dict[Connection, None]] = {}
        """By client; the oldest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Connection]:
        """A snapshot, so that connections may leave meanwhile."""
        return iter([each for mine in self._of.values() for each in mine])

    def room_for(self, client: str) -> tuple[bool, Connection | None]:
        """Whether a new connection of this client may be kept, and which one has to leave for it."""
        mine = self._of.get(client, {})
        if len(mine) >= self.limits.per_client:
            victim = _oldest(mine)
            return victim is not None, victim
        if self._count >= self.limits.total:
            victim = self.oldest_of_the_largest()
            return victim is not None, victim
        return True, None

    def oldest_of_the_largest(self) -> Connection | None:
        """The connection to close when the process has too many: the oldest of the client with the most."""
        for mine in sorted(self._of.values(), key=len, reverse=True):
            if (victim := _oldest(mine)) is not None:
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


def _oldest(connections: Mapping[Connection, None]) -> Connection | None:
    """The oldest that the gateway waits for; if there is none, the oldest idle one."""
    waiting = [each for each in connections if each.waits_for_client]
    return next((each for each in waiting if each.phase is not ConnectionPhase.IDLE), waiting[0] if waiting else None)
