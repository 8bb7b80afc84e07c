"""Which output a captured write belongs to, what is refused and with which remedy, and how a script runs in the interpreter's place."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql.readwriter import DataFrameWriter

from harness.arrow_stage import arrow_stage, table_of
from harness.granted import Granted, granted
from sparkonce.blocking import run
from sparkonce.driver import capture, places
from sparkonce.driver.script.writes import UNDECLARED, WARNING, WARNINGS, ScriptWrites
from sparkonce.driver.statements import Call, FrameWrite, take_write
from sparkonce.errors import Fenced, InvalidInput, RowsLost, UndeclaredOutput
from sparkonce.model.spec import IdempotentJob, Output, WriteMode
from sparkonce.sink.open import sinks_of
from sparkonce.sink.slotlog.snapshot import Table
from sparkonce.sink.staging import StagedRows

LAKE = {"orders": "file:///lake/orders", "events": "s3a://bucket/events"}


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("/lake/orders", "orders"),
        ("file:/lake/orders/", "orders"),
        ("file:///lake/./orders", "orders"),
        ("orders", "orders"),  # below the folder that the script runs in
        ("s3://bucket/events", "events"),
        ("s3a://bucket/events/", "events"),
        ("/lake", None),
        ("/lake/orders2", None),
        ("/lake/orders/day=1", None),
        ("/lake/*", None),
        ("hdfs://lake/orders", None),
        ("", None),
    ],
)
def test_a_location_is_an_output_however_it_is_spelled(location: str, found: str | None) -> None:
    """Equal canonical URLs, and nothing that is merely similar."""
    assert places.output_at(location, LAKE, base="/lake") == found


def test_what_is_inside_of_an_output_or_around_it_belongs_to_it() -> None:
    """A partition's folder, or the folder above: a write there would change the output's files."""
    assert places.below("/lake/orders/day=1", LAKE, base="/") == "orders"
    assert places.below("/lake", LAKE, base="/") == "orders"
    assert places.below("/lake/orders2", LAKE, base="/") is None


@pytest.mark.parametrize(
    ("kind", "location", "mode", "line"),
    [
        ("delta", "file:/lake/A b", "overwrite", "- {name: a-b, delta: {path: '/lake/A b'}, capture: true}"),
        ("delta", "gs://b/x/orders", "append", "- {name: orders-2, delta: {path: 'gs://b/x/orders'}, capture: true}"),
        ("delta", "s3a://b/x", "append", ""),  # Spark's engine may overwrite the log there
        ("parquet", "/lake/x", "append", "- {name: x, slotLog: {path: '/lake/x'}, capture: true}"),
        ("parquet", "/lake/x", "overwrite", "- {name: x, slotLog: {path: '/lake/x'}, capture: true}"),
        ("csv", "/lake/x", "append", ""),
        ("delta", "/lake/*", "append", ""),
    ],
)
def test_the_line_to_add_is_one_that_a_job_file_takes(kind: str, location: str, mode: str, line: str) -> None:
    """A refused write names the output that would take it, if one would; the model accepts it."""
    said = places.line_for(kind, location, mode, ["orders"], base="/")
    assert said == line
    if line:
        import yaml

        assert Output.model_validate(yaml.safe_load(said)[0]).capture


# --- what the script does ------------------------------------------------------------------------------------------------------


def begun(folder: Path, *, warn: bool = False, **spec: Any) -> tuple[Granted, ScriptWrites]:
    outputs = [
        {"name": "events", "slotLog": {"path": "events"}, "capture": True},
        {"name": "other", "slotLog": {"path": "other"}},
    ]
    attempt = granted(folder, outputs=outputs, **spec)
    job = IdempotentJob.of(attempt.assignment.spec.job)
    return attempt, ScriptWrites(attempt.job(), job.resolved_outputs, warn=warn, base=str(folder))


def told(attempt: Granted) -> list[tuple[str, Any]]:
    from sparkonce.blocking import run

    reports = run(attempt.store.reports(attempt.record.address, attempt.record.generation))
    return [(each.kind, each.body) for each in reports]


def test_an_undeclared_write_ends_the_job_before_it_runs(tmp_path: Path) -> None:
    """Reported as permanent, raised in the script, and raised again at its end where the script has caught it."""
    attempt, watched = begun(tmp_path)
    ran: list[int] = []
    for _ in range(2):
        with pytest.raises(UndeclaredOutput, match=r"RDD.saveAsTextFile\(\) to /elsewhere\. It was not run"):
            watched.other("RDD.saveAsTextFile()", "/elsewhere", lambda: ran.append(1))
    watched._job._outputs_written.add("events")  # the script has written all that it declares
    with pytest.raises(UndeclaredOutput):
        watched.end()
    assert (ran, [kind for kind, _ in told(attempt)]) == ([], ["permanent-error"])


def test_a_write_to_an_output_without_capture_is_refused_also_where_others_pass(tmp_path: Path) -> None:
    """The remedy names its field. `Warn` lets no write into the folder of an output."""
    for warn in (False, True):
        _, watched = begun(tmp_path / str(warn), warn=warn)
        with pytest.raises(InvalidInput, match="give the output `capture: true`"):
            watched.other("RDD.saveAsTextFile()", str(tmp_path / str(warn) / "other" / "x"), lambda: None)


def test_a_long_location_is_compared_whole(tmp_path: Path) -> None:
    """What a sentence cuts off still belongs to the output."""
    attempt, watched = begun(tmp_path, warn=True)
    place = str(tmp_path.joinpath("events", "  x", *(["y" * 200] * 3)))
    with pytest.raises(InvalidInput, match="output events takes"):
        watched.other("a write", place, lambda: None)
    assert [kind for kind, _ in told(attempt)] == ["permanent-error"]


def test_a_write_that_passes_is_named_in_the_result_before_it_runs(tmp_path: Path) -> None:
    """Each place once, shortened, and no more than a record has room for; without user and password of a URL."""
    attempt, watched = begun(tmp_path, warn=True)
    ran: list[int] = []
    watched.other("a", "postgresql://me:secret@db/x", lambda: ran.append(len(told(attempt))))
    for number in range(WARNINGS + 3):
        watched.other("a write", f"/{'x' * WARNING}{number}", lambda: ran.append(0))
        watched.other("a write", f"/{number}", lambda: ran.append(0))
    values = max((body["values"][UNDECLARED] for _, body in told(attempt)), key=len)
    assert (ran[0], len(ran), len(values), values[0]) == (
        1,
        2 * WARNINGS + 7,
        WARNINGS + 1,
        "a to postgresql://***@db/x",
    )
    assert max(map(len, values)) <= WARNING


PACKAGE = """
class DeltaTable:
    def delete(self): return 1
    @classmethod
    def convertToDelta(cls, session, identifier): return cls
    def clone(self, target): return 1

    update = vacuum = delete

