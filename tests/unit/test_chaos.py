"""How `make chaos` judges, counts, resumes and shows its runs: on planted results, without a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from chaos_cases import ANSWERED, CASES
from chaos_runs import Arm, BadLine, Run, Task, append, line_of, missing, read, rounds
from chaos_session import wanted
from chaos_table import JOINED, document, printed, table
from harness.node.faults import FAULTS as FAULTS_OF_TESTS

OURS = Run(
    date="2026-11-22T07:30:00Z",
    commit="abc1234",
    arm=Arm.SPARKONCE,
    fault="label",
    seed=1,
    number=1,
    drivers=1,
    extra=0,
    least=1,
    most=1,
    state="Succeeded",
    expected="Succeeded",
    seconds=4.0,
)
PLAIN = replace(OURS, arm=Arm.NEVER, state="COMPLETED", expected="")


@dataclass(frozen=True)
class Fault:
    what: str
    arms: Sequence[Arm]


FAULTS = {"label": Fault("A label is patched.", tuple(Arm)), "ours only": Fault("Ours is killed.", (Arm.SPARKONCE,))}


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        (PLAIN, "right"),
        (OURS, "right"),
        (replace(PLAIN, most=2), "duplicate"),
        (replace(PLAIN, least=2, most=2, state="COMPLETED + COMPLETED"), "duplicate"),
        (replace(PLAIN, least=0, most=0, state="FAILED"), "loss"),
        (replace(PLAIN, least=0, most=0), "loss, wrong state"),
        (replace(PLAIN, least=0), "loss, wrong state"),
        (replace(PLAIN, state="FAILED"), "wrong state"),
        (replace(PLAIN, state="FAILED", most=2), "duplicate, wrong state"),
        (replace(PLAIN, state="SUBMITTED", seconds=None), "wrong state"),
        (replace(PLAIN, state=""), "wrong state"),
        (replace(PLAIN, state="COMPLETED + FAILED"), "wrong state"),
        (replace(OURS, state="Held"), "wrong state"),
        (replace(OURS, state="Succeeded, with an application left over"), "wrong state"),
        (replace(OURS, state="Mismatch + Succeeded", expected=ANSWERED), "right"),
        (replace(OURS, state="Mismatch", expected=ANSWERED), "wrong state"),
        (replace(OURS, state="Failed", least=0, most=0), "loss, wrong state"),
    ],
)
def test_a_run_is_judged_by_its_rows_and_its_state(run: Run, verdict: str) -> None:
    """A duplicate row is a duplicate, a missing one a loss. A final state that contradicts the table is wrong, as is a missing one, and for
    ours a state that the fault does not lead to."""
    assert run.verdict == verdict
    assert run.right is (verdict == "right")


def test_runs_come_back_from_their_file(tmp_path: Path) -> None:
    """Appended runs are read back unchanged; a session that was killed within a line has not recorded that run, and the next line is
    complete."""
    path = tmp_path / "chaos.jsonl"
    assert read(path) == []
    append(path, OURS)
    with path.open("a") as file:
        file.write(line_of(PLAIN)[:40])
    assert read(path) == [OURS]
    append(path, PLAIN)
    assert read(path) == [OURS, PLAIN]


def test_a_line_that_is_no_run_is_named(tmp_path: Path) -> None:
    """A complete line that is not a run is an error with its number, and never skipped: its run would be made again and counted twice."""
    path = tmp_path / "chaos.jsonl"
    for line in ("{", '{"arm": "another"}', "{}", '{"arm": "never"}'):
        path.write_text(f"{line_of(OURS)}\n{line}\n")
        with pytest.raises(BadLine, match=r"chaos\.jsonl, line 2"):
            read(path)


def test_what_is_missing() -> None:
    """Existing runs count whatever their seed and commit, but for their arm only; an arm with more runs than requested gets none."""
    asked = {"label": [Arm.SPARKONCE, Arm.NEVER], "ours only": [Arm.SPARKONCE]}
    there = [OURS, replace(OURS, number=2, seed=7, commit="other"), PLAIN, *[replace(OURS, fault="ours only")] * 4]
    found = [(task.fault, task.arm, task.number) for task in missing(asked, there, runs=3)]
    assert found == [("label", Arm.SPARKONCE, 3), ("label", Arm.NEVER, 2), ("label", Arm.NEVER, 3)]
    assert missing(asked, [], runs=1) == [
        Task(fault="label", arm=Arm.SPARKONCE, number=1),
        Task(fault="label", arm=Arm.NEVER, number=1),
        Task(fault="ours only", arm=Arm.SPARKONCE, number=1),
    ]


def test_the_order_is_the_seeds() -> None:
    """Each task is in the plan once, lower numbers first, and faults that hit the whole cluster apart. The same seed gives the same order
    and times, another seed others."""
    tasks = missing(wanted("", list(Arm)), [], runs=3)
    alone = [name for name, case in CASES.items() if case.alone]
    together = [name for name, case in CASES.items() if case.together]
    plan = rounds(tasks, seed=1, alone=alone, together=together)
    flat = [task for beside, groups in plan for task in (*beside, *(each for group in groups for each in group))]
    assert Counter(flat) == Counter(tasks)
    assert [task.number for task in flat] == sorted(task.number for task in flat)
    assert all(task.fault not in alone for beside, _ in plan for task in beside)
    for group in (group for _, groups in plan for group in groups):
        assert {task.fault for task in group} == {group[0].fault} <= set(alone)
        assert {task.arm for task in group} == (set(Arm) if group[0].fault in together else {group[0].arm})
    assert plan == rounds(tasks, seed=1, alone=alone, together=together)
    assert plan != rounds(tasks, seed=2, alone=alone, together=together)
    drawn = {seed: [task.random(seed).random() for task in tasks] for seed in (1, 2)}
    assert drawn[1] == [task.random(1).random() for task in tasks]
    assert len({*drawn[1], *drawn[2]}) == 2 * len(tasks)


def test_who_is_hit_together_is_hit_alike() -> None:
    """One strike hits all arms: it is the same for each, on the same job, and nothing else runs beside it."""
    for name, case in CASES.items():
        if case.together:
            assert case.alone and case.ours is case.plain and not case.sends, name


def test_what_is_asked_for() -> None:
    """Faults are chosen by words in their names, and a fault has only its own arms."""
    assert wanted("LABEL, ledger", [Arm.SPARKONCE, Arm.NEVER]) == {
        **{name: [Arm.SPARKONCE, Arm.NEVER] for name in CASES if name.startswith("label")},
        "ledger killed": [Arm.SPARKONCE],
    }
    assert list(wanted("", list(Arm))) == list(CASES)


def test_every_fault_can_be_run() -> None:
    """Each fault has a description, an arm, and a strike for each of its arms. All faults of the tests on a real cluster are included, two
    of them stronger here: the API server is down for 30 s, and the Spark operator is killed with its child."""
    struck = {case.ours for case in CASES.values()}
    assert {name for name, fault in FAULTS_OF_TESTS.items() if fault.strike not in struck} == {
        "API server killed",
        "Spark operator killed at submission",
    }
    for name, case in CASES.items():
        assert case.what.endswith("."), name
        assert case.arms, name
        for arm in case.arms:
            assert callable(case.strike(arm))


def test_the_table_counts() -> None:
    """It counts runs, kinds of errors and extra attempts, and has the median and maximum of the known times; "-" means no such arm or no
    run."""
    runs = [
        replace(OURS, seconds=0.0),
        replace(OURS, seconds=4.0, extra=1),
        replace(OURS, seconds=9.0, extra=2),
        replace(PLAIN, state="FAILED", early=True),
        replace(PLAIN, state="FAILED", seconds=8.0),
        replace(PLAIN, least=0, most=0, state="SUBMITTED", seconds=None),
    ]
    rows = table(runs, FAULTS)
    assert rows == [
        ["label", "sparkonce", "3", "3", "0", "0", "0", "3", "4.0", "9.0"],
        ["label", "plain, Never", "3", "0", "0", "1", "3 (1 early)", "0", "6.0", "8.0"],
        ["label", "plain, OnFailure", "0", *"-------"],
        ["ours only", "sparkonce", "0", *"-------"],
        ["ours only", "plain, Never", *"--------"],
        ["ours only", "plain, OnFailure", *"--------"],
    ]


def test_the_page_says_when_and_of_what() -> None:
    """The page has the days, the commits, every fault with its description, and each run of ours that went wrong; runs of a fault that no
    longer exists are left out. The terminal gets the rows that have runs."""
    later = replace(OURS, date="2026-11-23T01:00:00Z", commit="def", state="Held", note="why")
    runs = [replace(OURS, load=2.0), later, replace(OURS, fault="long ago", load=40.0), replace(PLAIN, load=3.5)]
    page = document(runs, FAULTS)
    assert "Measured 2026-11-22 to 2026-11-23: 3 runs, of commits abc1234 (2), def (1)." in page
    assert f"Those before 2026-11-22 18:00 came into the history as one, {JOINED[1]}." in page
    assert "came into the history" not in document([later], FAULTS)
    assert "load was 2.0 to 3.5, median 2.8;" in page
    assert "* **ours only**: Ours is killed." in page
    assert "| label | sparkonce | 2 | 1 | 0 | 0 | 1 |" in page
    assert "* label, 2026-11-23T01:00:00Z, def: wrong state; Held. why" in page
    assert "long ago" not in page
    assert "What went wrong" not in document([OURS], FAULTS)
    assert "load" not in document([OURS], FAULTS)
    shown = printed(runs, FAULTS).splitlines()
    assert [line.split("  ")[0] for line in shown] == ["fault", "label", "label", "all", "all", "all"]
    assert "No run yet" in document([], FAULTS)
