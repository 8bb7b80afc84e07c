"""Ends an attempt on the Kubeflow Spark operator, in passes of one read and one set of steps.

    application            its pods                      then
    none                                                 create a placeholder with its name; next pass
    foreign                those with our nonce: delete  none left: Stopped
    ours, not ended        any that may run: delete      mark and suspend it first; next pass
    ours, suspended/ended  any that may run: delete      none left: Stopped; for a proof a stub takes the driver pod's name first

Every pass starts from the observed state, so any process can continue after a crash, a lost reply, a concurrent owner, or a request that is
applied an hour late. Each write names its precondition (UID, resourceVersion) or creates a unique name.

For an opaque job, or where a proof is asked for, the absence of pods is not final while a submission may be in flight: the Spark operator
must have reported Suspended, or an end, *before* the pods were read, and then the create of the stub decides: either it takes the driver
pod's name, or a driver exists that was not observed. A queue that resumes the application later finds the stub, too. An attempt that was
settled at its outputs does not need this, because settling has made it final; there a submission in flight is given `COURTESY` seconds.

Ended pods are never deleted: their exit code is evidence. For the same reason an application whose driver has ended by itself is not
suspended at once, because the Spark operator deletes the driver pod of a suspended application: the operator gets time to record the end.
Nothing is deleted by force: a pod deleted from the API server keeps running if its kubelet is unreachable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.launch.answers import asking, not_now, short
from sparkonce.launch.kubeflow.labels import (
    APP_NAME_LABEL,
    PODS_SINCE,
    ROLE_LABEL,
    STOPPING,
    Role,
    as_list,
    as_map,
    driver_pod_name,
    nonce_of,
    rewound,
    text_of,
)
from sparkonce.launch.kubeflow.observe import has_ended, is_placeholder, observe, submission_over
from sparkonce.launch.kubeflow.pod import belongs, leaves, look, may_run, owners_of, unstarted
from sparkonce.launch.kubeflow.spec import Wanting, placeholder, stub_pod, suspend_patch
from sparkonce.launch.kubeflow.starts import StartProofs
from sparkonce.launch.kubernetes import (
    NAMESPACES,
    PODS,
    SPARK_APPLICATIONS,
    AlreadyExists,
    ApiConflict,
    ApiRefused,
    ApiUnavailable,
    Json,
    Kubernetes,
)
from sparkonce.launch.protocol import ApplicationState, Stopped
from sparkonce.model.record import Application, Assignment

COURTESY = 10.0
"""Seconds for which an attempt with declared outputs is not replaced while the Spark operator may still submit it."""
RECORDING_SHARE = 0.25
"""Share of the timeout in which the Spark operator may record the end of an ended driver; then the application is suspended anyway."""
_LATER = frozenset({401, 429})
"""Temporary refusals of a placeholder."""


@dataclass(frozen=True)
class NotYet:
    why: str
    at_once: bool = False
    """Something was done or has changed: run the next pass without a pause."""


@dataclass(kw_only=True)
class Stopping:
    """One call of `stop`.

    Raises, from `once`:
        LaunchUnavailable: the API server did not answer, or refused temporarily.
        LaunchRefused: a name cannot be held.
    """

    kubernetes: Kubernetes
    assignment: Assignment
    namespace: str
    objects_of: Callable[[Assignment], Awaitable[Sequence[Wanting]]]
    timeout: float
    proof: bool = False
    """Whether to find out if a driver ran. Without it, declared outputs tell."""
    noted: Application | None = None
    """The attempt's application as recorded."""
    starts: StartProofs | None = None
    """What was proven while its driver waited."""
    _evidence: Json | None = field(default=None, init=False)
    """The driver pod after it ended by itself: final evidence, even if the pod is deleted later."""
    _stub: Json | None = field(default=None, init=False)
    """The stub that has the driver pod's name."""

    async def once(self, waited: float) -> Stopped | NotYet:
        """Runs one pass. waited: seconds since the first one."""
        application = await self._application()
        if application is None:
            return await self._place()
        uid, nonce = text_of(as_map(application.get("metadata")).get("uid")), nonce_of(application, self.assignment)
        if rewound(nonce, self.assignment):
            raise LaunchUnavailable(
                f"application {self._name} was made by a grant that the ledger does not know, so it is not stopped; "
                "look at `sparkonce doctor`"
            )
        ours = nonce == self.assignment.nonce
        driver, pods = await self._pods()
        owned = [each for each in pods if belongs(each, self.assignment, uid=uid if ours else None)]
        if driver in owned and not leaves(driver) and look(driver).exit_code is not None:
            self._evidence = driver
        problem = None
        if ours and not has_ended(application) and not _suspended_by_us(application):
            if self._evidence is None or waited >= self.timeout * RECORDING_SHARE:
                problem = await self._suspend(application, uid)
                if problem.at_once:
                    return problem
            else:
                problem = NotYet("its driver has ended and the Spark operator has not said so")
        left = [each for each in owned if may_run(each)]
        problem = await self._delete(left) or problem
        if problem is not None:
            return problem
        if left:
            return NotYet(f"{len(left)} of its pods are still there")
        if ours and (waits := await self._may_still_start(application, driver, uid, waited)):
            return waits
        return Stopped(await self._proven(application, self._seen(application, driver)))

    async def _may_still_start(self, application: Json, driver: Json | None, uid: str, waited: float) -> NotYet | None:
        """Decides whether the absence of pods is final."""
        over = submission_over(application, self.assignment)
        if not self.proof:
            return None if over or waited >= COURTESY else NotYet("it may still be submitted")
        if not over:
            return NotYet("the Spark operator has not said that it will not submit it")
        if leaves(application):
            return NotYet("another party is deleting it")
        if is_placeholder(application) and self._since(application) is None:
            return None
        if driver is not None:
            self._stub = driver if _is_stub(driver, self.assignment, uid) else None
            return NotYet("its driver pod is being deleted") if leaves(driver) else None
        return await self._hold_the_drivers_name(uid)

    @property
    def _name(self) -> str:
        return self.assignment.name

    async def _application(self) -> Json | None:
        with asking(f"application {self._name} cannot be read, to stop it"):
            return await self.kubernetes.get(SPARK_APPLICATIONS, self.namespace, self._name)

    async def _pods(self) -> tuple[Json | None, list[Json]]:
        """The pod with the driver pod's name, and all pods that may belong to the attempt. The driver is read first: a driver that starts
        executors after the list is then found."""
        with asking(f"the pods of application {self._name} cannot be read, to stop it"):
            driver = await self.kubernetes.get(PODS, self.namespace, driver_pod_name(self._name))
            listed = await self.kubernetes.list(PODS, self.namespace, labels={APP_NAME_LABEL: self._name})
        others = [each for each in listed if driver is None or _uid(each) != _uid(driver)]
        return driver, [*([driver] if driver is not None else []), *others]

    async def _suspend(self, application: Json, uid: str) -> NotYet:
        """Suspends and marks the application; the next pass finds an object that changed or is gone."""
        patch = suspend_patch(self.assignment, uid=uid)
        patch["metadata"]["resourceVersion"] = text_of(as_map(application.get("metadata")).get("resourceVersion"))
        try:
            await self.kubernetes.patch(SPARK_APPLICATIONS, self.namespace, self._name, patch)
        except ApiConflict:
            return NotYet("it changed while it was to be suspended", at_once=True)
        except ApiUnavailable as silent:
            raise LaunchUnavailable(
                f"it is not known whether application {self._name} is suspended: {short(silent)}"
            ) from silent
        except ApiRefused as refused:
            return self._refusal(f"application {self._name} cannot be suspended", refused)
        return NotYet("it has just been suspended", at_once=True)

    async def _delete(self, pods: Sequence[Json]) -> NotYet | None:
        """Reason for a refused delete, if there was one."""
        refusal = None
        for pod in pods:
            name = text_of(as_map(pod.get("metadata")).get("name"))
            if leaves(pod):
                continue
            try:
                await self.kubernetes.delete(PODS, self.namespace, name, uid=_uid(pod))
            except ApiUnavailable as silent:
                raise LaunchUnavailable(f"it is not known whether pod {name} is deleted: {short(silent)}") from silent
            except ApiRefused as refused:
                refusal = self._refusal(f"pod {name} cannot be deleted", refused)
        return refusal

    def _refusal(self, what: str, refused: ApiRefused) -> NotYet:
        if refused.code in _LATER:
            raise not_now(what, refused) from refused
        return NotYet(f"{what}: {short(refused)}")

    async def _place(self) -> Stopped | NotYet:
        """Creates a placeholder, so that a create in flight finds the name taken."""
        body = placeholder(self.assignment, namespace=self.namespace, objects=await self.objects_of(self.assignment))
        try:
            await self.kubernetes.create(SPARK_APPLICATIONS, self.namespace, body)
        except AlreadyExists:
            return NotYet("an application has just been created under its name", at_once=True)
        except ApiUnavailable as silent:
            raise LaunchUnavailable(
                f"it is not known whether a placeholder has the name {self._name}: {short(silent)}"
            ) from silent
        except ApiRefused as refused:
            if await self._nothing_can_be_created(f"no placeholder can take the name {self._name}", refused):
                return Stopped(None)
        return NotYet("a placeholder has just taken its name", at_once=True)

    async def _hold_the_drivers_name(self, uid: str) -> NotYet | None:
        """Creates the stub: it takes the driver pod's name, or a driver exists that was not observed."""
        body = stub_pod(self.assignment, namespace=self.namespace, uid=uid)
        what = f"no stub can take the name {driver_pod_name(self._name)}"
        try:
            self._stub = await self.kubernetes.create(PODS, self.namespace, body)
        except AlreadyExists:
            return NotYet("a driver pod has just come", at_once=True)
        except ApiUnavailable as silent:
            raise LaunchUnavailable(f"{what}: the API server did not answer ({short(silent)})") from silent
        except ApiRefused as refused:
            await self._nothing_can_be_created(what, refused, terminating_is_enough=True)
        return None

    async def _nothing_can_be_created(
        self, what: str, refused: ApiRefused, *, terminating_is_enough: bool = False
    ) -> bool:
        """Returns True if the namespace is gone, with everything that ran in it.

        Raises:
            LaunchUnavailable: a temporary refusal.
            LaunchRefused: the name stays free, so that a late request could take it; an administrator decides.
        """
        if refused.code in _LATER or isinstance(refused, ApiConflict) or refused.over_quota:
            raise not_now(what, refused) from refused
        with asking(f"{what}, and its namespace cannot be read"):
            namespace = await self.kubernetes.get(NAMESPACES, None, self.namespace)
        if namespace is None:
            return True
        if leaves(namespace):
            if terminating_is_enough:
                return True  # it accepts no other pod, either
            raise not_now(f"{what} while namespace {self.namespace} is being deleted", refused) from refused
        if refused.code in {400, 403, 422}:
            raise LaunchRefused(
                f"{what}, so that attempt {self.assignment.attempt} cannot be abandoned: {short(refused)}"
            )
        raise not_now(what, refused) from refused

    async def _proven(self, application: Json, seen: ApplicationState | None) -> ApplicationState | None:
        """The same state, with the proof that no driver ever ran if the API server still has it: the history of the driver pod's name from
        before the application existed, or from where it was last read while the driver waited, until the stub took the name. Without that
        history the absence of a pod proves nothing: a pod may have run and been deleted meanwhile."""
        since = self._since(application)
        if self._stub is None or seen is None or seen.repeated or since is None:
            return seen
        name = driver_pod_name(self._name)
        try:
            begins = since if self.starts is None else self.starts.since(self._name, since, application)
            history = await self.kubernetes.history(PODS, self.namespace, name, since=begins, until=self._stub)
        except ApiUnavailable as silent:
            raise LaunchUnavailable(
                f"it is not known whether pod {name} ever ran: the API server did not answer ({short(silent)})"
            ) from silent
        except ApiRefused:
            return seen
        uids = None if history is None else unstarted(history, stub=_uid(self._stub))
        return seen if uids is None else replace(seen, never_ran=True, unstarted=uids, pods_since=since)

    def _since(self, application: Json) -> str | None:
        """Where the history of the driver pod's name begins: before the attempt's application existed. None: not known."""
        if not is_placeholder(application):
            return text_of(as_map(as_map(application.get("metadata")).get("annotations")).get(PODS_SINCE)) or None
        return self.noted.pods_since if self.noted is not None else None

    def _seen(self, application: Json, driver: Json | None) -> ApplicationState | None:
        """The final state; the caller compares its driver with the record's."""
        pod = driver if driver is not None and look(driver).exit_code is not None else self._evidence
        noted = None
        if pod is not None:
            uid = text_of(as_map(application.get("metadata")).get("uid"))
            noted = Application(name=self._name, uid=uid, driver=_uid(pod))
        return observe(application, [pod] if pod is not None else [], self.assignment, noted)


def _suspended_by_us(application: Mapping[str, Any]) -> bool:
    annotations = as_map(as_map(application.get("metadata")).get("annotations"))
    return bool(annotations.get(STOPPING)) and as_map(application.get("spec")).get("suspend") is True


def _is_stub(pod: Mapping[str, Any], assignment: Assignment, uid: str) -> bool:
    """Whether the pod is the stub of this application, as `stub_pod` makes it, and can still run nothing."""
    labels, spec = as_map(as_map(pod.get("metadata")).get("labels")), as_map(pod.get("spec"))
    gated = bool(as_list(spec.get("schedulingGates"))) and not spec.get("nodeName")
    return (
        labels.get(ROLE_LABEL) == Role.STUB
        and gated
        and uid in owners_of(pod)
        and nonce_of(pod, assignment) == assignment.nonce
    )


def _uid(pod: Mapping[str, Any]) -> str:
    return text_of(as_map(pod.get("metadata")).get("uid"))
