"""Which volumes a driver pod waits for, from its kubelet's Events, which are read rarely."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from launch.kubeflow_world import run
from sparkonce.launch.kubeflow.mounts import FIRST_PAUSE, LONGEST_PAUSE, USUAL, MountTroubles, why_unmounted
from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable
from sparkonce.launch.protocol import ApplicationState, Phase

MISSING = 'MountVolume.SetUp failed for volume "{}" : configmap "{}" not found'
SUMMARY = "Unable to attach or mount volumes: unmounted volumes=[a], unattached volumes=[]: timed out waiting for the condition"


def event(volume: str = "", *, reason: str = "FailedMount", minute: int = 0, message: str = "") -> dict[str, Any]:
    said = message or MISSING.format(volume, volume)
    return {"reason": reason, "message": said, "lastTimestamp": f"2026-11-25T10:{minute:02}:00Z"}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ""),
        ([event("a", reason="BackOff")], ""),
        ([event("a")], 'volume "a" of its driver pod cannot be mounted (FailedMount): ' + MISSING.format("a", "a")),
        ([event("d", reason="FailedAttachVolume")], 'volume "d" of its driver pod cannot be attached (FailedAttachVolume): '),
        ([event("b", minute=1), event("a")], 'volumes "a", "b" of its driver pod cannot be mounted (FailedMount): '),
        ([event("a"), event(message=SUMMARY, minute=2)], 'volume "a" of its driver pod cannot be mounted'),
        ([event(message=SUMMARY)], "a volume of its driver pod cannot be mounted (FailedMount): Unable to attach"),
        ([event(each) for each in "abcde"], 'volumes "a", "b", "c" and others of its driver pod'),
        ([event("a"), event("b", minute=9)], 'volume "b" of its driver pod cannot be mounted'),
        ([{"reason": "FailedMount", "message": 7, "lastTimestamp": "soon"}, "x"], "a volume of its driver pod cannot be mounted"),
    ],
    ids=["none", "other", "one", "attach", "two", "summary", "summary alone", "many", "mended", "malformed"],
)  # fmt: skip
def test_the_cause_names_what_fails_now(events: list[Any], said: str) -> None:
    """It names all volumes that fail, sorted by name; an Event that was not repeated within two minutes is over."""
    found = why_unmounted(events)
    assert found.startswith(said)
    assert bool(found) == bool(said)


class Scene:
    """A clock, and the Events to read."""

    def __init__(self) -> None:
        self.time, self.reads, self.events = 1000.0, 0, [event("a")]
        self.error: Exception | None = None
        self.troubles = MountTroubles(self._read, now=lambda: self.time, clock=lambda: self.time)

    async def _read(self, namespace: str, uid: str) -> Sequence[dict[str, Any]]:
        assert (namespace, uid) == ("loads", "pod-1")
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.events

    def waits(self, *, since: float | None = 1000.0, waits: str = "") -> str:
        state = ApplicationState(
            name="a", uid="u", nonce="n", phase=Phase.STARTING, driver="pod-1", mounting=since, waits=waits
        )
        return run(self.troubles.with_cause(state, namespace="loads")).waits


def test_a_start_that_takes_the_usual_time_costs_no_request() -> None:
    """Nor does a start whose reason is known, or whose pod is ready for containers."""
    scene = Scene()
    assert scene.waits() == ""
    scene.time += USUAL - 1
    assert scene.waits() == ""
    scene.time += 100
    assert scene.waits(since=None) == ""
    assert scene.waits(waits="its image cannot be pulled") == "its image cannot be pulled"
    assert scene.reads == 0


def test_a_pod_is_asked_about_ever_more_rarely() -> None:
    """However often the pod is observed, the pauses between reads double up to a minute, and the known cause is reported meanwhile."""
    scene = Scene()
    times = []
    for _ in range(400):
        before = scene.reads
        scene.waits()
        times += [scene.time] if scene.reads > before else []
        scene.time += 1
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, LONGEST_PAUSE]
    assert scene.waits().startswith('volume "a"')


def test_a_process_that_takes_over_knows_at_once() -> None:
    """The pod has waited for long: the cause in the record is not withdrawn by a takeover."""
    scene = Scene()
    scene.time += 60
    assert scene.waits().startswith('volume "a"')


@pytest.mark.parametrize("error", [ApiRefused("forbidden", code=403), ApiUnavailable("silent")])
def test_events_that_cannot_be_read_change_nothing(error: Exception) -> None:
    """The known cause is kept, and the next read comes no sooner than after a success."""
    scene = Scene()
    scene.time += USUAL
    assert scene.waits().startswith('volume "a"')
    scene.error = error
    scene.time += FIRST_PAUSE
    assert scene.waits().startswith('volume "a"')
    scene.waits()
    assert scene.reads == 2


def test_one_read_at_a_time() -> None:
    """A process with many waiting pods sends one read at a time; the other observations use what is known."""
    waits, reads = asyncio.Event(), []

    async def read(_namespace: str, uid: str) -> Sequence[dict[str, Any]]:
        reads.append(uid)
        await waits.wait()
        return [event("a")]

    async def scene() -> list[str]:
        troubles = MountTroubles(read, now=lambda: 1000.0, clock=lambda: 1000.0)
        states = [
            ApplicationState(name="a", uid="u", nonce="n", phase=Phase.STARTING, driver=f"pod-{number}", mounting=1.0)
            for number in range(20)
        ]
        asking = [asyncio.ensure_future(troubles.with_cause(each, namespace="loads")) for each in states]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waits.set()
        return [each.waits for each in await asyncio.gather(*asking)]

    told = run(scene())
    assert (reads, [bool(each) for each in told]) == (["pod-0"], [True] + 19 * [False])
