"""How a gateway announces that it serves drivers, step by step, on an in-memory ledger."""

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
        """Performs one step of the gateway. Returns the seconds of service without a gap that an operator then sees; None without an
        entry."""
        self.now += seconds
        self.announcer.step()
        return self.seen()

    def seen(self) -> float | None:
        return run(self.store.gateways_serving_for())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_stretch_goes_on_while_all_is_well(scene: Scene) -> None:
    """While the gateway is ready at each step, its period of service continues from the first entry on."""
    assert [scene.step() for _ in range(5)] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_not_ready_ends_it_at_once(scene: Scene) -> None:
    """The step that finds the gateway not ready removes the entry; a later entry starts a new period."""
    scene.step()
    scene.step()
    scene.ready = False
    assert scene.step() is None
    assert scene.step() is None
    scene.ready = True
    assert scene.step() == 0.0


def test_a_driver_without_an_answer_ends_it(scene: Scene) -> None:
    """A driver that got 503 may be silent because of the gateway, so its silence must be counted anew."""
    scene.step()
    scene.step()
    scene.unanswered += 1
    assert scene.step() is None
    assert scene.step() == 0.0
    assert scene.step() == 2.0


def test_a_freeze_ends_it(scene: Scene) -> None:
    """A gateway that was frozen did not serve, although its lease may have lived on: a new period starts."""
    scene.step()
    assert scene.step(seconds=SILENT) == SILENT
    assert scene.step(seconds=SILENT + 0.1) == 0.0


def test_it_goes_with_the_process(scene: Scene) -> None:
    """Stopping the gateway removes the entry."""
    scene.announcer._period = 0.001
    scene.announcer.start()
    while scene.seen() is None:
        scene.announcer._stopped.wait(0.01)
    scene.announcer.stop()
    assert scene.seen() is None
    assert not scene.announcer.announced


def test_a_ledger_that_does_not_answer_ends_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry whose write was not answered is removed, and a new period starts."""
    scene.step()
    scene.step()

    async def unanswered(*_: object, **__: object) -> None:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(scene.store, "announce_gateway", unanswered)
        with pytest.raises(StoreUnavailable):
            scene.announcer.step()
        scene.announcer._withdraw()  # as the announcing thread does on this error
    assert scene.step() == 0.0
