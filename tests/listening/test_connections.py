"""Which connection is closed when there are too many, and when a connection is overdue."""

from __future__ import annotations

import resource

import pytest

from sparkonce.listening.accepting import OTHER_FILES, fitting
from sparkonce.listening.connections import (
    PATIENT,
    Connection,
    ConnectionLimits,
    ConnectionPhase,
    Connections,
    ConnectionTimes,
)

TIMES = ConnectionTimes()
NOW = 10.0


def at_most(total: int, per_client: int) -> Connections:
    return Connections(ConnectionLimits(total=total, per_client=per_client), TIMES)


def single() -> Connection:
    return Connection("a", 0.0, lambda: None, TIMES)


def opened(
    connections: Connections, client: str, phase: ConnectionPhase = ConnectionPhase.HEAD, since: float = 0.0
) -> Connection:
    made = Connection(client, since, lambda: None, TIMES)
    made.enter(phase, since)
    connections.enter(made)
    return made


def test_a_client_that_has_enough_loses_its_own_oldest() -> None:
    """A client at its limit loses its own oldest connection: first one with an unfinished request, then an idle one, never one that is
    being answered. If it has no other, its new connection is refused."""
    connections = at_most(100, per_client=3)
    other = opened(connections, "b")
    answered, idle, half = (
        opened(connections, "a", each) for each in (ConnectionPhase.ANSWER, ConnectionPhase.IDLE, ConnectionPhase.BODY)
    )
    assert connections.room_for("a", NOW) == (True, half)
    assert connections.leave(half)
    opened(connections, "a", ConnectionPhase.ANSWER)
    assert connections.room_for("a", NOW) == (True, idle)
    assert connections.leave(idle)
    opened(connections, "a", ConnectionPhase.ANSWER)
    assert connections.room_for("a", NOW) == (False, None)
    answered.unread_since = 1.0
    assert connections.room_for("a", NOW) == (True, answered)
    assert connections.room_for("b", NOW) == (True, None)
    assert other in list(connections)


def test_a_full_server_takes_from_the_largest() -> None:
    """When all places are taken, the client with the most connections loses its oldest; a client with a single one keeps it."""
    connections = at_most(4, per_client=3)
    probe = opened(connections, "probe")
    first = opened(connections, "flood")
    for _ in range(2):
        opened(connections, "flood")
    assert connections.room_for("new", NOW) == (True, first)
    assert connections.leave(first)
    assert not connections.leave(first), "it leaves once"
    assert len(connections) == 3
    assert connections.room_for("new", NOW) == (True, None)
    opened(connections, "new")
    assert connections.room_for("another", NOW)[1] not in (None, probe)


def test_who_has_just_connected_is_no_slow_client() -> None:
    """At a limit, idle connections make room before a client that has had no time to send its request; that one goes only if there is no
    other."""
    connections = at_most(3, per_client=3)
    new = opened(connections, "a", since=NOW)
    idle = opened(connections, "a", ConnectionPhase.IDLE)
    opened(connections, "a", ConnectionPhase.ANSWER)
    assert connections.room_for("b", NOW) == (True, idle)
    assert connections.room_for("b", NOW + PATIENT) == (True, new)
    connections.leave(idle)
    opened(connections, "a", ConnectionPhase.ANSWER)
    assert connections.room_for("b", NOW) == (True, new)


def test_a_body_that_arrives_fast_enough_has_more_time() -> None:
    """Where a rate is set: the time is that since the last byte, and less below the rate; parts of other phases give none."""
    connection = Connection("a", 0.0, lambda: None, ConnectionTimes(body=10.0, body_rate=100.0))
    connection.received(1000, 5.0)
    assert connection.overdue(TIMES.head), "a head that arrives in parts"
    connection.enter(ConnectionPhase.BODY, 10.0)
    for second in range(11, 60):
        connection.received(100, float(second))
    assert not connection.overdue(68.9)
    assert connection.overdue(69.0)
    for second in range(60, 70):
        connection.received(10, float(second))
    assert not connection.overdue(69.8)
    assert connection.overdue(70.1)


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [
        (ConnectionPhase.HEAD, TIMES.head),
        (ConnectionPhase.BODY, TIMES.body),
        (ConnectionPhase.LINGER, TIMES.linger),
        (ConnectionPhase.IDLE, TIMES.kept + TIMES.close),
        (ConnectionPhase.CLOSE, TIMES.close),
    ],
)
def test_a_phase_has_its_time_and_more_of_it_is_no_new_one(phase: ConnectionPhase, seconds: float) -> None:
    """A phase ends at its deadline: bytes that drip in do not renew it, and only the next phase has a new one."""
    connection = single()
    connection.enter(phase, 0.0)
    connection.enter(phase, seconds - 0.1)
    assert not connection.overdue(seconds - 0.1)
    assert connection.overdue(seconds)
    connection.enter(ConnectionPhase.ANSWER, seconds)
    assert not connection.overdue(seconds + 1)


def test_a_client_that_does_not_read_is_overdue_in_any_phase() -> None:
    """A client that does not read its answer is as overdue as one that never finishes its request."""
    connection = single()
    connection.enter(ConnectionPhase.ANSWER, 0.0)
    connection.unread_since = 1.0
    assert not connection.overdue(TIMES.unread)
    assert connection.overdue(TIMES.unread + 1)


def test_the_limit_fits_the_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The soft limit of open files is raised as far as the hard one allows; what is missing then is taken from the number of
    connections."""
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: set_to.append(both))
    for soft, hard, total in ((1024, 65536, 2000), (1024, 1024, 768), (8192, 8192, 2000), (-1, -1, 2000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, both=(soft, hard): both)
        assert fitting(ConnectionLimits(total=2000, per_client=200)).total == total
    assert fitting(ConnectionLimits(total=2000, per_client=200), files=3).total == 2000
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert fitting(ConnectionLimits(total=2000, per_client=200), files=3).total == 256
    assert set_to[:2] == [(2000 + OTHER_FILES, 65536), (1024, 1024)]
