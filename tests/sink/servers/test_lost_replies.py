"""A store carries out a request and its reply is lost: the request has one effect, and its sender recognises it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import cast

import pytest

from harness import store_servers
from harness.arrow_stage import arrow_stage, table_of
from harness.proxy import Proxy, in_front_of
from harness.store_fixtures import only_on
from harness.store_servers import StoreServer
from sparkonce.blocking import run
from sparkonce.sink.delta import evidence as delta_evidence
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.delta.sink import DeltaTableSink, digest_of
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import Committed, Declared, Evidence, FencedOff, Sink, SinkKey

pytestmark = only_on("versitygw", "azurite")  # servers that both clients of a Delta table can use


@pytest.fixture
def line(running: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy between this process and the store."""
    store_servers.no_proxy(monkeypatch)
    with in_front_of(running.address) as proxy:
        running.at(proxy.address).use(monkeypatch)
        yield proxy


@pytest.fixture
def url(running: StoreServer) -> str:
    """URL of a table that does not exist yet."""
    return running.url(f"t-{secrets.token_hex(4)}/orders")


def opened(url: str, kind: str = "delta") -> Sink:
    return open_sink(Declared(name="orders", kind=kind, location=url), base=None, stage=arrow_stage)


def losing(sink: DeltaTableSink, line: Proxy, monkeypatch: pytest.MonkeyPatch, *, path: str) -> list[str]:
    """Loses the reply to the first create of a matching path. Returns the created paths, once per request."""
    create = sink._objects.create
    asked: list[str] = []

    async def unheard(at: str, data: bytes) -> bool:
        if path not in at:
            return await create(at, data)
        asked.append(at)
        line.lose = 1 if len(asked) == 1 else 0
        try:
            return await create(at, data)
        finally:
            line.lose = 0

    monkeypatch.setattr(sink._objects, "create", unheard)
    return asked


def entries_with(sink: DeltaTableSink, text: str) -> int:
    """Number of log entries that contain the text: effects, counted where they take effect."""
    listed = [each.path for each in run(sink._objects.list(delta_log.LOG)) if each.path.endswith(".json")]
    return sum(text.encode() in (run(sink._objects.get(path)) or b"") for path in listed)


def numbers_of(sink: DeltaTableSink) -> list[int]:
    """The column `n` of every row, as delta-rs reads it."""
    return sorted(cast("list[int]", sink._log.open().to_pyarrow_table()["n"].to_pylist()))


@pytest.mark.parametrize("kind", ["slotLog", "delta"])
def test_a_store_whose_first_reply_is_lost_is_not_refused(url: str, line: Proxy, kind: str) -> None:
    """The probe's first create is resent and fails because its own object exists: the store is accepted, and nothing is left behind."""
    sink = opened(url, kind)
    line.lose = 1
    run(sink.check())
    assert line.lose == 0
    assert line.dropped > 0
    objects = cast("DeltaTableSink", sink)._objects
    assert run(objects.list("")) == ()


@pytest.mark.parametrize(
    "path",
    [delta_log.entry_path(0), delta_evidence.SLOT, delta_log.entry_path(1)],
    ids=["table", "slot", "commit"],
)
def test_a_commit_whose_reply_is_lost_is_recognised(
    url: str, line: Proxy, key: SinkKey, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The create arrived and its reply was lost: the sink finds the commit, as its own, in the table. The log has one entry, the table each
    row once; a later abort deletes nothing, and another driver of the attempt gets this commit."""
    sink = cast("DeltaTableSink", opened(url))
    slot = sink.stage(table_of(1, 2, 3), key, 1, fingerprint="f")
    asked = losing(sink, line, monkeypatch, path=path)
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert len(asked) == (2 if path == delta_evidence.SLOT else 1)  # only the slot itself shows whether it exists
    assert line.dropped > 0
    assert run(sink.abort(key, slot)) == slot
    assert run(opened(url).commit(key, slot)) == Committed(slot)
    assert run(opened(url).probe(key, digest_of(slot))) is Evidence.PRESENT
    assert entries_with(sink, delta_log.idem(key)) == 1
    assert numbers_of(sink) == [1, 2, 3]


@pytest.mark.parametrize("path", ["fence-", delta_log.entry_path(2)], ids=["note", "entry"])
def test_a_fence_whose_reply_is_lost_bars(
    url: str, line: Proxy, key: SinkKey, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The fence's note, or its log entry, arrived and the reply was lost: it exists once, and the zombie that it bars is fenced."""
    sink = cast("DeltaTableSink", opened(url))
    other = SinkKey(key_hash="c3d4", output="orders", generation=1)
    run(sink.commit(other, sink.stage(table_of(9), other, 1, fingerprint="f")))
    zombie = sink.stage(table_of(1), key, 1, fingerprint="f")
    asked = losing(sink, line, monkeypatch, path=path)
    assert run(sink.fence(key, 2, fingerprint="f", by="settle")) is None
    assert len(asked) == (2 if path == "fence-" else 1)
    assert line.dropped > 0
    assert isinstance(run(opened(url).commit(key, zombie)), FencedOff)
    assert entries_with(sink, delta_log.fence(key)) == 1
    assert numbers_of(sink) == [9]