class DeltaMergeBuilder:
    def execute(self): return 1

class DeltaTableBuilder(DeltaMergeBuilder):
    def execute(self): return 1
"""
"""What `delta.tables` has, in a version without some of the methods."""


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[ScriptWrites]:
    """A capture whose script runs."""
    _, watched = begun(tmp_path)
    watched.watch()
    yield watched
    watched._hooks.__exit__(None, None, None)


def test_a_package_that_is_imported_late_is_watched(
    tmp_path: Path, watching: ScriptWrites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writes are refused, by methods of classes and of objects, also once it is imported anew; afterwards they are its own again."""
    (tmp_path / "delta").mkdir()
    (tmp_path / "delta" / "tables.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "delta", None)
    del sys.modules["delta"]
    found = importlib.import_module("delta.tables")
    monkeypatch.setitem(sys.modules, "delta.tables", found)
    calls: list[Callable[[], object]] = [
        lambda: found.DeltaTable().delete(),
        lambda: found.DeltaTable().clone("other"),
        lambda: found.DeltaTable.convertToDelta(None, "parquet.`x`"),
        lambda: found.DeltaMergeBuilder().execute(),
        lambda: found.DeltaTableBuilder().execute(),
    ]
    for _ in range(2):
        for call in calls:
            watching._refused = None
            with pytest.raises(UndeclaredOutput, match=r"Delta\w+\.\w+\(\).*It was not run"):
                call()
        importlib.reload(found)
    watching._hooks.__exit__(None, None, None)
    assert [found.DeltaTable().delete(), found.DeltaTable.convertToDelta(None, "x")] == [1, found.DeltaTable]
    watching.watch()


def test_a_model_is_refused_like_any_other_file(tmp_path: Path, watching: ScriptWrites) -> None:
    """Before its writer removes what is there; with `Warn` it passes, and not into the folder of an output."""
    ml: Any = importlib.import_module("pyspark.ml.util")
    regression: Any = importlib.import_module("pyspark.mllib.regression")
    saves: list[Callable[[], object]] = [
        lambda: ml.MLWriter().overwrite().save("/elsewhere"),
        lambda: ml.JavaMLWriter.__new__(ml.JavaMLWriter).save(path="/elsewhere"),
        lambda: regression.LinearRegressionModel([1.0], 0.0).save(None, "/elsewhere"),
    ]
    for save in saves:
        watching._refused = None
        with pytest.raises(
            UndeclaredOutput, match=r"save\(\) to /elsewhere.*`capture: {undeclared: Warn}` in spec lets"
        ):
            save()
    watching._refused, watching._warn = None, True
    with pytest.raises(NotImplementedError, match="MLWriter is not yet implemented"):
        ml.MLWriter().save("/elsewhere")
    with pytest.raises(InvalidInput, match="output events takes"):
        ml.MLWriter().save(str(tmp_path / "events" / "model"))


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("jdbc:oracle:thin:scott/tiger@db:1521/x", "jdbc:oracle:thin:***@db:1521/x"),
        ("jdbc:postgresql://db/x?user=me&password=tiger", "jdbc:postgresql://db/x?user=me&password=***"),
        ("jdbc:postgresql://me:ti@ger@db/x", "jdbc:postgresql://***@db/x"),
        (f"s3a://me:tiger@{'b' * 600}", f"s3a://***@{'b' * 100}"),
    ],
)
def test_a_refusal_shows_no_password(tmp_path: Path, place: str, shown: str) -> None:
    """Neither to the script nor in what is reported of it."""
    attempt, watched = begun(tmp_path)
    with pytest.raises(UndeclaredOutput) as refused:
        watched.other("a write", place, lambda: None)
    [(_, body)] = told(attempt)
    assert shown in str(refused.value) and shown in body["message"]
    assert not any(secret in f"{refused.value} {body}" for secret in ("tiger", "ger@"))


