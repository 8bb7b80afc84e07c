"""Settings for all tests: tiers, time limits, outcomes for scripts/second_look.py, no skips in CI, hypothesis, JVM flags, and a folder in
memory.

A test that cannot run on a machine is skipped with its reason. That is right on a laptop and wrong in CI, where a missing tool would
silently leave a promise untested, so with `CI=true` each skip is reported as a failure and counted in pytest's last line. Counting skips at
the end and changing the exit code was not taken, since the last line would still look like success.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, core, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from harness import effort, spark, spark_archive, tiers
from harness.scheduling import OneWorkerPerCluster
from sparkonce import failpoints

TESTS = Path(__file__).parent
IN_CI = os.environ.get("CI") == "true"
QUICK_LIMIT, SLOW_LIMIT, CAMPAIGN_LIMIT = 60, 240, 600
"""Time limits in seconds of a test and its fixtures, outside the folders of the full tier: by default; marked `slow` or with a JVM; and
with larger campaigns than the gate's. Each is five times what such tests take with three others on two cores, so that load makes a test
slow but not red, while a test that hangs is ended."""

# For spark-submit, here and in child processes. They change nothing in a job, so keys and fingerprints stay the same.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS", f"{spark_archive.SHORT_LIVED} {spark_archive.options()} {spark.as_options()}"
)

# A process that a test gives up on is aborted, and prints where its threads are (harness/patience.py).
os.environ.setdefault("PYTHONFAULTHANDLER", "1")

# No deadline per example: on a shared two-core machine valid examples are sometimes slow. A failing example prints the blob that reproduces
# it. The soak explores: its draws follow from SEED (harness/effort.py). Any other run gives one verdict per commit: each test's draws
# follow from its own source text, and no database adds examples of other runs.
EXPLORES = effort.effort() is effort.Effort.SOAK
settings.register_profile(
    "effort",
    deadline=None,
    derandomize=not EXPLORES,
    print_blob=True,
    max_examples=effort.size("hypothesis examples"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("effort")
if not EXPLORES:
    # Hypothesis also draws constants of our modules, but only of those imported so far: draws would depend on which tests ran before.
    providers._get_local_constants = Constants

TALLY_VARIABLE = "SPARKONCE_FAILPOINTS_TALLY"
TALLY = pytest.StashKey[str]()
"""The folder that counts failpoints with a fault, in the process that made it. `make test TIER=all` gives one to both of its runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tiers.TIERS, default="all", help="which tests to collect: harness/tiers.py")
    parser.addoption(
        "--outcome", metavar="FILE", help="write what passed and failed as JSON, for scripts/second_look.py"
    )


class Outcome:
    """Counts passed tests and keeps the reports of failed ones, of all workers, and writes them at the end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed: set[str] = set()
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, report.longreprtext)
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps({"passed": len(self._passed - self._failed.keys()), "failed": self._failed}))


class NamesFailures:
    """Names each failure at once. Pytest does so at a run's end, and one of the full tier takes an hour."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and isinstance(reporter, pytest.TerminalReporter):
            reporter.write_line(f"\nfailed: {report.nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    os.environ[tiers.VARIABLE] = config.getoption("--tier")
    if EXPLORES and config.getoption("hypothesis_seed", None) is None:  # hypothesis' own option wins
        core.global_force_seed = effort.seed("hypothesis")  # type: ignore[assignment] # it is declared as None alone
    if (outcome := config.getoption("--outcome")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcome(Path(outcome)))
    if config.getoption("--tier") == "full" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamesFailures(config))
    if effort.effort() is not effort.Effort.GATE and TALLY_VARIABLE not in os.environ:  # workers find it in theirs
        os.environ[TALLY_VARIABLE] = config.stash[TALLY] = tempfile.mkdtemp(prefix="sparkonce-tally-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(TALLY, None):
        shutil.rmtree(folder)


def pytest_report_header() -> str:
    return f"EFFORT={effort.effort()} SEED={effort.base()}: both in the environment repeat what campaigns drew"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not even import files of another tier."""
    return None if tiers.collects(collection_path, TESTS, config.getoption("--tier")) else True


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps only this tier's tests. Those on a real cluster come first (harness/scheduling.py), and in campaigns then those that take
    longest, or else one worker would play them alone at the end."""
    chosen = config.getoption("--tier")
    for item in items:
        if not tiers.full_folder(item.path, TESTS):
            item.add_marker(pytest.mark.timeout(_limit(item)), append=True)
    left = [] if EXPLORES else ["soak"]
    if chosen == "quick" and effort.effort() is effort.Effort.GATE:
        left.append("further")
    if theirs := {item for item in items if not _ours(item, chosen) or any(map(item.get_closest_marker, left))}:
        config.hook.pytest_deselected(items=list(theirs))
        items[:] = [item for item in items if item not in theirs]
    longest = effort.effort() is not effort.Effort.GATE
    items.sort(key=lambda item: ("cluster" not in item.path.parent.name, longest and not _is_slow(item)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneWorkerPerCluster | None:
    return OneWorkerPerCluster(config, log) if config.getoption("dist") == "worksteal" else None


def _limit(item: pytest.Item) -> int:
    if effort.effort() is not effort.Effort.GATE:
        return CAMPAIGN_LIMIT
    return SLOW_LIMIT if _is_slow(item) else QUICK_LIMIT


def _is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "spark"))


def _ours(item: pytest.Item, chosen: str) -> bool:
    marked = item.get_closest_marker(tiers.OPERATOR) is not None
    return tiers.runs(item.path, TESTS, _parameters(item), chosen, marked=marked)


def _parameters(item: pytest.Item) -> Iterable[object]:
    spec = getattr(item, "callspec", None)
    return () if spec is None else spec.params.values()


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """A measurement or draw of a test (a seed, counts), printed in the run's summary, also if it passed and under xdist."""
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
    chosen = terminalreporter.config.getoption("--tier")
    if effort.effort() is effort.Effort.GATE:
        if rest := tiers.left_out(chosen):
            terminalreporter.write_line(rest)
    else:
        faults = {path.name for path in Path(os.environ[TALLY_VARIABLE]).iterdir()}
        never = ", ".join(sorted(failpoints.NAMES.keys() - faults)) or "none"
        terminalreporter.write_line(
            f"faults were played at {len(faults)} of {len(failpoints.NAMES)} failpoints; at these never: {never}"
        )


@pytest.fixture(autouse=True)
def no_plan_of_another_test() -> Iterator[None]:
    """A plan of failpoints that this process read from a test's environment ends with the test: it would freeze a later one."""
    yield
    failpoints.reset()


@pytest.fixture
def tmpfs_path() -> Iterator[Path]:
    """A fresh folder in memory (`/dev/shm`) if possible, otherwise on disk; removed afterwards."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="sparkonce-test-", dir=where))
    yield path
    shutil.rmtree(path, ignore_errors=True)
