"""`rewound`: a status that is ahead of the store, and no other, proves that the store was put back to an older state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.key_objects import HASH, NOW, edited, ended, obj, record, told, view
from sparkonce.controller.objects import ObjectView
from sparkonce.controller.rewind_guard import Witness, behind, rewound
from sparkonce.controller.status import next_status, project
from sparkonce.model.record import Outcome, Record
from sparkonce.store.protocol import View


def witness(**changes: Any) -> Witness:
    """Has seen generation 2 of the key at revision 50 of epoch 1."""
    fields: dict[str, Any] = {
        "epoch": 1,
        "revision": 50,
        "key_hash": HASH,
        "generation": 2,
        "phase": "Running",
        "name": "etl/job",
    }
    return Witness(**(fields | changes))


G1, G2, G3 = (record(generation=generation, revision=50) for generation in (1, 2, 3))
TABLE: list[tuple[str, Witness, View, str]] = [
    ("as told", witness(), view(G2), ""),
    ("the record moved on", witness(), view(G2.changed().model_copy(update={"revision": 60})), ""),
    ("the next generation", witness(), view(G3), ""),
    ("the next generation, at a lower revision than a restored one may have", witness(), view(G3.model_copy(update={"revision": 40})), ""),
    ("the record is older", witness(), view(G2.model_copy(update={"revision": 40})), "seen generation 2 of its key at revision 50"),
    ("an older generation", witness(), view(G1), "seen generation 2 of its key, and the ledger knows 1"),
    ("the store is older", witness(), view(G3, revision=49), "seen revision 50 of epoch 1 of the ledger, which is at revision 49"),
    ("the store is just as old", witness(), view(G2, revision=50), ""),
    ("forgotten", witness(), view(None, floor=2), ""),
    ("forgotten, and others after it", witness(), view(None, floor=5), ""),
    ("lost, and an older floor is left", witness(), view(None, floor=1), "seen generation 2 of its key, and the ledger knows 1"),
    ("empty", witness(), view(None, revision=0), "seen revision 50 of epoch 1"),
    ("empty, and busy since", witness(), view(None, revision=1000), "the ledger knows 0"),
    ("accepted since", witness(), view(G1, revision=1, epoch=2), ""),
    ("accepted since, and empty", witness(), view(None, revision=1, epoch=2), ""),
    ("accepted, and restored to before", witness(epoch=2, revision=1), view(G2), "seen revision 1 of epoch 2"),
    ("Expired before", witness(phase="Expired"), view(None, floor=2), ""),
    ("Expired before, and its floor is lost", witness(phase="Expired"), view(None, floor=1), "the ledger knows 1"),
    ("of another key", witness(key_hash="cd" * 32), view(None), ""),
    ("of another key, and the store is older", witness(key_hash="cd" * 32), view(None, revision=49), "seen revision 50"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "at", "says"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_rewound(one: Witness, at: View, says: str) -> None:
    """Each row's status and store give a proof or none; a proof is one sentence that names the object and the command to run."""
    said = rewound([one], at, HASH)
    if not says:
        assert said is None
        return
    assert said is not None and says in said
    assert "etl/job" in said and "sparkonce doctor accept-restore" in said


def test_one_of_many_statuses_is_enough() -> None:
    """All statuses are compared until one gives a proof."""
    said = rewound([witness(generation=1), witness(), witness(generation=7, name="etl/late")], view(G2), HASH)
    assert said is not None and "etl/late" in said
    assert rewound([], view(None), HASH) is None


def test_the_store_as_a_whole() -> None:
    """Even without reading its key, a status is compared with the store's epoch and revision."""
    assert behind(witness(), epoch=1, revision=50) is None
    assert behind(witness(), epoch=2, revision=1) is None
    assert behind(witness(), epoch=1, revision=49) is not None
    assert behind(witness(epoch=2, revision=1), epoch=1, revision=99) is not None


