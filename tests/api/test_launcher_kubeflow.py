"""The kubeflow launcher on a real API server, with the operator's own client and watches: creates, conflicts, refusals, deletions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from api.scenes import SCENE, job, until
from harness.api_faults import ApiProxy
from harness.apiserver import Cluster
from harness.eventually import INTERVAL
from harness.kube_api import Json
from harness.kubeflow import FakeKubeflow, Script
from harness.kubeflow.drivers import runs_until_stopped
from harness.patience import Patience, within
from launch.kubeflow_scene import assignment_of, job_of
from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.kube.client import ApiClient
from sparkonce.kube.login import KubeLogin
from sparkonce.kube.watch import applications, driver_pods
from sparkonce.launch.kubeflow.launcher import KubeflowLauncher
from sparkonce.launch.kubeflow.spec import Wanting
from sparkonce.launch.kubeflow.sweep import list_of, remove
from sparkonce.launch.kubernetes import JOBS, NAMESPACES, PODS, SPARK_APPLICATIONS, Resource
from sparkonce.launch.protocol import ApplicationState, Phase, StillThere, Stopped
from sparkonce.model.record import Application, Assignment
from sparkonce.model.spec import IdempotentJob, OnDelete

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
TIMEOUT = 30.0
"""Seconds for a stop; on free cores the fake Spark operator needs a fraction of one."""
JOB, OPAQUE = job_of("orders"), job_of()


class Place:
    """One namespace with one attempt, which has its own nonce and install so that tests do not affect each other."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.api, self.namespace = cluster, cluster.api, namespace
        self.owners: list[Wanting] = []
        self.install = f"i-{uuid.uuid4().hex[:10]}"

    def attempt(self, job: IdempotentJob = JOB) -> Assignment:
        return assignment_of(job, install=self.install, nonce=uuid.uuid4().hex, realm=self.namespace)

    def launcher(self, client: ApiClient) -> KubeflowLauncher:
        async def objects_of(_: Assignment) -> Sequence[Wanting]:
            return self.owners

        return KubeflowLauncher(
            client,
            applications=None,
            pods=None,
            namespace_of=lambda _: self.namespace,
            objects_of=objects_of,
            now=asyncio.get_event_loop().time,
            sleep=asyncio.sleep,
        )

    def applications(self) -> Sequence[Json]:
        return self.api.list(SPARK_APPLICATIONS, self.namespace)

    def pod(self, assignment: Assignment) -> Json | None:
        return self.api.get(PODS, f"{assignment.name}-driver", self.namespace)

    def resume(self, assignment: Assignment) -> None:
        self.api.patch(SPARK_APPLICATIONS, assignment.name, {"spec": {"suspend": False}}, namespace=self.namespace)


@pytest.fixture
def place(cluster: Cluster, namespace: str) -> Place:
    return Place(cluster, namespace)


