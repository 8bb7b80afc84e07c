"""The promises of docs/design.md, section 1, as invariants of everything that is stored permanently.

They check the real content of the ledger and the tables instead of trusting a process's answers: after each write to the store the key is
loaded again, and each object that was really created is recorded. They do not depend on how the engine decides.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from machine.places import PARTS
from machine.process import Broken
from sparkonce.blocking import run
from sparkonce.launch.protocol import Phase
from sparkonce.model.record import Event, HeldReason, Outcome, Record, Result, State
from sparkonce.model.spec import WriteMode
from sparkonce.sink.protocol import SinkKey, Slot, SlotState
from sparkonce.sink.slotlog import layout
from sparkonce.sink.slotlog.snapshot import committed_slots
from sparkonce.sink.slotlog.visibility import path_of, visible

if TYPE_CHECKING:
    from machine.world import World

_SLOT = re.compile(r"_idem/([^/]+)/(\d{10})\.json$")


class Promises:
    def __init__(self, world: World) -> None:
        self.world = world
        self.slots: dict[tuple[str, int], dict[int, Slot]] = defaultdict(dict)
        """By (output, generation): slots by token."""
        self.barred: dict[tuple[str, int], int] = defaultdict(int)
        """By (output, generation): a fence reported that no token below this one committed."""
        self.last: Record | None = None
        self.fingerprints: dict[int, str] = {}
        """Fingerprint of each generation that was ever opened."""
        self.attempts: dict[int, int] = {}
        self.openers: dict[str, int] = {}
        self.said: dict[int, dict[str, Any]] = {}
        self.turns: dict[str, Turns] = defaultdict(Turns)
        """By output, where it is overwritten."""
        self.forgotten: set[int] = set()

    def require(self, fact: object, promise: str, what: str) -> None:
        if not fact:
            raise Broken(promise, what)

    # the ledger
    def stored(self) -> None:
        """Checks the key after each write; a record that does not parse raises."""
        view = run(self.world.scene.store.load(self.world.address))
        before, now = self.last, view.record
        self.last = now
        if now is None:
            gone = before is None or before.state is State.FINALIZED
            self.require(gone, "P6", "a record vanished before its end")
            if before is not None:
                self.forgotten.add(before.generation)
            return
        if before is None or now.generation != before.generation:
            self._opened(now)
        else:
            self._grown(before, now)
        self.attempts[now.generation] = now.attempt
        if self.world.config.follows is not None:
            self._followed(now)
        if now.state is State.FINALIZED:
            self._finalized(now)

    def _followed(self, now: Record) -> None:
        """For a generation that follows an application: nothing was ever done to that application or created beside it, and an end was
        observed of it, or recorded by a person who knows that it failed."""
        applications = self.world.applications
        self.require(not applications.made, "BIND", f"{applications.made} beside what is followed")
        self.require(now.bound == self.world.config.follows, "BIND", "a generation forgot what it follows")
        self.require(now.attempt == 1, "BIND", "another attempt of what is only followed")
        known = {
            None: True,
            Outcome.SUCCEEDED: Phase.SUCCEEDED in applications.told,
            Outcome.FAILED: Phase.FAILED_KNOWN in applications.told or "failed" in self.world.resolved,
            Outcome.CANCELLED: False,
        }
        self.require(known[now.outcome], "BIND", f"{now.outcome}, and of {applications.told} nothing says so")

    def _grown(self, before: Record, now: Record) -> None:
        self.require(now.revision >= before.revision, "P6", "a record's revision fell")
        self.require(now == before or now.revision > before.revision, "P6", "a record changed and kept its revision")
        if now.attempt != before.attempt:
            self.require(
                now.attempt == before.attempt + 1, "P2", f"attempt {before.attempt} was followed by {now.attempt}"
            )
            self._settled(before.generation, before.attempt, "an attempt was granted over an unsettled one")

    def _settled(self, generation: int, attempt: int, what: str) -> None:
        for output in self.world.config.outputs:
            slots = self.slots[output, generation]
            whole = self._committed(output, generation) or all(t in slots for t in range(1, attempt + 1))
            self.require(whole, "P2", what)

    def _committed(self, output: str, generation: int) -> Slot | None:
        slots = self.slots[output, generation].values()
        return next((slot for slot in slots if slot.state is SlotState.COMMITTED), None)

    def _opened(self, now: Record) -> None:
        generation = now.generation
        self.require(generation not in self.fingerprints, "P1", "a generation was opened twice")
        self.require(generation > max(self.fingerprints, default=0), "P1", "a generation was opened below an older one")
        self.require(now.nonce not in self.openers, "P6", "one request opened two generations")
        self.openers[now.nonce], self.fingerprints[generation] = generation, now.fingerprint
        before = generation - 1
        if before in self.attempts:
            self._settled(before, self.attempts[before], "a generation was opened over an unsettled one")
        done = self.said.get(before, {}).get("outcome") == Outcome.SUCCEEDED and before not in self.forgotten
        again = (
            done and self.fingerprints.get(before) == now.fingerprint and now.openers[-1].nonce not in self.world.reruns
        )
        self.require(not again, "P6", "a committed result is computed again")

    def _finalized(self, now: Record) -> None:
        result = run(self.world.scene.store.result(now.address, now.generation))
        assert result is not None  # the store raises if it is missing
        said = self.said.setdefault(now.generation, told(result))
        self.require(said == told(result) and now.outcome == result.outcome, "P6", "a result changed")
        rows = {output: self._committed(output, now.generation) for output in self.world.config.outputs}
        if result.outcome is Outcome.SUCCEEDED:
            self.require(all(rows.values()), "P6", "Succeeded without every output")
            same = all(slot is not None and slot.fingerprint == now.fingerprint for slot in rows.values())
            self.require(same, "P6", "answered with another job's rows")
            commits = {output.name: output.commit.rpartition("/")[2] for output in result.outputs}
            there = {output: str(slot.token) for output, slot in rows.items() if slot is not None}
            self.require(commits == there, "P6", "a result names other commits than there are")
        else:
            self.require(not any(rows.values()), "P5", f"{result.outcome} although an effect exists")

    # the outputs
    def fenced(self, key: SinkKey, token: int) -> None:
        """A fence returned None: no token below this one can commit any more."""
        at = key.output, key.generation
        self.barred[at] = max(self.barred[at], token)

    def created(self, output: str, path: str, data: bytes) -> None:
        """An object was really created at this moment."""
        if (found := _SLOT.match(path)) is None:
            return
        slot = layout.decode(data, where=path, sink_key=found[1], token=int(found[2]))
        lineage = layout.lineage_of(slot.sink_key)
        assert lineage is not None  # every slot path of a job names its generation
        key, generation = lineage
        if slot.state is SlotState.COMMITTED and self.world.config.mode is WriteMode.OVERWRITE:
            self._taken_turns(output, slot)
        if not key.startswith(self.world.address.key_hash):
            return  # another key's, which has no fault
        slots = self.slots[output, generation]
        slots[slot.token] = slot
        if slot.state is not SlotState.COMMITTED:
            return
        committed = [each for each in slots.values() if each.state is SlotState.COMMITTED]
        self.require(len(committed) == 1, "P3", "two committed slots of one sink key")
        self.require(slot.token >= self.barred[output, generation], "P4", "a commit by a token that a fence had barred")
        for group in self.world.config.groups:
            beside = [self.slots[other, generation].get(slot.token) for other in group if output in group]
            closed = any(each is not None and each.state is SlotState.CLOSED for each in beside)
            self.require(not closed, "TX", "a transaction goes on after one of its sealed slots was closed")
        said = self.said.get(generation, {}).get("outcome", Outcome.SUCCEEDED)
        self.require(said == Outcome.SUCCEEDED, "P5", f"an effect after {said}")
        self.require(
            slot.fingerprint == self.fingerprints.get(generation), "P6", "another job's rows under this generation"
        )
        self._whole(output, slot)

    def _whole(self, output: str, slot: Slot) -> None:
        """Checks that the slot's files exist and were written by one run."""
        objects = self.world.tables[output].real
        texts = [run(objects.get(file.path)) for file in slot.files]
        writers = {text.split()[0] for text in texts if text is not None}
        whole = len(texts) == PARTS and None not in texts and len(writers) == 1
        self.require(whole, "P3", "a reader sees more or less than one run's rows")

    def _taken_turns(self, output: str, committed: Slot | None = None) -> None:
        """Readers see what they would see if all writers had taken turns: an overwrite between its look and its create."""
        turns = self.turns[output]
        if committed is not None:
            turns.commits(committed)
        seen = {path_of(slot) for slot in visible(run(committed_slots(self.world.tables[output].real)))}
        if (wrong := turns.wrong(seen)) is not None:
            self.require(False, "P3", wrong)

    # the end
    def answered(self, outcome: Outcome, record: Record, result: Result | None) -> None:
        """A request ended with this answer."""
        known = record.generation in self.said
        self.require(known, "P6", f"a request was told {outcome} before the ledger had a result")
        if result is not None:
            self.require(
                told(result) == self.said[record.generation], "P6", "a request got another result than the key has"
            )
            self.require(outcome == result.outcome, "P6", "a request was told another outcome than its result has")

    def shown(self, record: Record) -> None:
        """A drive showed this record, which an operator would write into `.status`."""
        if record.state is State.FINALIZED:
            result = self.said.get(record.generation)
            self.require(result is not None, "P6", f"{record.outcome} was shown before the ledger had a result")
            assert result is not None  # required
            self.require(result["outcome"] == record.outcome, "P6", "another outcome was shown than the ledger has")

    def gone(self, record: Record) -> None:
        """A request was answered that a result's output is gone. Only a later generation removes rows (a rerun replaces them), and a
        request that read the record before the rerun gets this answer, too."""
        outputs = self.world.config.outputs
        there = all(self._committed(output, record.generation) for output in outputs)
        later = [generation for generation in self.fingerprints if generation > record.generation]
        replaced = any(self._committed(output, generation) for generation in later for output in outputs)
        self.require(not there or replaced, "P6", "rows that are there were called gone")

    def at_the_end(self) -> None:
        self.stored()
        for group in self.world.config.groups:
            for generation in self.fingerprints:
                there = {self._committed(output, generation) is not None for output in group}
                self.require(len(there) == 1, "TX", "half a transaction at the end")
        for output, table in self.world.tables.items():
            committed = {g: slot for g in self.fingerprints if (slot := self._committed(output, g)) is not None}
            if self.world.config.mode is WriteMode.OVERWRITE:
                self._taken_turns(output)
                continue
            seen = visible(run(committed_slots(table.real)))
            newest = [committed[max(committed)]] if committed else []
            self.require(seen == newest, "P3", "a reader sees another generation than the newest that is committed")
            for slot in committed.values():
                self._whole(output, slot)
        self._history()

    def _history(self) -> None:
        store, address = self.world.scene.store, self.world.address
        events: list[Event] = list(run(store.events(address)))
        opened = [event.generation for event in events if event.what in ("Reserved", "Reopened")]
        self.require(opened == sorted(set(opened)), "P1", "the events of the key tell of a generation twice")


