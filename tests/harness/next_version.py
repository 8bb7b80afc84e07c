"""The operator of a future version, as far as its records show it: run this file instead of `python -m sparkonce`.

It writes schema + 1 with a field that this version does not know, and requires readers of at least version MIN_READER (1: any).
Everything else is as in this version.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkonce.store.rules import KeyState

MIN_READER = "SPARKONCE_TEST_MIN_READER"
FIELD, VALUE = "lineage", {"of": "a version to come", "since": 2}
PROGRAM = (__file__,)
"""Python's arguments to run it."""


def main() -> int:
    from sparkonce.cli import app
    from sparkonce.controller import controller
    from sparkonce.model import record as records
    from sparkonce.store import rules

    needed = int(os.environ.get(MIN_READER, "1"))
    records.READER = needed
    controller.SCHEMA = records.SCHEMA + 1  # type: ignore[attr-defined]  # announced
    written = rules._written

    def newer(seen: KeyState, record: records.Record) -> records.Record:
        change = {"schema_": records.SCHEMA + 1, "min_reader": needed, FIELD: VALUE}
        return written(seen, record).model_copy(update=change)

    rules._written = newer
    return app.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
