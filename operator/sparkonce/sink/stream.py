"""The chain of a stream's slots: each micro-batch is one effect, and an attempt that was superseded is barred from all later batches.

    <key>          the opening: binds the stream to one checkpoint (Spark's query id) and to its first batch
    <key>-b<n>     batch n, for n = first, first + 1, ...
    <key>-b<k+1>   after the last batch k: the end, which is the stream's result

Each *place* of the chain (the opening, then one per number) is a sink key of its own with slots of its own, in which rule R holds. That
bars a superseded attempt from places that were fenced, but not from the places after them, which are unbounded and cannot all be closed.
So:

**Chain rule: token s commits in a place only after it has seen the place before it committed, as the opening or a batch, by a token
u <= s, and every slot of its place from u to s - 1 closed.** (Slots below u need no closing: the rule itself bars them. So an attempt
closes slots where it takes over, and none in the batches that follow, however many attempts there were.)

It follows, without any assumption about time:

1. At most one slot of a place is committed. For the opening, rule R says so. Take a place whose predecessor has one, by u, and two
   commits in it, s < t. Both saw u, so u <= s; before t was written slot s was seen closed; slots never change; so s is not committed.
2. The committed places are contiguous from the opening on, and an end is the last of them: a place is committed only after the one before
   it, which is not an end. So "is place p committed?" is true up to some p and false beyond: the last one is found by doubling and halving,
   in a few reads, however long the stream is. A read is a hint; what it misses costs a step of `close`.
3. Tokens never decrease along the chain (the rule, applied place by place).
4. `close(t)` walks to the first place p that is not committed and fills its slots from u, the token before it, to t - 1. Then no token
   s < t commits anything, ever. Not in p: slots from u on are closed, and below u the rule bars it. In no place q after p: p would be
   committed first (2), by a token that is at most s (3), which was just excluded. Not before p: those places have their one commit (1).
   When p is the opening itself, the same holds with all its slots below t closed. If another process commits p while it is being closed,
   the walk continues with the place after it.
5. An attempt that resumes after a takeover is therefore refused in the place it works at (its slot is closed, or the place is taken) and
   in every later one. Places of the successor's batches stay open to the successor, and to no lower token.

The chain rule is checked against slots that never change, so checking before the create is as good as checking inside it. Two processes
with one token (twins) compete for the same slot: one wins its create, the other reads the winner's batch.

**In Delta and Iceberg tables** the chain is the same, with the table's own commit as the decision: the next entry of Delta's log, or a
change of the Iceberg catalog whose requirements hold. Both check, in the commit itself, that the place is not committed, that its fence is
not above the token, and that the place before is committed *in this table* as the chain says (`Linked.follow`). A fence at t means "every
slot below t is closed", written at once, so `close` bars the place p by one fence, and 1 to 5 hold word for word; nothing is written in the
places after p. The last check exists because tables, unlike slot logs, are dropped and recreated: a batch never goes into a table that
lacks the ones before it. The state of a stream is read from the table alone; there is no second log beside it.

Rejected for these tables: one transaction identifier (Delta's `txn` with the batch as version) or one tag per stream that moves from batch
to batch. It would keep their metadata small, but shows only that batch n was committed, not which rows, nor that those before it were,
and an attempt could not distinguish a batch that is delivered again from another one of the same number.

The number of a batch does not identify its rows: a checkpoint that was restored to an older state plans the number anew. So a batch
carries the digest of the checkpoint's plan of it (`input`), and a batch that is delivered again with another plan is refused.

**Two streams of one source.** A query id identifies a checkpoint, not what is read: a stream whose checkpoint was deleted begins anew
under a new id, and would write the rows of an earlier stream again. So an opening records its sources, and a stream that begins anew looks
for others that read them (`beside`) after its opening is committed and before its first batch is. Of two such streams that begin at once,
the one whose opening was committed last sees the other's, whichever of them searches first, so they never both commit rows; both may be
refused. An attempt that finds an opening without batches searches too: the attempt before may have died before it searched. Rejected: one
create-once object per source that the winner holds. It would have to be taken from a stream that died without rows, and nothing in the
table shows that such a stream will never have any.

**Native blocks** (`sparkonce.driver.native`) are chains, too: a statement that Spark commits itself takes the place of a batch, and the end
says that the block ran to its end. What decides a place is again one entry of Delta's log, and the only difference is who writes it.
Spark's commit carries one transaction identifier, so in these places (`<key>-s<n>`) the same identifier also holds the fence
(`sink.delta.numbering`): Delta refuses a statement whose identifier another entry has moved meanwhile, and skips one whose
version is not above the table's. Only the driver ends a block, because only it knows that no statement follows: settling never does.

A number that leaves a gap, another query id, or a batch after the end is an error for the user, never a merge. One long-lived lock per
stream, or a fence object that each batch reads first, was rejected: a frozen writer passes a check that it made before it froze; the
create of a slot does not.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from sparkonce.model.spec import OnRerun
from sparkonce.sink.protocol import (
    STREAM_SCHEMA,
    AlreadyCommitted,
    CommitOutcome,
    Committed,
    FencedOff,
    LaneMark,
    SinkKey,
    Slot,
    SlotState,
    StreamMark,
    StreamOrigin,
    StreamPart,
    StreamSource,
    same_source,
)
from sparkonce.sink.slotlog import layout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sparkonce.sink.protocol import Sink


class Places(Protocol):
    """The part of `Sink` that a chain needs; the caller guarantees that tokens below `lowest` are barred."""

    async def find(self, key: SinkKey) -> Slot | None: ...

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str, lowest: int = 1) -> Slot | None: ...

    async def commit(self, key: SinkKey, slot: Slot, *, lowest: int = 1) -> CommitOutcome: ...


@runtime_checkable
class Linked(Protocol):
    """Additional methods for streams of Delta and Iceberg tables. Their fences need no `lowest`: each is one commit."""

    on_rerun: OnRerun

    async def follow(self, key: SinkKey, slot: Slot, *, after: Slot) -> CommitOutcome:
        """As `Sink.commit`, provided that `after`, the slot of the previous place, is committed in the same table; else Stuck."""
        ...

    async def using(self, query_id: str) -> list[Slot]:
        """Opening and newest slot of each stream, of any key, that started with this checkpoint. Errors as `Sink.find`."""
        ...

    async def reading(self, sources: Sequence[StreamSource]) -> list[Slot]:
        """Opening and newest slot of each stream, of any key, that may read one of these. A stream whose opening was committed before this
        call is among them. Errors as `Sink.find`."""
        ...

    def checkpoint(self, key: SinkKey) -> str:
        """Default location of a stream's checkpoint, as a URL for Hadoop's file systems."""
        ...


def _places(sink: Sink | Places) -> Places:
    return cast("Places", sink)


@dataclass(frozen=True)
class Chain:
    """The known committed places of a stream; everything up to `last` is final."""

    opening: Slot
    last: Slot
    """The opening, the newest batch, or the end."""

    @property
    def query_id(self) -> str:
        return mark(self.opening).query_id

    @property
    def ended(self) -> bool:
        return mark(self.last).part is StreamPart.END

    @property
    def batches(self) -> int:
        return mark(self.last).batches

    @property
    def last_batch(self) -> int | None:
        return mark(self.last).last_batch

    @property
    def next(self) -> int:
        """The number that the next batch must have; after the end, the place of the end."""
        last = mark(self.last)
        return last.first_batch if last.last_batch is None else last.last_batch + 1

    def followed_by(self, slot: Slot) -> Chain:
        """The chain extended by the slot committed in the next place."""
        return Chain(self.opening, slot)


def mark(slot: Slot) -> StreamMark:
    """Position of a slot in its stream.

    Raises:
        ValueError: the slot is not part of a stream.
    """
    if slot.stream is None:
        raise ValueError(f"slot {slot.token} of {slot.sink_key} is not part of a stream")
    return slot.stream


def key_of(sink_key: str) -> SinkKey | None:
    """The key that a sink key's text names, ignoring its batch; None if the text is not a sink key."""
    key = SinkKey.parse(sink_key)
    return None if key is None else key.whole


