"""Replaces or removes one record that cannot be read. Pure; what a record is rebuilt from is in `commands/repair.py`.

No verb of the store acts on a record that does not parse, so a damaged one would stay for ever. These two compare the damaged text itself:
a decision about one text never overwrites another, nor a record that can be read. The claim is removed in the same step, since its owner
can do nothing under it.
"""

from __future__ import annotations

from typing import Protocol

from sparkonce.model.record import Address, Event, Record
from sparkonce.store.rules import KeyState, VerbOutcome, Write


class Repairable(Protocol):
    """The part of a store that repairing a record needs."""

    async def unreadable(self, address: Address) -> str | None:
        """The text of a record that cannot be read; None: there is no record, or it can be read. A read, which may be outdated.

        Raises: RecordTooNew, StoreUnavailable."""
        ...

    async def repair(
        self, address: Address, text: str, *, record: Record | None, generation: int, event: Event
    ) -> bool:
        """Replaces the record whose text is `text` by `record`, or removes it with everything beside it, events excepted; the floor is
        then at least `generation`. A repetition of what was done is True. False: another text is stored, or a record that can be read.

        Raises: RecordTooNew, InvalidInput (`record` cannot be stored; nothing was written), StoreUnavailable (may be done; repeat it)."""
        ...


def repair(
    seen: KeyState,
    stored: str | None,
    text: str,
    *,
    record: Record | None,
    generation: int,
    event: Event,
) -> VerbOutcome[bool]:
    """Decides what `Repairable.repair` writes. `seen`: its record is None where `stored` cannot be read."""
    if stored is None:
        return record is None and seen.floor >= generation, None
    if seen.record is not None:
        return record is not None and seen.record.dump() == record.dump(), None
    if stored != text:
        return False, None
    event = event.model_copy(update={"at": seen.at})
    if record is None:
        floor = max(seen.floor, generation)
        return True, Write(generation=generation, remove=True, drop_claim=True, floor=floor, event=event)
    written = record.model_copy(update={"revision": seen.next, "epoch": seen.epoch})
    return True, Write(generation=generation, record=written, drop_claim=True, event=event)
