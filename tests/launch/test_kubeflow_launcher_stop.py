"""Stopping an attempt: afterwards nothing of it runs or will run, evidence is kept, and what cannot be ended is reported."""

from __future__ import annotations

from typing import Any

import pytest

from launch.fake_api import FakeWatched
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
from sparkonce.attempt.observe import opaque_verdict
from sparkonce.errors import LaunchUnavailable
from sparkonce.launch.kubeflow.labels import DRIVER_CONTAINER, WAITED_UNTIL
from sparkonce.launch.kubeflow.launcher import LONGEST_PAUSE, KubeflowLauncher
from sparkonce.launch.kubeflow.starts import EVERY, WRITTEN
from sparkonce.launch.kubeflow.stop import COURTESY
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, ApiRefused, ApiUnavailable
from sparkonce.launch.protocol import Phase, StillThere, Stopped
from sparkonce.model.record import Application, Assignment, Record, Verdict

# --- what may run ---


@pytest.mark.parametrize("assignment", BOTH)
def test_a_running_attempt_is_suspended_with_our_mark_and_its_driver_deleted(assignment: Assignment) -> None:
    """The application gets one edit and the driver is deleted; for an opaque job a stub keeps the driver pod's name."""
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
    """An exit code from after our deletion proves nothing, however often the stop is repeated."""
    world = World()
    world.running(assignment)
    assert (ended(world.stop(assignment)).exit_code, ended(world.stop(assignment)).phase) == (None, Phase.UNKNOWN)


@pytest.mark.parametrize("assignment", BOTH)
def test_an_attempt_that_was_never_created_gets_a_placeholder(assignment: Assignment) -> None:
    """The placeholder that takes the name runs nothing, even if the Spark operator sees it or another client resumes it."""
    world = World()

    seen = ended(world.stop(assignment))
    world.spark.settle()
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"spec": {"suspend": False}})
    world.spark.settle()

    assert (seen.phase, seen.nonce, seen.stopping, seen.driver) == (Phase.UNKNOWN, assignment.nonce, True, None)
    assert "ownerReferences" not in world.application()["metadata"]
    assert (world.made("sparkapplications"), world.spark.drivers) == (1, [])


def test_a_submission_that_is_under_way_is_waited_for_where_the_job_is_opaque() -> None:
    """The stop begins while there is no pod yet; the pod that the submission creates is deleted before the stop ends."""
    world = World()
    world.launch(OPAQUE)
    world.spark.step()
    assert world.spark.in_flight and world.driver() is None

    ended(world.stop(OPAQUE))
    started = len(world.spark.drivers)
    world.spark.settle()

    assert (world.spark.alive(), len(world.spark.drivers), world.made("sparkapplications")) == ([], started, 1)


def test_a_submission_after_the_end_meets_the_stub() -> None:
    """A former leader of the Spark operator that was frozen, and a queue that resumes the suspended application, start no driver."""
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
    """While the Spark operator may still submit, "no pod is left" does not complete the stop: it keeps its time limit, and the next call
    continues."""
    world = World()
    world.launch(OPAQUE)
    world.spark.submits = False
    assert "has not said that it will not submit it" in still_there(world.stop(OPAQUE))
    assert sum(world.slept) == pytest.approx(TIMEOUT)
    world.spark.submits = True
    ended(world.stop(OPAQUE))
    assert world.spark.drivers == []


def test_with_declared_outputs_a_spark_operator_that_is_down_is_waited_for_briefly() -> None:
    """The outputs are settled, which makes the attempt final: the wait is a courtesy."""
    world = World()
    world.launch(DECLARED)
    world.spark.submits = False
    ended(world.stop(DECLARED))
    assert COURTESY <= sum(world.slept) < COURTESY + LONGEST_PAUSE


def test_a_second_driver_and_executors_are_deleted_too() -> None:
    """They are found by our nonce or their owner, whatever their names; ended pods and those of others are kept."""
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
    """After a second submission the Spark operator says FAILED "driver pod already exist": the running driver is still deleted."""
    world = World()
    world.launch(OPAQUE)
    world.spark.forgets = 1
    world.spark.settle()
    assert (world.state, world.spark.alive()) == ("FAILED", [DRIVER])

    ended(world.stop(OPAQUE))

    assert (world.spark.alive(), is_stub(world.driver()), len(world.spark.drivers)) == ([], True, 1)
    assert world.application()["metadata"]["generation"] == 1  # suspending it would have no effect


