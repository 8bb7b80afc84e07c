"""The races of the slot log on object stores: real processes, killed, frozen and resumed; effects are counted in the store."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from harness import effort, sink_attempts
from harness.contest import COMMIT_POINTS, Contest, frozen, rows_in, standing
from harness.eventually import assert_eventually
from harness.patience import until_ended
from harness.sink_attempts import FINGERPRINT, Plan, answers, key_of, rows_of, sink_at
from harness.store_servers import StoreServer
from sparkonce.blocking import run
from sparkonce.sink.objects.location import objects_at
from sparkonce.sink.protocol import AlreadyCommitted, FencedOff, Slot, SlotState

LONG = 60  # seconds: a process of these tests needs less than one; only a defect takes this long
PROCESSES = 4
RACES = {"versitygw": (100, 1.0), "azurite": (30, 4.0), "gcs": (20, 4.0)}
"""By server: the number of keys at full size (most on versitygw, the one closest to what users run), and how much slower than on a folder
faults are injected, since the server answers that much slower."""


class StoreContest(Contest):
    """A contest over the keys of one object store."""

    def __init__(self, *given: Any, slower: float, **options: Any) -> None:
        super().__init__(*given, **options)
        self.pace = (slower * self.pace[0], slower * self.pace[1])


def environment_of(server: StoreServer) -> tuple[tuple[str, str], ...]:
    return (*server.environment.items(), ("NO_PROXY", os.environ["NO_PROXY"]), ("no_proxy", os.environ["no_proxy"]))


def test_many_processes_race(
    server: StoreServer, tmpfs_path: Path, started: list[ForkServerProcess], say: Callable[[str], None]
) -> None:
    """Under kills and freezes at random moments and at every step, each key has at most one commit, no process got another one as answer,
    early answers are still true at the end, and the table has each committed row once."""
    seed = effort.seed("object store races")
    say(f"SEED={effort.base()}")
    full, slower = RACES[server.name]
    share = effort.size("race keys of stores")
    keys, least = full * share // 100, 5 * share // 100
    url = server.url(f"race-{secrets.token_hex(4)}")
    contest = StoreContest(
        tmpfs_path,
        url,
        started,
        seed=seed,
        keys=keys,
        processes=PROCESSES,
        environment=dict(environment_of(server)),
        slower=slower,
    )
    answered = dict.fromkeys((*COMMIT_POINTS, "Committed", "AlreadyCommitted", "fence none"), 1)
    rare = contest.run({"died": least, "freeze": least, **answered})
    outcome, hits = contest.judge(), contest.hits()
    say(f"{server.name}: {dict(contest.faults)} {dict(outcome)} {dict(hits)}; rare: {rare}")


@pytest.mark.parametrize("point", COMMIT_POINTS)
@pytest.mark.parametrize("fault", ["kill", "1*stop"])
def test_a_writer_dies_or_freezes_at_a_step(
    point: str, fault: str, server: StoreServer, tmpfs_path: Path, started: list[ForkServerProcess]
) -> None:
    """Attempt 2 dies, or freezes, at the step; the answer of the fence that follows is final: later callers, and the zombie when it
    resumes, get it too; the rows are there once, or never."""
    url = server.url(f"step-{secrets.token_hex(4)}")
    plan = Plan(
        folder=str(tmpfs_path),
        table=url,
        environment=environment_of(server),
        process="p",
        token=2,
        keys=("k1",),
        verb="commit",
        failpoints=f"{point}={fault}",
    )
    started.append(process := sink_attempts.start(plan))
    sink, key = sink_at(url), key_of("k1")
    if fault == "kill":
        until_ended(process, LONG)
        assert process.exitcode == -signal.SIGKILL
    else:
        assert_eventually(lambda: frozen(process), LONG)
    verdict = run(sink.fence(key, 3, fingerprint=FINGERPRINT, by="settle"))
    assert (verdict is not None) == (point == "sink.slots.create.after")
    if fault != "kill":
        assert process.pid is not None
        os.kill(process.pid, signal.SIGCONT)
        until_ended(process, LONG)
        assert [each["what"] for each in answers(plan)] == ["begin", "Committed" if verdict else "FencedOff"]
    late = Slot(state=SlotState.COMMITTED, sink_key=str(key), token=2, nonce="late", fingerprint=FINGERPRINT)
    decision = run(sink.commit(key, late))
    assert isinstance(decision, FencedOff) if verdict is None else decision == AlreadyCommitted(verdict)
    run(sink.sweep(key))
    objects = objects_at(url, field="table")
    assert rows_in(url) == (rows_of("k1") if verdict else [])
    assert len(run(objects.folders(f"_data/{key}"))) == (1 if verdict else 0)
    assert sorted(standing(objects, "k1")) == [1, 2]
