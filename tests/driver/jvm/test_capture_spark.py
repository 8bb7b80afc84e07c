"""A captured script with Spark's own Delta and Iceberg engines: which calls are taken, what each leaves, and which are refused at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.delta_jars import delta_jars
from harness.iceberg_rest import rest_server, spark_runtime
from harness.spark import facts_of, facts_once

REFUSED = ("InvalidInput", "UndeclaredOutput")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    jars = ",".join(map(str, delta_jars()))
    return facts_once(tmp_path_factory, "captured", lambda folder: facts_of("harness.captured_spark", folder, jars))


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    jars = ",".join(map(str, [*delta_jars(), spark_runtime()]))

    def gather(folder: Path) -> dict[str, Any]:
        with rest_server(tmp_path_factory.mktemp("rest")) as url:
            return facts_of("harness.captured_iceberg", folder, jars, url)

    return facts_once(tmp_path_factory, "captured-iceberg", gather)


@pytest.mark.spark
def test_each_write_is_in_its_table_once(facts: dict[str, Any]) -> None:
    """By path, by name, into tables that the script makes, Parquet in slot logs, one of which it overwrites; a second driver of the attempt
    changes nothing."""
    assert facts["left"] == {
        "orders": [[0, 7], [1, 0], [2, 0], [3, 0], [4, 9], [50, 2], [50, 2]],
        "made": [[50, 1]],
        "named": [[50, 1], [50, 1]],
        "managed": [[50, 1]],
        "declared": [[50, 1]],
    }
    assert (facts["partitioned by"], facts["events"], facts["days"]) == ([["v"], ["day"]], 1, [[50, 1]])
    assert facts["parts"] == [[0, 0], [50, 1]]
    assert facts["ended"] == ["days", "declared", "events", "made", "managed", "named", "orders", "parts"]
    assert facts["issued twice"] == [True, True]


@pytest.mark.spark
def test_a_table_that_the_script_creates_has_its_columns(facts: dict[str, Any]) -> None:
    """CREATE TABLE IF NOT EXISTS: names, types, NOT NULL, widths and comments. Where sparkonce cannot make the table, the command is
    refused and there is none."""
    assert [(each["name"], each["type"], each["nullable"]) for each in facts["declared as"]] == [
        ("id", "long", False),
        ("v", "integer", True),
        ("code", "string", True),
        ("day", "date", True),
    ]
    assert [facts["declared as"][at]["metadata"] for at in (0, 2)] == [
        {"comment": "the order"},
        {"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"},
    ]
    named = re.compile(
        "InvalidInput: the script creates the table of output odd .* with (.*), and sparkonce makes no such table; create it"
    )
    found = [named.match(said) for said in facts["no table for"]]
    assert [each and each[1] for each in found] == ["TBLPROPERTIES", "a default or rule for v", "cluster_by(id)"]
    assert facts["and none was made"]


@pytest.mark.spark
def test_the_script_reads_back_what_its_slot_logs_show(facts: dict[str, Any]) -> None:
    """By path, as Parquet: the rows of the table and nothing else, in the reader's schema if it has one. Where nothing is committed Spark
    says what it would say."""
    parts, days, [columns, rows], nothing = facts["read by the script"]
    assert (parts, days) == (facts["parts"], facts["days"])
    assert (columns, rows) == (["v", "more"], [[1, None]])
    assert facts["spelled otherwise"] == [1]
    assert nothing.startswith("AnalysisException")


@pytest.mark.spark
def test_a_folder_that_a_script_writes_in_a_loop_is_one_effect(facts: dict[str, Any]) -> None:
    """Overwritten and then appended to, and read in between: until the script has ended only it sees its rows, and each attempt the same.
    Then they are there once, however many drivers there were."""
    found = facts["in a loop"]
    before = [[number, 12] for number in range(5)]
    months = sorted([number, month] for month in (1, 2, 3) for number in range(month))
    sums = [[1, 1], [2, 2], [3, 3]]
    seen = [[1, ["id"], 1], [3, ["id"], 1], [6, ["id"], 1]]
    assert found["seen"] == [seen, seen, [[6, ["id"], 1]] * 3]
    assert found["rows"] == [[before, []], [before, []], [months, sums], [months, sums]]
    assert (found["slots"], found["staged"]) == ([1, 1], [2, 3, 3])
    said = {
        "other columns": "differ from those that the script has written there before in id, n; give",
        "other types": "before in id; give all of them the same columns, in the same types",
        "other partitions": "partitioned by no column and then by id; partition all",
        "made again": "in mode errorifexists after other rows; use mode append or overwrite",
    }
    assert {name: text for name, text in found["refused"].items() if said[name] not in str(text)} == {}


@pytest.mark.spark
def test_the_script_reads_partitions_back_by_path_and_pattern(facts: dict[str, Any]) -> None:
    """As of a plain folder: the rows of those partitions, and the columns whose folders are not in the path, or all with `basePath`."""
    rows = facts["parts"]
    whole, bare = [["id", "v"], rows], [["id"], [[row[0]] for row in rows]]
    assert facts["by pattern"] == {
        "all, with v": whole,
        "all, by load": whole,
        "all, by option": whole,
        "all, without v": bare,
        "files": bare,
        "one": [["id"], [[50]]],
        "one, with v": [["id", "v"], [[50, 1]]],
        "both": whole,
        "none": [["id", "v"], []],
    }


@pytest.mark.spark
def test_a_read_that_would_show_files_nobody_committed_is_refused(facts: dict[str, Any]) -> None:
    """Patterns, options and several places: one sentence each; where nothing is committed, Spark's own error."""
    said = dict(facts["patterns refused"])
    assert str(said.pop("uncommitted")).startswith("AnalysisException")
    expected = {
        "levels": "names files, or folders that are no partitions of it. Read the folder, and filter the rows",
        "alternatives": "names files, or folders",
        "another column": "names files, or folders",
        "above": "takes in other places too. Read each by itself",
        "beside": "takes in other places too",
        "option": "has the option pathGlobFilter, which chooses among files. Leave it out",
        "recursive": "takes in other places too",
        "base": "has the basePath parts/v=1, which is below it. Give the folder",
        "by SQL": "is by SQL, which shows them as they are. Read the folder by `spark.read.parquet`, and make a view",
        "by SQL, uncommitted": "is by SQL",
        "as a table": "is by SQL",
        "as a table, by a reader": "is by SQL",
        "as a view": "is by SQL",
    }
    assert {name: text for name, text in said.items() if expected[name] not in str(text)} == {}
    assert said.keys() == expected.keys()
    assert all("where output parts keeps the files of all attempts" in str(said[name]) for name in ("levels", "beside"))


