"""What only the etcd store has: the layout of keys, the cost of each verb, compaction, and watch events."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.patience import within
from sparkonce import failpoints
from sparkonce.blocking import run
from sparkonce.errors import StoreFull
from sparkonce.model.record import Address, Beat, Event, HeldReason, Report, State, StopWanted, Why
from sparkonce.store.etcd.layout import Layout
from sparkonce.store.protocol import IdempotencyStore, KeyChange, Query
from store.backends import Clock
from store.etcd_backend import Etcd
from store.samples import Key, fresh, intent, request, reserved, taken


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    """An empty install on one member."""
    made = Etcd(Clock(), members=1)
    yield made
    made.close()


# --- the layout


@pytest.mark.parametrize("realm", ["team-a", "a/b", "a", "ümlaut %", ""])
def test_a_key_says_whose_it_is(realm: str) -> None:
    """The realm and hash can be read from every kind of key that appears in watches or listings, whatever the realm is called."""
    layout, address = Layout("prod/1"), Address(realm=realm, key_hash="ab" * 32)
    keys = [layout.record(address), layout.claim(address), layout.open(address), layout.expiry(address, 1e9)]
    keys.append(layout.report(address, 1, 2, "driver/1"))
    assert [layout.address_of(key) for key in keys] == [address] * 5
    assert [layout.kind_of(key) for key in keys] == ["key", "own", "open", "exp", "report"]
    assert all(key.startswith(b"/sparkonce/v1/prod%2F1/") for key in keys)


def test_a_namespace_stands_as_it_is() -> None:
    """The layout never changes within v1: people read it with etcdctl, and later versions read it."""
    layout, address = Layout("prod"), Address(realm="team-a", key_hash="0f" + "ab" * 31)
    at = f"team-a/{address.key_hash}"
    root = "/sparkonce/v1/prod/"
    assert layout.record(address) == f"{root}key/{at}".encode()
    assert layout.claim(address) == f"{root}own/{at}".encode()
    assert layout.open(address) == f"{root}open/0f/{at}".encode()
    assert layout.floor(address) == f"{root}gen/{at}".encode()
    assert layout.beside("spec", address, 3) == f"{root}spec/{at}/3".encode()
    assert layout.report(address, 3, 2, "pod/1") == f"{root}report/{at}/3/2/pod%2F1".encode()
    assert layout.beat(address, 3, 2, "driver") == f"{root}beat/{at}/3/2/driver".encode()
    assert layout.expiry(address, 1e9) == f"{root}exp/20010909T0146/{at}".encode()
    assert layout.expiry(address, 1e99) == f"{root}exp/99991231T2359/{at}".encode()
    assert layout.replica("n1") == f"{root}replica/n1".encode()
    assert layout.epoch == f"{root}epoch".encode()


def test_no_realm_is_the_beginning_of_another() -> None:
    """All keys of a realm are one range, which contains no key of another realm; the same holds for a generation."""
    layout, one, other = Layout("i"), Address(realm="a", key_hash="ab" * 32), Address(realm="a/b", key_hash="ab" * 32)
    assert not layout.record(other).startswith(layout.records("a"))
    assert not layout.report(one, 11, 1, "r").startswith(layout.of_generation("report", one, 1))
    key, end = layout.changes
    told = [layout.record(one), layout.claim(one), layout.report(one, 1, 1, "r")]
    untold = [layout.beat(one, 1, 1, "d"), layout.new_event(one, 1.0), layout.epoch, layout.beside("spec", one, 1)]
    assert all(key <= each < end for each in told)
    assert not any(key <= each < end for each in untold)


def test_what_is_left_of_a_key(etcd: Etcd) -> None:
    """After reserve, end and purge a floor and a history remain, and nothing else: no index entry outlives its record."""
    store = etcd.open()
    key = reserved(store)
    run(store.seal(key.address, generation=1, token=1, nonce=key.record.nonce, intent=intent()))
    key.record = key.now()
    run(store.report(key.address, 1, Report(attempt=1, reporter="d", kind="values")))
    run(store.renew(key.address, 1, Beat(attempt=1, nonce=key.record.nonce, by="driver")))
    assert kinds(etcd) == {"key", "own", "open", "spec", "intent", "report", "size", "beat", "event"}
    key.finalize()
    assert kinds(etcd) == {"key", "exp", "spec", "intent", "report", "size", "beat", "event", "result"}
    key = key.reopen()
    assert kinds(etcd) == {"key", "own", "open", "spec", "intent", "report", "size", "beat", "event", "result"}
    key.finalize()
    run(store.purge(key.record, now=1e12))
    assert kinds(etcd) == {"gen", "event"}


def kinds(etcd: Etcd) -> set[str]:
    return {etcd.layout.kind_of(key) for key in etcd.cluster.content(etcd.layout.root.encode())}


def test_unfinished_keys_are_listed_by_their_index(etcd: Etcd) -> None:
    """InProgress and Held keys are found through `open/` alone, page by page; any other listing reads the records."""
    store = etcd.open()
    lease = run(store.open_lease(owner="me"))
    keys = [reserved(store, lease, realm=f"r{n % 2}") for n in range(7)]
    keys[0].finalize()
    keys[1].change(state=State.HELD, held=HeldReason.UNKNOWN)
    unfinished = {key.record.key for key in keys[1:]}
    assert names(store, states=["InProgress", "Held"]) == unfinished
    assert names(store, states=["Held"]) == {keys[1].record.key}
    assert names(store, states=["InProgress", "Held"], realm="r1") == {key.record.key for key in keys[1::2]}
    prefix = keys[2].record.key_hash[:6]
    assert names(store, states=["InProgress"], hash_prefix=prefix) == {keys[2].record.key}
    run_delete(etcd, etcd.layout.open(keys[3].address))
    assert names(store, states=["InProgress", "Held"]) == unfinished - {keys[3].record.key}
    assert names(store, states=["InProgress", "Held", "Finalized"]) == unfinished | {keys[0].record.key}


def names(store: IdempotencyStore, **query: Any) -> set[str]:
    found, after = set(), ""
    while True:
        asked: dict[str, Any] = {"limit": 2, "after": after} | query
        page = run(store.list(Query(**asked)))
        found |= {record.key for record in page.records}
        if page.after is None:
            return found
        after = page.after


def run_delete(etcd: Etcd, key: bytes) -> None:
    etcd.cluster.one.post("kv/deleterange", {"key": base64.b64encode(key).decode()})


def test_the_history_is_cut_in_etcd_too(etcd: Etcd) -> None:
    """A key that is written to for weeks keeps 200 events, plus at most a few dozen that are not trimmed yet."""
    store = etcd.open()
    key = reserved(store)
    for number in range(270):
        done = run(
            store.update(key.record, key.claim, key.record.changed(note=fresh()), event=Event(what=f"e{number}"))
        )
        key.record = done.record  # type: ignore[union-attr]  # Updated; otherwise the next change fails
    kept = etcd.cluster.content(etcd.layout.all_beside("event", key.address))
    assert 200 <= len(kept) <= 251
    assert [event.what for event in run(store.events(key.address))] == [f"e{number}" for number in range(70, 270)]


# --- the cost


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Number of requests sent since the last call of this function."""
    log = tmp_path / "hits"
    log.touch()
    monkeypatch.setenv("SPARKONCE_FAILPOINTS_LOG", str(log))
    failpoints.reset()
    seen = 0

    def since() -> int:
        nonlocal seen
        before, seen = seen, log.read_text().count("store.etcd.request.before")
        return seen - before

    yield since
    monkeypatch.undo()
    failpoints.reset()


