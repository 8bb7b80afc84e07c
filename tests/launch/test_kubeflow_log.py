"""Reading the end of a failed driver's log: once per driver, without delaying or failing an observation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from launch.kubeflow_scene import assignment_of, job_of
from launch.kubeflow_world import DECLARED, DRIVER, NAME, World, run
from sparkonce.launch.driver_log import LOG_TAIL
from sparkonce.launch.kubeflow import log as kubeflow_log
from sparkonce.launch.kubeflow.log import LogTails
from sparkonce.launch.kubernetes import ApiRefused, ApiUnavailable
from sparkonce.launch.protocol import ApplicationState, Phase

LOGS = Path(__file__).parent / "driver_logs"


class Log:
    """The API server's answers to requests for logs, and a list of those requests."""

    def __init__(self, answer: Callable[[], Awaitable[str]]) -> None:
        self.answer, self.asked = answer, list[tuple[str, ...]]()

    async def __call__(self, *asked: str) -> str:
        self.asked.append(asked)
        return await self.answer()


TRACE = """\
Traceback (most recent call last):
  File "/opt/job.py", line 1, in <module>
    import gone
ModuleNotFoundError: No module named 'gone'
"""
SHUTDOWN = "26/11/24 20:53:42 INFO MemoryStore: MemoryStore cleared\n"


async def lines() -> str:
    return "".join(f"line {number}\n" for number in range(1000)) + TRACE + 50 * SHUTDOWN


async def refused() -> str:
    raise ApiRefused("forbidden", code=403)


async def silent() -> str:
    raise ApiUnavailable("no answer")


async def never() -> str:
    await asyncio.Event().wait()
    return "unreachable"


def failed(**changes: object) -> ApplicationState:
    fields = {"name": "so-a", "uid": "u", "nonce": "n", "phase": Phase.FAILED_KNOWN, "driver": "d", "exit_code": 1}
    return ApplicationState(**{**fields, **changes})  # type: ignore[arg-type] # a test's table of fields


def test_a_failed_drivers_log_is_read_once() -> None:
    """Later observations have the same exception, also at the end of their message, without another request."""
    log = Log(lines)
    tails = LogTails(log)
    seen = [run(tails.with_tail(failed(), DECLARED, namespace="ns")) for _ in range(3)]
    assert {(each.log_tail, each.message) for each in seen} == {(TRACE.strip(), f": {TRACE.splitlines()[-1]}")}
    assert log.asked == [("ns", "so-a-driver", "spark-kubernetes-driver")]


