"""Iceberg tables of a captured script without a JVM: pyiceberg plays Spark's engine. The real one is in tests/driver/jvm and
tests/crash/long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark.errors import AnalysisException

from driver.streamed import next_attempt, settled
from harness import iceberg_tables
from harness.granted import Granted, granted
from harness.iceberg_engine import WAP, Engine, look
from harness.iceberg_tables import NUMBERS, catalog, rows, sql_catalog
from sparkonce.blocking import run
from sparkonce.driver.places import line_for_table
from sparkonce.driver.script.writes import ScriptWrites
from sparkonce.driver.statements import FrameWrite, Statement
from sparkonce.errors import Fenced, InvalidInput, SparkonceError, TableMoved, UndeclaredOutput
from sparkonce.model.record import Verdict
from sparkonce.model.spec import IdempotentJob, Output
from sparkonce.sink.iceberg import commit as table_commit

ORDERS, TOTALS, MADE = iceberg_tables.TABLE, "sales.totals", "sales.made"
ESCAPED = -1
"""What a session has run that must not run as it is."""
SCHEMA = '{"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": false, "metadata": {}}]}'


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    for name, value in sql_catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    catalog().create_namespace("sales")
    for name in (ORDERS, TOTALS):
        catalog().create_table(name, NUMBERS).append(numbers(0))
    return Engine()


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def begun(folder: Path, *, key: str = "load-may", **tables: str) -> Granted:
    """An attempt whose outputs are these tables, captured; `orders` and `totals` without any."""
    named = tables or {"orders": ORDERS, "totals": TOTALS}
    outputs = [
        {"name": name, "iceberg": {"catalog": "lake", "table": table}, "capture": True} for name, table in named.items()
    ]
    return granted(folder, outputs=outputs, idempotencyKey=key)


def watched(attempt: Granted, session: Engine | None = None, *, warn: bool = False) -> ScriptWrites:
    """The capture of a driver of this attempt. session: the one that its script has made."""
    job = IdempotentJob.of(attempt.assignment.spec.job)
    made = ScriptWrites(attempt.job(), job.resolved_outputs, warn=warn, base=str(attempt.folder))
    made._tables._look, made._tables._named = look, lambda _, table: f"lake.{table}"
    if session is not None:
        made.session(session)
    return made


def saved(engine: Engine, number: int, *, mode: str = "append", table: str = MADE, **given: Any) -> Statement:
    """`saveAsTable` of one number. As it is, it may run in mode append only: in others it would write `main`."""
    schema = SimpleNamespace(json=lambda: SCHEMA)
    frame: Any = SimpleNamespace(schema=schema, columns=["n"], sparkSession=engine)
    known = {"format": "iceberg", "mode": mode, "makes": True, **given}
    write = FrameWrite(frame=frame, append=lambda: engine.insert(number, table), **known)
    escaped: Callable[[], object] = functools.partial(engine.ran.append, ESCAPED)
    own = write.append if mode == "append" else escaped
    return engine.statement(number, kind=mode, table=table, write=write, call="saveAsTable", run=own)


def reported(attempt: Granted) -> list[str]:
    return [each.kind for each in run(attempt.store.reports(attempt.record.address, attempt.record.generation))]


def branches(table: str = ORDERS) -> list[str]:
    return [name for name in iceberg_tables.table(table).metadata.refs if "wap" in name]


def test_two_tables_have_one_branch_name_and_end_without_a_session(tmp_path: Path, engine: Engine) -> None:
    """The session reads its own writes in both, nothing is visible before the end, and a second driver of the attempt runs nothing. The
    end needs no session: the script may have stopped it."""
    attempt = begun(tmp_path)
    script = watched(attempt, engine)
    for number, table in ((1, ORDERS), (2, TOTALS), (3, ORDERS)):
        script.statement(engine.statement(number, table=table))
    assert (engine.read(), engine.read(TOTALS), rows(), rows(name=TOTALS)) == ([0, 1, 3], [0, 2], [0], [0])
    assert branches() == branches(TOTALS) == [engine.values[WAP]]
    engine.sparkContext = engine.conf = None  # type: ignore[assignment]  # stopped
    script.end()
    assert (rows(), rows(name=TOTALS), branches(), branches(TOTALS)) == ([0, 1, 3], [0, 2], [], [])
    twin = watched(attempt, again := Engine())
    for number, table in ((1, ORDERS), (2, TOTALS), (3, ORDERS)):
        twin.statement(again.statement(number, table=table))
    twin.end()
    assert (rows(), again.ran, again.values.get(WAP)) == ([0, 1, 3], [], None)
    assert settled(attempt).verdict is Verdict.ALL


def test_a_dead_attempts_branches_are_gone_with_the_next_one(tmp_path: Path, engine: Engine) -> None:
    """A driver dies before its end: settling finds no effect, and each table drops the branch that is named after the first. What the dead
    one still writes never shows; a sweep removes it."""
    attempt = begun(tmp_path)
    dead = watched(attempt, engine)
    for table in (ORDERS, TOTALS):
        dead.statement(engine.statement(1, table=table))
    assert settled(attempt).verdict is Verdict.NONE
    next_attempt(attempt)
    script = watched(attempt, following := Engine())
    for table in (ORDERS, TOTALS):
        script.statement(following.statement(2, table=table))
    assert branches() == branches(TOTALS) == [following.values[WAP]]
    for table in (ORDERS, TOTALS):
        engine.insert(3, table)  # the engine makes a branch that is not there
    with pytest.raises(Fenced):
        dead.end()
    script.end()
    assert (rows(), rows(name=TOTALS)) == ([0, 2], [0, 2])
    sink: Any = attempt.sinks()["totals"]
    left = [each for each in run(sink.inventory()).staged if each.path.startswith("branch ")]
    assert [(each.sink_key, each.unreachable) for each in left] == [(str(attempt.key("totals")), True)]
    run(sink.sweep(attempt.key("totals")))
    assert branches(TOTALS) == []


def test_a_table_that_moved_ends_the_attempt_and_not_the_job(tmp_path: Path, engine: Engine) -> None:
    """Another writer commits under a script that has read the table: the cause is named, no error is permanent, and the next attempt begins
    on the new state. A script that only appends goes on top."""
    attempt = begun(tmp_path)
    script = watched(attempt)
    script.statement(engine.statement(1, kind="UPDATE", run=engine.rewrite))
    script.statement(engine.statement(2, table=TOTALS))
    for table in (ORDERS, TOTALS):
        iceberg_tables.table(table).append(numbers(7))
    with pytest.raises(TableMoved, match=r"another writer changed lake\.sales\.orders while the block ran"):
        script.end()
    assert (rows(), rows(name=TOTALS), reported(attempt)) == ([0, 7], [0, 7], [])
    settled(attempt)
    next_attempt(attempt)
    script, engine = watched(attempt), Engine()
    script.statement(engine.statement(1, kind="UPDATE", run=engine.rewrite))
    script.statement(engine.statement(2, table=TOTALS))
    iceberg_tables.table(TOTALS).append(numbers(8))
    script.end()
    assert (rows(), rows(name=TOTALS)) == ([7, 10], [0, 2, 7, 8])


def test_a_branch_is_there_with_the_session_and_begins_with_the_first_statement(tmp_path: Path, engine: Engine) -> None:
    """Iceberg binds a DataFrame to the branch that is there when it is made. What another writer commits before the first statement is no
    conflict; what it commits before the second one is. A later session reads the same branches, and none moves back."""
    attempt = begun(tmp_path)
    script = watched(attempt, engine)
    assert branches() == branches(TOTALS) == [engine.values[WAP]]
    for number, table in enumerate((ORDERS, TOTALS)):
        iceberg_tables.table(table).append(numbers(7 + number))
    assert engine.read() == [0]
    script.statement(engine.statement(1, kind="UPDATE", run=engine.rewrite))
    assert engine.read() == [7, 10]
    script.statement(engine.statement(2))
    assert script.session(later := Engine()) is later
    assert (later.values[WAP], later.read()) == (engine.values[WAP], [2, 7, 10])
    iceberg_tables.table().append(numbers(9))
    script.statement(engine.statement(3))
    assert engine.read() == [2, 3, 7, 10]
    with pytest.raises(TableMoved):
        script.end()
    next_attempt(attempt)
    script = watched(attempt, engine := Engine())
    script.statement(engine.statement(1, kind="UPDATE", run=engine.rewrite))
    script.end()
    assert (rows(), rows(name=TOTALS), branches(), branches(TOTALS)) == ([7, 9, 10], [0, 8], [], [])


def test_an_output_without_a_statement_is_complete_where_its_table_is(tmp_path: Path, engine: Engine) -> None:
    """Also where no session was seen. Where there is no table, or one that only a fence has made, the job fails and names the output."""
    watched(attempt := begun(tmp_path / "idle", key="load-june"), engine).end()
    assert attempt.committed("totals") is not None
    attempt = begun(tmp_path)
    watched(attempt).end()
    slot = attempt.committed("totals")
    assert slot is not None and slot.branch is not None and (slot.branch.statements, slot.rows) == (0, 0)
    assert (branches(), engine.ran) == ([], [])
    missing = begun(tmp_path / "missing", made=MADE)
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"wrote nothing to output made \(lake.sales.made\)"):
            watched(missing).end()
        missing.fence("made", 2)
    assert reported(missing) == ["permanent-error", "permanent-error"]


def test_of_two_outputs_with_one_table_the_first_has_the_statements(tmp_path: Path, engine: Engine) -> None:
    """The other one is complete without any; the rows are there once."""
    attempt = begun(tmp_path, orders=ORDERS, again=ORDERS)
    script = watched(attempt, engine)
    script.statement(engine.statement(1))
    script.end()
    assert (rows(), branches(), settled(attempt).verdict) == ([0, 1], [], Verdict.ALL)


REFUSED: list[tuple[Callable[[Engine], Statement], str]] = [
    (
        lambda engine: saved(engine, 1, mode="overwrite", table=ORDERS),
        "saveAsTable in mode overwrite replaces the Iceberg table",
    ),
    (lambda engine: saved(engine, 1, mode="errorifexists", table=ORDERS), "and there is one already"),
    (lambda engine: engine.statement(1, table=f"{ORDERS}.branch_main"), "which names a branch or tag"),
    (lambda engine: engine.statement(1, kind="MERGE", evolves="WITH SCHEMA EVOLUTION"), "changes the table's columns"),
    (
        lambda engine: engine.statement(1, table=MADE, call="writeTo"),
        "writes what no output declares: INSERT to lake.sales.made",
    ),
]


@pytest.mark.parametrize(("statement", "said"), REFUSED)
def test_what_no_branch_takes_ends_the_job(
    tmp_path: Path, engine: Engine, statement: Callable[[Engine], Statement], said: str
) -> None:
    """Before it runs, by name, as an error of the job; also where the script catches it."""
    catalog().create_table(MADE, NUMBERS)
    attempt = begun(tmp_path)
    script = watched(attempt)
    with pytest.raises(SparkonceError, match=said):
        script.statement(statement(engine))
    with pytest.raises(SparkonceError, match=said):
        script.end()
    assert (rows(), engine.ran, reported(attempt)) == ([0], [], ["permanent-error"])


def test_an_undeclared_iceberg_table_is_refused_with_the_line_to_add(tmp_path: Path, engine: Engine) -> None:
    """The model takes the line. An output without capture is named, with the field that it lacks."""
    catalog().create_table(MADE, NUMBERS)
    script = watched(begun(tmp_path))
    with pytest.raises(UndeclaredOutput) as refused:
        script.statement(engine.statement(1, table=MADE))
    line = str(refused.value).split("add `")[1].split("`", maxsplit=1)[0]
    assert line == line_for_table("lake.sales.made", [])
    [output] = [Output.model_validate(each) for each in yaml.safe_load(line)]
    assert (output.name, output.location, output.capture) == ("made", "lake.sales.made", True)
    plain = [{"name": "made", "iceberg": {"catalog": "lake", "table": MADE}}]
    for warn in (False, True):
        attempt = granted(tmp_path / str(warn), outputs=plain)
        with pytest.raises(InvalidInput, match="output made, which is declared without capture"):
            watched(attempt, warn=warn).statement(engine.statement(1, table=MADE))
    assert (rows(name=MADE), engine.ran) == ([], [])


def test_with_warn_another_table_is_written_unless_the_setting_would_divert_it(tmp_path: Path, engine: Engine) -> None:
    """A table with `write.wap.enabled` would take the write on the branch of the captured ones, where no one would find it."""
    catalog().create_table(MADE, NUMBERS)
    attempt = begun(tmp_path)
    script = watched(attempt, warn=True)
    ran: list[int] = []
    passing = engine.statement(1, table=MADE, run=lambda: ran.append(1))
    script.statement(passing)
    script.statement(engine.statement(2))
    script.statement(passing)
    with iceberg_tables.table(MADE).transaction() as change:
        change.set_properties({"write.wap.enabled": "true"})
    with pytest.raises(
        InvalidInput, match=r"has the property write\.wap\.enabled.*iceberg: \{catalog: 'lake', table: 'sales\.made'\}"
    ):
        script.statement(passing)
    assert ran == [1, 1]


@pytest.mark.parametrize("name", ["spark.wap.branch", "spark.wap.id"])
def test_a_script_that_directs_the_writes_itself_ends_the_job(tmp_path: Path, engine: Engine, name: str) -> None:
    """Before its first statement, or in between; a reset of the setting as well, after which it would read `main`."""
    script = watched(begun(tmp_path))
    engine.set(name, "mine")
    with pytest.raises(InvalidInput, match=f"sets or resets {name}"):
        script.statement(engine.statement(1))
    engine, script = Engine(), watched(begun(tmp_path / "again"))
    script.statement(engine.statement(1))
    engine.values.pop(WAP)
    with pytest.raises(InvalidInput, match=r"sets or resets spark\.wap\.branch"):
        script.statement(engine.statement(2))
    assert (rows(), engine.ran) == ([0], [1])


def test_a_swallowed_failure_publishes_nothing(tmp_path: Path, engine: Engine) -> None:
    """Whether the statement reached the branch is not known: the attempt fails, and the next one may do better. One that Spark refused
    before it ran is no such failure."""

    def failing(error: Exception) -> None:
        raise error

    attempt = begun(tmp_path)
    script = watched(attempt)
    with pytest.raises(AnalysisException):
        script.statement(engine.statement(1, run=lambda: failing(AnalysisException("no such column"))))
    script.statement(engine.statement(2))
    with pytest.raises(ValueError, match="lost"):
        script.statement(engine.statement(3, run=lambda: failing(ValueError("lost"))))
    with pytest.raises(InvalidInput, match="no other one follows it"):
        script.statement(engine.statement(4))
    with pytest.raises(InvalidInput, match="the block went on without it"):
        script.end()
    assert (rows(), branches(), reported(attempt)) == ([0], [], [])


# --- the table that a script makes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "overwrite", "errorifexists", "ignore"])
def test_a_missing_table_is_made_once_and_filled_on_the_branch(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Empty first, with nullable columns; an attempt that died in between has its successor write the rows. Another key finds the table."""
    monkeypatch.setattr("sparkonce.driver.script.tables._overwritten", lambda _, table: engine.insert(1, table))
    attempt = begun(tmp_path, made=MADE)
    statement = saved(engine, 1, mode=mode)
    watched(attempt).statement(statement)
    assert (rows(name=MADE), iceberg_tables.table(MADE).schema().fields[0].required) == ([], False)
    settled(attempt)
    next_attempt(attempt)
    engine.values.pop(WAP)
    script = watched(attempt)
    script.statement(statement)
    script.end()
    assert (rows(name=MADE), engine.ran) == ([1], [1, 1])
    engine.values.pop(WAP)
    other = watched(begun(tmp_path / "other", key="load-june", made=MADE))
    if mode == "append":
        other.statement(engine.statement(2, table=MADE))
    elif mode == "ignore":
        other.statement(statement)
        other.end()
    else:
        with pytest.raises(InvalidInput, match=r"replaces the Iceberg table|there is one already"):
            other.statement(statement)
    assert rows(name=MADE) == [1]


