"""`Informer`: a cache of the objects of one kind, kept by a list and a watch. Implements `launch.kubernetes.Watched`.

It never ends by itself and never raises: whatever the API server answers, the cache stays and the informer retries. `synced` means that the
cache is being kept up to date now, not that it is complete: the absence of an object proves nothing. So a kind that is no longer served, a
namespace without permission and an API server that is down all leave the cache as it was.

| event | reaction |
| --- | --- |
| the stream ends | resumed from the last version of an event or a bookmark |
| 410, as an answer or an event | listed again; objects missing from the list are reported as deleted |
| any other ERROR event, an answer that is not a stream | listed again after a pause |
| no connection, 429, 5xx | resumed after a pause; after a few in a row, listed again: the version may be of a store that was replaced |
| neither an event nor a bookmark for `silence` seconds | resumed: a connection may be dead without an error |

Lists are read in pages and are consistent reads, so a cache never goes back to the state of an outdated API server. `kubernetes.aio`'s
informer was rejected: it keeps whole objects and supports neither pages nor a limit on silence.

Objects are pruned before they are cached, to the fields that `launch.kubeflow.observe` and `launch.kubeflow.pod` read: 10,000 finished
applications with their pods take a tenth of their full 200 MB. Fields to keep are listed, not fields to drop, so that fields of a new
Kubernetes version change nothing. A test proves that an observation of pruned objects equals that of whole ones.

Retries back off exponentially with jitter over the upper half of each pause: three replicas that lost the same API server must not all list
10,000 objects at the same instant when it is back. `pauses` is an iterator because kopf needs an iterable of seconds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sparkonce.kube.client import ApiClient, Expired
from sparkonce.launch.kubeflow.labels import KEY_LABEL
from sparkonce.launch.kubeflow.pod import MESSAGE, TERMINATION
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, ApiRefused, ApiUnavailable, Json, Resource

Name = tuple[str, str]
"""Namespace and name."""


class ObjectCache:
    """Objects by namespace and name, and by the value of one label."""

    def __init__(self, index: str) -> None:
        self._label = index
        self._objects: dict[Name, Json] = {}
        self._values: dict[Name, set[str]] = {}  # names by namespace and value of the label

    def __len__(self) -> int:
        return len(self._objects)

    def names(self) -> set[Name]:
        return set(self._objects)

    def get(self, namespace: str, name: str) -> Json | None:
        return self._objects.get((namespace, name))

    def labelled(self, namespace: str, label: str, value: str) -> Sequence[Json]:
        if label != self._label:
            raise ValueError(f"only {self._label} is indexed, not {label}")
        return [self._objects[namespace, name] for name in sorted(self._values.get((namespace, value), ()))]

    def put(self, namespace: str, name: str, found: Json) -> None:
        self.remove(namespace, name)
        self._objects[namespace, name] = found
        if (value := self._value(found)) is not None:
            self._values.setdefault((namespace, value), set()).add(name)

    def remove(self, namespace: str, name: str) -> Json | None:
        found = self._objects.pop((namespace, name), None)
        if found is not None and (value := self._value(found)) is not None:
            names = self._values[namespace, value]
            names.discard(name)
            if not names:
                del self._values[namespace, value]
        return found

    def _value(self, found: Json) -> str | None:
        labels = found["metadata"].get("labels")
        value = labels.get(self._label) if isinstance(labels, dict) else None
        return value if isinstance(value, str) else None


_IDENTITY = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_ANNOTATIONS = ("sparkonce.dev/", "kueue.x-k8s.io/")
"""Prefixes of the annotations to keep; kubectl stores the whole manifest in another one."""
_STATUS = ("executionAttempts", "submissionAttempts", "submissionID", "sparkApplicationId", "terminationTime")
_CONDITION = ("type", "status", "reason", "lastTransitionTime")
_TERMINATED = ("exitCode", "reason", "finishedAt", "startedAt")
_OUTPUT = 4096
"""Maximum characters of an application's error message: the output of spark-submit may be long, and its end is what counts."""