@pytest.mark.parametrize("assignment", BOTH)
def test_a_driver_outlives_its_application(assignment: Assignment) -> None:
    """After the application was deleted, a placeholder takes its name, and the driver, recognised by our nonce, is deleted."""
    world = World()
    noted = world.running(assignment)
    world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)

    seen = ended(world.stop(assignment))

    assert (seen.phase, seen.uid != noted.uid) == (Phase.UNKNOWN, True)
    assert (world.spark.alive(), world.spark.drivers) == ([], [noted.driver])


@pytest.mark.parametrize("assignment", BOTH)
def test_a_driver_whose_node_is_out_of_reach_may_run_on(assignment: Assignment) -> None:
    """No pod is deleted by force: at the time limit the stop reports the pod, which stays."""
    world = World()
    world.running(assignment)
    world.spark.cut_off = True
    assert "1 of its pods" in still_there(world.stop(assignment))
    assert sum(world.slept) == pytest.approx(TIMEOUT)
    assert world.spark.alive() == [DRIVER]
    assert isinstance(world.stop(assignment, timeout=0.0), StillThere)


def test_what_somebody_resumed_is_suspended_again() -> None:
    """An application that has our mark but was resumed is suspended again: the mark alone stops nothing."""
    world = World()
    world.launch(OPAQUE)
    world.spark.submits = False
    still_there(world.stop(OPAQUE, timeout=1.0))
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"spec": {"suspend": False}})
    world.spark.submits = True
    seen = ended(world.stop(OPAQUE))
    assert (marked(world), seen.repeated, world.spark.drivers) == (True, True, [])


def test_what_a_queue_holds_is_marked_and_kept_from_starting() -> None:
    """A queue had suspended it and would resume it; after the stop no driver starts."""
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
    """The Spark operator is given time to write the end; nothing is suspended or deleted, and the ended pod keeps its name."""
    world = World()
    noted = world.running(OPAQUE)
    world.spark.finish(NAME, code)

    seen = ended(world.stop(OPAQUE))

    driver = world.driver()
    assert (seen.phase, seen.exit_code, seen.driver) == (phase, code, noted.driver)
    assert driver is not None and "deletionTimestamp" not in driver["metadata"]
    assert world.application()["metadata"]["generation"] == 1


def test_the_exit_code_survives_a_spark_operator_that_deletes_what_it_suspends() -> None:
    """The Spark operator never writes the end, so the application is suspended, which deletes the ended driver: the exit code seen before
    that is final."""
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
    """If the status is COMPLETED and the driver pod exists, the stop makes three reads and no write."""
    world = World()
    world.running(assignment)
    world.spark.finish(NAME, 0)
    world.spark.settle()
    launcher, kubernetes = world.process()
    seen = ended(run(launcher.stop(assignment, timeout=TIMEOUT)))
    assert (seen.phase, seen.exit_code) == (Phase.SUCCEEDED, 0)
    assert kubernetes.calls == ["get sparkapplications", "get pods", "list pods"]


# --- foreign objects ---


@pytest.mark.parametrize("assignment", BOTH)
def test_a_foreign_application_is_not_touched_and_what_is_left_of_ours_is(assignment: Assignment) -> None:
    """A foreign application took the name after ours was deleted; our driver, which still runs, is found by its nonce and deleted."""
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
    """The ledger was rewound, so nothing is stopped on its word."""
    world = World()
    world.running(OPAQUE.model_copy(update={"nonce": "granted since"}))
    before = world.application()
    with pytest.raises(LaunchUnavailable, match="sparkonce doctor"):
        world.stop(OPAQUE)
    assert (world.application(), world.spark.alive()) == (before, [DRIVER])


@pytest.mark.parametrize("assignment", BOTH)
def test_an_application_that_somebody_deletes_frees_its_name(assignment: Assignment) -> None:
    """While the deletion waits for a finalizer an opaque attempt is not over; once the application is gone, a placeholder takes the
    name."""
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


# --- what never ran


def waiting(world: World, *, node: str | None = "node-1", reason: str = "ErrImagePull") -> None:
    """The driver pod is waiting, either without a node or on a node that does not start its container."""
    driver = world.driver()
    assert driver is not None
    spec = {"nodeName": node, "containers": [{"name": DRIVER_CONTAINER}]}
    container = {"name": DRIVER_CONTAINER, "restartCount": 0, "state": {"waiting": {"reason": reason}}}
    status = {"phase": "Pending"} | ({"containerStatuses": [container]} if node else {})
    world.api.patch(PODS, NAMESPACE, DRIVER, {"spec": spec, "status": status})


