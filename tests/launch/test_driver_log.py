"""How the cause of a driver's failure is found in its log. The logs in `driver_logs/` come from real jobs that failed in these ways."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.patience import promised
from sparkonce.launch.driver_log import CAUSE, LINES, LOG_TAIL, READ, LoggedFailure, find

LOGS = Path(__file__).parent / "driver_logs"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((LOGS / "expected.yaml").read_text())

SHUTDOWN = """\
26/11/24 20:53:42 INFO SparkContext: Invoking stop() from shutdown hook
26/11/24 20:53:42 INFO MapOutputTrackerMasterEndpoint: MapOutputTrackerMasterEndpoint stopped!
26/11/24 20:53:42 INFO MemoryStore: MemoryStore cleared
26/11/24 20:53:42 INFO ShutdownHookManager: Deleting directory /tmp/spark-1
"""
IMPORT = """\
Traceback (most recent call last):
  File "/opt/job/job.py", line 1, in <module>
    import helper
  File "/opt/job/helper.py", line 3, in <module>
    from gone import this
ModuleNotFoundError: No module named 'gone'
"""
CAUGHT = """\
Traceback (most recent call last):
  File "/opt/job/job.py", line 7, in <module>
    1 / 0
ZeroDivisionError: division by zero
"""


EXEC = """\
Traceback (most recent call last):
  File "/opt/job/job.py", line 1, in <module>
    exec(text)
  File "<string>", line 1
    f(
     ^
SyntaxError: '(' was never closed
"""


def saying(exception: str) -> str:
    """The log of the failed import, ending in this exception instead."""
    return IMPORT.replace("ModuleNotFoundError: No module named 'gone'", exception)


def test_every_log_is_expected() -> None:
    """Each log has an expectation, and each expectation a log."""
    assert {path.stem for path in LOGS.glob("*.txt")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_found_in_a_real_log(name: str) -> None:
    """In a mixed log the exception's own line and the user's frames are found, and whether the script itself is wrong."""
    expected = EXPECTED[name]
    found = find((LOGS / f"{name}.txt").read_text(), exit_code=expected["exitCode"])
    assert (found.cause, list(found.script_error)) == (expected["cause"], expected["scriptError"])
    assert found.excerpt == expected["excerpt"]
    assert "INFO SparkContext: " not in found.excerpt


@pytest.mark.parametrize("name", EXPECTED)
def test_line_ends_and_streams_make_no_difference(name: str) -> None:
    """Windows line endings, and a second stream for Spark's messages, change nothing."""
    expected, text = EXPECTED[name], (LOGS / f"{name}.txt").read_text()
    assert find(text.replace("\n", "\r\n"), exit_code=1).cause == expected["cause"]
    assert find("", text, exit_code=1).cause == expected["cause"]


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (CAUGHT + SHUTDOWN, "ZeroDivisionError: division by zero"),
        (CAUGHT + SHUTDOWN + "job: no rows\n", ""),  # the exception was caught: the job printed something later
        (CAUGHT + 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nE: last\n', "E: last"),
        (CAUGHT + "Exception ignored in: <function f>\n" + IMPORT, "ZeroDivisionError: division by zero"),
        ("Exception in thread Thread-1 (f):\n" + IMPORT, ""),
        (
            CAUGHT + 'Exception in thread "main" org.apache.spark.SparkUserAppException: User application exited with 1\n\tat a.B(C)\n',
            "ZeroDivisionError: division by zero",
        ),
        (
            "26/11/24 20:53:42 ERROR Job: it failed\njava.io.IOException: no disk\n\tat com.example.Job.main(Job.java:1)\n" + SHUTDOWN,
            "java.io.IOException: no disk",
        ),
        (CAUGHT.replace("  File", SHUTDOWN + "  File"), "ZeroDivisionError: division by zero"),  # with other output
        ('Traceback (most recent call last):\n  File "a.py", line 1, in f\n', ""),
    ],
)  # fmt: skip
def test_which_exception_ended_the_driver(log: str, cause: str) -> None:
    """The last exception, if nothing was printed after it, but not that of a thread, of a destructor, or of Spark around an exit code."""
    assert find(log, exit_code=1).cause == cause


def test_the_streams_of_a_driver() -> None:
    """An exception in either stream counts; without one, the job's own output is preferred to Spark's messages."""
    java = 'Exception in thread "main" java.lang.IllegalStateException: no\n\tat com.example.Job.main(Job.java:1)\n'
    assert find("rows: 3\n", java).cause == "java.lang.IllegalStateException: no"
    logged = "26/11/24 20:53:42 ERROR Executor: Exception in task\njava.lang.Error: in a task\n\tat a.B.c(D.java:1)\n"
    assert find("job: no rows\n", logged) == LoggedFailure(excerpt="job: no rows")
    assert find("", logged).cause == "java.lang.Error: in a task"
    assert find("", "") == find() == LoggedFailure()


