"""What every test gets: the rule that CI skips nothing, hypothesis profiles, JVMs for short jobs, and a folder in memory.

A tier that cannot run on a machine is skipped with its reason, which is right on a laptop and wrong in CI, where a
missing tool would silently turn a promise off. With `CI=true` each skip therefore *is* a failure, reported as one, so
that the closing line counts it. Counting skips at the end and changing the exit code was not taken: the closing line
would still say that all is well.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

IN_CI = os.environ.get("CI") == "true"

# For spark-submit, here and in processes that are started from here: as harness.spark.SHORT_LIVED, in
# words of its own because this file is used alone, too. Nothing about a job changes, so keys and fingerprints do not.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No deadline per example: a shared two-core machine makes honest examples slow now and then.
# A failing example prints the blob that reproduces it, and nothing is derandomized: each run explores something new.
settings.register_profile("dev", deadline=None, print_blob=True, derandomize=False)
settings.register_profile(
    "ci",
    parent=settings.get_profile("dev"),
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))


def _skip_is_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        where_and_why = report.longrepr
        reason = where_and_why[2] if isinstance(where_and_why, tuple) else str(where_and_why)
        report.outcome = "failed"
        report.longrepr = f"CI may skip nothing, and this was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _skip_is_failure(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _skip_is_failure(report)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on a real cluster come first: one process of the run then has them all, and one cluster serves them."""
    items.sort(key=lambda item: "cluster" not in item.path.parent.name)


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """What a test measured or drew (a seed, counts), printed in the summary of the run, also when it passed and under xdist."""
    return lambda text: record_property("said", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    said = [
        (report.nodeid, text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, text in report.user_properties
        if name == "said"
    ]
    if said:
        terminalreporter.section("what tests say")
    for nodeid, text in sorted(said):
        terminalreporter.write_line(f"{nodeid}\n{text}")


@pytest.fixture
def tmpfs_path() -> Iterator[Path]:
    """A fresh folder in memory (`/dev/shm`) where there is one, else on disk; removed afterwards."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="sparkonce-test-", dir=where))
    yield path
    shutil.rmtree(path, ignore_errors=True)
