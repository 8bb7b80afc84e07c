"""The warehouse example as its page tells it, on Delta Lake and on Iceberg: each job sent twice at once and a third time.

The expected tables are computed here with pandas from the deliveries, independent of everything under test, and read by delta-rs and
pyiceberg.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from examples.sender import PATIENCE, Sender, assert_ran_once, needs_spark
from harness.delta_jars import delta_jars
from harness.iceberg_rest import spark_runtime, sqlite_driver
from harness.patience import completed
from sparkonce.sink.slotlog.snapshot import Table

WAREHOUSE = Path(__file__).resolve().parents[3] / "examples" / "warehouse"
MONTHS = ("1995-01", "1995-02")
FIRST, *LATER = ("1995-01-01", "1995-02-01", "1995-03-01")
pytestmark = [pytest.mark.spark, pytest.mark.slow, needs_spark]

Read = Callable[[str], pd.DataFrame]


@pytest.fixture
def project(tmp_path: Path) -> Sender:
    """The example's files with its deliveries. Jars come from the tests' cache: Spark's resolver asks the network each time."""
    folder = tmp_path / "warehouse"
    shutil.copytree(WAREHOUSE, folder, ignore=shutil.ignore_patterns("data", "spark-warehouse", "__pycache__"))
    jars = {"io.delta": delta_jars(), "org.apache.iceberg": [spark_runtime(), sqlite_driver()]}
    for path in folder.rglob("*.yaml"):
        job = yaml.safe_load(path.read_text())
        [first, *_] = job["spec"]["template"]["spec"]["deps"].pop("packages")
        job["spec"]["template"]["spec"]["deps"] = {"jars": [str(jar) for jar in jars[first.partition(":")[0]]]}
        path.write_text(yaml.safe_dump(job))
    done = completed([sys.executable, str(folder / "prepare.py")], PATIENCE)
    assert done.returncode == 0, done.stderr
    return Sender(folder)


