"""examples/kubernetes on a real cluster: the flights pipeline on a volume and in a bucket, its rows counted against the raw files."""

from __future__ import annotations

import csv
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.eventually import assert_eventually
from harness.node.flights import SCRIPTS, Flights
from harness.node.release import STORE, Release
from harness.node.scene import LONG
from harness.store_servers import versitygw
from sparkonce.launch.kubernetes import SPARK_APPLICATIONS

pytestmark = [pytest.mark.slow, pytest.mark.spark]

MONTHS = ("01", "02")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw files as the example prepares them, without the months that are not loaded."""
    folder = tmp_path_factory.mktemp("flights") / "raw"
    subprocess.run([sys.executable, str(SCRIPTS / "prepare.py"), str(folder)], check=True, capture_output=True)
    for file in (folder / "flights").iterdir():
        if file.stem.removeprefix("2013-") not in MONTHS:
            file.unlink()
    return folder


@pytest.fixture(params=["s3", pytest.param("volume", marks=pytest.mark.soak)])
def flights(release: Release, raw: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Flights]:
    release.until_ready()
    with versitygw(tmp_path, STORE) if request.param == "s3" else nullcontext() as server:
        made = Flights(release.cluster, f"flights-{uuid.uuid4().hex[:8]}", server)
        try:
            made.set_up(raw)
            yield made
        finally:
            made.remove()


def per_month(raw: Path) -> Counter[int]:
    """The number of flights in the raw files, by month."""
    counted: Counter[int] = Counter()
    for file in (raw / "flights").iterdir():
        with file.open(newline="") as text:
            counted.update(int(row["month"]) for row in csv.DictReader(text))
    return counted


def per_carrier(raw: Path) -> Counter[str]:
    counted: Counter[str] = Counter()
    for file in (raw / "flights").iterdir():
        with file.open(newline="") as text:
            counted.update(row["carrier"] for row in csv.DictReader(text))
    return counted


def test_the_pipeline_runs_once(flights: Flights, raw: Path, say: Callable[[str], None]) -> None:
    """Two months and the tables derived from them are loaded. A derived job that comes before its months fails; a duplicate is answered
    from the record. Each flight is in the tables once. Operators that can reach the bucket settle attempts themselves; for the volume they
    start settle runs."""
    first = flights.send("load-month.yaml", month=MONTHS[0])
    expected = per_month(raw)
    assert flights.until(first, "Succeeded")["result"]["outputs"][0]["rows"] == expected[1]
    failed = flights.until(flights.send("delays.yaml", name="too-early", months="2"), "Failed")
    assert "has 1 of 2 months" in failed["message"]
    assert flights.until(flights.send("load-month.yaml", month=MONTHS[1]), "Succeeded")["attempt"] == 1
    derived = flights.send("delays.yaml", months="2")
    again = flights.send("load-month.yaml", name="somebody-else", month=MONTHS[0])
    replayed = flights.until(again, "Succeeded")
    assert (replayed["role"], replayed["application"]) == ("Replay", flights.status(first)["application"])
    status = flights.until(derived, "Succeeded")
    assert Counter(each["date"].month for each in flights.table("flights").select(["date"]).to_pylist()) == expected
    carriers = flights.table("carriers").to_pylist()
    assert {each["carrier"]: each["flights"] for each in carriers} == per_carrier(raw)
    assert len(carriers) == len(per_carrier(raw))
    assert sum(each["flights"] for each in flights.table("delays").to_pylist()) == sum(expected.values())
    assert {each["name"]: each["rows"] for each in status["result"]["outputs"]}["carriers"] == len(carriers)
    assert_eventually(lambda: not flights.cluster.api.list(SPARK_APPLICATIONS, flights.namespace), LONG)
    attempts = {each for each in flights.applications if each.rpartition("-")[2].startswith("a")}
    settles = flights.applications - attempts
    assert len(attempts) == 4, attempts
    assert bool(settles) == (flights.server is None), settles
    told = flights.kubectl("get", "ij")
    assert [line.split()[1:3] for line in sorted(told.splitlines()) if "somebody-else" in line] == [
        ["Succeeded", "Replay"]
    ], told
    say(f"{'bucket' if flights.server else 'volume'}: {len(attempts)} attempts, {len(settles)} settle runs")
