"""Why a job failed, and which errors end it after one attempt, as `sparkonce run` and `sparkonce keys` report it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.desk import Desk
from sparkonce.cli.exits import ExitCode

THREE = {"maxAttempts": 3, "backoff": {"initial": "0s", "max": "0s"}}
IMPORTS = """
    print("begins")
    import no_such_module
"""
RAISES = """
    def load():
        raise ValueError("no rows in the source")

    load()
"""


def test_the_sentence_ends_with_the_exception(desk: Desk) -> None:
    """In `run`, in its replay, in `keys show --json` and in `keys explain`; the excerpt has the script's line."""
    desk.job(RAISES, retry=THREE)
    said = desk.here("run", "job.yaml")
    cause = "ValueError: no rows in the source"
    assert said.code == ExitCode.FAILED
    [sentence] = [line for line in said.out.splitlines() if line.startswith("  Exited: ")]
    assert sentence.endswith(f"{cause} (attempt 3)")
    assert "  from its log:\n    Traceback (most recent call last):" in said.out
    assert "raise ValueError" in said.out
    assert desk.here("run", "job.yaml").out.count(cause) == said.out.count(cause)
    failure = desk.here("keys", "show", "write/numbers@1", "--json").told["result"]["failure"]
    assert failure["message"].endswith(cause)
    assert failure["logTail"].endswith(cause)
    assert cause in desk.here("keys", "explain", "write/numbers@1").out
    assert desk.attempts() == 3


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (IMPORTS, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:\n    pass\n", "SyntaxError: "),
        ("if True:\nprint()\n", "IndentationError: "),
    ],
)
def test_an_error_of_the_script_ends_the_job(desk: Desk, script: str, cause: str) -> None:
    """One attempt of three: Failed(Permanent), with the exception at the end of the sentence; the result is replayed."""
    desk.job(script, retry=THREE)
    failure = desk.here("run", "job.yaml", "--json").told["result"]["failure"]
    assert (failure["class"], desk.attempts()) == ("Permanent", 1)
    assert failure["message"].startswith("every attempt of this script would fail the same way: ")
    assert cause in failure["message"]
    again = desk.here("run", "job.yaml")
    assert (again.code, desk.attempts()) == (ExitCode.FAILED, 1)
    assert again.first.startswith("replayed")


@pytest.mark.parametrize(
    ("script", "spec"),
    [
        (IMPORTS, {"outputs": []}),
        ("unknown_name", {}),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    import no_such_module\n", {}),
        ("def main():\n    import no_such_module\nmain()\n", {}),
        ("import os\nos.environ['no such variable']\n", {}),
    ],
)
def test_what_may_pass_is_tried_again(desk: Desk, script: str, spec: dict[str, Any]) -> None:
    """A job without outputs, an undefined name, an exception raised while handling another, and an import that some runs do not reach get
    all attempts."""
    desk.job(script, retry=THREE, **spec)
    failure = desk.here("run", "job.yaml", "--json").told["result"]["failure"]
    assert (failure["class"], desk.attempts()) == ("Exited", 3)


def test_a_driver_that_committed_and_then_claims_an_error_succeeded(desk: Desk) -> None:
    """An error in the log ends retries and decides nothing else: what is committed is the result."""
    desk.job("""
        from harness.arrow_stage import arrow_stage, table_of
        from sparkonce.driver.current import current

        current(stager=arrow_stage).write(table_of(1, 2), "numbers")
        import no_such_module
    """, retry=THREE)  # fmt: skip
    assert desk.here("run", "job.yaml").code == ExitCode.SUCCEEDED
    assert desk.attempts() == 1


def test_a_later_attempt_is_no_error_of_the_script(desk: Desk) -> None:
    """If an earlier attempt got past it, a failed import is tried again: here the module exists before the third attempt imports it."""
    desk.job("""
        from pathlib import Path

        runs = Path("runs")
        runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
        if runs.read_text() == "x":
            raise SystemExit("lost its source")
        if runs.read_text() == "xxx":
            Path("appears.py").touch()
        import appears
        from harness.arrow_stage import arrow_stage, table_of
        from sparkonce.driver.current import current

        current(stager=arrow_stage).write(table_of(1, 2), "numbers")
    """, retry=THREE)  # fmt: skip
    assert desk.here("run", "job.yaml").code == ExitCode.SUCCEEDED
    assert desk.attempts() == 3
    assert Path("runs").read_text() == "xxx"
