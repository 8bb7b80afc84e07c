"""Makes docs/chaos.md from the runs, and the same table for a terminal. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from chaos_runs import Arm, Run

HEAD = (
    "fault",
    "arm",
    "runs",
    "right",
    "duplicates",
    "losses",
    "wrong states",
    "extra attempts",
    "recovery, median (s)",
    "max (s)",
)
NAMES = {Arm.SPARKONCE: "sparkonce", Arm.NEVER: "plain, Never", Arm.ON_FAILURE: "plain, OnFailure"}
NOTHING = "-"
JOINED = ("2026-11-22T18:00:00Z", "b102a3e")
"""Commits of earlier runs are not in the history under their own hashes: they were joined into this commit."""
_INTRODUCTION = """# Chaos

This page shows what happens to one request for work when something breaks: as an IdempotentJob, and as a plain SparkApplication whose
script appends Parquet. `make chaos` makes it on a real cluster (one node, the real kubeflow Spark operator, our chart with two
operators). Each run is a line of `docs/chaos.jsonl`. Moments and order come from a seed, and a session continues where the last one
stopped:

    make chaos RUNS=5 ONLY=label,kubelet ARMS=sparkonce,never MINUTES=10 SEED=1      all of them are optional
    make chaos TABLE=1                                                               only this page, from the existing runs
"""
_COLUMNS = """
* **Right**: every row of the job is in its table once, and the final state agrees. **Duplicates**: a row is there more than once.
  **Losses**: rows are missing, and nothing tries again. **Wrong states**: the state is failed and there are rows, the state is done and
  rows are missing, or there is no final state within four minutes; "early" ones reported failure *before* the effect came, so that a
  client's retry runs beside it. A run may be in several of these columns. A job of ours is also wrong if it does not succeed, or leaves
  an application behind.
* **Extra attempts**, in all runs: of ours as the record counts them, of plain ones drivers beyond the first.
* **Recovery**: from the fault's end (the cluster works again, the job may write) to the final state, in runs that reached one; the row
  "none" shows what a job takes without a fault. A final state reached before the fault's end counts as 0.
* **Plain**: the same script without sparkonce, `df.write.mode("append").parquet(...)`; OnFailure retries twice each for the run and
  for the submission, after 5 s. A "-" marks a fault of something that a plain application does not have.

The faults were chosen to hurt and are aimed, so these are not the rates of a normal week. Where a fault hits the whole cluster and its
moment is the same for all arms, one strike hits a job of each.
"""


class Described(Protocol):
    @property
    def what(self) -> str: ...

    @property
    def arms(self) -> Sequence[Arm]: ...


def cells(fault: str, arm: Arm, runs: Sequence[Run]) -> list[str]:
    """A row of the table, from the runs of one fault and arm."""
    times = [run.seconds for run in runs if run.seconds is not None]
    early = sum(run.early for run in runs)
    wrong = str(sum(run.wrong_state for run in runs)) + (f" ({early} early)" if early else "")
    counts = [
        str(len(runs)),
        str(sum(run.right for run in runs)),
        str(sum(run.duplicate for run in runs)),
        str(sum(run.loss for run in runs)),
        wrong,
        str(sum(run.extra for run in runs)),
        f"{statistics.median(times):.1f}" if times else NOTHING,
        f"{max(times):.1f}" if times else NOTHING,
    ]
    return [fault, NAMES[arm], *(counts if runs else ["0", *[NOTHING] * (len(counts) - 1)])]


def table(runs: Sequence[Run], faults: Mapping[str, Described]) -> list[list[str]]:
    """The table's rows, by fault and arm; a fault without runs has a row, too."""
    made = []
    for fault, described in faults.items():
        for arm in Arm:
            if arm in described.arms:
                made.append(cells(fault, arm, [run for run in runs if (run.fault, run.arm) == (fault, arm)]))
            else:
                made.append([fault, NAMES[arm], *[NOTHING] * (len(HEAD) - 2)])
    return made


def sums(runs: Sequence[Run]) -> list[list[str]]:
    return [cells("all", arm, [run for run in runs if run.arm is arm]) for arm in Arm]


def document(runs: Sequence[Run], faults: Mapping[str, Described]) -> str:
    known = [run for run in runs if run.fault in faults]
    parts = [_INTRODUCTION, _provenance(known), "", _markdown(sums(known)), _COLUMNS]
    parts += ["\n## By fault\n", _markdown(table(known, faults))]
    parts += ["\n## The faults\n", *(f"* **{fault}**: {described.what}" for fault, described in faults.items())]
    if wrong := [run for run in known if run.arm is Arm.SPARKONCE and not run.right]:
        parts += ["\n## What went wrong with ours\n"]
        parts += [f"* {run.fault}, {run.date}, {run.commit}: {run.verdict}; {run.state}. {run.note}" for run in wrong]
    return "\n".join(parts).strip() + "\n"


def printed(runs: Sequence[Run], faults: Mapping[str, Described]) -> str:
    """The table as text, without faults that have no runs."""
    rows = [list(HEAD), *(row for row in table(runs, faults) if row[2] not in ("0", NOTHING)), *sums(runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _provenance(runs: Sequence[Run]) -> str:
    if not runs:
        return "No run yet."
    days = sorted({run.date[:10] for run in runs})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    commits = Counter(run.commit for run in runs)
    counted = ", ".join(f"{commit} ({count})" for commit, count in commits.items())
    said = f"Measured {when}: {len(runs)} runs, of commits {counted}."
    until, joined = JOINED
    if any(run.date < until for run in runs):
        said += f" Those before {until[:10]} {until[11:16]} came into the history as one, {joined}."
    if loads := [run.load for run in runs if run.load is not None]:
        said += f" The machine's load was {min(loads)} to {max(loads)}, median {statistics.median(loads):.1f}; times grow with it."
    return said


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
