"""Limits the outputs that an operator acts on, by namespace.

An operator has credentials that its tenants lack, so a job must not make it act where its namespace may not write. Every sink that a drive,
a probe or a sweep gets passes `limited`, which replaces a sink that is out of bounds by one that refuses everything. So no caller can
forget the check, and the output counts as out of reach: a settle run handles it with the tenant's own rights.

Recorded jobs stay readable: each process compares them with the list anew, and nothing of the list is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparkonce.attempt.drive import DrivenJob
from sparkonce.attempt.settle import Settles
from sparkonce.model.spec import IdempotentJob
from sparkonce.sink.allowed import AllowedOutputs
from sparkonce.sink.open import Absent, declared_of
from sparkonce.sink.protocol import Sink

FRESH = 30.0
"""Seconds for which the labels of a namespace are cached: a later reconcile of a key sees a change of them."""

SEVERAL = "this operator serves several namespaces and has no list of the outputs that each of them may use (--outputs-allowed)"
GIVE_LIST = "give it that list"

Labels = Callable[[str], Awaitable[Mapping[str, str] | None]]
"""Reads the labels of a namespace; None: there is no such namespace."""


async def _no_labels(_: str) -> Mapping[str, str] | None:
    return None


@dataclass(kw_only=True)
class OutputLimits:
    """What one operator process may do at outputs. By default everything."""

    allowed: AllowedOutputs | None = None
    """None: no list."""
    nothing: str = ""
    """Why this process touches no output at all; empty: it does."""
    labels: Labels = _no_labels
    now: Callable[[], float] = time.monotonic
    version: int = 0
    """Grows when the known labels of a namespace change: jobs are described anew then."""
    _known: dict[str, tuple[float, Mapping[str, str] | None]] = field(default_factory=dict)

    @classmethod
    def for_(
        cls, settles: Settles, allowed: AllowedOutputs | None, *, namespaces: Sequence[str] | None, labels: Labels
    ) -> OutputLimits:
        """The limits of an operator with these settings. `namespaces`: those that it watches; None: all.

        Without a list, an operator of several namespaces that was not told where to settle touches no output: each tenant would decide what
        its credentials are used for. With `--settle operator` its administrator permits that."""
        nothing = ""
        if settles is Settles.RUN:
            nothing = "outputs are settled by settle runs alone (--settle run)"
        elif settles is Settles.AUTO and allowed is None and (namespaces is None or len(set(namespaces)) > 1):
            nothing = SEVERAL
        return cls(allowed=allowed, nothing=nothing, labels=labels)

    async def look_up(self, namespaces: Iterable[str]) -> None:
        """Reads the labels of these namespaces, if the list depends on labels and they are not fresh.

        Raises: ApiUnavailable, ApiRefused: they could not be read; nothing is known to have changed."""
        if self.allowed is None or not self.allowed.by_label:
            return
        for namespace in namespaces:
            read, before = self._known.get(namespace, (None, None))
            if read is not None and self.now() - read < FRESH:
                continue
            labels = await self.labels(namespace)
            self._known[namespace] = self.now(), labels
            if read is None or labels != before:
                self.version += 1

    def _labels_of(self, namespace: str) -> Mapping[str, str] | None:
        return self._known.get(namespace, (0.0, None))[1]

    def refusal(self, job: IdempotentJob, sinks: Sequence[Sink], namespace: str) -> str:
        """Why a job of this namespace may not open a generation: it names an output that the namespace may not use. Empty: it may.

        `sinks`: of its outputs, in their order."""
        if self.allowed is None:
            return ""
        for number, (output, sink) in enumerate(zip(declared_of(job), sinks, strict=True)):
            why = self.allowed.refusal(sink.kind, sink.uri, namespace=namespace, labels=self._labels_of(namespace))
            if why:
                place = f"spec.outputs[{number}].{output.kind}" + ("" if output.kind == "iceberg" else ".path")
                return f"{place}: {why}; write to one of them, or have the operator's administrator add it to outputs.allowed"
        return ""

    def limited(self, job: DrivenJob) -> DrivenJob:
        """The job with sinks that this process may use; an `Absent` for every other one."""
        if self.allowed is None and not self.nothing:
            return job
        namespace = namespace_of(job)
        return replace(job, sinks=tuple(self._limited(sink, namespace) for sink in job.sinks))

    def _limited(self, sink: Sink, namespace: str) -> Sink:
        why, remedy = self.nothing, GIVE_LIST if self.nothing == SEVERAL else ""
        if not why and (why := self._out_of_bounds(sink, namespace)):
            remedy = "add the output to that list"
        return Absent(name=sink.name, kind=sink.kind, uri=sink.uri, why=why, remedy=remedy) if why else sink

    def _out_of_bounds(self, sink: Sink, namespace: str) -> str:
        if self.allowed is None:
            return ""
        why = self.allowed.refusal(sink.kind, sink.uri, namespace=namespace, labels=self._labels_of(namespace))
        return why and f"output {sink.name}: {why}"


def namespace_of(job: DrivenJob) -> str:
    """The namespace of the job's pods, as recorded."""
    return str((job.spec.job.get("metadata") or {}).get("namespace") or "default")