def test_columns_are_given_once_and_not_by_a_barred_attempt(tmp_path: Path, engine: Engine) -> None:
    """A fence makes a table without columns, which the key's next attempt gives its own; those of CREATE TABLE keep NOT NULL, comments,
    partitions and properties. A barred attempt gives none, and no key changes those that are there."""
    del engine
    attempt = begun(tmp_path, made=MADE)
    sink: Any = attempt.sinks()["made"]
    key = attempt.key("made")
    declared = SCHEMA.replace('"metadata": {}', '"metadata": {"comment": "the number"}')
    layout = {"partition_by": [("identity", "n")], "properties": {"a": "b"}, "declared": True}
    attempt.fence("made", 2)
    with pytest.raises(Fenced):
        run(sink.create(key, 1, schema=declared, **layout))
    assert iceberg_tables.table(MADE).schema().fields == ()
    with pytest.raises(InvalidInput, match="cannot be partitioned by absent"):
        run(sink.create(key, 2, schema=declared, partition_by=[("identity", "absent")]))
    assert [run(sink.create(key, token, schema=declared, **layout)) for token in (2, 3)] == [True, True]
    later = key.model_copy(update={"generation": 2})
    assert run(sink.create(later, 1, schema=declared.replace('"n"', '"m"'))) is False
    table = iceberg_tables.table(MADE)
    [column] = table.schema().fields
    assert (column.name, column.required, column.doc, table.properties["a"]) == ("n", True, "the number", "b")
    assert [str(each.transform) for each in table.spec().fields] == ["identity"]


