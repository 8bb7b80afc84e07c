"""The end of a failed driver's log, read once while its pod is still there, for the person who asks later why it failed.

A hint and nothing else: it decides nothing, and a log that cannot be read (no right, a silent node, a pod that has gone) is an empty one.
Each driver is asked about once, within `PATIENCE`, because whoever waits for it settles the attempt. Of a driver that left a termination
message that one is kept, and no log is read.

Letting the kubelet write the end of the log into the pod's status (`FallbackToLogsOnError`) needs no right at all, but it is set in a pod
template, which Spark and the Spark operator then merge with the job's own for each submission: too much, for a hint.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sparkonce.errors import SparkonceError
from sparkonce.launch.kubeflow import DRIVER_CONTAINER, driver_pod_name
from sparkonce.launch.kubeflow_pod import LOG_TAIL
from sparkonce.launch.protocol import Phase, Seen

PATIENCE = 3.0
"""Seconds: the API server asks the kubelet, which answers at once or is not there."""
REMEMBERED = 256
"""Drivers, a kibibyte each: more than fail between two looks at one of them."""

ReadLog = Callable[[str, str, str], Awaitable[str]]
"""Namespace, pod and container to the end of its log."""


class LogTails:
    def __init__(self, read: ReadLog | None) -> None:
        """Without `read` there are no logs."""
        self._read = read
        self._known: OrderedDict[str, str] = OrderedDict()

    async def with_tail(self, seen: Seen, *, namespace: str) -> Seen:
        """The same, with the end of the log where a driver has failed by itself. Raises nothing of its own."""
        if self._read is None or seen.driver is None or seen.phase is not Phase.FAILED_KNOWN or seen.log_tail.strip():
            return seen
        if seen.driver not in self._known:
            self._known[seen.driver] = ""  # whatever comes of it, it is asked once
            self._known[seen.driver] = await self._tail(self._read, namespace, driver_pod_name(seen.name))
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return replace(seen, log_tail=self._known[seen.driver])

    async def _tail(self, read: ReadLog, namespace: str, pod: str) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                return (await read(namespace, pod, DRIVER_CONTAINER))[-LOG_TAIL:]
        except (SparkonceError, TimeoutError):
            return ""
