"""Where `sparkonce` and `python -m sparkonce` begin.

The first thing that happens is that Ctrl-C and SIGTERM end this process without a word: until a command has begun, there is nothing to
stop or to settle, and a traceback out of some import is of no use to anybody. A command that runs a job then takes the signals over
(cli/interrupt.py). Catching KeyboardInterrupt around everything was not taken: it can be raised inside any `finally`.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)  # nothing is half done here: whatever a command writes, it writes in one step of the ledger


def main() -> None:
    """Ends the process with an exit code of `sparkonce.cli.exits.ExitCode`."""
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    from sparkonce.cli.app import main as command_line

    sys.exit(command_line(sys.argv[1:]))


if __name__ == "__main__":
    main()
