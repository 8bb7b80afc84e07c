"""The benchmarks at tiny size: they run, report only valid figures, and fail if the measured code has no effect.

Times of a tiny run are meaningless and not checked. `benchmarks/` is a folder of scripts, so it is run as one.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from harness.patience import completed
from harness.postgres import required_binaries
from harness.spark import java
from harness.store_parts import kafka_jars

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PATIENCE = (
    180  # seconds for one tiny run: Spark starts and writes twice in 15 alone, and other tests may share the two cores
)
COLUMNS = ("what", "ours", "raw", "ratio median", "spread", "pairs", "goal", "met?")

needs_spark = pytest.mark.skipif(java() is None, reason="no Java: install OpenJDK 17")


def started(arguments: list[str], folder: Path, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Starts Python in the benchmarks' folder, with its temporary files in the test's folder or in `temporary`."""
    path = os.pathsep.join(map(str, (BENCHMARKS, BENCHMARKS / "http", BENCHMARKS.parent / "tests")))
    environment = {**os.environ, "TMPDIR": str(temporary or folder), "PYTHONPATH": path}
    return completed([sys.executable, *arguments], PATIENCE, env=environment, cwd=folder)


def benched(folder: Path, *options: str, temporary: Path | None = None) -> tuple[dict[str, Any], str]:
    """The results file and the printed text; nothing else may be left on disk."""
    done = started([str(BENCHMARKS / "run.py"), *options, "--json", str(folder / "all.json")], folder, temporary)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["all.json"]
    told: dict[str, Any] = json.loads((folder / "all.json").read_text())
    assert datetime.now(UTC) >= datetime.fromisoformat(told["date"])
    assert told["fileSystem"]["kind"] in done.stdout
    for column in COLUMNS:
        assert column in done.stdout
    for name, part in told["parts"].items():
        assert part["noise"]["cpu"] > 0
        assert part["noise"]["others"] >= 0
        assert f"Noise, {name}: " in done.stdout
        shown = "1000 keys" if name == "http-keys" else f"pair {told['pairs']} of {told['pairs']}"
        assert f"{name}: {shown}" in done.stderr, "no progress was shown"
        for row in part["table"]:
            check_row(row, pairs=told["pairs"])
            assert row["what"] in done.stdout
    return told, done.stdout


def check_row(row: dict[str, Any], *, pairs: int) -> None:
    """Every figure follows from the samples, one per pair."""
    ours, raw = row["samples"]["ours"], row["samples"]["raw"]
    assert len(ours) == row["pairs"] == pairs
    assert row["ours"] == median(ours)
    differences = ("fixed", "per M", "growth")
    assert min(ours) >= 0 or any(each in row["what"] for each in differences), "only a difference may be below zero"
    ratios = [a / b for a, b in zip(ours, raw, strict=True)] if raw else []
    assert row["ratioMedian"] == (median(ratios) if raw else None)
    of = ratios if row["spreadOf"] == "ratio" else ours
    assert row["spread"] == [min(of), max(of)]
    assert row["verdict"] == (None if row["goal"] is None else "not told apart"), "two pairs decide nothing"


def test_lanes_are_measured(tmp_path: Path) -> None:
    """Rows, commits, an acquisition and reads, the rows counted in the end; a day of commits; the memory of a writer that waits."""
    told, _ = benched(tmp_path, "--only", "lanes", "--pairs", "2", "--rows", "200000", "--places", "100")
    goals_told = [row["goal"] for row in told["parts"]["lanes"]["table"]]
    assert goals_told == ["<= 1.25x", "<= 1.3x", "<= 1 s", "<= 1.1x", "<= 1.1x", "<= the buffer and 64 MiB"]


@needs_spark  # Java, for the broker
@pytest.mark.soak  # as on a table, above
def test_lanes_on_kafka_are_measured(tmp_path: Path) -> None:
    """Rows and commits, with the rows counted in the end."""
    kafka_jars()
    told, _ = benched(tmp_path, "--only", "lanes-kafka", "--pairs", "1", "--rows", "100000")
    assert [row["goal"] for row in told["parts"]["lanes-kafka"]["table"]] == ["<= 1.43x", "<= 1.3x"]


