"""`Informer`: what is there of one kind, as a list and then a watch saw it last. Implements `launch.kubernetes.Watched`.

It never ends by itself and never raises: whatever the API server says or does not say, the cache stays and it tries again. `synced`
says whether the cache is being kept up to date right now, not whether it is complete: what it does not hold proves nothing. So a kind
that is not served any more, a namespace without permission, an API server that is down all leave the cache as it was.

| met | done |
| --- | --- |
| the stream ends | resumed from the last version, of an event or a bookmark |
| 410, as an answer or an event | listed again; what is not in the list any more is told as deleted |
| any other ERROR event, an answer that is no stream | listed again after a pause |
| no connection, 429, 5xx | resumed after a pause; after a few in a row, listed again: the version may be of a store that was replaced |
| neither an event nor a bookmark for `silence` seconds | resumed: a connection may be dead without a word |

Lists are read in pages and are consistent reads, so a cache never goes back to what an older API server remembers. Objects are pruned
before they are kept (`prune.py`). kubernetes.aio's informer was not taken: it keeps whole objects, knows neither pages nor silence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from sparkonce.kube.backoff import pauses
from sparkonce.kube.client import ApiClient, Expired
from sparkonce.kube.prune import prune_application, prune_pod
from sparkonce.kube.seen import Seen
from sparkonce.launch.kubeflow import KEY_LABEL
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, ApiRefused, ApiUnavailable, Json, Resource

log = logging.getLogger(__name__)


class Change(StrEnum):
    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    """Not seen any more, and never proof of anything; the object as it was seen last."""
    RELISTED = "relisted"
    """Unchanged, and seen again in a list."""


OnChange = Callable[[Change, Json], None]


@dataclass(frozen=True)
class Pace:
    """How an informer treats the API server."""

    stream: int = 300
    """Seconds after which the API server is asked to end a stream: streams move on when there are more API servers."""
    silence: float = 75.0
    """Seconds without an event or bookmark, which come each minute, after which a stream counts as dead."""
    first: float = 0.2
    cap: float = 10.0
    """Seconds: the first and the longest pause after a failure."""
    resumes: int = 4
    """Failures in a row after which it lists again instead of resuming."""


class _ErrorEvent(Exception):
    """The stream said ERROR; what it said last may be wrong."""


class Informer:
    """`index`: the label whose values `labelled` finds. `namespaces` None: all. `on_change` must not block; what it raises is logged."""

    def __init__(
        self,
        client: ApiClient,
        resource: Resource,
        *,
        namespaces: Sequence[str] | None = None,
        selector: str = "",
        index: str,
        prune: Callable[[Json], Json] = lambda found: found,
        on_change: OnChange | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._client, self._resource, self._selector = client, resource, selector
        self._prune, self._on_change, self._pace = prune, on_change, pace or Pace()
        scopes: Sequence[str | None] = [None] if namespaces is None else sorted(set(namespaces))
        self._scopes = {scope: _Scope(Seen(index)) for scope in scopes}
        self._tasks: list[asyncio.Task[None]] = []

    # --- what is seen ---

    @property
    def synced(self) -> bool:
        return all(scope.live for scope in self._scopes.values())

    @property
    def quiet(self) -> float:
        """Seconds since the scope that was longest without a sign of life had one."""
        return time.monotonic() - min(scope.heard for scope in self._scopes.values())

    def get(self, namespace: str, name: str) -> Json | None:
        scope = self._scope(namespace)
        return scope.seen.get(namespace, name) if scope is not None else None

    def labelled(self, namespace: str, label: str, value: str) -> Sequence[Json]:
        scope = self._scope(namespace)
        return scope.seen.labelled(namespace, label, value) if scope is not None else ()

    def __len__(self) -> int:
        return sum(len(scope.seen) for scope in self._scopes.values())

    def _scope(self, namespace: str) -> _Scope | None:
        return self._scopes.get(None) or self._scopes.get(namespace)

    # --- how it is kept ---

    def start(self) -> None:
        """On the running loop."""
        for namespace, scope in self._scopes.items():
            self._tasks.append(asyncio.create_task(self._keep(namespace, scope), name=f"watch {self._resource.plural}"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def _keep(self, namespace: str | None, scope: _Scope) -> None:
        waits = pauses(self._pace.first, self._pace.cap)
        while True:
            began, pause = time.monotonic(), 0.0
            try:
                if scope.version is None:
                    await self._list(namespace, scope)
                await self._follow(namespace, scope)
            except Expired:
                scope.failed(resumes=0)
            except (ApiUnavailable, ApiRefused, _ErrorEvent) as error:
                passing = isinstance(error, ApiUnavailable) or (isinstance(error, ApiRefused) and error.code == 429)
                scope.failed(resumes=self._pace.resumes if passing else 0)
                if isinstance(error, ApiRefused):
                    pause = min(error.retry_after or 0.0, self._pace.cap)
                level = logging.WARNING if scope.failures == 1 else logging.DEBUG
                log.log(level, "%s in %s: %s", self._resource.plural, namespace or "all namespaces", error)
            except Exception:  # a defect of ours, or JSON that nobody expects, must not end the watch
                scope.failed(resumes=0)
                log.exception("watch of %s in %s", self._resource.plural, namespace or "all namespaces")
            if time.monotonic() - began > self._pace.cap:
                waits = pauses(self._pace.first, self._pace.cap)  # it went well for a while
            await asyncio.sleep(max(pause, next(waits)))

    async def _list(self, namespace: str | None, scope: _Scope) -> None:
        """Page by page, so that one page and the pruned cache are in memory at a time; deletions are told when the list is whole."""
        left = scope.seen.names()
        version = ""
        async for page, version in self._client.pages(self._resource, namespace, selector=self._selector):  # noqa: B007  # the last counts
            for found in page:
                left.discard(self._take(scope, found))
        for name in left:
            if (gone := scope.seen.remove(*name)) is not None:
                self._tell(Change.DELETED, gone)
        scope.listed(version)

    async def _follow(self, namespace: str | None, scope: _Scope) -> None:
        async with self._client.watch(
            self._resource,
            namespace,
            since=scope.version or "",
            selector=self._selector,
            seconds=self._pace.stream,
            silence=self._pace.silence,
        ) as events:
            scope.opened()
            async for kind, found in events:
                if kind == "ERROR":
                    if found.get("code") == 410:
                        raise Expired(str(found.get("message")))
                    raise _ErrorEvent(f"ERROR event {found.get('code')}: {found.get('message')}")
                if kind in {"ADDED", "MODIFIED"}:
                    self._take(scope, found)
                elif kind == "DELETED" and (name := _name_of(found)) is not None:
                    scope.seen.remove(*name)
                    self._tell(Change.DELETED, self._prune(found))
                scope.moved(found)

    def _take(self, scope: _Scope, found: Json) -> tuple[str, str]:
        name = _name_of(found)
        if name is None:
            return "", ""
        before = scope.seen.get(*name)
        if before is not None and before["metadata"].get("uid") != found["metadata"].get("uid"):
            scope.seen.remove(*name)
            self._tell(Change.DELETED, before)
            before = None
        if before is None:
            change = Change.ADDED
        elif before["metadata"].get("resourceVersion") == found["metadata"].get("resourceVersion"):
            change = Change.RELISTED
        else:
            change = Change.MODIFIED
        kept = self._prune(found)
        scope.seen.put(*name, kept)
        self._tell(change, kept)
        return name

    def _tell(self, change: Change, found: Json) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(change, found)
        except Exception:
            log.exception("what follows a change of %s", self._resource.plural)


class _Scope:
    """One list and watch: all namespaces, or one."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.version: str | None = None
        """To resume from; None: list first."""
        self.live = False
        self.heard = time.monotonic()
        self.failures = 0

    def listed(self, version: str) -> None:
        self.version, self.heard = version, time.monotonic()

    def opened(self) -> None:
        self.live, self.heard, self.failures = True, time.monotonic(), 0

    def moved(self, found: Json) -> None:
        self.heard = time.monotonic()
        version = (found.get("metadata") or {}).get("resourceVersion")
        if isinstance(version, str) and version:
            self.version = version

    def failed(self, *, resumes: int) -> None:
        self.live = False
        self.failures += 1
        if self.failures > resumes:
            self.version = None


def _name_of(found: Json) -> tuple[str, str] | None:
    metadata = found.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return None
    return str(metadata.get("namespace") or ""), metadata["name"]


def applications(
    client: ApiClient, namespaces: Sequence[str] | None, on_change: OnChange | None = None, *, pace: Pace | None = None
) -> Informer:
    """SparkApplications of ours, found by the key's label."""
    return Informer(
        client,
        SPARK_APPLICATIONS,
        namespaces=namespaces,
        selector=KEY_LABEL,
        index=KEY_LABEL,
        prune=prune_application,
        on_change=on_change,
        pace=pace,
    )


def driver_pods(
    client: ApiClient, namespaces: Sequence[str] | None, on_change: OnChange | None = None, *, pace: Pace | None = None
) -> Informer:
    """Pods of ours that are no executors: a driver, or a stub that keeps a driver's name."""
    return Informer(
        client,
        PODS,
        namespaces=namespaces,
        selector=f"{KEY_LABEL},spark-role!=executor",
        index=KEY_LABEL,
        prune=prune_pod,
        on_change=on_change,
        pace=pace,
    )
