"""Jobs of one series through the command line: what a late one that skips says, what is said of one that was superseded, and that the
advice works in both states."""

from __future__ import annotations

from typing import Any

from harness.delta_stage import numbers_in
from harness.desk import Desk, Said
from sparkonce.cli.exits import ExitCode

SCRIPT = """
    import sys
    from harness.delta_stage import delta_stage
    from harness.arrow_stage import table_of
    from sparkonce.driver.current import current

    current(stager=delta_stage).write(table_of(int(sys.argv[1])), "numbers")
"""
OUTPUT: dict[str, Any] = {"name": "numbers", "delta": {"path": "lake/numbers"}, "mode": "Overwrite"}
YESTERDAY, TODAY = "2024-05-01", "2024-05-02"


def sent(desk: Desk, day: str, number: int, on_late: str = "Skip") -> str:
    """Writes the job file of a day, which overwrites the table with a number."""
    series = {"name": "daily", "position": day, "onLate": on_late}
    template = {"arguments": [str(number)]}
    return desk.job(SCRIPT, file=f"{day}.yaml", template=template, outputs=[OUTPUT], resource=day, series=series)


def output_of(said: Said) -> dict[str, Any]:
    [output] = said.told["result"]["outputs"]
    assert isinstance(output, dict)
    return output


def test_a_late_job_that_skips(desk: Desk) -> None:
    """It succeeds, exit code 0, and says in text and JSON which position barred it, also to duplicates and in `keys show`; what it advises
    writes its rows, and a plain rerun, which it does not advise, is skipped again."""
    table = desk.folder / "lake" / "numbers"
    assert desk.here("run", sent(desk, TODAY, 2)).code == ExitCode.SUCCEEDED
    file = sent(desk, YESTERDAY, 1)
    skipped = desk.here("run", file)
    assert (skipped.code, numbers_in(table)) == (ExitCode.SUCCEEDED, [2])
    assert skipped.first == f"succeeded: write/{YESTERDAY}@1, generation 1, attempt 1, numbers skipped"
    assert f"nothing written: position {TODAY} of its series had been committed" in skipped.out
    advice = "declare `series.onLate: Allow` and run `sparkonce rerun -f FILE`"
    assert skipped.out.splitlines()[-1].startswith("  to write the rows nevertheless: ") and advice in skipped.out
    replayed = desk.here("run", file, "--json")
    assert (replayed.told["replayed"], replayed.told["exitCode"]) == (True, 0)
    assert (output_of(replayed)["skipped"], output_of(replayed)["rows"]) == (TODAY, 0)
    assert output_of(replayed)["found"] == "present"
    assert advice in replayed.told["unblock"]
    assert f"because position {TODAY} of the series daily had been committed" in replayed.told["evidence"]
    assert f"position {TODAY}" in desk.here("keys", "show", f"write/{YESTERDAY}@1").out
    assert desk.here("rerun", f"write/{YESTERDAY}@1").code == ExitCode.SUCCEEDED
    assert numbers_in(table) == [2]
    assert desk.here("rerun", "-f", sent(desk, YESTERDAY, 1, "Allow")).code == ExitCode.SUCCEEDED
    assert numbers_in(table) == [1]


def test_a_superseded_result(desk: Desk) -> None:
    """Yesterday's job is replayed with exit code 0 and names the key that came later; what it advises writes its rows anew."""
    table = desk.folder / "lake" / "numbers"
    file = sent(desk, YESTERDAY, 1)
    assert desk.here("run", file).code == ExitCode.SUCCEEDED
    today = desk.here("run", sent(desk, TODAY, 2), "--json")
    sent(desk, YESTERDAY, 1)  # the script is the same, and so is the job
    replayed = desk.here("run", file, "--json")
    assert (replayed.told["replayed"], replayed.told["exitCode"]) == (True, 0)
    output = output_of(replayed)
    assert output["found"] == "superseded"
    assert [each["key"] for each in output["changedBy"]] == [f"{today.told['keyHash']}-numbers-g1"]
    assert f"position {TODAY} of the series daily" in output["foundWhy"]
    said = desk.here("run", file)
    assert "(superseded: its rows were replaced by version " in said.out
    assert "declare `series.onLate: Allow` and run `sparkonce rerun -f FILE`" in said.out.splitlines()[-1]
    assert desk.here("keys", "explain", f"write/{YESTERDAY}@1", "--json").told["row"] == "result superseded"
    assert desk.here("rerun", "-f", sent(desk, YESTERDAY, 3, "Allow")).code == ExitCode.SUCCEEDED
    assert numbers_in(table) == [3]
