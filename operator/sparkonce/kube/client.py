"""`ApiClient`: implements `launch.kubernetes.Kubernetes`, and the pages and streams that an `Informer` needs, with plain JSON.

It builds paths and bodies; `answers` interprets answers, `transport` sends requests. The generated models and typed clients of
`kubernetes.aio` were rejected: a SparkApplication has no model there, and building one of a Pod costs more than the call.

Nothing is retried or cached here: the caller that gets ApiUnavailable must decide whether to repeat the same request.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

from sparkonce.kube.answers import ApiRequest, ApiResponse, read
from sparkonce.kube.login import KubeLogin
from sparkonce.kube.transport import Limits, Transport
from sparkonce.launch.kubernetes import (
    EVENTS,
    PODS,
    AlreadyExists,
    ApiConflict,
    ApiRefused,
    ApiUnavailable,
    Json,
    Resource,
)

_TOKEN_REQUESTS = Resource("", "v1", "serviceaccounts", "TokenRequest")
"""The subresource `token` of a service account: a 404 names the account."""
_SELF_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
OnCall = Callable[[str, str, str], None]
"""Verb, kind and result of each call: ok, absent, exists, conflict, refused, unavailable. Must not raise."""
MERGE_PATCH = "application/merge-patch+json"
LOG_LINES, LOG_BYTES = 2000, 1024 * 1024
"""Limits of a log: an exception that Spark wraps and prints three times is some 400 lines, and 30 lines of shutdown follow it; the bytes
bound what one answer takes, however long its lines are."""
LAST_LINES = 200
"""The lines that are read when the others did not fit: of a log that is too long the API server sends the beginning, not the end."""
WARNINGS = 100
"""Events of one object that are read: a kubelet counts the same message instead of repeating it, so that a pod has a few."""
LISTS = 3
"""Maximum restarts of a list whose continuation expired: each page took minutes then, and endless retries would not help."""


class Expired(ApiUnavailable):
    """410: the version to continue from is no longer available; list again."""


NESTED = 12_000
"""Python's limit of recursion in a process with a client: an API server takes JSON of 10,000 levels."""