@asynccontextmanager
async def client_of(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    client = ApiClient(KubeLogin(kubeconfig))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def watching(place: Place, client: ApiClient) -> AsyncIterator[KubeflowLauncher]:
    """A launcher with the operator's own watches."""
    watches = [kind(client, [place.namespace]) for kind in (applications, driver_pods)]
    for each in watches:
        each.start()
    try:
        await until(lambda: all(each.synced for each in watches))
        launcher = place.launcher(client)
        launcher.applications, launcher.pods = watches
        yield launcher
    finally:
        for each in watches:
            await each.stop()


def play(kubeconfig: Path, scene: Callable[[ApiClient], Awaitable[None]]) -> None:
    async def story() -> None:
        async with client_of(kubeconfig) as client:
            await within(scene(client), SCENE)

    asyncio.run(story())


async def seen_as(
    launcher: KubeflowLauncher, assignment: Assignment, phase: Phase, noted: Application | None = None
) -> ApplicationState:
    """The observed state, once it is in this phase."""
    patience = Patience(TIMEOUT)
    while not patience.over():
        seen = await launcher.observe(assignment, noted)
        if seen is not None and seen.phase is phase:
            return seen
        await asyncio.sleep(INTERVAL)
    raise AssertionError(f"it is never {phase}")


async def another_runs(place: Place, launcher: KubeflowLauncher) -> None:
    """Runs another application to its end: then the Spark operator has seen everything done before it."""
    last = place.attempt(OPAQUE).model_copy(update={"attempt": 99})
    await launcher.launch(last)
    await seen_as(launcher, last, Phase.SUCCEEDED)


def noted_of(seen: ApplicationState) -> Application:
    return Application(name=seen.name, uid=seen.uid, driver=seen.driver)


# --- creating ---


def test_a_life_seen_through_watches(kubeconfig: Path, place: Place, kubeflow: FakeKubeflow) -> None:
    """Launched, running, succeeded: one application and one driver; once the watches have the application, no observation makes a
    request."""
    asked: list[str] = []

    async def scene(client: ApiClient) -> None:
        async with watching(place, client) as launcher:
            assignment = place.attempt()
            made = await launcher.launch(assignment)
            watched = launcher.applications
            assert watched is not None
            await until(lambda: watched.get(place.namespace, assignment.name) is not None)
            client._on_call = lambda verb, kind, result: asked.append(f"{verb} {kind} {result}")
            running = await seen_as(launcher, assignment, Phase.RUNNING)
            ended = await seen_as(launcher, assignment, Phase.SUCCEEDED, noted_of(running))
            assert (ended.uid, ended.driver, ended.exit_code) == (made.uid, running.driver, 0)

    kubeflow.on(Script(run_seconds=1.0))
    play(kubeconfig, scene)
    assert (len(place.applications()), len(kubeflow.runs), asked) == (1, 1, [])


@pytest.mark.operator
def test_twenty_who_launch_one_attempt_make_one(kubeconfig: Path, place: Place, kubeflow: FakeKubeflow) -> None:
    """All of them get the same application, and one driver runs."""
    assignment = place.attempt(OPAQUE)

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        seen = await asyncio.gather(*(launcher.launch(assignment) for _ in range(20)))
        assert {(each.uid, each.nonce) for each in seen} == {(seen[0].uid, assignment.nonce)}
        await seen_as(launcher, assignment, Phase.SUCCEEDED)

    play(kubeconfig, scene)
    assert (len(place.applications()), len(kubeflow.runs)) == (1, 1)


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_create_without_an_answer_is_unknown_and_the_next_one_knows(
    api_proxy: ApiProxy, place: Place, kubeflow: FakeKubeflow, lost: str
) -> None:
    """Whether the request or the reply was lost, the repeated create gives one application and one driver."""
    assignment = place.attempt()

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        (api_proxy.lose_request if lost == "request" else api_proxy.lose_reply)(
            method="POST", path="/sparkapplications$"
        )
        with pytest.raises(LaunchUnavailable, match="it is not known whether"):
            await launcher.launch(assignment)
        assert len(place.applications()) == (lost == "reply")
        assert (await launcher.launch(assignment)).nonce == assignment.nonce
        await seen_as(launcher, assignment, Phase.SUCCEEDED)

    play(api_proxy.kubeconfig, scene)
    assert (len(place.applications()), len(kubeflow.runs)) == (1, 1)


def test_what_the_schema_forbids_is_refused_with_its_fields(kubeconfig: Path, place: Place) -> None:
    """The refusal names the fields as fields of the IdempotentJob; nothing was created."""
    wrong = job_of("orders", template={"driver": {"cores": -1}, "executor": {"instances": -2}})

    async def scene(client: ApiClient) -> None:
        with pytest.raises(LaunchRefused, match=r"spec\.template\.spec\.driver\.cores.*executor\.instances"):
            await place.launcher(client).launch(place.attempt(wrong))

    play(kubeconfig, scene)
    assert place.applications() == []


def test_too_many_requests_say_when(api_proxy: ApiProxy, place: Place) -> None:
    """The Retry-After reaches the caller, which repeats the call."""
    api_proxy.answer(429, method="POST", retry_after=7)

    async def scene(client: ApiClient) -> None:
        with pytest.raises(LaunchUnavailable) as told:
            await place.launcher(client).launch(place.attempt())
        assert told.value.retry_after == 7.0

    play(api_proxy.kubeconfig, scene)


def test_an_application_goes_with_the_last_object_that_wants_it(kubeconfig: Path, place: Place) -> None:
    """An application with two owners stays when one is deleted; after both, the garbage collector deletes it, and it is observed as
    absent."""
    assignment = place.attempt()
    for name in ("a", "b"):
        made = place.api.create(JOBS, job(name), place.namespace)
        uid = made["metadata"]["uid"]
        place.owners.append(Wanting(name=name, namespace=place.namespace, uid=uid, on_delete=OnDelete.STOP))

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        await launcher.launch(assignment)
        place.api.delete(JOBS, "a", place.namespace)
        await until(lambda: len(place.applications()[0]["metadata"]["ownerReferences"]) == 1)
        assert await launcher.observe(assignment) is not None
        place.api.delete(JOBS, "b", place.namespace)
        await until(lambda: place.applications() == [])
        assert await launcher.observe(assignment) is None

    play(kubeconfig, scene)


# --- stopping ---


@pytest.mark.parametrize("wanted", [JOB, OPAQUE], ids=["declared", "opaque"])
def test_a_running_attempt_is_stopped_for_good(
    kubeconfig: Path, place: Place, kubeflow: FakeKubeflow, wanted: IdempotentJob
) -> None:
    """Its driver ends, nothing starts when a queue resumes the application, and a second stop finds nothing to do."""
    assignment = place.attempt(wanted)
    kubeflow.on(Script(code=runs_until_stopped), name=assignment.name)

    async def scene(client: ApiClient) -> None:
        async with watching(place, client) as launcher:
            await stops(launcher)

    async def stops(launcher: KubeflowLauncher) -> None:
        await launcher.launch(assignment)
        await seen_as(launcher, assignment, Phase.RUNNING)
        answers = await asyncio.gather(*(launcher.stop(assignment, timeout=TIMEOUT) for _ in range(2)))
        assert all(isinstance(each, Stopped) and each.seen is not None and each.seen.stopping for each in answers)
        if wanted is OPAQUE:
            place.resume(assignment)
            await another_runs(place, launcher)
            again = await launcher.stop(assignment, timeout=TIMEOUT)
            assert isinstance(again, Stopped) and again.seen is not None and again.seen.repeated

    play(kubeconfig, scene)
    assert [run.ended is not None for run in kubeflow.runs_of(assignment.name)] == [True]
    application = place.api.get(SPARK_APPLICATIONS, assignment.name, place.namespace)
    assert application is not None
    assert application["spec"]["suspend"] is True
    pod = place.pod(assignment)
    assert pod is None or pod["metadata"]["labels"].get("sparkonce.dev/role") == "stub"
    assert pod is not None or wanted is JOB


def test_a_driver_that_ended_is_evidence(kubeconfig: Path, place: Place, kubeflow: FakeKubeflow) -> None:
    """After a stop the exit code of a driver that had already exited is still known from its pod, which is kept."""
    assignment = place.attempt(OPAQUE)
    kubeflow.on(Script(exit_code=3))

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        await launcher.launch(assignment)
        seen = await seen_as(launcher, assignment, Phase.FAILED_KNOWN)
        stopped = await launcher.stop(assignment, timeout=TIMEOUT)
        assert isinstance(stopped, Stopped) and stopped.seen is not None
        assert (stopped.seen.exit_code, stopped.seen.driver, stopped.seen.phase) == (3, seen.driver, Phase.FAILED_KNOWN)

    play(kubeconfig, scene)
    assert place.pod(assignment) is not None


@pytest.mark.operator
def test_a_late_create_meets_the_placeholder(kubeconfig: Path, place: Place, kubeflow: FakeKubeflow) -> None:
    """The API server admits a placeholder, the Spark operator ignores it, and a later launch is answered that the attempt is being
    stopped."""
    assignment = place.attempt(OPAQUE)

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        assert isinstance(await launcher.stop(assignment, timeout=TIMEOUT), Stopped)
        late = await launcher.launch(assignment)
        assert (late.nonce, late.stopping) == (assignment.nonce, True)
        place.resume(assignment)
        await another_runs(place, launcher)

    play(kubeconfig, scene)
    assert kubeflow.runs_of(assignment.name) == ()


def test_while_a_submission_may_be_under_way_a_stop_says_so(
    kubeconfig: Path, place: Place, kubeflow: FakeKubeflow
) -> None:
    """While the Spark operator is dead a stop ends as StillThere at its time limit; once it is back, the next call completes, and no driver
    ever ran."""
    assignment = place.attempt(OPAQUE)
    kubeflow.kill_operator()

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        await launcher.launch(assignment)
        assert isinstance(await launcher.stop(assignment, timeout=1.0), StillThere)
        await asyncio.to_thread(kubeflow.restart_operator)
        assert isinstance(await launcher.stop(assignment, timeout=TIMEOUT), Stopped)

    play(kubeconfig, scene)
    assert kubeflow.runs == ()


def test_a_stop_during_a_submission_leaves_nothing(kubeconfig: Path, place: Place, kubeflow: FakeKubeflow) -> None:
    """spark-submit is slow, and our suspension is the conflict that makes the Spark operator submit again."""
    assignment = place.attempt(OPAQUE)
    kubeflow.on(Script(submit_seconds=1.0, code=runs_until_stopped), name=assignment.name)

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        await launcher.launch(assignment)
        await until(lambda: kubeflow.submitting(assignment.name))
        assert isinstance(await launcher.stop(assignment, timeout=TIMEOUT), Stopped)
        started = len(kubeflow.runs_of(assignment.name))
        place.resume(assignment)
        await another_runs(place, launcher)
        assert len(kubeflow.runs_of(assignment.name)) == started

    play(kubeconfig, scene)
    assert all(run.ended is not None for run in kubeflow.runs_of(assignment.name))


def test_a_stub_fits_into_a_restricted_namespace_with_a_quota(
    kubeconfig: Path, place: Place, kubeflow: FakeKubeflow
) -> None:
    """The namespace enforces pod security `restricted`, and has a used-up quota for which every pod must name requests and limits."""
    hard = {"requests.cpu": "1", "requests.memory": "1Gi", "limits.cpu": "1", "limits.memory": "1Gi"}
    place.api.create(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}}, place.namespace)
    status = {"status": {"hard": hard, "used": hard}}  # written as the quota controller would, which does not run here
    place.api.patch(QUOTAS, "q", status, namespace=place.namespace, subresource="status")
    strict = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    place.api.patch(NAMESPACES, place.namespace, strict)
    assignment = place.attempt(OPAQUE)

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        await launcher.launch(assignment)
        assert isinstance(await launcher.stop(assignment, timeout=TIMEOUT), Stopped)

    kubeflow.on(Script(submits=False))
    play(kubeconfig, scene)
    pod = place.pod(assignment)
    assert pod is not None and pod["metadata"]["labels"]["sparkonce.dev/role"] == "stub"


