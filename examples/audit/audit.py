"""Audits the tables named as arguments; without any, all outputs of the ledger that this job itself is recorded in."""

from __future__ import annotations

import sys

from sparkonce.audit.entry import leave

if __name__ == "__main__":
    sys.exit(leave(sys.argv[1:]))