def test_columns_that_are_on_their_way_when_the_attempt_is_barred_are_refused(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog decides, by the fence that was read: the successor gives the table its own."""
    del engine
    attempt = begun(tmp_path, made=MADE)
    key, sent = attempt.key("made"), table_commit.declare
    sink: Any = attempt.sinks()["made"]

    def overtaken(*given: Any, **columns: Any) -> Any:
        change = sent(*given, **columns)
        monkeypatch.setattr(table_commit, "declare", sent)
        attempt.fence("made", 2)
        return change

    monkeypatch.setattr(table_commit, "declare", overtaken)
    with pytest.raises(Fenced):
        run(sink.create(key, 1, schema=SCHEMA))
    assert iceberg_tables.table(MADE).schema().fields == ()
    assert run(sink.create(key, 2, schema=SCHEMA.replace('"n"', '"m"')))
    assert [each.name for each in iceberg_tables.table(MADE).schema().fields] == ["m"]


def test_what_sparkonce_makes_no_table_of_is_refused(tmp_path: Path, engine: Engine) -> None:
    """Another place, another format, a call that makes none: named, and there is no table."""
    refused = [
        (saved(engine, 1, location="/elsewhere"), "makes the table lake.sales.made of output made at /elsewhere"),
        (saved(engine, 1, format="orc"), "of format orc"),
        (engine.statement(1, table=MADE), r"there is no table lake\.sales\.made yet"),
    ]
    for statement, said in refused:
        with pytest.raises(InvalidInput, match=said):
            watched(begun(tmp_path / said.split()[-1].strip("/"), made=MADE)).statement(statement)
    assert not catalog().table_exists(MADE)