def prune_application(found: Json) -> Json:
    """A SparkApplication without its template and configuration."""
    spec, status = found.get("spec"), found.get("status")
    kept = _head(found)
    if isinstance(spec, dict) and "suspend" in spec:
        kept["spec"] = {"suspend": spec["suspend"]}
    if isinstance(status, dict):
        kept["status"] = _only(status, _STATUS)
        state, driver = status.get("applicationState"), status.get("driverInfo")
        if isinstance(state, dict):
            kept["status"]["applicationState"] = _only(state, ("state",)) | _ends(state)
        if isinstance(driver, dict):
            kept["status"]["driverInfo"] = _only(driver, ("podName",))
    return kept


def prune_pod(found: Json) -> Json:
    """A driver or executor pod, whose spec is reduced to its node."""
    spec, status = found.get("spec"), found.get("status")
    kept = _head(found)
    if isinstance(spec, dict) and "nodeName" in spec:
        kept["spec"] = {"nodeName": spec["nodeName"]}
    if isinstance(status, dict):
        kept["status"] = _only(status, ("phase", "reason")) | _begins(status)
        for field, prune in (("containerStatuses", _container), ("conditions", _condition)):
            each = status.get(field)
            if isinstance(each, list):
                kept["status"][field] = [prune(one) if isinstance(one, dict) else one for one in each]
    return kept


def _head(found: Json) -> Json:
    kept = _only(found, ("apiVersion", "kind"))
    metadata = found.get("metadata")
    if isinstance(metadata, dict):
        kept["metadata"] = _only(metadata, _IDENTITY)
        annotations, owners = metadata.get("annotations"), metadata.get("ownerReferences")
        if isinstance(annotations, dict):
            ours = {name: value for name, value in annotations.items() if name.startswith(_ANNOTATIONS)}
            kept["metadata"] |= {"annotations": ours} if ours else {}
        if isinstance(owners, list):
            kept["metadata"]["ownerReferences"] = [
                _only(each, ("kind", "name", "uid")) if isinstance(each, dict) else each for each in owners
            ]
    return kept


def _container(found: Mapping[str, Any]) -> Json:
    kept = _only(found, ("name", "ready", "restartCount"))
    state = found.get("state")
    if isinstance(state, dict):
        kept["state"] = {}
        terminated, waiting = state.get("terminated"), state.get("waiting")
        if isinstance(terminated, dict):
            kept["state"]["terminated"] = _only(terminated, _TERMINATED)
            if isinstance(message := terminated.get("message"), str):
                kept["state"]["terminated"]["message"] = message[-TERMINATION:]
        if isinstance(waiting, dict):
            kept["state"]["waiting"] = _only(waiting, ("reason",)) | _begins(waiting)
        if "running" in state:
            kept["state"]["running"] = {}
    return kept


def _condition(found: Mapping[str, Any]) -> Json:
    return _only(found, _CONDITION) | _begins(found)


def _begins(found: Mapping[str, Any]) -> Json:
    message = found.get("message")
    return {"message": message[:MESSAGE]} if isinstance(message, str) else {}


def _ends(state: Mapping[str, Any]) -> Json:
    """Beginning and end of a long error message: how the application ended, and what was printed last."""
    message = state.get("errorMessage")
    if not isinstance(message, str):
        return {}
    half = _OUTPUT // 2
    return {"errorMessage": message if len(message) <= _OUTPUT else message[:half] + message[-half:]}


def _only(found: Mapping[str, Any], names: tuple[str, ...]) -> Json:
    return {name: found[name] for name in names if name in found}


def pauses(first: float, cap: float, *, chance: Callable[[], float] = random.random) -> Iterator[float]:
    """Infinite backoff in seconds: the n-th pause is random between half and all of `first` doubled n times, at most `cap`."""
    wait = first
    while True:
        yield wait * (0.5 + chance() / 2)
        wait = min(wait * 2, cap)


log = logging.getLogger(__name__)


class ObjectChange(StrEnum):
    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    """No longer seen, which proves nothing; carries the object as last seen."""
    RELISTED = "relisted"
    """Unchanged, in a new list."""


OnChange = Callable[[ObjectChange, Json], None]


@dataclass(frozen=True)
class Pace:
    """Timing of an informer."""

    stream: int = 300
    """Seconds after which the API server ends a stream, so that streams spread to new API servers."""
    silence: float = 75.0
    """Seconds without an event or bookmark (one per minute) after which a stream counts as dead."""
    first: float = 0.2
    cap: float = 10.0
    """First and longest pause after a failure, in seconds."""
    resumes: int = 4
    """Consecutive failures after which it lists again instead of resuming."""


