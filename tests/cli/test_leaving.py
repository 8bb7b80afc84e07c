"""How a command's process exits."""

from __future__ import annotations

import sys

import pytest

from harness.patience import completed

HANGS = """
import sys, threading
from sparkonce.__main__ import leave
threading.Thread(target=threading.Event().wait).start()  # Python would join it for ever
print("x" * 100_000)
print("said", file=sys.stderr)
leave(3)
"""


def test_a_thread_that_never_ends_keeps_no_command() -> None:
    """The process exits with the command's code, and everything it printed arrives in the pipes."""
    done = completed([sys.executable, "-c", HANGS], 60)
    assert (done.returncode, len(done.stdout), done.stderr) == (3, 100_001, "said\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_was_closed_changes_no_code(stream: str) -> None:
    """As in a service that was started without the stream, the exit code stays."""
    done = completed(
        [sys.executable, "-c", f"import sys\nsys.{stream}.close()\n{HANGS.replace('print', '(lambda *_, **__: 0)')}"],
        60,
    )
    assert done.returncode == 3
