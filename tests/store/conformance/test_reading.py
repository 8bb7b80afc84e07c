"""load, list, count, realms, watch: reads that are complete, or say that they are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from harness.patience import within
from sparkonce.blocking import run
from sparkonce.model.record import HeldReason, State
from sparkonce.store.protocol import IdempotencyStore, KeyChange, Query
from store.backends import Backend
from store.samples import Key, address_of, reserved

SOON = 10.0
"""Seconds: a read takes hundredths of one."""


def listed(store: IdempotencyStore, **query: object) -> list[str]:
    """The keys of all pages."""
    keys, after = [], ""
    while True:
        page = run(store.list(Query(**{"limit": 2, "after": after} | query)))  # type: ignore[arg-type]  # as given
        assert len(page.records) <= 2 and not page.unreadable
        keys += [record.key for record in page.records]
        if page.after is None:
            return keys
        after = page.after


def test_list_shows_every_record_once_in_pages(store: IdempotencyStore) -> None:
    """Pages of two, in the order of realm and hash, contain every record exactly once; filters exclude exactly what they name."""
    lease = run(store.open_lease(owner="me"))
    running = [reserved(store, lease, key=f"r{n}") for n in range(3)]
    done = [reserved(store, lease, key=f"d{n}", realm="team/a") for n in range(2)]
    held = reserved(store, lease, key="h")
    for key in done:
        key.finalize()
    held.change(state=State.HELD, held=HeldReason.UNKNOWN)
    everything = [*running, *done, held]
    everything.sort(key=lambda key: (key.record.realm, key.record.key_hash))
    assert listed(store) == [key.record.key for key in everything]
    assert set(listed(store, realm="team/a")) == {"d0", "d1"}
    assert set(listed(store, states=["InProgress"])) == {"r0", "r1", "r2"}
    assert set(listed(store, states=["Held", "Finalized"])) == {"d0", "d1", "h"}
    assert listed(store, hash_prefix=held.record.key_hash[:12]) == ["h"]
    assert listed(store, hash_prefix="zz") == listed(store, realm="nobody") == []
    page = run(store.list(Query(limit=len(everything))))
    assert page.after is None
    assert list(page.records) == [key.now() for key in everything]


def test_count_counts_what_is_alive(backend: Backend, store: IdempotencyStore) -> None:
    """All records, those of a realm, and those that have not expired; a record in progress never expires."""
    reserved(store)
    short = reserved(store)
    short.finalize(retention=10.0)
    reserved(store, realm="other")
    assert [run(store.count()), run(store.count(realm="local")), run(store.count(realm="none"))] == [3, 2, 0]
    assert run(store.count(realm="local", live_only=True)) == 2
    backend.clock.ahead = 11.0
    assert run(store.count(realm="local", live_only=True)) == 1
    assert run(store.count(live_only=True)) == 2
    assert run(store.count()) == 3


def test_a_realm_is_known_as_long_as_its_generations_are(store: IdempotencyStore) -> None:
    """`realms` names each realm once: those with records, and those of which only generation floors are left."""
    assert run(store.realms()) == []
    for realm in ("team/b", "a", "team", "a"):
        reserved(store, realm=realm)
    for realm in ("gone", "gone", "a"):
        reserved(store, realm=realm).remove()
    assert run(store.realms()) == ["a", "gone", "team", "team/b"]


def test_the_revision_only_grows(store: IdempotencyStore) -> None:
    """Every change of any key gets a higher store revision than all before it, and every read returns the newest; the epoch stays."""
    key, other = reserved(store), reserved(store)
    seen = [key.record.revision, other.record.revision]
    for phase in ("a", "b"):
        seen += [key.change(phase=phase).revision, other.change(phase=phase).revision]
    seen.append(key.finalize().revision)
    assert seen == sorted(set(seen))
    assert key.view().revision == other.view().revision == seen[-1]
    assert key.view().epoch == other.view().epoch == key.record.epoch


def test_now_is_the_stores_clock(backend: Backend, store: IdempotencyStore) -> None:
    """Times in records come from the store's clock, in unix seconds."""
    backend.clock.ahead = 5000.0
    before = run(store.now())
    assert before <= reserved(store).record.created_at <= run(store.now())
    assert abs(before - backend.clock()) < SOON