def test_only_shutdown_is_better_than_nothing() -> None:
    """A log with nothing but Spark's shutdown messages is shown as it is; otherwise they are left out."""
    assert find(SHUTDOWN).excerpt == SHUTDOWN.strip()
    assert find("the input is not there\n" + SHUTDOWN).excerpt == "the input is not there"


def test_a_cut_keeps_the_exception_and_the_users_frames() -> None:
    """Of a deep traceback the frames next to the exception are kept, and no line of an installed package."""
    user = "".join(f'  File "/opt/job/job.py", line {n}, in step{n}\n    step{n + 1}()\n' for n in range(40))
    library = '  File "/usr/lib/python3/dist-packages/pyspark/sql.py", line 9, in save\n    self._save()\n' * 20
    log = f"Traceback (most recent call last):\n{user}{library}example.Broken: no disk\nsecond line\n{SHUTDOWN}"
    found = find(log, exit_code=1)
    assert found.cause == "example.Broken: no disk"
    assert "step39\n    step40()" in found.excerpt and "in step0\n" not in found.excerpt
    assert "example.Broken: no disk" in found.excerpt and "dist-packages" not in found.excerpt
    assert 900 < len(found.excerpt.encode()) <= LOG_TAIL


def test_an_error_of_the_script() -> None:
    """A failed import in a module's own code ends the script wherever it runs, so another attempt would fail, too."""
    assert find(IMPORT + SHUTDOWN, exit_code=1).script_error == ("ModuleNotFoundError", "ImportError")
    assert find(saying("ImportError: cannot import name 'this' from 'gone' (x)"), exit_code=1).script_error == (
        "ImportError",
    )


PYTHON = "pyspark.errors.exceptions.captured."
JAVA = "org.apache.spark.sql."
NO_INPUT = "org.apache.hadoop.mapred.InvalidInputException: Input path does not exist: s3a://lake/may"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
NOT_FOUND = "[PATH_NOT_FOUND] Path does not exist: s3a://lake/may. SQLSTATE: 42K03"


def refused(said: str) -> str:
    """The log of a Python driver that ended by this exception of Spark, raised in a function."""
    return CAUGHT.replace("in <module>", "in load").replace("ZeroDivisionError: division by zero", said) + SHUTDOWN


def bridged(*causes: str) -> str:
    """Py4J's exception around that of an RDD without its input."""
    lines = ["py4j.protocol.Py4JJavaError: An error occurred while calling o1.count.", f": {NO_INPUT}", *causes]
    return "\n\tat a.B.c(D.java:1)\n".join(["\n".join(lines[:2]), *lines[2:]]) + "\n\t... 9 more"


def refused_java(said: str, *more: str) -> str:
    """The same of a driver in Java or Scala."""
    frame = "\tat org.example.Main.main(Main.java:9)\n"
    return f'Exception in thread "main" {said}\n{frame}' + "".join(f"{each}\n{frame}" for each in more) + SHUTDOWN


