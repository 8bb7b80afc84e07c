"""A watch that never loses events silently: it resumes after each disconnect and reports a gap where it cannot.

It resumes from the revision after the last delivered event. etcd puts its *current* revision into each reply's header, even while it
still sends old events: a client that resumes from there loses the events in between. A gap is reported when etcd has compacted the
revisions needed, or when the store is no longer the one watched: another cluster, or the same one restored to an earlier revision. The
reader then lists again; events after the gap's revision follow as usual.

Each watch has its own stream, so that a slow reader delays no other; an operator has only a few. etcd replies with whole revisions
(`fragment` is off), so a batch never splits one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Literal

from sparkonce.etcd import wire
from sparkonce.etcd.calls import BidiStream, Calls
from sparkonce.etcd.channel import RANDOM
from sparkonce.etcd.errors import LOGIN_REFUSED, EtcdUnavailable, failure
from sparkonce.etcd.kv import KeyValue
from sparkonce.etcd.pb import etcd_pb2 as pb

LONGEST_PAUSE: Final = 1.0
"""Seconds between attempts to watch while etcd is down: bounds how late the end of an outage is noticed (plus gRPC's own 2 s)."""
SHORTEST_PAUSE: Final = 0.05


@dataclass(frozen=True)
class WatchEvent:
    kind: Literal["put", "delete"]
    kv: KeyValue
    """For a delete: the key and the revision of its deletion."""
    prev: None = None


@dataclass(frozen=True)
class WatchBatch:
    revision: int
    """Events up to this revision were delivered (or may be lost, if `gap`); the next batch continues after it."""
    events: tuple[WatchEvent, ...]
    """All events of one or more revisions, in order. Empty: the watch was (re)established."""
    gap: bool


class Watch:
    def __init__(self, calls: Calls, key: bytes, end: bytes, *, start: int) -> None:
        self._calls = calls
        self._key = key
        self._end = end
        self._next = start
        self._cluster: int | None = None
        self._refused: str | None = None
        self._pause = SHORTEST_PAUSE

    async def batches(self) -> AsyncGenerator[WatchBatch, None]:
        while not self._calls.closed:
            try:
                if not self._next:
                    self._next = (await self._now()).revision + 1
                with closing(await self._calls.stream(wire.WATCH, refused=self._refused)) as stream:
                    batch = await self._begin(stream)
                    while not batch.gap:
                        yield batch
                        batch = await self._read(stream)
                yield batch
            except EtcdUnavailable:
                self._pause = min(LONGEST_PAUSE, 2 * self._pause)
                await asyncio.sleep(self._pause * RANDOM.uniform(0.5, 1))

    async def _begin(self, stream: BidiStream[pb.WatchRequest, pb.WatchResponse]) -> WatchBatch:
        """Returns an empty batch once etcd has created the watch; a gap if the store is older than the events seen, or another one."""
        asked = pb.WatchCreateRequest(key=self._key, range_end=self._end, start_revision=self._next)
        reply = await stream.exchange(pb.WatchRequest(create_request=asked), timeout=self._calls.timeout)
        if reply.canceled:
            return self._canceled(reply, stream)
        self._refused, self._pause = None, SHORTEST_PAUSE
        if reply.header.revision < self._next - 1 or self._cluster not in (None, reply.header.cluster_id):
            # A lagging member looks the same, so ask the cluster.
            now = await self._now()
            if now.revision < self._next - 1 or self._cluster not in (None, now.cluster_id):
                self._cluster = now.cluster_id
                return self._gap(now.revision)
        self._cluster = reply.header.cluster_id
        return WatchBatch(self._next - 1, (), gap=False)

    async def _read(self, stream: BidiStream[pb.WatchRequest, pb.WatchResponse]) -> WatchBatch:
        reply = await stream.receive()
        if reply.canceled:
            return self._canceled(reply, stream)
        if not reply.events:
            return WatchBatch(self._next - 1, (), gap=False)
        self._next = reply.events[-1].kv.mod_revision + 1
        return WatchBatch(self._next - 1, tuple(_event(each) for each in reply.events), gap=False)

    def _canceled(self, reply: pb.WatchResponse, stream: BidiStream[pb.WatchRequest, pb.WatchResponse]) -> WatchBatch:
        if reply.compact_revision:
            return self._gap(reply.compact_revision)
        code = "UNAVAILABLE"
        if "permission denied" in reply.cancel_reason:
            code = "PERMISSION_DENIED"
        elif any(words in reply.cancel_reason for words in LOGIN_REFUSED):
            if not stream.token:
                code = "UNAUTHENTICATED"
            self._refused = stream.token
        raise failure(code=code, details=reply.cancel_reason, what=wire.WATCH.name, where=stream.address)

    def _gap(self, revision: int) -> WatchBatch:
        self._next = revision + 1
        return WatchBatch(revision, (), gap=True)

    async def _now(self) -> pb.ResponseHeader:
        """The cluster's current revision and id, by a linearizable read."""
        asked = pb.RangeRequest(key=self._key, range_end=self._end, count_only=True)
        return (await self._calls.ask(wire.RANGE, asked, repeat=True)).header


def _event(message: pb.Event) -> WatchEvent:
    kind: Literal["put", "delete"] = "delete" if message.type == pb.Event.DELETE else "put"
    return WatchEvent(kind, wire.key_value(message.kv))
