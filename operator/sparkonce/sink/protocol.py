"""The sink protocol: what an output must do to have at most one committed effect per (key, output, generation).

A *slot* is the decision of one attempt at one output: `committed` or `closed`, created once, never changed. Rule R: an attempt
commits in slot t only after every lower slot is filled and none is committed; it fills empty lower ones with `closed`. So at most
one slot of a sink key is ever committed, and an attempt that was superseded finds its slot closed, at the output itself. No clock,
lease or lock takes part.

Not finding a commit is no evidence that none will come: `probe` is a hint. Only the None of `fence`, which closes every empty slot below a
token, is final for those tokens.

Only `stage` imports Spark: operators and settle runs use the rest without a JVM.
Source: research notes on exactly-once output; Kleppmann's fencing argument, with the check inside the output's own store.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, Self

from pydantic import Field

from sparkonce.model.record import Value
from sparkonce.model.spec import OnRerun, Series, WriteMode, order_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLOT_SCHEMA = 1
LISTED_SCHEMA = 2
"""Schema of a slot whose files are in a separate list: a reader of schema 1 must refuse it, not read it as empty."""
STREAM_SCHEMA = 3
"""Schema of a slot in a stream's chain, which is meaningless without the other slots."""
GROUPED_SCHEMA = 4
"""Schema of a slot whose commit to a Delta or Iceberg table takes partition values from the names of `sink.groups`: a release that does not
know them would roll it forward with nulls. Its files may be in a separate list."""
REPLACING_SCHEMA = 5
"""Schema of a slot whose commit replaces rows of other keys and writers (`Slot.mode`), or is made in its order only (`Slot.place`): a
release that knows neither would append, or overwrite what is newer. Its files may be listed, and in folders of `sink.groups`."""
NATIVE_SCHEMA = 6
"""Schema of a slot in the chain of a native block (`StreamMark.native`), which a release that does not know them would end as a stream."""
BRANCH_SCHEMA = 7
"""Schema of a slot whose files are those of a native block on a branch (`Slot.branch`): a release that does not know them would let a rerun
remove them, with rows of others that they hold."""
OVERWRITING_SCHEMA = 8
"""Schema of a slot that replaces other slots of its slot log (`Slot.replaces`): a release that does not know it would show rows that the
table does not have any more."""
LANE_SCHEMA = 9
"""Schema of a slot in the chain of a lane (`StreamMark.lane`), which a release that does not know them would end as a stream."""
KEYED_SCHEMA = 10
"""Schema of a slot of a lane whose rows have keys (`LaneMark.keys`): a release that does not know them would append rows without."""
TRIMMED_SCHEMA = 11
"""Schema of a slot that trims a lane (`LaneMark.trims`): a release that does not know it would show rows whose files are gone."""
NEWEST_SCHEMA = TRIMMED_SCHEMA
FILES_IN_SLOT = 32
"""Maximum number of files named in the slot itself: the ledger, whose values are small, and a table's commit hold whole slots."""


_NUMBER = r"0|[1-9][0-9]{0,18}"
_SINK_KEY = re.compile(rf"([^-]+)-(.+)-g({_NUMBER})(?:-([bs])({_NUMBER}))?")


class SinkKey(Value):
    """Identity of one effect."""

    key_hash: str
    output: str
    generation: int
    batch: int | None = None
    """Number of a stream's micro-batch, which is an effect of its own; None for batch jobs and for a stream's opening."""
    native: bool = False
    """The batch is a statement of a native block (`sparkonce.driver.native`), which Spark commits itself."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The key whose text this is; None if it is not one. A key's hash contains no hyphen."""
        match = _SINK_KEY.fullmatch(text)
        if match is None:
            return None
        key_hash, output, generation, letter, batch = match.groups()
        return cls(
            key_hash=key_hash,
            output=output,
            generation=int(generation),
            batch=None if batch is None else int(batch),
            native=letter == "s",
        )

    @property
    def lineage(self) -> str:
        """Common to all generations of one output of a key: the unit that a rerun replaces."""
        return f"{self.key_hash}-{self.output}"

    @property
    def run(self) -> str:
        """Its name within the lineage."""
        batch = "" if self.batch is None else f"-{'s' if self.native else 'b'}{self.batch}"
        return f"g{self.generation}{batch}"

    @property
    def whole(self) -> SinkKey:
        """The key of the whole output: of the opening, if this is a place in a chain."""
        return self.model_copy(update={"batch": None, "native": False})

    def __str__(self) -> str:
        return f"{self.lineage}-{self.run}"


