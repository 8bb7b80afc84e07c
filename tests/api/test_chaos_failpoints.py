"""Operators die or freeze at a failpoint: between a write and its reply, or between a reply and the step that should follow.

Three operators run at a time, each with one place where it will die; one that has died is replaced by one that will die elsewhere, until
operators have died at all places. Jobs arrive all the time. In the end outputs, ledger and API server look as if no operator had died. A
place that is never reached fails the test: the log of the failpoints proves each death.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import effort
from harness.apiserver import Cluster
from harness.child import frozen
from harness.etcd import Etcd
from harness.eventually import assert_eventually
from harness.fleet import ROWS, Applied, Fleet, failing_once, plain, rows_of, scripted, writing
from harness.kubeflow import FakeKubeflow
from harness.operators import OperatorProcess

pytestmark = pytest.mark.slow
Say = Callable[[str], None]

AT_ONCE = 3
WAVE = 12
"""New jobs are applied while fewer than this are under way, so that each armed process gets some of them."""
WAITS = 6
"""Waves without a death, after which another process is killed: an armed one that is to take keys over needs somebody who dies."""
PLACES = {
    "an attempt": [
        "replica.reserve.before",
        "replica.reserve.after",
        "engine.launch.before",
        "engine.launch.after",
        "engine.note.after",
        "replica.take-over.before",
    ],
    "its end": [
        "engine.settling.before",
        "engine.settling.after",
        "engine.settle.fenced",
        "engine.stop.after",
        "engine.grant.after",
        "engine.finalize.before",
        "engine.finalize.after",
    ],
    "any request to the ledger": ["store.etcd.request.before", "store.etcd.request.after"] * 4,
}


def plan(where: str, rng: random.Random) -> list[tuple[str, int]]:
    """(failpoint, number of hits that pass first), in the order of the deaths. Requests are counted from the start of the process, which
    makes some before it does any work; at the other places an operator dies once at the first hit and once later."""
    if "ledger" in where:
        deaths = [(place, rng.randrange(5, 150)) for place in PLACES[where]]
    else:
        deaths = [(place, skips) for place in PLACES[where] for skips in (0, rng.randrange(1, 4))]
    return rng.sample(deaths, len(deaths))


FREEZES = [
    [
        ("replica.reserve.before", 1),
        ("engine.launch.before", 0),
        ("engine.launch.after", 1),
        ("engine.finalize.before", 0),
    ],
    [("engine.settling.before", 0), ("engine.settling.after", 0), ("engine.stop.after", 0), ("engine.grant.after", 0)],
    [
        ("replica.reserve.after", 0),
        ("engine.note.after", 2),
        ("engine.settle.fenced", 0),
        ("store.etcd.request.before", 60),
    ],
]
"""(failpoint, number of hits that pass first); each list is frozen at the same time."""


@pytest.fixture
def fleet(cluster: Cluster, ledger_server: Etcd, namespace: str, install: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(cluster, ledger_server, namespace, install, tmp_path) as started:
        yield started


@dataclass
class Armed:
    place: str
    skips: int
    process: OperatorProcess
    hits: Path

    @property
    def dead(self) -> bool:
        process = self.process.process
        assert process is not None
        return process.poll() is not None

    @property
    def frozen(self) -> bool:
        assert not self.dead, f"{self.process.name} ended:\n{self.process.tail()}"
        return frozen(self.process.pid)

    def came_there(self, action: str) -> None:
        hits = self.hits.read_text().splitlines()  # maybe not in the last line: other threads run on until the action
        assert f"{self.place}={action}" in hits, f"{self.process.name} came to {hits[-3:]}:\n{self.process.tail()}"


def arm(fleet: Fleet, place: str, skips: int, *, action: str = "kill") -> Armed:
    hits = fleet.folder / f"hits-{len(fleet.members)}.log"
    action = f"{skips}*off->1*{action}" if skips else f"1*{action}"
    environment = {"SPARKONCE_FAILPOINTS": f"{place}={action}", "SPARKONCE_FAILPOINTS_LOG": str(hits)}
    return Armed(place, skips, fleet.add(**environment), hits)


def wave(number: int, table: Path) -> list[Applied]:
    """One job of each kind, and one more that succeeds."""
    name = f"w{number}"
    return [
        *plain(2, name=f"{name}-plain"),
        *failing_once(1, name=f"{name}-fails"),
        *writing(1, table, name=f"{name}-writes"),
        *writing(1, table, name=f"{name}-late", fails=True),
    ]


@pytest.mark.parametrize("where", PLACES)
def test_whoever_dies_is_replaced_by_one_that_goes_on(
    fleet: Fleet, kubeflow: FakeKubeflow, tmp_path: Path, say: Say, where: str
) -> None:
    """There is one application for each granted attempt and one result for each job, and each row exists in the output once."""
    scripted(kubeflow)
    table = tmp_path / "table"
    seed = effort.seed(f"deaths at {where}")
    left = plan(where, random.Random(seed))
    say(f"deaths of seed {seed}: {left}")
    armed: list[Armed] = []
    waves = deaths = latest = 0
    while left or armed:
        while left and len(armed) < AT_ONCE:
            armed.append(arm(fleet, *left.pop()))
        if len(armed) < AT_ONCE and len([each for each in fleet.members if running(each)]) < AT_ONCE:
            fleet.add()
        if len(fleet.applied) - fleet.ended() < WAVE:
            fleet.apply(wave(waves, table))
            waves += 1
        before = fleet.ended()
        assert_eventually(
            lambda: any(each.dead for each in armed) or fleet.ended() > before,  # noqa: B023 - called here and now
            timeout=60,
            interval=0.1,
        )
        for each in [each for each in armed if each.dead]:
            each.came_there("kill")
            armed.remove(each)
            deaths, latest = deaths + 1, waves
        if waves - latest > WAITS:  # they wait for the keys of somebody who dies
            mine = [each.process for each in armed]
            other = next((each for each in fleet.members if running(each) and each not in mine), None)
            if other is not None:
                other.kill()
            latest = waves
        assert waves < 60, f"nobody gets to {[(each.place, each.skips) for each in armed]}\n{fleet.tails()}"
    took = fleet.until_ended(timeout=60)
    say(f"{deaths} deaths, {len(fleet.applied)} jobs; the last ended {took:.1f} s after the last death")
    fleet.audit(kubeflow)
    assert rows_of(table) == Counter(dict.fromkeys(ROWS, 2 * waves))


def running(process: OperatorProcess) -> bool:
    return process.process is not None and process.process.poll() is None


def test_a_hand_over_that_dies_before_its_lease_ends_costs_the_lease(
    fleet: Fleet, kubeflow: FakeKubeflow, say: Say
) -> None:
    """The operator is killed after all drives were let go and before its lease was revoked: its successor waits for the lease to expire,
    and starts nothing again."""
    scripted(kubeflow)
    first = arm(fleet, "replica.hand-over.before", 0)
    first.process.wait_ready()
    fleet.apply([*plain(6), *failing_once(2)])
    assert_eventually(lambda: len(fleet.owners()) > 0, timeout=30)
    fleet.add()
    first.process.send(signal.SIGTERM)
    assert_eventually(lambda: first.dead, timeout=20)
    first.came_there("kill")
    took = fleet.until_ended(timeout=60)
    say(f"the last of {len(fleet.applied)} jobs ended {took:.1f} s later")
    fleet.audit(kubeflow)


def test_a_result_that_nobody_was_told_is_told_by_those_who_stay(
    fleet: Fleet, kubeflow: FakeKubeflow, say: Say
) -> None:
    """An operator is killed after it finalized a job in the ledger and before the status was written. No claim ends that would wake another
    operator, and none starts or sweeps: the other one still writes the status."""
    scripted(kubeflow)
    fleet.start(1)
    one = arm(fleet, "engine.finalize.after", 2)
    one.process.wait_ready()
    waves = 0
    while not one.dead:  # the other operator may finalize all jobs of a wave
        assert waves < 60, f"it finalizes nothing\n{fleet.tails()}"
        fleet.apply(plain(16, name=f"w{waves}"))
        waves += 1
        assert_eventually(lambda: one.dead or fleet.ended() == len(fleet.applied), timeout=60, interval=0.1)
    one.came_there("kill")
    took = fleet.until_ended(timeout=20)
    say(f"the last of {len(fleet.applied)} jobs ended {took:.1f} s after the death")
    fleet.audit(kubeflow)


@pytest.mark.parametrize(
    "places",
    [*FREEZES[:2], pytest.param(FREEZES[2], marks=pytest.mark.soak)],
    ids=["begin", "end", "between"],
)
def test_whoever_froze_somewhere_goes_on_and_changes_nothing(
    fleet: Fleet, kubeflow: FakeKubeflow, tmp_path: Path, say: Say, places: list[tuple[str, int]]
) -> None:
    """Operators freeze in the middle of a step, their leases expire, and others take over and finish their keys. When they continue, the
    create, the grant or the result that they were about to write changes nothing."""
    scripted(kubeflow)
    table = tmp_path / "table"
    (steady,) = fleet.start(1)
    frozen = [arm(fleet, *place, action="stop") for place in places]
    for each in frozen:
        assert_eventually(lambda each=each: each.frozen or each.process.ready(), timeout=60, interval=0.1)  # type: ignore[misc] # a default in a lambda has no type
    waves = 0
    while not all(each.frozen for each in frozen):
        assert waves < 60, f"nobody gets to {[each.place for each in frozen if not each.frozen]}\n{fleet.tails()}"
        fleet.apply(wave(waves, table))
        waves += 1
        fleet.some_end()
    for each in frozen:
        each.came_there("stop")
    fleet.until_ended(timeout=60)
    assert set(fleet.owners().values()) <= {steady.pid}
    for each in frozen:
        each.process.thaw()
    fleet.apply(wave(waves, table))
    waves += 1
    took = fleet.until_ended(timeout=60)
    for each in frozen:
        each.process.wait_ready()
        each.process.terminate()
    say(f"{len(frozen)} frozen, {len(fleet.applied)} jobs; the last ended {took:.1f} s after all went on")
    fleet.audit(kubeflow)
    assert rows_of(table) == Counter(dict.fromkeys(ROWS, 2 * waves))
