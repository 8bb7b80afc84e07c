"""Evaluates benchmarks: pairs, their ratio, its spread, and whether a goal is met.

Two programs on a shared machine are compared in pairs that run next to each other, in the order A B B A, so that a slow minute
or a slow drift affects both. The result is the median of the pairs' ratios; a ratio of two medians would compare different
minutes. A goal is *met* only if the whole spread (minimum to maximum, without removing outliers) is within it, *not met* only if
the whole spread is beyond it, and otherwise, or with fewer than nine pairs, the two were *not told apart*.

Averages and significance tests were not taken: one stalled disk decides an average, and a p-value does not measure how large a
difference is. The interval of the median is given beside the spread as additional information; no verdict depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb
from statistics import median
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

LEAST_PAIRS = 9
"""With fewer pairs a spread means little: even with nine, the true median is outside of it once in 256 runs."""
CONFIDENCE = 0.95
"""Minimum probability that the interval contains the true median."""


class Verdict(StrEnum):
    MET = "met"
    NOT_MET = "not met"
    NOT_TOLD_APART = "not told apart"


@dataclass(frozen=True)
class Cost:
    """Cost of one operation, in milliseconds."""

    wall: float
    cpu: float


class WrongEffect(Exception):
    """The measured program did not have the right effect, so its time is meaningless."""


@dataclass(frozen=True)
class Goal:
    at_most: float
    """A ratio if the row has a raw side and `absolute` is not set, otherwise a value in the row's unit."""
    text: str
    absolute: bool = False
    least: bool = False
    """The number is a minimum instead of a maximum."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `ours` and `raw` have one value per pair, in `unit`."""

    what: str
    unit: str
    ours: Sequence[float]
    raw: Sequence[float] = ()
    goal: Goal | None = None

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.ours, self.raw, strict=True)] if self.raw else []

    @property
    def judged(self) -> list[float]:
        """The values that the goal is compared with: the ratios, unless the goal is in the row's own unit."""
        absolute = not self.raw or (self.goal is not None and self.goal.absolute)
        return list(self.ours) if absolute else self.ratios

    @property
    def verdict(self) -> Verdict | None:
        if self.goal is None:
            return None
        sign = -1 if self.goal.least else 1
        return verdict([sign * value for value in self.judged], at_most=sign * self.goal.at_most)

    def dump(self) -> dict[str, Any]:
        """For the JSON file: everything that the table shows, and the values behind it."""
        values = self.judged
        return {
            "what": self.what,
            "unit": self.unit,
            "ours": median(self.ours),
            "raw": median(self.raw) if self.raw else None,
            "ratioMedian": median(self.ratios) if self.raw else None,
            "spreadOf": self.unit if values == list(self.ours) else "ratio",
            "spread": [min(values), max(values)],
            "intervalOfMedian": interval(values),
            "pairs": len(self.ours),
            "goal": None if self.goal is None else self.goal.text,
            "atMost": None if self.goal is None else self.goal.at_most,
            "verdict": self.verdict,
            "samples": {"ours": list(self.ours), "raw": list(self.raw), "ratios": self.ratios},
        }


CPU_LIMIT = Goal(1.05, "<= 1.05x CPU")
"""What a write, a statement or a command of ours may take of the raw one's CPU."""


class Timed(Protocol):
    """What one run took, in seconds."""

    @property
    def wall(self) -> float: ...

    @property
    def cpu(self) -> float: ...


def by_cpu(part: str, runs: Mapping[str, Sequence[Timed]], *, raw: str, goal: Goal | None = CPU_LIMIT) -> list[Row]:
    """Two rows for each variant of a part but the raw one: CPU, then wall time. CPU has the goal: a busy machine disturbs it least."""
    found: list[Row] = []
    for name in (each for each in runs if each != raw):
        what, pairs = f"{part}: {name}", list(zip(runs[name], runs[raw], strict=True))
        ours, theirs = [a.cpu for a, _ in pairs], [b.cpu for _, b in pairs]
        found.append(Row(what=what, unit="CPU s", ours=ours, raw=theirs, goal=goal))
        found.append(Row(what=what, unit="s", ours=[a.wall for a, _ in pairs], raw=[b.wall for _, b in pairs]))
    return found


@dataclass(frozen=True)
class Line:
    """Cost as a line over the number of rows: a fixed part and a part per row, from one run at each of two sizes."""

    fixed: float
    per_row: float

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> Line:
        """The line through two points of (number of rows, cost)."""
        (rows, cost), (more, greater) = small, large
        per_row = (greater - cost) / (more - rows)
        return cls(cost - per_row * rows, per_row)


def verdict(values: Sequence[float], *, at_most: float) -> Verdict:
    if len(values) >= LEAST_PAIRS and max(values) <= at_most:
        return Verdict.MET
    if len(values) >= LEAST_PAIRS and min(values) > at_most:
        return Verdict.NOT_MET
    return Verdict.NOT_TOLD_APART


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Order statistics that enclose the true median with CONFIDENCE for any distribution; None with too few values."""
    count, ordered, found = len(values), sorted(values), None
    for cut in range(count // 2):
        outside = 2 * sum(comb(count, k) for k in range(cut + 1)) / 2**count
        if 1 - outside >= CONFIDENCE:
            found = ordered[cut], ordered[-1 - cut]
    return found


def pair_text(pair: int, pairs: int) -> str:
    """What progress calls a pair."""
    return f"pair {pair} of {pairs}" if pair else "warm-up"


def interleaved(variants: Sequence[str], pairs: int, *, warm_up: bool = True) -> Iterator[tuple[int, str]]:
    """Yields (pair, variant): A B, B A, A B, ...; pair 0 warms up and must not be counted."""
    for pair in range(0 if warm_up else 1, pairs + 1):
        for variant in reversed(variants) if pair % 2 else variants:
            yield pair, variant


def measured(
    variants: Mapping[str, Callable[[], T]],
    pairs: int,
    on_pair: Callable[[int, dict[str, T]], None],
    *,
    warm_up: bool = True,
) -> dict[str, list[T]]:
    """Runs each variant once to warm up, then once per pair; returns the results of the counted pairs, by variant."""
    kept: dict[str, list[T]] = {name: [] for name in variants}
    latest: dict[str, T] = {}
    for pair, name in interleaved(list(variants), pairs, warm_up=warm_up):
        latest[name] = variants[name]()
        if pair > 0:
            kept[name].append(latest[name])
        if len(latest) == len(variants):
            on_pair(pair, latest)
            latest = {}
    return kept
