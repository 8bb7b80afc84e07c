"""A native block with Spark's own Delta engine: which calls are statements, what each leaves, and which are refused before they run."""

from __future__ import annotations

from typing import Any

import pytest

from harness.delta_jars import delta_jars
from harness.spark import facts_of, facts_once


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    jars = ",".join(map(str, delta_jars()))
    return facts_once(tmp_path_factory, "native", lambda folder: facts_of("harness.native_spark", folder, jars))


@pytest.mark.spark
def test_each_kind_of_statement_is_in_the_table_once(facts: dict[str, Any]) -> None:
    """SQL and writers of a DataFrame, one of which changes nothing; a second driver issues all of them again, and nothing changes."""
    merged = [[0, 0], [1, 0], [2, 0], [3, 1], [4, 9]]
    updated = [[0, 10], *merged[1:]]
    replaced = [[0, 10], [1, 5], *merged[2:]]
    assert facts["left"] == [
        merged,
        updated,
        updated,
        [*updated, [60, 1]],
        [*replaced, [60, 1]],
        *([*replaced, *[[50, 1]] * times, [60, 1]] for times in (1, 2, 3, 4)),
    ]
    assert (facts["issued twice"], facts["done"], facts["settings"]) == (facts["left"][-1], 9, None)


@pytest.mark.spark
def test_what_is_no_statement_is_refused_before_it_runs(facts: dict[str, Any]) -> None:
    """Other tables, other commands, streams, threads: InvalidInput each, and no entry of the log. Reading is allowed."""
    assert {name: said for name, said in facts["refused"].items() if not str(said).startswith("InvalidInput")} == {}
    assert "give the absolute one" in facts["refused"]["relative path"]
    assert (facts["written by refused calls"], facts["other"], facts["reads"]) == (0, 0, 10)
