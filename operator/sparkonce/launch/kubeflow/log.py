"""Reads a failed driver's log once, while its pod still exists, for users who later want to know why it failed.

A hint: a log that cannot be read (no permission, a silent node, a deleted pod) is empty. Each driver's log is read once, within `PATIENCE`,
because the attempt is settled only after that. What the driver itself wrote as its termination message is used and no log is read; a
termination message that the kubelet cut from the log (`FallbackToLogsOnError`) ends with Spark's shutdown, so then the log is read.

Secrets of the job are hidden before anything is cut: half a password would not be found afterwards.

Having the kubelet copy the end of the log into the pod's status would need no permission, but it is set in a pod template, which Spark and
the Spark operator merge with the job's own at each submission: too much for a hint, and two kibibytes end in the middle of a trace.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from sparkonce.errors import SparkonceError
from sparkonce.launch.driver_log import LoggedFailure, explained, find, is_log
from sparkonce.launch.kubeflow.labels import DRIVER_CONTAINER, as_map, driver_pod_name
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model import masking
from sparkonce.model.application.script_errors import ANALYSIS, MISSING_INPUT
from sparkonce.model.record import Assignment

PATIENCE = 3.0
"""Seconds: the API server asks the kubelet, which answers at once or not at all."""
REMEMBERED = 256
"""Drivers whose log is cached, a kibibyte each: more than fail between two observations of one of them."""

ReadLog = Callable[[str, str, str], Awaitable[str]]
"""Namespace, pod and container to the end of its log."""

_MOUNTS = ("volumeMounts", "configMaps", "secrets", "template", "sidecars", "initContainers")
_MOUNTING_CONF = (
    "spark.kubernetes.driver.volumes.",
    "spark.kubernetes.driver.podTemplateFile",
    "spark.kubernetes.driver.secrets.",
)


class LogTails:
    def __init__(self, read: ReadLog | None) -> None:
        """read: None disables logs."""
        self._read = read
        self._known: OrderedDict[str, LoggedFailure] = OrderedDict()

    async def with_tail(self, seen: ApplicationState, assignment: Assignment, *, namespace: str) -> ApplicationState:
        """The state with what the driver's log says, if the driver itself has failed. Raises no errors."""
        if seen.driver is None or seen.phase is not Phase.FAILED_KNOWN:
            return seen
        job, own = assignment.spec.job, seen.log_tail
        found = LoggedFailure()
        if self._read is not None and (not own.strip() or is_log(own)):
            if seen.driver not in self._known:
                self._known[seen.driver] = found  # read once, whatever the outcome
                log = await self._log(self._read, namespace, driver_pod_name(seen.name))
                self._known[seen.driver] = _found(log, seen, job)
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            found = self._known[seen.driver]
        return explained(seen, found if found.excerpt else _found(own, seen, job), attempt=assignment.attempt)

    async def _log(self, read: ReadLog, namespace: str, pod: str) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                return await read(namespace, pod, DRIVER_CONTAINER)
        except (SparkonceError, TimeoutError):
            return ""


def _found(log: str, seen: ApplicationState, job: Mapping[str, Any]) -> LoggedFailure:
    if not log.strip():
        return LoggedFailure()
    found = find(masking.redacted(log, masking.values_of(job)), exit_code=seen.exit_code)
    of_data = not {ANALYSIS, MISSING_INPUT}.isdisjoint(found.script_error)
    return found if of_data or not _mounts(job) else replace(found, script_error=())


def _mounts(job: Mapping[str, Any]) -> bool:
    """Whether the driver's files come from more than its image: a module may be missing now and be there in the next attempt. Which
    data Spark finds is no matter of these files."""
    spec = as_map(as_map(as_map(job.get("spec")).get("template")).get("spec"))
    driver, conf = as_map(spec.get("driver")), as_map(spec.get("sparkConf"))
    return bool(
        spec.get("volumes")
        or any(driver.get(each) for each in _MOUNTS)
        or any(each.startswith(_MOUNTING_CONF) for each in conf)
    )
