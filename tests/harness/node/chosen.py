"""Which of the tests on a real cluster run where.

Each of them starts JVMs for a minute of both cores, so CI runs a few of each kind; everywhere else, and with
`SPARKONCE_CLUSTER_TESTS=all`, all of them run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def chosen(everything: Iterable[T], *, in_ci: Sequence[T]) -> list[T]:
    wanted = list(everything)
    assert set(in_ci) <= set(wanted), f"{set(in_ci) - set(wanted)} is not among them"
    alone = os.environ.get("CI") == "true" and os.environ.get("SPARKONCE_CLUSTER_TESTS") != "all"
    return list(in_ci) if alone else wanted
