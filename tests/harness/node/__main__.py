"""`python -m harness.node`: starts a cluster for manual use, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import sys

from harness.binaries import to_stderr
from harness.node.cluster import main
from harness.signals import interruptible

with interruptible(to_stderr), contextlib.suppress(KeyboardInterrupt):
    sys.exit(main(signal.pause))
