"""The alarm of one process: raised only after a second look, kept while the store seems to catch up, ended by a person or by the store's
return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.key_objects import HASH, NOW, obj, record, told, view
from harness.patience import within
from sparkonce.controller import reconcile
from sparkonce.controller import rewind_guard as rewinding
from sparkonce.controller.desired import NO_REALM
from sparkonce.controller.drive_tasks import DriveBuilder
from sparkonce.controller.objects import ObjectView
from sparkonce.controller.reconcile import Reconciler
from sparkonce.controller.rewind_guard import OUTSIDE, RewindGuard, Witness
from sparkonce.controller.status import STATUS_VERSION, next_status, project
from sparkonce.controller.workqueue import Permits
from sparkonce.errors import StoreUnavailable
from sparkonce.model.record import Address
from sparkonce.observe.meter import NoMeter
from sparkonce.store.protocol import View

HERE = Address(realm="etl", key_hash=HASH)
NEWEST = Address(realm="etl", key_hash="cd" * 32)
AT_50 = record(revision=50)


class Store:
    """Answers the reads of each key with the test's list; the last answer is repeated."""

    def __init__(self, **answers: list[View | Exception]) -> None:
        self.here = answers.get("here", [])
        self.newest = answers.get("newest", [])
        self.outside = answers.get("outside", [])
        self.there = at(0)
        """For the tenant's key."""
        self.asked = 0

    async def load(self, address: Address) -> View:
        self.asked += 1
        await asyncio.sleep(0)
        answers: dict[Address, list[Any]] = {
            HERE: self.here,
            NEWEST: self.newest,
            OUTSIDE: self.outside,
            TENANT: [self.there],
        }
        told = answers[address]
        answer = told.pop(0) if len(told) > 1 else told[0]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, View)
        return answer


def witness(**change: Any) -> Witness:
    """A status of another key: generation 1 at revision 90 of epoch 1."""
    fields: dict[str, Any] = {"epoch": 1, "revision": 90, "key_hash": NEWEST.key_hash, "generation": 1}
    return Witness(**(fields | change))


def at(revision: int, **change: Any) -> View:
    return view(AT_50, revision=revision, **change)


def seen(revision: int) -> ObjectView:
    """An object whose status shows its record at this revision."""
    return told(obj(), view(record(revision=revision), revision=revision))


class Process:
    def __init__(self, store: Store, newest: Witness | None = None, **others: tuple[Address, Witness]) -> None:
        """`others`: the newest statuses of other realms."""
        self.said: list[str] = []
        self.frozen: list[str | None] = []
        self.newest = others if newest is None else {NEWEST.realm: (NEWEST, newest), **others}
        self.ends = 0
        self.over = asyncio.Event()
        self.rewinding = RewindGuard(
            store,  # type: ignore[arg-type]  # only `load` is asked
            newest=lambda: self.newest,
            on_alarm=self._alarmed,
            on_end=self._end,
        )

    def _alarmed(self, said: str, realm: str | None) -> None:
        self.said.append(said)
        self.frozen.append(realm)

    @property
    def here(self) -> str | None:
        return self.rewinding.alarm_of(HERE.realm)

    def _end(self) -> None:
        self.ends += 1
        self.over.set()

    async def check(self, first: View, *objects: ObjectView) -> str | None:
        return await self.rewinding.check(first, HERE, objects)


def scene(steps: Callable[[], Any]) -> None:
    asyncio.run(steps())


def test_an_alarm_needs_a_second_look() -> None:
    """A status written between two reads is newer than the first: the store is read again, and there is no alarm."""

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
    """A store or a record that is older than a status raises the alarm, after which no key needs a proof of its own."""

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


def test_two_looks_at_once_raise_one_alarm() -> None:
    """Keys of one realm are checked concurrently: the second to find a proof adds no alarm."""

    async def steps() -> None:
        process = Process(Store(here=[at(80)]), witness())
        first, second = await asyncio.gather(process.check(at(80)), process.check(at(80)))
        assert first == second is not None
        assert process.frozen == ["etl"]

    scene(steps)