def test_what_each_verb_costs(etcd: Etcd, requests: Callable[[], int]) -> None:
    """Every verb of a running key normally takes one request, and so does every read; only rare cases read before they write."""
    store = etcd.open(monotonic=lambda: 0.0)  # counts and sizes are read once every few seconds
    warm = reserved(store)
    run(store.report(warm.address, 1, Report(attempt=1, reporter="d", kind="values")))
    requests()
    lease = warm.lease
    costs: dict[str, int] = {}

    def cost(verb: str, done: Any) -> Any:
        run(done)
        costs[verb] = requests()

    asked = request(fresh("key"))
    cost("reserve", store.reserve(asked, lease=lease, floor=0))
    cost("load", store.load(asked.address))
    key = Key(store, lease, run(store.load(asked.address)).record, run(store.load(asked.address)).claim)  # type: ignore[arg-type]  # both are there
    requests()
    cost("heartbeat", store.heartbeat(key.claim))
    cost("renew", store.renew(key.address, 1, Beat(attempt=1, nonce=key.record.nonce, by="driver")))
    cost("report", store.report(key.address, 1, Report(attempt=1, reporter="d", kind="values")))
    cost("seal", store.seal(key.address, generation=1, token=1, nonce=key.record.nonce, intent=intent()))
    key.record = key.now()
    requests()
    cost("attach", store.attach(key.record, "follower"))
    key.record = key.now()
    requests()
    cost("request_stop", store.request_stop(key.record, StopWanted(why=Why.CANCELLED, by="ann")))
    key.record = key.now()
    requests()
    key.change(phase="Running")
    costs["update"] = requests()
    cost("drop", store.drop(key.claim))
    key.claim = taken(store, key.record).claim
    assert requests() == 2  # one opens a lease
    costs["take_over"] = 1
    key.finalize()
    costs["finalize"] = requests()
    key.reopen()
    costs["reopen"] = requests()
    one = (
        "reserve",
        "load",
        "heartbeat",
        "renew",
        "report",
        "seal",
        "attach",
        "request_stop",
        "update",
        "drop",
        "take_over",
        "finalize",
    )
    assert costs == dict.fromkeys(one, 1) | {"reopen": 2}


