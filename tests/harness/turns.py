"""Writers of a slot log in any interleaving, and the tables that they could have left by taking turns. Pure: no store, no process.

A writer that adds rows does so at one moment, its create. One that overwrites looks first and creates later. `outcomes` tries every order
of the finished writers in which one that ended before another began comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.slots import committing
from sparkonce.sink.protocol import OVERWRITING_SCHEMA, Replacement, SinkKey, Slot
from sparkonce.sink.slotlog.visibility import replacement, visible


@dataclass
class Writer:
    """One generation of one key."""

    key: SinkKey
    overwrites: bool
    begin: float = 0
    end: float = 0
    slot: Slot | None = None
    """Overwrites: as looked. Else as created."""


@dataclass
class Schedule:
    """What happened so far."""

    clock: int = 0
    looking: list[Writer] = field(default_factory=list)
    done: list[Writer] = field(default_factory=list)

    @property
    def committed(self) -> list[Slot]:
        return [writer.slot for writer in self.done if writer.slot is not None]

    def begin(self, key: SinkKey, *, overwrites: bool) -> None:
        """An overwrite looks; any other writer is done at once."""
        self.clock += 1
        slot = committing(key, 1, nonce=str(key))
        if not overwrites:
            self.done.append(Writer(key, overwrites, self.clock, self.clock, slot))
            return
        order, replaced = replacement(self.committed, {})
        found = Replacement(order=order, slots=tuple(replaced))
        slot = slot.model_copy(update={"replaces": found, "schema_": OVERWRITING_SCHEMA})
        self.looking.append(Writer(key, overwrites, self.clock, slot=slot))

    def create(self, number: int) -> None:
        """One of those that have looked creates its slot."""
        self.clock += 1
        writer = self.looking.pop(number % len(self.looking))
        writer.end = self.clock
        self.done.append(writer)

    def seen(self) -> frozenset[str]:
        """Sink keys of the slots that readers see."""
        return frozenset(slot.sink_key for slot in visible(self.committed))


def outcomes(writers: Sequence[Writer]) -> set[frozenset[str]]:
    """The tables that these writers can leave by taking turns: sink keys of whose rows are in it."""
    return set(_tables(list(writers), frozenset()))


def _tables(left: list[Writer], table: frozenset[str]) -> Iterator[frozenset[str]]:
    if not left:
        yield table
    for writer in left:
        if not any(other.end < writer.begin for other in left if other is not writer):
            rest = [other for other in left if other is not writer]
            yield from _tables(rest, _after(writer, table))


def _after(writer: Writer, table: frozenset[str]) -> frozenset[str]:
    if writer.overwrites:
        return frozenset({str(writer.key)})
    own = f"{writer.key.lineage}-g"
    return frozenset(name for name in table if not name.startswith(own)) | {str(writer.key)}