class _ErrorEvent(Exception):
    """The stream sent an ERROR event; its last version may be invalid."""


class Informer:
    """See the module.

    index: the label that `labelled` searches. namespaces: None for all. on_change: must not block; its errors are logged."""

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
        self._scopes = {scope: _WatchScope(ObjectCache(index)) for scope in scopes}
        self._tasks: list[asyncio.Task[None]] = []

    # --- cache ---

    @property
    def synced(self) -> bool:
        return all(scope.live for scope in self._scopes.values())

    @property
    def quiet(self) -> float:
        """Seconds since the last event or bookmark of the scope that has been silent longest."""
        return time.monotonic() - min(scope.heard for scope in self._scopes.values())

    def get(self, namespace: str, name: str) -> Json | None:
        scope = self._scope(namespace)
        return scope.seen.get(namespace, name) if scope is not None else None

    def version(self, namespace: str) -> str | None:
        scope = self._scope(namespace)
        return scope.version if scope is not None and scope.live else None

    def labelled(self, namespace: str, label: str, value: str) -> Sequence[Json]:
        scope = self._scope(namespace)
        return scope.seen.labelled(namespace, label, value) if scope is not None else ()

    def __len__(self) -> int:
        return sum(len(scope.seen) for scope in self._scopes.values())

    def _scope(self, namespace: str) -> _WatchScope | None:
        return self._scopes.get(None) or self._scopes.get(namespace)

    # --- list and watch ---

    def start(self) -> None:
        """Starts the watches on the running event loop."""
        for namespace, scope in self._scopes.items():
            self._tasks.append(asyncio.create_task(self._keep(namespace, scope), name=f"watch {self._resource.plural}"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def _keep(self, namespace: str | None, scope: _WatchScope) -> None:
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
            except Exception:  # a defect of ours, or unexpected JSON, must not end the watch
                scope.failed(resumes=0)
                log.exception("watch of %s in %s", self._resource.plural, namespace or "all namespaces")
            if time.monotonic() - began > self._pace.cap:
                waits = pauses(self._pace.first, self._pace.cap)  # the stream had been healthy
            await asyncio.sleep(max(pause, next(waits)))

    async def _list(self, namespace: str | None, scope: _WatchScope) -> None:
        """Lists page by page, so that only one page and the pruned cache are in memory; reports deletions once the list is complete."""
        left = scope.seen.names()
        version = ""
        async for page, version in self._client.pages(self._resource, namespace, selector=self._selector):  # noqa: B007  # the last counts
            for found in page:
                left.discard(self._take(scope, found))
        for name in left:
            if (gone := scope.seen.remove(*name)) is not None:
                self._tell(ObjectChange.DELETED, gone)
        scope.listed(version)

    async def _follow(self, namespace: str | None, scope: _WatchScope) -> None:
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
                    self._tell(ObjectChange.DELETED, self._prune(found))
                scope.moved(found)

    def _take(self, scope: _WatchScope, found: Json) -> tuple[str, str]:
        name = _name_of(found)
        if name is None:
            return "", ""
        before = scope.seen.get(*name)
        if before is not None and before["metadata"].get("uid") != found["metadata"].get("uid"):
            scope.seen.remove(*name)
            self._tell(ObjectChange.DELETED, before)
            before = None
        if before is None:
            change = ObjectChange.ADDED
        elif before["metadata"].get("resourceVersion") == found["metadata"].get("resourceVersion"):
            change = ObjectChange.RELISTED
        else:
            change = ObjectChange.MODIFIED
        kept = self._prune(found)
        scope.seen.put(*name, kept)
        self._tell(change, kept)
        return name

    def _tell(self, change: ObjectChange, found: Json) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(change, found)
        except Exception:
            log.exception("what follows a change of %s", self._resource.plural)


class _WatchScope:
    """One list and watch: all namespaces, or one."""

    def __init__(self, seen: ObjectCache) -> None:
        self.seen = seen
        self.version: str | None = None
        """Version to resume from; None to list first."""
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
    """Informer of our SparkApplications, indexed by the key's label."""
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
    """Informer of our pods without executors: drivers, and stubs that hold a driver's name."""
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