class SlotState(StrEnum):
    COMMITTED = "committed"
    CLOSED = "closed"


class DataFile(Value):
    path: str
    """Relative to the table, with `/`."""
    rows: int
    bytes: int
    digest: str
    """Algorithm and hex digest that identify the file's content (see `sink.staging`)."""


class Listing(Value):
    """The list of a slot's files when they are too many for the slot: a create-once object in the output's own store."""

    path: str
    """Relative to the table, with `/`. Its content is the JSON list of the data files."""
    digest: str
    """SHA-256 (hex) of that content."""
    files: int
    bytes: int
    """Total size of the files."""


class StreamPart(StrEnum):
    """Role of a committed slot in a stream's chain."""

    OPENING = "opening"
    """Stored under the sink key without a batch: binds the stream to one checkpoint. Not an effect."""
    BATCH = "batch"
    END = "end"
    """Stored in the place of the batch after the last one; nothing follows it. It is the stream's result."""


class StreamSource(Value):
    """What a stream reads, so that two streams of the same source are recognised (`same_source`)."""

    at: str
    """A folder as a qualified URL, a topic, a table, or a format with a digest of its options; readable, without credentials."""
    servers: tuple[str, ...] = ()
    """Kafka: the brokers named by the reader. Two lists with a common broker name one cluster."""
    part: str = ""
    """The part of it that is read, if the reader restricts it: a filter of file names, a partition. Empty: all of it."""

    def __str__(self) -> str:
        servers = f" at {','.join(self.servers)}" if self.servers else ""
        return f"{self.at}{f' [{self.part}]' if self.part else ''}{servers}"

    @property
    def digest(self) -> str:
        """Digest of `at` (32 hex digits): equal for all sources that may be the same."""
        return hashlib.sha256(self.at.encode()).hexdigest()[:32]


def same_source(a: StreamSource, b: StreamSource) -> bool:
    """Whether two streams that read these read some of the same rows."""
    return (
        a.at == b.at
        and not (a.servers and b.servers and set(a.servers).isdisjoint(b.servers))
        and not (a.part and b.part and a.part != b.part)
    )


class StreamOrigin(Value):
    """Where a stream's rows come from. Recorded in its opening; earlier releases recorded none."""

    key: str
    """The idempotency key as its owner writes it."""
    checkpoint: str
    """Location of the checkpoint, as Spark was given it."""
    sources: tuple[StreamSource, ...]


class LaneMark(Value):
    """What the chain of a lane says beside `StreamMark` (see `sparkonce.lanes`)."""

    name: str
    first: int
    """Sequence number of the first batch of this place."""
    last: int
    """Of the last one, in this place or before it; `first - 1` if this place has none, 0 if there is none at all."""
    position: str = ""
    """JSON, at most 4 KiB: the writer's position in its source after this place; empty if it never gave one."""
    digests: tuple[str, ...] = ()
    """SHA-256 (hex) of the batches of this place, in order; each is one file, or none where it has no rows."""
    retired: bool | None = None
    """Of an end: the lane takes no writer any more. Otherwise the next generation of the chain goes on."""
    trims: bool | None = None
    """Of a slot beside the chain: readers see no place of its generation, or of those before it, any more."""
    keys: tuple[str, ...] | None = None
    """Columns whose values name the thing that a row is about, the same for all places of the lane; None: its rows are about no thing."""


class StreamMark(Value):
    """Position of a committed slot in a stream's chain, with totals of the chain up to it (see `sparkonce.sink.stream`)."""

    part: StreamPart
    query_id: str
    """Spark's id of the query, stored in its checkpoint: another checkpoint is another query."""
    first_batch: int
    last_batch: int | None = None
    """Newest committed batch, this slot included; None before the first."""
    input: str = ""
    """SHA-256 (hex) of the checkpoint's plan of this batch: the same number with another plan contains other rows."""
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    files: int = 0
    origin: StreamOrigin | None = None
    """Of an opening only."""
    native: bool | None = None
    """True: the chain is a native block, and its batches are statements. `input` is then a digest of the statement, `rows` counts the rows
    that the statements inserted, updated or deleted, as Spark measured them, and `bytes` and `files` what they added and left."""
    statement: str | None = None
    """Of a statement: what it does (`MERGE`, `append`)."""
    lane: LaneMark | None = None
    """Set if the chain is a lane, whose batches come from a writer and not from a query."""

    @property
    def sources(self) -> tuple[StreamSource, ...]:
        """Sources that the opening records; empty if it records none."""
        return () if self.origin is None else self.origin.sources


