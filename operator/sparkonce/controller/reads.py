"""The reads of one reconcile besides the record: objects, recorded spec, output evidence, proofs of deletion.

Each is read only where the plan or a status depends on it: usually a reconcile costs one read, or none. Decides nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparkonce.attempt.decide import Policy
from sparkonce.attempt.drive import DrivenJob, Ended
from sparkonce.attempt.limits import OutputLimits
from sparkonce.attempt.probe import probe
from sparkonce.attempt.settle import Offload, inline
from sparkonce.controller.desired import Desired, DesiredReader, describe
from sparkonce.controller.objects import Fate, JobObjects, Json, ObjectRef, ObjectView, uids
from sparkonce.controller.plan import leader_of
from sparkonce.errors import OutputUnavailable
from sparkonce.model.record import Outcome, Record, Result, SpecBody, State
from sparkonce.model.spec import OnDelete
from sparkonce.sink.protocol import Evidence, Found, Sink
from sparkonce.store.protocol import IdempotencyStore


@dataclass(frozen=True, kw_only=True)
class RecordedJob:
    """What is known of a recorded generation beside its record. The defaults are those of a key without one."""

    spec: SpecBody | None = None
    """None: nothing depends on it, or a live object has the same."""
    policy: Policy | None = None
    """None: unknown."""
    evidence: Mapping[str, Found] = field(default_factory=dict)
    """Of its outputs, where they were probed."""
    gone: frozenset[str] = frozenset()
    """UIDs of objects that the record names and that are proved to be gone."""
    on_delete: OnDelete = OnDelete.STOP


@dataclass(frozen=True, kw_only=True)
class KeyReader:
    """Reads for the keys of one process."""

    store: IdempotencyStore
    objects: JobObjects
    reader: DesiredReader
    reaches: Callable[[Sink], bool] = lambda _: True
    """Whether this process reaches the output that drivers write."""
    offload: Offload = inline
    """Where outputs are probed."""
    limits: OutputLimits = field(default_factory=OutputLimits)

    def views(self, bodies: Sequence[Json], record: Record | None) -> tuple[list[ObjectView], dict[str, Desired]]:
        """Parses the objects of a key. Returns all of them, and the valid ones by UID.

        Raises: UnknownFingerprintVersion: the record's fingerprints cannot be computed here."""
        views: list[ObjectView] = []
        desired: dict[str, Desired] = {}
        for body in bodies:
            read = self.reader.read(body)
            if not isinstance(read, Desired):
                views.append(ObjectView.of(body, None, record=record))
                continue
            desired[read.ref.uid] = read
            view = ObjectView.of(body, read, record=record)
            views.append(view if view.contradiction else replace(view, contradiction=self.refusal(read)))
        return views, desired

    def refusal(self, desired: Desired) -> str:
        """Why this process's limits at outputs refuse the job; empty: they do not."""
        return self.limits.refusal(desired.job, desired.sinks, desired.ref.namespace)

    def describe(self, record: Record, spec: SpecBody) -> DrivenJob:
        """The job of the record's generation, with the sinks that this process may use."""
        return self.limits.limited(describe(record, spec, self.leader(record)))

    async def look_up(self, bodies: Sequence[Json]) -> None:
        """Reads the labels of these objects' namespaces, as far as limits depend on them. Raises: ApiUnavailable, ApiRefused."""
        await self.limits.look_up({ObjectRef.of(body).namespace for body in bodies})

    async def recorded(
        self, record: Record, ended: Ended | None, views: Sequence[ObjectView], desired: Mapping[str, Desired]
    ) -> RecordedJob:
        """Reads what depends on the record. ended: the end of its generation, where it is finalized."""
        spec = ended.spec if ended is not None else None
        spec = spec or await self.spec_if(record, views)
        policy = self.policy(record, spec, desired)
        on_delete = policy.on_delete if policy is not None else OnDelete.STOP
        return RecordedJob(
            spec=spec,
            policy=policy,
            evidence=await self.evidence(record, ended.result if ended is not None else None, spec, views),
            gone=await self.gone(record, policy, views),
            # sparkonce never stops an application that it did not start
            on_delete=on_delete if record.bound is None else OnDelete.DETACH,
        )

    async def spec_if(self, record: Record, views: Sequence[ObjectView]) -> SpecBody | None:
        """The recorded spec, if a status or policy depends on it and no live object has the same; else None."""
        leader = leader_of(record)
        led = any(v.uid == leader and v.same(record) for v in views)
        if record.state is not State.FINALIZED and led and not any(_unreported(v, record) for v in views):
            return None
        return await self.store.spec(record.address, record.generation)

    def policy(self, record: Record, spec: SpecBody | None, desired: Mapping[str, Desired]) -> Policy | None:
        """The policies of the record's generation: of its leading object as it is now, else as recorded; None: unknown."""
        leader = desired.get(leader_of(record) or "")
        if leader is not None and leader.same(record):
            return leader.policy
        return None if spec is None else describe(record, spec, None).policy

    async def evidence(
        self, record: Record, result: Result | None, spec: SpecBody | None, views: Sequence[ObjectView]
    ) -> dict[str, Found]:
        """Probes the outputs of a recorded result, if some object is about to get that result for the first time."""
        if result is None or record.outcome is not Outcome.SUCCEEDED or spec is None or not result.outputs:
            return {}
        late = [v for v in views if not v.wanting(record) and v.status.get("ledgerRevision") != record.revision]
        if not late:
            return {}
        sinks = self.limits.limited(describe(record, spec, None)).sinks
        try:
            return await self.offload(record.address, lambda: probe(record, result, sinks, reaches=self.reaches))
        except OutputUnavailable:
            return {sink.name: Evidence.NOT_CHECKED for sink in sinks}

    async def gone(self, record: Record, policy: Policy | None, views: Sequence[ObjectView]) -> frozenset[str]:
        """UIDs that the record names and live reads prove to be gone. Reads only when the cache holds none of them."""
        if record.state is not State.IN_PROGRESS or policy is None:
            return frozenset()
        named = uids(record)
        seen = {v.uid for v in views if not v.deleting}
        if not named or seen & set(named) or record.stop_wanted is not None:
            return frozenset()
        fates: dict[str, Fate] = {}
        for entry in record.objects:
            ref = ObjectRef.parse(entry)
            fates[ref.uid] = await self.objects.fate(ref)
            if fates[ref.uid] is Fate.THERE:
                break  # one existing object keeps the generation wanted
        withdrawn = Fate.GONE in fates.values()  # deletion with its CRD alone is not a user's withdrawal
        return frozenset(uid for uid, fate in fates.items() if withdrawn and fate is not Fate.THERE)

    def leader(self, record: Record) -> Desired | None:
        """The leading object as cached; None: gone, or invalid."""
        leader = leader_of(record)
        for body in self.objects.of(record.address):
            read = self.reader.read(body)
            if isinstance(read, Desired) and read.ref.uid == leader:
                return read
        return None

    def edition(self, record: Record) -> object:
        """Identifies what `describe` reads beside the record: the leading object's spec, and the limits at outputs."""
        leader = self.leader(record)
        seen = None if leader is None else (leader.ref.uid, leader.generation)
        return seen, self.limits.version


def _unreported(view: ObjectView, record: Record) -> bool:
    """Whether the object mismatches the record and its status does not list the fields yet."""
    reported = view.status.get("generation") == record.generation and view.asks(view.status.get("fingerprint"))
    return not reported and not view.same(record)