def commands(section: str, folder: Path) -> list[list[str]]:
    """The jobs that a section of the page sends, in its order: what follows `sparkonce run`."""
    [text] = re.findall(rf"^## {section}$(.*?)^## ", (WAREHOUSE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^sparkonce run (.*)$", text, re.MULTILINE)
    return [shlex.split(line.replace("$PWD", str(folder))) for line in lines]


def send(project: Sender, section: str, read: Read) -> None:
    """Sends every job of the section thrice, and compares each table afterwards with what pandas says."""
    landing = Landing(project.folder / "data" / "landing")
    sent = commands(section, project.folder)
    assert len(sent) == 6
    for command in sent:
        name, value = Path(command[0]).stem, next((each.partition("=")[2] for each in command if "=" in each), "")
        answers = project.send_thrice(*command)
        if name in {"orders", "begin-customers"}:
            rows = landing.orders(value) if name == "orders" else landing.customers(FIRST)
            assert_ran_once(answers, rows={name.removeprefix("begin-"): len(rows)})
        assert [answer.exit_code for answer in answers] == [0, 0, 0], [answer.told for answer in answers]
        assert sorted(answer.told["replayed"] for answer in answers) == [False, True, True]
        assert answers[-1].told["attempt"] == 1
    same(read("orders"), pd.concat([landing.orders(month) for month in MONTHS]), by=["orderkey"])
    same(read("customers"), landing.history(), by=["custkey", "valid_from"])
    same(read("revenue"), landing.revenue(MONTHS[-1]), by=["orderdate", "mktsegment"])


def same(found: pd.DataFrame, expected: pd.DataFrame, *, by: list[str]) -> None:
    found, expected = (each.sort_values(by, ignore_index=True)[sorted(expected.columns)] for each in (found, expected))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


class Landing:
    """What was delivered, and the tables that follow from it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, kind: str, name: str) -> pd.DataFrame:
        frame = pq.read_table(self._folder / kind / f"{name}.parquet").to_pandas()
        assert isinstance(frame, pd.DataFrame)
        return frame

    def customers(self, day: str) -> pd.DataFrame:
        return self.read("customers", day)

    def orders(self, month: str) -> pd.DataFrame:
        lines = self.read("lines", month)
        lines["revenue"] = lines.extendedprice * (1 - lines.discount)
        sums = lines.groupby("orderkey").agg(lines=("orderkey", "size"), revenue=("revenue", "sum")).reset_index()
        sums["revenue"] = sums.revenue.map(money)
        return self.read("orders", month).merge(sums, on="orderkey").drop(columns=["comment", "clerk"])

    def history(self) -> pd.DataFrame:
        """One row for each time in which a customer belonged to one segment."""
        begun = [(row, day(FIRST)) for row in self.customers(FIRST).to_dict("records")]
        current: dict[int, tuple[dict[str, Any], Any]] = {row["custkey"]: (row, since) for row, since in begun}
        ended = []
        for each in LATER:
            for row in self.customers(each).to_dict("records"):
                known = current.get(row["custkey"])
                if known is not None and known[0]["mktsegment"] == row["mktsegment"]:
                    continue
                if known is not None:
                    ended.append({**known[0], "valid_from": known[1], "valid_to": day(each)})
                current[row["custkey"]] = (row, day(each))
        return pd.DataFrame(ended + [{**row, "valid_from": since, "valid_to": None} for row, since in current.values()])

    def revenue(self, month: str) -> pd.DataFrame:
        joined = self.orders(month).merge(self.history(), on="custkey")
        open_end = joined.valid_to.map(lambda to: day("9999-12-31") if pd.isna(to) else to)
        valid = joined[(joined.orderdate >= joined.valid_from) & (joined.orderdate < open_end)]
        sums = valid.groupby(["orderdate", "mktsegment"]).agg(orders=("orderkey", "size"), revenue=("revenue", "sum"))
        return sums.reset_index().assign(month=month)


def day(text: str) -> Any:
    return pd.Timestamp(text).date()


def money(value: Any) -> Any:
    return value.quantize(value.__class__("0.01"), rounding="ROUND_HALF_UP")


@pytest.mark.soak  # four minutes of eighteen requests; the unmodified script below is of the same page
def test_on_delta(project: Sender) -> None:
    """Six jobs, eighteen requests: every table is what the deliveries say, read by delta-rs."""

    def read(name: str) -> pd.DataFrame:
        frame = DeltaTable(str(project.folder / "data" / "delta" / name)).to_pyarrow_table().to_pandas()
        assert isinstance(frame, pd.DataFrame)
        return frame

    send(project, "On Delta Lake", read)
    deliver_again(project, read)


def deliver_again(project: Sender, read: Read) -> None:
    """February comes again without a hundred orders: reruns replace its orders and its revenue, and one of a MERGE changes nothing."""
    landing = Landing(project.folder / "data" / "landing")
    path = project.folder / "data" / "landing" / "orders" / f"{MONTHS[-1]}.parquet"
    pq.write_table(pq.read_table(path).slice(100), path)
    [again] = re.findall(r"^sparkonce (rerun delta/orders.*)$", (WAREHOUSE / "README.md").read_text(), re.MULTILINE)
    merge = again.replace("orders", "change-customers").replace(f"month={MONTHS[-1]}", f"day={LATER[-1]}")
    for command in (again, again.replace("orders", "revenue"), merge):
        done = project.ask(*shlex.split(command.replace("$PWD", str(project.folder))))
        assert (done.exit_code, done.told["generation"]) == (0, 2), done.told
    same(read("orders"), pd.concat([landing.orders(month) for month in MONTHS]), by=["orderkey"])
    same(read("customers"), landing.history(), by=["custkey", "valid_from"])
    same(read("revenue"), landing.revenue(MONTHS[-1]), by=["orderdate", "mktsegment"])


@pytest.mark.soak  # Delta's table has the same statements, and tests/crash the kills of both
def test_on_iceberg(project: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same scripts on Iceberg with the catalog of the page, read by pyiceberg."""
    lake = project.folder / "data" / "iceberg"
    lake.mkdir()
    page = (WAREHOUSE / "README.md").read_text()
    said = {
        name: value.replace("$PWD", str(project.folder)) for name, value in re.findall(r"(PYICEBERG_\w+)=(\S+)", page)
    }
    for name, value in said.items():
        monkeypatch.setenv(name, value)  # for the commands; pyiceberg has read this process's environment already
    properties = {name.rpartition("__")[2].lower(): value for name, value in said.items()}

    def read(name: str) -> pd.DataFrame:
        return load_catalog("lake", **properties).load_table(f"shop.{name}").scan().to_pandas()

    send(project, "On Iceberg", read)


def test_an_existing_script_unmodified(project: Sender) -> None:
    """Parquet overwritten and read back, a table created and a MERGE: once, whatever the script does not know."""
    [command] = commands("An existing script, unmodified", project.folder)
    lake = project.folder / "data" / "legacy"
    landing = Landing(project.folder / "data" / "landing")
    lines = landing.read("lines", MONTHS[0]).merge(landing.read("orders", MONTHS[0]), on="orderkey")
    lines["days"] = [
        (received - ordered).days for received, ordered in zip(lines.receiptdate, lines.orderdate, strict=True)
    ]
    late = lines[lines.receiptdate > lines.commitdate][["orderkey", "linenumber", "days"]]
    for _ in range(2):
        answers = project.send_thrice(*command)
        assert [answer.exit_code for answer in answers] == [0, 0, 0], [answer.told for answer in answers]
        waits = pq.ParquetDataset(Table(lake / "waits").files()).read().to_pandas()
        expected = lines.groupby("orderpriority", as_index=False).agg(days=("days", "mean"))
        same(waits, expected, by=["orderpriority"])
        same(DeltaTable(str(lake / "late")).to_pyarrow_table().to_pandas(), late, by=["orderkey", "linenumber"])
        assert answers[-1].told["attempt"] == 1
