"""What becomes of files through a table's history, from the newest commit back."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from sparkonce.sink.protocol import CHANGES_NAMED, Change, Evidence, SeriesPlace
from sparkonce.sink.trace import RowTrace, Step, operation_name


def change(number: int, operation: str = "DELETE", key: str = "") -> Change:
    return Change(commit=f"version {number}", operation=operation, key=key)


def traced(lost: set[str], live: set[str], history: Sequence[Step]) -> RowTrace:
    """history: oldest first, as it happened."""
    trace = RowTrace(lost, live)
    for step in reversed(history):
        trace.step(step)
    return trace


PLACE = SeriesPlace(series="daily", position="5")


def by_key(number: int, position: str, *, series: str = "daily", overwrites: bool = False) -> Change:
    """A commit of sparkonce by a key of a series."""
    key = f"key{number}-orders-g1"
    return Change(commit=f"version {number}", key=key, series=series, position=position, overwrites=overwrites)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (by_key(2, "6"), Evidence.SUPERSEDED),
        (by_key(2, "5"), Evidence.SUPERSEDED),
        (by_key(2, "4"), Evidence.CHANGED),
        (by_key(2, "6", series="hourly"), Evidence.CHANGED),
        (change(2, key="key2-orders-g1"), Evidence.CHANGED),
        (change(2), Evidence.CHANGED),
    ],
    ids=["a later position", "the same one", "an earlier one", "another series", "no series", "another writer"],
)
def test_rows_that_their_series_replaced_are_superseded(by: Change, expected: Evidence) -> None:
    """Only by keys of the same series at the same position or later ones, which are named with it."""
    trace = traced({"a"}, {"b"}, [Step(change=by, removed=["a"])])
    found = trace.probed({"a"}, place=PLACE, whole=True)
    assert found is not None and found.verdict is expected
    assert found.changes == (by,) and (str(by) in found.why)
    no_place = trace.probed({"a"}, whole=True)
    assert no_place is not None and no_place.verdict is Evidence.CHANGED


def test_rows_that_are_not_all_replaced_by_their_series_are_changed() -> None:
    """A part of them is left, or moved to where readers see it, or was removed by others, or nobody knows what became of it."""
    replaced = Step(change=by_key(2, "6"), removed=["a"])
    moved = Step(change=change(1, "OPTIMIZE"), moved={"b": 0}, added={"c": 0})
    removed = Step(change=change(3), removed=["b"])
    for whole, lost, history in (
        (False, {"a"}, [replaced]),
        (True, {"a", "b"}, [moved, replaced]),
        (True, {"a", "b"}, [replaced, removed]),
        (True, {"a", "b"}, [replaced]),
    ):
        found = traced(lost, {"c"}, history).probed(lost, place=PLACE, whole=whole)
        assert found is not None and found.verdict is Evidence.CHANGED, (whole, lost)


@pytest.mark.parametrize("overwrites", [False, True])
def test_compacted_rows_are_superseded_by_an_overwrite_only(overwrites: bool) -> None:
    """A commit that replaced one of the files that a compaction wrote may have meant other rows; one that replaced the table meant all."""
    history = [
        Step(change=change(1, "OPTIMIZE"), moved={"a": 0, "x": 0}, added={"c": 0}),
        Step(change=by_key(2, "6", overwrites=overwrites), removed=["c"]),
    ]
    found = traced({"a"}, set(), history).probed({"a"}, place=PLACE, whole=True)
    assert found is not None and found.verdict is (Evidence.SUPERSEDED if overwrites else Evidence.CHANGED)


def test_rows_that_were_only_moved_are_there() -> None:
    """One compaction after the other moved the file's rows into one that readers see."""
    history = [
        Step(change=change(1, "OPTIMIZE"), moved={"a": 0, "b": 0}, added={"c": 0}),
        Step(change=change(2, "OPTIMIZE"), moved={"c": 0}, added={"d": 0}),
    ]
    trace = traced({"a", "b"}, {"d"}, history)
    assert trace.done
    assert trace.probed({"a", "b"}) is None