def place(key: SinkKey, number: int) -> SinkKey:
    """The sink key of one batch."""
    return key.model_copy(update={"batch": number})


def before(key: SinkKey) -> tuple[SinkKey, ...]:
    """For a place that is not the opening: places of which the first that is committed bars all lower tokens from this one, by the chain
    rule. The place before it comes first, then the opening, which is before the first batch whatever its number."""
    if key.batch is None:
        return ()
    return (place(key, key.batch - 1), key.whole) if key.batch else (key.whole,)


def within(key: SinkKey, opening: Slot) -> SinkKey:
    """The key, as the places of the chain that was opened so are named by."""
    return key.model_copy(update={"native": True}) if mark(opening).native else key


def opening_of(
    key: SinkKey,
    token: int,
    *,
    query_id: str,
    first_batch: int,
    fingerprint: str,
    on_rerun: OnRerun,
    origin: StreamOrigin | None = None,
) -> Slot:
    """The slot that binds the stream to its checkpoint, and names its sources."""
    position = StreamMark(part=StreamPart.OPENING, query_id=query_id, first_batch=first_batch, origin=origin)
    return _slot(key, token, position, fingerprint=fingerprint, on_rerun=on_rerun)


def batch_of(chain: Chain, number: int, slot: Slot, *, plan: str) -> Slot:
    """A staged slot turned into the batch that follows `chain`. plan: see `StreamMark.input`."""
    before = mark(chain.last)
    position = StreamMark(
        part=StreamPart.BATCH,
        query_id=chain.query_id,
        first_batch=before.first_batch,
        last_batch=number,
        input=plan,
        batches=before.batches + 1,
        rows=before.rows + slot.rows,
        bytes=before.bytes + slot.bytes,
        files=before.files + slot.file_count,
    )
    return slot.model_copy(update={"stream": position, "schema_": STREAM_SCHEMA})


