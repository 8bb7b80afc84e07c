"""`python -m sparkonce.audit`: see `sparkonce.audit.job`."""

from __future__ import annotations

import sys

from sparkonce.audit.job import leave

if __name__ == "__main__":
    sys.exit(leave(sys.argv[1:]))
