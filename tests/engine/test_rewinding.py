"""The alarm of one process: raised after a second look only, kept while the store seems to catch up, ended by a person or a return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.key_objects import HASH, obj, record, told, view
from sparkonce.engine import attend, rewinding
from sparkonce.engine.attend import Attend
from sparkonce.engine.object_view import ObjectView
from sparkonce.engine.rewinding import OUTSIDE, Rewinding
from sparkonce.engine.rewound import Witness
from sparkonce.engine.workqueue import Slots
from sparkonce.errors import StoreUnavailable
from sparkonce.model.record import Address
from sparkonce.observe.meter import NoMeter
from sparkonce.store.protocol import View

HERE = Address(realm="etl", key_hash=HASH)
NEWEST = Address(realm="etl", key_hash="cd" * 32)
AT_50 = record(revision=50)


class Store:
    """Says what a test lets it say of each key; the newest answer stays."""

    def __init__(self, **answers: list[View | Exception]) -> None:
        self.here = answers.get("here", [])
        self.newest = answers.get("newest", [])
        self.outside = answers.get("outside", [])
        self.asked = 0

    async def load(self, address: Address) -> View:
        self.asked += 1
        answers = {HERE: self.here, NEWEST: self.newest, OUTSIDE: self.outside}[address]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def witness(**change: Any) -> Witness:
    """Of another key: generation 1 at revision 90 of epoch 1."""
    fields: dict[str, Any] = {"epoch": 1, "revision": 90, "key_hash": NEWEST.key_hash, "generation": 1}
    return Witness(**(fields | change))


def at(revision: int, **change: Any) -> View:
    return view(AT_50, revision=revision, **change)


def seen(revision: int) -> ObjectView:
    """An object that was told of its record at this revision."""
    return told(obj(), view(record(revision=revision), revision=revision))


class Process:
    def __init__(self, store: Store, newest: Witness | None = None) -> None:
        self.said: list[str] = []
        self.ends = 0
        self.over = asyncio.Event()
        self.rewinding = Rewinding(
            store,  # type: ignore[arg-type]  # only `load` is asked
            newest=lambda: None if newest is None else (NEWEST, newest),
            on_alarm=self.said.append,
            on_end=self._end,
        )

    def _end(self) -> None:
        self.ends += 1
        self.over.set()

    async def check(self, first: View, *objects: ObjectView) -> str | None:
        return await self.rewinding.check(first, HERE, objects)


def scene(steps: Callable[[], Any]) -> None:
    asyncio.run(steps())


def test_an_alarm_needs_a_second_look() -> None:
    """A status that was written between two readings has seen more than the first one: it is read again, and all is well."""

    async def steps() -> None:
        store = Store(here=[at(95)])
        process = Process(store, witness())
        assert await process.check(at(80)) is None
        assert store.asked == 1 and not process.said
        assert await process.check(at(95)) is None
        assert store.asked == 1, "nothing was in doubt, and it was asked all the same"

    scene(steps)


@pytest.mark.parametrize("proof", ["the store is older", "the record is older"])
def test_an_alarm_is_raised_once(proof: str) -> None:
    """By a store, or by a record, that is older than a status; from then on no key needs a proof of its own."""

    async def steps() -> None:
        older = proof == "the store is older"
        now = at(80) if older else at(95)
        store = Store(here=[now])
        process = Process(store, witness() if older else None)
        objects = [] if older else [seen(60)]
        said = await process.check(now, *objects)
        assert said is not None and "accept-restore" in said
        assert await process.rewinding.check(at(1000), NEWEST, []) == said
        assert process.said == [said]

    scene(steps)


def test_a_store_that_is_written_on_has_not_come_back() -> None:
    """Its revision passes what was seen, by other writers: the alarm stands until the record that was seen last is there, too."""

    async def steps() -> None:
        store = Store(here=[at(80), at(80), at(200)], newest=[at(200), view(record(revision=90), revision=200)])
        process = Process(store, witness())
        assert await process.check(at(80)) is not None
        await process.rewinding.look_again()
        assert process.rewinding.alarm is not None, "its revision alone"
        await process.rewinding.look_again()
        assert process.rewinding.alarm is not None, "the record is at revision 50"
        await process.rewinding.look_again()
        assert process.rewinding.alarm is None
        assert process.ends == 1

    scene(steps)


def test_a_record_that_was_removed_since_has_come_back() -> None:
    """With the newer store, of which the key was forgotten, its floor is there."""

    async def steps() -> None:
        store = Store(here=[at(80), at(200)], newest=[view(None, floor=1, revision=200)])
        process = Process(store, witness())
        assert await process.check(at(80)) is not None
        await process.rewinding.look_again()
        assert process.rewinding.alarm is None

    scene(steps)


def test_a_person_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another epoch, which is seen without anybody asking, also after readings that failed."""
    monkeypatch.setattr(rewinding, "LOOK_AGAIN", 0.01)

    async def steps() -> None:
        accepted = at(20, epoch=2)
        store = Store(here=[at(10), at(11), StoreUnavailable("away"), at(12), accepted])
        process = Process(store, witness())
        assert await process.check(at(10)) is not None
        await asyncio.wait_for(process.over.wait(), 20)
        assert process.rewinding.alarm is None
        assert process.ends == 1
        assert await process.check(accepted) is None, "the old epoch's statuses say nothing any more"

    scene(steps)


def test_an_application_as_proof() -> None:
    """An alarm that a drive raised, by an application under another grant, has no status that could be there again: a person ends it."""

    async def steps() -> None:
        store = Store(outside=[at(100), at(300), at(300, epoch=2)])
        process = Process(store)
        process.rewinding.raise_it("an application says so", epoch=1)
        for alarm in ("an application says so", "an application says so", None):
            await process.rewinding.look_again()
            assert process.rewinding.alarm == alarm

    scene(steps)


def test_nothing_is_looked_at_before_every_object_was_seen() -> None:
    """A process that has only just begun knows no status that could prove anything: no key is read, taken over or opened."""

    class NotSeen:
        synced = False

        def of(self, _: Address) -> list[dict[str, Any]]:
            return []

    untouched: Any = None
    objects: Any = NotSeen()
    process = Attend(
        store=untouched,
        launcher=untouched,
        objects=objects,
        ownership=untouched,
        reader=untouched,
        publisher=untouched_publisher(),
        rewinding=untouched,
        meter=NoMeter(),
        slots=Slots(1),
        install="east",
        owner="test",
        sweeping=untouched,
        look=lambda _: None,
    )
    assert asyncio.run(process.attend(HERE)) == attend.NOT_SEEN


def untouched_publisher() -> Any:
    class Publisher:
        refused = None

    return Publisher()
