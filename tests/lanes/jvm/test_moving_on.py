"""docs/lanes.md, *Moving on*: its job file, script and commands, as they stand there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

import sparkonce
from harness.patience import completed

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lanes.md"
COUNT = 254
"""Batches; the page's command takes those after 250."""


def test_the_jobs_of_the_page_take_each_range_once(tmp_path: Path) -> None:
    """The range after 250 is loaded, and sent again it is replayed; a later one is added to it, and where there is none nothing runs."""
    section = PAGE.read_text().partition("## Moving on\n")[2].partition("\n## ")[0]
    found = re.findall(r"```(\w+)\n(.*?)```", section, flags=re.DOTALL)
    [load, trim], blocks = [text for kind, text in found if kind == "sh"], dict(found)
    (tmp_path / "load.yaml").write_text(blocks["yaml"])
    (tmp_path / "load.py").write_text(blocks["python"])
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPARKONCE_STORE": f"sqlite:///{tmp_path}/ledger.db",
    }

    def ran(commands: str) -> str:
        done = completed(["sh", "-e", "-c", f"cd {tmp_path}\n{commands}"], 120, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def sent(after: int = 250) -> str:
        return ran(load.replace("--after 250", f"--after {after}"))

    def wrote(first: int, last: int) -> None:
        with sparkonce.writer(tmp_path / "lake" / "orders", name="tap-7", linger=0.0) as writer:
            for n in range(first, last + 1):
                writer.append({"n": n}).result()

    def loaded() -> list[int]:
        rows = DeltaTable(str(tmp_path / "lake" / "orders_delta")).to_pyarrow_table().to_pylist()
        return sorted(row["n"] for row in rows)

    wrote(1, COUNT)
    sent()
    assert loaded() == list(range(251, COUNT + 1))
    assert "replay" in sent()
    assert "nothing to remove" in ran(trim), "the first batches were not taken, and the part has not ended"
    wrote(COUNT + 1, COUNT + 2)
    sent(COUNT)
    assert sent(COUNT + 2) == ""
    assert loaded() == list(range(251, COUNT + 3))
    assert DeltaTable(str(tmp_path / "lake" / "orders_delta")).version() <= 3