@pytest.mark.parametrize(
    ("log", "names"),
    [
        (refused(f"{PYTHON}AnalysisException: {NOT_FOUND}"), ("PATH_NOT_FOUND", "AnalysisException")),
        (refused(f"pyspark.errors.exceptions.connect.AnalysisException: {NOT_FOUND}"), ("PATH_NOT_FOUND", "AnalysisException")),
        (
            refused(
                f"{PYTHON}AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view `x` cannot be found.\n"
                "To tolerate the error use DROP VIEW IF EXISTS. SQLSTATE: 42P01; line 1 pos 14;\n'Project [*]\n+- 'UnresolvedRelation [x]"
            ),
            ("TABLE_OR_VIEW_NOT_FOUND", "AnalysisException"),
        ),
        (
            refused(f"{PYTHON}ParseException: \n[PARSE_SYNTAX_ERROR] Syntax error. SQLSTATE: 42601 (line 1, pos 9)\n\n== SQL =="),
            ("PARSE_SYNTAX_ERROR", "ParseException", "AnalysisException"),
        ),
        (
            refused_java(f"{JAVA}AnalysisException: {NOT_FOUND}", "\tSuppressed: org.apache.spark.util.Original: Full stacktrace"),
            ("PATH_NOT_FOUND", "AnalysisException"),
        ),
        (
            refused_java(f"{JAVA}catalyst.ExtendedAnalysisException: [UNRESOLVED_COLUMN.WITHOUT_SUGGESTION] No `x`. SQLSTATE: 42703;"),
            ("UNRESOLVED_COLUMN.WITHOUT_SUGGESTION", "UNRESOLVED_COLUMN", "AnalysisException"),
        ),
        (
            refused_java(f"{JAVA}catalyst.analysis.NoSuchTableException: [TABLE_OR_VIEW_NOT_FOUND] No x. SQLSTATE: 42P01"),
            ("TABLE_OR_VIEW_NOT_FOUND", "AnalysisException"),
        ),
        (refused(bridged()), ("PATH_NOT_FOUND",)),
        (refused(bridged("Caused by: java.io.IOException: Input path does not exist: x")), ("PATH_NOT_FOUND",)),
        (refused(bridged().replace("path does not exist: s3a://lake/may", "Pattern s3a://*/a matches 0 files")), ("PATH_NOT_FOUND",)),
        (refused_java(NO_INPUT, "Caused by: java.io.IOException: Input path does not exist: x"), ("PATH_NOT_FOUND",)),
        (
            refused_java(f"{JAVA}catalyst.parser.ParseException:", "[PARSE_SYNTAX_ERROR] Syntax error. SQLSTATE: 42601 (line 1, pos 9)"),
            (),  # not as Spark prints it: frames are between the exception and its message
        ),
        (
            refused_java(f"{JAVA}catalyst.parser.ParseException: \n[PARSE_SYNTAX_ERROR] Syntax error. SQLSTATE: 42601 (line 1, pos 9)"),
            ("PARSE_SYNTAX_ERROR", "ParseException", "AnalysisException"),
        ),
    ],
)  # fmt: skip
def test_a_query_that_spark_refuses(log: str, names: tuple[str, ...]) -> None:
    """What Spark cannot analyse or parse is an error of the script wherever it is raised, under the name of its class and its condition."""
    assert find(log, exit_code=1).script_error == names


@pytest.mark.parametrize(
    ("log", "code"),
    [
        (IMPORT, 137),
        (IMPORT, None),
        (IMPORT + "and a second line\n", 1),
        (IMPORT + SHUTDOWN + "tried again\n", 1),
        (CAUGHT + "\nDuring handling of the above exception, another exception occurred:\n\n" + IMPORT, 1),
        (CAUGHT.replace("1 / 0", "x") + SHUTDOWN + "During handling of the above exception, another exception occurred:\n\n" + IMPORT, 1),
        (IMPORT.replace("line 3, in <module>", "line 3, in load"), 1),
        (IMPORT.replace("line 1, in <module>", "line 1, in main"), 1),
        (IMPORT.replace("    from gone import this\n", "    importlib.import_module(name)\n"), 1),
        (IMPORT.replace("    from gone import this\n", ""), 1),
        (saying("ImportError: cannot allocate memory in static TLS block"), 1),
        (saying("NameError: name 'gone' is not defined"), 1),
        (saying("SyntaxError: invalid syntax"), 1),
        (EXEC, 1),
        ('  File "<string>", line 1\n    f(\n     ^\nSyntaxError: x\n', 1),
        ("python3: can't open file '/opt/job.py': [Errno 2] No such file or directory\n", 1),
        ("python3: can't open file '/opt/job.py': [Errno 13] Permission denied\n", 2),
        ("Error: Failed to load class org.example.Gone.\n", 1),
        (refused(f"{PYTHON}AnalysisException: {NOT_FOUND}"), 143),
        (refused(f"{PYTHON}AnalysisException: {NOT_FOUND}") + "no input yet\n", 1),
        (refused(f"{PYTHON}AnalysisException: Path does not exist: s3a://lake/may"), 1),
        (refused(f"{PYTHON}AnalysisException: {NOT_FOUND[:-6]}"), 1),
        (refused(f"{PYTHON}AnalysisException: [_LEGACY_ERROR_TEMP_3065] HiveException: no metastore SQLSTATE: 42K03"), 1),
        (refused(f"{PYTHON}AnalysisException: [FAILED_JDBC.LOAD_TABLE] Failed: no table, SQLSTATE: 42P01 SQLSTATE: HV000"), 1),
        (refused(f"{PYTHON}AnalysisException: [INTERNAL_ERROR] A fault of Spark. SQLSTATE: XX000"), 1),
        (refused(f"{PYTHON}AnalysisException: {NOT_FOUND}\n\nJVM stacktrace:\na.B: c\n\tat a.B.c(D.java:1)\nCaused by: a.C: no answer"), 1),
        (refused(f"{PYTHON}NumberFormatException: [CAST_INVALID_INPUT] No number. SQLSTATE: 42000"), 1),
        (refused(f"example.AnalysisException: {NOT_FOUND}"), 1),
        (refused(f"ValueError: {PYTHON}AnalysisException: {NOT_FOUND}"), 1),
        (CAUGHT + DURING + refused(f"{PYTHON}AnalysisException: {NOT_FOUND}"), 1),
        (refused_java(f"{JAVA}AnalysisException: {NOT_FOUND}", "Caused by: java.net.ConnectException: Connection refused"), 1),
        (refused(bridged("Caused by: java.net.ConnectException: Connection refused")), 1),
        (refused(bridged("Caused by: java.io.IOException: Input path does not exist: x", "Caused by: a.B: c")), 1),
        (refused(bridged().replace("InvalidInputException", "FileAlreadyExistsException")), 1),
        (refused_java(f"{JAVA}streaming.StreamingQueryException: {NOT_FOUND}"), 1),
        ("26/11/24 20:53:42 ERROR Job: it failed\n" + refused_java(f"{JAVA}AnalysisException: {NOT_FOUND}").partition('"main" ')[2], 1),
    ],
)  # fmt: skip
def test_what_another_attempt_may_not_meet_again(log: str, code: int | None) -> None:
    """Not errors of the script: another exit code, a chain whose first exception may not recur, code that another run may not reach, text
    that was passed to the program, a fault of the machine, an exception that the job survived, and a refusal of Spark that has another
    cause, no SQLSTATE, or one that does not mean a wrong statement."""
    assert not find(log, exit_code=code).script_error