@pytest.mark.spark
def test_what_no_output_takes_is_refused_before_it_runs(facts: dict[str, Any]) -> None:
    """Every other way to write, DDL on a captured table, threads, other sessions: one sentence each, no file, no entry of a log."""
    assert {name: said for name, said in facts["refused"].items() if not str(said).startswith(REFUSED)} == {}
    assert facts["written by refused calls"] == [True, []]
    assert "secret" not in facts["refused"]["jdbc"]
    assert "a write with its own txnAppId, which numbers it already" in facts["refused"]["own identifier, by name"]
    assert "lets it pass" in facts["refused"]["csv"] and "lets it pass" not in facts["refused"]["stream"]
    assert "delta: {path: '" in facts["refused"]["delta"] and "slotLog: {path: '" in facts["refused"]["parquet"]


@pytest.mark.spark
def test_calls_of_packages_are_refused_however_late_they_are_imported(facts: dict[str, Any]) -> None:
    """Those of Delta's package that write or make a table, which may become importable with the session, and models, whose writers remove
    the folder before they write."""
    said = dict(facts["refused, of packages"])
    assert {name: text for name, text in said.items() if not str(text).startswith(REFUSED)} == {}
    expected = {
        "merge": "DeltaTable.merge(); write it as SQL",
        "delete": "DeltaTable.delete(); write it as SQL",
        "generate": "DeltaTable.generate()",
        "clone": "DeltaTable.clone()",
        "clone of a version": "DeltaTable.cloneAtVersion()",
        "clone of a time": "DeltaTable.cloneAtTimestamp()",
        "convert": "DeltaTable.convertToDelta()",
        "create": "DeltaTableBuilder.execute(), whose SQL is CREATE TABLE IF NOT EXISTS",
        "model": "JavaMLWriter.save() to ",
        "model over another": "JavaMLWriter.save() to ",
        "model of Python's": "MLWriter.save() to ",
        "model of mllib": "LinearRegressionModel.save() to ",
    }
    assert {name: text for name, text in said.items() if expected[name] not in str(text)} == {}
    assert "belongs in a job of its own" in said["clone"] and "lets it pass" in said["model"]


@pytest.mark.spark
def test_a_query_with_braces_is_pysparks(facts: dict[str, Any]) -> None:
    """DataFrames, their columns, numbers, tuples and texts."""
    assert {text: said for text, said in facts["formatted"].items() if said is not None} == {}


@pytest.mark.spark
def test_reading_is_never_disturbed(facts: dict[str, Any]) -> None:
    """Queries, temporary views, caches, settings."""
    assert (facts["reads"], facts["reading refused"]) == (7, False)


