"""Attempts on kubeflow's Spark operator, through the API server.

An application is created once, complete, and never updated but to be suspended. What a create call did is known only when the API
server has said so: no answer is LaunchUnavailable, and the same call again, by anybody who was granted the attempt, finds what the
first one did, because the name is the attempt's alone.

Observing believes a watch for what it holds and never for what it lacks: that an application exists, that a driver runs or has ended
with an exit code, was true once and is reported at once and without a request; that something is not there, has another UID or nonce,
or ended without a driver to prove it, is reported after a look at the API server, at the application first and at its driver pod after
it. A watch alone was not taken, because one that lags by a minute would call an attempt lost that has only just started.

Ending an attempt is in kubeflow_stop.py, what becomes of applications afterwards is in kubeflow_sweep.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sparkonce.errors import InvalidInput, LaunchRefused, LaunchUnavailable
from sparkonce.launch.answers import asking, invalid, not_now, short
from sparkonce.launch.kubeflow import KIND, as_map, driver_pod_name, text_of
from sparkonce.launch.kubeflow_log import LogTails, ReadLog
from sparkonce.launch.kubeflow_observe import observe, of_others
from sparkonce.launch.kubeflow_pod import look
from sparkonce.launch.kubeflow_spec import Wanting, application, settle_run
from sparkonce.launch.kubeflow_stop import Stopping
from sparkonce.launch.kubernetes import (
    PODS,
    SPARK_APPLICATIONS,
    AlreadyExists,
    ApiRefused,
    ApiUnavailable,
    Json,
    Kubernetes,
    Watched,
)
from sparkonce.launch.protocol import ENDED, Seen, StillThere, Stopped
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Application, Bound
from sparkonce.model.spec import IdempotentJob

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two looks while an attempt is being stopped: a driver has 30 s to end, and each look is three requests."""
GLANCE = 0.2
"""Seconds between two glances at the watches, which cost nothing."""
AT_ONCE = 5
"""Looks in a row without a pause: more than any order of events needs, so that answers which contradict each other are no busy loop."""


async def _as_granted(assignment: Assignment) -> IdempotentJob:
    return IdempotentJob.of(assignment.spec.job)