def test_a_name_that_a_quota_does_not_give_is_waited_for(
    kubeconfig: Path, place: Place, kubeflow: FakeKubeflow
) -> None:
    """The quota allows no more SparkApplications: there is no placeholder yet, and the stop completes once there is room."""
    hard = {"count/sparkapplications.sparkoperator.k8s.io": "0"}
    place.api.create(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}}, place.namespace)
    status = {"status": {"hard": hard, "used": hard}}
    place.api.patch(QUOTAS, "q", status, namespace=place.namespace, subresource="status")

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        with pytest.raises(LaunchUnavailable, match="quota"):
            await launcher.launch(place.attempt(OPAQUE))
        with pytest.raises(LaunchUnavailable, match="no placeholder can take the name"):
            await launcher.stop(place.attempt(OPAQUE), timeout=TIMEOUT)
        place.api.delete(QUOTAS, "q", place.namespace)
        assert isinstance(await launcher.stop(place.attempt(OPAQUE), timeout=TIMEOUT), Stopped)

    play(kubeconfig, scene)


def test_with_its_namespace_an_attempt_is_gone(kubeconfig: Path, cluster: Cluster) -> None:
    """While the namespace is being deleted nothing can be created in it; once it is gone, the stop is complete."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    cluster.api.create(NAMESPACES, {"metadata": {"name": name}})
    place = Place(cluster, name)
    assignment = place.attempt(OPAQUE)

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        cluster.api.delete(NAMESPACES, name)
        while True:  # the scene's own time limit ends it
            try:
                assert await launcher.stop(assignment, timeout=TIMEOUT) == Stopped(None)
                return
            except LaunchUnavailable:
                await asyncio.sleep(INTERVAL)

    play(kubeconfig, scene)


# --- removing ---


@pytest.mark.operator
def test_an_opaque_application_leaves_a_placeholder(kubeconfig: Path, place: Place, kubeflow: FakeKubeflow) -> None:
    """The garbage collector deletes the driver pod; a placeholder, which runs nothing, takes the application's name and is listed as one of
    this install."""
    assignment = place.attempt(OPAQUE)

    async def scene(client: ApiClient) -> None:
        launcher = place.launcher(client)
        await launcher.launch(assignment)
        await seen_as(launcher, assignment, Phase.SUCCEEDED)
        await until(lambda: place.applications()[0]["status"]["applicationState"]["state"] == "COMPLETED")
        [found] = await list_of(client, place.install, [place.namespace])
        assert (found.uid, found.over) == (place.applications()[0]["metadata"]["uid"], True)
        assert await remove(client, found, keep_name=True)
        await until(lambda: place.pod(assignment) is None)
        [left] = await list_of(client, place.install, None)
        assert (left.placeholder, left.nonce, left.uid == found.uid) == (True, assignment.nonce, False)
        assert (await launcher.launch(assignment)).stopping

    play(kubeconfig, scene)
    assert len(kubeflow.runs) == 1
