"""`python -m harness.node`: a cluster to look at, until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys

from harness.node.cluster import main

with contextlib.suppress(KeyboardInterrupt):
    sys.exit(main(signal.pause))