class KubeflowLauncher:
    """See the module.

    `namespace_of`: where the attempt's application lives. `objects_of`: all live objects of the key, as the API server has them now
    (who of them owns the application is decided in kubeflow_spec). `job_of`: the job to launch, with the tunable edits that were made
    since; as granted by default. `now`: monotonic seconds. `sleep` may return early.
    `read_log`: of a driver that failed; without it no log is kept.
    """

    kind = KIND

    def __init__(
        self,
        kubernetes: Kubernetes,
        *,
        applications: Watched | None,
        pods: Watched | None,
        namespace_of: Callable[[Assignment], str],
        objects_of: Callable[[Assignment], Awaitable[Sequence[Wanting]]],
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        job_of: Callable[[Assignment], Awaitable[IdempotentJob]] = _as_granted,
        read_log: ReadLog | None = None,
    ) -> None:
        self.kubernetes, self.applications, self.pods = kubernetes, applications, pods
        self.namespace_of, self.objects_of, self.job_of = namespace_of, objects_of, job_of
        self.now, self.sleep = now, sleep
        self.logs = LogTails(read_log)

    async def launch(self, assignment: Assignment) -> Seen:
        """One create call. LaunchRefused: it is invalid, and nothing was created by this call. LaunchUnavailable: it was not created
        now, or nobody knows."""
        job = await self._job(assignment)
        namespace = self.namespace_of(assignment)
        body = application(assignment, job, await self.objects_of(assignment), namespace=namespace)
        return await self._create(assignment, assignment.name, body)

    async def settle(self, assignment: Assignment) -> Seen:
        """As `launch`, of a settle run."""
        job = await self._job(assignment)
        namespace = self.namespace_of(assignment)
        body = settle_run(assignment, job, namespace=namespace, objects=await self.objects_of(assignment))
        return await self._create(assignment, assignment.settle_run_name, body)

    async def _job(self, assignment: Assignment) -> IdempotentJob:
        try:
            return await self.job_of(assignment)
        except InvalidInput as problem:
            raise LaunchRefused(f"the job of {assignment.key} cannot be launched: {problem}") from problem

    async def _create(self, assignment: Assignment, name: str, body: Json) -> Seen:
        namespace = self.namespace_of(assignment)
        what = f"application {name} is not created in namespace {namespace}"
        try:
            made = await self.kubernetes.create(SPARK_APPLICATIONS, namespace, body)
        except AlreadyExists:
            return await self._there(assignment, name)
        except ApiUnavailable as silent:
            raise LaunchUnavailable(
                f"it is not known whether application {name} exists in namespace {namespace}, because the API server did not answer "
                f"({short(silent)}); the same call again finds out"
            ) from silent
        except ApiRefused as refused:
            if refused.invalid:
                raise invalid(f"the API server refuses application {name} of {assignment.key}", refused) from refused
            raise not_now(what, refused) from refused
        return _certain(observe(made, None, assignment))

    async def _there(self, assignment: Assignment, name: str) -> Seen:
        namespace = self.namespace_of(assignment)
        with asking(f"an application has the name {name} and cannot be read"):
            found = await self.kubernetes.get(SPARK_APPLICATIONS, namespace, name)
        if found is None:
            raise LaunchUnavailable(
                f"an application had the name {name} in namespace {namespace} and is gone; the same call again creates ours"
            )
        return _certain(observe(found, None, assignment))

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> Seen | None:
        """LaunchUnavailable: it had to be looked at, and could not be."""
        return await self._observe(assignment, assignment.name, noted)

    async def settled(self, assignment: Assignment) -> Seen | None:
        """As `observe`, of a settle run."""
        return await self._observe(assignment, assignment.settle_run_name, None)

    async def follow(self, assignment: Assignment, bound: Bound) -> Seen | None:
        """By one request, and without a look at its pods: see engine/follow.py."""
        namespace = self.namespace_of(assignment)
        with asking(f"application {bound.application} in namespace {namespace} cannot be looked at"):
            found = await self.kubernetes.get(SPARK_APPLICATIONS, namespace, bound.application)
        return None if found is None else of_others(found, assignment)

    async def _observe(self, assignment: Assignment, name: str, noted: Application | None) -> Seen | None:
        seen = await self._seen(assignment, name, noted)
        if seen is None or seen.nonce != assignment.nonce:
            return seen
        return await self.logs.with_tail(seen, namespace=self.namespace_of(assignment))

    async def _seen(self, assignment: Assignment, name: str, noted: Application | None) -> Seen | None:
        cached, driver = self._cached(assignment, name)
        if cached is not None:
            seen = observe(cached, [driver] if driver is not None else [], assignment, noted)
            if seen is not None and _believed(seen, assignment, noted, driver):
                return seen
        return await self._look(assignment, name, noted, driver)

    async def _look(
        self, assignment: Assignment, name: str, noted: Application | None, cached: Json | None
    ) -> Seen | None:
        """The application first: a driver that starts, or ends, between the two looks is seen."""
        namespace = self.namespace_of(assignment)
        with asking(f"application {name} in namespace {namespace} cannot be looked at"):
            found = await self.kubernetes.get(SPARK_APPLICATIONS, namespace, name)
            if found is None:
                return None
            driver = await self.kubernetes.get(PODS, namespace, driver_pod_name(name))
        if driver is None and cached is not None and look(cached).exit_code is not None:
            driver = cached  # it had ended before it went, which is final
        return observe(found, [driver] if driver is not None else [], assignment, noted)

    def _cached(self, assignment: Assignment, name: str) -> tuple[Json | None, Json | None]:
        """The application and its driver pod as the watches saw them last; nothing while one of them is behind."""
        applications, pods, namespace = self.applications, self.pods, self.namespace_of(assignment)
        if applications is None or pods is None or not (applications.synced and pods.synced):
            return None, None
        return applications.get(namespace, name), pods.get(namespace, driver_pod_name(name))

    async def stop(self, assignment: Assignment, *, timeout: float) -> Stopped | StillThere:
        """Also LaunchRefused: a name that must be held cannot be, so the attempt cannot be abandoned (a person decides)."""
        namespace, started = self.namespace_of(assignment), self.now()
        stopping = Stopping(
            kubernetes=self.kubernetes,
            assignment=assignment,
            namespace=namespace,
            objects_of=self.objects_of,
            timeout=timeout,
        )
        pause, at_once = FIRST_PAUSE, 0
        while True:
            step = await stopping.once(self.now() - started)
            if isinstance(step, Stopped):
                return step
            left = timeout - (self.now() - started)
            if step.at_once and at_once < AT_ONCE:
                at_once += 1
                continue
            if left <= 0:
                return StillThere(f"application {assignment.name} is not stopped after {timeout:.0f} s: {step.why}")
            changed = await self._pause(min(pause, left), namespace, assignment)
            pause = FIRST_PAUSE if changed else min(2 * pause, LONGEST_PAUSE)
            at_once = 0

    async def _pause(self, seconds: float, namespace: str, assignment: Assignment) -> bool:
        """True, and early, when the watches saw a change of the application or of its pods."""
        end, before = self.now() + seconds, self._versions(namespace, assignment)
        while (left := end - self.now()) > 0:
            await self.sleep(min(left, GLANCE) if before is not None else left)
            if self._versions(namespace, assignment) != before:
                return True
        return False

    def _versions(self, namespace: str, assignment: Assignment) -> list[str] | None:
        """Of the application and its driver pod. None: there is nothing to glance at."""
        if self.applications is None or self.pods is None:
            return None
        application = self.applications.get(namespace, assignment.name)
        driver = self.pods.get(namespace, driver_pod_name(assignment.name))
        return [text_of(as_map(as_map(each).get("metadata")).get("resourceVersion")) for each in (application, driver)]


def _believed(seen: Seen, assignment: Assignment, noted: Application | None, driver: Json | None) -> bool:
    """Whether what the watches hold may be reported: it says nothing that rests on something not being there."""
    if seen.nonce != assignment.nonce or (noted is not None and noted.uid != seen.uid):
        return False
    if seen.phase not in ENDED:
        return True
    return driver is not None and seen.driver is not None and look(driver).exit_code is not None


def _certain(seen: Seen | None) -> Seen:
    assert seen is not None  # observe answers None for no application alone
    return seen
