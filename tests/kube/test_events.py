"""Recording an event never waits, memory is bounded, and an event is dropped rather than repeated without end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from harness.patience import stretched
from sparkonce.errors import SparkonceError
from sparkonce.kube.events import KNOWN, MESSAGE, PENDING, EventRecorder
from sparkonce.launch.kubernetes import AlreadyExists, ApiRefused, ApiUnavailable, Json, Resource

JOB: Json = {
    "apiVersion": "sparkonce.dev/v1alpha1",
    "kind": "IdempotentJob",
    "metadata": {"namespace": "etl", "name": "night", "uid": "u1", "resourceVersion": "7", "labels": {"not": "needed"}},
}


class Writes:
    """The two verbs that events need. `fail` decides the outcome of the n-th call."""

    def __init__(self, fail: Callable[[int], SparkonceError | None] = lambda _: None) -> None:
        self.fail = fail
        self.creates: list[Json] = []
        self.patches: list[tuple[str, Json]] = []
        self.there = True
        self.open = asyncio.Event()
        self.open.set()

    async def create(self, resource: Resource, namespace: str, body: Mapping[str, Any], *, strict: bool = True) -> Json:
        await self.open.wait()
        self.creates.append(dict(body))
        self._fail()
        return dict(body)

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Json | None:
        self.patches.append((name, dict(patch)))
        self._fail()
        return dict(patch) if self.there else None

    def _fail(self) -> None:
        if (error := self.fail(len(self.creates) + len(self.patches))) is not None:
            raise error

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json | None:
        raise AssertionError("events read nothing")

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> bool:
        raise AssertionError("events delete nothing")

    async def list(
        self, resource: Resource, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[Json]:
        raise AssertionError("events list nothing")

    async def history(
        self, resource: Resource, namespace: str, name: str, *, since: str, until: Mapping[str, Any]
    ) -> None:
        raise AssertionError("events ask nothing")

    async def served(self, resource: Resource) -> bool:
        raise AssertionError("events ask nothing")


def recorded(writes: Writes, *batches: Sequence[tuple[Json, str, str]]) -> Counter[str]:
    """Records the batches, each after the one before it was written. Returns the number of dropped events by reason."""
    drops: Counter[str] = Counter()

    async def scene() -> None:
        recorder = EventRecorder(writes, host="h", on_drop=lambda why: drops.update([why]), again=0.01)
        for batch in batches:
            for about, reason, message in batch:
                recorder.record(about, reason, message)
            recorder.start()
            await recorder.stop(5)

    asyncio.run(scene())
    return drops


def test_what_repeats_is_counted_on_one_event() -> None:
    """Repeats in the queue are one write with their count; later ones patch the same Event; an Event that has expired is created again."""
    writes = Writes()
    once = [(JOB, "Waiting", "first"), (JOB, "Waiting", "m" * 5000)]
    assert not recorded(writes, once, [(JOB, "Waiting", "third")])
    (created,) = writes.creates
    assert (created["count"], created["message"], created["type"]) == (2, "m" * MESSAGE, "Normal")
    assert created["involvedObject"] == {
        "apiVersion": "sparkonce.dev/v1alpha1",
        "kind": "IdempotentJob",
        "namespace": "etl",
        "name": "night",
        "uid": "u1",
        "resourceVersion": "7",
    }
    ((name, patch),) = writes.patches
    assert name == created["metadata"]["name"]
    assert (patch["count"], patch["message"]) == (3, "third")

    expired = Writes()
    expired.there = False
    recorded(expired, [(JOB, "Waiting", "first")], [(JOB, "Waiting", "second")])
    assert [each["count"] for each in expired.creates] == [1, 1]


def test_no_answer_is_tried_once_more_with_the_same_name() -> None:
    """An unanswered create is sent once more under the same name: AlreadyExists then means that it had landed. Without a second answer it
    is dropped."""
    landed = Writes({1: ApiUnavailable("lost"), 2: AlreadyExists("there", code=409)}.get)
    assert not recorded(landed, [(JOB, "Failed", "x")], [(JOB, "Failed", "y")])
    assert landed.creates[0] == landed.creates[1]
    assert landed.patches[0][0] == landed.creates[0]["metadata"]["name"]

    silent = Writes(lambda _: ApiUnavailable("lost"))
    assert recorded(silent, [(JOB, "Failed", "x")]) == {"unavailable": 1}
    assert len(silent.creates) == 2


@pytest.mark.parametrize("error", [ApiRefused("no", code=403), ApiRefused("busy", code=429, retry_after=60.0)])
def test_a_refused_event_is_dropped_at_once(error: ApiRefused) -> None:
    """A refused event is not retried and does not stop those behind it."""
    writes = Writes(lambda call: error if call == 1 else None)
    assert recorded(writes, [(JOB, "Failed", "x"), (JOB, "Held", "y")]) == {"refused": 1}
    assert [each["reason"] for each in writes.creates] == ["Failed", "Held"]


def test_a_storm_is_cut_off() -> None:
    """While the API server hangs, at most PENDING events are kept and the rest is counted; recording never waits, stopping takes no longer
    than its limit, and the memory of old events is bounded."""
    drops: Counter[str] = Counter()

    async def scene() -> None:
        writes = Writes()
        writes.open.clear()
        recorder = EventRecorder(writes, host="h", on_drop=lambda why: drops.update([why]))
        recorder.start()
        for number in range(PENDING + 50):
            recorder.record(JOB, f"Reason{number}", "x")
        assert len(recorder._pending) == PENDING
        assert drops == {"full": 50}
        loop = asyncio.get_running_loop()
        began = loop.time()
        await recorder.stop(0.05)
        assert loop.time() - began < stretched(1)
        writes.open.set()
        for number in range(KNOWN + 10):
            await recorder._post(*_noted(recorder, f"Other{number}"))
        assert len(recorder._posted) == KNOWN

    asyncio.run(scene())


def _noted(recorder: EventRecorder, reason: str) -> Any:
    recorder._pending.clear()
    recorder.record(JOB, reason, "x")
    return recorder._pending.popitem()


def test_nonsense_does_not_end_it() -> None:
    """An object without metadata does not end the recorder: its event is written or dropped, and the next one is written."""
    writes = Writes()
    recorded(writes, [({}, "Odd", "x"), ({"metadata": None}, "Odd", "x"), (JOB, "Fine", "y")])
    assert writes.creates[-1]["reason"] == "Fine"
