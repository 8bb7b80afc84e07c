"""Knows up to which version of a namespace's pods a driver that waits has provably started nothing.

The proof that an attempt never ran is the history of its driver pod's name (see `Stopping`), which an API server keeps for minutes, while
a driver may wait for its image, a volume or a node for half an hour or longer. So while it waits the history is read step by step, and the
proof begins where the last step ended: the history up to there shows no start, and the pod that had the name there had started nothing.

Kept in memory: a process that takes over begins at the application's own version, and proves nothing if that is too old.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from sparkonce.errors import SparkonceError
from sparkonce.launch.kubeflow.labels import as_map, driver_pod_name, text_of
from sparkonce.launch.kubeflow.pod import waiting_since
from sparkonce.launch.kubernetes import PODS, Kubernetes, Watched
from sparkonce.launch.protocol import ApplicationState, Phase

EVERY = 60.0
"""Seconds between two steps. etcd's history is compacted every five minutes by default, and the API server's own may be shorter."""
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


class StartProofs:
    """The proofs of applications that wait, by name."""

    def __init__(self, kubernetes: Kubernetes, pods: Watched | None, *, now: Callable[[], float]) -> None:
        """pods: None: no step is made. now: monotonic seconds."""
        self._kubernetes, self._pods, self._now = kubernetes, pods, now
        self._known: OrderedDict[str, _Waited] = OrderedDict()

    def since(self, name: str, begins: str) -> str:
        """The version from which the history of an application's driver pod has to be read. begins: that of its launch."""
        proof = self._known.get(name)
        return proof.since if proof is not None and proof.begins == begins else begins

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
        if at != proof.pod:  # else nothing has happened to the name since
            try:
                history = await self._kubernetes.history(PODS, namespace, name, since=proof.since, until=pod)
            except SparkonceError:
                return
            if history is None or not waiting_since(history, uid):
                proof.next_step = inf
                return
        proof.since, proof.pod = version, at
