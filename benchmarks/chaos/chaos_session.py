"""Runs `make chaos`: every fault against jobs of ours and plain SparkApplications, on a real cluster; docs/chaos.md has the table.

Each run is written to docs/chaos.jsonl as soon as it is over, so that a session may be stopped at any time and the next one continues:
it makes the runs that are missing up to `--runs` per fault and arm. A run whose cluster broke does not count and is not written. The exit
code is 1 if a job of ours had a duplicate, a loss or a wrong state, and 2 if the session could not continue. Plain applications run beside
an installed chart, which ignores them, so that both arms run on the same cluster under the same load.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx

from chaos_cases import CASES, Case
from chaos_faults import Blow
from chaos_runs import TOGETHER_WITH, Arm, BadLine, Run, Task, append, missing, read, rounds
from chaos_table import document, printed
from harness.binaries import PartMissing
from harness.child import NotStarted
from harness.eventually import assert_eventually
from harness.kube_api import ApiError
from harness.node.cluster import RealCluster, started_cluster
from harness.node.images import archives
from harness.node.network import NetworkRefused
from harness.node.plain import OnceScene, PlainScene
from harness.node.release import Release
from harness.node.scene import ENDED, remove, scene_of

ROOT = Path(__file__).resolve().parents[2]
RUNS, TABLE = ROOT / "docs" / "chaos.jsonl", ROOT / "docs" / "chaos.md"
TOGETHER = 2
"""Number of runs at the same time, on two cores."""
PATIENCE = 240.0
"""Seconds to wait for a final state after a fault; usually it takes 20."""
STUCK = 15.0
"""Seconds that a driver pod may stay Pending after the final state; one whose ConfigMaps are missing stays Pending for ever."""
LEFT = 90.0
"""Seconds until a finished job's applications must be deleted; usually its TTL of 1 s and a sweep of 10 s."""
GIVES_UP = 4
"""Consecutive skipped runs after which the cluster is considered broken."""
FINAL = {Arm.SPARKONCE: frozenset(ENDED), Arm.NEVER: frozenset({"COMPLETED", "FAILED"})}
FINAL[Arm.ON_FAILURE] = FINAL[Arm.NEVER]
POLICIES = {Arm.NEVER: "Never", Arm.ON_FAILURE: "OnFailure"}


class TooSlow(Exception):
    """The machine is too busy: the run would not show the effect of the fault."""


class Session:
    """One cluster with the chart, and a scene for each arm."""

    def __init__(self, cluster: RealCluster, release: Release, *, seed: int, commit: str) -> None:
        self.cluster, self.release, self.seed, self.commit = cluster, release, seed, commit
        made = scene_of(cluster)
        self.scenes: Mapping[Arm, OnceScene] = {
            Arm.SPARKONCE: OnceScene(cluster, made.namespace),
            **{arm: PlainScene(cluster, made.namespace, policy=policy) for arm, policy in POLICIES.items()},
        }

    def run(self, *tasks: Task) -> list[Run]:
        """Runs tasks of one fault with one strike. Raises TooSlow; ApiError, httpx.HTTPError and the like if the cluster broke."""
        case = CASES[tasks[0].fault]
        blows = [self._blow(task, case) for task in tasks]
        lead, *others = blows
        lead.others.extend(others)
        try:
            _prepare(blows, case)
            case.strike(tasks[0].arm)(lead)
        except (
            AssertionError,
            RuntimeError,
        ) as problem:  # the condition for the strike never held; the rest of the run shows why
            for blow in blows:
                blow.notes.append(str(problem).partition("\n")[0][:200])
        lead.open()
        lead.end()
        with ThreadPoolExecutor(len(tasks)) as pool:
            return list(pool.map(self._run, tasks, blows))

    def _blow(self, task: Task, case: Case) -> Blow:
        name = f"f{list(CASES).index(task.fault):02}-{task.arm}-{task.number}"
        return Blow(self.scenes[task.arm], self.release, name, task.random(self.seed), case.job)

    def _run(self, task: Task, blow: Blow) -> Run:
        run = self._outcome(task, CASES[task.fault], blow)
        if (logs := os.environ.get("SPARKONCE_CLUSTER_LOGS")) and task.arm is Arm.SPARKONCE and not run.right:
            self.cluster.collect_logs(Path(logs) / blow.name)
        _clear(blow, everything=task.arm is not Arm.SPARKONCE or not run.right)
        return run

    def _outcome(self, task: Task, case: Case, blow: Blow) -> Run:
        scene, name, struck = blow.scene, blow.name, time.monotonic()
        ended = _ended(scene, name, FINAL[task.arm])
        seconds = round(time.monotonic() - struck, 1) if ended else None
        before = ended and {"FAILED", "Failed"} & set(scene.states(name)) and not scene.written(name)
        _quiet(scene, name)
        state = TOGETHER_WITH.join(scene.states(name))
        drivers = len(scene.marks(name))
        extra = max(0, drivers - 1)
        if task.arm is Arm.SPARKONCE:
            extra = max([0, *(int(each.get("status", {}).get("attempt", 1)) - 1 for each in scene.objects(name))])
            with suppress(AssertionError):
                assert_eventually(lambda: not scene.applications(name), LEFT)
            if scene.applications(name):
                state += ", with an application left over"
        rows = scene.rows(name)
        return Run(
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            commit=self.commit,
            arm=task.arm,
            fault=task.fault,
            seed=self.seed,
            number=task.number,
            drivers=drivers,
            extra=extra,
            least=min(rows[number] for number in range(100)),
            most=max(rows.values(), default=0),
            state=state,
            expected=case.expected if task.arm is Arm.SPARKONCE else "",
            early=bool(before and rows),
            seconds=seconds,
            note="; ".join(blow.notes),
            load=round(os.getloadavg()[0], 1),
        )


