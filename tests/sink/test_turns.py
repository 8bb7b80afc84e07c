"""Modes and series under random schedules: keys append to a Delta or an Iceberg table, or replace its rows, in any order of their steps.

Each schedule is played on a real table and on a model, which is a list of rows: every step takes its turn. Within a commit, after it has
looked at the table and before it sends its change, other steps happen; requests and replies are lost. After each step readers see the
model's rows, and each commit has the model's answer. With one rule removed, the same schedules must find the defect.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import effort
from harness.lakes import DeltaLake, Lake, days, lake_of
from sparkonce.blocking import run
from sparkonce.errors import InvalidInput, LateInSeries
from sparkonce.failpoints import FailpointError, hit
from sparkonce.model.spec import OnLate, Series, WriteMode
from sparkonce.sink.delta import commit as delta_plan
from sparkonce.sink.delta import sink as delta
from sparkonce.sink.delta.sink import DeltaTableSink
from sparkonce.sink.iceberg import commit as iceberg_commit
from sparkonce.sink.iceberg import sink as iceberg
from sparkonce.sink.protocol import AlreadyCommitted, Committed, FencedOff, Late, SinkKey, Slot, Stuck

SCHEDULES = effort.size("table schedules")
PARTS = 20 if effort.effort() is effort.Effort.SOAK else 1
"""Test items of each kind, so that one takes minutes."""
STEPS = 18
DAYS = ("mon", "tue", "wed")
POSITIONS = ("2024-05-01", "2024-05-02", "2024-05-03")
DEFECT_SEEDS = 60
"""Schedules within which a defect must be found; most are found within ten."""

Rows = frozenset[tuple[str, int]]


class WrongTurn(AssertionError):
    """The table is not what the model says."""


@dataclass
class Key:
    """A key in its newest generation, as the model knows it."""

    name: str
    mode: WriteMode
    series: Series | None
    generation: int = 1
    token: int = 1
    barred: int = 0
    staged: list[tuple[Slot, Rows]] = field(default_factory=list)
    """Of all attempts, those of zombies, too."""
    committed: Rows | None = None
    by: int = 0
    """Token of the write that is committed."""
    skipped: bool = False
    before: Rows = frozenset()
    """Rows of the generation before."""

    @property
    def sink_key(self) -> SinkKey:
        return SinkKey(key_hash=self.name * 4, output="orders", generation=self.generation)


class Turns:
    """One schedule."""

    def __init__(self, lake: Lake, dice: random.Random) -> None:
        self.lake, self.dice = lake, dice
        self.keys = [self._key(name) for name in "abcd"]
        self.rows: set[tuple[str, int]] = set()
        self.latest: str | None = None
        """The latest position that the series has committed."""
        self.number = 0
        self.log: list[str] = []
        self.seen: Counter[str] = Counter()
        self.fault: Callable[[str], None] | None = None

    def _key(self, name: str) -> Key:
        mode = self.dice.choice((WriteMode.APPEND, WriteMode.OVERWRITE, WriteMode.OVERWRITE_PARTITIONS))
        late = self.dice.choice((OnLate.FAIL, OnLate.FAIL, OnLate.SKIP, OnLate.SKIP, OnLate.ALLOW))
        place = Series(name="daily", position=self.dice.choice(POSITIONS), on_late=late)
        return Key(name, mode, place if self.dice.random() < 0.85 else None)

    def play(self) -> Counter[str]:
        self._add()
        often = (self._stage, self._stage, self._stage, self._commit, self._commit, self._commit)
        for _ in range(STEPS):
            self.dice.choice((*often, *self._others, self._rerun))()
        self._check()
        return self.seen

    @property
    def _others(self) -> tuple[Callable[[], None], ...]:
        """What may happen within a commit of another process."""
        return self._fence, self._add, self._delete

    def hit(self, point: str) -> None:
        """Stands for a failpoint: what this schedule does there, once."""
        if self.fault is not None and "commit" in point:
            fault, self.fault = self.fault, None
            fault(point)
        hit(point)

    def _note(self, text: str) -> None:
        self.log.append(text)

    def _require(self, fact: object, what: str) -> None:
        if not fact:
            raise WrongTurn("\n".join([what, *self.log]))

    def _check(self) -> None:
        found = {(str(day), n) for day, numbers in self.lake.rows().items() for n in numbers}
        self._require(found == self.rows, f"readers see {sorted(found)}, and not {sorted(self.rows)}")

    # --- steps
    def _add(self) -> None:
        """Another writer appends."""
        frame, rows = self._frame()
        self._note(f"others add {sorted(rows)}")
        self.lake.add(frame)
        self.rows |= rows

    def _delete(self) -> None:
        """Another writer deletes a day."""
        day = self.dice.choice(DAYS)
        if any(each == day for each, _ in self.rows):
            self._note(f"others delete {day}")
            self.lake.delete(f"day = '{day}'")
            self.rows = {row for row in self.rows if row[0] != day}

    def _stage(self) -> None:
        key = self.dice.choice(self.keys)
        if key.committed is not None:
            return
        frame, rows = self._frame()
        late = self._late(key)
        self._note(f"{key.name} g{key.generation} stages {sorted(rows)} with token {key.token}")
        try:
            slot = self.lake.stage(self._sink(key), key.sink_key, frame, token=key.token)
        except LateInSeries:
            self._require(late and key.series and key.series.on_late is OnLate.FAIL, "refused, and it is not late")
            self.seen["late before staging"] += 1
            return
        except InvalidInput as refused:
            gone = not key.before <= self.rows
            said = "of the generation before" if isinstance(self.lake, DeltaLake) else "of an earlier generation"
            self._require(gone and said in str(refused), f"refused, and nothing is gone: {refused}")
            self.seen["gone before staging"] += 1
            return
        self._require(not late or (key.series and key.series.on_late is OnLate.SKIP), "late, and was staged")
        self._require((slot.skipped is not None) == late, "skipped, or late and not skipped")
        key.staged.append((slot, frozenset() if late else rows))

    def _commit(self) -> None:
        """One of the staged writes, by the attempt that staged it or by one that rolls it forward; at times others act in the middle."""
        if not (able := [each for each in self.keys if each.staged]):
            return
        key = self.dice.choice(able)
        slot, rows = self.dice.choice(key.staged)
        generation = key.generation
        self._note(f"{key.name} g{generation} commits {sorted(rows)} with token {slot.token}")
        self.fault = self.dice.choice((None, self._lost, self._between, self._between))
        answer = run(self._sink(key).commit(key.sink_key, slot))
        self.fault = None
        self._note(f"{key.name} g{generation} is told {type(answer).__name__}")
        self.seen[type(answer).__name__] += 1
        self._answered(key, slot, rows, answer)
        self._check()

    def _lost(self, point: str) -> None:
        self._note(f"{point}: lost")
        raise FailpointError(point)

    def _between(self, point: str) -> None:
        if point.endswith(".before"):
            self._note("meanwhile:")
            self.seen["between"] += 1
            self.dice.choice((self._commit, self._commit, *self._others))()

    def _fence(self) -> None:
        """An attempt is settled; the next one gets the next token."""
        key = self.dice.choice(self.keys)
        stands = run(self._sink(key).fence(key.sink_key, key.token + 1, fingerprint="f", by="a successor"))
        self._note(f"{key.name} g{key.generation} is fenced below {key.token + 1}: {stands and stands.token}")
        self._require((stands is not None) == (key.committed is not None), "a fence told another verdict")
        key.token += 1
        if stands is None:
            key.barred = key.token

    def _rerun(self) -> None:
        """A finished key runs once more: its next generation."""
        key = self.dice.choice(self.keys)
        if key.committed is None or key.generation > 1:
            return
        self._note(f"{key.name} runs again")
        before = frozenset() if key.skipped else key.committed
        self.keys[self.keys.index(key)] = Key(key.name, key.mode, key.series, generation=2, before=before)

    # --- the model
    def _late(self, key: Key) -> bool:
        place = key.series
        if place is None or self.latest is None or place.on_late is OnLate.ALLOW:
            return False
        return place.position < self.latest

    def _answered(self, key: Key, slot: Slot, rows: Rows, answer: Any) -> None:
        if key.committed is not None:
            if slot.token < key.by and not isinstance(self.lake, DeltaLake):
                self._require(
                    isinstance(answer, FencedOff), "a later attempt is committed, and it was told something else"
                )
                return
            self._require(
                isinstance(answer, Committed | AlreadyCommitted), "it is committed, and was told something else"
            )
            self._require(answer.slot.rows == len(key.committed), "told another write than the one that is committed")
            return
        if slot.token < key.barred:
            self._require(isinstance(answer, FencedOff), "it was fenced, and was told something else")
            return
        if slot.skipped is None and self._late(key):
            assert key.series is not None  # else it is not late
            if key.series.on_late is OnLate.FAIL:
                self._require(isinstance(answer, Late), "it is late, and was told something else")
                return
            rows = frozenset()
            key.skipped = True
        replaced = frozenset() if key.skipped or slot.skipped else self._replaced(key, rows)
        if replaced is None:
            self._require(isinstance(answer, Stuck), "rows of its last generation are gone, and it was committed")
            return
        self._require(isinstance(answer, Committed), "nothing stands against it, and it is not committed")
        key.committed, key.by, key.skipped = rows, slot.token, key.skipped or slot.skipped is not None
        self.seen["skipped"] += key.skipped
        self._require((answer.slot.skipped is not None) == key.skipped, "skipped, or late and not skipped")
        self.rows = (self.rows - replaced) | rows
        if key.series is not None and not key.skipped:
            self.latest = max(self.latest or "", key.series.position)

    def _replaced(self, key: Key, rows: Rows) -> Rows | None:
        """The rows that a commit removes; None: it cannot be told."""
        days_of = {day for day, _ in rows}
        match key.mode:
            case WriteMode.OVERWRITE:
                return frozenset(self.rows)
            case WriteMode.OVERWRITE_PARTITIONS:
                rest = frozenset(row for row in key.before if row[0] not in days_of)
                return frozenset(row for row in self.rows if row[0] in days_of) | rest if rest <= self.rows else None
            case _:
                return key.before if key.before <= self.rows else None

    def _frame(self) -> tuple[Any, Rows]:
        chosen = self.dice.sample(DAYS, self.dice.randint(1, 2))
        numbers = {day: self.number + at for at, day in enumerate(chosen)}
        self.number += len(chosen)
        return days(**numbers), frozenset(numbers.items())

    def _sink(self, key: Key) -> Any:
        return self.lake.sink(None if key.mode is WriteMode.APPEND else key.mode, key.series)


def played(kind: str, folder: Path, patch: pytest.MonkeyPatch, seeds: range) -> Counter[str]:
    """Raises WrongTurn."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        lake = lake_of(kind, folder / str(seed), patch)
        lake.partition_by = ("day",)
        (folder / str(seed)).mkdir()
        turns = Turns(lake, random.Random(effort.seed(f"{kind} {seed}")))
        for module in (delta, iceberg, iceberg_commit):
            patch.setattr(module, "hit", turns.hit)
        seen += turns.play()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_readers_see_what_turns_would_have_left(
    tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, part: int, say: Callable[[str], None]
) -> None:
    """Every answer and every row is the model's, whatever happened in the middle of a commit."""
    seen = played(kind, tmpfs_path, monkeypatch, range(part, SCHEDULES, PARTS))
    say(f"{kind}: {SCHEDULES // PARTS} schedules; {dict(seen.most_common())}")
    assert min(seen[each] for each in ("Committed", "between", "skipped")) > 0
    assert seen["Late"] + seen["late before staging"] > 0


