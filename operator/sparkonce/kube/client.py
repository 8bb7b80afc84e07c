"""`ApiClient`: the verbs of `launch.kubernetes.Kubernetes`, and the pages and streams that an `Informer` needs, as plain JSON.

It knows paths and bodies; what an answer means is in `answers.py`, how a call is sent in `transport.py`. The generated models and typed
clients of `kubernetes.aio` were not taken: a SparkApplication has no model there, and building one of a Pod costs more than the call.

Nothing is repeated here, and nothing is remembered: whoever gets ApiUnavailable knows best whether to repeat the same, and must.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

from sparkonce.kube.answers import Answer, Asked, read
from sparkonce.kube.login import Login
from sparkonce.kube.transport import Limits, Transport
from sparkonce.launch.kubernetes import (
    PODS,
    AlreadyExists,
    ApiConflict,
    ApiRefused,
    ApiUnavailable,
    Json,
    Resource,
)

OnCall = Callable[[str, str, str], None]
"""Verb, kind and result of each call: ok, absent, exists, conflict, refused, unavailable. Must not raise."""
MERGE_PATCH = "application/merge-patch+json"
LOG_LINES, LOG_BYTES = 40, 64 * 1024
"""Of a log: lines enough for a traceback, and no more bytes than that however long the lines are."""
LISTS = 3
"""How often a list is begun anew because its continuation expired: each page then took minutes, and asking for ever would not help."""


class Expired(ApiUnavailable):
    """410: what was asked to continue from is not kept any more; list again."""


class ApiClient:
    """One per process and loop. Implements `Kubernetes`."""

    def __init__(self, login: Login, *, limits: Limits | None = None, on_call: OnCall | None = None) -> None:
        self._limits = limits or Limits()
        self._transport = Transport(login, self._limits)
        self._on_call = on_call

    async def close(self) -> None:
        await self._transport.close()

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Json:
        name = body.get("metadata", {}).get("name", "")
        asked = Asked("create", resource, namespace, name)
        stored = await self._call("POST", path_of(resource, namespace), asked, body=body)
        if stored is None:
            raise ApiUnavailable(f"the API server's answer to {asked} cannot be read; it may have been done")
        return stored

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        path = path_of(resource, namespace) + _part(name)
        return await self._call("GET", path, Asked("get", resource, namespace, name))

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Json | None:
        metadata = patch.get("metadata", {})
        if subresource and "uid" in metadata and "resourceVersion" not in metadata:
            raise ValueError(f"a UID is no precondition of a patch of {subresource}: give the resourceVersion as well")
        asked = Asked("patch", resource, namespace, name)
        path = path_of(resource, namespace) + _part(name) + (f"/{subresource}" if subresource else "")
        return await self._call("PATCH", path, asked, body=patch, content_type=MERGE_PATCH)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> bool:
        if not uid:
            raise ValueError("a deletion names the UID that it means: an empty one would delete whatever is there")
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        asked = Asked("delete", resource, namespace, name)
        path = path_of(resource, namespace) + _part(name)
        try:
            done = await self._call("DELETE", path, asked, body=options)
        except ApiConflict:
            there = await self.get(resource, namespace, name)
            if there is not None and there["metadata"].get("uid") == uid:
                raise  # it is this one, and something else was in the way
            return False
        return done is not None

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[Json]:
        selector = ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items()))
        for _ in range(LISTS):
            try:
                found: list[Json] = []
                async for page, _ in self.pages(resource, namespace, selector=selector):
                    found.extend(page)
            except Expired:
                continue
            return found
        raise ApiUnavailable(f"cannot list {resource.kind} now: pages expire before they are read")

    async def pages(
        self, resource: Resource, namespace: str | None, *, selector: str = ""
    ) -> AsyncIterator[tuple[Sequence[Json], str]]:
        """Each page with the resourceVersion of the list, which is one for all pages. Expired: begin anew."""
        asked = Asked("list", resource, namespace)
        token = ""
        while True:
            query: dict[str, str | int] = {"limit": self._limits.page}
            query |= {"labelSelector": selector} if selector else {}
            query |= {"continue": token} if token else {}
            try:
                body = await self._call("GET", f"{path_of(resource, namespace)}?{urlencode(query)}", asked)
            except ApiRefused as refusal:
                if refusal.code == 410:
                    raise Expired(str(refusal)) from refusal
                raise
            if body is None:
                raise ApiUnavailable(f"cannot {asked} now: {resource.plural} are not served")
            for item in body["items"]:
                item.setdefault("apiVersion", resource.api_version)
                item.setdefault("kind", resource.kind)
            yield body["items"], str(body["metadata"].get("resourceVersion", ""))
            token = body["metadata"].get("continue") or ""
            if not token:
                return

    async def log_tail(self, namespace: str, pod: str, container: str) -> str:
        """The last lines of a container's log as text; empty when the pod is gone. ApiRefused, ApiUnavailable."""
        asked = Asked("log", PODS, namespace, pod)
        query = urlencode({"container": container, "tailLines": LOG_LINES, "limitBytes": LOG_BYTES})
        result = "unavailable"
        try:
            answer = await self._transport.call("GET", f"{path_of(PODS, namespace)}{_part(pod)}/log?{query}", asked)
            if answer.status == 200:
                result = "ok"
                return answer.content[:LOG_BYTES].decode(errors="replace")
            read(answer, asked)
            result = "absent"
        except ApiRefused:
            result = "refused"
            raise
        finally:
            self._told(asked, result)
        return ""

    async def served(self, resource: Resource) -> bool:
        """Not while its CustomResourceDefinition is being deleted: discovery then lists no `create` any more."""
        asked = Asked("discover", resource)
        try:
            body = await self._call("GET", _group(resource), asked)
        except _GroupMissing:
            return False
        listed = body["resources"] if body is not None else []
        return any(
            isinstance(each, dict) and each.get("name") == resource.plural and "create" in (each.get("verbs") or ())
            for each in listed
        )

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        since: str,
        selector: str = "",
        seconds: int = 300,
        silence: float = 75.0,
    ) -> AsyncIterator[AsyncIterator[tuple[str, Json]]]:
        """(type, object) of each event after `since`, bookmarks and ERROR events too, until the server ends it (after `seconds`).

        ApiUnavailable: a broken or silent stream. Expired: 410 on opening."""
        asked = Asked("watch", resource, namespace)
        query: dict[str, str | int] = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": since}
        query |= {"timeoutSeconds": seconds} | ({"labelSelector": selector} if selector else {})
        path = f"{path_of(resource, namespace)}?{urlencode(query)}"
        async with self._transport.stream(path, asked, silence=silence) as opened:
            if isinstance(opened, Answer):
                self._told(asked, "refused" if 400 <= opened.status < 500 else "unavailable")
                if opened.status == 410:
                    raise Expired(f"cannot {asked} from {since}: it is not kept any more")
                read(opened, asked)
                raise ApiUnavailable(f"cannot {asked} now: the API server answered {opened.status}")
            self._told(asked, "ok")
            yield _events(opened.iter_any(), asked)

    async def _call(
        self,
        method: str,
        path: str,
        asked: Asked,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Json | None:
        result = "unavailable"
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        try:
            answer = await self._transport.call(method, path, asked, body=content, content_type=content_type)
            if answer.status == 404 and asked.verb == "discover":
                raise _GroupMissing
            found = read(answer, asked)
            result = "ok" if found is not None else "absent"
            return found
        except AlreadyExists:
            result = "exists"
            raise
        except ApiConflict:
            result = "conflict"
            raise
        except ApiRefused:
            result = "refused"
            raise
        finally:
            self._told(asked, result)

    def _told(self, asked: Asked, result: str) -> None:
        if self._on_call is not None:
            self._on_call(asked.verb, asked.resource.kind, result)


class _GroupMissing(Exception):
    """Discovery of a group and version answered 404: the API server itself says that it does not serve it."""


async def _events(chunks: AsyncIterator[bytes], asked: Asked) -> AsyncIterator[tuple[str, Json]]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.strip():
                continue
            try:
                event = json.loads(line)
                kind, found = event["type"], event["object"]
            except (ValueError, KeyError, TypeError) as error:
                raise ApiUnavailable(f"cannot {asked}: an event cannot be read") from error
            if isinstance(found, dict):
                yield str(kind), found


def _group(resource: Resource) -> str:
    return f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"


def path_of(resource: Resource, namespace: str | None) -> str:
    """Of the collection; of all namespaces for None."""
    scoped = resource.namespaced and namespace is not None
    return _group(resource) + (f"/namespaces{_part(namespace or '')}" if scoped else "") + f"/{resource.plural}"


def _part(name: str) -> str:
    """With its slash. What is no name ('' or '..') must never make the path of something else."""
    if name in {"", ".", ".."}:
        raise ValueError(f"{name!r} is no name of an object")
    return "/" + quote(name, safe="")