FRAGMENTS = [
    "Traceback (most recent call last):\n",
    '  File "/a/job.py", line 1, in <module>\n',
    "    import x\n",
    "ValueError: b\n",
    "Caused by: a.B: c\n",
    "\tat org.apache.spark.X(Y)\n",
    "\tat com.example.X(Y)\n",
    "java.lang.Error: x\n",
    ": java.lang.Error: y\n",
    'Exception in thread "main" a.B: c\n',
    "During handling of the above exception, another exception occurred:\n",
    "\n",
    "x" * 3000,
    "\u20ac" * 700,
    "26/11/24 20:53:42 INFO SparkContext: s\n",
    "26/11/24 20:53:42 ERROR X: s\n",
    '  File "a", line 1\n',
    "SyntaxError: s\n",
    "plain\n",
    "\x1b[2J\x00\ud800\n",
    "py4j.protocol.Py4JJavaError: An error\n",
    "Please see the stack trace below.\n",
    "Exception ignored in: f\n",
    "Driver stacktrace:\n",
    "E:\n",
    "pyspark.errors.exceptions.captured.AnalysisException: [PATH_NOT_FOUND] x. SQLSTATE: 42K03\n",
    'Exception in thread "main" org.apache.spark.sql.AnalysisException: [A] b. SQLSTATE: 42K03\n',
]
logs = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=20), max_size=40).map("".join)


@given(logs, st.none() | st.integers(0, 255))
def test_any_log_is_bounded(log: str, code: int | None) -> None:
    """No text raises. Excerpt and cause fit their limits in UTF-8, the cause is one line, and its line is in the excerpt."""
    found = find(log, exit_code=code)
    assert len(found.excerpt.encode()) <= LOG_TAIL
    assert len(found.cause.encode()) <= CAUSE
    assert "\n" not in found.cause
    assert found.excerpt or not found.cause
    assert bool(found.excerpt) == bool(log.strip()) or "\n" not in found.excerpt
    assert not found.script_error or (found.cause and code in (1, 2, 101))


@pytest.mark.parametrize(
    "fragment", [*FRAGMENTS, "python" * 400, "a.b." * 500, "/py4j" * 400, " " * 3000 + "x", "a.B: c\n\tat x\n"]
)
def test_a_long_log_takes_a_moment(fragment: str) -> None:
    """Any megabyte is searched in linear time: a tenth of a CPU second, where a quadratic search takes minutes."""
    log = fragment * (READ // len(fragment) + 1) + CAUGHT
    began = time.process_time()
    find(log, exit_code=1)
    assert time.process_time() - began < promised(1)


def test_what_is_before_the_last_megabyte_is_not_read() -> None:
    """Nor is anything before the last 20,000 lines of it."""
    assert find(CAUGHT + "\n" * LINES).cause == ""
    assert find(CAUGHT + "\n" * (LINES - 10)).cause == "ZeroDivisionError: division by zero"
    assert find(CAUGHT + "x" * READ).cause == ""
    assert find("x" * READ + "\n" + CAUGHT).cause == "ZeroDivisionError: division by zero"