def empty_batch(chain: Chain, key: SinkKey, number: int, token: int, *, plan: str) -> Slot:
    """A batch without rows for this output."""
    first = chain.opening
    position = mark(first)
    bare = _slot(place(key, number), token, position, fingerprint=first.fingerprint, on_rerun=first.on_rerun)
    return batch_of(chain, number, bare, plan=plan)


def end_of(chain: Chain, key: SinkKey, token: int, *, by: str, data_schema: str = "") -> Slot:
    """The slot that ends the stream after `chain`, with the totals and the number of the last batch."""
    position = mark(chain.last).model_copy(update={"part": StreamPart.END, "origin": None})
    first = chain.opening
    slot = _slot(place(key, chain.next), token, position, fingerprint=first.fingerprint, on_rerun=first.on_rerun)
    return slot.model_copy(update={"application": by, "data_schema": data_schema or chain.last.data_schema})


def _slot(key: SinkKey, token: int, position: StreamMark, *, fingerprint: str, on_rerun: OnRerun) -> Slot:
    return Slot(
        schema_=STREAM_SCHEMA,
        state=SlotState.COMMITTED,
        sink_key=str(key),
        token=token,
        nonce=secrets.token_hex(16),
        fingerprint=fingerprint,
        on_rerun=on_rerun,
        stream=position,
        committed_at=time.time(),
    )


async def walk(sink: Sink | Places, key: SinkKey, opening: Slot) -> Chain:
    """The chain as reads show it now; only its end is a hint.

    Raises:
        SparkonceError: as for `Sink.find`.
    """
    key = within(key, opening)
    found = await furthest(lambda number: sink.find(place(key, number)), first=mark(opening).first_batch)
    return Chain(opening, opening if found is None else found[1])