def test_reserve_and_replay_are_measured_and_told(tmp_path: Path) -> None:
    """The two parts without Spark report every column and figure, each computed from its samples, and two pairs are too few for a verdict
    on a goal."""
    told, printed = benched(tmp_path, "--only", "reserve", "--only", "replay", "--pairs", "2")
    assert list(told["parts"]) == ["reserve", "replay"]
    reserve, replay = told["parts"]["reserve"], told["parts"]["replay"]
    assert [row["goal"] for row in reserve["table"]] == ["<= 3x", None]
    assert reserve["bytes"] > 1000, "the raw insert is compared with a fraction of what a reservation writes"
    limits = {(row["what"], row["unit"]): (row["goal"], row["atMost"]) for row in replay["table"]}
    assert limits["replay: in the process", "ms"] == ("< 100 ms", 100)
    assert limits["replay: the command", "ms"] == ("< 0.4 s", 400)
    assert [row["spreadOf"] for row in replay["table"]] == ["ms", "ms", "CPU ms", "ratio"]
    assert "not told apart" in printed


def goals(part: dict[str, Any]) -> dict[tuple[str, str], str | None]:
    """Goals of a part's rows, by what follows the part's name, and unit."""
    return {(row["what"].partition(": ")[2], row["unit"]): row["goal"] for row in part["table"]}


def test_http_is_measured_in_memory_and_on_sqlite(tmp_path: Path) -> None:
    """A new key is compared with one insert of the record's size, a replay with one read, and the ledger in memory with the application."""
    told, _ = benched(tmp_path, "--only", "http", "--pairs", "2")
    http = told["parts"]["http"]
    assert goals(http) == {
        ("memory, new key, more than the application", "CPU ms"): "<= 0.3 CPU ms",
        ("memory, replay, more than the application", "CPU ms"): "<= 0.3 CPU ms",
        ("sqlite, new key", "ms"): "<= 2.4x",
        ("sqlite, new key", "CPU ms"): None,
        ("sqlite, replay", "ms"): "<= 1.5x",
        ("sqlite, replay", "CPU ms"): None,
    }
    assert http["bytes"]["sqlite"] > 350, "the raw row is smaller than what the middleware records"


def test_http_is_measured_on_etcd(tmp_path: Path) -> None:
    """One request at a time is compared like on SQLite, and 64 at a time with two bare transactions each."""
    if shutil.which("etcd") is None:
        pytest.skip("no etcd: install etcd-server (scripts/setup --tests does, as root)")
    told, _ = benched(tmp_path, "--only", "http-etcd", "--only", "http-outstanding", "--pairs", "1")
    assert goals(told["parts"]["http-etcd"])["etcd, new key", "ms"] == "<= 2.4x"
    outstanding = told["parts"]["http-outstanding"]
    assert goals(outstanding) == {("etcd, new keys, 64 at a time", "per second"): ">= 0.6x"}
    assert outstanding["bytes"] > 1000, "the bare transactions write a fraction of what the middleware does"


def test_http_is_measured_on_postgres(tmp_path: Path) -> None:
    """One request at a time is compared like on SQLite. The server's files are where its user may look, not in the test's folder."""
    required_binaries()
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        told, _ = benched(tmp_path, "--only", "http-postgres", "--pairs", "1", temporary=Path(open_to_all))
        assert list(Path(open_to_all).iterdir()) == []
    assert goals(told["parts"]["http-postgres"])["postgres, replay", "ms"] == "<= 1.5x"


@pytest.mark.soak  # half a minute; the middleware is measured in the same way, above
def test_the_proxys_cpu_is_measured(tmp_path: Path) -> None:
    """New keys and replays through the proxy's process are compared with a forwarder, in CPU of the one process."""
    told, _ = benched(tmp_path, "--only", "http-proxy", "--pairs", "1")
    proxy = told["parts"]["http-proxy"]
    assert goals(proxy) == {("new key", "CPU ms"): "<= 1.5 CPU ms", ("replay", "CPU ms"): "<= 1.5 CPU ms"}
    assert min(value for row in proxy["table"] for value in row["samples"]["ours"]) > 0


