"""The replicas that are alive on a store, as they announce themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest

from sparkonce.blocking import run
from sparkonce.store.roster import Replica, Roster
from store.backends import BACKENDS, Backend
from store.etcd_backend import Etcd

ONE = Replica(nonce="n1", owner="pod-1", clock=1000.5, schema=1, slots=200)


@pytest.fixture(params=["memory", "etcd", "postgres"])
def backend(request: pytest.FixtureRequest, tmpfs_path: Path) -> Iterator[Backend]:
    """The stores that several operators share, or that take that role in tests."""
    made = BACKENDS[request.param](tmpfs_path)
    yield made
    made.close()


def test_a_replica_is_listed_while_its_lease_lives(backend: Backend) -> None:
    """Each process is listed once, with its latest announcement, and disappears with its lease, however that ends."""
    store = backend.open()
    roster = cast(Roster, store)
    leases = [run(store.open_lease(owner=f"pod-{n}")) for n in range(3)]
    others = [replace(ONE, nonce=f"n{n}", owner=f"pod-{n}") for n in (2, 3)]
    assert list(run(roster.replicas())) == []
    for lease, replica in zip(leases, (ONE, *others), strict=True):
        run(roster.announce(replica, lease=lease))
    later = replace(ONE, clock=1003.5, slots=150)
    run(roster.announce(later, lease=leases[0]))
    assert list(run(roster.replicas())) == [later, *others]
    run(leases[1].revoke())
    backend.expire(leases[2])
    assert list(run(roster.replicas())) == [later]


def test_an_entry_of_an_earlier_version(tmpfs_path: Path) -> None:
    """A process that announces no status version counts as version 0; one that announces a version is listed with it."""
    backend = BACKENDS["etcd"](tmpfs_path)
    assert isinstance(backend, Etcd)
    store = backend.open()
    roster = cast(Roster, store)
    newer = replace(ONE, statuses=3)
    run(roster.announce(newer, lease=run(store.open_lease(owner="pod-1"))))
    earlier = {name: value for name, value in asdict(replace(ONE, nonce="n2")).items() if name != "statuses"}
    backend.cluster.put(backend.layout.replica("n2"), json.dumps(earlier).encode())
    assert [each.statuses for each in run(roster.replicas())] == [3, 0]
    backend.close()


@pytest.mark.parametrize("entry", [b"", b"{", b"[]", b'{"nonce": "n2"}', b'{"nonce":"n","owner":"o","clock":"soon"}'])
def test_an_entry_that_cannot_be_read_is_left_out(tmpfs_path: Path, entry: bytes) -> None:
    """An invalid entry does not hide the others."""
    backend = BACKENDS["etcd"](tmpfs_path)
    assert isinstance(backend, Etcd)
    store = backend.open()
    roster = cast(Roster, store)
    run(roster.announce(ONE, lease=run(store.open_lease(owner="pod-1"))))
    backend.cluster.put(backend.layout.replica("n2"), entry)
    assert list(run(roster.replicas())) == [ONE]
    backend.close()
