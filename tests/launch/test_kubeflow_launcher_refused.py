"""Stopping when the API server or the Spark operator does not allow it: answers, deadlines, and the rate of requests."""

from __future__ import annotations

from typing import Any

import pytest

from launch.fake_api import FakeWatched
from launch.kubeflow_scene import NAMESPACE
from launch.kubeflow_world import BOTH, NAME, OPAQUE, TIMEOUT, World, ended, marked, run, still_there
from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.launch.kubeflow.launcher import GLANCE, LONGEST_PAUSE
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS, ApiRefused
from sparkonce.launch.protocol import Stopped
from sparkonce.model.record import Assignment

# --- refusals ---


def refuse(world: World, verb: str, plural: str, code: int) -> None:
    def refusing(asked: str, resource: Any, _body: Any) -> ApiRefused | None:
        return ApiRefused("no", code=code, retry_after=5.0) if (asked, resource.plural) == (verb, plural) else None

    world.api.refusing = refusing


@pytest.mark.parametrize("code", [400, 403, 422])
@pytest.mark.parametrize("plural", ["sparkapplications", "pods"])
def test_a_name_that_cannot_be_held_is_for_a_person(plural: str, code: int) -> None:
    """If the placeholder or the stub may not be created, the attempt cannot be abandoned: a person has to act."""
    world = World()
    if plural == "pods":
        world.launch(OPAQUE)
    refuse(world, "create", plural, code)
    with pytest.raises(LaunchRefused, match=r"so that attempt 3 cannot be abandoned: no"):
        world.stop(OPAQUE)
    world.api.refusing = lambda *_: None
    ended(world.stop(OPAQUE))


@pytest.mark.parametrize("code", [401, 404, 409, 429])
def test_a_name_that_cannot_be_held_now_is_tried_again(code: int) -> None:
    """These refusals are not about the placeholder itself."""
    world = World()
    refuse(world, "create", "sparkapplications", code)
    with pytest.raises(LaunchUnavailable) as told:
        world.stop(OPAQUE)
    assert told.value.retry_after == 5.0


def test_in_a_namespace_that_is_gone_nothing_runs() -> None:
    """Nothing can be created in a namespace that is gone or being deleted: no stub is needed, and a placeholder waits until the namespace
    is gone."""
    world = World()
    world.launch(OPAQUE)
    world.api.namespaces[NAMESPACE]["metadata"]["deletionTimestamp"] = "now"
    ended(world.stop(OPAQUE))
    assert world.driver() is None

    world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)
    with pytest.raises(LaunchUnavailable, match="being deleted"):
        world.stop(OPAQUE)
    world.api.namespaces.clear()
    assert world.stop(OPAQUE) == Stopped(None)


@pytest.mark.parametrize(("verb", "plural"), [("patch", "sparkapplications"), ("delete", "pods")])
@pytest.mark.parametrize("assignment", BOTH)
def test_what_may_not_be_ended_is_still_there(assignment: Assignment, verb: str, plural: str) -> None:
    """The stop keeps its time limit, says the reason, and still ends whatever may be ended."""
    world = World()
    world.running(assignment)
    world.each_sleep = lambda: None
    refuse(world, verb, plural, 403)
    assert still_there(world.stop(assignment, timeout=5.0)).endswith(": no")
    driver = world.driver()
    assert driver is not None
    assert ("deletionTimestamp" in driver["metadata"]) is (verb == "patch")
    assert marked(world) is (verb == "delete")


@pytest.mark.parametrize(("verb", "plural"), [("patch", "sparkapplications"), ("delete", "pods"), ("list", "pods")])
def test_too_many_requests_are_waited_for_by_the_caller(verb: str, plural: str) -> None:
    """The error has the delay that the API server asks for."""
    world = World()
    world.running(OPAQUE)
    refuse(world, verb, plural, 429)
    with pytest.raises(LaunchUnavailable) as told:
        world.stop(OPAQUE)
    assert told.value.retry_after == 5.0


# --- pace ---


def test_a_status_that_keeps_changing_is_met_again_and_again() -> None:
    """Each conflict leads to another look: a few without a pause, the later ones after a pause."""
    world = World()
    world.running(OPAQUE)
    left = [20]

    def status_changes() -> None:
        if left[0] > 0:
            left[0] -= 1
            world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"status": {"executionAttempts": left[0]}})

    launcher, kubernetes = world.process(meanwhile=status_changes)
    ended(run(launcher.stop(OPAQUE, timeout=TIMEOUT)))
    assert marked(world)
    assert kubernetes.calls.count("patch sparkapplications") > 2
    assert world.slept


def test_looks_become_rare_and_a_watch_makes_them_prompt() -> None:
    """Pauses grow to their limit. With watches each pause is split into short checks without requests, and ends once the watches see a
    change."""
    world = World()
    world.running(OPAQUE)
    world.spark.cut_off = True
    still_there(world.stop(OPAQUE))
    assert world.slept[:-1] == sorted(world.slept[:-1])
    assert max(world.slept) == LONGEST_PAUSE
    assert len(world.slept) < 40

    world.slept.clear()
    launcher, kubernetes = world.process(watches=True)
    pods = launcher.pods
    assert isinstance(pods, FakeWatched)

    def recovers() -> None:
        if sum(world.slept) > 50 and world.spark.cut_off:
            world.spark.cut_off = False
            world.spark.settle()
            pods.look()

    world.each_sleep = recovers
    ended(run(launcher.stop(OPAQUE, timeout=TIMEOUT)))
    assert sum(world.slept) < 50 + 3 * GLANCE
    assert len(kubernetes.calls) < 60


def test_answers_that_contradict_each_other_are_no_busy_loop() -> None:
    """AlreadyExists and absence in turns, without end: the stop keeps its time limit."""
    world = World()
    world.each_sleep = lambda: None

    def there_and_gone() -> None:
        assert len(kubernetes.calls) < 200
        if ("sparkapplications", NAMESPACE, NAME) in world.api.objects:
            world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)
        else:
            world.put(NAME, kind="sparkapplications")

    launcher, kubernetes = world.process(meanwhile=there_and_gone)
    world.put(NAME, kind="sparkapplications")
    still_there(run(launcher.stop(OPAQUE, timeout=10.0)))
