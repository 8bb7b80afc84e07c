"""Stopping an attempt: nothing of it runs and nothing will, evidence stays, and what cannot be ended is said."""

from __future__ import annotations

import pytest

from launch.kubeflow_scene import NAMESPACE
from launch.kubeflow_world import (
    BOTH,
    DECLARED,
    DRIVER,
    NAME,
    OPAQUE,
    TIMEOUT,
    World,
    ended,
    is_stub,
    marked,
    run,
    still_there,
)
from sparkonce.errors import LaunchUnavailable
from sparkonce.launch.kubeflow_launcher import LONGEST_PAUSE
from sparkonce.launch.kubeflow_stop import COURTESY
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS
from sparkonce.launch.protocol import Phase, StillThere, Stopped
from sparkonce.model.assignment import Assignment

# --- what may run ---


@pytest.mark.parametrize("assignment", BOTH)
def test_a_running_attempt_is_suspended_with_our_mark_and_its_driver_deleted(assignment: Assignment) -> None:
    """One edit of the application, the driver gone; of an opaque job a stub keeps the driver pod's name."""
    world = World()
    noted = world.running(assignment)

    seen = ended(world.stop(assignment))

    assert (seen.uid, seen.stopping, seen.repeated) == (noted.uid, True, False)
    assert marked(world) and world.application()["metadata"]["generation"] == 2
    assert (world.spark.drivers, world.spark.alive()) == ([noted.driver], [])
    assert is_stub(world.driver()) is (assignment is OPAQUE)
    assert world.made("sparkapplications") == 1


@pytest.mark.parametrize("assignment", BOTH)
def test_a_driver_that_was_ended_by_us_has_no_outcome(assignment: Assignment) -> None:
    """What it exits with after our deletion proves nothing, whenever anybody looks."""
    world = World()
    world.running(assignment)
    assert (ended(world.stop(assignment)).exit_code, ended(world.stop(assignment)).phase) == (None, Phase.UNKNOWN)


@pytest.mark.parametrize("assignment", BOTH)
def test_an_attempt_that_was_never_created_gets_a_placeholder(assignment: Assignment) -> None:
    """The name is taken by something that runs nothing, also when the Spark operator looks at it or somebody resumes it."""
    world = World()

    seen = ended(world.stop(assignment))
    world.spark.settle()
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"spec": {"suspend": False}})
    world.spark.settle()

    assert (seen.phase, seen.nonce, seen.stopping, seen.driver) == (Phase.UNKNOWN, assignment.nonce, True, None)
    assert "ownerReferences" not in world.application()["metadata"]
    assert (world.made("sparkapplications"), world.spark.drivers) == (1, [])


def test_a_submission_that_is_under_way_is_waited_for_where_the_job_is_opaque() -> None:
    """No pod is there when the stop begins, and the one that comes is deleted before the stop ends."""
    world = World()
    world.launch(OPAQUE)
    world.spark.step()
    assert world.spark.in_flight and world.driver() is None

    ended(world.stop(OPAQUE))
    started = len(world.spark.drivers)
    world.spark.settle()

    assert (world.spark.alive(), len(world.spark.drivers), world.made("sparkapplications")) == ([], started, 1)


def test_a_submission_after_the_end_meets_the_stub() -> None:
    """Of a Spark operator that lost its office and was frozen meanwhile; and of a queue that resumes what we suspended."""
    world = World()
    world.launch(OPAQUE)
    before = world.application()
    ended(world.stop(OPAQUE))
    world.spark.in_flight.append(before)
    world.spark.settle()
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"spec": {"suspend": False}})
    world.spark.settle()
    assert (world.spark.drivers, is_stub(world.driver())) == ([], True)


def test_while_the_spark_operator_is_down_an_opaque_attempt_is_not_over() -> None:
    """ "No pod is left" ends nothing while it may still submit; the bound is kept, and the next call goes on."""
    world = World()
    world.launch(OPAQUE)
    world.spark.submits = False
    assert "has not said that it will not submit it" in still_there(world.stop(OPAQUE))
    assert sum(world.slept) == pytest.approx(TIMEOUT)
    world.spark.submits = True
    ended(world.stop(OPAQUE))
    assert world.spark.drivers == []


