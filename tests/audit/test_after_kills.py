"""Complete runs that were killed at each step of a write and sent again: what they leave is correct, and `sweep` removes the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.scene import kinds
from audit.scene import scene as opened
from crash.scene import PATIENCE, Scene
from harness import effort
from harness.patience import until_ended
from sparkonce.audit.cleanup import sweep
from sparkonce.audit.findings import Kind
from sparkonce.audit.places import of_specs

POINTS = (
    "driver.stage.after=kill",
    "driver.tx.between=kill;engine.settle.rolled=kill",
)


@pytest.fixture
def killed(tmpfs_path: Path) -> Iterator[Scene]:
    scene = Scene(tmpfs_path / "scene", shape="tx")
    yield scene
    scene.clear()


@pytest.mark.parametrize("points", effort.sampled(POINTS))
def test_a_store_after_kills_and_reruns(killed: Scene, points: str) -> None:
    """The driver and the owner of a transaction over two outputs are killed on the way: once the job has succeeded there is no defect, and
    after a sweep no orphan."""
    until_ended(killed.run(points), PATIENCE)
    killed.finish()
    assert "=kill" in "".join(killed.hits())
    with opened(killed.folder) as ledger:
        report = ledger.audit()
        assert set(kinds(report)) <= {Kind.ORPHAN_STAGING}
        assert (report.clean, report.effects, report.keys) == (True, 2, 1)
        from sparkonce.audit import ledger as ledgers

        places, unseen = of_specs(ledgers.read(ledger.store)[1])
        done = list(sweep(places, dry_run=False))
        assert (unseen, sum(each.folders for each in done)) == ([], len(report.findings))
        assert kinds(ledger.audit(deep=True)) == []
