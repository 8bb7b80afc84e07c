"""Every case of a decision table, without enumerating the product of its fields.

`every(make)` yields case after case. A value is drawn when it is first *read*, by the code under test or by the assertion, and each value
that it could have had there gets a case of its own. A field that is not read cannot have mattered, so a few thousand cases cover all of
the tens of millions of combinations, and no pair of values is left to chance. The loop body must read the same fields in the same order
for the same values (it is run again with other ones), as every pure function does.

A plain itertools.product was rejected: it takes a hundred times longer than a test may, which tempts people to shorten the lists.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Fields = Mapping[str, Sequence[Any]]
"""Field to its possible values; a mapping among them is a value with fields of its own."""


class Case:
    """The choices of one case; `begun` are values that were read before it."""

    def __init__(self, forced: Sequence[int], begun: Mapping[str, Any] | None = None) -> None:
        self._forced = forced
        self.taken: list[tuple[int, int]] = []
        self.read: dict[str, Any] = dict(begun or {})
        """Path of each value that was read, to the value."""
        self.closed = False
        """Further values must be read in a case that begins with the values of this one."""

    def pick(self, path: str, options: Sequence[Any]) -> Any:
        """One of the values; a mapping becomes a value whose fields are drawn in turn."""
        chosen = self.pick_plain(path, options)
        return Drawn(self, path, chosen) if isinstance(chosen, Mapping) else chosen

    def pick_plain(self, path: str, options: Sequence[Any]) -> Any:
        """One of the values, unchanged."""
        if path not in self.read:
            assert not self.closed, (
                f"{path} is read from a case that has been walked: its other values would be left out"
            )
            at = len(self.taken)
            index = self._forced[at] if at < len(self._forced) else 0
            self.taken.append((index, len(options)))
            self.read[path] = options[index]
        return self.read[path]


class Drawn:
    """Stands in for a value whose fields are drawn when they are read."""

    def __init__(self, case: Case, path: str, fields: Fields, over: Mapping[str, Any] | None = None) -> None:
        self._case, self._path, self._fields, self._over = case, path, fields, over or {}

    def __getattr__(self, name: str) -> Any:
        if name in self._over:
            return self._over[name]
        if name not in self._fields:
            raise AttributeError(f"{self._path} has no {name}: give it its possible values")
        return self._case.pick(f"{self._path}.{name}", self._fields[name])

    def but(self, **over: Any) -> Any:
        """The same value with these fields replaced."""
        return type(self)(self._case, self._path, self._fields, {**self._over, **over})

    def filled(self, chance: random.Random) -> dict[str, Any]:
        """All fields as plain values: those that were read keep their values, the others are drawn at random."""
        return {name: self._plain(name, chance) for name in self._fields}

    def _plain(self, name: str, chance: random.Random) -> Any:
        path, options = f"{self._path}.{name}", self._fields[name]
        value = self._case.read[path] if path in self._case.read else chance.choice(options)
        if isinstance(value, Mapping):
            value = Drawn(self._case, path, value)
        return value.filled(chance) if isinstance(value, Drawn) else value


def every(make: Callable[[Case], T], begun: Mapping[str, Any] | None = None) -> Iterator[T]:
    """One case for each combination of the values that are really read in the loop body, beyond those that `begun` has."""
    forced: list[int] = []
    while True:
        case = Case(forced, begun)
        yield make(case)
        taken = case.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        forced = [index for index, _ in taken[:-1]] + [taken[-1][0] + 1]