class SeriesPlace(Value):
    """The place of a slot's key in its series (`spec.series`)."""

    series: str
    position: str
    allow_late: bool = False
    """Whether it may be committed after a later one."""
    skip_late: bool | None = None
    """Whether it is committed without rows after a later one (`skipping`); None: it is not. Not False, which would change the bytes of
    slots that were sealed by releases without it."""

    @property
    def order(self) -> int:
        return order_of(self.position)


class BranchMark(Value):
    """The branch of an Iceberg table on which a native block ran. Its slot's commit publishes it."""

    name: str
    start: str
    """Id of the snapshot of `main` at which it began; a text, because canonical JSON has no such numbers."""
    head: str
    """Id of its newest snapshot when the block ended; empty if the branch was gone."""
    statements: int
    location: str = ""
    """The table's location as the paths of the block's files spell it (Hadoop writes `file:/`); empty without files."""
    merges: bool | None = None
    """Whether a MERGE is among its statements. Iceberg records one that only inserts as an append, although it read the table."""


class NamedSlots(Value):
    """The list of the slots that a slot replaces when they are too many for it: a create-once object in the output's own store."""

    path: str
    """Relative to the table, with `/`. Its content is the JSON list of the slots' paths."""
    digest: str
    """SHA-256 (hex) of that content."""
    slots: int


class Replacement(Value):
    """What a slot replaces that overwrites a slot log (see `sparkonce.sink.slotlog.visibility`)."""

    order: int
    """Its place among the slots of the table that overwrite; of equal ones the sink key decides."""
    slots: tuple[str, ...] = ()
    """Paths of the slots that were visible when it was made. Empty where `listing` is set."""
    listing: NamedSlots | None = None


class Slot(Value):
    """One decision, as stored in the output: canonical JSON, so that a roll-forward writes the same bytes."""

    schema_: int = Field(default=SLOT_SCHEMA, alias="schema")
    state: SlotState
    sink_key: str
    token: int
    nonce: str = ""
    """Drawn per write call; only an equal nonce proves that a commit is our own."""
    fingerprint: str = ""
    files: tuple[DataFile, ...] = ()
    """Empty where `listing` is set; `sink.slotlog.layout.files_of` returns them in either case."""
    listing: Listing | None = None
    rows: int = 0
    on_rerun: OnRerun = OnRerun.REPLACE
    mode: WriteMode | None = None
    """What its commit replaces besides the generations before; None: nothing (Append)."""
    replaces: Replacement | None = None
    """Of a committed slot of a slot log with a mode: the slots that were visible just before it was created."""
    place: SeriesPlace | None = None
    """Set if the key is part of a series."""
    skipped: str | None = None
    """Position of its series that had been committed when this slot came: it has no rows, and its commit changes none."""
    data_schema: str = ""
    """Spark's JSON schema; the only source of columns for an empty table."""
    table: str | None = None
    """Identity of the table that it was staged for (Delta, Iceberg): a table that was dropped and recreated is
    another one, to which a sealed slot is never rolled forward."""
    spec_id: int | None = None
    """Of the partition spec that its files were staged for (Iceberg); None: a table without columns, or a slot of an earlier release."""
    partition_by: tuple[str, ...] | None = None
    """Partition columns, which are in folder names and not in the files, where a commit must list them (Delta)."""
    merge_schema: bool | None = None
    """Whether its commit may add columns to the table; a roll-forward needs to know, too."""
    stream: StreamMark | None = None
    """Set if the slot is part of a stream."""
    branch: BranchMark | None = None
    """Set if Spark's own engine wrote its rows, in a native block on a branch (Iceberg). `files` are then those that the block added and
    left, which may hold rows of others beside its own, and `rows` counts the rows in them."""
    application: str = ""
    """Spark's application id; informational."""
    committed_at: float = 0.0
    """Unix seconds of the writer's clock; informational, decides nothing."""
    closed_by: str = ""

    @property
    def bytes(self) -> int:
        return self.listing.bytes if self.listing else sum(f.bytes for f in self.files)

    @property
    def lane(self) -> LaneMark | None:
        """Set if the slot is part of a lane."""
        return None if self.stream is None else self.stream.lane

    @property
    def file_count(self) -> int:
        return self.listing.files if self.listing else len(self.files)


