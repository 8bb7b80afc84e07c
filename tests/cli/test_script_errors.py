"""Why a job failed, and which errors end it after one attempt, as `sparkonce run` and `sparkonce keys` report it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import effort
from harness.desk import OUTPUT, Desk
from sparkonce.cli.exits import ExitCode

THREE = {"maxAttempts": 3, "backoff": {"initial": "0s", "max": "0s"}}
IMPORTS = """
    print("begins")
    import no_such_module
"""
REFUSED = """
    from pyspark.errors import AnalysisException

    def load():
        raise AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/no/such. SQLSTATE: 42K03")

    load()
"""
"""What a script meets whose input is missing, raised without a JVM."""
WRITES_FIRST = """
    from harness.arrow_stage import arrow_stage, table_of
    from sparkonce.driver.current import current

    current(stager=arrow_stage).write(table_of(1, 2), "numbers")
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
        ("if True:\n\tprint()\n        print()\n", "TabError: "),
        ("from pathlib import no_such_name\n", "ImportError: cannot import name 'no_such_name'"),
        (REFUSED, "AnalysisException: [PATH_NOT_FOUND] Path does not exist"),
    ],
)
def test_an_error_of_the_script_ends_the_job(desk: Desk, script: str, cause: str) -> None:
    """One attempt of three: Failed(Permanent), with the exception at the end of the sentence; the result is replayed."""
    desk.job(script, retry=THREE)
    failure = desk.here("run", "job.yaml", "--json").told["result"]["failure"]
    assert (failure["class"], desk.attempts()) == ("Permanent", 1)
    assert failure["message"].startswith(
        "not repeated, because every attempt of this script would fail the same way (correct it"
    )
    assert cause in failure["message"].partition("): ")[2]
    again = desk.here("run", "job.yaml")
    assert (again.code, desk.attempts()) == (ExitCode.FAILED, 1)
    assert again.first.startswith("replayed")


@pytest.mark.parametrize(
    ("script", "spec"),
    effort.sampled(
        [
            (IMPORTS, {"outputs": []}),
            (REFUSED, {"outputs": []}),
            (REFUSED, {"retry": {**THREE, "retryOn": ["PATH_NOT_FOUND"]}}),
            (REFUSED, {"retry": {**THREE, "retryOn": ["TABLE_OR_VIEW_NOT_FOUND", "AnalysisException"]}}),
            (IMPORTS, {"retry": {**THREE, "retryOn": ["ImportError"]}}),
            ("def f(:\n    pass\n", {"retry": {**THREE, "retryOn": ["SyntaxError"]}}),
            ("raise RuntimeError('no')", {}),
            ("unknown_name", {}),
            ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    import no_such_module\n", {}),
            ("def main():\n    import no_such_module\nmain()\n", {}),
            ("import os\nos.environ['no such variable']\n", {}),
        ]
    ),
)
def test_what_may_pass_is_tried_again(desk: Desk, script: str, spec: dict[str, Any]) -> None:
    """A job without outputs, an error that `retryOn` names, any other exception, an undefined name, an exception raised while handling
    another, and an import that some runs do not reach get all attempts."""
    desk.job(script, **{"retry": THREE, **spec})
    failure = desk.here("run", "job.yaml", "--json").told["result"]["failure"]
    assert (failure["class"], desk.attempts()) == ("Exited", 3)


def command_of(failure: dict[str, Any]) -> list[str]:
    """The arguments of the command that the message prints, for the job's file."""
    printed = failure["message"].split("`")[1]
    assert printed == "sparkonce rerun -f FILE"
    return [*printed.replace("FILE", "job.yaml").split()[1:], "--json"]


@pytest.mark.parametrize("script", effort.sampled([REFUSED, IMPORTS]))
def test_a_corrected_script_runs_by_the_printed_command(desk: Desk, script: str) -> None:
    """It is the next generation, with one effect; the same command runs the script again where what it misses appeared outside of it."""
    desk.job(script, retry=THREE)
    failed = desk.here("run", "job.yaml", "--json").told["result"]["failure"]
    again = desk.here(*command_of(failed)).told
    assert (again["generation"], again["result"]["failure"]["class"], desk.attempts()) == (2, "Permanent", 2)
    desk.job(WRITES_FIRST, retry=THREE)
    told = desk.here(*command_of(again["result"]["failure"])).told
    assert (told["generation"], told["phase"], desk.attempts()) == (3, "Succeeded", 3)
    assert [slot.rows for slot in desk.commits()] == [2]


@pytest.mark.parametrize(
    ("script", "name"),
    effort.sampled([(REFUSED, "PATH_NOT_FOUND"), (IMPORTS, "ModuleNotFoundError"), ("def f(:\n", "SyntaxError")]),
)
def test_retry_on_as_the_message_says_it(desk: Desk, script: str, name: str) -> None:
    """The name in the message, added to `spec.retry.retryOn`, makes the printed command run every attempt. Sent again by `run` the job has
    the recorded result, because a policy is no part of what it is."""
    desk.job(script, retry=THREE)
    failure = desk.here("run", "job.yaml", "--json").told["result"]["failure"]
    assert f"(correct it, or add {name} to spec.retry.retryOn, and run it again" in failure["message"]
    desk.job(script, retry={**THREE, "retryOn": [name]})
    assert desk.here("run", "job.yaml").first.startswith("replayed")
    told = desk.here(*command_of(failure)).told
    assert (told["generation"], told["result"]["failure"]["class"], desk.attempts()) == (2, "Exited", 1 + 3)


def test_an_input_that_comes_later_is_waited_for(desk: Desk) -> None:
    """With `retryOn` the second attempt finds what the first one missed: one effect."""
    missing = """
    from pathlib import Path

    path = Path("input")
    if not path.exists():
        path.touch()
        from pyspark.errors import AnalysisException
        raise AnalysisException("[PATH_NOT_FOUND] Path does not exist: input. SQLSTATE: 42K03")
    """
    desk.job(missing + WRITES_FIRST, retry={**THREE, "retryOn": ["PATH_NOT_FOUND"]})
    assert desk.here("run", "job.yaml").code == ExitCode.SUCCEEDED
    assert (desk.attempts(), len(desk.commits())) == (2, 1)


def test_half_of_the_outputs_and_an_error_are_for_a_person(desk: Desk) -> None:
    """Held(Partial) after one attempt; the printed command runs the corrected script as the next generation, which replaces the half."""
    outputs = [OUTPUT, {"name": "totals", "slotLog": {"path": "lake/totals"}}]
    desk.job(WRITES_FIRST + REFUSED, retry=THREE, outputs=outputs)
    held = desk.here("run", "job.yaml", "--json")
    assert (held.code, held.told["phase"], desk.attempts()) == (ExitCode.HELD, "Held", 1)
    note = desk.here("keys", "show", "write/numbers@1", "--json").told["record"]["note"]
    desk.job(WRITES_FIRST + "    current().write(table_of(3), 'totals')\n", retry=THREE, outputs=outputs)
    told = desk.here(*command_of({"message": note})).told
    assert (told["generation"], told["phase"], desk.attempts()) == (2, "Succeeded", 2)
    assert sorted(len(desk.commits(each)) for each in ("numbers", "totals")) == [1, 2]


@pytest.mark.parametrize("error", effort.sampled(["    import no_such_module\n", REFUSED]))
def test_a_driver_that_committed_and_then_claims_an_error_succeeded(desk: Desk, error: str) -> None:
    """An error in the log, or that the driver reports, ends retries and decides nothing else: what is committed is the result."""
    desk.job(WRITES_FIRST + error, retry=THREE)
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