@pytest.mark.parametrize("compactions", [1, 2])
def test_a_change_after_compactions_is_followed_to(compactions: int) -> None:
    """The rows' last file was removed by a DELETE: that commit is named, and that it may have meant other rows."""
    moved = [
        Step(change=change(number, "OPTIMIZE"), moved={f"f{number}": 0}, added={f"f{number + 1}": 0})
        for number in range(1, compactions + 1)
    ]
    trace = traced({"f1"}, {"rest"}, [*moved, Step(change=change(9), removed=[f"f{compactions + 1}"])])
    found = trace.probed({"f1"})
    assert found is not None
    assert found.verdict is Evidence.CHANGED
    assert [(each.commit, each.shared) for each in found.changes] == [("version 9", True)]
    assert found.why == (
        "rows of it were compacted into files with others, some of which were removed or rewritten by version 9 (DELETE)"
    )


def test_a_partition_that_was_not_touched_is_there() -> None:
    """A compaction of two partitions, and a DELETE in one of them: the rows of the other are where the compaction put them."""
    history = [
        Step(change=change(1, "OPTIMIZE"), moved={"a": "x", "b": "y"}, added={"ax": "x", "by": "y"}),
        Step(change=change(2), removed=["by"]),
    ]
    trace = traced({"a", "b"}, {"ax"}, history)
    assert trace.probed({"a"}) is None
    found = trace.probed({"b"})
    assert found is not None and found.verdict is Evidence.CHANGED


def test_a_file_whose_partition_is_not_told_may_be_in_any() -> None:
    """Where the log does not tell a file's partition, or the compaction changed the partitioning, all that it wrote counts."""
    for group in (None, "of the old partitioning"):
        history = [
            Step(change=change(1, "OPTIMIZE"), moved={"a": group}, added={"ax": "x", "by": "y"}),
            Step(change=change(2), removed=["by"]),
        ]
        found = traced({"a"}, {"ax"}, history).probed({"a"})
        assert found is not None and found.verdict is Evidence.CHANGED


def test_a_move_to_nowhere_is_a_change() -> None:
    """A commit that claims to move rows and writes no file has removed them."""
    found = traced({"a"}, set(), [Step(change=change(1, "OPTIMIZE"), moved={"a": 0})]).probed({"a"})
    assert found is not None and found.verdict is Evidence.CHANGED


def test_what_the_history_does_not_show_is_not_checked() -> None:
    """A file whose removal is older than the history that is left may have been compacted: nothing is claimed of it."""
    trace = traced({"a"}, set(), [Step(change=change(5), removed=["other"])])
    assert not trace.done
    found = trace.probed({"a"})
    assert found is not None and found.verdict is Evidence.NOT_CHECKED


def test_one_change_that_is_known_suffices() -> None:
    """Of two files one was changed by a commit that is named, the other's end is not known: the result is changed."""
    found = traced({"a", "b"}, set(), [Step(change=change(5), removed=["a"])]).probed({"a", "b"})
    assert found is not None and found.verdict is Evidence.CHANGED


def test_a_restored_file_counts_as_it_is_now() -> None:
    """A file that a later commit put back is followed from there on: what removed it before does not count."""
    history = [
        Step(change=change(1), removed=["a"]),
        Step(change=change(2, "RESTORE"), added={"a": 0}),
        Step(change=change(3, "OPTIMIZE"), moved={"a": 0}, added={"b": 0}),
    ]
    assert traced({"a"}, {"b"}, history).probed({"a"}) is None
    compacted = [
        Step(change=change(1, "OPTIMIZE"), moved={"a": 0}, added={"b": 0}),
        Step(change=change(2), removed=["b"]),
        Step(change=change(3, "RESTORE")),
    ]
    assert traced({"a"}, {"b"}, compacted).probed({"a"}) is None


def test_rows_marked_as_deleted_are_a_change() -> None:
    """A mark in a file that stays, and one in a file that was compacted later, are both found."""
    marks = Step(change=change(2), marks=["a"], removed=["a"])
    found = traced({"a"}, set(), [marks]).probed({"a"})
    assert found is not None and [each.commit for each in found.changes] == ["version 2"]
    moves = Step(change=change(3, "OPTIMIZE"), moved={"a": 0}, added={"b": 0}, marked={"a"})
    trace = traced({"a"}, {"b"}, [marks, moves])
    found = trace.probed({"a"})
    assert trace.done
    assert found is not None and [each.commit for each in found.changes] == ["version 2"]
    found = traced({"a"}, {"b"}, [moves]).probed({"a"})
    assert found is not None and found.verdict is Evidence.NOT_CHECKED


