"""A person's commands on a ledger with one key, and the states in which a key can be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from attempt.owned import Applications, Driver, Owner, owner
from harness.arrow_stage import table_of
from harness.granted import Granted, prepared
from sparkonce.commands import operate
from sparkonce.commands.operate import Explanation, How
from sparkonce.launch.protocol import Phase
from sparkonce.local.prepare import Prepared
from sparkonce.local.runner import Ending, LocalRunner
from sparkonce.model.record import Assignment, HeldReason, Record

T = TypeVar("T")


@dataclass
class Desk:
    """A ledger with one key, and the commands that a person sends to it."""

    owner: Owner
    requested: Prepared
    store: Any = None

    @property
    def granted(self) -> Granted:
        return self.owner.granted

    @property
    def applications(self) -> Applications:
        return self.owner.applications

    @property
    def record(self) -> Record:
        return self.granted.now()

    def do(self, work: Callable[[LocalRunner], Awaitable[T]]) -> T:
        """Runs the work as a command of its own."""

        async def command() -> T:
            embedded = LocalRunner(
                store=self.store or self.owner.store,
                attempts=self.granted.folder / "attempts",
                launcher=self.applications,
                patience=1.0,
                sleep=lambda _: asyncio.sleep(0),
            )
            return await work(embedded)

        return asyncio.run(command())

    def orphaned(self) -> Desk:
        """The key after its owner died."""
        self.owner.store._leases[self.granted.claim.lease].expire()
        return self

    def driven(self) -> Desk:
        """The key after its owner drove it to its end."""
        self.owner.run()
        return self

    def submit(self) -> Ending:
        return self.do(lambda embedded: embedded.submit(self.requested))

    def cancel(self) -> Ending:
        return self.do(lambda embedded: operate.cancel(embedded, self.record, by="ann", reason="too slow"))

    def rerun(self, record: Record | None = None) -> Ending:
        return self.do(
            lambda embedded: operate.rerun(
                embedded, self.requested, record or self.record, by="ann", reason="once more"
            )
        )

    def resolve(self, how: How) -> Ending:
        return self.do(lambda embedded: operate.resolve(embedded, self.record, how, by="ann", reason="I looked"))

    def explain(self) -> Explanation:
        return self.do(lambda embedded: operate.explain(embedded, self.record))


def desk(folder: Path, *outputs: str, plays: tuple[Driver | Phase, ...] = (), **spec: Any) -> Desk:
    return Desk(owner(folder, *outputs, plays=plays, **spec), prepared(folder, *outputs, **spec))


def writes(made: Desk, *outputs: str, phase: Phase = Phase.SUCCEEDED) -> Driver:
    def play(assignment: Assignment) -> Phase:
        job = made.owner.job(assignment)
        for name in outputs:
            job.write(table_of(assignment.generation), name)
        return phase

    return play


def succeeded(folder: Path) -> Desk:
    made = desk(folder, "orders")
    made.applications.plays = [writes(made, "orders")]
    return made.driven()


def partial(folder: Path) -> Desk:
    """Held as Partial: `a` is committed, `b` is not, and the only attempt is used up."""
    made = desk(folder, "a", "b", retry={"maxAttempts": 1})
    made.applications.plays = [writes(made, "a", phase=Phase.FAILED_KNOWN)]
    made.driven()
    assert made.record.held is HeldReason.PARTIAL
    return made


def conflicting(folder: Path, *ours: str) -> Desk:
    """Held as KeyConflict: another job committed `b` under this key; this job committed `ours`."""
    made = desk(folder, "a", "b")
    other = made.owner.job(made.granted.assignment.model_copy(update={"fingerprint": "of another job"}))
    other.write(table_of(9), "b")
    made.applications.plays = [writes(made, *ours, phase=Phase.FAILED_KNOWN)]
    made.driven()
    assert made.record.held is HeldReason.KEY_CONFLICT
    return made


def unknown(folder: Path) -> Desk:
    """Held as Unknown: an opaque job whose end was not observed."""
    made = desk(folder, plays=(Phase.UNKNOWN,)).driven()
    assert made.record.held is HeldReason.UNKNOWN
    return made


def name_taken(folder: Path) -> Desk:
    made = desk(folder, "orders")
    stem = made.granted.assignment.name.removesuffix("1")
    for attempt in (1, 2, 3):
        made.applications.squat(f"{stem}{attempt}")
    made.driven()
    assert made.record.held is HeldReason.NAME_TAKEN
    return made
