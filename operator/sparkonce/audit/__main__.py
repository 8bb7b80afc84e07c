"""Entry point of `python -m sparkonce.audit`; see `sparkonce.audit.entry`."""

from __future__ import annotations

import sys

from sparkonce.audit.entry import leave

if __name__ == "__main__":
    sys.exit(leave(sys.argv[1:]))
