"""Knows up to which version of a namespace's pods a driver that waits has provably started nothing.

The proof that an attempt never ran is the history of its driver pod's name (see `Stopping`), which an API server keeps for minutes, while
a driver may wait for its image, a volume or a node for half an hour or longer. So while it waits the history is read step by step, and the
proof begins where the last step ended: the history up to there shows no start, and the pod that had the name there had started nothing.

Every second step is written into the application, where a process that takes over goes on. Anyone who may edit the application can change
that, as they can change the version at which its proof begins, and deceive only the job that the application runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from sparkonce.errors import SparkonceError
from sparkonce.launch.kubeflow.labels import WAITED_UNTIL, as_map, driver_pod_name, text_of
from sparkonce.launch.kubeflow.observe import VERSION
from sparkonce.launch.kubeflow.pod import waiting_since
from sparkonce.launch.kubernetes import PODS, SPARK_APPLICATIONS, Kubernetes, Watched
from sparkonce.launch.protocol import ApplicationState, Phase

EVERY = 60.0
"""Seconds between two steps. etcd's history is compacted every five minutes by default, and the API server's own may be shorter."""
WRITTEN = 2
"""Every so many steps one is written. That and a takeover of a minute and a half leave the successor within those five minutes."""
REMEMBERED = 4096
"""Applications whose proof is kept; the one that was looked at longest ago goes first."""


@dataclass
class _Waited:
    begins: str
    """The version of pods from before its launch."""
    since: str
    next_step: float
    pod: str = ""
    """Version of the driver pod at `since`; empty: not looked at yet."""
    steps: int = 0
    """Since the last one that was written."""


class StartProofs:
    """The proofs of applications that wait, by name."""

    def __init__(self, kubernetes: Kubernetes, pods: Watched | None, *, now: Callable[[], float]) -> None:
        """pods: None: no step is made. now: monotonic seconds."""
        self._kubernetes, self._pods, self._now = kubernetes, pods, now
        self._known: OrderedDict[str, _Waited] = OrderedDict()

    def since(self, name: str, begins: str, application: Mapping[str, Any]) -> str:
        """The version from which the history of an application's driver pod has to be read. begins: that of its launch."""
        proof = self._known.get(name)
        if proof is not None and proof.begins == begins and proof.pod:
            return proof.since
        written = written_in(application)
        return begins if written is None else written[0]

    async def follow(self, seen: ApplicationState, *, namespace: str) -> None:
        """Makes the next step if it is due, while a driver waits. Raises no errors: the next step reads what this one could not."""
        if seen.phase not in (Phase.STARTING, Phase.HELD) or seen.driver is None or seen.pods_since is None:
            return
        fresh = _Waited(seen.pods_since, seen.pods_since, self._now() + EVERY)
        proof = self._known.setdefault(seen.name, fresh)
        self._known.move_to_end(seen.name)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        if self._pods is not None and self._now() >= proof.next_step:
            proof.next_step = self._now() + EVERY
            await self._step(proof, self._pods, seen, namespace)

    async def _step(self, proof: _Waited, pods: Watched, seen: ApplicationState, namespace: str) -> None:
        name = driver_pod_name(seen.name)
        version, pod = pods.version(namespace), pods.get(namespace, name)  # of one moment
        metadata = as_map(as_map(pod).get("metadata"))
        uid, at = text_of(metadata.get("uid")), text_of(metadata.get("resourceVersion"))
        if version is None or pod is None or not at or uid != seen.driver:
            return
        try:
            if not proof.pod:  # the first step of this process
                await self._take_up(proof, seen, namespace)
            if at != proof.pod:  # else nothing has happened to the name since
                history = await self._kubernetes.history(PODS, namespace, name, since=proof.since, until=pod)
                if history is None or not waiting_since(history, uid):
                    proof.next_step = inf
                    return
            proof.since, proof.pod, proof.steps = version, at, proof.steps + 1
            if proof.steps >= WRITTEN:
                said = {WAITED_UNTIL: f"{version}/{at}"}
                patch = {"metadata": {"uid": seen.uid, "annotations": said}}
                await self._kubernetes.patch(SPARK_APPLICATIONS, namespace, seen.name, patch)
                proof.steps = 0
        except SparkonceError:
            return

    async def _take_up(self, proof: _Waited, seen: ApplicationState, namespace: str) -> None:
        """Begins where another process has written that it was."""
        application = await self._kubernetes.get(SPARK_APPLICATIONS, namespace, seen.name)
        if application is not None and (written := written_in(application)) is not None:
            proof.since, proof.pod = written


def written_in(application: Mapping[str, Any]) -> tuple[str, str] | None:
    """A version of the namespace's pods up to which nothing has started, and that of the driver pod there; None: it has none."""
    annotations = as_map(as_map(application.get("metadata")).get("annotations"))
    since, _, pod = text_of(annotations.get(WAITED_UNTIL))[: 2 * VERSION].partition("/")
    return (since, pod) if since and pod else None