def test_the_newest_commits_are_named_and_the_rest_counted() -> None:
    """The sentence has a limit: the newest changes are named, and how many there are beside them."""
    history = [
        Step(change=change(number, key="abcdefabcdefabcdef-orders-g1"), removed=[f"f{number}"]) for number in range(9)
    ]
    found = traced({f"f{number}" for number in range(9)}, set(), history).probed({f"f{number}" for number in range(9)})
    assert found is not None
    assert [each.commit for each in found.changes] == [
        f"version {number}" for number in range(8, 8 - CHANGES_NAMED, -1)
    ]
    assert "version 8 (DELETE, key abcdefabcdef)" in found.why
    assert found.why.endswith("and 4 more")


def test_the_name_of_an_operation_is_bounded() -> None:
    """Other writers choose it: one line, printable, cut."""
    assert operation_name("MERGE\n\x1b[31m INTO" + "x" * 100) == ("MERGE  [31m INTO" + "x" * 100)[:40]
    assert operation_name(None) == operation_name("\n") == ""


@pytest.mark.parametrize("seed", range(60))
def test_the_trace_agrees_with_a_table_that_counts_rows(seed: int) -> None:
    """In random histories of one partition, a result is `changed` exactly if some commit removed a file that held one of its rows; where it
    is not, every row is in a file that readers see."""
    dice = random.Random(seed)
    files: dict[str, set[int]] = {f"own{number}": {number} for number in range(3)}
    history: list[Step] = []
    touched = False
    for number in range(dice.randrange(1, 9)):
        names = sorted(files)
        chosen = {name for name in names if dice.random() < 0.5}
        rows = set().union(*(files.pop(name) for name in chosen)) if chosen else set()
        if dice.random() < 0.6:
            if chosen:
                files[f"moved{number}"] = rows
                history.append(Step(change=change(number), moved=dict.fromkeys(chosen, 0), added={f"moved{number}": 0}))
        else:
            touched = touched or bool(rows & {0, 1, 2})
            history.append(Step(change=change(number), removed=chosen))
        files[f"other{number}"] = {100 + number}
    own = {f"own{number}" for number in range(3)}
    lost = own - files.keys()
    found = traced(lost, set(files), history).probed(lost)
    assert (found is not None) == touched
    if found is None:
        assert {0, 1, 2} <= set().union(*files.values())


@pytest.mark.parametrize("seed", range(80))
def test_every_commit_that_removed_rows_is_named(seed: int) -> None:
    """In random histories of compactions, of deletes that copy what they leave and of marks in files that stay, every commit that removed a
    row of the result is named where all are asked for: none can hide behind a later or an earlier one."""
    dice = random.Random(seed)
    own = set(range(6))
    files = {f"own{number}": {2 * number, 2 * number + 1} for number in range(3)} | {"other": {100, 101}}
    marked: set[str] = set()
    history: list[Step] = []
    removing: set[str] = set()
    for number in range(dice.randrange(1, 10)):
        kind = dice.choice(["move", "copy", "mark"])
        chosen = {name for name in sorted(files) if dice.random() < 0.5}
        if kind == "mark":
            chosen = set(sorted(chosen)[:1])
        rows = set().union(*(files[name] for name in chosen))
        gone = set() if kind == "move" else {row for row in sorted(rows) if dice.random() < 0.4}
        if not chosen or (kind != "move" and not gone):
            continue
        removing |= {f"version {number}"} if gone & own else set()
        before, groups, into = marked & chosen, dict.fromkeys(chosen, 0), f"file{number}"
        if kind == "mark":
            history.append(Step(change=change(number), removed=chosen, marks=chosen, marked=before))
            marked |= chosen
            files |= {name: files[name] - gone for name in chosen}
            continue
        for name in chosen:
            del files[name]
        marked -= chosen
        added = {into: 0} if rows - gone else {}
        files |= {into: rows - gone} if added else {}
        moved = {"moved": groups} if kind == "move" else {"removed": chosen, "rewritten": groups}
        history.append(Step(change=change(number), added=added, marked=before, **moved))
    trace = RowTrace(
        lost := {f"own{number}" for number in range(3)} - (files.keys() - marked), files.keys() - marked, every=True
    )
    for step in reversed(history):
        if trace.done:
            break
        trace.step(step)
    assert removing <= {each.commit for each in trace.fate(lost).changes}