def test_overwritten_parquet_replaces_the_rows_of_the_slot_log(tmp_path: Path) -> None:
    """When the script has ended, not before. A second driver of the key finds the write and runs nothing, however often it writes."""
    before = granted(tmp_path, "events", idempotencyKey="load-april").job()
    before.write(table_of(1), "events")
    attempt = granted(tmp_path, outputs=captured("events"))
    capture = granted_again(attempt)
    capture._write_slots("events", parquet_of(table_of(2, 3)))
    assert numbers(tmp_path) == [1]
    capture.end()
    again = granted_again(attempt)
    again._write_slots("events", parquet_of(object()))
    again._write_slots("events", parquet_of(object(), mode="append"))
    again.end()
    assert numbers(tmp_path) == [2, 3]
    assert [slot.mode for slot in Table(tmp_path / "events").slots()] == [WriteMode.OVERWRITE]


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (("append", "append", "append"), [0, 1, 2, 3]),
        (("errorifexists", "append"), None),  # other keys have rows there
        (("append", "ignore", "append"), [0, 1, 3]),
        (("overwrite", "append"), [1, 2]),
        (("append", "overwrite", "append"), [2, 3]),
        (("append", "errorifexists"), None),
    ],
)
def test_all_that_a_script_writes_to_a_slot_log_is_one_effect(
    tmp_path: Path, modes: Sequence[str], expected: list[int] | None
) -> None:
    """One slot, whose rows are those that a plain folder would have. Until the script has ended only the script sees them."""
    before = granted(tmp_path, "events", idempotencyKey="load-april").job()
    before.write(table_of(0), "events")
    attempt, capture = begun(tmp_path)

    def write() -> None:
        for number, mode in enumerate(modes, 1):
            capture._write_slots("events", parquet_of(table_of(number), mode=mode))

    if expected is None:
        with pytest.raises(InvalidInput, match="in mode errorifexists"):
            write()
        return
    write()
    assert (numbers(tmp_path), seen_by(capture, tmp_path)) == ([0], expected)
    capture.end()
    assert (numbers(tmp_path), len(Table(tmp_path / "events").slots())) == (expected, 2 if 0 in expected else 1)
    slot = attempt.committed("events")
    assert slot is not None and slot.rows == len(set(expected) - {0})