def _prepare(blows: Sequence[Blow], case: Case) -> None:
    """Submits the jobs, and waits until their drivers have begun if the fault needs them. Raises TooSlow."""
    if case.sends:
        return
    for blow in blows:
        blow.scene.send(blow.name, **case.job)
    if case.at_once:
        return
    try:
        for blow in blows:
            blow.scene.until_marked(blow.name, "began")
    except AssertionError as problem:
        for blow in blows:
            _clear(blow, everything=True)
        raise TooSlow(f"no driver came to be hit ({problem})") from problem


def _ended(scene: OnceScene, name: str, final: frozenset[str]) -> bool:
    def look() -> bool:
        states = scene.states(name)
        return bool(states) and set(states) <= final

    try:
        return assert_eventually(look, PATIENCE, interval=0.1)
    except AssertionError:
        return False


def _quiet(scene: OnceScene, name: str) -> None:
    """Waits until no driver of the job runs; gives up on one that stays Pending longer than `STUCK`."""
    until = time.monotonic() + STUCK

    def look() -> bool:
        phases = {each["status"].get("phase") for each in scene.drivers(name)}
        return "Running" not in phases and ("Pending" not in phases or time.monotonic() > until)

    with suppress(AssertionError):
        assert_eventually(look, PATIENCE, interval=0.2)


def _clear(blow: Blow, *, everything: bool) -> None:
    """Deletes the objects of the job if `everything`; deleting an application deletes its pods."""
    if everything:
        scene = blow.scene
        for each in scene.objects(blow.name):
            scene.cluster.api.delete(scene.resource, each["metadata"]["name"], scene.namespace)


class Telling:
    """Prints a line per run, with an estimate of the remaining time."""

    def __init__(self, total: int) -> None:
        self.began, self.total, self._done, self._lock = time.monotonic(), total, 0, threading.Lock()

    def __call__(self, run: Run, runs: int) -> None:
        with self._lock:
            self._done += 1
            passed = time.monotonic() - self.began
            left = passed / self._done * (self.total - self._done)
            took = "no end" if run.seconds is None else f"{run.seconds:.0f} s"
            note = f" ({run.note})" if run.note else ""
            print(
                f"[{passed:5.0f} s, {left / 60:3.0f} min left] {run.fault} | {run.arm} | {run.number} of {runs}: {run.verdict}; "
                f"rows {run.least}-{run.most} times, {run.state}, {run.drivers} drivers, {took}{note}",
                flush=True,
            )


