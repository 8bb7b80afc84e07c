"""A gateway's announcement, step by step, in a ledger in this process."""

from __future__ import annotations

import pytest

from harness.memory_store import MemoryStore
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable
from sparkonce.gateway.announcing import Announcer
from sparkonce.store.roster import SILENT


class Scene:
    def __init__(self) -> None:
        self.now, self.ready, self.unanswered = 50.0, True, 0
        self.store = MemoryStore(monotonic=lambda: self.now)
        self.announcer = Announcer(
            lambda: self.store,
            owner="pod-1",
            answers=lambda: self.ready,
            unanswered=lambda: self.unanswered,
            monotonic=lambda: self.now,
        )

    def step(self, *, seconds: float = 2.0) -> float | None:
        """One step of the gateway, and what an operator then sees."""
        self.now += seconds
        self.announcer.step()
        return self.seen()

    def seen(self) -> float | None:
        return run(self.store.gateways_serving_for())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_stretch_goes_on_while_all_is_well(scene: Scene) -> None:
    """From the first entry on, as long as each step finds it ready."""
    assert [scene.step() for _ in range(5)] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_not_ready_ends_it_at_once(scene: Scene) -> None:
    """The entry goes with the step that sees it, and a later one begins anew."""
    scene.step()
    scene.step()
    scene.ready = False
    assert scene.step() is None
    assert scene.step() is None
    scene.ready = True
    assert scene.step() == 0.0


def test_a_driver_without_an_answer_ends_it(scene: Scene) -> None:
    """A driver that got 503 may be silent through the gateway's fault: its silence must be counted anew."""
    scene.step()
    scene.step()
    scene.unanswered += 1
    assert scene.step() is None
    assert scene.step() == 0.0
    assert scene.step() == 2.0


def test_a_freeze_ends_it(scene: Scene) -> None:
    """It was not there meanwhile, although its lease may have lived on."""
    scene.step()
    assert scene.step(seconds=SILENT) == SILENT
    assert scene.step(seconds=SILENT + 0.1) == 0.0


def test_it_goes_with_the_process(scene: Scene) -> None:
    """A stop withdraws it."""
    scene.announcer._period = 0.001
    scene.announcer.start()
    while scene.seen() is None:
        scene.announcer._stopped.wait(0.01)
    scene.announcer.stop()
    assert scene.seen() is None
    assert not scene.announcer.announced


def test_a_ledger_that_does_not_answer_ends_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that may or may not be written is given up, and what follows is a new stretch."""
    scene.step()
    scene.step()

    async def unanswered(*_: object, **__: object) -> None:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(scene.store, "announce_gateway", unanswered)
        with pytest.raises(StoreUnavailable):
            scene.announcer.step()
        scene.announcer._withdraw()  # as its thread does
    assert scene.step() == 0.0