def test_an_attempt_that_dies_between_its_writes_leaves_nothing(tmp_path: Path) -> None:
    """The next one writes all of them; a driver of the first that comes late is fenced, and its files go with the sweep."""
    attempt, capture = begun(tmp_path)
    capture._write_slots("events", parquet_of(table_of(1), mode="append"))
    attempt.next_attempt()
    again = granted_again(attempt)
    again._write_slots("events", parquet_of(table_of(1), mode="append"))
    again._write_slots("events", parquet_of(table_of(2), mode="append"))
    again.end()
    with pytest.raises(Fenced):
        capture.end()
    assert numbers(tmp_path) == [1, 2]
    run(attempt.sinks()["events"].sweep(attempt.key("events")))
    assert (numbers(tmp_path), len(attempt.staged("events"))) == ([1, 2], 1)


def test_a_write_that_fails_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    """A script may catch its error, and go on: as with a plain folder, the rows of the failed write are not there."""
    attempt = granted(tmp_path, outputs=captured("events"))
    job = IdempotentJob.of(attempt.assignment.spec.job)
    fails: list[int] = [2]

    def stage(frame: Any, folder: str, by: Sequence[str] = ()) -> StagedRows:
        done = arrow_stage(frame, folder, by)
        if frame["n"].to_pylist() == fails:
            raise OSError("no space left on device")
        return done

    sinks = sinks_of(attempt.prepared.job, str(tmp_path), stager=stage)
    capture = ScriptWrites(attempt.job(sinks=sinks), job.resolved_outputs, warn=False, base=str(tmp_path))
    for number in (1, 2, 3):
        with nullcontext() if number != 2 else pytest.raises(OSError, match="no space"):
            capture._write_slots("events", parquet_of(table_of(number), mode="append"))
    capture.end()
    assert numbers(tmp_path) == [1, 3]
    assert len(list(tmp_path.glob("events/_data/*/*/*.parquet"))) == 4  # two of each write


def test_files_that_are_gone_before_the_end_are_no_commit(tmp_path: Path) -> None:
    """A committer may replace what a folder holds: that fails, and the next attempt writes all rows."""
    attempt, capture = begun(tmp_path)
    capture._write_slots("events", parquet_of(table_of(1), mode="append"))
    min(tmp_path.glob("events/_data/*/*/*.parquet")).unlink()
    capture._write_slots("events", parquet_of(table_of(2), mode="append"))
    with pytest.raises(
        RowsLost, match=r"1 staged file\(s\) are gone, the first is file://.*nothing was committed, run it again"
    ):
        capture.end()
    assert attempt.committed("events") is None


def test_writes_that_do_not_fit_together_end_the_job(tmp_path: Path) -> None:
    """Other columns, other types, other partitions, an overwrite of partitions beside other rows: one sentence each."""
    other: Any = pa.table({"n": pa.array([1], pa.int32()), "m": pa.array([1], pa.int64())})
    for at, (writes, said) in enumerate(
        (
            (
                (append(table_of(1)), append(other)),
                "differ from those that the script has written there before in m, n;",
            ),
            (
                (append(table_of(1)), append(table_of(1), by=("n",))),
                "partitioned by no column and then by n; partition all",
            ),
            (
                (append(table_of(1)), parquet_of(table_of(1), dynamic=True)),
                "overwrites partitions of output events and writes",
            ),
        )
    ):
        attempt, capture = begun(tmp_path / str(at))
        capture._write_slots("events", writes[0])
        with pytest.raises(InvalidInput, match=said):
            capture._write_slots("events", writes[1])
        assert [kind for kind, _ in told(attempt)] == ["permanent-error"]
        with pytest.raises(InvalidInput, match=said):
            capture.end()
        assert attempt.committed("events") is None


def test_beside_a_delta_output_parquet_is_committed_at_once_and_once(tmp_path: Path) -> None:
    """The next attempt skips the table's statements: what was computed between two of them must be in its output by then."""
    orders = {"name": "orders", "delta": {"path": "orders"}, "capture": True}
    capture = granted_again(granted(tmp_path, outputs=[*captured("events"), orders]))
    capture._write_slots("events", append(table_of(1)))
    assert numbers(tmp_path) == [1]
    with pytest.raises(InvalidInput, match=r"output 'events' is written twice by one job"):
        capture._write_slots("events", append(table_of(2)))