@dataclass(frozen=True)
class Committed:
    """This slot is committed, by this call or earlier (a lost reply, a roll-forward)."""

    slot: Slot


@dataclass(frozen=True)
class AlreadyCommitted:
    """Another attempt, or another write of this one, has committed the sink key; `slot` is its result."""

    slot: Slot


@dataclass(frozen=True)
class FencedOff:
    """The slot is closed: this token can never commit."""

    slot: Slot


def abort_of(token: int) -> str:
    """`closed_by` of a slot that its own attempt closed, because its commit had no answer."""
    return f"abort of attempt {token}"


@dataclass(frozen=True)
class Conflicting:
    """The sink key is committed under another fingerprint."""

    slot: Slot


@dataclass(frozen=True)
class Stuck:
    """The slot can never be committed although no fence bars it: the table was dropped, or changed so that the files do not fit.

    Nothing of it is visible. A sealed slot that is stuck leaves its transaction incomplete: an administrator decides (phase Held)."""

    slot: Slot
    why: str
    """One sentence: what is wrong, where, what to do."""


@dataclass(frozen=True)
class Late(Stuck):
    """A key of a later position of its series has committed to the table."""


@dataclass(frozen=True)
class Overtaken(Stuck):
    """Another writer changed the table after the block of this slot had begun, and the block cannot be put on top of that."""


CommitOutcome = Committed | AlreadyCommitted | FencedOff | Conflicting | Stuck


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Layout of one write; not part of the job's identity (fingerprint)."""

    partition_by: tuple[str, ...] = ()
    """Partition columns. An existing table keeps its own; other columns are refused."""
    merge_schema: bool = False
    """Adds new columns to an existing table. Slot logs always merge, when they are read."""
    mode: WriteMode | None = None
    """None: the one that the output declares."""


