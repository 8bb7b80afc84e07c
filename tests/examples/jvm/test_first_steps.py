"""The quickstart and the notebook, as a reader of the README runs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from examples.sender import needs_spark
from examples.test_demo import ROOT, answers, checkout, run
from sparkonce.sink.slotlog.snapshot import Table

__all__ = ["checkout"]


@pytest.mark.spark
@pytest.mark.slow
@needs_spark
def test_quickstart_writes_beside_its_job_file(checkout: Path) -> None:
    """The README's first command, run in the checkout's root, puts a thousand rows into examples/quickstart/data/squares."""
    (line,) = re.findall(r"^\.venv/bin/sparkonce run .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    done = run(*line.split(), "--store", "ledger.db", checkout=checkout)
    assert (done.returncode, answers(done.stdout)) == (0, ["succeeded"]), done.stderr
    rows = ds.dataset(Table(checkout / "examples" / "quickstart" / "data" / "squares").files()).to_table().to_pydict()
    assert sorted(rows["square"]) == [number * number for number in range(1000)]


@pytest.mark.spark
@pytest.mark.slow
@needs_spark
def test_notebook_writes_once(checkout: Path) -> None:
    """Two runs of the notebook's cells: the first writes the rows, the second finds them recorded, and both show them."""
    first, second = (run(sys.executable, "examples/notebook.py", checkout=checkout) for _ in range(2))
    assert "1000 rows, written now" in first.stdout, first.stderr
    assert "1000 rows, recorded before" in second.stdout, second.stderr
    assert "|  4|    16|" in first.stdout
    assert "|  4|    16|" in second.stdout
    assert len(Table(checkout / "examples" / "data" / "notebook" / "squares").slots()) == 1