class ApiClient:
    """Implements `Kubernetes`. One per process and event loop."""

    def __init__(self, login: KubeLogin, *, limits: Limits | None = None, on_call: OnCall | None = None) -> None:
        # kopf and this client parse what any tenant has stored: a RecursionError would end the watch and each list for all.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), NESTED))
        self._limits = limits or Limits()
        self._transport = Transport(login, self._limits)
        self._on_call = on_call

    async def close(self) -> None:
        await self._transport.close()

    async def create(
        self,
        resource: Resource,
        namespace: str,
        body: Mapping[str, Any],
        *,
        strict: bool = True,
        dry_run: bool = False,
    ) -> Json:
        """See `Kubernetes.create`. `dry_run`: everything is checked, by webhooks and quotas as well, and nothing is stored."""
        name = body.get("metadata", {}).get("name", "")
        asked = ApiRequest("create", resource, namespace, name)
        query = {"fieldValidation": "Strict" if strict else "Ignore"} | ({"dryRun": "All"} if dry_run else {})
        stored = await self._call("POST", f"{path_of(resource, namespace)}?{urlencode(query)}", asked, body=body)
        if stored is None:
            raise ApiUnavailable(f"the API server's answer to {asked} cannot be read; it may have been done")
        return stored

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        path = path_of(resource, namespace) + _part(name)
        return await self._call("GET", path, ApiRequest("get", resource, namespace, name))

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Json | None:
        metadata = patch.get("metadata", {})
        if subresource and "uid" in metadata and "resourceVersion" not in metadata:
            raise ValueError(
                f"a UID is not a precondition of a patch of {subresource}: give the resourceVersion as well"
            )
        asked = ApiRequest("patch", resource, namespace, name)
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
        asked = ApiRequest("delete", resource, namespace, name)
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
        """Yields each page with the list's resourceVersion, which is the same for all pages.

        Raises:
            Expired: the continuation expired; start again.
        """
        asked = ApiRequest("list", resource, namespace)
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
        """The last lines of a container's log; empty if the pod is gone.

        Raises:
            ApiRefused, ApiUnavailable: the log cannot be read.
        """
        log = await self._log(namespace, pod, container, LOG_LINES)
        if len(log) >= LOG_BYTES:
            log = await self._log(namespace, pod, container, LAST_LINES)
        return log[:LOG_BYTES].decode(errors="replace")

    async def warnings(self, namespace: str, uid: str) -> Sequence[Json]:
        """Events of type Warning about the object of this UID: at most `WARNINGS`, the first in the order of their names.

        Raises:
            ApiRefused, ApiUnavailable: they cannot be read.
        """
        asked = ApiRequest("list", EVENTS, namespace)
        query = urlencode({"fieldSelector": f"involvedObject.uid={uid},type=Warning", "limit": WARNINGS})
        body = await self._call("GET", f"{path_of(EVENTS, namespace)}?{query}", asked)
        return [each for each in body["items"] if isinstance(each, dict)] if body is not None else []

    async def _log(self, namespace: str, pod: str, container: str, lines: int) -> bytes:
        asked = ApiRequest("log", PODS, namespace, pod)
        query = urlencode({"container": container, "tailLines": lines, "limitBytes": LOG_BYTES})
        result = "unavailable"
        try:
            answer = await self._transport.call("GET", f"{path_of(PODS, namespace)}{_part(pod)}/log?{query}", asked)
            if answer.status == 200:
                result = "ok"
                return answer.content
            read(answer, asked)
            result = "absent"
        except ApiRefused:
            result = "refused"
            raise
        finally:
            self._told(asked, result)
        return b""

    async def token(self, namespace: str, account: str, *, audience: str, seconds: int) -> str | None:
        """A token of a service account for this audience (TokenRequest); None: there is no such account.

        Raises:
            ApiRefused, ApiUnavailable: none was made, or its answer was lost, which harms nothing.
        """
        asked = ApiRequest("create", _TOKEN_REQUESTS, namespace, account)
        spec = {"audiences": [audience], "expirationSeconds": seconds}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"{path_of(_TOKEN_REQUESTS, namespace)}{_part(account)}/token"
        made = await self._call("POST", path, asked, body=body)
        if made is None:
            return None
        token = made.get("status", {}).get("token")
        if not isinstance(token, str) or not token:
            raise ApiUnavailable(f"the API server's answer to {asked} has no token")
        return token

    async def user_name(self) -> str:
        """The name by which the API server knows us (SelfSubjectReview).

        Raises:
            ApiRefused, ApiUnavailable.
        """
        body = {"apiVersion": _SELF_REVIEWS.api_version, "kind": _SELF_REVIEWS.kind}
        said = await self.create(_SELF_REVIEWS, "", body)
        return str(((said.get("status") or {}).get("userInfo") or {}).get("username") or "")

    async def history(
        self, resource: Resource, namespace: str, name: str, *, since: str, until: Mapping[str, Any]
    ) -> Sequence[tuple[str, Json]] | None:
        """See `Kubernetes.history`: a watch of one name, which ends at the version that the caller has read already."""
        last = (until["metadata"].get("uid"), until["metadata"].get("resourceVersion"))
        found: list[tuple[str, Json]] = []
        seconds = self._limits.deadline
        try:
            async with self.watch(
                resource,
                namespace,
                since=since,
                fields=f"metadata.name={name}",
                seconds=max(1, round(seconds)),
                silence=seconds,
            ) as events:
                async for kind, each in events:
                    if kind == "BOOKMARK":
                        continue
                    if kind == "ERROR":
                        if each.get("code") == 410:
                            return None
                        raise ApiUnavailable(f"cannot read what {name} has named since {since}: {each.get('message')}")
                    found.append((kind, each))
                    metadata = each.get("metadata") or {}
                    if (metadata.get("uid"), metadata.get("resourceVersion")) == last:
                        return found
        except Expired:
            return None
        return None  # what was read before was not among the changes: this is not its history

    async def served(self, resource: Resource) -> bool:
        """See `Kubernetes.served`. False while its CustomResourceDefinition is being deleted: discovery then no longer lists `create`."""
        asked = ApiRequest("discover", resource)
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
        fields: str = "",
        seconds: int = 300,
        silence: float = 75.0,
    ) -> AsyncIterator[AsyncIterator[tuple[str, Json]]]:
        """Yields (type, object) of each event after `since`, also bookmarks and ERROR events, until the server ends it (after `seconds`).

        Raises:
            ApiUnavailable: a broken or silent stream.
            Expired: 410 on opening.
        """
        asked = ApiRequest("watch", resource, namespace)
        query: dict[str, str | int] = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": since}
        query |= {"timeoutSeconds": seconds} | ({"labelSelector": selector} if selector else {})
        query |= {"fieldSelector": fields} if fields else {}
        path = f"{path_of(resource, namespace)}?{urlencode(query)}"
        async with self._transport.stream(path, asked, silence=silence) as opened:
            if isinstance(opened, ApiResponse):
                self._told(asked, "refused" if 400 <= opened.status < 500 else "unavailable")
                if opened.status == 410:
                    raise Expired(f"cannot {asked} from {since}: it is no longer kept")
                read(opened, asked)
                raise ApiUnavailable(f"cannot {asked} now: the API server answered {opened.status}")
            self._told(asked, "ok")
            yield _events(opened.iter_any(), asked)

    async def _call(
        self,
        method: str,
        path: str,
        asked: ApiRequest,
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

    def _told(self, asked: ApiRequest, result: str) -> None:
        if self._on_call is not None:
            self._on_call(asked.verb, asked.resource.kind, result)


class _GroupMissing(Exception):
    """Discovery of a group and version answered 404: the API server does not serve it."""


async def _events(chunks: AsyncIterator[bytes], asked: ApiRequest) -> AsyncIterator[tuple[str, Json]]:
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
    """Path of a collection; of all namespaces for None."""
    scoped = resource.namespaced and namespace is not None
    return _group(resource) + (f"/namespaces{_part(namespace or '')}" if scoped else "") + f"/{resource.plural}"


def _part(name: str) -> str:
    """A path component with its slash. An invalid name ('', '..') must never yield the path of another resource."""
    if name in {"", ".", ".."}:
        raise ValueError(f"{name!r} is not a name of an object")
    return "/" + quote(name, safe="")
