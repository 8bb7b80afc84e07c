"""Mode Merge with the engines of Delta and Iceberg: rows are replaced by their key, once; what would change in silence is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.delta_jars import delta_jars
from harness.iceberg_rest import rest_server, spark_runtime
from harness.spark import facts_of, facts_once

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    jars, runtime = ",".join(map(str, delta_jars())), str(spark_runtime())

    def gather(folder: Path) -> dict[str, Any]:
        with rest_server(tmp_path_factory.mktemp("rest")) as url:
            return facts_of("harness.merged_spark", folder, jars, runtime, url)

    return facts_once(tmp_path_factory, "merged", gather)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_are_replaced_by_their_key_and_added_otherwise(facts: dict[str, Any], kind: str) -> None:
    """The first job makes the table, in the attempt after one that died before it did; NULL is a key, too. Jobs that come again change
    nothing and compute no row, also where another writer has added a column meanwhile."""
    found = facts[kind]
    first = [[1, "a", 1], [2, "b", 1], [None, "none", 1]]
    second = [[1, "a", 1], [2, "B", 2], [3, "c", 2], [None, "None", 2]]
    assert found["first"] == [True, first]
    assert found["second"] == [True, second]
    assert found["again"] == [[False, False], True]
    assert found["third"] == [True, [*second[:3], [4, "d", 3], second[3]]]
    assert found["again, with another column"] is False


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_what_merge_would_alter_in_silence_is_refused_by_name(facts: dict[str, Any], kind: str) -> None:
    """Nothing is written by any of these."""
    said = facts[kind]["refused"]
    expected = {
        "same key twice": "several of the rows to merge have the same id; nothing was written",
        "column too many": "the table has no column more. Select and cast the columns as the table has them",
        "column too few": "the rows have no column name. Select",
        "larger type": "v is double in the rows and int in the table",
        "no such key": "the rows have no column number (they have id, name, v)",
        "no key": "needs on=[...], the columns that identify a row: it is not given",
        "another key": "on=['name'] contradicts spec.outputs[people].on, which is ['ID']",
        "key of an append": "on=[...] names the columns by which mode Merge replaces rows; leave it out",
        "partitions": "mode Merge takes neither partition_by nor merge_schema",
    }
    assert {what: sentence for what, sentence in said.items() if expected[what] not in str(sentence)} == {}
    assert {str(sentence).partition(":")[0] for sentence in said.values()} == {"InvalidInput"}
    assert said.keys() == expected.keys()
    assert facts[kind]["written by refused calls"] is False


def test_a_char_as_the_key_of_a_delta_table_is_refused_while_spark_pads_it(facts: dict[str, Any]) -> None:
    """Delta's MERGE fails on it with an internal error. By the remedy in the sentence the second row finds the first; by another key CHARs
    are merged without it."""
    said = facts["char"]["padded"]
    assert said.startswith("InvalidInput: output people cannot be merged into ")
    assert "its key id is a CHAR" in said
    assert "Set spark.sql.readSideCharPadding to false" in said
    assert facts["char"]["merged"] == [True, True]
    assert facts["char"]["by another"] is True
    assert facts["char"]["rows"] == [{"id": "cd", "who": {"name": "z"}, "v": 2}]