def test_what_an_attempt_computes_does_not_depend_on_what_an_earlier_one_has_committed(tmp_path: Path) -> None:
    """One died between the commits of two outputs: the next one sees the first table as that one did, writes both again, and commits the
    second. Once both are committed nothing runs any more, and the script sees the tables as they are."""
    before = granted(tmp_path, "events", idempotencyKey="load-april").job()
    before.write(table_of(1), "events")
    attempt = granted(tmp_path, outputs=captured("events", "sums"))

    def script(capture: ScriptWrites) -> None:
        for mode in ("append", "overwrite"):
            total = sum(seen_by(capture, tmp_path))
            capture._write_slots("events", parquet_of(table_of(10 * total), mode=mode))
        capture._write_slots("sums", append(table_of(*seen_by(capture, tmp_path))))

    died = granted_again(attempt)
    script(died)
    assert died._slots is not None
    died._slots._commit("events")
    assert (numbers(tmp_path), attempt.committed("sums")) == ([110], None)
    attempt.next_attempt()
    again = granted_again(attempt)
    script(again)
    again.end()
    assert (numbers(tmp_path), attempt.rows("sums"), attempt.rows("events")) == ([110], [110], [110])
    third = granted_again(attempt)
    assert seen_by(third, tmp_path) == [110]
    third._write_slots("events", append(object()))
    third._write_slots("sums", append(object()))
    third.end()
    assert (numbers(tmp_path), attempt.rows("sums"), third._job.complete) == ([110], [110], True)


def captured(*outputs: str) -> list[dict[str, Any]]:
    return [{"name": name, "slotLog": {"path": name}, "capture": True} for name in outputs]


def numbers(folder: Path) -> list[int]:
    """The rows of the slot log, as readers see them."""
    return rows_in(Table(folder / "events"))


def seen_by(capture: ScriptWrites, folder: Path) -> list[int]:
    """The same as the script sees them."""
    return rows_in(capture._table("events", (folder / "events").as_uri()))


def rows_in(table: Table) -> list[int]:
    return sorted(cast("list[int]", parquet.read_table(table.files())["n"].to_pylist()))


def append(frame: Any, by: Sequence[str] = ()) -> FrameWrite:
    return parquet_of(frame, mode="append", partition_by=tuple(by))


def test_options_that_only_lay_files_out_are_left_out(tmp_path: Path) -> None:
    """Sizes, dictionaries, and options of other formats, which Spark ignores; any other one is refused before the rows run."""
    attempt, capture = begun(tmp_path)
    odd = parquet_of(object(), options=("maxrecordsperfile", "parquet.encryption.footer.key"))
    with pytest.raises(InvalidInput, match=r"Parquet with the options parquet\.encryption\.footer\.key;"):
        capture._write_slots("events", odd)
    assert [kind for kind, _ in told(attempt)] == ["permanent-error"]
    plain = ("maxrecordsperfile", "header", "parquet.block.size", "parquet.bloom.filter.enabled#n", "compression")
    again = granted_again(attempt)
    again._write_slots("events", parquet_of(table_of(2), options=plain))
    again.end()
    assert numbers(tmp_path) == [2]


def parquet_of(frame: Any, **more: Any) -> FrameWrite:
    return FrameWrite(**{"frame": frame, "format": "parquet", "mode": "overwrite", "path": "events", **more})


def granted_again(attempt: Granted) -> ScriptWrites:
    """The capture of another driver of the same attempt."""
    job = IdempotentJob.of(attempt.assignment.spec.job)
    return ScriptWrites(attempt.job(), job.resolved_outputs, warn=False, base=str(attempt.folder))


def test_a_dynamic_overwrite_is_not_taken_for_a_static_one(tmp_path: Path) -> None:
    """It replaces the partitions that it has rows of. Where that cannot be told, the job ends before the rows run."""
    before = granted(tmp_path, "events", idempotencyKey="load-april").job()
    before.write(table_of(1), "events")
    attempt, capture = begun(tmp_path)
    with pytest.raises(InvalidInput, match=r"in mode OverwritePartitions: the rows of .* lie in folders by no column"):
        capture._write_slots("events", parquet_of(table_of(2), dynamic=True, partition_by=("n",)))
    assert [kind for kind, _ in told(attempt)] == ["permanent-error"]


