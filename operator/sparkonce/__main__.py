"""Entry points: `sparkonce`, `python -m sparkonce` and `kubectl-sparkonce`.

`main` first makes SIGINT and SIGTERM end the process silently: until a command has begun there is nothing to stop or to settle, and a
traceback from an import helps no user. A command that runs a job replaces the handlers (cli/session.py). Catching KeyboardInterrupt
around everything was rejected: it can be raised inside any `finally`.

The process ends by `os._exit` once a command has closed its ledger and its output is flushed. Python's own way out joins threads and lets
gRPC shut down beside threads that the interpreter has already stopped, and a command that was done was seen to hang there for good.

The command line is an extra, because job images need only the core. Without it each program prints one sentence with the command that
installs what it needs. So this module imports nothing beyond the standard library until then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from types import FrameType
from typing import Literal, NoReturn


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)  # safe at any point: every write of a command is one atomic verb of the store


def main() -> None:
    """Runs the command line and exits with a code of `sparkonce.cli.exits.ExitCode`."""
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    try:
        from sparkonce.cli.app import main as command_line
    except ModuleNotFoundError as missing:
        _refuse(missing, extra="cli")
    leave(command_line(sys.argv[1:]))


def leave(code: int) -> NoReturn:
    """Ends the process now, with everything that was printed; threads that still run end with it."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # The reader has gone, or there never was a stream.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def kubectl() -> None:
    """As `main`, for the kubectl plugin."""
    try:
        from sparkonce.cli.kubectl.app import main as command_line
    except ModuleNotFoundError as missing:
        _refuse(missing, extra="operator")
    command_line()


def _refuse(missing: ModuleNotFoundError, *, extra: Literal["cli", "operator"]) -> NoReturn:
    """Exits with the code of invalid input. Raises: ModuleNotFoundError when the missing module is one of ours."""
    from sparkonce.cli.exits import ExitCode

    if missing.name is None or missing.name.partition(".")[0] == "sparkonce":
        raise missing
    sys.stderr.write(
        f"sparkonce: the package {missing.name} is not installed; run `pip install 'sparkonce[{extra}]'`\n"
    )
    sys.exit(ExitCode.INVALID)


if __name__ == "__main__":
    main()
