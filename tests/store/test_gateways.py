"""How long a gateway has been serving without a gap, as one process observes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sparkonce.blocking import run
from sparkonce.store.protocol import IdempotencyStore, Lease
from sparkonce.store.roster import SILENT, Gateway, Gateways, GatewayUptime, Roster
from store.backends import BACKENDS, Backend

ONE = Gateway(nonce="n1", owner="gateway-1", served=0.0)


class Clock:
    """A machine's monotonic clock: only differences are meaningful."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock(5_000_000.0)


@pytest.fixture
def service(clock: Clock) -> GatewayUptime:
    return GatewayUptime(clock)


def served(service: GatewayUptime, clock: Clock, *, seconds: float, entry: Gateway, step: float = 2.0) -> float | None:
    """The gateway announces itself every `step` seconds, and each entry is read as it is written."""
    found: float | None = None
    for passed in range(int(seconds / step) + 1):
        found = service.serving_for([replace(entry, served=entry.served + passed * step)])
        clock.now += step
    clock.now -= step
    return found


def test_service_counts_from_the_first_look(service: GatewayUptime, clock: Clock) -> None:
    """Time before this process's first read does not count, however long the gateway says it has been serving."""
    assert service.serving_for([]) is None
    assert service.serving_for([replace(ONE, served=86_400.0)]) == 0.0
    clock.now += 40.0
    assert service.serving_for([replace(ONE, served=86_439.0)]) == 40.0


def test_an_entry_that_nobody_renews_is_no_service(service: GatewayUptime, clock: Clock) -> None:
    """A lease that etcd extends after an outage of its own keeps the entry alive, but that time does not count as service; reads a minute
    apart notice it, too."""
    assert served(service, clock, seconds=60.0, entry=ONE) == 60.0
    clock.now += SILENT
    assert service.serving_for([replace(ONE, served=60.0)]) == 60.0 + SILENT
    clock.now += 0.1
    assert service.serving_for([replace(ONE, served=60.0)]) is None
    assert service.serving_for([replace(ONE, served=62.0)]) is not None, "a look that came before a late entry"


def test_a_new_stretch_begins_anew(service: GatewayUptime, clock: Clock) -> None:
    """A gateway that restarts draws a new nonce, so the time before the gap does not count."""
    served(service, clock, seconds=100.0, entry=ONE)
    again = replace(ONE, nonce="n2", served=1.0)
    assert service.serving_for([replace(ONE, served=90.0), again]) == 0.0
    clock.now += 2.0
    assert service.serving_for([replace(again, served=3.0)]) == 2.0
    assert service.serving_for([replace(ONE, served=102.0)]) == 0.0, "who was gone is not remembered"


def test_the_longest_that_serves_counts(service: GatewayUptime, clock: Clock) -> None:
    """The gateway that has served longest without a gap counts, whatever the others do."""
    other = replace(ONE, nonce="n2")
    service.serving_for([ONE])
    clock.now += 10.0
    assert service.serving_for([replace(ONE, served=10.0), other]) == 10.0
    clock.now += 10.0
    assert service.serving_for([replace(ONE, served=10.0), replace(other, served=10.0)]) == 10.0


@pytest.fixture(params=["memory", "etcd", "postgres"])
def backend(request: pytest.FixtureRequest, tmpfs_path: Path) -> Iterator[Backend]:
    """The stores that several processes share, or that take that role in tests."""
    made = BACKENDS[request.param](tmpfs_path)
    yield made
    made.close()


def gateways(store: IdempotencyStore) -> Gateways:
    return cast(Gateways, store)


def announce(store: IdempotencyStore, entry: Gateway, lease: Lease) -> None:
    run(gateways(store).announce_gateway(entry, lease=lease))


def test_a_gateway_serves_while_its_lease_lives(backend: Backend) -> None:
    """A gateway is listed exactly as long as its lease lives, and does not count as a replica of the operator."""
    store = backend.open()
    assert run(gateways(store).gateways_serving_for()) is None
    leases = [run(store.open_lease(owner=f"gateway-{n}")) for n in range(2)]
    announce(store, ONE, leases[0])
    announce(store, replace(ONE, nonce="n2"), leases[1])
    announce(store, replace(ONE, served=2.0), leases[0])
    first = run(gateways(store).gateways_serving_for())
    assert first is not None
    assert run(cast(Roster, store).replicas()) == []
    run(leases[0].revoke())
    assert run(gateways(store).gateways_serving_for()) is not None
    backend.expire(leases[1])
    assert run(gateways(store).gateways_serving_for()) is None