@pytest.mark.parametrize("answer", [refused, silent, never])
def test_a_log_that_cannot_be_read_is_empty_and_changes_nothing_else(
    answer: Callable[[], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused, unanswered or hanging request leaves the observation unchanged, takes a limited time, and is not repeated."""
    monkeypatch.setattr(kubeflow_log, "PATIENCE", 0.05)
    log = Log(answer)
    tails = LogTails(log)
    for _ in range(2):
        assert run(tails.with_tail(failed(), DECLARED, namespace="ns")) == failed()
    assert len(log.asked) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": Phase.SUCCEEDED, "exit_code": 0},
        {"phase": Phase.RUNNING, "exit_code": None},
        {"phase": Phase.UNKNOWN, "exit_code": None},
        {"driver": None},
        {"log_tail": "it said so itself", "message": "exit code 1"},
    ],
)
def test_no_other_log_is_read(changes: dict[str, object]) -> None:
    """No log is read for a driver that runs, succeeded, is gone, or left a termination message."""
    log = Log(lines)
    assert run(LogTails(log).with_tail(failed(**changes), DECLARED, namespace="ns")) == failed(**changes)
    assert log.asked == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest log is forgotten, and would be read again."""
    monkeypatch.setattr(kubeflow_log, "REMEMBERED", 2)
    log = Log(lines)
    tails = LogTails(log)

    def look(driver: str) -> int:
        run(tails.with_tail(failed(driver=driver), DECLARED, namespace="ns"))
        return len(log.asked)

    assert [look(driver) for driver in ("a", "b", "b", "c", "b", "a")] == [1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize("watches", [True, False])
def test_the_launcher_adds_it_to_what_it_observes(*, watches: bool) -> None:
    """The log is read for our own driver that exited with a code, whether seen through watches or read directly; phase and code are the
    pod's."""
    world, log = World(), Log(lines)
    noted = world.running(DECLARED)
    world.spark.finish(NAME, 1)
    launcher, _ = world.process(watches=watches)
    launcher.logs = LogTails(log)
    seen = run(launcher.observe(DECLARED, noted))
    assert seen is not None
    assert (seen.phase, seen.exit_code, seen.log_tail) == (Phase.FAILED_KNOWN, 1, TRACE.strip())
    assert seen.message.endswith(": ModuleNotFoundError: No module named 'gone'")
    assert [asked[1] for asked in log.asked] == [DRIVER]


@pytest.mark.parametrize("own", [SHUTDOWN, TRACE[-100:] + 20 * SHUTDOWN])
def test_a_termination_message_that_was_cut_from_the_log_is_not_enough(own: str) -> None:
    """A termination message with Spark's messages in it is only the end of the log: the log is read, and the message is used only if it
    cannot be."""
    seen = run(LogTails(Log(lines)).with_tail(failed(log_tail=own), DECLARED, namespace="ns"))
    assert seen.log_tail == TRACE.strip()
    kept = run(LogTails(Log(refused)).with_tail(failed(log_tail=own), DECLARED, namespace="ns"))
    assert kept.log_tail and len(kept.log_tail) <= LOG_TAIL


def test_a_secret_at_a_cut_is_hidden() -> None:
    """The job's secrets are hidden before the log is cut, because half a password in an excerpt would not be recognised."""
    secret = "correct horse battery staple " * 20

    async def log() -> str:
        return f"job: cannot log in with {secret}at all\n"

    assignment = assignment_of(job_of("orders", template={"driver": {"env": [{"name": "PASSWORD", "value": secret}]}}))
    seen = run(LogTails(Log(log)).with_tail(failed(), assignment, namespace="ns"))
    assert seen.log_tail == "job: cannot log in with ***at all"


@pytest.mark.parametrize(
    ("attempt", "template", "said"),
    [
        (1, {}, True),
        (2, {}, False),
        (1, {"volumes": [{"name": "code", "emptyDir": {}}]}, False),
        (1, {"driver": {"volumeMounts": [{"name": "code", "mountPath": "/opt"}]}}, False),
        (1, {"driver": {"configMaps": [{"name": "code", "path": "/opt"}]}}, False),
        (1, {"driver": {"template": {"spec": {}}}}, False),
        (1, {"sparkConf": {"spark.kubernetes.driver.volumes.nfs.code.mount.path": "/opt"}}, False),
        (1, {"sparkConf": {"spark.kubernetes.driver.podTemplateFile": "/opt/pod.yaml"}}, False),
        (1, {"driver": {"cores": 1}, "sparkConf": {"spark.eventLog.enabled": "false"}}, True),
    ],
)
def test_an_error_of_the_script_is_one_of_its_image(attempt: int, template: dict[str, object], said: bool) -> None:
    """Only in a first attempt whose driver mounts nothing: a module missing from a volume may be there later, and an earlier attempt that
    got further shows that the script is not the cause."""
    assignment = assignment_of(job_of("orders", template=template), attempt=attempt)
    names = ("ModuleNotFoundError", "ImportError") if said else ()
    assert run(LogTails(Log(lines)).with_tail(failed(), assignment, namespace="ns")).script_error == names


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_query_that_spark_refuses_is_no_matter_of_mounts(attempt: int) -> None:
    """Whether Spark can analyse a query does not depend on the driver's volumes; later attempts are repeated here, too."""
    template = {"driver": {"configMaps": [{"name": "code", "path": "/opt"}]}}
    assignment = assignment_of(job_of("orders", template=template), attempt=attempt)

    async def log() -> str:
        return (LOGS / "path.txt").read_text()

    seen = run(LogTails(Log(log)).with_tail(failed(), assignment, namespace="ns"))
    assert seen.script_error == (("PATH_NOT_FOUND", "AnalysisException") if attempt == 1 else ())
