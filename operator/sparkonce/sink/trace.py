"""Follows rows whose files readers do not see any more through a table's history: to the files that hold them now, or to the commits that
changed them. Pure.

The history is taken from the newest commit back, so what became of the files that a commit wrote is known before that commit. A commit that
only moves rows (a compaction) passes on what became of the files that it wrote; any other one that removes a file, or marks rows in it as
deleted, changed its rows. Asking only how a file itself was removed was wrong: OPTIMIZE followed by DELETE loses rows although OPTIMIZE
removed their file.

Rows cannot be told apart once they are compacted: a commit that changes one of the files that a compaction wrote in the rows' partition
counts as a change of them (`Change.shared`). A history that ends too early proves nothing: what it does not show is unknown, never gone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from sparkonce.model.spec import order_of
from sparkonce.sink.protocol import CHANGES_NAMED, OPERATION, Change, Evidence, Probed, SeriesPlace

LOOK_BACK = 200
"""Commits of a table read at most for one probe, each one request to the store, or a few (Iceberg): it is on the path of every replay."""

AUDIT_BACK = 10_000
"""The same for an audit, which reads most of a table anyway."""

RESTORE = "RESTORE"
"""Delta's name of the operation that puts a table back to an earlier version."""

Group = Hashable
"""The partition of a file. None: unknown."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one commit did to files, by path."""

    change: Change
    removed: Collection[str] = ()
    """Files whose rows are removed or rewritten."""
    moved: Mapping[str, Group] = field(default_factory=dict)
    """Removed files whose rows are, all of them, in files that this commit adds."""
    added: Mapping[str, Group] = field(default_factory=dict)
    """Needed only where files are moved."""
    marks: Collection[str] = ()
    """Files in which this commit marks rows as deleted, which stay."""
    marked: Collection[str] = ()
    """Those of `moved`, and of `removed` where every commit is asked for, of which an earlier commit had marked rows as deleted."""
    rewritten: Mapping[str, Group] = field(default_factory=dict)
    """Those of `removed` of which some rows may be in files that this commit adds (a DELETE copies the others)."""


@dataclass(frozen=True)
class RowFate:
    """What became of the rows of some files."""

    changes: frozenset[Change] = frozenset()
    known: bool = True
    """Whether the history showed all of it."""

    def __or__(self, other: RowFate) -> RowFate:
        return RowFate(self.changes | other.changes, self.known and other.known)


_UNTOUCHED, _UNKNOWN = RowFate(), RowFate(known=False)


