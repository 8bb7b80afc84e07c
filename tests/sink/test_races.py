"""Real processes on one table: killed, frozen and resumed at random and at every named point. Effects are counted in the table."""

from __future__ import annotations

import signal
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from harness import effort, sink_attempts
from harness.contest import COMMIT_POINTS, frozen, rows_in, standing, wake
from harness.eventually import assert_eventually
from harness.patience import until_ended
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, rows_of, sink_in
from sparkonce.blocking import run
from sparkonce.sink.objects.local import FolderObjects
from sparkonce.sink.protocol import AlreadyCommitted, FencedOff, Slot, SlotState

LONG = 30  # seconds: a process of these tests needs milliseconds; only a defect takes this long
PROCESSES = 5


# --- one process dies, or freezes, at a named point -----------------------------------------------------------------------


@pytest.mark.parametrize("point", effort.rotated(COMMIT_POINTS, "killed"))
def test_a_writer_killed_at_a_step_then_a_fence(point: str, tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """Attempt 2 dies at the step; the answer of the fence that follows is final: it never changes later, and duplicates get the same."""
    plan = Plan(folder=str(tmpfs_path), process="p", token=2, keys=("k1",), verb="commit", failpoints=f"{point}=kill")
    started.append(process := sink_attempts.start(plan))
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    sink, key = sink_in(plan.folder), key_of("k1")
    verdict = run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle"))
    assert (verdict is not None) == (point == "sink.slots.create.after")
    for token in (1, 2):
        slot = Slot(state=SlotState.COMMITTED, sink_key=str(key), token=token, nonce="zombie", fingerprint=FINGERPRINT)
        decision = run(sink.commit(key, slot))
        assert (
            isinstance(decision, FencedOff) if verdict is None or token < 2 else decision == AlreadyCommitted(verdict)
        )
    assert run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle")) == verdict == run(sink.find(key))
    run(sink.sweep(key))
    assert rows_in(f"{tmpfs_path}/table") == (rows_of("k1") if verdict else [])
    assert len(list(tmpfs_path.glob("table/_data/*/*"))) == (1 if verdict else 0)


@pytest.mark.parametrize("point", effort.rotated(COMMIT_POINTS, "frozen"))
def test_a_writer_frozen_at_a_step_wakes_after_the_fence(
    point: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """A zombie that resumes after the takeover gets the fence's answer: that it is fenced, or that its commit had taken effect."""
    plan = Plan(folder=str(tmpfs_path), process="p", token=2, keys=("k1",), verb="commit", failpoints=f"{point}=1*stop")
    started.append(process := sink_attempts.start(plan))
    assert_eventually(lambda: frozen(process), LONG)
    sink, key = sink_in(plan.folder), key_of("k1")
    verdict = run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle"))
    assert (verdict is not None) == (point == "sink.slots.create.after")
    wake(process)
    until_ended(process, LONG)
    assert [each["what"] for each in answers(plan)] == ["begin", "Committed" if verdict else "FencedOff"]
    assert run(sink.find(key)) == verdict
    run(sink.sweep(key))
    assert rows_in(f"{tmpfs_path}/table") == (rows_of("k1") if verdict else [])
    assert len(list(tmpfs_path.glob("table/_data/*/*"))) == (1 if verdict else 0)


@pytest.mark.parametrize("point", ["sink.slots.close.before", "sink.slots.close.after"])
@pytest.mark.parametrize("nth", effort.sampled([0, 1]))
def test_a_fence_killed_at_a_step_is_repeated(
    point: str, nth: int, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """An owner that dies inside a fence leaves only closed slots; the next owner's fence bars all lower tokens."""
    plan = Plan(
        folder=str(tmpfs_path), process="p", token=3, keys=("k1",), verb="fence", failpoints=f"{point}={nth}*off->kill"
    )
    started.append(process := sink_attempts.start(plan))
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    assert all(slot.state is SlotState.CLOSED for slot in standing(FolderObjects(tmpfs_path / "table"), "k1").values())
    assert run(sink_in(plan.folder).fence(key_of("k1"), 3, fingerprint=FINGERPRINT, by="settle")) is None
    assert sorted(standing(FolderObjects(tmpfs_path / "table"), "k1")) == [1, 2]


@pytest.mark.parametrize("point", ["sink.slots.close.before", "sink.slots.close.after", "driver.abort.closed"])
def test_an_abort_killed_at_a_step_leaves_nothing_to_commit(
    point: str, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """The abort itself or the fence closes its slot, and then its files can be swept; files are never deleted while their slot is open."""
    plan = Plan(folder=str(tmpfs_path), process="p", token=1, keys=("k1",), verb="abort", failpoints=f"{point}=kill")
    started.append(process := sink_attempts.start(plan))
    until_ended(process, LONG)
    assert process.exitcode == -signal.SIGKILL
    sink, key = sink_in(plan.folder), key_of("k1")
    assert len(list(tmpfs_path.glob("table/_data/*/*/*.parquet"))) == 2
    assert run(sink.fence(key, 2, fingerprint=FINGERPRINT, by="settle")) is None
    assert run(sink.sweep(key)).folders == 1


def test_a_sweep_killed_at_its_step_is_repeated(tmpfs_path: Path, started: list[ForkServerProcess]) -> None:
    """The files that it had not deleted are still there, and the next sweep deletes them."""
    zombie = Plan(folder=str(tmpfs_path), process="p", token=1, keys=("k1",), verb="commit")
    sink, key = sink_in(zombie.folder), key_of("k1")
    run(sink.fence(key, 2, fingerprint=FINGERPRINT, by="settle"))
    sweeper = Plan(
        folder=str(tmpfs_path),
        process="q",
        token=1,
        keys=("k1",),
        verb="sweep",
        failpoints="sink.slots.sweep.before=kill",
    )
    for plan, code in ((zombie, 0), (sweeper, -signal.SIGKILL)):
        started.append(process := sink_attempts.start(plan))
        until_ended(process, LONG)
        assert process.exitcode == code
    assert len(list(tmpfs_path.glob("table/_data/*/*"))) == 1
    assert run(sink.sweep(key)).folders == 1
    assert list(tmpfs_path.glob("table/_data/*/*")) == []
