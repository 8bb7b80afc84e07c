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
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from sparkonce.model.record import Value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLOT_SCHEMA = 1


class OnRerun(StrEnum):
    REPLACE = "Replace"
    APPEND = "Append"


class SinkKey(Value):
    """Identity of one effect."""

    key_hash: str
    output: str
    generation: int

    @property
    def lineage(self) -> str:
        """The same for all generations of one output of a key: what a rerun replaces."""
        return f"{self.key_hash}-{self.output}"

    def __str__(self) -> str:
        return f"{self.lineage}-g{self.generation}"


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
    rows: int = 0
    on_rerun: OnRerun = OnRerun.REPLACE
    data_schema: str = ""
    """Spark's JSON schema: a reader of an empty table needs it."""
    application: str = ""
    """Spark's application id, for a person."""
    committed_at: float = 0.0
    """Unix seconds of the writer's clock; decides nothing."""
    closed_by: str = ""

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)


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


Decision = Committed | AlreadyCommitted | FencedOff | Conflicting


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

    def stage(self, frame: DataFrame, key: SinkKey, token: int, *, fingerprint: str) -> Slot:
        """Runs the DataFrame into a private folder and returns the slot that would commit it. RowsLost when the count differs; Fenced
        when it failed and its slot was closed meanwhile (its files may have been swept under it)."""
        ...

    async def commit(self, key: SinkKey, slot: Slot) -> Decision:
        """Rule R, then create-if-absent. Also rolls a sealed slot forward."""
        ...

    async def abort(self, key: SinkKey, slot: Slot) -> Slot:
        """Closes the slot first, then deletes its staging folder only if that closed it. Returns what stands in the slot."""
        ...

    async def discard(self, key: SinkKey, slot: Slot) -> None:
        """Deletes the staging folder of a write that never sent a commit and never can (nothing sealed it)."""
        ...

    async def sweep(self, key: SinkKey) -> Swept:
        """Deletes staging that can never be committed: folders of closed slots and, once a slot of the key is committed, every folder
        but its own (rule R)."""
        ...


def slot_digest(data: bytes) -> str:
    """SHA-256 of a slot's bytes, as results record it."""
    return hashlib.sha256(data).hexdigest()
