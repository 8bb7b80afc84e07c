"""The end of a failed driver's log: kept once, and never in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from launch.kubeflow_world import DECLARED, DRIVER, NAME, World, run
from sparkonce.launch import kubeflow_log
from sparkonce.launch.kubeflow_log import LogTails
from sparkonce.launch.kubeflow_pod import LOG_TAIL
from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable
from sparkonce.launch.protocol import Phase, Seen


class Log:
    """What the API server answers, and what it was asked for."""

    def __init__(self, answer: Callable[[], Awaitable[str]]) -> None:
        self.answer, self.asked = answer, list[tuple[str, ...]]()

    async def __call__(self, *asked: str) -> str:
        self.asked.append(asked)
        return await self.answer()


async def lines() -> str:
    return "".join(f"line {number}\n" for number in range(1000)) + "ValueError: no rows\n"


async def refused() -> str:
    raise ApiRefused("forbidden", code=403)


async def silent() -> str:
    raise ApiUnavailable("no answer")


async def never() -> str:
    await asyncio.Event().wait()
    return "unreachable"


def failed(**changes: object) -> Seen:
    fields = {"name": "so-a", "uid": "u", "nonce": "n", "phase": Phase.FAILED_KNOWN, "driver": "d", "exit_code": 1}
    return Seen(**{**fields, **changes})  # type: ignore[arg-type] # a test's table of fields


def test_a_failed_drivers_log_is_read_once() -> None:
    """Each later look has the same end of the log, a kibibyte at most, and asks nobody."""
    log = Log(lines)
    tails = LogTails(log)
    seen = [run(tails.with_tail(failed(), namespace="ns")) for _ in range(3)]
    assert {each.log_tail for each in seen} == {(run(lines()))[-LOG_TAIL:]}
    assert log.asked == [("ns", "so-a-driver", "spark-kubernetes-driver")]


@pytest.mark.parametrize("answer", [refused, silent, never])
def test_a_log_that_cannot_be_read_is_empty_and_changes_nothing_else(
    answer: Callable[[], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, unanswered, or hanging: the observation is what it was, within a bounded time, and nobody asks again."""
    monkeypatch.setattr(kubeflow_log, "PATIENCE", 0.05)
    log = Log(answer)
    tails = LogTails(log)
    for _ in range(2):
        assert run(tails.with_tail(failed(), namespace="ns")) == failed()
    assert len(log.asked) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": Phase.SUCCEEDED, "exit_code": 0},
        {"phase": Phase.RUNNING, "exit_code": None},
        {"phase": Phase.UNKNOWN, "exit_code": None},
        {"driver": None},
        {"log_tail": "it said so itself"},
    ],
)
def test_no_other_log_is_read(changes: dict[str, object]) -> None:
    """Of a driver that runs, succeeded, is gone, or left a termination message."""
    log = Log(lines)
    assert run(LogTails(log).with_tail(failed(**changes), namespace="ns")) == failed(**changes)
    assert log.asked == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten, and would be read again."""
    monkeypatch.setattr(kubeflow_log, "REMEMBERED", 2)
    log = Log(lines)
    tails = LogTails(log)

    def look(driver: str) -> int:
        run(tails.with_tail(failed(driver=driver), namespace="ns"))
        return len(log.asked)

    assert [look(driver) for driver in ("a", "b", "b", "c", "b", "a")] == [1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize("watches", [True, False])
def test_the_launcher_adds_it_to_what_it_observes(*, watches: bool) -> None:
    """Of our own driver that exited with a code, seen through watches or looked at; the phase and the code are the pod's."""
    world, log = World(), Log(lines)
    noted = world.running(DECLARED)
    world.spark.finish(NAME, 1)
    launcher, _ = world.process(watches=watches)
    launcher.logs = LogTails(log)
    seen = run(launcher.observe(DECLARED, noted))
    assert seen is not None
    assert (seen.phase, seen.exit_code, seen.log_tail[-20:]) == (Phase.FAILED_KNOWN, 1, "ValueError: no rows\n")
    assert [asked[1] for asked in log.asked] == [DRIVER]