def ended_by_its_kubelet(world: World, **terminated: Any) -> None:
    """Gives the pod's containers the final state that a kubelet writes before the pod is removed."""
    state = {"terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137} | terminated}
    container = {"name": DRIVER_CONTAINER, "restartCount": 0, "state": state}
    world.api.patch(PODS, NAMESPACE, DRIVER, {"status": {"phase": "Failed", "containerStatuses": [container]}})
    world.api.remove(PODS, NAMESPACE, DRIVER)


def submitted(world: World) -> None:
    """Submits the attempt's application, whose annotation says from which version on to read the history of pods; its driver pod waits."""
    run(world.process(watches=True)[0].launch(OPAQUE))
    while not world.spark.drivers:
        world.spark.step()


def test_a_submission_that_failed_never_ran() -> None:
    """It never ran if no pod ever had the driver's name, from before the application until the stub. Nothing is concluded without the
    history, which the API server keeps for minutes only, or if the application does not say from which version on to read it."""
    world = World()
    world.api.refusing = lambda verb, resource, body: (
        ApiRefused("quota", code=403) if resource == PODS and verb == "create" and not is_stub(dict(body)) else None
    )
    run(world.process(watches=True)[0].launch(OPAQUE))
    world.spark.settle()
    assert world.state == "FAILED"
    seen = ended(world.stop(OPAQUE))
    assert (seen.phase, seen.never_ran, seen.unstarted) == (Phase.UNKNOWN, True, frozenset())
    assert ended(world.stop(OPAQUE)).never_ran, "the stub is there: whoever stops it again comes to the same"

    world.api.forgotten = len(world.api.changes)
    assert not ended(world.stop(OPAQUE)).never_ran

    other = World()
    other.api.refusing = world.api.refusing
    other.launch(OPAQUE)
    other.spark.settle()
    assert not ended(other.stop(OPAQUE)).never_ran


def test_a_driver_that_ran_unseen_is_in_the_history() -> None:
    """The driver ran and was deleted by force before anyone looked, and the Spark operator says that the submission failed."""
    world = World()
    run(world.process(watches=True)[0].launch(OPAQUE))
    world.spark.forgets = 1
    world.spark.settle()
    assert (world.state, world.spark.alive()) == ("FAILED", [DRIVER])
    world.api.remove(PODS, NAMESPACE, DRIVER)
    seen = ended(world.stop(OPAQUE))
    assert (seen.phase, seen.never_ran, is_stub(world.driver())) == (Phase.UNKNOWN, False, True)


@pytest.mark.parametrize("ran", [False, True])
def test_a_pod_that_was_never_bound_never_ran(ran: bool) -> None:
    """Unschedulable, or without its volume claim: a pod deleted without a node has run nothing; one with a node may have."""
    world = World()
    submitted(world)
    waiting(world, node="node-1" if ran else None)
    uid = world.spark.drivers[0]
    world.api.remove(PODS, NAMESPACE, DRIVER)
    seen = ended(world.stop(OPAQUE))
    assert (seen.never_ran, seen.unstarted) == ((False, frozenset()) if ran else (True, frozenset({uid})))


@pytest.mark.parametrize(
    ("final", "never"),
    [
        ({}, True),
        ({"containerID": "containerd://1"}, False),
        ({"startedAt": "2026-05-01T12:00:00Z"}, False),
    ],
)
def test_a_container_that_its_kubelet_never_started_never_ran(final: dict[str, str], never: bool) -> None:
    """The image cannot be pulled: in the pod's final state the container has no ID, which one that ran would have."""
    world = World()
    submitted(world)
    waiting(world)
    uid = world.spark.drivers[0]
    ended_by_its_kubelet(world, **final)
    seen = ended(world.stop(OPAQUE))
    assert (seen.never_ran, seen.unstarted) == (never, frozenset({uid} if never else ()))


@pytest.mark.parametrize(
    "container", [{"state": {"running": {}}}, {"lastState": {"terminated": {}}}, {"restartCount": 1}, {"started": True}]
)
def test_a_container_that_started_once_ran(container: dict[str, Any]) -> None:
    """Whatever the pod shows later: one version in its history that shows a start, even of an init container, is enough."""
    for kind in ("containerStatuses", "initContainerStatuses"):
        world = World()
        submitted(world)
        waiting(world)
        status = {"phase": "Pending", kind: [{"name": "any", "restartCount": 0, **container}]}
        world.api.patch(PODS, NAMESPACE, DRIVER, {"status": status})
        ended_by_its_kubelet(world)
        assert not ended(world.stop(OPAQUE)).never_ran


@pytest.mark.parametrize("ran", [False, True])
def test_an_application_that_was_deleted_is_proven_by_what_was_recorded(ran: bool) -> None:
    """Somebody deletes the application, or its last object, and its pod goes with it. The record has the version from which the history of
    the pod's name is read, up to a stub that the placeholder owns: it shows whether a driver ever started. Nothing else does."""
    world = World()
    submitted(world)
    waiting(world)
    noted, uid = world.noted(), world.spark.drivers[0]
    if ran:
        started = {"name": DRIVER_CONTAINER, "restartCount": 0, "state": {"running": {}}}
        world.api.patch(PODS, NAMESPACE, DRIVER, {"status": {"phase": "Running", "containerStatuses": [started]}})
    ended_by_its_kubelet(world)
    world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)
    seen = ended(world.stop(OPAQUE, noted=noted))
    assert (seen.never_ran, is_stub(world.driver())) == (not ran, True)
    assert seen.uid != noted.uid
    record = Record(
        realm="etl",
        key_hash="ab" * 32,
        key="load",
        generation=1,
        attempt=1,
        nonce=OPAQUE.nonce,
        fingerprint="A",
        fingerprint_version=1,
        application=noted,
    )
    assert opaque_verdict(record, Stopped(seen)) is (Verdict.UNKNOWN if ran else Verdict.NONE)
    another = noted.model_copy(update={"pods_since": "1"})
    assert opaque_verdict(record.changed(application=another), Stopped(seen)) is Verdict.UNKNOWN
    if not ran:
        assert (seen.unstarted, seen.pods_since) == (frozenset({uid}), noted.pods_since)
    assert not ended(world.stop(OPAQUE)).never_ran


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("node", ["node-1", None])
def test_a_driver_that_waits_for_longer_than_its_history_is_kept_never_ran(follows: bool, node: str | None) -> None:
    """The API server forgets what is older than a few minutes. The process that observes the waiting driver has read it by then, whether
    the pod changed meanwhile or not; a process that comes after that proves nothing."""
    world, launcher, noted = waits_for_long(node)
    if node is not None:
        ended_by_its_kubelet(world)
    stopper = launcher if follows else world.process()[0]
    seen = ended(run(stopper.stop(OPAQUE, timeout=TIMEOUT, noted=noted)))
    assert seen.never_ran is follows


