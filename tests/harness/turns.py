"""Writers of a slot log in any interleaving, and the tables that they could have left by taking turns. Pure: no store, no process.

A writer that adds rows does so at one moment, its create. One that overwrites looks first and creates later. `outcomes` tries every order
of the finished writers in which one that ended before another began comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.slots import committing
from sparkonce.model.spec import WriteMode
from sparkonce.sink.protocol import OVERWRITING_SCHEMA, DataFile, Replacement, SinkKey, Slot
from sparkonce.sink.slotlog.visibility import Hiding, Shown, of_partitions, replacement, visible

DAYS = ("mon", "tue")
Rows = frozenset[tuple[str, str]]
"""Sink keys and days: each writer has one row per day that it writes."""


@dataclass
class Writer:
    """One generation of one key."""

    key: SinkKey
    mode: WriteMode | None = None
    days: Sequence[str] = DAYS
    begin: float = 0
    end: float = 0
    slot: Slot | None = None
    """An overwrite's as it has looked."""

    @property
    def rows(self) -> Rows:
        return frozenset((str(self.key), day) for day in self.days)


@dataclass
class Schedule:
    """What happened so far."""

    clock: int = 0
    looking: list[Writer] = field(default_factory=list)
    done: list[Writer] = field(default_factory=list)

    @property
    def committed(self) -> list[Slot]:
        return [writer.slot for writer in self.done if writer.slot is not None]

    def begin(self, key: SinkKey, mode: WriteMode | None = None, days: Sequence[str] = DAYS) -> None:
        """An overwrite looks; any other writer is done at once."""
        self.clock += 1
        slot = slot_of(key, mode, days)
        if mode is None:
            self.done.append(Writer(key, mode, days, self.clock, self.clock, slot))
            return
        order, replaced = replacement(self.committed, {})
        if mode is WriteMode.OVERWRITE_PARTITIONS:
            replaced = of_partitions(self.committed, self.shown(), ("day",), slot.files)
        found = Replacement(order=order, slots=tuple(replaced))
        slot = slot.model_copy(update={"replaces": found, "schema_": OVERWRITING_SCHEMA})
        self.looking.append(Writer(key, mode, days, self.clock, slot=slot))

    def create(self, number: int) -> None:
        """One of those that have looked creates its slot."""
        self.clock += 1
        writer = self.looking.pop(number % len(self.looking))
        writer.end = self.clock
        self.done.append(writer)

    def shown(self) -> Shown:
        hiding = Hiding.of(self.committed, {})
        found = [(slot, hiding.shown(slot, slot.files)) for slot in visible(self.committed)]
        return [(slot, files) for slot, files in found if files is not None]

    def seen(self) -> Rows:
        """The rows that readers see."""
        found = ((slot, file.path) for slot, files in self.shown() for file in files)
        return frozenset((slot.sink_key, path.split("=")[1].split("/")[0]) for slot, path in found)


def slot_of(key: SinkKey, mode: WriteMode | None, days: Sequence[str], *, column: str = "day") -> Slot:
    """A slot with one row in each of these folders."""
    folders = [f"_data/{key}/0000000001-n/so-group-{column}={day}" for day in days]
    files = tuple(DataFile(path=f"{folder}/part.parquet", rows=1, bytes=1, digest="d:0") for folder in folders)
    change = {"mode": mode, "files": files, "rows": len(files), "partition_by": (column,)}
    return committing(key, 1, nonce=str(key)).model_copy(update=change)


def outcomes(writers: Sequence[Writer]) -> set[Rows]:
    """The tables that these writers can leave by taking turns."""
    return set(_tables(list(writers), frozenset()))


def _tables(left: list[Writer], table: Rows) -> Iterator[Rows]:
    if not left:
        yield table
    for writer in left:
        if not any(other.end < writer.begin for other in left if other is not writer):
            rest = [other for other in left if other is not writer]
            yield from _tables(rest, _after(writer, table))


def _after(writer: Writer, table: Rows) -> Rows:
    if writer.mode is WriteMode.OVERWRITE:
        return writer.rows
    days = writer.days if writer.mode is WriteMode.OVERWRITE_PARTITIONS else ()
    own = f"{writer.key.lineage}-g"
    kept = ((name, day) for name, day in table if day not in days and not name.startswith(own))
    return frozenset(kept) | writer.rows
