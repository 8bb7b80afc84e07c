"""If the object changes between the plan and the write, the operator opens nothing, or runs the object as it is now."""

from __future__ import annotations

import asyncio
import copy
from types import SimpleNamespace
from typing import Any

import pytest

from harness.jobs import job
from harness.memory_store import MemoryStore
from sparkonce.attempt.rerun import ANNOTATION
from sparkonce.controller.admission import NO_PERMIT, SAID_AFTER, Admission
from sparkonce.controller.desired import Desired, DesiredReader
from sparkonce.controller.objects import Json, ObjectView
from sparkonce.controller.plan import plan
from sparkonce.model.record import Outcome, Result
from sparkonce.store.protocol import Owned, View

NOW = 100.0


def body(*arguments: str, text: str | None = None, generation: int = 1) -> Json:
    made = job("job", key="key", arguments=arguments)
    made["metadata"] |= {"namespace": "etl", "uid": "uid-1", "generation": generation}
    if text is not None:
        made["metadata"]["annotations"] = {ANNOTATION: text}
    return copy.deepcopy(made)


def admission_on(anything: Any, reader: DesiredReader, **given: Any) -> Admission:
    """`anything`: every collaborator that is not given."""
    parts: dict[str, Any] = {
        **dict.fromkeys(("store", "objects", "lease_guard", "meter", "permits"), anything),
        **dict.fromkeys(("on_owned", "on_full", "enqueue"), lambda *_: None),
    }
    return Admission(reader=reader, new_nonce=lambda: "n2", **(parts | given))


async def opened(planned: Json, live: Json | None) -> list[tuple[int, tuple[str, ...]]]:
    """After a success of the object without its annotation, carries out a plan made for `planned` while the API server has `live`. Returns
    each generation that this opened, with the arguments of its recorded job."""
    store, reader = MemoryStore(), DesiredReader()
    lease = await store.open_lease(owner="operator")
    first = reader.read(body("a"))
    assert isinstance(first, Desired)
    owned = await store.reserve(first.request("n1", number=1, objects=[first.ref]), lease=lease, floor=0)
    assert isinstance(owned, Owned)
    done = Result(outcome=Outcome.SUCCEEDED, generation=1, attempts=1, evidence="seen")
    await store.finalize(owned.record, owned.claim, done, retention=60.0)
    owners: list[Owned] = []

    async def get(_: object) -> Json | None:
        return live

    anything: Any = SimpleNamespace(
        synced=True, live=get, lease=lease, reserved=lambda _: None, try_take=lambda _: True, release=lambda _: None
    )
    admission = admission_on(anything, reader, store=store, on_owned=lambda owned, _: owners.append(owned))
    cached = reader.read(planned)
    assert isinstance(cached, Desired)
    view = await store.load(cached.address)
    todo = plan(view, [ObjectView.of(planned, cached, record=view.record)])
    assert todo.opening is not None
    await admission.open(view, todo.opening, {"uid-1": cached}, todo)
    found = []
    for each in owners:
        spec = await store.spec(each.record.address, each.record.generation)
        assert spec is not None
        found.append((each.record.generation, tuple(spec.job["spec"]["template"]["spec"]["arguments"])))
    return found


@pytest.mark.parametrize(
    ("live", "found"),
    [
        pytest.param(body("b", text="again", generation=2), [(2, ("b",))], id="unchanged"),
        pytest.param(body("b", text="once more", generation=2), [], id="another text"),
        pytest.param(body("b", text="re\nfused", generation=2), [], id="a text that is refused"),
        pytest.param(body("b", generation=2), [], id="the annotation is gone"),
        pytest.param(body("c", text="again", generation=3), [], id="another spec"),
        pytest.param(None, [], id="the object is gone"),
    ],
)
def test_only_the_object_that_was_planned_for_is_run_again(live: Json | None, found: list[tuple[int, Any]]) -> None:
    """A process with a stale copy of the object opens nothing: neither for an older annotation nor for an older spec."""
    planned = body("b", text="again", generation=2)
    assert asyncio.run(opened(planned, live)) == found


@pytest.mark.parametrize("synced", [True, False])
def test_a_wait_for_a_permit_is_reported_once_it_lasts(synced: bool) -> None:
    """Not before, and not while the objects have not all been read, when no permit is asked for. What has got one begins anew."""
    reader, told, times = DesiredReader(), list[str](), [NOW]
    anything: Any = SimpleNamespace(synced=synced, try_take=lambda _: False, release=lambda _: None)
    admission = admission_on(
        anything, reader, on_wait=lambda address: told.append(address.realm), clock=lambda: times[-1]
    )
    wanted = reader.read(body("a"))
    assert isinstance(wanted, Desired)
    view = View(None, None, 0, 0, 1)
    todo = plan(view, [ObjectView.of(body("a"), wanted)])
    assert todo.opening is not None

    def at(seconds: float) -> int:
        times.append(NOW + seconds)
        assert todo.opening is not None
        assert asyncio.run(admission.open(view, todo.opening, {"uid-1": wanted}, todo)) == NO_PERMIT
        return len(told)

    assert [at(seconds) for seconds in (0, SAID_AFTER - 1, SAID_AFTER, SAID_AFTER + 1)] == [
        0,
        0,
        *([1, 2] if synced else [0, 0]),
    ]
    admission.free(wanted.address)
    assert at(SAID_AFTER + 2) == len(told) == (2 if synced else 0)
    assert set(told) <= {wanted.realm}