def test_memory_over_many_keys_is_measured(tmp_path: Path) -> None:
    """Each ledger's process answers the requested keys, but for those beyond the ceiling, and says how it grew."""
    told, _ = benched(tmp_path, "--only", "http-keys", "--keys", "1,000", "--pairs", "1")
    keys = told["parts"]["http-keys"]
    assert {name: (runs[-1]["answered"], runs[-1]["refused"]) for name, runs in keys["runs"].items()} == {
        "sqlite": (1000, 0),
        "memory": (1000, 0),
        "full": (100, 900),
    }
    assert [row["unit"] for row in keys["table"]] == 3 * ["MB", "B a key"]


@needs_spark
@pytest.mark.spark
def test_output_is_measured_at_its_effect(tmp_path: Path) -> None:
    """Three variants write the requested rows into files of the same size, and each has one pair."""
    told, _ = benched(tmp_path, "--only", "output", "--rows", "2,000", "--pairs", "1")
    output = told["parts"]["output"]
    assert output["rows"] == 2000
    assert set(output["runs"]) == {"df.write.parquet", "job.write", "job.write, durable=False"} == set(output["bytes"])
    assert {len(runs) for runs in output["runs"].values()} == {1}
    assert len(set(output["bytes"].values())) == 1, "the variants do not write the same files"
    assert [row["goal"] for row in output["table"]] == ["<= 1.05x CPU", None, None, None]
    assert [row["unit"] for row in output["table"]] == ["CPU s", "s", "CPU s", "s"]


@needs_spark
@pytest.mark.soak  # minutes of Spark; the output above is measured in the same way
@pytest.mark.spark
def test_formats_are_measured_at_their_effect(tmp_path: Path) -> None:
    """Each library counts the requested rows in what either side wrote; each format is compared with plain files and with its library's own
    writer."""
    told, _ = benched(tmp_path, "--only", "formats", "--rows", "10,000", "--pairs", "1", "--first-writes", "0")
    formats = told["parts"]["formats"]
    assert formats["rows"] == [500, 4000]
    assert [len(runs[0]) for runs in formats["runs"].values()] == 7 * [2]
    told_at = {(row["what"].removeprefix("formats: "), row["unit"]): row["goal"] for row in formats["table"]}
    for kind in ("delta", "iceberg"):
        for size in ("500", "4k"):
            assert told_at[f"{kind} by parquet, {size}", "CPU s"] == "<= 1.05x CPU"
            assert told_at[f"{kind} by library, {size}", "s"] == "faster"
        assert (f"{kind} by parquet, fixed more", "CPU s") in told_at
    assert told_at["iceberg with a list by parquet, 4k", "CPU s"] == "<= 1.25x CPU"


@needs_spark
@pytest.mark.soak  # a minute of Spark; what the statements do is in TIER=all, and the output above is measured in the same way
@pytest.mark.spark
def test_statements_are_measured_at_their_effect(tmp_path: Path) -> None:
    """A block, a captured write and the plain call write the requested rows, as delta-rs counts them, and each has one pair."""
    told, _ = benched(tmp_path, "--only", "statements", "--rows", "10,000", "--pairs", "1")
    statements = told["parts"]["statements"]
    assert statements["rows"] == 4000
    assert {name: len(runs) for name, runs in statements["runs"].items()} == {
        "df.write, delta": 1,
        "job.native, delta": 1,
        "captured, delta": 1,
    }
    assert [row["goal"] for row in statements["table"]] == 2 * ["<= 1.05x CPU", None]


@needs_spark
@pytest.mark.soak  # six starts of Spark; what the commands do is in TIER=all
@pytest.mark.spark
def test_commands_are_measured_at_their_effect(tmp_path: Path) -> None:
    """A script under spark-submit, as a job without outputs and captured writes the requested rows each time."""
    told, _ = benched(tmp_path, "--only", "command", "--rows", "10,000", "--pairs", "1")
    command = told["parts"]["command"]
    assert command["rows"] == 4000
    assert {name: len(runs) for name, runs in command["runs"].items()} == dict.fromkeys(
        ("spark-submit", "sparkonce run", "sparkonce run, captured"), 1
    )
    assert [row["goal"] for row in command["table"]] == 2 * ["<= 1.05x CPU", None]


