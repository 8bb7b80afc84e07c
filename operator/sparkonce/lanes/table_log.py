"""The log of a lane in a slot log: a chain of create-once places (`sink.stream`), whose batches come from a writer.

    <hash>-lane-g1          the opening
    <hash>-lane-g1-b<n>     place n: a writer's claim, or batches with their position
    <hash>-lane-g1-b<k+1>   after `PLACES` places: the end of this generation; the lane goes on in the next one
    <hash>-lane-g2 ...

The chain rule makes it safe: token s commits in a place only after it has seen the place before it committed, by a token u <= s, and every
slot of its own place from u to s - 1 closed. The token is the writer's epoch. No ledger, lease or clock takes part.

**Acquiring writes a place of its own**, a claim without batches, by the token above the last one. It is decided like any place: of two
writers that take one token, one wins the create, and the other, which sees it, takes the token above. So whichever acquires last owns the
lane, at once, even if neither appends; and it knows the position as of its claim, to which nothing of an earlier writer can be added.
Rejected: closing the slots below a token and leaving its own empty. A second writer would then not see the first one, take the same token,
and lose or win by chance at its first append.

**Trimming hides generations from readers**, by a slot beside the chain:

    <hash>-trim-g<n>        readers see no place of generation n or of those before

It is created once, after the generation has ended, and hides its places, all at once (`sink.slotlog.visibility`). They stay, because the
chain rule needs them: a writer that wakes must find its own. Only their files go.

**The opening of generation g + 1 is the place after the end of generation g**, and the chain rule is applied to it as to any other place
(slots below the end's token need no closing). Generations keep searches for the end of the chain short.

Uploads go ahead of commits: the next places are known, because a place that another writer takes ends this writer. Files of a writer that
was fenced stay in their staging folders until `sparkonce sweep`.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkonce import blocking
from sparkonce.errors import InvalidInput, LaneRetired, OutputCorrupt, OutputUnavailable
from sparkonce.failpoints import hit
from sparkonce.lanes import rows as arrow
from sparkonce.lanes.keyed import key_names, keys_text, refuse_other_keys
from sparkonce.lanes.naming import lane_name, position_text
from sparkonce.lanes.protocol import AppendKind, AppendOutcome, LaneEntry, LaneOwner, LanePlace, RowBatch
from sparkonce.model.identity import hash_of
from sparkonce.model.spec import OnRerun
from sparkonce.sink import stream
from sparkonce.sink.objects.protocol import TableObjects, create_heard
from sparkonce.sink.protocol import (
    FILES_IN_SLOT,
    KEYED_SCHEMA,
    LANE_SCHEMA,
    TRIMMED_SCHEMA,
    AlreadyCommitted,
    CommitOutcome,
    Committed,
    Conflicting,
    FencedOff,
    LaneMark,
    SinkKey,
    Slot,
    SlotState,
    StreamMark,
    StreamPart,
)
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.reader import merged
from sparkonce.sink.slotlog.sink import SlotLogSink
from sparkonce.sink.slotlog.snapshot import committed_slots
from sparkonce.sink.slotlog.visibility import path_of, trimmed
from sparkonce.sink.staging import file_of

if TYPE_CHECKING:
    import pyarrow as pa

PLACES = 10_000
"""Places of one generation."""
POSITION_LIMIT = 4096
"""Bytes of a position's JSON."""
LINGER = 5.0
"""Fluss has 0.1 s. In a table each place is at least one file, and thousands of small files make every reader slow."""
LANE = "lane"
"""Output of a lane's sink keys."""
DOMAIN = "sparkonce/lane/v1"
"""Domain tag of their hashes: a lane and a job never have one sink key."""
NAME_LIMIT = 256
"""Characters of the name of who retired a lane."""
REMOVALS = 8
"""Folders that are deleted at once: each takes several round trips."""
CLAIM_TRIES = 1_000
"""Of one `acquire`: each failure is another writer that acquired the lane meanwhile."""

TRIM = "trim"
"""Output of the sink keys of the slots that trim a lane."""

_OPENING = re.compile(rf"[0-9a-f]{{64}}-{LANE}-g1")


class _LaneChain(NamedTuple):
    key: SinkKey
    """Of its opening."""
    chain: stream.Chain


