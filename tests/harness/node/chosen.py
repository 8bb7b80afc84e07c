"""Selects the tests on a real cluster that a run includes.

Each of them starts JVMs that use both cores for a minute, so CI runs a few of each kind; all of them run elsewhere, and with
`SPARKONCE_CLUSTER_TESTS=all`.
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
