"""What an output must do so that it has at most one committed effect per (key, output, generation).

A *slot* is the decision of one attempt at one output: `committed` or `closed`, created once, never changed. Rule R: an attempt
commits in slot t only after every lower slot is filled and none is committed; it fills empty lower ones with `closed`. So at most
one slot of a sink key is ever committed, and an attempt that was taken over finds its slot closed, at the output itself. No clock,
lease or lock takes part.

"I looked and it was not there" is not evidence: `probe` is a hint. Only `fence`, which closes what is open below a token, may be
answered with "nothing", and then that is final for those tokens.

No Spark import outside `stage`: owners and settle runs use the rest without a JVM.
Source: research notes on exactly-once output; Kleppmann's fencing argument, with the check inside the output's own store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from sparkonce.model.record import Value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLOT_SCHEMA = 1
LISTED_SCHEMA = 2
"""Of a slot whose files stand in a list beside it: a reader that knows schema 1 alone must not take it for an empty one."""
STREAM_SCHEMA = 3
"""Of a slot in a stream's chain: it means what it means only together with the others."""
FILES_IN_SLOT = 32
"""Files that a slot names itself. A slot is sealed whole in the ledger, whose values are small, and goes whole into a table's commit."""


class OnRerun(StrEnum):
    REPLACE = "Replace"
    APPEND = "Append"


class SinkKey(Value):
    """Identity of one effect."""

    key_hash: str
    output: str
    generation: int
    batch: int | None = None
    """Of a stream: each micro-batch is an effect of its own."""

    @property
    def lineage(self) -> str:
        """The same for all generations of one output of a key: what a rerun replaces."""
        return f"{self.key_hash}-{self.output}"

    def __str__(self) -> str:
        batch = "" if self.batch is None else f"-b{self.batch}"
        return f"{self.lineage}-g{self.generation}{batch}"


class SlotState(StrEnum):
    COMMITTED = "committed"
    CLOSED = "closed"


class DataFile(Value):
    path: str
    """Relative to the table, with `/`."""
    rows: int
    bytes: int
    digest: str
    """Algorithm and hex digest of what identifies the file's content."""


class Listing(Value):
    """Where the files of a slot are named, when they are too many to stand in it: a create-once object in the output's own store."""

    path: str
    """Relative to the table, with `/`. Its content is the JSON list of the data files."""
    digest: str
    """SHA-256 (hex) of that content."""
    files: int
    bytes: int
    """Of all the files together."""


class StreamPart(StrEnum):
    """What a committed slot is in a stream's chain."""

    OPENING = "opening"
    """Under the sink key without a batch: binds the stream to one checkpoint. It is no effect."""
    BATCH = "batch"
    END = "end"
    """In the place of the batch after the last one: nothing comes after it. It is the stream's result."""


class StreamMark(Value):
    """Of a committed slot of a stream: its place in the chain, and all that stands there up to it (see `sparkonce.sink.stream`)."""

    part: StreamPart
    query_id: str
    """Of the checkpoint, as Spark drew it: another checkpoint is another query."""
    first_batch: int
    last_batch: int | None = None
    """The newest batch that is committed once this slot stands; None before the first."""
    input: str = ""
    """SHA-256 (hex) of the checkpoint's plan of this batch: the same number with another plan holds other rows."""
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    files: int = 0


class Slot(Value):
    """One decision, as it stands in the output. Its bytes are canonical JSON, so that a roll-forward writes the same ones."""

    schema_: int = Field(default=SLOT_SCHEMA, alias="schema")
    state: SlotState
    sink_key: str
    token: int
    nonce: str = ""
    """Drawn per write call: it alone proves "my own commit"."""
    fingerprint: str = ""
    files: tuple[DataFile, ...] = ()
    """Empty where `listing` is set; `sink.listing.files_of` returns them in either case."""
    listing: Listing | None = None
    rows: int = 0
    on_rerun: OnRerun = OnRerun.REPLACE
    data_schema: str = ""
    """Spark's JSON schema: a reader of an empty table needs it."""
    table: str | None = None
    """Identity of the table that it was staged for, where tables have one (Delta, Iceberg): a table that was dropped and made anew is
    another one, to which a sealed slot is never rolled forward."""
    partition_by: tuple[str, ...] | None = None
    """Columns that its folders are named after and its files lack, where a table must be told (Delta)."""
    merge_schema: bool | None = None
    """Whether its commit may add columns to the table: whoever rolls it forward must know, too."""
    stream: StreamMark | None = None
    """Where the slot is a part of a stream."""
    application: str = ""
    """Spark's application id, for a person."""
    committed_at: float = 0.0
    """Unix seconds of the writer's clock; decides nothing."""
    closed_by: str = ""

    @property
    def bytes(self) -> int:
        return self.listing.bytes if self.listing else sum(f.bytes for f in self.files)

    @property
    def file_count(self) -> int:
        return self.listing.files if self.listing else len(self.files)


@dataclass(frozen=True)
class Committed:
    """This very slot stands in the output (also when it stood there already: a lost reply, a roll-forward)."""

    slot: Slot


@dataclass(frozen=True)
class AlreadyCommitted:
    """Another attempt, or another write of this one, committed the sink key; `slot` is what duplicates get."""

    slot: Slot


@dataclass(frozen=True)
class FencedOff:
    """The slot is closed: this token can never commit."""

    slot: Slot


