"""docs/deciding.md has every row of the five tables, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.attempts import attempts, row_literals, settled_attempts
from harness.followed import followed
from sparkonce.attempt import request, settle_runs
from sparkonce.attempt.decide import Settle
from sparkonce.model.record import Why

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deciding.md"


def section(title: str) -> str:
    """The text from this heading to the next."""
    found = re.search(rf"^## {title}:.*?(?=^## )", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/deciding.md has no section {title!r}"
    return found.group()


def rows(title: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", section(title), re.MULTILINE)


@pytest.mark.parametrize("title", ["answer", "decide", "follow", "next_settle_run", "conclude"])
def test_the_page_has_every_row(title: str) -> None:
    """Each row that can decide has one line under its table's name, and each line is such a row."""
    reached = {
        "answer": lambda: row_literals(request),
        "decide": lambda: {attempt.decision.row for attempt in attempts()},
        "follow": lambda: {decision.row for _, _, _, decision in followed()},
        "next_settle_run": lambda: row_literals(settle_runs),
        "conclude": lambda: {attempt.decision.row for attempt in settled_attempts()},
    }[title]()
    assert sorted(rows(title)) == sorted(reached)


def test_the_page_names_what_decide_does() -> None:
    """The page names, for each row of `decide`, the action that the row takes; for Settle, also every reason for which the row settles, or
    that it is the recorded one, which can be any."""
    said = dict(re.findall(r"^\| `([^`]+)` \|[^|]+\| ([^|]+) \|", section("decide"), re.MULTILINE))
    reasons: dict[str, set[Why]] = {row: set() for row in said}
    for attempt in attempts():
        row, action = attempt.decision.row, attempt.decision.action
        assert re.split(r"\W", said[row])[0] == type(action).__name__
        if isinstance(action, Settle):
            reasons[row].add(action.why)
    for row, found in reasons.items():
        if said[row] == "Settle, for the reason written there":
            assert found == set(Why)
        else:
            named = re.fullmatch(r"Settle: (\w+(?: or \w+)*)(?:, not counted)?", said[row])
            assert (named.group(1).split(" or ") if named else []) == sorted(found), row


def test_every_line_of_a_table_is_whole() -> None:
    """Each line has all four cells; one without content is empty, not missing."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {5}


def test_each_outcome_has_its_diagram() -> None:
    """The page has one short sequence diagram for each outcome that users see."""
    text = PAGE.read_text(encoding="utf-8")
    diagrams = re.findall(r"^([^\n]+):\n\n```mermaid\nsequenceDiagram\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert [title for title, _ in diagrams] == ["Fresh success", "A duplicate follows", "Replay", "Takeover", "Held"]
    assert all(len(body.splitlines()) <= 14 for _, body in diagrams)