def test_a_key_that_never_was(store: IdempotencyStore) -> None:
    """Every read of an unknown key reports it as absent, without an error."""
    address = address_of("never")
    view = run(store.load(address))
    assert (view.record, view.claim, view.floor) == (None, None, 0)
    assert (run(store.spec(address, 1)), run(store.result(address, 1)), run(store.intent(address, 1))) == (
        None,
        None,
        None,
    )
    assert (list(run(store.events(address))), list(run(store.reports(address, 1)))) == ([], [])
    assert run(store.beats(address, 1)) == {}


# --- watch


async def next_of(changes: AsyncIterator[KeyChange]) -> KeyChange:
    return await within(anext(changes), SOON)


def touched(key: Key) -> tuple[object, int]:
    return key.address, key.view().revision


def told(change: KeyChange) -> tuple[object, int]:
    """The fields of a change that all stores can report; some stores cannot know whether a claim ended."""
    assert not change.gap
    return change.address, change.revision


def test_watch_shows_every_change_in_order(store: IdempotencyStore) -> None:
    """From a given revision on, a watch names each key that changes, in the order of revisions, whether a record, claim, report or removal
    changed."""
    key = reserved(store)

    async def scenario() -> None:
        since = (await store.load(key.address)).revision
        changes = store.watch(since)
        other = reserved(store)
        expected = [touched(other)]
        key.change(phase="Running")
        expected.append(touched(key))
        for address, revision in expected:
            assert told(await next_of(changes)) == (address, revision)
        await store.drop(other.claim)
        assert told(await next_of(changes)) == touched(other)
        key.finalize()
        assert (await next_of(changes)).address == key.address
        await store.purge(key.record, now=1e12)
        assert told(await next_of(changes)) == touched(key)

    asyncio.run(scenario())


def test_watch_from_the_past_is_complete(store: IdempotencyStore) -> None:
    """A watch from an earlier revision names every key that changed since, removed ones too, and no key twice."""
    keys = [reserved(store) for _ in range(5)]
    since = keys[1].record.revision
    keys[0].change(phase="x")
    keys[3].remove()
    last_of_all = keys[3].view().revision

    async def scenario() -> None:
        changes = store.watch(since)
        seen = [told(await next_of(changes))]
        while seen[-1][1] < last_of_all:
            seen.append(told(await next_of(changes)))
        newest = dict(seen)  # some stores also report the changes in between
        assert sorted(newest, key=lambda address: newest[address]) == [keys[n].address for n in (2, 4, 0, 3)]
        assert [revision for _, revision in seen] == sorted({revision for _, revision in seen})
        last = reserved(store)
        assert (await next_of(changes)).address == last.address

    asyncio.run(scenario())


@pytest.mark.parametrize("future", [False, True], ids=["past", "future"])
def test_watch_tells_of_a_gap(backend: Backend, future: bool) -> None:
    """A watch from before the oldest removal that is still known, or from a revision ahead of a restored store, reports a gap and
    continues."""
    store = backend.open(tombstones=2)
    for _ in range(4):
        key = reserved(store)
        key.remove()
    backend.forget_removals()
    revision = run(store.load(address_of("any"))).revision
    since = revision + 5 if future else 0

    async def scenario() -> None:
        changes = store.watch(since)
        assert await next_of(changes) == KeyChange(None, revision, gap=True)
        last = reserved(store)
        assert told(await next_of(changes)) == (last.address, last.record.revision)

    asyncio.run(scenario())


def test_watch_without_a_gap_after_few_removals(backend: Backend) -> None:
    """There is no gap as long as every removal since is still known."""
    store = backend.open(tombstones=2)
    since = run(store.load(address_of("any"))).revision
    first = reserved(store)
    for key in (reserved(store), reserved(store)):
        key.remove()

    async def scenario() -> None:
        changes = store.watch(since)
        assert (await next_of(changes)).address == first.address
        assert not (await next_of(changes)).gap

    asyncio.run(scenario())