@dataclass(frozen=True, eq=False)
class _TablePlace(LanePlace):
    generation: int
    number: int
    nonce: str
    taken_at: float
    """As `LaneEntry.committed_at`: fixed, so that a retry sends the same bytes."""


@dataclass(frozen=True)
class Trim:
    """Generations of a lane that readers need not see any more."""

    generation: int
    """The last one."""
    first: int
    """Number of their first batch, before which readers see none already."""
    last: int
    """Number of their last batch."""


class TableLog:
    """A `LaneLog` in the table with these objects.

    name: as an idempotency key, 1 to 255 visible ASCII characters. keys: as `LaneMark.keys`; None takes those that the lane has.

    Raises:
        InvalidInput: not a name, or not keys.
    """

    batches_limit = FILES_IN_SLOT
    position_limit = POSITION_LIMIT
    linger = LINGER

    def __init__(
        self, objects: TableObjects, name: str, *, places: int = PLACES, keys: Sequence[str] | None = None
    ) -> None:
        self.name = lane_name(name)
        self._keys = None if keys is None else key_names(keys)
        self.uri = objects.uri
        self._objects, self._places = objects, places
        self._hash = hash_of(DOMAIN, self.name)
        self._sink = SlotLogSink(objects, name=LANE, on_rerun=OnRerun.APPEND)
        self._epoch = 0
        self._at: _LaneChain | None = None
        """As far as it is known here; None before the lane is acquired."""
        self._fenced = False
        """No place of this epoch is committed any more."""
        self._generation_next, self._number_next = 1, 0

    # What a writer calls.

    def packed(self, table: pa.Table) -> pa.Table:
        return table

    def encoded(self, tables: Sequence[pa.Table], known: pa.Schema) -> RowBatch:
        return arrow.parquet_batch(tables, known)

    def acquire(self) -> LaneOwner:
        blocking.run(self._sink.check())
        found = self._newest()
        token = 0
        if found is None:
            self._refuse_other_lanes()
        for _ in range(CLAIM_TRIES):
            if found is not None:
                self._refuse_other_keys(_lane(found.chain.last))
            if found is None or found.chain.ended:
                found = self._opened(found, token)
                continue
            token = max(token, found.chain.last.token + 1)
            claim = self._claim(found, token)
            hit("lanes.claim.before")
            outcome = blocking.run(stream.commit(self._sink, found.key, found.chain, claim))
            match outcome:
                case Committed(slot):
                    hit("lanes.claim.after")
                    return self._own(_LaneChain(found.key, found.chain.followed_by(slot)))
                case FencedOff(slot):
                    token = slot.token + 1
                case AlreadyCommitted(slot) | Conflicting(slot):
                    found = _LaneChain(found.key, found.chain.followed_by(slot))
                case _:
                    raise OutputUnavailable(f"the lane {self.name} of {self.uri} cannot be acquired now; try again")
        raise OutputUnavailable(
            f"the lane {self.name} of {self.uri} was acquired {CLAIM_TRIES} times by other writers meanwhile; give each writer its own name"
        )

    def refuse_columns(self, data_schema: str) -> None:
        slots = blocking.run(committed_slots(self._objects))
        schemas = dict.fromkeys((slot.data_schema, path_of(slot)) for slot in slots if slot.data_schema)
        merged([*((path, text) for text, path in schemas), ("these rows", data_schema)], where=self.uri)

    def tidy(self) -> None:
        blocking.run(self._sink.snapshot())

    def next_place(self, batches: Sequence[RowBatch], *, first: int, position: Any) -> LanePlace:
        if len(batches) > self.batches_limit:
            raise ValueError(f"{len(batches)} batches in one place")
        if self._number_next >= self._places:
            self._generation_next, self._number_next = self._generation_next + 1, 0
        generation, number = self._generation_next, self._number_next
        self._number_next += 1
        return _TablePlace(
            name=f"g{generation}-b{number}",
            first=first,
            batches=tuple(batches),
            position=position,
            generation=generation,
            number=number,
            nonce=secrets.token_hex(16),
            taken_at=time.time(),
        )

    def upload(self, place: LanePlace, number: int) -> None:
        path, data = self._path(place, number), place.batches[number].data
        if not data:
            return
        if not blocking.run(create_heard(self._objects, path, data)):  # ours: only this writer uses the folder
            if blocking.run(self._objects.get(path)) != data:
                raise OutputUnavailable(f"{self._objects.where(path)} holds other bytes; try again")
            blocking.run(self._objects.persist([path]))

    def commit(self, place: LanePlace) -> AppendOutcome:
        held = self._held()
        if place.first <= _lane(held.chain.last).last:
            return self._already(place)
        if self._fenced:
            return AppendOutcome(AppendKind.FENCED)
        if place.first > _lane(held.chain.last).last + 1:
            return AppendOutcome(AppendKind.GAP)
        if isinstance(place, _TablePlace) and place.generation > held.key.generation:
            if (refusal := self._roll_over()) is not None:
                self._fenced = True
                return refusal
            held = self._held()
        slot = self._slot(held, place)
        hit("lanes.commit.before")
        outcome = blocking.run(stream.commit(self._sink, held.key, held.chain, slot))
        hit("lanes.commit.after")
        return self._decided(outcome)

    def abandon(self, place: LanePlace) -> AppendOutcome:
        held = self._held()
        if place.first <= _lane(held.chain.last).last:
            return self._already(place)
        slot = self._slot(held, place)
        found = blocking.run(self._sink.abort(stream.place(held.key, held.chain.next), slot))
        if found.state is SlotState.COMMITTED and found.nonce == slot.nonce:
            return self._decided(Committed(found))
        self._fenced = True
        return AppendOutcome(AppendKind.FENCED)

    def entries(self) -> Iterator[LaneEntry]:
        places = []
        for slot in blocking.run(committed_slots(self._objects)):
            key = SinkKey.parse(slot.sink_key)
            if key is not None and key.batch is not None and (key.key_hash, key.output) == (self._hash, LANE):
                places.append((key.generation, key.batch, slot))
        for _, _, slot in sorted(places, key=lambda each: each[:2]):
            yield entry_of(slot)

    def retire(self, *, by: str) -> LaneEntry:
        """As `LaneLog.retire`. by: of whom it was asked, for the record."""
        self.acquire()
        held = self._held()
        end = self._end(held, retired=True).model_copy(update={"application": by[:NAME_LIMIT]})
        outcome = blocking.run(stream.commit(self._sink, held.key, held.chain, end))
        if isinstance(outcome, Committed):
            return entry_of(outcome.slot)
        raise OutputUnavailable(
            f"the lane {self.name} of {self.uri} was acquired by another writer meanwhile; try again"
        )

    def trimmed(self) -> int:
        """Number of the last batch that readers do not see any more; 0: they see all."""
        return self._trimmed()[1]

    def _trimmed(self) -> tuple[int, int]:
        """The last generation that was trimmed, and the number of its last batch."""
        found = trimmed(blocking.run(committed_slots(self._objects))).get(self._hash)
        return (0, 0) if found is None else (found[0], found[1].last)

    def trimmable(self, taken: int) -> Trim | None:
        """Finds the ended generations that readers still see and whose last batch is at most `taken`; None if no generation qualifies.

        Raises:
            InvalidInput: the lane has keys.
        """
        found = self._newest()
        if found is None:
            return None
        if keys := _lane(found.chain.last).keys:
            raise InvalidInput(
                f"the lane {self.name} of {self.uri} has the keys {', '.join(keys)}, and the last row of a key may be in any of its "
                "batches, so none can be trimmed"
            )
        before, seen_from = self._trimmed()
        generation, last = found.key.generation, _lane(found.chain.last).last
        if not found.chain.ended:
            generation, last = generation - 1, self._last_before(found.chain.opening)
        while generation > before and last > taken:
            opening = blocking.run(self._sink.find(self._generation(generation)))
            assert opening is not None  # slots never vanish
            generation, last = generation - 1, self._last_before(opening)
        return Trim(generation, seen_from + 1, last) if generation > before else None

    @staticmethod
    def _last_before(opening: Slot) -> int:
        """Number of the last batch of the generations before this opening."""
        return _lane(opening).first - 1

    def trim(self, trim: Trim) -> None:
        """Hides the generations from readers, for ever; of two calls at once one does it. Whoever calls it knows that no reader needs them.

        Raises:
            OutputUnavailable: unknown whether it took effect; it may be repeated.
        """
        key = SinkKey(key_hash=self._hash, output=TRIM, generation=trim.generation)
        slot = Slot(
            state=SlotState.COMMITTED,
            sink_key=str(key),
            token=1,
            nonce=secrets.token_hex(16),
            fingerprint=self._hash,
            on_rerun=OnRerun.APPEND,
            committed_at=time.time(),
        )
        mark = LaneMark(name=self.name, first=trim.last + 1, last=trim.last, trims=True)
        stream_mark = StreamMark(part=StreamPart.END, query_id=f"lane {self._hash[:20]}", first_batch=0, lane=mark)
        slot = slot.model_copy(update={"schema_": TRIMMED_SCHEMA, "stream": stream_mark})
        hit("lanes.trim.before")
        outcome = blocking.run(self._sink.commit(key, slot))
        if not isinstance(outcome, Committed | AlreadyCommitted | Conflicting):
            raise OutputUnavailable(f"the lane {self.name} of {self.uri} cannot be trimmed now; try again")
        hit("lanes.trim.after")

    def remove_trimmed(self) -> int:
        """Deletes the files of the places that readers do not see any more. Returns their bytes. May be repeated, and by several at once.

        Raises:
            OutputUnavailable: some may be left.
        """
        generation, _ = self._trimmed()
        folders = []
        for folder in blocking.run(self._objects.folders(layout.DATA)):
            key = SinkKey.parse(folder.rpartition("/")[2])
            if key is not None and (key.key_hash, key.output) == (self._hash, LANE) and key.generation <= generation:
                folders.append(folder)
        with ThreadPoolExecutor(REMOVALS) as pool:
            return sum(pool.map(self._removed, folders))

    def _removed(self, folder: str) -> int:
        size = sum(each.bytes for each in blocking.run(self._objects.list(folder)))
        blocking.run(self._objects.delete_folder(folder))
        hit("lanes.trim.removed")
        return size

    def newest(self) -> LaneEntry | None:
        """The last place that is committed now; None if the lane does not exist."""
        found = self._newest()
        return None if found is None else entry_of(found.chain.last)

    # The chain.

    def _generation(self, generation: int) -> SinkKey:
        return SinkKey(key_hash=self._hash, output=LANE, generation=generation)

    def _held(self) -> _LaneChain:
        if self._at is None:
            raise RuntimeError("the lane was not acquired")
        return self._at

    def _own(self, found: _LaneChain) -> LaneOwner:
        self._at, self._fenced = found, False
        last = found.chain.last
        self._epoch, self._generation_next, self._number_next = last.token, found.key.generation, found.chain.next
        lane = _lane(last)
        return LaneOwner(
            epoch=last.token,
            last=lane.last,
            position=_position(lane),
            data_schema=last.data_schema,
            keys=lane.keys or (),
        )

    def _refuse_other_keys(self, lane: LaneMark) -> None:
        """Raises: InvalidInput: this lane has other keys than its writer gives."""
        refuse_other_keys(self._keys, lane.keys or (), lane=f"the lane {self.name} of {self.uri}", other="path")

    def _refuse_other_lanes(self) -> None:
        """Raises: InvalidInput: a lane of the table has other keys than this one would have, so that no reader could tell the last row of
        each key."""
        other = next(_lanes(self._objects), None)  # the rest have the same
        if other is not None and (other.keys or ()) != (self._keys or ()):
            given = f"gives keys={list(self._keys)}" if self._keys else "gives none"
            raise InvalidInput(
                f"the lane {other.name} of {self.uri} {keys_text(other.keys or ())}, and the writer of {self.name} {given}; all lanes of a "
                "table have the same: give these, or write to another path"
            )

    def _newest(self) -> _LaneChain | None:
        """The newest generation that was opened: generations follow each other without a gap."""
        found = blocking.run(stream.furthest(lambda number: self._sink.find(self._generation(number)), first=1))
        if found is None:
            return None
        generation, opening = found
        key = self._generation(generation)
        return _LaneChain(key, blocking.run(stream.walk(self._sink, key, opening)))

    def _opened(self, before: _LaneChain | None, token: int) -> _LaneChain:
        """The generation after an ended one, or the first one; opened here unless it is open.

        Raises:
            LaneRetired: the one before was ended for ever.
        """
        last = before.chain.last if before else None
        if last is not None and _lane(last).retired:
            raise LaneRetired(
                f"the lane {self.name} of {self.uri} was retired by {last.application or 'its owner'}; write to another name"
            )
        key = self._generation(before.key.generation + 1 if before else 1)
        lowest = last.token if last else 1
        token = max(token, lowest)
        while True:
            opening = self._opening(key, token, last)
            outcome = blocking.run(self._sink.commit(key, opening, lowest=lowest))
            match outcome:
                case Committed(slot) | AlreadyCommitted(slot) | Conflicting(slot):
                    return _LaneChain(key, blocking.run(stream.walk(self._sink, key, slot)))
                case FencedOff(slot):
                    token = slot.token + 1
                case _:
                    raise OutputUnavailable(f"the lane {self.name} of {self.uri} cannot be opened now; try again")

    def _roll_over(self) -> AppendOutcome | None:
        """Ends the generation and opens the next one, as the owner. Returns None, or why it may not."""
        held = self._held()
        if not held.chain.ended:
            end = self._end(held, retired=False)
            found = blocking.run(stream.commit(self._sink, held.key, held.chain, end)).slot
            if found.token != self._epoch or found.state is not SlotState.COMMITTED:
                return AppendOutcome(AppendKind.FENCED)  # else it is this end, or that of a try without an answer
            self._at = held = _LaneChain(held.key, held.chain.followed_by(found))
        hit("lanes.rolled")
        opened = self._opened(held, self._epoch)
        if opened.chain.last.token != self._epoch or opened.chain.last is not opened.chain.opening:
            return AppendOutcome(AppendKind.FENCED)
        self._at = opened
        return None

    # Slots.

    def _mark(self, last: Slot | None, *, retired: bool | None = None) -> LaneMark:
        """Of a place without batches after this one."""
        before = LaneMark(name=self.name, first=1, last=0, keys=self._keys or None) if last is None else _lane(last)
        return before.model_copy(update={"first": before.last + 1, "digests": (), "retired": retired})

    def _opening(self, key: SinkKey, token: int, last: Slot | None) -> Slot:
        slot = stream.opening_of(
            key,
            token,
            query_id=f"lane {self._hash[:20]}",
            first_batch=0,
            fingerprint=self._hash,
            on_rerun=OnRerun.APPEND,
        )
        return _laned(slot, self._mark(last), data_schema=last.data_schema if last else "")

    def _claim(self, found: _LaneChain, token: int) -> Slot:
        slot = stream.empty_batch(found.chain, found.key, found.chain.next, token, plan="")
        return _laned(slot, self._mark(found.chain.last), data_schema=found.chain.last.data_schema)

    def _end(self, held: _LaneChain, *, retired: bool) -> Slot:
        slot = stream.end_of(held.chain, held.key, self._epoch, by="")
        mark = self._mark(held.chain.last, retired=retired or None)
        return _laned(slot, mark, data_schema=held.chain.last.data_schema)

    def _slot(self, held: _LaneChain, place: LanePlace) -> Slot:
        assert isinstance(place, _TablePlace)  # of `next_place`
        batches = place.batches
        before = _lane(held.chain.last)
        bare = Slot(
            state=SlotState.COMMITTED,
            sink_key=str(self._sink_key(place)),
            token=self._epoch,
            nonce=place.nonce,
            fingerprint=self._hash,
            on_rerun=OnRerun.APPEND,
            files=tuple(
                file_of(self._path(place, number), batch.data, rows=batch.rows)
                for number, batch in enumerate(batches)
                if batch.data
            ),
            rows=sum(batch.rows for batch in batches),
            committed_at=place.taken_at,
        )
        slot = stream.batch_of(held.chain, held.chain.next, bare, plan="")
        position = before.position if place.position is None else position_text(place.position, POSITION_LIMIT)
        digests = tuple(batch.digest for batch in batches)
        mark = LaneMark(
            name=self.name, first=place.first, last=place.last, position=position, digests=digests, keys=before.keys
        )
        schemas = [batch.data_schema for batch in batches if batch.data_schema]
        return _laned(slot, mark, data_schema=schemas[-1] if schemas else held.chain.last.data_schema)

    def _sink_key(self, place: LanePlace) -> SinkKey:
        assert isinstance(place, _TablePlace)  # of `next_place`
        return stream.place(self._generation(place.generation), place.number)

    def _path(self, place: LanePlace, number: int) -> str:
        assert isinstance(place, _TablePlace)  # of `next_place`
        folder = layout.staging_folder(self._sink_key(place), self._epoch, place.nonce)
        return f"{folder}/{place.first + number:010d}.parquet"

    # Outcomes.

    def _decided(self, outcome: CommitOutcome) -> AppendOutcome:
        if not isinstance(outcome, Committed):
            self._fenced = True
            return AppendOutcome(AppendKind.FENCED)
        held = self._held()
        self._at = _LaneChain(held.key, held.chain.followed_by(outcome.slot))
        return AppendOutcome(AppendKind.APPENDED, entry_of(outcome.slot))

    def _already(self, place: LanePlace) -> AppendOutcome:
        """The outcome of a place whose first number is in the log."""
        found = self._with_sequence(place.first)
        own = tuple(batch.digest for batch in place.batches)
        at = place.first - found.first
        same = found.digests[at : at + len(own)] == own
        return AppendOutcome(AppendKind.DUPLICATE if same else AppendKind.CONFLICT, found)

    def _with_sequence(self, sequence: int) -> LaneEntry:
        """The place with the batch of this number, which is in the log: found by halving, since numbers grow along the chain."""
        generation = self._held().key.generation
        while True:
            key = self._generation(generation)
            opening = blocking.run(self._sink.find(key))
            assert opening is not None  # slots never vanish
            if _lane(opening).last < sequence:
                break
            generation -= 1

        def find(number: int) -> Slot:
            slot = blocking.run(self._sink.find(stream.place(key, number)))
            assert slot is not None  # slots never vanish
            return slot

        chain = blocking.run(stream.walk(self._sink, key, opening))
        places = range(stream.mark(opening).first_batch, chain.next)
        return entry_of(find(places[bisect_left(places, sequence, key=lambda number: _lane(find(number)).last)]))