def test_an_output_that_the_script_did_not_write_ends_the_job(tmp_path: Path) -> None:
    """Nothing was declared by mistake unnoticed: the sentence names output and place."""
    attempt, watched = begun(tmp_path)
    with pytest.raises(InvalidInput, match="wrote nothing to output events"):
        watched.end()
    assert [kind for kind, _ in told(attempt)] == ["permanent-error"]


def test_a_session_of_spark_connect_ends_the_job(tmp_path: Path) -> None:
    """Its writes go through classes that are not watched; any other session passes."""
    _, watched = begun(tmp_path)
    assert watched.session(7) == 7
    with pytest.raises(InvalidInput, match="Spark Connect"):
        watched.session(type("Session", (), {"__module__": "pyspark.sql.connect.session"})())


# --- the table that a script makes ----------------------------------------------------------------------------------------------


def made(folder: Path) -> Granted:
    return granted(folder, outputs=[{"name": "orders", "delta": {"path": "orders"}, "capture": True}])


SCHEMA = '{"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": true, "metadata": {}}]}'


def test_a_table_is_created_once_and_names_the_key_that_made_it(tmp_path: Path) -> None:
    """In whichever attempt; another key finds it there. It has no rows, and the columns and partitions that were given."""
    from deltalake import DeltaTable

    from sparkonce.blocking import run

    attempt = made(tmp_path)
    sink: Any = attempt.sinks()["orders"]
    key = attempt.key("orders")
    create = {"schema": SCHEMA, "partition_by": ("absent",)}
    with pytest.raises(InvalidInput, match="cannot become a Delta table"):
        run(sink.create(key, 1, **create))
    create = {"schema": SCHEMA, "partition_by": ()}
    assert [run(sink.create(key, token, **create)) for token in (1, 2)] == [True, True]
    assert run(sink.create(key.model_copy(update={"generation": 2}), 1, **create)) is False
    table = DeltaTable(str(tmp_path / "orders"))
    assert (table.version(), table.to_pyarrow_table().num_rows, [each.name for each in table.schema().fields]) == (
        0,
        0,
        ["n"],
    )


def test_an_attempt_that_was_ended_creates_no_table(tmp_path: Path) -> None:
    """Its successor has left a note; nothing appears."""
    from sparkonce.blocking import run

    attempt = made(tmp_path)
    sink: Any = attempt.sinks()["orders"]
    attempt.fence("orders", 2)
    with pytest.raises(Fenced):
        run(sink.create(attempt.key("orders"), 1, schema=SCHEMA, partition_by=()))
    assert not (tmp_path / "orders" / "_delta_log").exists()


def test_a_table_that_the_script_had_nothing_to_write_to_is_complete(tmp_path: Path) -> None:
    """Without a statement, where the table exists; where it does not, the job fails and names the output."""
    from deltalake import write_deltalake

    attempt = made(tmp_path)

    def watched() -> ScriptWrites:
        job = IdempotentJob.of(attempt.assignment.spec.job)
        return ScriptWrites(attempt.job(), job.resolved_outputs, warn=False, base=str(tmp_path))

    with pytest.raises(InvalidInput, match="wrote nothing to output orders"):
        watched().end()
    write_deltalake(str(tmp_path / "orders"), pa.table({"n": pa.array([1], pa.int64())}))
    watched().end()
    slot = attempt.committed("orders")
    assert slot is not None and slot.stream is not None and (slot.stream.native, slot.stream.batches) == (True, 0)


# --- how it runs ---------------------------------------------------------------------------------------------------------------


class Ended:
    """A capture that counts its ends."""

    ends = 0

    def end(self) -> None:
        self.ends += 1


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What running a script changes in this process."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    yield
    for name in ("last_type", "last_value", "last_traceback"):
        sys.__dict__.pop(name, None)


