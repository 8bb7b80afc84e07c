"""Listing an install's applications, and removing one that is no longer needed while its name stays taken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from launch.fake_api import Died, Fault
from launch.kubeflow_scene import JOB, NAMESPACE, job_of
from launch.kubeflow_world import BOTH, DECLARED, DRIVER, NAME, OPAQUE, World, outcome, run
from sparkonce.errors import LaunchUnavailable
from sparkonce.launch.kubeflow.spec import application, settle_run
from sparkonce.launch.kubeflow.sweep import FoundApplication, list_of, remove
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, ApiRefused
from sparkonce.launch.protocol import Phase, Stopped
from sparkonce.model.record import Assignment


def found(world: World, install: str = "east", **how: Any) -> list[FoundApplication]:
    return run(list_of(world.process()[1], install, how.get("namespaces")))


def one(world: World) -> FoundApplication:
    [only] = found(world)
    return only


def ended(world: World, assignment: Assignment) -> FoundApplication:
    """An attempt that has run to its end."""
    world.running(assignment)
    world.spark.finish(NAME, 0)
    world.spark.settle()
    return one(world)


# --- listing ---


def test_an_application_says_whose_it_is() -> None:
    """Address, generation, attempt, nonce and fingerprint are enough to rebuild a record and to stop the attempt."""
    world = World()
    noted = world.running(OPAQUE)
    seen = one(world)
    assert (seen.namespace, seen.name, seen.uid, seen.address) == (NAMESPACE, NAME, noted.uid, OPAQUE.address)
    assert (seen.generation, seen.attempt, seen.nonce, seen.fingerprint) == (2, 3, OPAQUE.nonce, OPAQUE.fingerprint)
    assert (seen.objects, seen.settle_run, seen.phase) == (("uid-of-a", "uid-of-b"), None, Phase.RUNNING)
    assert (seen.placeholder, seen.stopping, seen.over) == (False, False, False)
    assert seen.assignment.name == NAME
    assert isinstance(run(world.process()[0].stop(seen.assignment, timeout=60)), Stopped)
    assert (one(world).stopping, one(world).over, world.spark.alive()) == (True, True, [])


def test_placeholders_and_settle_runs_are_told_apart() -> None:
    """Neither is listed as an attempt that ran."""
    world = World()
    world.stop(DECLARED)
    job = settle_run(DECLARED.model_copy(update={"run": 2}), JOB, namespace=NAMESPACE)
    world.api.create(SPARK_APPLICATIONS, NAMESPACE, job)
    placed, settling = sorted(found(world), key=lambda each: each.name)
    assert (placed.placeholder, placed.over, placed.settle_run) == (True, True, None)
    assert (settling.placeholder, settling.settle_run, settling.attempt) == (False, 2, 3)


def test_what_is_not_of_this_install_is_not_found() -> None:
    """Another install's application, a foreign one, and one whose name does not match its annotations are left out; labels do not count."""
    world = World()
    stored = world.launch(DECLARED)
    assert found(world, "west") == []
    annotations = stored["metadata"]["annotations"]
    label = {"labels": stored["metadata"]["labels"]}
    world.put("theirs", kind="sparkapplications", metadata=label)
    world.put("so-0123456789abcdef0123-g2-a4x", kind="sparkapplications", metadata={"annotations": annotations})
    world.put("so-ffffffffffffffffffff-g2-a3", kind="sparkapplications", metadata={"annotations": annotations})
    relabelled = {"metadata": {"labels": {"sparkonce.dev/attempt": "9", "sparkonce.dev/key": "x"}}}
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, relabelled)
    assert [(each.name, each.attempt) for each in found(world)] == [(NAME, 3)]


def test_namespaces_limit_what_is_listed() -> None:
    """None lists all namespaces."""
    world = World()
    world.launch(DECLARED)
    assert (len(found(world, namespaces=[NAMESPACE])), found(world, namespaces=["other"])) == (1, [])


def test_what_cannot_be_listed_is_not_nothing() -> None:
    """Missing permission is an error, not an empty list."""
    with pytest.raises(LaunchUnavailable, match="cannot be listed"):
        run(list_of(World().process({0: ApiRefused("forbidden", code=403)})[1], "east", None))


# --- removing ---


