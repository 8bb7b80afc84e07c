"""A Kubernetes API in memory, and clients of it that can suffer every fault.

`FakeApi` itself is always correct: names are unique, a failed precondition refuses, a changed object has another resourceVersion, a changed
spec another generation, and a pod on a node is removed when its kubelet says so. The client decides which requests reach it and which
answers come back: a request may never arrive, arrive and lose its answer, or arrive long after; the caller may die before or after it, or
be frozen there.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sparkonce.launch.kubernetes import PODS, AlreadyExists, ApiConflict, ApiRefused, ApiUnavailable, Json, Resource

Place = tuple[str, str, str]
GRACE = 30
"""Grace period of a pod on a node, in seconds."""


class Died(BaseException):
    """The calling process has died; no handler catches it."""


class Fault(StrEnum):
    DIES_BEFORE = "dies before it is sent"
    DIES_AFTER = "dies after it was done"
    LOST = "the request is lost"
    ANSWER_LOST = "the answer is lost"
    LATE = "no answer, and it lands later"
    FREEZES_BEFORE = "freezes before it is sent"
    FREEZES_AFTER = "freezes after it was done"


class FakeApi:
    def __init__(self, *namespaces: str) -> None:
        self.objects: dict[Place, Json] = {}
        self.namespaces: dict[str, Json] = {name: {"metadata": {"name": name}} for name in namespaces}
        self.refusing: Callable[[str, Resource, Mapping[str, Any]], ApiRefused | None] = lambda *_: None
        """Called with a verb, a resource and a body; if it returns a refusal, that is the answer."""
        self.made: list[tuple[str, str]] = []
        """Plural and name of every object ever created, in order."""
        self.changes: list[tuple[str, Json]] = []
        """ADDED, MODIFIED or DELETED, with the object as it was at that time."""
        self.forgotten = 0
        """How many of the oldest changes the API server no longer keeps."""
        self.late: list[Callable[[], object]] = []
        self.clock = 1_800_000_000.0
        self._count = 0

    def fresh(self, word: str) -> str:
        self._count += 1
        return f"{word}-{self._count}"

    def version(self) -> str:
        """The resourceVersion of a list read now."""
        return f"version-{self._count}"

    def stamp(self, later: float = 0.0) -> str:
        return datetime.fromtimestamp(self.clock + later, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def create(self, resource: Resource, namespace: str, body: Mapping[str, Any]) -> Json:
        name = body["metadata"]["name"]
        if namespace not in self.namespaces:
            raise ApiRefused(f"there is no namespace {namespace}", code=404, reason="NotFound")
        if (resource.plural, namespace, name) in self.objects:
            raise AlreadyExists(f"{name} already exists", code=409, reason="AlreadyExists")
        if "deletionTimestamp" in self.namespaces[namespace]["metadata"]:
            raise ApiRefused(f"namespace {namespace} is being terminated", code=403, reason="Forbidden")
        if refusal := self.refusing("create", resource, body):
            raise refusal
        stored: Json = json.loads(json.dumps(body))
        stored["metadata"] |= {"namespace": namespace, "uid": self.fresh("uid"), "generation": 1}
        stored["metadata"] |= {"creationTimestamp": self.stamp()}
        self.made.append((resource.plural, name))
        return self._put(resource, stored)

    def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        if refusal := self.refusing("get", resource, {}):
            raise refusal
        found = self.namespaces.get(name) if namespace is None else self.objects.get((resource.plural, namespace, name))
        return copy.deepcopy(found)

    def list(
        self, resource: Resource, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Json]:
        if refusal := self.refusing("list", resource, {}):
            raise refusal
        found = [
            each
            for place, each in self.objects.items()
            if place[0] == resource.plural and namespace in {None, place[1]}
        ]
        wanted = (labels or {}).items()
        return [copy.deepcopy(each) for each in found if wanted <= each["metadata"].get("labels", {}).items()]

    def patch(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], *, status: bool = False
    ) -> Json | None:
        before = self.objects.get((resource.plural, namespace, name))
        if before is None:
            return None
        if refusal := self.refusing("patch", resource, patch):
            raise refusal
        for field in ("uid", "resourceVersion"):
            if patch.get("metadata", {}).get(field, before["metadata"][field]) != before["metadata"][field]:
                raise ApiConflict(f"{field} of {name} is another one", code=409, reason="Conflict")
        after = _merged(before, patch)
        if after["spec"] != before["spec"]:
            assert not status, "a status write that changes a spec"
            after["metadata"]["generation"] += 1
        return copy.deepcopy(before) if after == before else self._put(resource, after)

    def delete(self, resource: Resource, namespace: str, name: str, *, uid: str | None = None) -> bool:
        found = self.objects.get((resource.plural, namespace, name))
        if found is None or uid not in {None, found["metadata"]["uid"]}:
            return False
        if refusal := self.refusing("delete", resource, found):
            raise refusal
        on_node = resource == PODS and "nodeName" in found["spec"]
        if not on_node and not found["metadata"].get("finalizers"):
            self.remove(resource, namespace, name)
        elif "deletionTimestamp" not in found["metadata"]:
            going = {"deletionTimestamp": self.stamp(GRACE), "deletionGracePeriodSeconds": GRACE}
            self._put(resource, _merged(found, {"metadata": going}))
        return True

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """Removes an object, whatever finalizer or kubelet it was waiting for."""
        gone = self.objects.pop((resource.plural, namespace, name))
        self.changes.append(("DELETED", _merged(gone, {"metadata": {"resourceVersion": self.fresh("version")}})))

    def collect(self) -> None:
        """One round of the garbage collector: deletes objects whose owners are all gone."""
        alive = {each["metadata"]["uid"] for each in self.objects.values()} | {"uid-of-a", "uid-of-b"}
        for (plural, namespace, name), each in list(self.objects.items()):
            owners = [reference["uid"] for reference in each["metadata"].get("ownerReferences", ())]
            if owners and alive.isdisjoint(owners):
                self.delete(PODS if plural == "pods" else _other(plural), namespace, name)

    def history(self, name: str, since: str, until: Mapping[str, Any]) -> Sequence[tuple[str, Json]] | None:
        """The history of the pods of this name, as `Kubernetes.history` returns it."""
        if any(_number(each) > _number_of(since) for _, each in self.changes[: self.forgotten]):
            return None
        last = _number(until)
        found: Sequence[tuple[str, Json]] = [
            (kind, copy.deepcopy(each))
            for kind, each in self.changes
            if each["metadata"]["name"] == name and _number_of(since) < _number(each) <= last
        ]
        return found if found and _number(found[-1][1]) == last else None

    def _put(self, resource: Resource, document: Json) -> Json:
        metadata = document["metadata"]
        metadata["resourceVersion"] = self.fresh("version")
        place = (resource.plural, metadata["namespace"], metadata["name"])
        self.changes.append(("MODIFIED" if place in self.objects else "ADDED", copy.deepcopy(document)))
        self.objects[place] = document
        return copy.deepcopy(document)


def _number(document: Mapping[str, Any]) -> int:
    return _number_of(document["metadata"]["resourceVersion"])


def _number_of(version: str) -> int:
    return int(version.rpartition("-")[2])


def _other(plural: str) -> Resource:
    return Resource("", "", plural, "")


def _merged(document: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    made = dict(copy.deepcopy(document))
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        elif isinstance(value, Mapping):
            made[name] = _merged(made.get(name) or {}, value)
        else:
            made[name] = copy.deepcopy(value)
    return made


class FakeKubernetes:
    """`Kubernetes` for one process. `faults` maps the number of a call, counted from 0, to its fault; an error there is the API server's
    answer."""

    def __init__(
        self,
        api: FakeApi,
        faults: Mapping[int, Fault | ApiRefused | ApiUnavailable] | None = None,
        *,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self.api, self.faults, self.meanwhile = api, dict(faults or {}), meanwhile
        self.calls: list[str] = []
        self.strict: list[bool] = []
        """For each create, whether it refuses unknown fields."""
        self.thawed = asyncio.Event()
        self.frozen = asyncio.Event()

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any], *, strict: bool = True) -> Json:
        sent = copy.deepcopy(body)
        self.strict.append(strict)
        made: Json = await self._call(f"create {resource.plural}", lambda: self.api.create(resource, namespace, sent))
        return made

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        found: Json | None = await self._call(
            f"get {resource.plural}", lambda: self.api.get(resource, namespace, name), reads=True
        )
        return found

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Json | None:
        assert not subresource
        sent = copy.deepcopy(patch)
        made: Json | None = await self._call(
            f"patch {resource.plural}", lambda: self.api.patch(resource, namespace, name, sent)
        )
        return made

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> bool:
        assert grace_seconds is None, "nothing is deleted by force"
        assert uid
        done: bool = await self._call(
            f"delete {resource.plural}", lambda: self.api.delete(resource, namespace, name, uid=uid)
        )
        return done

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[Json]:
        found: list[Json] = await self._call(
            f"list {resource.plural}", lambda: self.api.list(resource, namespace, labels), reads=True
        )
        return found

    async def history(
        self, resource: Resource, namespace: str, name: str, *, since: str, until: Mapping[str, Any]
    ) -> Sequence[tuple[str, Json]] | None:
        assert resource == PODS
        found: Sequence[tuple[str, Json]] | None = await self._call(
            f"history of {resource.plural}", lambda: self.api.history(name, since, until), reads=True
        )
        return found

    async def served(self, resource: Resource) -> bool:
        raise AssertionError(f"a launcher does not ask whether {resource.kind} is served")

    async def _call(self, said: str, effect: Callable[[], Any], *, reads: bool = False) -> Any:
        fault = self.faults.get(len(self.calls))
        self.calls.append(said)
        await asyncio.sleep(0)
        self.meanwhile()
        match fault:
            case Exception():
                raise fault
            case Fault.DIES_BEFORE:
                raise Died
            case Fault.FREEZES_BEFORE:
                await self._freeze()
            case Fault.LATE | Fault.LOST:
                if fault is Fault.LATE and not reads:
                    self.api.late.append(effect)
                raise ApiUnavailable("no answer")
        try:
            reply = effect()
        except ApiRefused:
            if fault in {None, Fault.FREEZES_BEFORE}:
                raise
            reply = None
        match fault:
            case Fault.DIES_AFTER:
                raise Died
            case Fault.ANSWER_LOST:
                raise ApiUnavailable("no answer")
            case Fault.FREEZES_AFTER:
                await self._freeze()
        return reply

    async def _freeze(self) -> None:
        self.frozen.set()
        await self.thawed.wait()


class FakeWatched:
    """`Watched` of one kind, with the objects of its last look."""

    def __init__(self, api: FakeApi, resource: Resource, *, synced: bool = True) -> None:
        self.api, self.resource, self._synced = api, resource, synced
        self._seen: dict[tuple[str, str], Json] = {}
        self.look()

    def look(self) -> None:
        found = self.api.list(self.resource)
        self._version = self.api.version()
        self._seen = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in found}

    @property
    def synced(self) -> bool:
        return self._synced

    @synced.setter
    def synced(self, value: bool) -> None:
        self._synced = value

    def get(self, namespace: str, name: str) -> Json | None:
        return self._seen.get((namespace, name))

    def version(self, namespace: str) -> str | None:
        assert namespace
        return self._version if self._synced else None

    def labelled(self, namespace: str, label: str, value: str) -> Sequence[Json]:
        raise AssertionError(f"a launcher knows names, and does not ask for {label}={value} in {namespace}")