async def furthest(find: Callable[[int], Awaitable[Slot | None]], *, first: int) -> tuple[int, Slot] | None:
    """The last number from `first` on at which there is a slot, and that slot; None if there is none at `first`. The numbers have no gap,
    so doubling and halving find it in a few reads.

    Raises:
        SparkonceError: as `find`.
    """
    newest: tuple[int, Slot] | None = None
    known, step = first - 1, 1
    missing: int | None = None
    while missing is None or missing - known > 1:
        probed = known + step if missing is None else (known + missing) // 2
        found = await find(probed)
        if found is None:
            missing = probed
        else:
            newest, known, step = (probed, found), probed, step * 2
    return newest


async def close(sink: Sink | Places, key: SinkKey, opening: Slot, token: int, *, fingerprint: str, by: str) -> Chain:
    """Bars every token below `token` from every place of the stream, for ever (4 above). Returns the chain.

    Afterwards the chain grows only by tokens from `token` on.

    Raises:
        SparkonceError: as for `Sink.fence`. Nothing is known then; the call may be repeated.
    """
    chain, key = await walk(sink, key, opening), within(key, opening)
    while not chain.ended:
        at = place(key, chain.next)
        if isinstance(sink, Linked):
            found = await cast("Sink", sink).fence(at, token, fingerprint=fingerprint, by=by)
        else:
            found = await _places(sink).fence(at, token, fingerprint=fingerprint, by=by, lowest=chain.last.token)
        if found is None:
            break
        chain = chain.followed_by(found)
    return chain


async def commit(sink: Sink | Places, key: SinkKey, chain: Chain, slot: Slot) -> CommitOutcome:
    """Commits a batch, or an end, in the place after `chain`. FencedOff has the slot that bars it, which may be the one before.

    Raises:
        ValueError: the slot belongs to another place, or the chain has ended.
        SparkonceError: as for `Sink.commit`.
    """
    key = within(key, chain.opening)
    if chain.ended or slot.sink_key != str(place(key, chain.next)):
        raise ValueError(f"{slot.sink_key} does not follow {chain.last.sink_key}")
    if chain.last.token > slot.token:  # the chain rule
        return FencedOff(chain.last)
    if isinstance(sink, Linked):
        return await sink.follow(place(key, chain.next), slot, after=chain.last)
    return await _places(sink).commit(place(key, chain.next), slot, lowest=chain.last.token)


async def finish(
    sink: Sink | Places, key: SinkKey, chain: Chain, token: int, *, by: str, data_schema: str = ""
) -> tuple[Chain, CommitOutcome | None]:
    """Ends the stream after its last batch, whichever attempt committed that. Returns the ended chain and None; or the chain as far as it
    got and the outcome that refused this token.

    Raises:
        SparkonceError: as for `Sink.commit`. The call may be repeated.
    """
    while not chain.ended:
        decision = await commit(sink, key, chain, end_of(chain, key, token, by=by, data_schema=data_schema))
        if not isinstance(decision, Committed | AlreadyCommitted):
            return chain, decision
        chain = chain.followed_by(decision.slot)
    return chain, None


async def settled(
    sink: Sink | Places, key: SinkKey, opening: Slot, attempt: int, *, fingerprint: str, by: str, end: bool
) -> tuple[Slot | None, bool]:
    """Bars attempt `attempt` and all before it. Returns the newest slot of the stream (None without any batch) and whether that is its end.

    end: the stream is to end here. The end is then written after the last batch, and the committed batches are the result; without any
    batch, None is final. The end goes into the attempt's own slot, where it competes with the attempt's next batch; into the next attempt's
    only if that slot was closed before the end was requested. A settle run that resumes after the next attempt has committed does not end
    the stream: it decides nothing about batches of later attempts.

    Raises:
        SparkonceError: as for `Sink.fence`. The call may be repeated.
    """
    caller: dict[str, Any] = {"fingerprint": fingerprint, "by": by}
    if end:
        chain = await close(sink, key, opening, attempt, **caller)
        if _to_end(chain, attempt, fingerprint):
            await finish(sink, key, chain, attempt, by=by)
    chain = await close(sink, key, opening, attempt + 1, **caller)
    if end and _to_end(chain, attempt, fingerprint):
        chain, _ = await finish(sink, key, chain, attempt + 1, by=by)
    return (chain.last if chain.batches or chain.ended else None), chain.ended


