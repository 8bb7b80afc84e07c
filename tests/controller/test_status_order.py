"""`newer` and `next_status`: a status only moves forward, whichever process writes it, and is written only if it has news for a reader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.key_objects import LATER, NOW, ended, obj, record, result, view
from controller.key_strategies import views
from sparkonce.controller.objects import ObjectView
from sparkonce.controller.status import newer, next_status, order, project
from sparkonce.model.record import Record


def at(*place: int, **more: Any) -> dict[str, Any]:
    return (
        dict(zip(("epoch", "ledgerRevision", "observedGeneration"), place, strict=True)) | {"phase": "Running"} | more
    )


ASCENDING = [at(0, 0, 1), at(1, 5, 1), at(1, 5, 2), at(1, 6, 1), at(2, 1, 1)]


@pytest.mark.parametrize("high", range(len(ASCENDING)))
@pytest.mark.parametrize("low", range(len(ASCENDING)))
def test_order(low: int, high: int) -> None:
    """Statuses are ordered by epoch, then by the ledger's revision, then by the edit of the object."""
    assert newer(ASCENDING[high], ASCENDING[low]) is (high > low)


def test_a_status_that_says_nothing_of_the_ledger_is_the_oldest() -> None:
    """A missing status, or one that was written without the ledger, is older than any answer."""
    assert order(None) == order({}) == (0, 0, 0)
    assert newer(at(1, 1, 1), {"observedGeneration": 9}) and not newer(None, {})


def reserved(status: str, since: str, message: str = "m") -> dict[str, Any]:
    condition = {"type": "Reserved", "status": status, "reason": "r", "message": message, "lastTransitionTime": since}
    return at(1, 5, 1, conditions=[condition])


@pytest.mark.parametrize(
    ("stored", "wanted", "written"),
    [
        pytest.param(None, at(1, 5, 1), True, id="the first"),
        pytest.param({}, at(1, 5, 1), True, id="an empty one"),
        pytest.param(at(1, 5, 1), at(1, 5, 1), False, id="the same"),
        pytest.param(at(1, 5, 1), at(1, 6, 1), False, id="the record moved and nobody learns anything"),
        pytest.param(at(1, 5, 1), at(2, 3, 1), True, id="another epoch"),
        pytest.param(at(1, 5, 1), at(1, 5, 2), True, id="an edit was observed"),
        pytest.param(at(1, 5, 1), at(1, 5, 1, owner="o2"), True, id="another owner of the same record"),
        pytest.param(at(1, 5, 1), at(1, 6, 1, phase="Held"), True, id="another phase"),
        pytest.param(at(1, 6, 1), at(1, 5, 1, phase="Held"), False, id="older than what is stored"),
        pytest.param(at(2, 1, 1), at(1, 9, 9, phase="Held"), False, id="of an older epoch"),
        pytest.param(at(1, 5, 2), at(1, 5, 1, phase="Held"), False, id="of an older edit"),
        pytest.param(reserved("True", NOW), reserved("True", LATER), False, id="another time"),
        pytest.param(reserved("True", NOW), reserved("False", LATER), True, id="flipped"),
        pytest.param(reserved("True", NOW), reserved("True", NOW, "n"), True, id="another message"),
        pytest.param(at(1, 5, 1, conditions=[]), at(1, 5, 1), False, id="no condition either way"),
    ],
)  # fmt: skip
def test_next_status(stored: dict[str, Any] | None, wanted: dict[str, Any], written: bool) -> None:
    """The stored status is replaced exactly if it is not newer and the new one has news for a reader."""
    assert next_status(stored, wanted) == (wanted if written else None)


def test_after_a_conflict_only_what_is_newer_is_written() -> None:
    """Of two projections of one record, the one whose write met a conflict is dropped."""
    stored, other = at(1, 5, 1), at(1, 5, 1, owner="o2")
    assert next_status(stored, other) == other
    assert next_status(stored, other, conflicted=True) is None
    assert next_status(stored, at(1, 6, 1, owner="o2"), conflicted=True) is not None
    assert next_status(None, other, conflicted=True) == other


@dataclass
class Server:
    """One object as an API server stores it."""

    status: dict[str, Any] = field(default_factory=dict)
    version: int = 1
    generation: int = 1
    spec: str = "A"
    written: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> tuple[int, ObjectView]:
        return self.version, obj(self.uid, self.spec, generation=self.generation, status=self.status)

    uid = "X"

    def edit(self) -> None:
        self.spec, self.generation, self.version = (
            "B" if self.spec == "A" else "A",
            self.generation + 1,
            self.version + 1,
        )

    def write(self, version: int, status: dict[str, Any]) -> bool:
        if version != self.version:
            return False
        self.status, self.version = status, self.version + 1
        self.written.append(status)
        return True


class Writer:
    """A process that has read record and object once, and may be frozen before every step."""

    def __init__(self, server: Server, seen: Any) -> None:
        self.server, self.seen = server, seen
        self.version, self.of = server.read()
        self.conflicted = self.done = False

    def step(self) -> None:
        if self.done:
            return
        wanted = next_status(self.of.status, project(self.seen, self.of, now_text=NOW), conflicted=self.conflicted)
        if wanted is None or self.server.write(self.version, wanted):
            self.done = True
            return
        self.conflicted = True
        self.version, now = self.server.read()
        body = {"metadata": {"uid": now.uid, "generation": now.generation}, "status": now.status}
        reread = self.of.reread(body)
        self.done = reread is None
        self.of = reread or self.of


@given(st.lists(views(), min_size=1, max_size=4), st.lists(st.integers(0, 9), max_size=40))
def test_statuses_never_go_back(seen: list[Any], schedule: list[int]) -> None:
    """However processes with any views interleave, with edits in between, no status is followed by an older one, and none is written over
    an edit that its writer had not read."""
    server = Server()
    writers: list[Writer] = []
    for draw in schedule:
        if draw == 9:
            server.edit()
        elif draw >= 7 or not writers:
            writers.append(Writer(server, seen[draw % len(seen)]))
        else:
            before, now = len(server.written), server.generation
            writers[draw % len(writers)].step()
            assert all(status["observedGeneration"] == now for status in server.written[before:])
    for one, other in zip(server.written, server.written[1:], strict=False):
        assert not newer(one, other)


def test_a_zombie_writes_nothing_over_the_end() -> None:
    """A process that was frozen before it wrote Running finds the result and leaves it."""
    server = Server()
    zombie = Writer(server, view(record()))
    quick = Writer(server, view(ended()))
    quick.step()
    zombie.step()
    zombie.step()
    assert [status["phase"] for status in server.written] == ["Succeeded"]
    assert zombie.done


def test_a_job_that_runs_well_has_three_statuses() -> None:
    """From the application to the result, a record that changes eight times gives three status writes."""
    server = Server()
    looks: list[tuple[Record, dict[str, Any]]] = [
        (record(phase="Accepted", revision=11), {}),
        (record(phase="Starting", revision=12), {}),
        (record(revision=13), {}),
        (record(phase="Finishing", revision=14), {"progress": {}}),
        (record(intent=1, revision=15), {}),
        (record(objects=("X/etl/job-X", "Y/etl/job-Y"), revision=16), {}),
        (ended(revision=17), {"result": result()}),
        (ended(revision=17), {}),
    ]
    for of, known in looks:
        version, now = server.read()
        wanted = next_status(now.status, project(view(of), now, now_text=NOW, **known))
        if wanted is not None:
            server.write(version, wanted)
    assert [status["phase"] for status in server.written] == ["Pending", "Running", "Succeeded"]