@pytest.mark.parametrize("container", [{"lastState": {"terminated": {}}}, {"restartCount": 1}, {"started": True}])
def test_a_start_that_is_seen_while_its_driver_waits_ends_the_proof(container: dict[str, Any]) -> None:
    """A container that runs for a moment between two steps is in the history of the next one, and the proof does not go on."""
    world, launcher, noted = waits_for_long("node-1")
    started = {"name": DRIVER_CONTAINER, "restartCount": 0, "state": {"waiting": {"reason": "Any"}}, **container}
    world.api.patch(PODS, NAMESPACE, DRIVER, {"status": {"containerStatuses": [started]}})
    waiting(world)
    passes(world, launcher, noted)
    ended_by_its_kubelet(world)
    assert not ended(run(launcher.stop(OPAQUE, timeout=TIMEOUT, noted=noted))).never_ran


def test_a_history_that_was_lost_is_not_taken_up_again() -> None:
    """The API server forgets before the first step: later steps would begin behind what is unknown."""
    world = World()
    submitted(world)
    waiting(world)
    noted, launcher = world.noted(), world.process(watches=True)[0]
    run(launcher.observe(OPAQUE, noted))
    world.api.forgotten = len(world.api.changes)
    for _ in range(2):
        passes(world, launcher, noted)
    ended_by_its_kubelet(world)
    assert not ended(run(launcher.stop(OPAQUE, timeout=TIMEOUT, noted=noted))).never_ran


