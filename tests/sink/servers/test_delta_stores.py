"""Delta tables on servers with the APIs of object stores: delta-rs reads and checkpoints them, and our own conditional creates commit."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from harness.arrow_stage import arrow_stage, table_of
from harness.store_fixtures import only_on
from harness.store_servers import StoreServer
from sparkonce.blocking import run
from sparkonce.sink.delta.sink import DeltaTableSink, digest_of
from sparkonce.sink.open import open_sink
from sparkonce.sink.protocol import AlreadyCommitted, Committed, Declared, Evidence, FencedOff, SinkKey

pytestmark = only_on("versitygw", "azurite")  # what delta-rs can be pointed at
KEYS = 12


@pytest.fixture
def url(server: StoreServer) -> str:
    """URL of a table that does not exist yet, on the store of this process."""
    return server.url(f"t-{secrets.token_hex(4)}/orders")


def sink_at(url: str) -> DeltaTableSink:
    sink = open_sink(Declared(name="orders", kind="delta", location=url), base=None, stage=arrow_stage)
    assert isinstance(sink, DeltaTableSink)
    return sink


def numbers_at(url: str) -> list[int]:
    """The column `n` of every row, sorted, as delta-rs reads it."""
    shown = sink_at(url)._log.open().to_pyarrow_table()
    return sorted(cast("list[int]", shown["n"].to_pylist()))


def test_a_table_on_a_store(url: str, key: SinkKey) -> None:
    """The table is created, committed to, fenced, replaced, checkpointed and read; a zombie is barred by the log in the bucket."""
    sink = sink_at(url)
    run(sink.check())
    zombie = sink.stage(table_of(9), key, 1, fingerprint="f")
    assert run(sink.fence(key, 2, fingerprint="f", by="settle")) is None
    assert isinstance(run(sink.commit(key, zombie)), FencedOff)
    slot = sink.stage(table_of(1, 2), key, 2, fingerprint="f")
    assert run(sink.commit(key, slot)) == Committed(slot)
    assert run(sink_at(url).commit(key, slot)) == Committed(slot)
    assert run(sink.probe(key, digest_of(slot))) is Evidence.PRESENT
    for generation in range(2, 12):
        each = key.model_copy(update={"generation": generation})
        assert isinstance(run(sink.commit(each, sink.stage(table_of(generation), each, 1, fingerprint="f"))), Committed)
    assert numbers_at(url) == [11]
    assert run(sink.probe(key, None)) is Evidence.REPLACED
    names = [each.path for each in run(sink._objects.list("_delta_log"))]
    assert any(name.endswith(".checkpoint.parquet") for name in names)
    assert run(sink.sweep(key)).folders == 1


def test_a_race_on_a_store(url: str) -> None:
    """Three writers for each of twelve keys: one commit per key, which the other two get as their answer, and every row is there once."""

    def attempt(work: tuple[int, int]) -> tuple[int, str, str]:
        number, token = work
        sink, key = sink_at(url), SinkKey(key_hash=f"k{number}", output="orders", generation=1)
        decision = run(sink.commit(key, sink.stage(table_of(number), key, token, fingerprint="f")))
        assert isinstance(decision, Committed | AlreadyCommitted | FencedOff)
        return number, type(decision).__name__, decision.slot.nonce

    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(attempt, [(number, token) for number in range(KEYS) for token in (1, 2, 3)]))
    for number in range(KEYS):
        mine = [(what, nonce) for of, what, nonce in told if of == number]
        assert [what for what, _ in mine].count("Committed") == 1
        assert len({nonce for what, nonce in mine if what != "FencedOff"}) == 1
    assert numbers_at(url) == list(range(KEYS))
