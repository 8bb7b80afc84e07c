"""A key that was granted another attempt after its script was changed: what each command advises, taken in the state that prints it."""

from __future__ import annotations

import pytest

from harness.desk import Desk
from sparkonce.cli.exits import ExitCode

KEY = "write/numbers@1"
WRITES_TWO = """
    from pathlib import Path
    from harness.arrow_stage import arrow_stage, table_of
    from sparkonce.driver.current import current

    job = current(stager=arrow_stage)
    job.write(table_of(1, 2), "one")
    if not Path("input").exists():
        raise RuntimeError("the input is not there")
    job.write(table_of(3), "two")
"""
CHANGED = f"{WRITES_TWO}    # changed\n"
OUTPUTS = [{"name": name, "slotLog": {"path": f"lake/{name}"}} for name in ("one", "two")]


@pytest.fixture
def retried(desk: Desk) -> str:
    """Held with one of two outputs, its script changed, another attempt granted; what that command said."""
    assert desk.here("run", desk.job(WRITES_TWO, outputs=OUTPUTS)).code == ExitCode.HELD
    (desk.folder / "input").touch()
    desk.job(CHANGED, outputs=OUTPUTS)
    said = desk.here("keys", "resolve", KEY, "--retry", "--reason", "it is there", "--yes")
    assert "attempt 2 is granted" in said.out
    return said.out


def commits(desk: Desk) -> list[int]:
    return [len(desk.commits(name)) for name in ("one", "two")]


def test_the_script_as_it_was_ends_the_key(desk: Desk, retried: str) -> None:
    """The command names the file. The changed script is refused; put back, it writes what is missing."""
    assert "application file job.py changed since: send the job again with that as it was" in retried
    assert desk.here("run", "job.yaml").code == ExitCode.MISMATCH
    assert commits(desk) == [1, 0]
    assert desk.here("run", desk.job(WRITES_TWO, outputs=OUTPUTS)).code == ExitCode.SUCCEEDED
    assert commits(desk) == [1, 1]


def test_the_changed_script_runs_in_its_place(desk: Desk, retried: str) -> None:
    """Not before the granted attempt is over, as the answers to `run` and `rerun -f` say too. Its generation replaces the rows."""
    assert f"first `sparkonce cancel {KEY}`, then `sparkonce rerun -f FILE`" in retried
    refused = desk.here("run", "job.yaml")
    assert f"`sparkonce rerun -f FILE` once that has ended (`sparkonce cancel {KEY}` ends it)" in refused.out
    early = desk.here("rerun", "-f", "job.yaml")
    assert (early.code, f"or sparkonce cancel {KEY}" in early.out) == (ExitCode.IN_PROGRESS, True)
    assert desk.here("cancel", KEY).code == ExitCode.HELD  # one output is committed
    assert commits(desk) == [1, 0]
    assert desk.here("rerun", "-f", "job.yaml").code == ExitCode.SUCCEEDED
    assert desk.here("run", "job.yaml", "--json").told["generation"] == 2