class RowTrace:
    """lost: files to follow. live: files of which readers see every row. every: name all commits that changed rows, also those that changed
    what an earlier one had left of a file. One is enough to know that rows were changed; an acknowledgement must know all."""

    def __init__(self, lost: Iterable[str], live: Collection[str], *, every: bool = False) -> None:
        self._live, self._left, self._every = live, set(lost), every
        self._fates: dict[str, RowFate] = {}
        self._marked: set[str] = set()
        self._order: dict[str, int] = {}

    @property
    def done(self) -> bool:
        """Whether older commits cannot change any answer."""
        return not self._left and not self._marked

    def step(self, step: Step) -> None:
        """Takes the next older commit."""
        self._order.setdefault(step.change.commit, len(self._order))
        own = RowFate(frozenset({step.change}))
        for path in step.marks:
            if path in self._marked:
                self._marked.discard(path)
                self._fates[path] |= own
            elif self._every and path in self._fates:
                self._fates[path] |= own
            self._end(path, own)
        by_group: dict[Group, list[str]] = {}
        for path, group in step.added.items() if step.moved or step.rewritten else ():
            by_group.setdefault(group, []).append(path)
        passed_on: dict[Group, RowFate] = {}

        def passed(group: Group) -> RowFate:
            beside = by_group.get(group, ()) if group is not None else ()
            at = group if beside else None
            if at not in passed_on:
                passed_on[at] = self._passed_on(step, beside)
            return passed_on[at]

        for path in step.removed:
            if self._every and path in step.rewritten and path not in self._fates:
                self._end(path, own | passed(step.rewritten[path]))
            self._end(path, own)
            if self._every and path in step.marked and path not in self._live:
                self._marked.add(path)
        for path, group in step.moved.items():
            if path in self._fates or path in self._live:
                continue  # a later commit restored it
            self._end(path, passed(group))
            if path in step.marked:
                self._marked.add(path)

    def fate(self, paths: Iterable[str]) -> RowFate:
        return reduce(RowFate.__or__, (self._of(path) for path in paths), _UNTOUCHED)

    def unexplained(self, paths: Iterable[str]) -> list[str]:
        """Those of the files that no known commit changed."""
        return [path for path in paths if not self._of(path).changes]

    def probed(
        self,
        paths: Collection[str],
        *,
        place: SeriesPlace | None = None,
        whole: bool = False,
        most: int | None = CHANGES_NAMED,
    ) -> Probed | None:
        """The verdict on a commit with these files that readers do not see; None: all their rows are in other files.

        place: of the commit in its series.
        whole: whether readers see no file of it that has rows.
        most: changes in the answer; None: all."""
        fate = self.fate(paths)
        if not fate.changes:
            said = f"the history of the table does not show any more what became of {len(paths)} of its file(s)"
            return None if fate.known else Probed(verdict=Evidence.NOT_CHECKED, why=said)
        newest = sorted(fate.changes, key=lambda each: (self._order[each.commit], each.shared))
        gone = whole and fate.known and all(self._of(path).changes for path in paths)
        if gone and place is not None and all(_succeeds(each, place) for each in newest):
            said = f"its rows were replaced by {_named([str(each) for each in newest])}"
            return Probed(verdict=Evidence.SUPERSEDED, why=said, changes=tuple(newest[:most]))
        return Probed(verdict=Evidence.CHANGED, why=_told(newest), changes=tuple(newest[:most]))

    def _end(self, path: str, fate: RowFate) -> None:
        self._fates.setdefault(path, fate)
        self._left.discard(path)

    def _of(self, path: str) -> RowFate:
        if path in self._live:
            return _UNTOUCHED
        fate = self._fates.get(path, _UNKNOWN)
        return fate | _UNKNOWN if path in self._marked else fate

    def _passed_on(self, step: Step, beside: Collection[str]) -> RowFate:
        """What became of the files that a compaction wrote in a partition (`beside`). Where it wrote none there, of all that it wrote: it
        may have changed the partitioning. Where it wrote none at all, the rows are nowhere."""
        if not step.added:
            return RowFate(frozenset({step.change}))
        fate = self.fate(beside or step.added)
        return RowFate(frozenset(replace(each, shared=True) for each in fate.changes), fate.known)


def _succeeds(change: Change, place: SeriesPlace) -> bool:
    """Whether a commit replaced rows of this place as its series wants it: at the same position or a later one, and all rows of a file.
    Where those had been compacted with others this is known only of a commit that replaced the whole table."""
    if not change.key or change.series != place.series or order_of(change.position) < place.order:
        return False
    return change.overwrites or not change.shared


def _told(changes: Collection[Change]) -> str:
    own, shared = ([str(each) for each in changes if each.shared is either] for either in (False, True))
    told = []
    if own:
        told.append(f"rows of it were removed or rewritten by {_named(own)}")
    if shared:
        told.append(
            f"rows of it were compacted into files with others, some of which were removed or rewritten by {_named(shared)}"
        )
    return "; ".join(told)


def _named(commits: list[str]) -> str:
    more = f" and {len(commits) - CHANGES_NAMED} more" if len(commits) > CHANGES_NAMED else ""
    return ", ".join(commits[:CHANGES_NAMED]) + more


def operation_name(text: object) -> str:
    """An operation as another writer named it, on one line and cut."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text or ""))[:OPERATION].strip()
