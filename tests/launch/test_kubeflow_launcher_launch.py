"""Creating an attempt's application: exactly one, whatever faults hit the call and however many processes make the call."""

from __future__ import annotations

import asyncio
import copy

import pytest

from launch.fake_api import Fault
from launch.kubeflow_scene import JOB, NAMESPACE
from launch.kubeflow_world import BOTH, DECLARED, NAME, OPAQUE, WANTING, World, outcome, run
from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.launch.kubeflow.spec import application
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS, ApiConflict, ApiRefused, ApiUnavailable
from sparkonce.launch.protocol import ApplicationState, Phase, Stopped
from sparkonce.model.record import Assignment, SpecBody

AGAIN = 10
"""The number of calls after which something would have been created."""


def test_an_attempt_is_created_once_and_complete() -> None:
    """One call creates everything, with owners if outputs are declared; it returns the application as stored."""
    world = World()
    launcher, kubernetes = world.process()

    seen = run(launcher.launch(DECLARED))

    stored = world.application()
    assert (seen.name, seen.uid, seen.nonce, seen.phase) == (NAME, stored["metadata"]["uid"], "nonce-3", Phase.ACCEPTED)
    assert kubernetes.calls == ["create sparkapplications"]
    expected = application(DECLARED, JOB, WANTING, namespace=NAMESPACE)
    assert stored["spec"] == expected["spec"]
    assert stored["metadata"].items() >= expected["metadata"].items()
    assert [each["uid"] for each in stored["metadata"]["ownerReferences"]] == ["uid-of-a", "uid-of-b"]


def test_an_opaque_attempt_has_no_owners() -> None:
    """Garbage collection would free the name, so deleting an object must not remove the application."""
    assert "ownerReferences" not in World().launch(OPAQUE)["metadata"]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("assignment", BOTH)
def test_whatever_happens_to_the_call_the_same_call_again_makes_it_one(assignment: Assignment, fault: Fault) -> None:
    """The caller dies before or after the call or freezes, or the request or its answer is lost or late. A process repeats the call and all
    pending requests take effect: there is one application, ours, and one driver."""
    world = World()

    async def story() -> ApplicationState:
        launcher, kubernetes = world.process({0: fault})
        first = asyncio.ensure_future(launcher.launch(assignment))
        await asyncio.wait([first, asyncio.ensure_future(kubernetes.frozen.wait())], return_when="FIRST_COMPLETED")
        again = await world.process()[0].launch(assignment)
        kubernetes.thawed.set()
        await asyncio.wait([first])
        if fault in {Fault.FREEZES_BEFORE, Fault.FREEZES_AFTER}:
            assert first.result().uid == again.uid
        else:
            assert not isinstance(first.exception(), LaunchRefused)
        return again

    again = run(story())
    world.late_requests_land()
    world.spark.settle()

    assert (again.nonce, again.uid) == (assignment.nonce, world.application()["metadata"]["uid"])
    assert (world.made("sparkapplications"), len(world.spark.drivers)) == (1, 1)


def test_two_at_once_make_one() -> None:
    """Both get the same application."""
    world = World()

    async def both() -> list[ApplicationState]:
        return await asyncio.gather(*(world.process()[0].launch(OPAQUE) for _ in range(2)))

    one, other = run(both())
    assert one == other
    assert world.made("sparkapplications") == 1


def test_no_answer_is_unknown() -> None:
    """A lost request and a lost answer give the same error. The launcher retries neither: its caller looks first, then retries."""
    for fault, made in ((Fault.LOST, 0), (Fault.ANSWER_LOST, 1)):
        world = World()
        launcher, kubernetes = world.process({0: fault})
        with pytest.raises(LaunchUnavailable, match="it is not known whether"):
            run(launcher.launch(DECLARED))
        assert (len(kubernetes.calls), world.made("sparkapplications")) == (1, made)


@pytest.mark.parametrize("theirs", ["", "nonce-of-another-grant"])
def test_a_taken_name_is_told_by_its_nonce(theirs: str) -> None:
    """A foreign application has no nonce; one of ours with another nonce shows that the ledger was rewound."""
    world = World()
    document = application(DECLARED.model_copy(update={"nonce": theirs}), JOB, [], namespace=NAMESPACE)
    if not theirs:
        document["metadata"]["annotations"] = {}
    world.api.create(SPARK_APPLICATIONS, NAMESPACE, document)

    seen = run(world.process()[0].launch(DECLARED))

    assert (seen.nonce, seen.rewound) == (theirs, bool(theirs))
    assert run(world.process()[0].observe(DECLARED)) == seen
    assert world.made("sparkapplications") == 1


def test_a_name_that_was_taken_and_is_free_again_is_tried_later() -> None:
    """If a create gets AlreadyExists and the object is then missing, the outcome is unknown."""
    world = World()
    world.put(NAME, kind="sparkapplications")
    looks = iter([None, lambda: world.api.remove(SPARK_APPLICATIONS, NAMESPACE, NAME)])
    launcher, _ = world.process(meanwhile=lambda: (act := next(looks)) and act())
    with pytest.raises(LaunchUnavailable, match="is gone"):
        run(launcher.launch(DECLARED))


@pytest.mark.parametrize("code", [400, 422])
def test_an_invalid_application_is_refused_for_good_with_its_fields(code: int) -> None:
    """The error gives the fields' paths in the IdempotentJob."""
    refusal = ApiRefused(
        "spec.driver.cores: must be positive", code=code, reason="Invalid", fields=["spec.driver.cores"]
    )
    with pytest.raises(LaunchRefused, match=r"as invalid \(spec\.template\.spec\.driver\.cores\): .*must be positive"):
        run(World().process({0: refusal})[0].launch(DECLARED))