@pytest.mark.parametrize("assignment", BOTH)
def test_an_application_is_removed_with_its_pods(assignment: Assignment) -> None:
    """For an opaque job a placeholder then holds the name; repeating the call changes nothing."""
    world = World()
    listed = ended(world, assignment)
    keep = assignment is OPAQUE
    _, kubernetes = world.process()

    assert run(remove(kubernetes, listed, keep_name=keep))
    world.api.collect()
    world.spark.settle()

    assert world.driver() is None
    assert len(world.spark.drivers) == 1
    left = found(world)
    assert [each.placeholder for each in left] == ([True] if keep else [])
    for each in [listed, *left]:
        before = dict(world.api.objects)
        assert run(remove(kubernetes, each, keep_name=keep))
        assert world.api.objects == before


def test_a_late_create_after_the_removal_meets_the_placeholder() -> None:
    """A frozen owner's late create is answered that the attempt is being stopped."""
    world = World()

    async def story() -> bool:
        launcher, kubernetes = world.process({0: Fault.FREEZES_BEFORE})
        zombie = asyncio.ensure_future(launcher.launch(OPAQUE))
        await kubernetes.frozen.wait()
        await world.process()[0].launch(OPAQUE)
        world.spark.settle()
        world.spark.finish(NAME, 0)
        world.spark.settle()
        [listed] = await list_of(world.process()[1], "east", None)
        assert await remove(world.process()[1], listed, keep_name=True)
        kubernetes.thawed.set()
        return (await zombie).stopping

    assert run(story())
    world.spark.settle()
    assert len(world.spark.drivers) == 1


def test_a_late_create_between_removal_and_placeholder_is_stopped_on_sight() -> None:
    """The one gap that Kubernetes leaves: an application created in it is suspended before it can be submitted, and removed by a later
    sweep."""
    world = World()
    listed = ended(world, OPAQUE)
    late = application(OPAQUE, job_of(), [], namespace=NAMESPACE)
    _, kubernetes = world.process()

    def slips_in() -> None:
        if kubernetes.calls[-1] == "create sparkapplications" and world.made("sparkapplications") == 1:
            world.api.create(SPARK_APPLICATIONS, NAMESPACE, late)

    kubernetes.meanwhile = slips_in
    assert not run(remove(kubernetes, listed, keep_name=True))
    kubernetes.meanwhile = lambda: None
    world.spark.settle()
    assert len(world.spark.drivers) == 1

    assert run(remove(kubernetes, one(world), keep_name=True))
    assert one(world).placeholder


def test_what_may_still_be_submitted_is_not_removed() -> None:
    """Removing an opaque application that was not stopped would free its name during a submission."""
    world = World()
    world.running(OPAQUE)
    before = world.application()
    assert not run(remove(world.process()[1], one(world), keep_name=True))
    assert (world.application(), world.spark.alive()) == (before, [DRIVER])
    world.stop(OPAQUE)
    assert run(remove(world.process()[1], one(world), keep_name=True))


def test_only_what_was_found_is_removed() -> None:
    """Removal is by UID: a later object of that name is kept."""
    world = World()
    listed = ended(world, DECLARED)
    world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)
    world.put(NAME, kind="sparkapplications")
    before = world.application()
    for keep in (False, True):
        assert run(remove(world.process()[1], listed, keep_name=keep))
    assert world.application()["metadata"]["uid"] == before["metadata"]["uid"]


def test_a_finalizer_delays_the_removal() -> None:
    """The application is being deleted, and the next sweep checks again."""
    world = World()
    listed = ended(world, OPAQUE)
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"metadata": {"finalizers": ["somebody.example/x"]}})
    _, kubernetes = world.process()
    going = {"metadata": {"deletionTimestamp": world.api.stamp()}}
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, going)
    assert not run(remove(kubernetes, listed, keep_name=True))
    world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)
    assert run(remove(kubernetes, listed, keep_name=True))
    assert one(world).placeholder


@pytest.mark.parametrize("fault", [each for each in Fault if "freezes" not in each])
def test_a_removal_is_gone_on_with_from_wherever_it_stands(fault: Fault) -> None:
    """A fault hits each of its calls; after the same call again a placeholder holds the name, and one driver ran in all."""
    for call in range(20):
        world = World(seed=call)
        listed = ended(world, OPAQUE)
        _, kubernetes = world.process({call: fault})
        first = outcome(remove(kubernetes, listed, keep_name=True))
        assert isinstance(first, bool | LaunchUnavailable | Died)
        world.late_requests_land()
        for _ in range(3):
            if run(remove(world.process()[1], listed, keep_name=True)):
                break
        world.late_requests_land()
        world.api.collect()
        world.spark.settle()
        assert one(world).placeholder
        assert (len(world.spark.drivers), world.api.list(PODS)) == (1, [])
        if len(kubernetes.calls) <= call:
            assert call > 2
            return
    raise AssertionError("a removal that makes twenty calls")