def test_a_hundred_reserves_are_a_hundred_requests(etcd: Etcd, requests: Callable[[], int]) -> None:
    """The ceiling and the quota are checked every few seconds, not with each reserve."""
    store = etcd.open()
    lease = run(store.open_lease(owner="me"))
    requests()
    for number in range(100):
        run(store.reserve(request(f"key-{number}"), lease=lease, floor=0))
    assert 100 <= requests() <= 106


# --- what only etcd reports


async def told(changes: Any, number: int) -> list[KeyChange]:
    return [await within(anext(changes), 10.0) for _ in range(number)]


def test_watch_says_who_waits_for_an_owner(etcd: Etcd) -> None:
    """Claims that expire or are dropped are reported as unowned, all those of a lease at once; the claim of a held or finished key is
    not."""
    store = etcd.open()
    lease = run(store.open_lease(owner="me"))
    orphans = [reserved(store, lease) for _ in range(3)]
    dropped, held, ended = reserved(store), reserved(store), reserved(store)
    reported = reserved(store)
    since = reported.record.revision

    async def scenario() -> None:
        changes = store.watch(since)
        etcd.expire(lease)
        first = await told(changes, 3)
        assert {change.address for change in first} == {key.address for key in orphans}
        assert all(change.unowned for change in first)
        assert len({change.revision for change in first}) == 1
        await store.drop(dropped.claim)
        held.change(state=State.HELD, held=HeldReason.UNKNOWN)
        ended.finalize()
        await store.report(reported.address, 1, Report(attempt=1, reporter="d", kind="values"))
        successor = taken(store, orphans[0].record)
        rest = await told(changes, 5)
        assert [change.address for change in rest] == [
            key.address for key in (dropped, held, ended, reported, successor)
        ]
        assert [change.unowned for change in rest] == [True, False, False, False, False]

    asyncio.run(scenario())


def test_compaction_under_a_watch_is_told(etcd: Etcd) -> None:
    """A watch from a compacted revision reports a gap and then everything after it; a running watch loses nothing."""
    store = etcd.open()
    early = reserved(store)
    for _ in range(3):
        reserved(store)

    async def scenario() -> None:
        up = store.watch(early.record.revision)
        assert len(await told(up, 3)) == 3
        etcd.forget_removals()
        late = store.watch(early.record.revision)
        (gap,) = await told(late, 1)
        assert gap.gap and gap.address is None
        key = reserved(store)
        for changes in (up, late):
            assert [change.address for change in await told(changes, 1)] == [key.address]

    asyncio.run(scenario())


def test_ages_begin_anew_for_another_reader(etcd: Etcd) -> None:
    """A process counts a heartbeat's age from when it first read that heartbeat, by its own clock: after a takeover a driver has its whole
    timeout, whatever the clocks show."""
    seconds = [100.0, 5000.0]
    writer, reader = (etcd.open(monotonic=lambda n=n: seconds[n]) for n in (0, 1))
    key = reserved(writer)
    beat = Beat(attempt=1, nonce=key.record.nonce, by="driver")
    run(writer.renew(key.address, 1, beat))
    seconds[0] += 60.0

    def ages() -> list[float]:
        return [run(store.beats(key.address, 1))[1, "driver"].age for store in (writer, reader)]

    assert ages() == [60.0, 0.0]
    seconds[0], seconds[1] = seconds[0] + 5.0, seconds[1] + 5.0
    assert ages() == [65.0, 5.0]
    run(writer.renew(key.address, 1, beat))
    assert ages() == [0.0, 0.0]


def test_another_process_sees_a_ceiling_within_seconds(etcd: Etcd) -> None:
    """Other processes' keys count once the count is some seconds old: the ceiling can be exceeded by a few keys, and not for long."""
    seconds = 0.0
    store, other = etcd.open(max_live_keys=10, monotonic=lambda: seconds), etcd.open()
    mine, theirs = run(store.open_lease(owner="me")), run(other.open_lease(owner="they"))
    reserved(store, mine)
    for _ in range(9):
        reserved(other, theirs)
    reserved(store, mine)  # one key too many, because the count was not refreshed
    seconds += 11.0

    with pytest.raises(StoreFull):
        reserved(store, mine)
