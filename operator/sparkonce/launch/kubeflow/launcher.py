"""Runs attempts on the Kubeflow Spark operator, through the API server.

An application is created once, complete, and never updated except to suspend it. Without an answer the effect of a create is unknown:
LaunchUnavailable. Any operator that was granted the attempt may repeat the call and finds the first one's application, because the name is
unique to the attempt.

A watch is trusted for what it contains, never for what it lacks: that an application exists, that a driver runs or has ended with an exit
code, was true once and is reported without a request. That an object does not exist, has another UID or nonce, or ended without a driver to
prove it, is reported only after reading the API server: the application first, its driver pod after it. The watch alone is not enough: one
that lags by a minute would declare a just started attempt lost.

`stop` ends an attempt, `sweep` removes ended applications.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sparkonce.errors import InvalidInput, LaunchRefused, LaunchUnavailable
from sparkonce.launch.answers import asking, invalid, not_now, short
from sparkonce.launch.kubeflow.labels import KIND, as_map, driver_pod_name, opaque, text_of
from sparkonce.launch.kubeflow.log import LogTails, ReadLog
from sparkonce.launch.kubeflow.mounts import MountTroubles, ReadEvents
from sparkonce.launch.kubeflow.observe import observe, of_others
from sparkonce.launch.kubeflow.pod import look
from sparkonce.launch.kubeflow.spec import Wanting, application, only_ours, settle_run
from sparkonce.launch.kubeflow.starts import StartProofs
from sparkonce.launch.kubeflow.stop import Stopping
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
from sparkonce.launch.protocol import ENDED, ApplicationState, StillThere, Stopped
from sparkonce.model.record import Application, Assignment, Bound
from sparkonce.model.spec import IdempotentJob

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between passes while an attempt is being stopped: a driver has 30 s to end, and each pass is three requests."""
GLANCE = 0.2
"""Seconds between reads of the watches' caches, which are free."""
AT_ONCE = 5
"""Maximum passes without a pause: more than any order of events needs; keeps contradictory answers from becoming a busy loop."""


