"""Lanes on servers with S3's, Azure's and Google's APIs."""

from __future__ import annotations

import secrets

import pytest

import sparkonce
from harness.lane_log import rows_in
from harness.proxy import in_front_of
from harness.store_servers import StoreServer
from lanes.test_table_log import append, batch
from sparkonce.errors import WriterFenced
from sparkonce.lanes.protocol import AppendKind
from sparkonce.lanes.table_log import TableLog
from sparkonce.sink.objects.location import objects_at


@pytest.fixture
def url(server: StoreServer) -> str:
    """URL of a table that does not exist yet."""
    return server.url(f"t-{secrets.token_hex(4)}/orders")


def test_a_writer_goes_on_where_another_stopped(url: str) -> None:
    """Rows and position are there; a writer that was superseded is fenced by the store alone."""
    first = sparkonce.writer(url, name="tap", linger=0.0)
    first.append([{"n": 1}, {"n": 2}], position=2).result(60)
    with sparkonce.writer(url, name="tap", linger=0.0) as second:
        assert second.position == 2
        second.append({"n": 3}, position=3)
    first.append({"n": 3}, position=3)
    with pytest.raises(WriterFenced):
        first.close()
    assert rows_in(objects_at(url, field="path")) == [1, 2, 3]


def test_generations_follow_each_other(url: str) -> None:
    """Places beyond the end of a generation, and a duplicate of an earlier one."""
    objects = objects_at(url, field="path")
    log = TableLog(objects, "tap", places=3)
    log.acquire()
    assert [append(log, n, batch(n)).kind for n in range(1, 8)] == [AppendKind.APPENDED] * 7
    assert append(log, 2, batch(2)).kind is AppendKind.DUPLICATE
    assert TableLog(objects, "tap").acquire().last == 7
    assert rows_in(objects) == list(range(1, 8))


def test_replies_that_are_lost_change_nothing(url: str, server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply is lost and its connection reset during every other append: each row is there once, and in order."""
    with in_front_of(server.address) as proxy:
        server.at(proxy.address).use(monkeypatch)
        with sparkonce.writer(url, name="tap", linger=0.0) as writer:
            for n in range(20):
                if n % 2:
                    proxy.lose = 1
                writer.append({"n": n}, position=n)
                writer.flush()
        assert proxy.dropped > 0
    server.use(monkeypatch)
    assert rows_in(objects_at(url, field="path")) == list(range(20))
