"""`current()`: from a process's environment to its job, or one sentence that says why there is none."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkonce
from harness.arrow_stage import arrow_stage, table_of
from harness.child import free_port
from harness.granted import Granted, granted
from sparkonce.blocking import run
from sparkonce.driver import current as module
from sparkonce.driver.context import Job
from sparkonce.driver.current import from_environment
from sparkonce.errors import AttemptEnded, InvalidInput, NotInJob, StoreUnavailable
from sparkonce.launch.local import locked, place
from sparkonce.model.record import ENVIRONMENT, FOLDER_ENVIRONMENT, UNCAUGHT
from sparkonce.store.open import open_store


@pytest.fixture
def attempt(tmp_path: Path) -> Granted:
    return granted(tmp_path, "orders", store=open_store(str(tmp_path / "ledger.db")))


@pytest.fixture(autouse=True)
def _one_process_per_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For `current()` each test counts as a new process; jobs that it began are stopped."""
    monkeypatch.setattr(module, "_current", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # `current()` replaces it
    begun: list[Job] = []
    start = Job.__init__

    def remembered(job: Job, *given: object, **named: object) -> None:
        start(job, *given, **named)  # type: ignore[arg-type]  # passed on unchanged
        begun.append(job)

    monkeypatch.setattr(Job, "__init__", remembered)
    yield
    for job in begun:
        job.heartbeat.stop()


def environment(attempt: Granted, folder: Path | None = None) -> dict[str, str]:
    told = {ENVIRONMENT: attempt.assignment.model_dump_json(by_alias=True, exclude_none=True)}
    return told | ({FOLDER_ENVIRONMENT: str(folder)} if folder else {})


def folder_of(attempt: Granted, tmp_path: Path) -> Path:
    folder = tmp_path / "attempts" / attempt.assignment.name
    lock = place(folder, attempt.assignment, stopped=False)
    assert lock is not None
    os.close(lock)
    return folder


def test_outside_any_job_one_sentence_says_how_to_run_it() -> None:
    """A script that is started by hand ends with NotInJob, which names both ways to run it."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("SPARKONCE_")}
    code = "import sparkonce\ntry:\n    sparkonce.current()\nexcept sparkonce.NotInJob as e:\n    print(e)"
    said = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, check=True).stdout

    assert said.count("\n") == 1
    assert "`sparkonce run JOB.yaml`" in said
    assert "`with sparkonce.job(KEY, outputs={...}) as job:`" in said


def test_outside_any_job_is_an_error_of_this_package() -> None:
    """NotInJob can be caught as an error of this package."""
    with pytest.raises(sparkonce.SparkonceError):
        from_environment({})
    assert issubclass(NotInJob, sparkonce.SparkonceError)


def test_an_assignment_of_another_version_is_one_sentence() -> None:
    """The sentence has the error, its place and the remedy, without a parser's traceback."""
    with pytest.raises(InvalidInput, match=r"SPARKONCE_ASSIGNMENT does not hold an assignment .* same version"):
        from_environment({ENVIRONMENT: '{"key": 1}'})


def test_the_job_is_the_same_object_each_time(attempt: Granted, monkeypatch: pytest.MonkeyPatch) -> None:
    """`current()` returns one object; its key, generation, attempt and outputs are those of the assignment."""
    for name, value in environment(attempt).items():
        monkeypatch.setenv(name, value)

    job = sparkonce.current()

    assert job is sparkonce.current()
    assert (job.key, job.generation, job.attempt, job.outputs) == ("load-may", 1, 1, ("orders",))
    assert not job.replayed


def test_a_job_from_the_environment_writes(attempt: Granted) -> None:
    """Relative outputs are relative to the assignment's folder, whatever the process's current folder is."""
    job = from_environment(environment(attempt), stager=arrow_stage)

    assert job.write(table_of(1, 2), "orders").fresh
    assert attempt.rows("orders") == [1, 2]


def test_the_driver_holds_the_attempts_lock(attempt: Granted, tmp_path: Path) -> None:
    """The driver itself holds the lock, so the attempt counts as alive although the JVM, which closed its copy, holds none."""
    folder = folder_of(attempt, tmp_path)
    assert not locked(folder)

    from_environment(environment(attempt, folder))

    assert locked(folder)


def test_several_processes_of_an_attempt_hold_the_lock_together(attempt: Granted, tmp_path: Path) -> None:
    """The lock is shared, so `current()` does not wait for the wrapper."""
    folder = folder_of(attempt, tmp_path)
    other = os.open(folder / "lock", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_SH)
    try:
        from_environment(environment(attempt, folder))
    finally:
        os.close(other)
    assert locked(folder)


def test_a_stopped_attempt_does_not_begin(attempt: Granted, tmp_path: Path) -> None:
    """An attempt that was marked as stopped before its driver came raises AttemptEnded, without a request to the ledger."""
    folder = folder_of(attempt, tmp_path)
    (folder / "stopped").touch()

    with pytest.raises(AttemptEnded, match="attempt 1 of load-may was stopped before it began"):
        from_environment(environment(attempt, folder))


def test_an_attempt_without_a_folder_does_not_begin(attempt: Granted, tmp_path: Path) -> None:
    """If the folder was deleted, no other process could see that this driver is alive."""
    with pytest.raises(AttemptEnded, match="the folder of attempt 1 of load-may is gone"):
        from_environment(environment(attempt, tmp_path / "nowhere"))


def test_a_late_driver_of_a_replaced_attempt_does_not_begin(attempt: Granted) -> None:
    """The next attempt has been granted: the ledger says so, and the driver ends before it does anything."""
    told = environment(attempt)
    attempt.update(attempt=2, nonce="nonce-2")

    with pytest.raises(AttemptEnded, match="attempt 1 of load-may is over"):
        from_environment(told)


def test_a_database_that_is_away_does_not_end_the_driver(attempt: Granted) -> None:
    """A ledger in PostgreSQL that does not answer while the driver starts is as silent as one that stops answering later."""
    url = f"postgresql://127.0.0.1:{free_port()}/ledger"
    told = attempt.assignment.model_copy(update={"store": url}).model_dump_json(by_alias=True, exclude_none=True)

    job = from_environment({ENVIRONMENT: told}, stager=arrow_stage)

    assert job.write(table_of(1), "orders").fresh


def test_a_silent_ledger_does_not_end_the_driver(attempt: Granted, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer proves nothing: the job begins, and the output decides at the commit."""

    def silent(*_: object) -> bool:
        raise StoreUnavailable("the ledger is locked")

    monkeypatch.setattr("sparkonce.driver.channel.DirectChannel.renew", silent)

    job = from_environment(environment(attempt), stager=arrow_stage)

    assert job.write(table_of(1), "orders").fresh


UNCAUGHT_SCRIPT = """
import sys

import sparkonce
from pyspark.errors import AnalysisException


def mine(kind, error, trace):
    print("my own hook:", kind.__name__)
    before(kind, error, trace)


before, sys.excepthook = sys.excepthook, mine
job = sparkonce.current()
{broken}
raise AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/nope. SQLSTATE: 42K03")
"""


@pytest.mark.parametrize(("broken", "reported"), [("", 1), ("job.channel = None", 0)])
def test_the_exception_that_ends_the_program_is_reported_and_printed(
    attempt: Granted, broken: str, reported: int
) -> None:
    """A real process reports it once and then prints it as it would without us, through the hook that it had; also if the report itself
    fails."""
    script = UNCAUGHT_SCRIPT.format(broken=broken)
    env = {**os.environ, **environment(attempt)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "my own hook: AnalysisException\n")
    assert "AnalysisException: [PATH_NOT_FOUND] Path does not exist: file:/nope. SQLSTATE: 42K03\n" in done.stderr
    found = run(attempt.store.reports(attempt.record.address, 1))
    assert [(each.kind, each.attempt) for each in found] == [(UNCAUGHT, 1)] * reported