def lanes_of(objects: TableObjects) -> list[str]:
    """Names of the lanes of a table, in order.

    Raises:
        OutputUnavailable: the store did not answer.
        OutputCorrupt: a slot does not parse.
    """
    return sorted(lane.name for lane in _lanes(objects))


def _lanes(objects: TableObjects) -> Iterator[LaneMark]:
    """What the openings of the lanes of a table say. Errors as `lanes_of`."""
    sink = SlotLogSink(objects, name=LANE, on_rerun=OnRerun.APPEND)
    for folder in blocking.run(objects.folders(layout.SLOTS)):
        name = folder.rpartition("/")[2]
        if _OPENING.fullmatch(name) and (key := SinkKey.parse(name)) is not None:
            slot = blocking.run(sink.find(key))
            lane = slot.lane if slot is not None else None
            if lane is not None and hash_of(DOMAIN, lane.name) == key.key_hash:  # else another program wrote it
                yield lane


def entry_of(slot: Slot) -> LaneEntry:
    """The place that a slot is.

    Raises:
        ValueError: it is not part of a lane.
    """
    lane = _lane(slot)
    key = SinkKey.parse(slot.sink_key)
    return LaneEntry(
        place=key.run if key else slot.sink_key,
        epoch=slot.token,
        first=lane.first,
        last=lane.last,
        rows=slot.rows,
        bytes=slot.bytes,
        position=_position(lane),
        digests=lane.digests,
        files=tuple(file.path for file in slot.files),
        committed_at=slot.committed_at,
        retired=bool(lane.retired),
        keys=lane.keys or (),
    )


def _position(lane: LaneMark) -> Any:
    """Raises: OutputCorrupt: another program wrote the place."""
    try:
        return json.loads(lane.position) if lane.position else None
    except (ValueError, RecursionError):
        raise OutputCorrupt(
            f"the position of the lane {lane.name!r} after number {lane.last} is not JSON; restore that slot from a backup"
        ) from None


def _lane(slot: Slot) -> LaneMark:
    if slot.lane is None:
        raise ValueError(f"{slot.sink_key} is not part of a lane")
    return slot.lane


def _laned(slot: Slot, lane: LaneMark, *, data_schema: str) -> Slot:
    mark = stream.mark(slot).model_copy(update={"lane": lane})
    schema = KEYED_SCHEMA if lane.keys else LANE_SCHEMA
    return slot.model_copy(update={"schema_": schema, "stream": mark, "data_schema": data_schema})