@pytest.mark.parametrize("observes", [False, True])
@pytest.mark.parametrize("node", ["node-1", None])
@pytest.mark.parametrize("started", [False, True])
def test_a_process_that_takes_over_goes_on_where_the_last_one_wrote(
    observes: bool, node: str | None, started: bool
) -> None:
    """What came before is forgotten. The successor stops the attempt at once, or first waits in its turn while more is forgotten; it never
    proves that a driver did not start which started after the takeover."""
    world, noted = taken_over(node)
    successor = world.process(watches=True)[0]
    run(successor.observe(OPAQUE, noted))
    if started:
        container = {"name": DRIVER_CONTAINER, "restartCount": 1, "state": {"waiting": {"reason": "Any"}}}
        world.api.patch(PODS, NAMESPACE, DRIVER, {"status": {"containerStatuses": [container]}})
        waiting(world)
    if observes:
        for _ in range(WRITTEN + 1):
            passes(world, successor, noted)
            world.api.forgotten = len(world.api.changes)
    if node is not None:
        ended_by_its_kubelet(world)
    assert ended(run(successor.stop(OPAQUE, timeout=TIMEOUT, noted=noted))).never_ran is not started


@pytest.mark.parametrize("tampered", ["", "/", "version-9", "version-9/", "x" * 300, "version-1/version-1"])
def test_what_is_written_into_an_application_is_input(tampered: str) -> None:
    """Anything else than two versions is as if nothing had been written, and an old version is one whose history is lost."""
    world, noted = taken_over("node-1")
    annotations = {"annotations": {WAITED_UNTIL: tampered}}
    world.api.patch(SPARK_APPLICATIONS, NAMESPACE, NAME, {"metadata": annotations})
    successor = world.process(watches=True)[0]
    passes(world, successor, noted)
    ended_by_its_kubelet(world)
    assert not ended(run(successor.stop(OPAQUE, timeout=TIMEOUT, noted=noted))).never_ran


def taken_over(node: str | None) -> tuple[World, Application]:
    """A driver that waits, whose process has written how far it had read, and is gone. All up to there is forgotten."""
    world = World()
    submitted(world)
    waiting(world, node=node)
    noted, launcher = world.noted(), world.process(watches=True)[0]
    run(launcher.observe(OPAQUE, noted))
    for _ in range(WRITTEN):
        waiting(world, node=node, reason="ImagePullBackOff")
        passes(world, launcher, noted)
    kind, written = world.api.changes[-1]
    assert (kind, WAITED_UNTIL in written["metadata"]["annotations"]) == ("MODIFIED", True)
    world.api.forgotten = len(world.api.changes) - 1
    return world, noted


def waits_for_long(node: str | None) -> tuple[World, KubeflowLauncher, Application]:
    """A driver that has waited for three steps of the proof; its pod changed before the first two. All of it is forgotten."""
    world = World()
    submitted(world)
    waiting(world, node=node)
    noted, launcher = world.noted(), world.process(watches=True)[0]
    run(launcher.observe(OPAQUE, noted))
    for reason in ("ImagePullBackOff", "ErrImagePull", None):
        if reason is not None:
            waiting(world, node=node, reason=reason)
        passes(world, launcher, noted)
        world.api.forgotten = len(world.api.changes)
    return world, launcher, noted


def passes(world: World, launcher: KubeflowLauncher, noted: Application) -> None:
    """Lets the time of one step pass and its process look."""
    world.api.clock += EVERY + 1
    for watched in (launcher.applications, launcher.pods):
        assert isinstance(watched, FakeWatched)
        watched.look()
    run(launcher.observe(OPAQUE, noted))


def test_an_api_server_that_does_not_answer_proves_nothing() -> None:
    """The next call asks for the history again; until then the attempt is not over."""
    world = World()
    submitted(world)
    waiting(world, node=None)
    world.api.remove(PODS, NAMESPACE, DRIVER)
    launcher, kubernetes = world.process()
    ended(run(launcher.stop(OPAQUE, timeout=TIMEOUT)))
    last = len(kubernetes.calls) - 1
    assert kubernetes.calls[last] == "history of pods"
    again = World()
    submitted(again)
    waiting(again, node=None)
    again.api.remove(PODS, NAMESPACE, DRIVER)
    with pytest.raises(LaunchUnavailable, match=r"not known whether pod .* ever ran"):
        run(again.process({last: ApiUnavailable("no answer")})[0].stop(OPAQUE, timeout=TIMEOUT))
    assert ended(again.stop(OPAQUE)).never_ran
