"""One step of the store at one key: what a transaction read there, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from sparkonce.model.record import Beat, Event, Intent, Record, Report, SpecBody
from sparkonce.model.result import Result
from sparkonce.store.protocol import Claim, View


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What stands at one key, and the clock, as one transaction read them."""

    record: Record | None
    claim: Claim | None
    """None also when its lease has ended. One that is only stale still belongs to its owner, until somebody takes it."""
    stale: bool
    """The claim was not touched for so long that anyone may take it."""
    floor: int
    at: float
    """Unix seconds of the store's clock."""
    next: int
    """The revision that a write of this transaction gets."""
    epoch: int
    result: Result | None = None
    """Of the record's generation; read only when the record is finalized."""
    intent: Intent | None = None
    """Read only when the record names one, and only for `seal`."""

    @property
    def live(self) -> Claim | None:
        return None if self.stale else self.claim

    @property
    def view(self) -> View:
        return View(record=self.record, claim=self.live, floor=self.floor, revision=self.next - 1, epoch=self.epoch)


@dataclass(frozen=True, kw_only=True)
class Write:
    """What one step changes, all or nothing; None and False leave things alone. Values beside the record go with `generation`."""

    generation: int
    record: Record | None = None
    remove: bool = False
    """The record and all that stands beside it, but neither events nor the floor."""
    floor: int | None = None
    claim: Claim | None = None
    drop_claim: bool = False
    touch: bool = False
    """The claim's owner is there."""
    spec: SpecBody | None = None
    result: Result | None = None
    intent: Intent | None = None
    report: Report | None = None
    beat: Beat | None = None
    event: Event | None = None

    @property
    def moves(self) -> bool:
        """Whether the store's revision moves: touches of the living are no changes."""
        return not (self.touch or self.beat)


T = TypeVar("T")
Decision = tuple[T, Write | None]
