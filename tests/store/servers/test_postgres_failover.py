"""Failover of a PostgreSQL store: what was acknowledged is on the synchronous standby, and a standby that lacks it is an older store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from harness.eventually import assert_eventually
from harness.patience import Patience, stretched
from harness.postgres import PostgresPair
from sparkonce.blocking import run
from sparkonce.controller.rewind_guard import Witness, rewound
from sparkonce.errors import StoreUnavailable
from sparkonce.store.postgres.store import PostgresStore
from sparkonce.store.protocol import Duplicate, Owned
from store.samples import address_of, fresh, request, reserved

PATIENCE = 2.0
MANY = 40
"""Keys reserved before the primary dies."""


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    made = PostgresPair()
    yield made
    made.close()


def until_answered(call: Callable[[], Any]) -> Any:
    patience = Patience(60)
    while True:
        try:
            return run(call())
        except StoreUnavailable:
            if patience.over():
                raise
            time.sleep(0.02)  # the pause before a retry


def test_a_synchronous_standby_has_everything_that_was_acknowledged(pair: PostgresPair) -> None:
    """Three callers reserve the same keys while the primary is killed and the standby promoted: every reserve that was answered is there,
    each key has the one owner that all callers were told, and leases are judged by the new primary's clock."""
    pair.primary.commits_wait_for(pair.standby)
    stores = [PostgresStore(pair.url, timeout=PATIENCE, ttl=3600) for _ in range(3)]
    answers: list[dict[str, Any]] = [{} for _ in stores]
    stop = threading.Event()

    def reserve_on(number: int) -> None:
        store = stores[number]
        lease = until_answered(partial(store.open_lease, owner=f"caller {number}"))
        made = 0
        while not stop.is_set():
            asked = request(f"key {made}", nonce=fresh())
            answers[number][asked.key] = until_answered(partial(store.reserve, asked, lease=lease, floor=0))
            made += 1

    threads = [threading.Thread(target=reserve_on, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    assert_eventually(lambda: min(map(len, answers)) > MANY, 60)
    pair.fail_over()
    before = min(map(len, answers))
    assert_eventually(lambda: min(map(len, answers)) > before + MANY, 60)
    stop.set()
    for thread in threads:
        thread.join()

    everywhere = set.intersection(*(set(each) for each in answers))
    assert len(everywhere) > 2 * MANY
    for key in everywhere:
        said = [each[key] for each in answers]
        view = run(stores[0].load(address_of(key)))
        assert view.record is not None and view.claim is not None
        owners = [done for done in said if isinstance(done, Owned)]
        assert [done.claim.nonce for done in owners] == [view.claim.nonce]
        assert {type(done) for done in said if done is not owners[0]} == {Duplicate}
        assert len(run(stores[0].events(address_of(key)))) == 1
    for store in stores:
        run(store.close())


def test_a_standby_that_does_not_answer_acknowledges_nothing(pair: PostgresPair) -> None:
    """While the synchronous standby is away a write has no answer, however often it is sent; reads go on, and when the standby is back the
    write is found to be done, once."""
    pair.primary.commits_wait_for(pair.standby)
    store = PostgresStore(pair.url, timeout=1.0, ttl=3600)
    key = reserved(store)
    with pair.standby.frozen():
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                run(store.attach(key.record, "uid"))
        assert run(store.load(key.address)).record == key.record
    done = until_answered(partial(store.attach, key.record, "uid"))
    assert done.record.objects == ("uid",)
    run(store.close())


def test_a_commit_whose_wait_was_cancelled_is_not_acknowledged(pair: PostgresPair) -> None:
    """An administrator cancels the session that waits for the standby: PostgreSQL then reports success with a warning, although a failover
    may lose the commit. The caller gets no answer."""
    pair.primary.commits_wait_for(pair.standby)
    store = PostgresStore(pair.url, timeout=30.0, ttl=3600)
    key = reserved(store)
    said: list[Any] = []

    def attach() -> None:
        try:
            said.append(run(store.attach(key.record, "uid")))
        except StoreUnavailable as unknown:
            said.append(unknown)

    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with pair.standby.frozen(), pair.primary.connect() as connection:
        attaching = threading.Thread(target=attach)
        attaching.start()
        assert_eventually(lambda: connection.execute(waiting).fetchall(), 20)
        connection.execute(f"SELECT pg_cancel_backend(pid) FROM ({waiting}) AS those".encode())
        attaching.join(stretched(20))
    (answer,) = said
    assert isinstance(answer, StoreUnavailable), answer
    assert "canceling wait for synchronous replication" in str(answer)
    assert until_answered(partial(store.attach, key.record, "uid")).record.objects == ("uid",)
    run(store.close())


def test_a_failover_that_lost_commits_is_proved_by_statuses(pair: PostgresPair) -> None:
    """Without a synchronous standby acknowledged commits can be lost: a status of before is ahead of the store, also when newer commits
    have passed its revision, and says so."""
    store = PostgresStore(pair.url, timeout=PATIENCE, ttl=3600)
    key = reserved(store)
    position = "SELECT pg_current_wal_flush_lsn() <= replay_lsn FROM pg_stat_replication"
    with pair.primary.connect() as connection:
        assert_eventually(lambda: connection.execute(position).fetchall() == [(True,)], 20)
    pair.standby.kill()  # frozen, it would read what the network still has for it
    lost = key.change(phase="Running")
    new = reserved(store)
    pair.primary.kill()
    pair.standby.start()
    pair.standby.promote()
    view = until_answered(partial(store.load, key.address))
    assert view.record is not None and view.record.phase != "Running"
    seen = Witness(epoch=1, revision=lost.revision, key_hash=lost.key_hash, generation=1, name="ns/job")
    forgotten = Witness(epoch=1, revision=new.record.revision, key_hash=new.record.key_hash, generation=1)
    assert "older than it was" in (rewound([seen], view, lost.key_hash) or "")
    while until_answered(partial(store.load, key.address)).revision <= new.record.revision:
        until_answered(lambda: reserved_later(store))
    passed = run(store.load(key.address))
    assert "the record is at revision" in (rewound([seen], passed, lost.key_hash) or "")
    gone = run(store.load(new.address))
    assert "the ledger knows 0" in (rewound([forgotten], gone, new.record.key_hash) or "")
    run(store.close())


async def reserved_later(store: PostgresStore) -> object:
    lease = await store.open_lease(owner=fresh())
    return await store.reserve(request(fresh("key")), lease=lease, floor=0)