@dataclass(frozen=True)
class Conflicting:
    """The sink key is committed under another fingerprint."""

    slot: Slot


@dataclass(frozen=True)
class Stuck:
    """The slot can never be committed although nothing fences it: the table was dropped, or changed so that the files do not fit.

    Nothing of it is visible. A sealed slot that is stuck leaves its transaction half done: a person decides (Held)."""

    slot: Slot
    why: str
    """One sentence: what is wrong, where, what to do."""


Decision = Committed | AlreadyCommitted | FencedOff | Conflicting | Stuck


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How one write lays out its rows; no part of what the key is for."""

    partition_by: tuple[str, ...] = ()
    """Columns that folders are named after. A table that exists keeps its own; other columns are then refused."""
    merge_schema: bool = False
    """Adds new columns to a table that exists. Slot logs merge when they are read, whatever this says."""


PLAIN = WriteOptions()


class Evidence(StrEnum):
    PRESENT = "present"
    REPLACED = "replaced"
    """A later generation's rows stand in its place."""
    GONE = "gone"
    """The slot, or a file it names, is not there any more."""
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Swept:
    folders: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A `DataFile` as an inventory keeps it: there are as many of them as the table has files, so each is as small as it can be."""

    path: str
    rows: int
    bytes: int
    digest: str

    @staticmethod
    def all_of(files: Iterable[DataFile]) -> tuple[CommittedFile, ...]:
        return tuple(CommittedFile(file.path, file.rows, file.bytes, file.digest) for file in files)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One commit that stands in a table, as its evidence shows it."""

    slot: Slot
    files: tuple[CommittedFile, ...]
    """Of the slot, wherever they are named."""
    commit: str
    """What a person finds it by: the slot's path, the table's version or snapshot."""
    visible: bool
    """Readers see its rows; otherwise a later generation replaced them."""


@dataclass(frozen=True, kw_only=True)
class StagedFolder:
    """What one write call staged."""

    path: str
    """Relative to the table, with `/`."""
    sink_key: str
    token: int
    nonce: str
    files: int
    bytes: int
    unreachable: bool = False
    """Nobody can commit it any more (its token is closed, or another write is committed): `sweep` deletes it."""
    modified: float = 0.0
    """Unix seconds, the store's clock: when its newest object was written; 0 where that is not known. Decides nothing."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """A table as a listing shows it at one moment: jobs that commit meanwhile may be seen in part."""

    kind: str
    uri: str
    effects: tuple[Effect, ...]
    staged: tuple[StagedFolder, ...]
    """All of them, those of committed slots too."""
    live: tuple[str, ...]
    """Paths of the files whose rows readers see, as often as they see them."""
    unreadable: tuple[str, ...] = ()
    """A sentence for each piece of evidence that does not parse."""
    commits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Sink key -> each commit of it, for a person, where the table's own history tells of more than one write."""
    location: str = ""
    """URL that the paths are below, where `uri` is none (the name of a table in a catalog)."""


class Sink(Protocol):
    """One output of one job. All calls but `stage` are safe to repeat and safe to interleave with those of any other process.

    OutputUnavailable: unknown, unless said otherwise. OutputCorrupt: a slot does not parse (it exists)."""

    name: str
    kind: str
    uri: str

    async def check(self) -> None:
        """Start-up probe: OutputUnsafe when the store ignores create-if-absent, OutputUnavailable when it cannot be written."""
        ...

    async def find(self, key: SinkKey) -> Slot | None:
        """The committed slot of any token; None is only a hint."""
        ...

    async def probe(self, key: SinkKey, slot_digest: str | None) -> Evidence:
        """Whether a recorded result still stands (a hint for replays; lists, never writes)."""
        ...

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str) -> Slot | None:
        """Bars every token below `token` for ever; the committed slot of any token, if there is one. None is final for the tokens
        below. The caller compares the slot's fingerprint."""
        ...

    def stage(
        self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str, options: WriteOptions = PLAIN
    ) -> Slot:
        """Runs the DataFrame into a private folder and returns the slot that would commit it. RowsLost when the count differs; Fenced
        when it failed and its slot was closed meanwhile (its files may have been swept under it). InvalidInput, before the DataFrame
        runs, when its columns do not fit the table."""
        ...

    async def commit(self, key: SinkKey, slot: Slot) -> Decision:
        """Rule R, then create-if-absent (a table: one commit that fails if any other came in between). Also rolls a sealed slot forward."""
        ...

    async def abort(self, key: SinkKey, slot: Slot) -> Slot:
        """Closes the slot first, then deletes its staging folder only if that closed it. Returns what stands in the slot."""
        ...

    async def discard(self, key: SinkKey, slot: Slot) -> None:
        """Deletes the staging folder of a write that never sent a commit and never can (nothing sealed it)."""
        ...

    async def inventory(self) -> Inventory:
        """Everything that stands in the table and in its staging, of all keys: what an audit compares. Reads, never writes."""
        ...

    async def sweep(self, key: SinkKey, *, more: bool = False) -> Swept:
        """Deletes staging that can never be committed: folders of closed slots and, once a slot of the key is committed, every folder
        but its own (rule R).

        more: other keys of the table are swept right after; what is done for the whole table is left to the last."""
        ...


def slot_digest(data: bytes) -> str:
    """SHA-256 of a slot's bytes, as results record it."""
    return hashlib.sha256(data).hexdigest()