def _to_end(chain: Chain, attempt: int, fingerprint: str) -> bool:
    if mark(chain.opening).native:
        return False  # only its driver knows that no statement follows
    own = chain.opening.fingerprint == fingerprint and chain.last.token <= attempt
    return own and chain.batches > 0 and not chain.ended


async def recorded(sink: Sink | Places, key: SinkKey, opening: Slot) -> tuple[Slot, ...]:
    """The committed slots after the opening, in order; the last one is the end if the stream has ended.

    Raises:
        SparkonceError: as for `Sink.find`.
    """
    found: list[Slot] = []
    chain, key = Chain(opening, opening), within(key, opening)
    while not chain.ended:
        slot = await sink.find(place(key, chain.next))
        if slot is None:
            break
        found.append(slot)
        chain = chain.followed_by(slot)
    return tuple(found)


def begins_with(slots: Sequence[Slot], key: SinkKey, query_id: str) -> int:
    """Number of the first batch of a stream that is about to be opened: 0 for a new checkpoint; if an earlier key's ended stream used the
    same checkpoint (a key per day on one checkpoint), the number after its last batch.

    slots: all committed slots of the table.

    Raises:
        ValueError: the checkpoint cannot be used here; says why.
    """
    first = 0
    chains: dict[tuple[str, int], list[Slot]] = {}
    for slot in slots:
        of = layout.lineage_of(slot.sink_key)
        if of and of != (key.lineage, key.generation) and slot.stream and slot.stream.query_id == query_id:
            chains.setdefault(of, []).append(slot)
    for (lineage, generation), parts in chains.items():
        batches = [number for slot in parts if (number := mark(slot).last_batch) is not None]
        if not batches:
            continue
        if lineage == key.lineage and parts[0].on_rerun is OnRerun.REPLACE:
            raise ValueError(f"it goes on after generation {generation}, whose rows a rerun replaces; give a new one")
        if not any(mark(slot).part is StreamPart.END for slot in parts):
            raise ValueError(
                f"the stream {lineage}-g{generation} uses it and has not ended; end that one, or give a new one and set "
                "`stream: {restart: true}`, which writes its rows again"
            )
        first = max(first, max(batches) + 1)
    return first


@dataclass(frozen=True)
class OtherStream:
    """An existing stream of the table that reads the same source as one that begins anew."""

    opening: Slot
    rows: int
    ended: bool
    source: StreamSource
    """The source that both read."""

    @property
    def query_id(self) -> str:
        return mark(self.opening).query_id

    def __str__(self) -> str:
        """Names its key and checkpoint."""
        opening, key = mark(self.opening), key_of(self.opening.sink_key)
        origin, generation = opening.origin, 0 if key is None else key.generation
        if origin is None:
            return f"{self.opening.sink_key} (query {opening.query_id})"
        return f"{origin.key} (generation {generation}, checkpoint {origin.checkpoint}, query {opening.query_id})"