@dataclass
class Turns:
    """When the writers of an overwritten table looked and committed, by a clock that ticks with each of these."""

    now: int = 0
    looked: dict[str, int] = field(default_factory=dict)
    """By nonce: the first look of an overwrite."""
    committed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Path of a committed slot: the first and the last moment at which its turn may have been."""
    overwrites: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)

    def looks(self, slot: Slot) -> None:
        """This overwrite is about to look at the table."""
        self.now += 1
        self.looked.setdefault(slot.nonce, self.now)

    def commits(self, slot: Slot) -> None:
        self.now += 1
        path = path_of(slot)
        self.committed[path] = self.looked.get(slot.nonce, self.now), self.now
        if slot.mode is WriteMode.OVERWRITE:
            self.overwrites.add(path)

    def wrong(self, seen: set[str]) -> str | None:
        """What no order of turns explains; None if one does."""
        for path, (first, last) in self.committed.items():
            others = [self.committed[each] for each in self.overwrites - {path}]
            if path in seen and any(begins > last for begins, _ in others):
                return "rows stay beside an overwrite that looked after they were committed"
            if path not in seen and all(ends < first for _, ends in others):
                return "rows are hidden, and every overwrite was committed before them"
        if len(seen & self.overwrites) != bool(self.overwrites):
            return "of overwrites that are committed, not exactly one is seen"
        if self.hidden & seen:
            return "rows that were hidden came back"
        self.hidden |= self.committed.keys() - seen
        return None


def told(result: Result) -> dict[str, Any]:
    """The part of a result that must never change."""
    return {name: value for name, value in result.dump().items() if name not in ("startedAt", "finishedAt")}


UNFOLLOWED = frozenset({HeldReason.UNKNOWN, HeldReason.STILL_THERE})
"""Reasons for which a generation that follows an application may be held."""
RESOLVABLE = frozenset({HeldReason.PARTIAL, HeldReason.NAME_TAKEN})
"""Reasons for which these schedules may hold a key. Any other reason is a defect here: no table is dropped, and no slot belongs to another
job."""