PLAIN = WriteOptions()


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One entry of `spec.outputs`."""

    name: str
    kind: str
    """Name of the field that is set: slotLog, delta or iceberg."""
    location: str
    """A path (relative to the job file's folder), a `file://` URI or the URL of an object store; for Iceberg
    `<catalog>.<namespace>.<table>`."""
    on_rerun: OnRerun = OnRerun.REPLACE
    mode: WriteMode | None = None
    series: Series | None = None


def replacing(options: WriteOptions, declared: WriteMode | None) -> WriteMode | None:
    """The mode of a write, as `Slot.mode` records it."""
    mode = options.mode or declared
    return None if mode is WriteMode.APPEND else mode


@dataclass(frozen=True, kw_only=True)
class Change:
    """A commit that removed or rewrote rows of an earlier one."""

    commit: str
    """`version 7` of a Delta table, `snapshot 123` of an Iceberg table."""
    operation: str = ""
    """As its writer named it (`DELETE`, `overwrite`), at most `OPERATION` characters; empty if it did not."""
    key: str = ""
    """The sink key, where it is a commit of sparkonce."""
    series: str = ""
    """Of a commit of sparkonce by a key of a series, where the commit says so."""
    position: str = ""
    """Place of that key in the series."""
    overwrites: bool = False
    """It is a commit of sparkonce that replaced all rows of the table."""
    digest: str = ""
    """The first 12 hex digits of the SHA-256 of a Delta log's entry: a table that is created again at the same place has the same
    numbers. Empty where `commit` is unique by itself (Iceberg)."""
    shared: bool = False
    """The rows had been compacted into files with other rows, and this commit changed such a file: perhaps only the others."""

    @property
    def name(self) -> str:
        """Names this commit and no other one of any table that was ever at the place."""
        return f"{self.commit}@{self.digest}" if self.digest else self.commit

    def __str__(self) -> str:
        by = f"key {self.key.partition('-')[0][:12]}" if self.key else ""
        at = f"position {self.position} of the series {self.series}" if self.series else ""
        said = ", ".join(filter(None, (self.operation, by, at)))
        return f"{self.commit} ({said})" if said else self.commit


OPERATION = 40
"""Characters of an operation's name: other writers choose it."""
CHANGES_NAMED = 5
"""Commits that a probe names at most: status, JSON and terminals show all of them."""


class Evidence(StrEnum):
    """What a probe found of a recorded result. It has the fields of `Probed`, which a verdict without details is, too."""

    PRESENT = "present"
    REPLACED = "replaced"
    """A later generation replaced the rows."""
    CHANGED = "changed"
    """The table records the commit, and later commits, which are named, removed or rewrote some of its rows or all."""
    SUPERSEDED = "superseded"
    """The same, and keys of the same series did all of it, at the same position or later ones: as the series wants it, no row is left."""
    GONE = "gone"
    """The table, the slot, or a file that the table or the slot log still names is missing, or the table no longer records the commit."""
    NOT_CHECKED = "not checked"

    @property
    def verdict(self) -> Evidence:
        return self

    @property
    def why(self) -> str:
        return ""

    @property
    def changes(self) -> tuple[Change, ...]:
        return ()

    @property
    def remedy(self) -> str:
        return ""


APPEND_INSTEAD = "delete what is left of its rows, declare onRerun: Append for it and run `sparkonce rerun -f FILE`"
"""Remedy where an output cannot find the rows that a rerun would replace: it knows them by their files."""


LATE_INSTEAD = "a later position of its series has been committed, so declare `series.onLate: Allow` and run `sparkonce rerun -f FILE`"
"""Remedy where the table would refuse a rerun as late."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A verdict with what it rests on."""

    verdict: Evidence
    why: str
    """Why it is so: the predicate of a sentence about the output, one line."""
    changes: tuple[Change, ...] = ()
    """The newest ones: of a probe at most `CHANGES_NAMED`."""
    remedy: str = ""
    """What to do before the rows can be written anew, where the output would refuse a plain rerun; empty: a rerun works."""

    def __str__(self) -> str:
        return str(self.verdict)


Found = Evidence | Probed
"""Answer of a probe."""


@dataclass(frozen=True)
class Swept:
    folders: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A `DataFile` in an inventory, which holds one per file of the table: without pydantic's overhead."""

    path: str
    rows: int
    bytes: int
    digest: str

    @staticmethod
    def all_of(files: Iterable[DataFile]) -> tuple[CommittedFile, ...]:
        return tuple(CommittedFile(file.path, file.rows, file.bytes, file.digest) for file in files)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One commit of a table, as its evidence shows it."""

    slot: Slot
    files: tuple[CommittedFile, ...]
    """Files of the slot, named in it or in its list."""
    commit: str
    """Human-readable reference: the slot's path, the table's version or snapshot."""
    visible: bool
    """Whether readers see its rows; if not, a later generation replaced them, or another key's commit that overwrote the table."""


def shown(effects: Iterable[tuple[float, Effect]], live: Collection[str]) -> tuple[Effect, ...]:
    """The effects of a table with files that other keys' commits may have replaced: those of which readers see no file any more, and after
    which a commit with a mode (`Slot.mode`) came, are not visible.

    effects: each with its place in the order of commits.
    live: paths of the files that readers see."""
    ordered = list(effects)
    last = max((at for at, effect in ordered if effect.slot.mode is not None), default=-1.0)
    return tuple(
        replace(effect, visible=False)
        if at < last and any(file.rows for file in effect.files) and not any(file.path in live for file in effect.files)
        else effect
        for at, effect in ordered
    )


def overwritten(effects: Iterable[tuple[float, Effect]]) -> frozenset[str]:
    """Sink keys of the effects after which a commit with a mode came: it may have replaced rows of them.

    effects: as for `shown`."""
    ordered = list(effects)
    last = max((at for at, effect in ordered if effect.slot.mode is not None), default=-1.0)
    return frozenset(effect.slot.sink_key for at, effect in ordered if at < last)


@dataclass(frozen=True, kw_only=True)
class StagedFolder:
    """The staging folder of one write call."""

    path: str
    """Relative to the table, with `/`."""
    sink_key: str
    token: int
    nonce: str
    files: int
    bytes: int
    unreachable: bool = False
    """It can never be committed (its slot is closed, another write is committed, or its token is barred): `sweep` deletes it."""
    modified: float = 0.0
    """Unix seconds of the store's clock when its newest object was written; 0 if unknown. Decides nothing."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """A table as listings showed it: jobs that commit meanwhile may be seen in part."""

    kind: str
    uri: str
    effects: tuple[Effect, ...]
    staged: tuple[StagedFolder, ...]
    """All staging folders, those of committed slots too."""
    live: tuple[str, ...]
    """Paths of the files that readers see; a file that they read twice is here twice."""
    unreadable: tuple[str, ...] = ()
    """A sentence for each piece of evidence that does not parse."""
    hidden: Mapping[str, Found] = field(default_factory=dict)
    """Sink key -> what became of its rows, for visible effects with files that readers do not see. Changes are named all, however many
    (Delta, Iceberg). Of a slot log: where overwrites of partitions hide these files."""
    unexplained: Mapping[str, int] = field(default_factory=dict)
    """Sink key -> rows of those files that no known commit changed: they are in other files, or the history ends too early. Without the
    rows that another key's commit may have replaced (`overwritten`)."""
    others: Mapping[str, int | None] = field(default_factory=dict)
    """Live files that no commit names -> their rows, as the table's format library reads them from the table's metadata (Delta,
    Iceberg). None: the metadata does not have them."""
    masked: Mapping[str, int] | None = field(default_factory=dict)
    """Live files -> their rows that deletes hide from readers. None: this cannot be read."""
    uncommitted: Mapping[str, int] = field(default_factory=dict)
    """Files in the folder of a slot log that are neither committed nor staged by a write of sparkonce -> their bytes."""
    commits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Sink key -> its commits, human-readable, for keys with more than one write in the table's own history."""
    location: str = ""
    """URL that the paths are relative to, if `uri` is not a URL (the name of a table in a catalog)."""


class Sink(Protocol):
    """One output of one job. Every method except `stage` may be repeated, and interleaved with calls of any other process.

    Raises, from every method:
        OutputUnavailable: unknown whether the call took effect, unless stated otherwise.
        OutputCorrupt: a slot exists and does not parse.
    """

    name: str
    kind: str
    uri: str
    mode: WriteMode | None
    """As `Output.mode` declares it."""
    place: SeriesPlace | None
    """Of its slots, if the job is part of a series."""

    async def check(self) -> None:
        """Start-up probe.

        Raises:
            OutputUnsafe: the store ignores create-if-absent, or the catalog ignores requirements.
            OutputUnavailable: the store does not answer or cannot be written.
        """
        ...

    async def find(self, key: SinkKey) -> Slot | None:
        """The committed slot, whatever its token; None is only a hint."""
        ...

    async def probe(self, key: SinkKey, slot_digest: str | None) -> Found:
        """Whether a recorded result still exists: a hint for replays. Lists, never writes. Where every file of the commit is visible it
        reads no history; the work for others is bounded (`sink.trace.LOOK_BACK`)."""
        ...

    async def fence(self, key: SinkKey, token: int, *, fingerprint: str, by: str) -> Slot | None:
        """Bars every token below `token` for ever. Returns the committed slot, whatever its token; None is final for the tokens
        below. The caller compares the slot's fingerprint."""
        ...

    def stage(
        self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str, options: WriteOptions = PLAIN
    ) -> Slot:
        """Writes the DataFrame into a private folder; returns the slot that would commit it.

        Raises:
            RowsLost: the files contain another number of rows than were written.
            Fenced: the write failed and its slot was closed meanwhile, so its files may have been swept during the write.
            InvalidInput: the columns do not fit the table; raised before the DataFrame runs.
        """
        ...

    async def commit(self, key: SinkKey, slot: Slot) -> CommitOutcome:
        """Rule R, then create-if-absent (in a table: a commit that fails if any other came first). Also rolls a sealed slot forward."""
        ...

    async def abort(self, key: SinkKey, slot: Slot) -> Slot:
        """Closes the slot, then deletes its staging folder if the slot is closed. Returns the content of the slot."""
        ...

    async def discard(self, key: SinkKey, slot: Slot) -> None:
        """Deletes the staging folder of a write that never sent a commit and never will (it is not sealed)."""
        ...

    async def inventory(self) -> Inventory:
        """Everything committed and staged in the table, of all keys, for audits. Never writes."""
        ...

    async def sweep(self, key: SinkKey, *, more: bool = False) -> Swept:
        """Deletes staging folders that can never be committed: those of closed slots and, once a slot of the key is committed, every
        folder but its own (rule R).

        more: the caller will sweep other keys of the table next; work for the whole table is left to the last call."""
        ...


def slot_digest(data: bytes) -> str:
    """SHA-256 (hex) of a slot's bytes, as results record it."""
    return hashlib.sha256(data).hexdigest()