@pytest.mark.spark
def test_with_warn_writes_elsewhere_pass_but_not_into_an_output(facts: dict[str, Any]) -> None:
    """What the script writes elsewhere is made. What changes an output's folder, or whose target cannot be told, is refused as ever."""
    assert facts["passed"] == ["yes-csv", "yes-delta", "yes-model", "yes-table"]
    assert {
        name: said for name, said in facts["refused beside warn"].items() if not str(said).startswith(REFUSED)
    } == {}
    assert facts["written beside warn"] == [True, []]
    assert "UPDATE through the view `known_rows` (name the table itself)" in facts["refused beside warn"]["a view"]
    assert "output orders takes" in facts["refused beside warn"]["a DataFrame"]
    noted, version = facts["passed, of a view"]
    assert noted.startswith("DELETE through the view `other_rows`") and version == 1


@pytest.mark.spark
def test_iceberg_tables_change_at_the_scripts_end(iceberg: dict[str, Any]) -> None:
    """Each kind of statement, one after the other: the session reads what it wrote, also by a DataFrame that it made before the first one,
    and `main` stands still. Tables that the script makes are there, empty."""
    old = [[0, 0], [1, 0], [2, 0], [3, 0]]
    merged = [[0, 0], [1, 0], [2, 0], [3, 1], [4, 9]]
    updated = [[0, 10], *merged[1:]]
    left = [merged, updated, updated[:-1], *([*updated[:-1], *[[50, 1]] * times] for times in (1, 2, 3, 3))]
    assert iceberg["left"] == left
    assert iceberg["held"] == left
    assert iceberg["main"] == [old] * len(left)
    assert iceberg["counted"] == [7, 3, 6, 2, 1, 4]
    assert iceberg["on main"] == [4, 1, 4, 0, 0, 4]


@pytest.mark.spark
def test_several_outputs_of_all_kinds_are_there_once(iceberg: dict[str, Any]) -> None:
    """After the end, without a session, by readers that are not Spark: what another writer appended meanwhile is beneath the script's own
    append, and what reads one captured table and writes another has read the script's state. A second driver changes nothing."""
    orders = [[0, 10], [1, 0], [2, 0], [3, 1], *[[50, 1]] * 3]
    assert iceberg["tables"] == {
        "orders": orders,
        "totals": [[0, 2], [1, 4], [10, 1]],
        "appended": [[0, 0], [0, 0], [1, 0], [2, 0], [3, 0], [100, 8], [101, 8]],
        "made": [[50, 1], [50, 1]],
        "declared": [[1, "abc"]],
        "idle": [[0, 0], [1, 0], [2, 0], [3, 0]],
        "copies": orders,
        "events": 1,
    }
    assert iceberg["declared"] == [
        [["id", "long", True, "the order"], ["at", "timestamptz", False, None], ["code", "string", False, None]],
        [["at_day", "day"]],
        "merge-on-read",
    ]
    assert iceberg["ended"] == sorted(["appended", "copies", "declared", "events", "idle", "made", "orders", "totals"])
    assert (iceberg["branches"], iceberg["issued twice"], iceberg["setting"]) == ([], [True, True], None)


@pytest.mark.spark
def test_a_script_that_was_overtaken_runs_again(iceberg: dict[str, Any]) -> None:
    """Another writer committed after an UPDATE: the end says so, nothing is visible, and the next attempt is right on the new state."""
    said = iceberg["overtaken"]
    assert said["error 0"].startswith("TableMoved: ") and "another writer changed lake.sales.orders" in said["error 0"]
    assert (said["after 0"], said["error 1"], said["after 1"]) == ([], None, [[3, 2]])


@pytest.mark.spark
@pytest.mark.parametrize("beside", ["", " beside warn"])
def test_what_would_escape_the_branch_is_refused(iceberg: dict[str, Any], beside: str) -> None:
    """Names and settings of other branches, commands that make, replace, alter or maintain the table, threads, other tables: one sentence
    each, and no table has another column, reference or state of `main`, but for the branch of the script."""
    assert {name: said for name, said in iceberg[f"refused{beside}"].items() if not str(said).startswith(REFUSED)} == {}
    assert iceberg[f"left{beside or ' by refused calls'}"] == []
    said = {
        "its identifier": "resets spark.wap.id",
        "main by its name": "names a branch or tag",
        "overwrite": "saveAsTable in mode overwrite replaces",
        "saved": "there is one already",
        "main by its name and a writer": "a write with its own branch, which sends it elsewhere",
        "evolution": "changes the table's columns",
        "evolution by a writer": "changes the table's columns",
        "evolution by an option": "mergeSchema, which changes the table's columns",
        "drop": "output orders takes INSERT",
        "odd table": "with bucket(4, id)",
        "order": "output orders takes INSERT",
        "distribution": "output orders takes INSERT",
        "identifier": "output orders takes INSERT",
    }
    assert {name: text for name, text in said.items() if text not in iceberg[f"refused{beside}"][name]} == {}
    assert iceberg["ordered beside warn"] == 1
    if not beside:
        assert "iceberg: {catalog: 'lake', table: 'sales.other'}" in iceberg["refused"]["other"]
        assert "iceberg: {catalog: 'lake', table: 'sales.new'}" in iceberg["refused"]["new"]