SPLIT = """
import json
from pathlib import Path
from formats import DELTA, LIMIT, NATIVE, Formats
from machine import Used
def used(cpu):
    return Used(wall=1.0, cpu=cpu, others=0.0, stolen=0.0)
part = Formats(Path(), 1_000_000, 4_000_000, 2, print, 1)
part.runs = {DELTA: [(used(1.2), used(4.2)), (used(1.3), used(4.0))], NATIVE: [(used(1.0), used(4.0)), (used(1.0), used(%s))]}
part.first = {name: [{"wall": 1.0, "cpu": 9.0}] for name in part.runs}
print(json.dumps([row.dump() for row in part._split(DELTA, NATIVE, "delta by parquet", LIMIT)]))
"""


def test_what_is_fixed_is_told_apart_from_what_each_row_costs(tmp_path: Path) -> None:
    """Two sizes separate the fixed cost from the cost per row: 0.2 s more per write at the same cost per row does not change the ratio per
    row, and vice versa."""
    done = started(["-c", SPLIT % 3.0], tmp_path)
    assert done.returncode == 0, done.stderr
    fixed, rows, _ = json.loads(done.stdout)
    assert fixed["samples"]["ours"] == pytest.approx([0.2, 0.0666667])
    assert rows["samples"]["raw"] == pytest.approx([1.0, 2 / 3])
    assert rows["samples"]["ratios"] == pytest.approx([1.0, 1.35])


def test_no_ratio_is_made_of_rows_that_cost_nothing(tmp_path: Path) -> None:
    """If the larger size took no more CPU than the smaller, the ratio is left out rather than invented."""
    done = started(["-c", SPLIT % 1.0], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["what"] for row in json.loads(done.stdout)] == [
        "delta by parquet, fixed more",
        "delta by parquet, first write",
    ]


FIRST = """
import json
import os
from pathlib import Path
import pyarrow as pa
from formats import Formats
from tables import ICEBERG, Tables
tables = Tables(Path.cwd())
tables.configure()
names = {"id": pa.int64(), "number": pa.int32(), "amount": pa.float64(), "category": pa.string(), "token": pa.string()}
part = Formats(Path.cwd(), 500, 4000, 1, print, 1)
told = part._first(ICEBERG, tables, pa.schema(names).empty_table())
print(json.dumps({**told, "left": os.times().children_user + os.times().children_system}))
"""


