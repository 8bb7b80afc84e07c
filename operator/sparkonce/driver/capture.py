"""Runs a script as `python SCRIPT ARGS...` would, and captures what it writes: `python -m sparkonce.driver.capture SCRIPT ARGS...`.

A launcher starts this program in the script's place where an output has `capture: true`. On this machine it is spark-submit's main file; in
an image it is the driver's Python (`sparkonce-driver`, `spark.pyspark.driver.python`), because there only the search path is known.

The script must not notice. It is `__main__`, with its own arguments, search path, exit code and traceback, into which no frame of ours
gets: the log of a failed driver is judged by its frames. `runpy.run_path` was not taken: it takes the module down when the script has
ended, while its threads may go on.

The blocks end when the script has ended by itself: at its last line, or by `sys.exit()` without a code or with 0. An exception, or another
code, leaves them open for the next attempt, and so does `os._exit`, which runs nothing of ours.

Only what needs no package of ours is imported at the top: as a main file this file's own folder would be searched first.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sparkonce.driver.script.writes import ScriptWrites


def main() -> NoReturn:
    """The program `sparkonce-driver SCRIPT ARGS...`: goes on in the interpreter that the job would have without it."""
    import shutil

    from sparkonce.model.record import CAPTURING, PYTHON_ENVIRONMENT

    choices = (os.environ.get(each) for each in (PYTHON_ENVIRONMENT, "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"))
    named = [each for each in choices if each and os.path.basename(each) != CAPTURING]  # noqa: PTH119 - see the module
    found = shutil.which(named[0]) if named else None
    if found is not None and found != sys.executable:
        os.execv(found, [found, "-m", "sparkonce.driver.capture", *sys.argv[1:]])  # noqa: S606 - the job's own interpreter
    start(sys.argv[1:])


def start(arguments: list[str]) -> NoReturn:
    """Runs the script that the first argument names, and exits."""
    if not sys.flags.safe_path:
        del sys.path[0]  # this file's folder, or that of the program
    if not arguments:
        sys.exit("usage: python -m sparkonce.driver.capture SCRIPT [ARGUMENTS]")
    capture = _capture()
    capture.watch()
    sys.exit(_run(arguments, capture))


def _capture() -> ScriptWrites:
    from sparkonce.driver.current import current
    from sparkonce.driver.script.writes import ScriptWrites
    from sparkonce.model.spec import IdempotentJob, Undeclared

    job = current()
    spec = IdempotentJob.of(job.assignment.spec.job)
    warn = spec.spec.capture is not None and spec.spec.capture.undeclared is Undeclared.WARN
    return ScriptWrites(job, spec.resolved_outputs, warn=warn, base=os.getcwd())  # noqa: PTH109 - see the module


def _run(arguments: list[str], capture: ScriptWrites) -> int | str | None:
    """The script's exit code, once its blocks have ended if they may."""
    code = _compiled(arguments[0])
    sys.argv = list(arguments)
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))  # noqa: PTH120 - as the interpreter does
    module = ModuleType("__main__")
    module.__dict__.update(__file__=arguments[0], __builtins__=__builtins__, __spec__=None, __loader__=None)
    sys.modules["__main__"] = module
    try:
        exec(code, module.__dict__)  # noqa: S102 - the job's own script
    except SystemExit as ended:
        if ended.code not in (None, 0):
            return ended.code
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as the interpreter
        return _uncaught(error, below=__file__)
    try:
        capture.end()
    except Exception as error:  # noqa: BLE001 - printed as one of the script's
        return _uncaught(error, below="")
    return 0


def _compiled(script: str) -> CodeType:
    """The script's code. Exits as the interpreter does where there is no such file, or it does not compile."""
    try:
        with open(script, "rb") as file:  # noqa: PTH123 - see the module
            text = file.read()
    except OSError as problem:
        sys.stderr.write(
            f"{sys.executable}: can't open file {script!r}: [Errno {problem.errno}] {os.strerror(problem.errno or 0)}\n"
        )
        sys.exit(2)
    try:
        return compile(text, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        sys.exit(_uncaught(error, below=__file__))


def _uncaught(error: BaseException, *, below: str) -> int:
    """Prints an exception that ends the program, as the interpreter would, without the frames of the file `below` at its beginning."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == below:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    return 1


if __name__ == "__main__":
    start(sys.argv[1:])