def beside(
    slots: Sequence[Slot], key: SinkKey, *, query_id: str, sources: Sequence[StreamSource], on_rerun: OnRerun
) -> list[OtherStream]:
    """The streams whose rows a stream that begins anew, at the first batch of a new checkpoint, would write again, oldest first.

    Those are the streams of other checkpoints that read one of its sources and have rows, or may yet commit some because they have not
    ended. Left out are generations of the same key that this one replaces or that have no rows (an owner settles a generation before it
    opens the next), and streams whose opening records no sources. Whether another generation replaced the rows since is not checked.

    slots: all committed slots of the table, or the openings and newest slots of the streams that may read these sources.
    """
    streams: dict[tuple[str, int], list[Slot]] = {}
    for slot in slots:
        of = layout.lineage_of(slot.sink_key)
        if not of or of == (key.lineage, key.generation) or not slot.stream:
            continue
        if of[0] != key.lineage or on_rerun is OnRerun.APPEND:
            streams.setdefault(of, []).append(slot)
    found: list[OtherStream] = []
    for (lineage, _), parts in streams.items():
        opening = next((slot for slot in parts if is_opening(slot)), None)
        if opening is None or mark(opening).query_id == query_id:
            continue
        common = [a for a in mark(opening).sources if any(same_source(a, b) for b in sources)]
        rows = max(mark(slot).rows for slot in parts)
        ended = any(mark(slot).part is StreamPart.END for slot in parts)
        if common and (rows > 0 or not (ended or lineage == key.lineage)):
            found.append(OtherStream(opening, rows, ended, common[0]))
    return sorted(found, key=lambda each: each.opening.committed_at)


async def replaces(sink: Sink | Places, key: SinkKey) -> bool:
    """Whether this generation replaces those before it for readers (see `shown`). A hint.

    Raises:
        SparkonceError: as for `Sink.find`.
    """
    slot = await sink.find(key)
    if slot is None or slot.on_rerun is not OnRerun.REPLACE:
        return False
    return slot.stream is None or (await walk(sink, key, slot)).ended


def places(key: SinkKey, folders: Sequence[str]) -> list[SinkKey]:
    """The batches of a stream among folders named after sink keys."""
    names = [folder.rpartition("/")[2] for folder in folders]
    numbers = [layout.batch_of(name) for name in names if layout.lineage_of(name) == (key.lineage, key.generation)]
    return [place(key, number) for number in numbers if number is not None]


def shown(generations: Sequence[Sequence[Slot]]) -> list[Slot]:
    """The slots with rows that readers see of one output of a key, given its committed slots by generation in order.

    A generation with `onRerun: Replace` replaces the earlier ones once it is *complete*: its one slot is committed, or its stream has
    ended. Until then readers see the earlier rows, because a rerun that has just begun must not shrink the table. A first generation is
    visible while its stream grows, and so are generations with `onRerun: Append`."""
    full = [slots for slots in generations if any(not is_opening(slot) for slot in slots)]
    first = max((at for at, slots in enumerate(full) if _replaces(slots) and _complete(slots)), default=0)
    seen: list[Slot] = []
    for at, slots in enumerate(full[first:]):
        if at == 0 or not _replaces(slots):
            seen += _with_rows(slots)
    return seen


def is_opening(slot: Slot) -> bool:
    """Whether the slot only binds a stream to its checkpoint, without being an effect."""
    return slot.stream is not None and slot.stream.part is StreamPart.OPENING


def _is_numbered(lane: LaneMark | None) -> bool:
    """Whether a place of a lane has batches, and is not only a writer's claim."""
    return lane is not None and lane.first <= lane.last


def _replaces(slots: Sequence[Slot]) -> bool:
    return slots[0].on_rerun is OnRerun.REPLACE


def _complete(slots: Sequence[Slot]) -> bool:
    return any(slot.stream is None or slot.stream.part is StreamPart.END for slot in slots)


def _with_rows(slots: Sequence[Slot]) -> list[Slot]:
    """The slots with rows of one generation; for a stream that ended without rows its end, which has the schema of the empty table. Of a
    lane also batches without rows: a range of its numbers is whole with them only."""
    plain = [slot for slot in slots if slot.stream is None]
    parts = sorted((slot for slot in slots if slot.stream is not None), key=lambda slot: mark(slot).last_batch or 0)
    batches = [
        slot for slot in parts if mark(slot).part is StreamPart.BATCH and (slot.data_schema or _is_numbered(slot.lane))
    ]
    return plain + (batches or [slot for slot in parts if mark(slot).part is StreamPart.END])