def test_fields_that_the_cluster_does_not_know_are_named() -> None:
    """One sentence names all of them by their paths in the IdempotentJob."""
    refusal = ApiRefused("strict", code=400, unknown=["spec.driver.memroy", "spec.imagee"])
    said = (
        r"spec\.template\.spec\.driver\.memroy and spec\.template\.spec\.imagee are not fields of the SparkApplications"
    )
    with pytest.raises(LaunchRefused, match=said):
        run(World().process({0: refusal})[0].launch(DECLARED))


def test_a_field_of_ours_that_an_older_cluster_lacks_is_left_to_it() -> None:
    """If the cluster's CRD lacks `driver.template`, the driver runs without its projected token; the job's own pod template is never
    dropped."""
    refusal = ApiRefused("strict", code=400, unknown=["spec.driver.template"])
    launcher, kubernetes = World().process({0: refusal})
    assert run(launcher.launch(DECLARED)).phase is Phase.ACCEPTED
    assert kubernetes.strict == [True, False]
    job = DECLARED.spec.job
    own = {**job["spec"]["template"]["spec"], "driver": {"template": {"spec": {}}}}
    template = {**job["spec"]["template"], "spec": own}
    body = SpecBody(job={**job, "spec": {**job["spec"], "template": template}})
    with pytest.raises(LaunchRefused, match=r"spec\.template\.spec\.driver\.template is not a field"):
        run(World().process({0: refusal})[0].launch(DECLARED.model_copy(update={"spec": body})))


def test_a_settle_run_is_created_although_the_cluster_knows_a_field_no_more() -> None:
    """Settling an attempt must work even if the CRD has lost a field of the job since."""
    launcher, kubernetes = World().process()
    run(launcher.settle(DECLARED.model_copy(update={"run": 1})))
    assert kubernetes.strict == [False]


@pytest.mark.parametrize("code", [401, 403, 404, 409, 413, 429])
def test_every_other_refusal_is_for_now(code: int) -> None:
    """Missing rights, a quota, a missing namespace or too many requests: the same call is repeated after the delay that the API server
    names."""
    refusal = (ApiConflict if code == 409 else ApiRefused)("not now", code=code, retry_after=7.0)
    world = World()
    with pytest.raises(LaunchUnavailable, match="not created in namespace loads: not now") as told:
        run(world.process({0: refusal})[0].launch(DECLARED))
    assert told.value.retry_after == 7.0
    assert world.launch(DECLARED)["metadata"]["name"] == NAME


def test_a_namespace_that_is_being_deleted_or_gone_takes_nothing() -> None:
    """The namespace is unavailable, since it may come back."""
    world = World()
    world.api.namespaces[NAMESPACE]["metadata"]["deletionTimestamp"] = "now"
    assert isinstance(outcome(world.process()[0].launch(DECLARED)), LaunchUnavailable)
    world.api.namespaces.clear()
    assert isinstance(outcome(world.process()[0].launch(DECLARED)), LaunchUnavailable)


def test_a_job_that_is_no_job_any_more_is_refused() -> None:
    """A recorded job that this version cannot launch is refused before any request is sent."""
    world = World()
    body = copy.deepcopy(DECLARED.spec.job)
    body["spec"]["template"]["spec"]["driver"] = {"podName": "mine"}
    spec = DECLARED.spec.model_copy(update={"job": body})
    launcher, kubernetes = world.process()
    with pytest.raises(LaunchRefused, match="podName"):
        run(launcher.launch(DECLARED.model_copy(update={"spec": spec})))
    assert kubernetes.calls == []


@pytest.mark.parametrize("assignment", BOTH)
def test_a_create_that_a_zombie_sends_after_the_attempt_was_abandoned_meets_a_placeholder(
    assignment: Assignment,
) -> None:
    """Frozen before its create while the attempt is stopped: the late create is answered that the attempt is being stopped, and no driver
    ever starts."""
    world = World()

    async def story() -> ApplicationState:
        launcher, kubernetes = world.process({0: Fault.FREEZES_BEFORE})
        zombie = asyncio.ensure_future(launcher.launch(assignment))
        await kubernetes.frozen.wait()
        assert isinstance(await world.process()[0].stop(assignment, timeout=60), Stopped)
        world.spark.settle()
        kubernetes.thawed.set()
        return await zombie

    seen = run(story())
    world.spark.settle()

    assert (seen.nonce, seen.stopping) == (assignment.nonce, True)
    assert (world.made("sparkapplications"), world.spark.drivers) == (1, [])


def test_an_answer_that_says_nothing_is_no_refusal() -> None:
    """A 500 or a proxy's page is an unknown outcome, as silence is."""
    with pytest.raises(LaunchUnavailable):
        run(World().process({0: ApiUnavailable("500")})[0].launch(DECLARED))


def test_a_settle_run_carries_the_labels_and_annotations_of_the_template() -> None:
    """They are those of every application of the job."""
    job = DECLARED.spec.job
    metadata = {"labels": {"team": "x"}, "annotations": {"example.com/owner": "y"}}
    body = SpecBody(job={**job, "spec": {**job["spec"], "template": {**job["spec"]["template"], "metadata": metadata}}})
    launcher, kubernetes = World().process()
    run(launcher.settle(DECLARED.model_copy(update={"run": 1, "spec": body})))
    (made,) = [each for (plural, *_), each in kubernetes.api.objects.items() if plural == SPARK_APPLICATIONS.plural]
    assert made["metadata"]["labels"]["team"] == "x"
    assert made["metadata"]["annotations"]["example.com/owner"] == "y"
