"""Audits the tables named as arguments; without arguments, all outputs in the ledger of this job itself."""

from __future__ import annotations

import sys

from sparkonce.audit.entry import leave

if __name__ == "__main__":
    sys.exit(leave(sys.argv[1:]))
