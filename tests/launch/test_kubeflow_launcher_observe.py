"""Observing: what a watch has is trusted; what it lacks, and ends that it missed, are confirmed at the API server first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from launch.fake_api import FakeKubernetes, FakeWatched
from launch.kubeflow_scene import NAMESPACE
from launch.kubeflow_world import DECLARED, DRIVER, NAME, OPAQUE, World, run
from sparkonce.errors import LaunchUnavailable
from sparkonce.launch.kubeflow.launcher import KubeflowLauncher
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, ApiRefused, ApiUnavailable, Json
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import Application

LIVE_LOOK = ["get sparkapplications", "get pods"]
UNSEEN = Application(name=NAME, uid="uid-1")
"""As in the record before a driver was seen; `uid-1` is the application, the first object of the world."""


def looked(world: World, noted: Application | None = None) -> tuple[ApplicationState | None, list[str]]:
    """The observation of a launcher whose watches are current, and its requests to the API server."""
    launcher, kubernetes = world.process(watches=True)
    return run(launcher.observe(DECLARED, noted)), kubernetes.calls


def stale(world: World, then: Callable[[], object]) -> tuple[KubeflowLauncher, FakeKubernetes]:
    """A launcher whose watches have not seen the effects of `then`."""
    launcher, kubernetes = world.process(watches=True)
    then()
    return launcher, kubernetes


def test_a_running_attempt_costs_no_request() -> None:
    """From the application's creation on, the watches have everything, including the driver to note."""
    world = World()
    world.launch(DECLARED)
    assert looked(world)[0] is not None and looked(world)[1] == []
    world.spark.settle()
    noted = world.noted()
    for each in (None, UNSEEN, noted):
        seen, calls = looked(world, each)
        assert seen is not None
        assert (seen.phase, seen.driver, calls) == (Phase.RUNNING, noted.driver, [])


def test_without_watches_or_while_they_are_behind_the_api_server_is_asked() -> None:
    """Both objects are read then: first the application, then its driver pod."""
    world = World()
    noted = world.running(DECLARED)
    launcher, kubernetes = world.process()
    seen = run(launcher.observe(DECLARED, noted))
    assert seen is not None and seen.phase is Phase.RUNNING
    assert kubernetes.calls == LIVE_LOOK

    for kind in ("applications", "pods"):
        launcher, kubernetes = world.process(watches=True)
        watched = getattr(launcher, kind)
        assert isinstance(watched, FakeWatched)
        watched.synced = False
        run(launcher.observe(DECLARED, noted))
        assert kubernetes.calls == LIVE_LOOK


def test_none_is_said_by_the_api_server_alone() -> None:
    """Objects that a watch lacks may exist: a lagging watch never makes an attempt lost."""
    world = World()
    launcher, kubernetes = stale(world, lambda: world.running(DECLARED))
    seen = run(launcher.observe(DECLARED, None))
    assert seen is not None and seen.phase is Phase.RUNNING
    assert kubernetes.calls == LIVE_LOOK

    seen, calls = looked(World())
    assert (seen, calls) == (None, LIVE_LOOK[:1])


def test_an_application_that_is_gone_is_seen_as_soon_as_the_watch_tells() -> None:
    """Until then the watch is believed, which costs time but states nothing false: the application was there."""
    world = World()
    noted = world.running(DECLARED)
    launcher, _ = stale(world, lambda: world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME))
    seen = run(launcher.observe(DECLARED, noted))
    assert seen is not None and seen.phase is Phase.RUNNING
    assert looked(world, noted) == (None, LIVE_LOOK[:1])


def test_a_driver_has_vanished_only_where_the_api_server_says_so() -> None:
    """A driver that the watch lacks but the API server has is running. If both lack it, its end was not seen."""
    world = World()
    world.launch(DECLARED)
    launcher, kubernetes = stale(world, world.spark.settle)
    seen = run(launcher.observe(DECLARED, world.noted()))
    assert seen is not None and seen.phase is Phase.RUNNING
    assert kubernetes.calls == LIVE_LOOK

    noted = world.noted()
    world.api.remove(PODS, NAMESPACE, DRIVER)
    seen, calls = looked(world, noted)
    assert seen is not None and (seen.phase, seen.message) == (Phase.UNKNOWN, "the driver pod vanished")
    assert calls == LIVE_LOOK


@pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED_KNOWN)])
def test_an_exit_code_that_a_watch_holds_is_final(code: int, phase: Phase) -> None:
    """The pod may be gone before the next read: the exit code that the watch has is evidence, even if the watch of applications has lost
    the application."""
    world = World()
    noted = world.running(DECLARED)
    world.spark.finish(NAME, code)
    launcher, kubernetes = stale(world, lambda: world.api.remove(PODS, NAMESPACE, DRIVER))

    seen = run(launcher.observe(DECLARED, noted))
    assert seen is not None
    assert (seen.phase, seen.exit_code, seen.driver, kubernetes.calls) == (phase, code, noted.driver, [])

    assert isinstance(launcher.applications, FakeWatched)
    launcher.applications._seen.clear()  # this watch has lost the application
    seen = run(launcher.observe(DECLARED, noted))
    assert seen is not None and (seen.phase, seen.exit_code) == (phase, code)


