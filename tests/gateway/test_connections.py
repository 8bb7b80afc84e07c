"""Which connection is closed when there are too many, and when a connection is overdue."""

from __future__ import annotations

import resource

import pytest

from sparkonce.gateway.connections import (
    BODY,
    CLOSE,
    HEAD,
    KEPT,
    UNREAD,
    Connection,
    ConnectionLimits,
    ConnectionPhase,
    Connections,
)
from sparkonce.gateway.serving import OTHER_FILES, fitting


def opened(connections: Connections, client: str, phase: ConnectionPhase = ConnectionPhase.HEAD) -> Connection:
    made = Connection(client, 0.0, lambda: None)
    made.enter(phase, 0.0)
    connections.enter(made)
    return made


def test_a_client_that_has_enough_loses_its_own_oldest() -> None:
    """A client at its limit loses its own oldest connection: first one with an unfinished request, then an idle one, never one that is
    being answered. If it has no other, its new connection is refused."""
    connections = Connections(ConnectionLimits(total=100, per_client=3))
    other = opened(connections, "b")
    answered, idle, half = (
        opened(connections, "a", each) for each in (ConnectionPhase.ANSWER, ConnectionPhase.IDLE, ConnectionPhase.BODY)
    )
    assert connections.room_for("a") == (True, half)
    assert connections.leave(half)
    opened(connections, "a", ConnectionPhase.ANSWER)
    assert connections.room_for("a") == (True, idle)
    assert connections.leave(idle)
    opened(connections, "a", ConnectionPhase.ANSWER)
    assert connections.room_for("a") == (False, None)
    answered.unread_since = 1.0
    assert connections.room_for("a") == (True, answered)
    assert connections.room_for("b") == (True, None)
    assert other in list(connections)


def test_a_full_gateway_takes_from_the_largest() -> None:
    """When all places are taken, the client with the most connections loses its oldest; a client with a single one keeps it."""
    connections = Connections(ConnectionLimits(total=4, per_client=3))
    single = opened(connections, "probe")
    first = opened(connections, "flood")
    for _ in range(2):
        opened(connections, "flood")
    assert connections.room_for("new") == (True, first)
    assert connections.leave(first)
    assert not connections.leave(first), "it leaves once"
    assert len(connections) == 3
    assert connections.room_for("new") == (True, None)
    opened(connections, "new")
    assert connections.room_for("another")[1] not in (None, single)


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [
        (ConnectionPhase.HEAD, HEAD),
        (ConnectionPhase.BODY, BODY),
        (ConnectionPhase.IDLE, KEPT + CLOSE),
        (ConnectionPhase.CLOSE, CLOSE),
    ],
)
def test_a_phase_has_its_time_and_more_of_it_is_no_new_one(phase: ConnectionPhase, seconds: float) -> None:
    """A phase ends at its deadline: bytes that drip in do not renew it, and only the next phase has a new one."""
    connection = Connection("a", 0.0, lambda: None)
    connection.enter(phase, 0.0)
    connection.enter(phase, seconds - 0.1)
    assert not connection.overdue(seconds - 0.1)
    assert connection.overdue(seconds)
    connection.enter(ConnectionPhase.ANSWER, seconds)
    assert not connection.overdue(seconds + 1)


def test_a_client_that_does_not_read_is_overdue_in_any_phase() -> None:
    """A client that does not read its answer is as overdue as one that never finishes its request."""
    connection = Connection("a", 0.0, lambda: None)
    connection.enter(ConnectionPhase.ANSWER, 0.0)
    connection.unread_since = 1.0
    assert not connection.overdue(UNREAD)
    assert connection.overdue(UNREAD + 1)


def test_the_limit_fits_the_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The soft limit of open files is raised as far as the hard one allows; what is missing then is taken from the number of
    connections."""
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: set_to.append(both))
    for soft, hard, total in ((1024, 65536, 2000), (1024, 1024, 768), (8192, 8192, 2000), (-1, -1, 2000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, both=(soft, hard): both)
        assert fitting(ConnectionLimits(total=2000)).total == total
    assert set_to == [(2000 + OTHER_FILES, 65536), (1024, 1024)]
