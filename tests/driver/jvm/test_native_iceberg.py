"""A native block with Iceberg's own runtime: which calls go to the branch, what each leaves, and which are refused before they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.iceberg_rest import rest_server, spark_runtime
from harness.spark import facts_of, facts_once

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    jar = spark_runtime()

    def gather(folder: Path) -> dict[str, Any]:
        with rest_server(tmp_path_factory.mktemp("rest")) as url:
            return facts_of("harness.native_iceberg", folder, str(jar), url)

    return facts_once(tmp_path_factory, "native-iceberg", gather)


def test_each_kind_of_statement_is_on_the_branch_and_then_in_the_table(facts: dict[str, Any]) -> None:
    """SQL and writers of a DataFrame: the session reads what it wrote, `main` stands still until the end and then has all of it, as
    pyiceberg reads it. A second driver issues all of them again, and nothing changes. No setting and no branch is left."""
    old = [[0, 0], [1, 0], [2, 0], [3, 0]]
    merged = [[0, 0], [1, 0], [2, 0], [3, 1], [4, 9]]
    updated = [[0, 10], *merged[1:]]
    base = [[0, 10], [1, 0], [2, 0], [3, 1]]
    assert facts["left"] == [
        merged,
        updated,
        updated,
        base,
        [*base, [60, 1]],
        [*base, [61, 5]],
        *([*base, *[[50, 1]] * times, [61, 5]] for times in (1, 2, 3, 4, 1, 1)),
        [*base, [50, 1]],
        base,
    ]
    assert facts["main"] == [old] * len(facts["left"])
    assert (facts["main at the end"], facts["at the end"], facts["issued twice"]) == (old, base, base)
    assert (facts["done"], facts["fresh"], facts["settings"], facts["branches"]) == (
        len(facts["left"]),
        [True, False],
        None,
        [],
    )


def test_what_would_escape_the_branch_is_refused_before_it_runs(facts: dict[str, Any]) -> None:
    """Other tables, `main` by its name or an option, commands that replace or change the table, streams, threads: InvalidInput each, and
    nothing is written or made."""
    assert {name: said for name, said in facts["refused"].items() if not str(said).startswith("InvalidInput")} == {}
    assert (facts["written by refused calls"], facts["schema"]) == (0, 0)
    assert facts["tables"] == ["merged", "orders", "other"]


def test_an_engine_that_writes_delete_files(facts: dict[str, Any]) -> None:
    """Merge-on-read: pyiceberg and Spark read the same rows."""
    rows = [[0, 1], [1, 0], [2, 1], [3, 0]]
    assert (facts["merge on read"]["rows"], facts["merge on read"]["read"]) == (rows, rows)


def test_what_blocks_wrote_survives_expiry(facts: dict[str, Any]) -> None:
    """Files that a block appended belong to snapshots of a branch that is gone, and to `main`: expiry keeps them, and a replay finds both
    blocks' results."""
    said = facts["expired"]
    assert sorted(row for row in said["merged"] if row[0] >= 80) == [[80, 8], [81, 8], [82, 8]]
    assert [0, 8] in said["other"]
    assert said["probes"] == {"appends": "present", "moved": "present"}


def test_a_table_that_moved_under_a_block(facts: dict[str, Any]) -> None:
    """A block that updated rows is overtaken: nothing of it is visible, and the error says why. `job.sql` runs its statement again."""
    said = facts["overtaken"]
    assert "another writer changed lake.sales.other while the block ran" in said["error"]
    assert said["after"] == [[0, 0], [1, 0], [2, 0], [3, 0], [70, 0]]
    assert said["then"] == [[0, 0], [1, 0], [2, 0], [3, 3], [70, 0], [71, 0]]
    assert ("sql" in said, said["branches"]) == (False, [])