def ended(script: Path, text: str, *arguments: str) -> tuple[object, int]:
    """Exit code, and how often the blocks were ended."""
    script.write_text(text)
    watched: Any = Ended()
    try:
        code: object = capture._run([str(script), *arguments], watched)
    except SystemExit as left:
        code = left.code
    return code, watched.ends


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("text", "code", "ends"),
    [
        ("pass", 0, 1),
        ("import sys; sys.exit()", 0, 1),
        ("import sys; sys.exit(0)", 0, 1),
        ("import sys; sys.exit(3)", 3, 0),
        ("import sys; sys.exit('why')", "why", 0),
        ("raise ValueError('x')", 1, 0),
        ("import nothing_of_that_name", 1, 0),
        ("x = (", 1, 0),
        ("import sys; assert __name__ == '__main__' and sys.argv[1:] == ['a'] and __file__ == sys.argv[0]", 0, 1),
        ("import sys; assert sys.modules['__main__'].__dict__ is globals()", 0, 1),
        ("import beside; assert beside.n == 1", 0, 1),
    ],
)
def test_blocks_end_only_when_the_script_ended_by_itself(tmp_path: Path, text: str, code: object, ends: int) -> None:
    """Its exit code is the interpreter's; it is `__main__`, has its arguments, and imports what is beside it."""
    (tmp_path / "beside.py").write_text("n = 1")
    assert ended(tmp_path / "script.py", text, "a") == (code, ends)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("text", ["def f():\n    1 / 0\nf()\n", "import nothing_of_that_name\n", "x = (\n", None])
def test_a_traceback_reads_as_without_us(tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str | None) -> None:
    """Not one line differs, so the log of a failed driver is judged alike; a missing file is said as the interpreter says it."""
    script = tmp_path / "script.py"
    if text is not None:
        script.write_text(text)
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    watched: Any = Ended()
    with pytest.raises(SystemExit) as left:
        raise SystemExit(capture._run([str(script)], watched))
    assert (left.value.code, capfd.readouterr().err) == (plain.returncode, plain.stderr)


@pytest.mark.usefixtures("kept")
def test_the_program_goes_on_in_the_interpreter_that_the_job_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's own choice first, then Spark's variables; never itself."""
    went: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, arguments: went.append(arguments))
    monkeypatch.setattr(capture, "start", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["sparkonce-driver", "script.py", "1"])
    for name in ("SPARKONCE_DRIVER_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/opt/bin/sparkonce-driver")
    capture.main()
    assert went == []
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/sh")
    capture.main()
    assert went == [["/bin/sh", "-m", "sparkonce.driver.capture", "script.py", "1"]]


class WriterOf:
    """The parts of a DataFrameWriter that are read of it, without a JVM: it was given no option before its last call."""

    def __init__(self) -> None:
        nothing = SimpleNamespace(isDefined=lambda: False)
        none = SimpleNamespace(get=lambda _: nothing, toSeq=lambda: SimpleNamespace(size=lambda: 0))
        self._jwrite = SimpleNamespace(
            source=lambda: "parquet",
            curmode=lambda: "ErrorIfExists",
            partitioningColumns=lambda: nothing,
            extraOptions=lambda: none,
        )
        self._spark = SimpleNamespace(conf=SimpleNamespace(get=lambda _, default: default))
        self._df = SimpleNamespace(columns=["id", "v"])


def taken(**given: Any) -> FrameWrite:
    """What becomes of `df.write.save("days", ...)`."""
    found: list[Any] = []
    block: Any = SimpleNamespace(elsewhere=found.append, statement=found.append)
    call = Call(DataFrameWriter.save, WriterOf(), "days", format="parquet", **given)
    take_write(block, call, path="days")
    write = found[0].write
    assert isinstance(write, FrameWrite)
    return write


def test_options_of_the_last_call_are_seen() -> None:
    """PySpark hands those of `save(..., **options)` to its writer inside the call: a dynamic overwrite must not replace the whole table,
    and rows that are to be encrypted must not be written as they are."""
    dynamic = taken(mode="overwrite", partitionBy="v", partitionOverwriteMode="dynamic")
    assert (dynamic.mode, dynamic.dynamic) == ("overwrite", True)
    assert not taken(mode="overwrite", partitionBy="v").dynamic
    hidden = taken(mode="append", **{"parquet.Encryption.footer.key": "k1", "mergeSchema": True, "compression": None})
    assert set(hidden.options) == {"parquet.encryption.footer.key", "mergeschema"}