def work(session: Session, tasks: Sequence[Task], *, until: float) -> Iterator[Run]:
    """Yields each run when it is over; starts none after `until` (monotonic)."""

    broken: list[Exception] = []

    def in_time(*group: Task) -> list[Run]:
        if time.monotonic() >= until:
            return []
        try:
            runs = session.run(*group)
        except (TooSlow, ApiError, httpx.HTTPError) as problem:
            print(f"left out: {group[0].fault}, {', '.join(each.arm for each in group)}: {problem}", flush=True)
            broken.append(problem)
            if len(broken) >= GIVES_UP:
                raise
            return []
        broken.clear()
        return runs

    alone = [name for name, case in CASES.items() if case.alone]
    together = [name for name, case in CASES.items() if case.together]
    for beside, groups in rounds(tasks, seed=session.seed, alone=alone, together=together):
        with ThreadPoolExecutor(TOGETHER) as pool:
            waiting = [pool.submit(in_time, task) for task in beside]
            try:
                for each in as_completed(waiting):
                    yield from each.result()
            finally:
                pool.shutdown(cancel_futures=True)
        for group in groups:  # in this thread: processes that it restarts die with their thread
            yield from in_time(*group)


@contextmanager
def opened(seed: int) -> Iterator[Session]:
    with started_cluster(archives) as cluster:
        release = Release(cluster)
        release.install()
        release.until_ready()
        session = Session(cluster, release, seed=seed, commit=_commit())
        yield session
        remove(session.scenes[Arm.SPARKONCE])


def _commit() -> str:
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make chaos", description="Faults against jobs of ours and plain applications."
    )
    parser.add_argument("--runs", type=int, default=5, help="runs for each fault and arm, including those in the file")
    parser.add_argument(
        "--only", default="", help="only faults whose names contain one of these words (separated by commas)"
    )
    parser.add_argument("--arms", default=",".join(Arm), help="some of %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="seed for the order and the moments of strikes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after this time")
    parser.add_argument(
        "--table", action="store_true", help="write the table from the runs in the file, and run nothing"
    )
    return parser.parse_args(given)


class Unusable(Exception):
    """An argument is invalid."""


def arms_of(text: str) -> list[Arm]:
    """Parses `--arms`. Raises Unusable."""
    known = ",".join(Arm)
    for each in text.split(","):
        if each not in known.split(","):
            raise Unusable(f"{each!r} is not an arm; give some of {known}")
    return [Arm(each) for each in text.split(",")]


def wanted(only: str, arms: Sequence[Arm]) -> dict[str, list[Arm]]:
    """The selected faults, each with those of `arms` that it supports."""
    words = [word.strip().lower() for word in only.split(",") if word.strip()]
    return {
        name: [arm for arm in case.arms if arm in arms]
        for name, case in CASES.items()
        if not words or any(word in name.lower() for word in words)
    }


def write_table() -> None:
    TABLE.write_text(document(read(RUNS), CASES))


def main(given: Sequence[str] | None = None) -> int:
    asked = _arguments(given)
    made: list[Run] = []
    try:
        if not asked.table:
            tasks = missing(wanted(asked.only, arms_of(asked.arms)), read(RUNS), runs=asked.runs)
            print(f"{len(tasks)} runs are missing; each is a line of docs/{RUNS.name} when it is over", flush=True)
            try:
                if tasks:
                    made_in(asked, tasks, made)
            finally:
                write_table()
                print(printed(read(RUNS), CASES))
        else:
            write_table()
    except KeyboardInterrupt:
        return 130
    except (
        PartMissing,
        NotStarted,
        NetworkRefused,
        BadLine,
        Unusable,
        ApiError,
        httpx.HTTPError,
        AssertionError,
        TooSlow,
    ) as problem:
        print(f"chaos: {problem}", file=sys.stderr)
        return 2
    bad = [run for run in made if run.arm is Arm.SPARKONCE and not run.right]
    for run in bad:
        print(f"chaos: {run.fault}, run {run.number} of sparkonce: {run.verdict} ({run.state})", file=sys.stderr)
    return 1 if bad else 0


def made_in(asked: argparse.Namespace, tasks: Sequence[Task], made: list[Run]) -> None:
    """Runs a session; `made` gets each finished run, however the session ends."""
    with opened(asked.seed) as session:
        tell = Telling(len(tasks))
        for run in work(session, tasks, until=time.monotonic() + 60 * asked.minutes):
            append(RUNS, run)
            made.append(run)
            tell(run, asked.runs)


if __name__ == "__main__":
    sys.exit(main())
