"""What one look at a key reads besides its record: the objects that want it, the recorded spec, whether a result still stands.

Everything is asked for only where something depends on it: in the usual case a look costs one read, or none. Decides nothing and
writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparkonce.engine.object_view import Json, ObjectView, uids
from sparkonce.engine.objects import Fate, ObjectRef, Objects
from sparkonce.engine.policy import Policy
from sparkonce.engine.probing import probe
from sparkonce.engine.requests import leader_of
from sparkonce.engine.wanted import Reader, Wanted, describe
from sparkonce.model.record import Outcome, Record, SpecBody, State
from sparkonce.model.result import Result
from sparkonce.sink.protocol import Evidence, Sink
from sparkonce.store.protocol import IdempotencyStore


@dataclass(frozen=True, kw_only=True)
class Looking:
    store: IdempotencyStore
    objects: Objects
    reader: Reader
    reaches: Callable[[Sink], bool] = lambda _: True
    """Whether this process sees the output that drivers write."""

    def views(self, bodies: Sequence[Json], record: Record | None) -> tuple[list[ObjectView], dict[str, Wanted]]:
        views: list[ObjectView] = []
        wanted: dict[str, Wanted] = {}
        for body in bodies:
            read = self.reader.read(body)
            if isinstance(read, Wanted):
                wanted[read.ref.uid] = read
            views.append(ObjectView.of(body, read if isinstance(read, Wanted) else None, record=record))
        return views, wanted

    async def spec_if(self, record: Record | None, views: Sequence[ObjectView]) -> SpecBody | None:
        """The recorded spec, where something here depends on it and no live object says the same."""
        if record is None:
            return None
        leader = leader_of(record)
        led = any(v.uid == leader and v.same(record) for v in views)
        if record.state is not State.FINALIZED and led and not any(_untold(v, record) for v in views):
            return None
        return await self.store.spec(record.address, record.generation)

    def policy(self, record: Record | None, spec: SpecBody | None, wanted: Mapping[str, Wanted]) -> Policy | None:
        if record is None:
            return None
        leader = wanted.get(leader_of(record) or "")
        if leader is not None and leader.same(record):
            return leader.policy
        return None if spec is None else describe(record, spec, None).policy

    async def evidence(
        self, record: Record | None, result: Result | None, spec: SpecBody | None, views: Sequence[ObjectView]
    ) -> dict[str, Evidence]:
        """Whether a recorded result still stands, asked when somebody is told of it who was not told before."""
        if (
            record is None
            or result is None
            or record.outcome is not Outcome.SUCCEEDED
            or spec is None
            or not result.outputs
        ):
            return {}
        late = [v for v in views if not v.wanting(record) and v.status.get("ledgerRevision") != record.revision]
        return await probe(record, result, describe(record, spec, None).sinks, reaches=self.reaches) if late else {}

    async def gone(self, record: Record | None, policy: Policy | None, views: Sequence[ObjectView]) -> set[str]:
        """UIDs that the record names and the API server says are gone; asked only when none of them is in sight."""
        if record is None or record.state is not State.IN_PROGRESS or policy is None:
            return set()
        named = uids(record)
        seen = {v.uid for v in views if not v.deleting}
        if not named or seen & set(named) or record.stop_wanted is not None:
            return set()
        fates: dict[str, Fate] = {}
        for entry in record.objects:
            ref = ObjectRef.parse(entry)
            fates[ref.uid] = await self.objects.fate(ref)
            if fates[ref.uid] is Fate.THERE:
                break  # one that is there is enough
        withdrawn = Fate.GONE in fates.values()  # what was swept away wants nothing any more, but it withdraws nothing
        return {uid for uid, fate in fates.items() if withdrawn and fate is not Fate.THERE}

    def leader(self, record: Record) -> Wanted | None:
        leader = leader_of(record)
        for body in self.objects.of(record.address):
            read = self.reader.read(body)
            if isinstance(read, Wanted) and read.ref.uid == leader:
                return read
        return None

    def edition(self, record: Record) -> object:
        leader = self.leader(record)
        return None if leader is None else (leader.ref.uid, leader.generation)


def _untold(view: ObjectView, record: Record) -> bool:
    """It wants another job than the recorded one, and its status does not name the fields yet."""
    told = view.status.get("generation") == record.generation and view.asks(view.status.get("fingerprint"))
    return not told and not view.same(record)