@needs_spark
@pytest.mark.spark
def test_a_first_write_is_counted_with_all_that_it_started(tmp_path: Path) -> None:
    """A separate process leaves the requested rows in the table, or the sample is refused; its CPU includes the JVM's. The JVM ends first,
    so that its parent counts all of its CPU as its own."""
    done = started(["-c", FIRST], tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["wall"] > 0
    assert told["cpu"] > 2, "Spark alone takes more to start"
    assert told["left"] >= told["cpu"]


@pytest.mark.parametrize(
    ("values", "at_most", "expected"),
    [
        ([1.0] * 9, 1.05, "met"),
        ([1.05] * 9, 1.05, "met"),
        ([1.0] * 8 + [1.06], 1.05, "not told apart"),
        ([1.06] * 8 + [1.0], 1.05, "not told apart"),
        ([1.06] * 9, 1.05, "not met"),
        ([1.0] * 8, 1.05, "not told apart"),
        ([9.0] * 8, 1.05, "not told apart"),
    ],
)
def test_a_goal_is_met_only_by_a_whole_spread_of_nine_pairs(values: list[float], at_most: float, expected: str) -> None:
    """One pair on the other side of the goal, or one pair too few, and the verdict is "not told apart"."""
    assert measure()["verdict"](values, at_most=at_most) == expected


def test_pairs_are_interleaved_a_b_b_a() -> None:
    """Pairs run A B, B A, so that neither side is always first; the warm-up pair comes first."""
    order = list(measure()["interleaved"](("A", "B"), 3))
    assert order == [(0, "A"), (0, "B"), (1, "B"), (1, "A"), (2, "A"), (2, "B"), (3, "B"), (3, "A")]


def test_the_pair_that_warms_up_is_not_counted() -> None:
    """Each variant runs once more than there are pairs, and the result of its first run is discarded."""
    runs = {"A": iter(range(10)), "B": iter(range(10, 20))}
    kept = measure()["measured"]({name: each.__next__ for name, each in runs.items()}, 3, lambda *_: None)
    assert kept == {"A": [1, 2, 3], "B": [11, 12, 13]}


def test_the_median_of_nine_lies_between_the_second_and_the_eighth() -> None:
    """The second to the eighth of nine values is the narrowest interval with at least 95 % (96.1 %); fewer than six values have none."""
    assert measure()["interval"]([float(n) for n in range(9, 0, -1)]) == (2, 8)
    assert measure()["interval"]([1.0] * 5) is None


def measure() -> dict[str, Any]:
    """The module's names, without adding its folder to the path of all tests."""
    return runpy.run_path(str(BENCHMARKS / "measure.py"), run_name="measure")


LOST_ROW = """
import pyarrow as pa, output
from pathlib import Path
table = Path("table"); table.mkdir()
pa.parquet.write_table(pa.table({"n": [1, 2, 3]}), table / "part-0.parquet")
output.Output(Path(), 4, 1, print)._counted("ours", list(table.iterdir()), table)
"""

SAME_KEY = """
import attempt, reserve
from pathlib import Path
job = attempt.job
attempt.job = lambda key, table: job("always-the-same", table)
reserve.Reserve(Path(), 1, print).measure()
"""

OUTPUT_GONE = """
import replay, shutil
from pathlib import Path
part = replay.Replay(Path.cwd(), 1, print)
part._finish()
shutil.rmtree("table/_data")
part.{way}()
"""

NOTHING_KEPT = """
import http_costs
from pathlib import Path
http_costs.IdempotencyMiddleware = lambda app, **_: app
http_costs.HttpCosts("http", ("memory",), Path.cwd(), 1, print).measure()
"""

RUNS_TWICE = """
import http_costs
from pathlib import Path
call = http_costs.BareOrders.__call__
async def twice(self, *given):
    self.runs += 1
    await call(self, *given)
http_costs.BareOrders.__call__ = twice
http_costs.HttpCosts("http", ("memory",), Path.cwd(), 1, print).measure()
"""

TWICE = """
import replay, shutil
from pathlib import Path
part = replay.Replay(Path.cwd(), 1, print)
part._finish()
folder = next(Path("ledger.db.attempts").iterdir())
shutil.copytree(folder, folder.with_name("another"))
part._counted()
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(LOST_ROW, "hold 3 rows, and 4 were written", id="output: a row is lost"),
        pytest.param(SAME_KEY, "a fresh key was not reserved: ", id="reserve: nothing is reserved"),
        pytest.param(OUTPUT_GONE.format(way="_inside"), "said ResultGone", id="replay: the output is gone"),
        pytest.param(OUTPUT_GONE.format(way="_command"), "ended with 7", id="replay: the command has no result"),
        pytest.param(TWICE, "there are 2 attempts", id="replay: something ran again"),
        pytest.param(NOTHING_KEPT, "an answered request has no record", id="http: nothing is recorded"),
        pytest.param(RUNS_TWICE, "of 1001 keys, 2002 ran", id="http: a key runs again"),
    ],
)
def test_a_wrong_effect_is_no_measurement(tmp_path: Path, code: str, said: str) -> None:
    """A measurement without its effect is refused, however fast it was."""
    done = started(["-c", code], tmp_path)
    assert "WrongEffect" in done.stderr
    assert said in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("bad", ["0", "-1", "many", ""])
def test_a_number_that_is_none_is_refused(tmp_path: Path, bad: str) -> None:
    """An invalid number is refused in one sentence that names the option, and nothing is measured."""
    done = started([str(BENCHMARKS / "run.py"), f"--pairs={bad}"], tmp_path)
    assert done.returncode == 2
    assert "--pairs" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
