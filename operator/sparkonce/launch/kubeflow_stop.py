"""Ends an attempt on kubeflow's Spark operator, one look and one set of steps at a time.

    application            its pods                      then
    none                                                 a placeholder takes its name; look again
    somebody else's        those with our nonce: delete  none left: Stopped
    ours, not ended        any that may run: delete      mark and suspend it first; look again
    ours, suspended/ended  any that may run: delete      none left: Stopped; opaque: a stub takes the driver pod's name first

Every pass starts from what is there, so anybody can go on after anybody: a crash, a lost reply, a second owner at the same time, a
request that lands an hour late. Each write says what it was decided on (UID, resourceVersion) or creates a name that may be there once.

"No pod is left" ends nothing for an opaque job while a submission may be in flight: the Spark operator must have said Suspended, or an
end, *before* its pods were looked at, and then the stub's create call decides: either it takes the driver pod's name, or there is a
driver that nobody had seen. A queue that resumes the application later meets the stub, too. Outputs that are declared need none of
that, because settling has made the attempt final; there a submission in flight is given `COURTESY` seconds.

Pods that have ended are never deleted: their exit code is evidence. For the same reason a driver that has ended by itself is not
suspended at once, because the Spark operator deletes the driver pod of what it suspends: it is given time to say the end itself.
Nothing is deleted by force: a pod that is gone from the API server runs on where its kubelet is out of reach.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkonce.errors import LaunchRefused, LaunchUnavailable
from sparkonce.launch.answers import asking, not_now, short
from sparkonce.launch.kubeflow import (
    APP_NAME_LABEL,
    STOPPING,
    as_map,
    driver_pod_name,
    nonce_of,
    opaque,
    rewound,
    text_of,
)
from sparkonce.launch.kubeflow_observe import has_ended, is_placeholder, observe, submission_over
from sparkonce.launch.kubeflow_pod import belongs, leaves, look, may_run
from sparkonce.launch.kubeflow_spec import Wanting, placeholder, stub_pod, suspend_patch
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
from sparkonce.launch.protocol import Seen, Stopped
from sparkonce.model.assignment import Assignment
from sparkonce.model.record import Application

COURTESY = 10.0
"""Seconds for which an attempt with declared outputs is kept from being replaced while the Spark operator may still submit it."""
SAYING = 0.25
"""Of the stop's time: for the Spark operator to say the end of a driver that has ended. Then it is suspended all the same."""
_LATER = frozenset({401, 429})
"""Refusals of a placeholder that say nothing about it."""


@dataclass(frozen=True)
class NotYet:
    why: str
    at_once: bool = False
    """Something was done, or changed under us: look again without waiting."""


@dataclass(kw_only=True)
class Stopping:
    """One call of `stop`. LaunchUnavailable: the API server did not answer, or not now. LaunchRefused: a name cannot be held."""

    kubernetes: Kubernetes
    assignment: Assignment
    namespace: str
    objects_of: Callable[[Assignment], Awaitable[Sequence[Wanting]]]
    timeout: float
    _evidence: Json | None = field(default=None, init=False)
    """The driver pod as it was when it had ended by itself: final, also when the pod is gone at the end."""

    async def once(self, waited: float) -> Stopped | NotYet:
        """One pass. `waited`: seconds since the first one."""
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
            if self._evidence is None or waited >= self.timeout * SAYING:
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
        return Stopped(self._seen(application, driver))

    async def _may_still_start(self, application: Json, driver: Json | None, uid: str, waited: float) -> NotYet | None:
        """No pod is left: whether that is final."""
        over = submission_over(application, self.assignment)
        if not opaque(self.assignment):
            return None if over or waited >= COURTESY else NotYet("it may still be submitted")
        if not over:
            return NotYet("the Spark operator has not said that it will not submit it")
        if leaves(application):
            return NotYet("it is being deleted by somebody else")
        if is_placeholder(application):
            return None
        if driver is not None:
            return NotYet("its driver pod is being deleted") if leaves(driver) else None
        return await self._hold_the_drivers_name(uid)

    @property
    def _name(self) -> str:
        return self.assignment.name

    async def _application(self) -> Json | None:
        with asking(f"application {self._name} cannot be read, to stop it"):
            return await self.kubernetes.get(SPARK_APPLICATIONS, self.namespace, self._name)

    async def _pods(self) -> tuple[Json | None, list[Json]]:
        """What has the driver pod's name, and all that may be of the attempt. The driver first: whoever starts executors after
        they were listed was seen before."""
        with asking(f"the pods of application {self._name} cannot be read, to stop it"):
            driver = await self.kubernetes.get(PODS, self.namespace, driver_pod_name(self._name))
            listed = await self.kubernetes.list(PODS, self.namespace, labels={APP_NAME_LABEL: self._name})
        others = [each for each in listed if driver is None or _uid(each) != _uid(driver)]
        return driver, [*([driver] if driver is not None else []), *others]

    async def _suspend(self, application: Json, uid: str) -> NotYet:
        """In any case there is to be another look: an object that changed, or is gone, is seen there."""
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
        """Why one of them was refused."""
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
        """So that a create that is still on its way meets a taken name."""
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
        """One create call: the stub has the driver pod's name, or a driver came that nobody had seen."""
        body = stub_pod(self.assignment, namespace=self.namespace, uid=uid)
        what = f"no stub can take the name {driver_pod_name(self._name)}"
        try:
            await self.kubernetes.create(PODS, self.namespace, body)
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
        """True: the namespace is gone, and with it all that ran in it. LaunchRefused: the name stays free, so a late request could
        still take it, and a person must decide."""
        if refused.code in _LATER or isinstance(refused, ApiConflict):
            raise not_now(what, refused) from refused
        with asking(f"{what}, and its namespace cannot be read"):
            namespace = await self.kubernetes.get(NAMESPACES, None, self.namespace)
        if namespace is None:
            return True
        if leaves(namespace):
            if terminating_is_enough:
                return True  # nobody else's pod is let in, either
            raise not_now(f"{what} while namespace {self.namespace} is being deleted", refused) from refused
        if refused.code in {400, 403, 422}:
            raise LaunchRefused(
                f"{what}, so that attempt {self.assignment.attempt} cannot be abandoned: {short(refused)}"
            )
        raise not_now(what, refused) from refused

    def _seen(self, application: Json, driver: Json | None) -> Seen | None:
        """As it is at the end. Which driver the record names is for the caller to compare."""
        pod = driver if driver is not None and look(driver).exit_code is not None else self._evidence
        noted = None
        if pod is not None:
            uid = text_of(as_map(application.get("metadata")).get("uid"))
            noted = Application(name=self._name, uid=uid, driver=_uid(pod))
        return observe(application, [pod] if pod is not None else [], self.assignment, noted)


def _suspended_by_us(application: Mapping[str, Any]) -> bool:
    annotations = as_map(as_map(application.get("metadata")).get("annotations"))
    return bool(annotations.get(STOPPING)) and as_map(application.get("spec")).get("suspend") is True


def _uid(pod: Mapping[str, Any]) -> str:
    return text_of(as_map(pod.get("metadata")).get("uid"))