def a_series_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    for module in (delta, iceberg):
        patch.setattr(module, "lateness", lambda *_: None)


def a_fence_only_looks(patch: pytest.MonkeyPatch) -> None:
    async def look(sink: Any, key: SinkKey, _: int, **__: Any) -> Slot | None:
        found: Slot | None = await sink.find(key)
        return found

    patch.setattr(DeltaTableSink, "fence", look)


def what_came_in_between_stays(patch: pytest.MonkeyPatch) -> None:
    """An overwrite replaces the rows of the version that it looked at first."""
    real, first = delta_plan.replaced, dict[str, Any]()

    async def replaced(objects: Any, table: Any, key: SinkKey, slot: Slot, files: Any) -> Any:
        removed = first.setdefault(slot.nonce, await real(objects, table, key, slot, files))
        return [path for path in removed if path in table.live]

    patch.setattr(delta_plan, "replaced", replaced)


@pytest.mark.slow
@pytest.mark.parametrize("defect", [a_series_is_not_compared, a_fence_only_looks, what_came_in_between_stays])
def test_a_missing_rule_is_found(
    tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch, defect: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Without the rule some schedule leaves other rows, or gets another answer."""
    defect(monkeypatch)
    with pytest.raises(WrongTurn):
        played("delta", tmpfs_path, monkeypatch, range(DEFECT_SEEDS))