def test_with_declared_outputs_a_spark_operator_that_is_down_is_waited_for_briefly() -> None:
    """Settling has made the attempt final: the wait is a courtesy."""
    world = World()
    world.launch(DECLARED)
    world.spark.submits = False
    ended(world.stop(DECLARED))
    assert COURTESY <= sum(world.slept) < COURTESY + LONGEST_PAUSE


def test_a_second_driver_and_executors_are_deleted_too() -> None:
    """By our nonce or their owner, whatever their names; what has ended and what is not the attempt's stays."""
    world = World()
    noted = world.running(OPAQUE)
    app_name = {"labels": {"sparkoperator.k8s.io/app-name": NAME}}
    nonce, owner = {"annotations": {"sparkonce.dev/nonce": "nonce-3"}}, {"ownerReferences": [{"uid": noted.uid}]}
    world.put("twin", metadata=app_name | nonce)
    world.put("executor-1", metadata=app_name | owner)
    world.put("executor-2", metadata=app_name | owner, status={"phase": "Succeeded"})
    world.put("executor-of-another-attempt", metadata={"labels": {"sparkoperator.k8s.io/app-name": "another"}} | owner)
    world.put("forged", metadata=app_name)

    ended(world.stop(OPAQUE))

    names = {each["metadata"]["name"] for each in world.api.list(PODS)}
    assert names == {DRIVER, "executor-2", "executor-of-another-attempt", "forged"}


def test_failed_is_no_end_while_its_driver_runs() -> None:
    """The Spark operator submitted twice and says FAILED "driver pod already exist": the driver is deleted all the same."""
    world = World()
    world.launch(OPAQUE)
    world.spark.forgets = 1
    world.spark.settle()
    assert (world.state, world.spark.alive()) == ("FAILED", [DRIVER])

    ended(world.stop(OPAQUE))

    assert (world.spark.alive(), is_stub(world.driver()), len(world.spark.drivers)) == ([], True, 1)
    assert world.application()["metadata"]["generation"] == 1  # a suspension would mean nothing to it


@pytest.mark.parametrize("assignment", BOTH)
def test_a_driver_outlives_its_application(assignment: Assignment) -> None:
    """Somebody deleted the application: a placeholder has the name, and the driver, which is still ours by its nonce, is deleted."""
    world = World()
    noted = world.running(assignment)
    world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)

    seen = ended(world.stop(assignment))

    assert (seen.phase, seen.uid != noted.uid) == (Phase.UNKNOWN, True)
    assert (world.spark.alive(), world.spark.drivers) == ([], [noted.driver])


@pytest.mark.parametrize("assignment", BOTH)
def test_a_driver_whose_node_is_out_of_reach_may_run_on(assignment: Assignment) -> None:
    """Nothing is deleted by force: past the bound it is said, and the pod is as the API server has it."""
    world = World()
    world.running(assignment)
    world.spark.cut_off = True
    assert "1 of its pods" in still_there(world.stop(assignment))
    assert sum(world.slept) == pytest.approx(TIMEOUT)
    assert world.spark.alive() == [DRIVER]
    assert isinstance(world.stop(assignment, timeout=0.0), StillThere)


def test_what_somebody_resumed_is_suspended_again() -> None:
    """Our mark alone stops nothing."""
    world = World()
    world.launch(OPAQUE)
    world.spark.submits = False
    still_there(world.stop(OPAQUE, timeout=1.0))
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"spec": {"suspend": False}})
    world.spark.submits = True
    seen = ended(world.stop(OPAQUE))
    assert (marked(world), seen.repeated, world.spark.drivers) == (True, True, [])


def test_what_a_queue_holds_is_marked_and_kept_from_starting() -> None:
    """It was suspended already, by somebody who will resume it."""
    world = World()
    world.launch(OPAQUE)
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"spec": {"suspend": True}})
    world.spark.settle()
    ended(world.stop(OPAQUE))
    assert marked(world)
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"spec": {"suspend": False}})
    world.spark.settle()
    assert world.spark.drivers == []


# --- evidence ---


@pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED_KNOWN)])
def test_a_driver_that_has_ended_is_evidence_and_stays(code: int, phase: Phase) -> None:
    """The Spark operator is given time to say so, nothing is suspended or deleted, and the ended pod keeps its name."""
    world = World()
    noted = world.running(OPAQUE)
    world.spark.finish(NAME, code)

    seen = ended(world.stop(OPAQUE))

    driver = world.driver()
    assert (seen.phase, seen.exit_code, seen.driver) == (phase, code, noted.driver)
    assert driver is not None and "deletionTimestamp" not in driver["metadata"]
    assert world.application()["metadata"]["generation"] == 1


def test_the_exit_code_survives_a_spark_operator_that_deletes_what_it_suspends() -> None:
    """It never said the end, so it is suspended, which deletes the ended driver: its exit code was seen, and is final."""
    world = World()
    noted = world.running(OPAQUE)
    world.spark.finish(NAME, 3)
    world.spark.submits = False

    def recovers() -> None:
        if marked(world):
            world.spark.submits = True
            world.spark.settle()

    world.each_sleep = recovers
    seen = ended(world.stop(OPAQUE))

    assert (seen.phase, seen.exit_code, seen.driver) == (Phase.FAILED_KNOWN, 3, noted.driver)
    assert is_stub(world.driver())


@pytest.mark.parametrize("assignment", BOTH)
def test_an_attempt_that_has_ended_is_left_as_it_is(assignment: Assignment) -> None:
    """COMPLETED, its driver there: three looks and no write."""
    world = World()
    world.running(assignment)
    world.spark.finish(NAME, 0)
    world.spark.settle()
    launcher, kubernetes = world.process()
    seen = ended(run(launcher.stop(assignment, timeout=TIMEOUT)))
    assert (seen.phase, seen.exit_code) == (Phase.SUCCEEDED, 0)
    assert kubernetes.calls == ["get sparkapplications", "get pods", "list pods"]


# --- somebody else's ---


@pytest.mark.parametrize("assignment", BOTH)
def test_a_foreign_application_is_not_touched_and_what_is_left_of_ours_is(assignment: Assignment) -> None:
    """It took the name after ours was deleted; our driver runs on and is deleted, by its nonce."""
    world = World()
    world.running(assignment)
    world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)
    world.put(NAME, kind="sparkapplications", metadata={"labels": {"team": "other"}})
    executor = {"labels": {"sparkoperator.k8s.io/app-name": NAME}}
    theirs = world.put("executor", metadata=executor | {"ownerReferences": [{"uid": world.noted().uid}]})
    before = world.application()

    seen = ended(world.stop(assignment))

    after = world.application()
    assert (seen.nonce, after["spec"], world.spark.alive()) == ("", before["spec"], [])
    assert (after["metadata"]["uid"], "annotations" in after["metadata"]) == (before["metadata"]["uid"], False)
    assert world.api.get(PODS, NAMESPACE, "executor") == theirs


def test_an_attempt_that_the_ledger_does_not_know_is_not_stopped() -> None:
    """The ledger is older than it was: nothing is ended for it."""
    world = World()
    world.running(OPAQUE.model_copy(update={"nonce": "granted since"}))
    before = world.application()
    with pytest.raises(LaunchUnavailable, match="sparkonce doctor"):
        world.stop(OPAQUE)
    assert (world.application(), world.spark.alive()) == (before, [DRIVER])


@pytest.mark.parametrize("assignment", BOTH)
def test_an_application_that_somebody_deletes_frees_its_name(assignment: Assignment) -> None:
    """While its deletion waits for a finalizer an opaque attempt is not over; when it is gone, a placeholder takes the name."""
    world = World()
    world.launch(assignment)
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"spec": {"suspend": True}})
    world.spark.settle()
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"metadata": {"finalizers": ["somebody.example/x"]}})
    gone = {"metadata": {"deletionTimestamp": world.api.stamp()}}
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, gone)
    answer = world.stop(assignment, timeout=COURTESY)
    assert isinstance(answer, StillThere if assignment is OPAQUE else Stopped)
    world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)
    world.spark.settle()
    assert ended(world.stop(assignment)).message.startswith("a placeholder")