class KubeflowLauncher:
    """A `Launcher`, with `Follows` and `SettleRuns`, for SparkApplications.

    namespace_of: namespace of an attempt's application.
    objects_of: all live objects of the key, read from the API server (`spec` decides which of them own the application).
    now: monotonic seconds. sleep: may return early.
    read_log: reads the log of a failed driver; without it no log is kept. read_events: reads the warnings about a pod that waits for its
    volumes; without it the cause is not said.
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
        read_log: ReadLog | None = None,
        read_events: ReadEvents | None = None,
    ) -> None:
        self.kubernetes, self.applications, self.pods = kubernetes, applications, pods
        self.namespace_of, self.objects_of = namespace_of, objects_of
        self.now, self.sleep = now, sleep
        self.logs = LogTails(read_log)
        self.mounts = MountTroubles(read_events, now=now)
        self.starts = StartProofs(kubernetes, pods, now=now)

    async def launch(self, assignment: Assignment) -> ApplicationState:
        """Sends one create call.

        Raises:
            LaunchRefused: the application is invalid; this call created nothing.
            LaunchUnavailable: not created, or unknown.
        """
        job = _job(assignment)
        namespace = self.namespace_of(assignment)
        since = self.pods.version(namespace) if self.pods is not None else None
        objects = await self.objects_of(assignment)
        body = application(assignment, job, objects, namespace=namespace, pods_since=since)
        return await self._create(assignment, assignment.name, body, strict=True, job=job)

    async def settle(self, assignment: Assignment) -> ApplicationState:
        """As `launch`, for a settle run. A field that the API server does not know is dropped: the job's template was checked with its
        attempt, perhaps by the CRD of another version, and what the attempt committed must be found out nevertheless."""
        job = _job(assignment)
        namespace = self.namespace_of(assignment)
        body = settle_run(assignment, job, namespace=namespace, objects=await self.objects_of(assignment))
        return await self._create(assignment, assignment.settle_run_name, body, strict=False, job=job)

    async def _create(
        self, assignment: Assignment, name: str, body: Json, *, strict: bool, job: IdempotentJob
    ) -> ApplicationState:
        namespace = self.namespace_of(assignment)
        what = f"application {name} is not created in namespace {namespace}"
        try:
            made = await self.kubernetes.create(SPARK_APPLICATIONS, namespace, body, strict=strict)
        except AlreadyExists:
            return await self._existing(assignment, name)
        except ApiUnavailable as silent:
            raise LaunchUnavailable(
                f"it is not known whether application {name} exists in namespace {namespace}, because the API server did not answer "
                f"({short(silent)}); the same call again finds out"
            ) from silent
        except ApiRefused as refused:
            if strict and only_ours(refused.unknown, job):
                return await self._create(assignment, name, body, strict=False, job=job)
            if refused.invalid:
                raise invalid(f"the API server refuses application {name} of {assignment.key}", refused) from refused
            raise not_now(what, refused) from refused
        return observe(made, None, assignment)

    async def _existing(self, assignment: Assignment, name: str) -> ApplicationState:
        namespace = self.namespace_of(assignment)
        with asking(f"an application has the name {name} and cannot be read"):
            found = await self.kubernetes.get(SPARK_APPLICATIONS, namespace, name)
        if found is None:
            raise LaunchUnavailable(
                f"an application had the name {name} in namespace {namespace} and is gone; the same call again creates ours"
            )
        return observe(found, None, assignment)

    async def observe(self, assignment: Assignment, noted: Application | None = None) -> ApplicationState | None:
        """See `Launcher.observe`.

        Raises:
            LaunchUnavailable: the API server had to be read, and did not answer.
        """
        return await self._observe(assignment, assignment.name, noted)

    async def settled(self, assignment: Assignment) -> ApplicationState | None:
        """As `observe`, for a settle run."""
        return await self._observe(assignment, assignment.settle_run_name, None)

    async def follow(self, assignment: Assignment, bound: Bound) -> ApplicationState | None:
        """Sends one request and does not read the application's pods: see attempt/follow.py."""
        namespace = self.namespace_of(assignment)
        with asking(f"application {bound.application} in namespace {namespace} cannot be read"):
            found = await self.kubernetes.get(SPARK_APPLICATIONS, namespace, bound.application)
        return None if found is None else of_others(found, assignment)

    async def _observe(self, assignment: Assignment, name: str, noted: Application | None) -> ApplicationState | None:
        seen = await self._seen(assignment, name, noted)
        if seen is None or seen.nonce != assignment.nonce:
            return seen
        await self.starts.follow(seen, namespace=self.namespace_of(assignment))
        seen = await self.mounts.with_cause(seen, namespace=self.namespace_of(assignment))
        return await self.logs.with_tail(seen, assignment, namespace=self.namespace_of(assignment))

    async def _seen(self, assignment: Assignment, name: str, noted: Application | None) -> ApplicationState | None:
        cached, driver = self._cached(assignment, name)
        if cached is not None:
            seen = observe(cached, [driver] if driver is not None else [], assignment, noted)
            if _conclusive(seen, assignment, noted, driver):
                return seen
        return await self._read(assignment, name, noted, driver)

    async def _read(
        self, assignment: Assignment, name: str, noted: Application | None, cached: Json | None
    ) -> ApplicationState | None:
        """Reads the application first: a driver that starts, or ends, between the two reads is then found."""
        namespace = self.namespace_of(assignment)
        with asking(f"application {name} in namespace {namespace} cannot be read"):
            found = await self.kubernetes.get(SPARK_APPLICATIONS, namespace, name)
            if found is None:
                return None
            driver = await self.kubernetes.get(PODS, namespace, driver_pod_name(name))
        if cached is not None and look(cached).exit_code is not None and (driver is None or _same(driver, cached)):
            driver = cached  # it had ended before its pod was deleted, which is final
        return observe(found, [driver] if driver is not None else [], assignment, noted)

    def _cached(self, assignment: Assignment, name: str) -> tuple[Json | None, Json | None]:
        """The application and its driver pod in the watches' caches; None while one of the watches is not synced."""
        applications, pods, namespace = self.applications, self.pods, self.namespace_of(assignment)
        if applications is None or pods is None or not (applications.synced and pods.synced):
            return None, None
        return applications.get(namespace, name), pods.get(namespace, driver_pod_name(name))

    async def stop(
        self, assignment: Assignment, *, timeout: float, proof: bool = False, noted: Application | None = None
    ) -> Stopped | StillThere:
        """See `Launcher.stop`.

        Raises:
            LaunchRefused: the name cannot be held, so the attempt cannot be abandoned (an administrator decides).
        """
        namespace, started = self.namespace_of(assignment), self.now()
        stopping = Stopping(
            kubernetes=self.kubernetes,
            assignment=assignment,
            namespace=namespace,
            objects_of=self.objects_of,
            timeout=timeout,
            proof=proof or opaque(assignment),
            noted=noted,
            starts=self.starts,
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
        """Waits. Returns True, early, when the watches saw a change of the application or of its pods."""
        end, before = self.now() + seconds, self._versions(namespace, assignment)
        while (left := end - self.now()) > 0:
            await self.sleep(min(left, GLANCE) if before is not None else left)
            if self._versions(namespace, assignment) != before:
                return True
        return False

    def _versions(self, namespace: str, assignment: Assignment) -> list[str] | None:
        """Versions of the application and its driver pod in the watches' caches. None: there is no cache to read."""
        if self.applications is None or self.pods is None:
            return None
        application = self.applications.get(namespace, assignment.name)
        driver = self.pods.get(namespace, driver_pod_name(assignment.name))
        return [text_of(as_map(as_map(each).get("metadata")).get("resourceVersion")) for each in (application, driver)]


def _conclusive(seen: ApplicationState, assignment: Assignment, noted: Application | None, driver: Json | None) -> bool:
    """Whether the watches' state may be reported: it must not depend on the absence of an object."""
    if seen.nonce != assignment.nonce or (noted is not None and noted.uid != seen.uid):
        return False
    if seen.phase not in ENDED:
        return True
    return driver is not None and seen.driver is not None and look(driver).exit_code is not None


def _same(pod: Json, other: Json) -> bool:
    """Whether both are versions of one pod."""
    return text_of(as_map(pod.get("metadata")).get("uid")) == text_of(as_map(other.get("metadata")).get("uid"))


def _job(assignment: Assignment) -> IdempotentJob:
    try:
        return IdempotentJob.of(assignment.spec.job)
    except InvalidInput as problem:
        raise LaunchRefused(f"the job of {assignment.key} cannot be launched: {problem}") from problem