def test_only_what_was_told_is_a_witness() -> None:
    """An object without a status, or with one that was written without the ledger, is no witness."""
    assert Witness.of(obj()) is None
    assert Witness.of(told(obj(), view(None))) is None
    assert Witness.of(told(obj(), view(record()))) == Witness(
        epoch=1, revision=10, key_hash=HASH, generation=1, phase="Running", name="etl/job-X"
    )


class Ledger:
    """One key in a store that other keys write to as well."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.floor, self.revision, self.epoch = 0, 1, 1

    def view(self) -> View:
        return view(self.record, floor=self.floor, revision=self.revision, epoch=self.epoch)

    def put(self, of: Record) -> None:
        self.revision += 1
        self.record = of.model_copy(update={"revision": self.revision, "epoch": self.epoch})

    def happens(self, what: str) -> None:
        now = self.record
        match what:
            case "traffic":
                self.revision += 3
            case "open" if now is None:
                self.put(record(generation=self.floor + 1))
            case "open" if now is not None and now.outcome is not None:
                self.put(record(generation=now.generation + 1, fingerprint="B" if now.fingerprint == "A" else "A"))
            case "attach" | "grant" if now is not None and now.outcome is None:
                self.put(now.changed(attempt=now.attempt + 1) if what == "grant" else now.changed(objects=("X", "Y")))
            case "end" if now is not None and now.outcome is None:
                outcome = Outcome.CANCELLED if now.attempt > 2 else Outcome.SUCCEEDED
                self.put(ended(outcome, generation=now.generation, fingerprint=now.fingerprint, objects=now.objects))
            case "forget" if now is not None and now.outcome is not None:
                self.floor, self.record, self.revision = now.generation, None, self.revision + 1


HAPPENS = ["open", "attach", "grant", "end", "forget", "traffic", "tell X", "tell Y", "tell late", "edit X"]
histories = st.lists(st.sampled_from(HAPPENS), max_size=30)


def play(ledger: Ledger, history: list[str], objects: dict[str, ObjectView]) -> None:
    """Writes statuses from the current state, and sometimes from an earlier read."""
    stale = ledger.view()
    for what in history:
        ledger.happens(what)
        verb, _, who = what.partition(" ")
        if verb == "edit":
            now = objects[who]
            objects[who] = edited(now, "B" if now.asks("A") else "A")
        elif verb == "tell":
            of = objects["Y" if who == "late" else who]
            seen = stale if who == "late" else ledger.view()
            status = next_status(of.status, project(seen, of, now_text=NOW))
            objects[of.uid] = replace(of, status=status or of.status)
        if len(what) % 2:
            stale = ledger.view()


def proof(ledger: Ledger, objects: dict[str, ObjectView]) -> str | None:
    found = [one for one in map(Witness.of, objects.values()) if one is not None]
    return rewound(found, ledger.view(), HASH)


@given(histories)
def test_a_store_that_was_never_restored_raises_no_alarm(history: list[str]) -> None:
    """Whatever happens to a key and its objects, with late statuses and edits, no status is ahead of the store."""
    ledger, objects = Ledger(), {uid: obj(uid) for uid in "XY"}
    play(ledger, history, objects)
    assert proof(ledger, objects) is None


@given(histories, histories, st.integers(0, 40))
def test_a_restored_store_is_noticed(before: list[str], after: list[str], traffic: int) -> None:
    """A key that a status showed after the backup is recognised as lost or older, however much other keys have written since; once the
    restore is accepted, the old epoch no longer counts."""
    ledger, objects = Ledger(), {uid: obj(uid) for uid in "XY"}
    play(ledger, before, objects)
    backup = (ledger.record, ledger.floor, ledger.revision)
    known = ledger.record.generation if ledger.record else ledger.floor
    play(ledger, after, objects)
    ledger.record, ledger.floor, ledger.revision = backup
    ledger.revision += traffic
    found = [one for one in map(Witness.of, objects.values()) if one is not None]
    lost = [one for one in found if one.revision > backup[2] and one.generation >= known]
    if backup[0] is None:
        lost = [one for one in lost if one.generation > known]  # Expired was written again, and nothing is lost
    assert proof(ledger, objects) is not None or not lost
    ledger.epoch += 1
    assert proof(ledger, objects) is None