def test_an_end_without_a_driver_to_prove_it_is_looked_at() -> None:
    """COMPLETED in the watch without a pod: the pod is read from the API server, since it decides if it exists."""
    world = World()
    noted = world.running(DECLARED)
    world.spark.finish(NAME, 0)
    world.spark.settle()
    assert world.state == "COMPLETED"
    launcher, kubernetes = world.process(watches=True)
    assert isinstance(launcher.pods, FakeWatched)
    launcher.pods._seen.clear()

    for each in (UNSEEN, noted):
        seen = run(launcher.observe(DECLARED, each))
        assert seen is not None and (seen.phase, seen.driver) == (Phase.SUCCEEDED, noted.driver)
    assert kubernetes.calls == LIVE_LOOK * 2


def test_what_contradicts_the_record_is_looked_at() -> None:
    """With another UID or nonce, the watch may still have an earlier object."""
    world = World()
    world.put(NAME, kind="sparkapplications")

    def replaced() -> None:
        world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)
        world.launch(DECLARED)

    launcher, kubernetes = stale(world, replaced)
    seen = run(launcher.observe(DECLARED, None))
    assert seen is not None and seen.nonce == DECLARED.nonce
    assert kubernetes.calls == LIVE_LOOK

    launcher, kubernetes = stale(world, replaced)
    noted = world.noted()
    seen = run(launcher.observe(DECLARED, noted))
    assert seen is not None and seen.uid == noted.uid
    assert kubernetes.calls == LIVE_LOOK


def test_a_ledger_that_is_older_than_its_applications_is_told() -> None:
    """It is reported only after a read from the API server, and never for a foreign application."""
    world = World()
    world.launch(DECLARED.model_copy(update={"nonce": "granted since"}))
    seen, calls = looked(world)
    assert seen is not None and (seen.rewound, seen.nonce, calls) == (True, "granted since", LIVE_LOOK)

    world.api.patch(
        SPARK_APPLICATIONS, NAMESPACE, NAME, {"metadata": {"annotations": {"sparkonce.dev/install": "west"}}}
    )
    seen, _ = looked(world)
    assert seen is not None and (seen.rewound, seen.nonce) == (False, "")


@pytest.mark.parametrize("call", [0, 1])
@pytest.mark.parametrize("answer", [ApiUnavailable("no answer"), ApiRefused("forbidden", code=403, retry_after=3.0)])
def test_what_cannot_be_looked_at_is_not_absent(call: int, answer: ApiRefused | ApiUnavailable) -> None:
    """Both reads must succeed: half an observation proves nothing."""
    world = World()
    noted = world.running(OPAQUE)
    with pytest.raises(LaunchUnavailable, match="cannot be read") as told:
        run(world.process({call: answer})[0].observe(OPAQUE, noted))
    assert told.value.retry_after == (3.0 if isinstance(answer, ApiRefused) else None)


def test_a_driver_that_starts_between_the_two_looks_is_seen() -> None:
    """The pod is read after the application; in the other order it would seem to be missing."""
    world = World()
    world.launch(DECLARED)
    steps = iter([None, world.spark.settle])
    launcher, _ = world.process(meanwhile=lambda: (act := next(steps)) and act())
    seen = run(launcher.observe(DECLARED, UNSEEN))
    assert seen is not None and seen.phase is Phase.RUNNING


def test_an_end_that_a_watch_saw_before_the_deletion_stays_proven() -> None:
    """The driver exits 0, and its pod is deleted afterwards. A process whose watch still has the earlier version knows of the success; one
    that comes later sees only COMPLETED, which is no proof."""
    world = World()
    noted = world.running(OPAQUE)
    world.spark.finish(NAME, 0)
    watched, _ = world.process(watches=True)
    pods = watched.pods
    assert isinstance(pods, FakeWatched)
    before = pods.get(NAMESPACE, DRIVER)
    assert before is not None
    world.spark.settle()
    world.api.remove(PODS, NAMESPACE, DRIVER)
    watched.pods = Remembered(before)  # type: ignore[assignment]  # as much of a watch as is read
    seen = run(watched.observe(OPAQUE, noted))
    assert seen is not None and seen.phase is Phase.SUCCEEDED

    late, _ = world.process(watches=True)
    seen = run(late.observe(OPAQUE, noted))
    assert seen is not None and seen.phase is Phase.UNKNOWN
    assert "COMPLETED" in seen.message


class Remembered:
    """A lagging watch, which has one version of one pod."""

    synced = True

    def __init__(self, pod: Json) -> None:
        self._pod = pod

    def get(self, namespace: str, name: str) -> Json | None:
        return self._pod if (namespace, name) == (NAMESPACE, DRIVER) else None
