"""JSON over one pooled HTTPS session, as cheap as Python allows, for a fake that runs forty applications a second.

It returns a status code and a document, or raises `NoAnswer`, and judges nothing. A watch is resumed where it was; if the API server no
longer has that revision, the informer lists again and computes which objects came and went.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from harness.kube_api import path_of
from harness.tls_session import tls_session
from sparkonce.launch.kubernetes import Resource

Json = dict[str, Any]
Heard = Callable[[Json | None, Json | None], None]
"""Called with an object before and after a change; None before: created, None after: deleted."""

REQUEST_TIMEOUT = 30.0
"""Seconds; a frozen API server answers when it is thawed."""
WATCH_SECONDS = 300
"""Seconds after which the API server closes a watch; the next one continues from there."""
PAUSE = 0.1
"""Seconds between attempts to reach an API server that is down."""


class NoAnswer(Exception):
    """The API server did not answer; a write may have landed."""


class Expired(Exception):
    """The API server no longer has that revision."""


class Wire:
    def __init__(self, server: str, *, ca: Path, token: str) -> None:
        self._session: aiohttp.ClientSession | None = None
        headers = {"Authorization": f"Bearer {token}"}
        self._opening = tls_session(ca, base_url=server, headers=headers)

    async def __aenter__(self) -> Self:
        self._session = await self._opening.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opening.__aexit__(kind, value, trace)

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "a Wire is used inside `async with`"
        return self._session

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        who: str,
        content_type: str = "application/json",
    ) -> tuple[int, Json]:
        """`who` is the user agent, by which the API server's audit and our proxy's log identify the writer. Raises NoAnswer."""
        try:
            async with self.session.request(
                method,
                path,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": content_type, "User-Agent": who},
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT),
            ) as answer:
                text = await answer.read()
                return answer.status, json.loads(text)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise NoAnswer(f"{method} {path}: {error!r}") from error

    async def watch(self, path: str, revision: str, *, who: str) -> AsyncIterator[Json]:
        """Events after that revision, until the connection ends. Raises NoAnswer, Expired."""
        parameters = {
            "watch": "1",
            "resourceVersion": revision,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT, sock_read=WATCH_SECONDS + 10)
        try:
            async with self.session.get(
                path, params=parameters, headers={"User-Agent": who}, timeout=timeout
            ) as stream:
                if stream.status == 410:
                    raise Expired
                if stream.status != 200:
                    raise NoAnswer(f"watch of {path}: {stream.status}")
                rest = b""
                async for chunk in stream.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield _event(line)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise NoAnswer(f"watch of {path}: {error!r}") from error


def _event(line: bytes) -> Json:
    event = json.loads(line)
    assert isinstance(event, dict)
    if event["type"] == "ERROR":
        if event["object"].get("code") == 410:
            raise Expired
        raise NoAnswer(f"watch: {event['object']}")
    return event


class Informer:
    """The objects of one kind in one namespace, as a watch last saw them, with subscribers to changes."""

    def __init__(self, wire: Wire, resource: Resource, namespace: str, *, who: str) -> None:
        self._wire, self._who = wire, who
        self._path = path_of(resource, namespace)
        self.objects: dict[str, Json] = {}
        self.synced = asyncio.Event()
        self._heard: list[Heard] = []
        self._dead: set[str] = set()

    def subscribe(self, heard: Heard) -> Callable[[], None]:
        """Calls back for every existing object and every later change; the returned function unsubscribes."""
        self._heard.append(heard)
        for each in list(self.objects.values()):
            heard(None, each)
        return lambda: self._heard.remove(heard)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                await self._watch(await self._list())
            except Expired:
                continue
            except NoAnswer:
                await asyncio.sleep(PAUSE)

    async def _list(self) -> str:
        status, found = await self._wire.send("GET", self._path, who=self._who)
        if status != 200:
            raise NoAnswer(f"list of {self._path}: {status}")
        items = {each["metadata"]["name"]: each for each in found["items"]}
        for name in [name for name in self.objects if name not in items]:
            self._gone(self.objects[name])
        for each in items.values():
            self.learn(each)
        self.synced.set()
        revision = found["metadata"]["resourceVersion"]
        assert isinstance(revision, str)
        return revision

    async def _watch(self, revision: str) -> None:
        while True:
            async for event in self._wire.watch(self._path, revision, who=self._who):
                found = event["object"]
                revision = found["metadata"]["resourceVersion"]
                if event["type"] == "DELETED":
                    self._gone(found)
                elif event["type"] != "BOOKMARK":
                    self.learn(found)

    def learn(self, found: Json) -> None:
        """Also called with the answer to a write, so that the writer continues from what it wrote."""
        name = found["metadata"]["name"]
        known = self.objects.get(name)
        late = found["metadata"]["uid"] in self._dead  # the answer to a write may come after its deletion event
        if late or (known is not None and revision_of(known) >= revision_of(found)):
            return
        self.objects[name] = found
        if known is not None and known["metadata"]["uid"] != found["metadata"]["uid"]:
            self._tell(known, None)
            known = None
        self._tell(known, found)

    def _gone(self, found: Json) -> None:
        name = found["metadata"]["name"]
        known = self.objects.get(name)
        self._dead.add(found["metadata"]["uid"])
        if known is not None and known["metadata"]["uid"] == found["metadata"]["uid"]:
            del self.objects[name]
            self._tell(known, None)

    def _tell(self, before: Json | None, after: Json | None) -> None:
        for heard in list(self._heard):
            heard(before, after)


def revision_of(found: Mapping[str, Any]) -> int:
    return int(found["metadata"]["resourceVersion"])
