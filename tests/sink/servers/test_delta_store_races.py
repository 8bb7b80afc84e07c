"""The races of Delta on an S3-compatible server: real processes, killed, frozen and resumed; effects are counted in the table's log."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from harness import delta_attempts, effort
from harness.contest import frozen, wake
from harness.delta_attempts import sink_at
from harness.delta_contest import DeltaContest, committed
from harness.eventually import assert_eventually
from harness.patience import until_ended
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of
from harness.store_fixtures import only_on
from harness.store_servers import StoreServer
from sparkonce.blocking import run
from sparkonce.sink.delta import log as delta_log
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.protocol import AlreadyCommitted, FencedOff, Slot, SlotState

LONG = 60  # seconds: a process of these tests needs two; only a defect takes this long
KEYS, PROCESSES = 24, 4
STEPS = ("sink.delta.table.after", "sink.delta.commit.before", "sink.delta.commit.after")


pytestmark = only_on("versitygw")


def environment_of(server: StoreServer) -> dict[str, str]:
    return {**server.environment, **{name: os.environ[name] for name in ("NO_PROXY", "no_proxy")}}


def test_many_processes_race(
    server: StoreServer, tmpfs_path: Path, started: list[ForkServerProcess], say: Callable[[str], None]
) -> None:
    """Under kills and freezes at random moments and at every step, each key has at most one commit in the log, no process got another one
    as answer, early answers are still true at the end, and the table has each committed row once."""
    seed = effort.seed("delta store races")
    say(f"SEED={effort.base()}")
    url = server.url(f"race-{secrets.token_hex(4)}")
    contest = DeltaContest(
        tmpfs_path, url, started, seed=seed, keys=KEYS, processes=PROCESSES, environment=environment_of(server)
    )
    # Only one process creates the table, so no second fault at that step can be required.
    rare = contest.run({"died": 3, "freeze": 5, "Committed": 1, **dict.fromkeys(STEPS[1:], 1)})
    outcome, hits = contest.judge(), contest.hits()
    say(f"{dict(contest.faults)} {dict(outcome)} {dict(hits)}; rare: {rare}")


@pytest.mark.parametrize("fault", ["kill", "1*stop"])
@pytest.mark.parametrize("point", STEPS)
def test_a_writer_dies_or_freezes_at_a_step(
    point: str, fault: str, server: StoreServer, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """Attempt 2 dies, or freezes, at the step; the answer of the fence that follows is final: later callers, and the zombie when it
    resumes, get it too; the log has one commit of the key or none, for good."""
    url = server.url(f"step-{secrets.token_hex(4)}")
    plan = Plan(
        folder=str(tmpfs_path),
        table=url,
        environment=tuple(environment_of(server).items()),
        process="p",
        token=2,
        keys=("k1",),
        verb="commit",
        failpoints=f"{point}={fault}",
    )
    started.append(process := delta_attempts.start(plan))
    if fault == "kill":
        until_ended(process, LONG)
        assert process.exitcode == -signal.SIGKILL
    else:
        assert_eventually(lambda: frozen(process), LONG)
    sink, key, objects = sink_at(url), key_of("k1"), objects_at(url, field="table")
    verdict = run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle"))
    assert (verdict is not None) == (point == "sink.delta.commit.after")
    if fault != "kill":
        wake(process)
        until_ended(process, LONG)
        assert [each["what"] for each in answers(plan)] == ["begin", "Committed" if verdict else "FencedOff"]
    late = Slot(state=SlotState.COMMITTED, sink_key=str(key), token=2, nonce="late", fingerprint=FINGERPRINT)
    decision = run(sink.commit(key, late))
    assert isinstance(decision, FencedOff) if verdict is None else decision == AlreadyCommitted(verdict)
    run(sink.sweep(key))
    assert committed(objects).count(delta_log.idem(key)) == (1 if verdict else 0)
    assert len(run(objects.folders(f"so-{key}"))) == (1 if verdict else 0)
