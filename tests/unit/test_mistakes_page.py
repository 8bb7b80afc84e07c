"""docs/mistakes.md has every example and every mistake of the tests on a real cluster, with what they demand."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.test_mistakes import NAMED
from cluster.test_upstream_examples import ADDED, CONVERTED, REFUSED, RUN
from harness.node.mistakes import MISTAKES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "mistakes.md").read_text(encoding="utf-8")


def rows(first: str) -> dict[str, list[str]]:
    """The cells of the table whose first column has this heading, by the first one, without their code marks."""
    found = re.search(rf"^\| {first} \|.*\n\| ---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert found is not None, f"docs/mistakes.md has no table of {first}"
    lines = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in found[1].splitlines()]
    assert len({len(cells) for cells in lines}) == 1, "a row has more or fewer cells than another one"
    told = {name.strip("`"): rest for name, *rest in lines}
    assert len(told) == len(lines), "a name has two rows"
    return told


def quoted(cell: str) -> str:
    """The first text of a cell that is marked as code, as it was before it was written into a table."""
    return cell.split("`")[1].replace(r"\|", "|")


def test_each_example_has_its_row() -> None:
    """The page says of each example what the test demands: refused with this sentence, converted to this kind, run or not run, and which
    volume shows the webhook's work."""
    told = rows("example")
    assert told.keys() == {*RUN, *CONVERTED, *REFUSED}
    assert f"All {len(told)} YAML files" in PAGE
    for name, (converted, became) in told.items():
        if name in REFUSED:
            assert converted.startswith("refused: ") and quoted(converted) == REFUSED[name], name
        else:
            assert CONVERTED.get(name, "IdempotentJob") in converted, name
        assert became.startswith("applied twice, one driver" if name in RUN else "not run"), name
        assert set(re.findall(r"`(.+?)`", became)) == ADDED.get(name, set()), name


def test_each_mistake_has_its_row() -> None:
    """The page has the mistakes in the order of the test, and for each the expression that the message has to match."""
    told = rows("mistake")
    assert list(told) == list(MISTAKES)
    assert f"Within {NAMED:.0f} seconds" in PAGE
    assert {name: quoted(cells[1]) for name, cells in told.items()} == {
        name: mistake.cause for name, mistake in MISTAKES.items()
    }
