"""Kubernetes Events of our objects, which `kubectl describe` shows under a job. Informational, best effort, never blocking.

`record` only queues and returns. One task writes: a first Event per object and reason is created, later ones within `WINDOW` raise its
count, and repeats that arrive faster than they can be written are one write. An Event that the API server refuses, or does not answer
twice, is dropped and counted; so are new ones while `PENDING` are queued. Nothing here may delay or fail a drive, and the status reports
the same facts.

core/v1 and not events.k8s.io/v1: both show the same in kubectl, and the newer one splits the count into a series that the API server
expects a heartbeat for. kopf's own events were rejected: they need a handler's context and go through its unlimited session.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from sparkonce.launch.kubernetes import EVENTS, AlreadyExists, ApiRefused, ApiUnavailable, Json, Kubernetes

log = logging.getLogger(__name__)

PENDING = 1000
"""Maximum queued Events: about 30 s of writing; the rest of a larger burst would not be read."""
KNOWN = 4096
"""Objects and reasons whose Event is remembered, to raise its count."""
WINDOW = 600.0
"""Seconds for which one Event counts repeats; the API server forgets Events after an hour."""
AGAIN = 1.0
"""Seconds before the only retry."""
MESSAGE = 1024
"""Maximum characters; the API server refuses more."""
COMPONENT = "sparkonce"


class Level(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class About:
    """Key of an Event: object, reason and level."""

    uid: str
    reason: str
    level: Level


@dataclass
class _PendingEvent:
    object: Json
    message: str
    first: datetime
    last: datetime
    count: int = 1


@dataclass
class _Posted:
    name: str
    count: int
    at: float = field(default_factory=time.monotonic)


class EventRecorder:
    """Writes Events in the background. host: names this process in them. on_drop: called with the reason of a dropped Event: full, refused,
    unavailable."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        *,
        host: str,
        on_drop: Callable[[str], None] = lambda _: None,
        again: float = AGAIN,
    ) -> None:
        self._kubernetes, self._host, self._on_drop, self._again = kubernetes, host, on_drop, again
        self._pending: OrderedDict[About, _PendingEvent] = OrderedDict()
        self._posted: OrderedDict[About, _Posted] = OrderedDict()
        self._some, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._write(), name="events")

    async def stop(self, grace: float = 1.0) -> None:
        """Writes queued Events for at most `grace` seconds, then drops the rest."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def record(self, about: Json, reason: str, message: str, *, level: Level = Level.NORMAL) -> None:
        """Queues an Event. about: the object, of which kind, namespace, name and UID are used. reason: one CamelCase word."""
        metadata = about.get("metadata") or {}
        key = About(str(metadata.get("uid")), reason, level)
        now = datetime.now(UTC)
        waiting = self._pending.get(key)
        if waiting is not None:
            waiting.message, waiting.last, waiting.count = message, now, waiting.count + 1
            return
        if len(self._pending) >= PENDING:
            self._on_drop("full")
            return
        self._pending[key] = _PendingEvent(_reference(about), message, now, now)
        self._some.set()
        self._idle.clear()

    async def _write(self) -> None:
        while True:
            await self._some.wait()
            while self._pending:
                key, note = self._pending.popitem(last=False)
                try:
                    await self._post(key, note)
                except ApiRefused as error:
                    self._on_drop("refused")
                    log.debug("event %s: %s", key.reason, error)
                except ApiUnavailable as error:
                    self._on_drop("unavailable")
                    log.debug("event %s: %s", key.reason, error)
                except Exception:  # a malformed object must not block the others
                    self._on_drop("refused")
                    log.exception("event %s", key.reason)
            self._some.clear()
            self._idle.set()

    async def _post(self, key: About, note: _PendingEvent) -> None:
        namespace = str(note.object.get("namespace"))
        posted = self._posted.pop(key, None)
        if posted is not None and time.monotonic() - posted.at < WINDOW:
            count = posted.count + note.count
            change = {"count": count, "lastTimestamp": _stamp(note.last), "message": note.message[:MESSAGE]}
            if await self._kubernetes.patch(EVENTS, namespace, posted.name, change) is not None:
                self._remember(key, _Posted(posted.name, count, posted.at))
                return
        body = self._body(key, note)
        try:
            await self._kubernetes.create(EVENTS, namespace, body)
        except ApiUnavailable:
            await asyncio.sleep(self._again)
            with suppress(AlreadyExists):  # the first request had succeeded
                await self._kubernetes.create(EVENTS, namespace, body)
        self._remember(key, _Posted(body["metadata"]["name"], note.count))

    def _remember(self, key: About, posted: _Posted) -> None:
        self._posted[key] = posted
        while len(self._posted) > KNOWN:
            self._posted.popitem(last=False)

    def _body(self, key: About, note: _PendingEvent) -> Json:
        name = f"{str(note.object.get('name'))[:200]}.{secrets.token_hex(8)}"
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": note.object.get("namespace")},
            "involvedObject": note.object,
            "type": key.level.value,
            "reason": key.reason,
            "message": note.message[:MESSAGE],
            "firstTimestamp": _stamp(note.first),
            "lastTimestamp": _stamp(note.last),
            "count": note.count,
            "source": {"component": COMPONENT, "host": self._host},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._host,
        }


def _reference(about: Json) -> Json:
    metadata = about.get("metadata") or {}
    found = {"apiVersion": about.get("apiVersion"), "kind": about.get("kind")}
    found |= {name: metadata.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}
    return {name: value for name, value in found.items() if value is not None}


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