def test_a_store_that_is_written_on_has_not_come_back() -> None:
    """Other writers raise the store's revision beyond the one seen: the alarm stays until the record that was seen last is back, too."""

    async def steps() -> None:
        store = Store(here=[at(80), at(80), at(200)], newest=[at(200), view(record(revision=90), revision=200)])
        process = Process(store, witness())
        assert await process.check(at(80)) is not None
        await process.rewinding.check_again()
        assert process.here is not None, "its revision alone"
        await process.rewinding.check_again()
        assert process.here is not None, "the record is at revision 50"
        await process.rewinding.check_again()
        assert process.here is None
        assert process.ends == 1

    scene(steps)


def test_a_record_that_was_removed_since_has_come_back() -> None:
    """If the key was forgotten in the newer store, its floor shows that this store is the newer one."""

    async def steps() -> None:
        store = Store(here=[at(80), at(200)], newest=[view(None, floor=1, revision=200)])
        process = Process(store, witness())
        assert await process.check(at(80)) is not None
        await process.rewinding.check_again()
        assert process.here is None

    scene(steps)


def test_a_person_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm ends with a new epoch, which the process notices by itself, also after failed reads."""
    monkeypatch.setattr(rewinding, "CHECK_AGAIN", 0.01)

    async def steps() -> None:
        accepted = at(20, epoch=2)
        store = Store(here=[at(10), at(11), StoreUnavailable("away"), at(12), accepted])
        process = Process(store, witness())
        assert await process.check(at(10)) is not None
        await within(process.over.wait(), 20)
        assert process.here is None
        assert process.ends == 1
        assert await process.check(accepted) is None, "the old epoch's statuses say nothing any more"

    scene(steps)


def test_an_application_as_proof() -> None:
    """An alarm that a drive raised, by an application with an unknown grant, has no status that could come true again: only a person ends
    it."""

    async def steps() -> None:
        store = Store(outside=[at(100), at(300), at(300, epoch=2)])
        process = Process(store)
        process.rewinding.raise_it("an application says so", realm=HERE.realm, epoch=1)
        for alarm in ("an application says so", "an application says so", None):
            await process.rewinding.check_again()
            assert process.here == alarm

    scene(steps)


TENANT = Address(realm="tenant", key_hash="ef" * 32)


def spoofed(**change: Any) -> Witness:
    return witness(key_hash=TENANT.key_hash, name="tenant/spoofed", **change)


def test_one_realm_freezes_itself_alone() -> None:
    """A tenant's status, whatever revision it claims, stops only the keys of the tenant's own namespace, not other realms or the
    operator."""

    async def steps() -> None:
        store = Store(here=[at(95)])
        store.there = at(95)
        process = Process(store, witness(), tenant=(TENANT, spoofed(revision=10**12)))
        said = await process.rewinding.check(at(95), TENANT, [])
        assert said is not None and "tenant/spoofed" in said
        assert process.frozen == ["tenant"]
        assert await process.check(at(95)) is None
        assert (process.here, process.rewinding.alarm, list(process.rewinding.realms)) == (None, None, ["tenant"])
        assert process.rewinding.nothing_left is None
        del process.newest["etl"]
        assert process.rewinding.nothing_left == said, "it is all that this process knows"

    scene(steps)


def test_all_freeze_when_several_realms_agree() -> None:
    """A restored store is older for every realm. The first proof makes the process check the others, two proofs freeze all realms, and the
    sentence names both witnesses; a realm without a status of its own is frozen with them until one of the two proofs is over."""

    async def steps() -> None:
        store = Store(here=[at(80), at(80, epoch=2)])
        process = Process(store, witness(name="etl/load"), tenant=(TENANT, spoofed()))
        store.there = at(80)
        said = await process.check(at(80))
        assert said is not None
        assert said.startswith(
            "2 realms agree, witnessed by etl/load (realm etl), tenant/spoofed (realm tenant): the ledger is older"
        )
        assert process.frozen == ["etl", "tenant", None]
        assert process.rewinding.alarm_of("third") == process.rewinding.alarm == said
        await process.rewinding.check_again()
        assert (process.here, process.rewinding.alarm_of("third")) == (None, None)
        assert process.rewinding.alarm_of("tenant") is not None

    scene(steps)


@pytest.mark.parametrize("epoch", [18, 1000, 2**31 - 1])
def test_an_epoch_that_no_restore_explains_is_no_evidence(epoch: int) -> None:
    """A plausible status is at most sixteen epochs ahead: beyond that it proves nothing about its key or the store."""

    async def steps() -> None:
        process = Process(Store(here=[at(95)]), witness(epoch=epoch))
        forged = replace(seen(60), status={**seen(60).status, "epoch": epoch})
        assert await process.check(at(95), forged) is None
        assert process.frozen == []
        assert await Process(Store(here=[at(95)]), witness(epoch=17)).check(at(95)) is not None

    scene(steps)


@pytest.mark.parametrize("field", ["epoch", "ledgerRevision"])
@pytest.mark.parametrize("value", [2**62, -1, "7", True, 1.5, None])
def test_what_is_no_number_of_a_ledger_is_ignored_and_written_anew(field: str, value: Any) -> None:
    """Epoch and revision of a status are input: out of bounds, the status is no witness, the reason is given, and a true status replaces it
    although it claims to be newer."""
    body = {
        "metadata": {"uid": "u", "namespace": "etl", "name": "job"},
        "status": {"epoch": 1, "ledgerRevision": 5, "fingerprint": "A", field: value},
    }
    found = ObjectView.of(body, None)
    assert found.implausible.startswith(f"status.{field} is {value}, and a ledger's is a number from 0 to ")
    assert Witness.of(found) is None
    assert found.status == {"fingerprint": "A"}
    true = project(view(record()), obj(), now_text=NOW)
    assert next_status(found.status, true) == true


def test_an_epoch_far_ahead_is_overwritten() -> None:
    """A status whose epoch no restore explains does not block the true one; one that a restore explains does."""
    true = project(view(record()), obj(), now_text=NOW)
    assert next_status(true | {"epoch": 18}, true) == true
    assert next_status(true | {"epoch": 17}, true) is None


def test_nothing_is_looked_at_before_every_object_was_seen() -> None:
    """A process that has not listed all objects knows no status that could prove a rewind: it reads, takes over and opens no key."""

    class NotSeen:
        synced = False

        def of(self, _: Address) -> list[dict[str, Any]]:
            return []

    process = reconciler(NotSeen(), version=STATUS_VERSION)
    assert asyncio.run(process.reconcile(HERE)) == reconcile.NOT_SEEN


def test_nothing_is_written_before_the_roster_was_read() -> None:
    """A process that does not yet know which version of statuses the others write leaves every key alone, even that of an invalid object;
    it only reads the ledger."""
    asked = []

    class Ledger:
        async def load(self, address: Address) -> None:
            asked.append(address)

    class Objects:
        def of(self, _: Address) -> list[Any]:
            return []

    process = reconciler(Objects(), version=None)
    process.store = Ledger()  # type: ignore[assignment] # no more than it may touch
    for address in (HERE, Address(realm=NO_REALM, key_hash=HERE.key_hash)):
        assert asyncio.run(process.reconcile(address)) == reconcile.NOT_SEEN
    assert asked == [HERE]


def test_ended_claims_are_remembered_up_to_a_number() -> None:
    """To measure takeovers: of many keys for ever another process comes first, and of some the newest count."""
    process = reconciler(None, version=STATUS_VERSION)
    addresses = [Address(realm="etl", key_hash=f"{number:064x}") for number in range(reconcile.MOST_UNOWNED + 2)]
    for address in addresses:
        process.claim_ended(address)
    assert list(process._unowned) == addresses[2:]


def reconciler(objects: Any, *, version: int | None) -> Reconciler:
    """A reconciler whose other parts must not be used."""
    untouched: Any = None
    return Reconciler(
        store=untouched,
        objects=objects,
        lease_guard=untouched,
        reader=untouched,
        status_writer=untouched_publisher(version),
        rewind_guard=untouched,
        meter=NoMeter(),
        permits=Permits(1),
        owner="test",
        builder=DriveBuilder(store=untouched, launcher=untouched, lease_guard=untouched, install="east", owner="test"),
        garbage=untouched,
        enqueue=lambda _: None,
    )


def untouched_publisher(known: int | None) -> Any:
    class Publisher:
        refused = waits_for_slot = None

        def version(self) -> int | None:
            return known

    return Publisher()
