"""The input space of `decide`, `conclude` and `answer`: the possible values of everything that they read, and the table's rows by name.

The case is attempt 4 of generation 3, observed when the store's clock is at NOW.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from functools import cache, cached_property
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from harness.exhaust import Case, Drawn, Fields, every
from sparkonce.attempt.decide import LINGERING, Decision, Observation, Policy, conclude, decide
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import HeldReason, Outcome, Record, State, Verdict, Why
from sparkonce.model.spec import OnDuplicate, OnFinalized, OnMismatch, OnResultChanged, OnUnknown

NOW = 1000.0
ATTEMPT = 4
OURS = "nonce-4"

RECORD: Fields = {
    "realm": ["local"],
    "key_hash": ["ab" * 32],
    "key": ["load-may"],
    "fingerprint": ["f1"],
    "fingerprint_version": [1],
    "generation": [3],
    "attempt": [ATTEMPT],
    "nonce": [OURS],
    "state": list(State),
    "phase": [None, *Phase],
    "held": list(HeldReason),
    "note": ["what was noted", "", LINGERING],
    "outcome": list(Outcome),
    "application": [None, {"name": ["so-1"], "uid": ["u1", "u2"], "driver": [None, "d1", "d2"]}],
    "settling": [None, {"attempt": [ATTEMPT - 1, ATTEMPT], "why": list(Why), "note": ["why it ends"]}],
    "stop_wanted": [None, {"why": [Why.CANCELLED, Why.SUPERSEDED], "by": ["ann"], "reason": ["", "too slow"]}],
    "uncounted": [0, 1, 2, 3],
    "no_effect": [None, {"generation": [2, 3], "attempt": [ATTEMPT - 1, ATTEMPT]}],
    "not_before": [None, NOW - 10, NOW + 10],
    "granted_at": [0.0],
    "objects": [(), ("u1",)],
    "created_at": [0.0],
}
SEEN: Fields = {
    "name": ["so-1"],
    "uid": ["u1"],
    "nonce": [OURS, "another", ""],
    "phase": list(Phase),
    "driver": [None, "d1"],
    "exit_code": [None, 3],
    "script_error": [(), ("PATH_NOT_FOUND", "AnalysisException")],
    "stopping": [False, True],
    "repeated": [False, True],
    "half_made": [None, NOW - 5, NOW - 500],
    "waits": ["", "no node takes its driver pod (Unschedulable): 0/3 nodes"],
    "unplaced": [False, True],
    "hopeless": [False, True],
    "lingers": [None, 5.0, 500.0],
    "message": ["", "a message"],
}
OBSERVATION: Fields = {
    "seen": [None, SEEN],
    "rewound": [False, True],
    "permanent_error": [None, "no such column", ""],
    "permanent_why": [Why.PERMANENT, Why.EXPECTATION],
    "driver_age": [None, 5.0, 500.0],
    "receivable_for": [inf, None, 5.0, 400.0],
    "owner_age": [None, 5.0, 5000.0],
    "edited": [False, True],
    "gone": [False, True],
    "superseded": [False, True],
}
POLICY: Fields = {
    "declared": [True, False],
    "max_attempts": [1, 2, 3, 4, 5],
    "submission_retries": [0, 1, 3],
    "backoff_initial": [10.0, 0.0],
    "backoff_max": [300.0, 15.0],
    "retry_on": [frozenset(), frozenset({"AnalysisException"}), frozenset({"ImportError"})],
    "on_duplicate": list(OnDuplicate),
    "on_mismatch": list(OnMismatch),
    "on_finalized": list(OnFinalized),
    "on_result_changed": list(OnResultChanged),
    "on_unknown": list(OnUnknown),
    "start_timeout": [1800.0],
    "active_deadline": [None, NOW - 1, NOW + 1],
    "heartbeat_timeout": [None, 60.0],
    "linger": [60.0],
    "suspend": [False, True],
}


class DrawnRecord(Drawn):
    counted = Record.counted
    reopenable = Record.reopenable
    effectless = Record.effectless


class DrawnPolicy(Drawn):
    delay = Policy.delay


class Attempt:
    """One case: the inputs of `decide` and its decision."""

    fields: Fields = RECORD

    def __init__(self, case: Case, decision: Decision | None = None) -> None:
        """`decision`: that of the case with which this one begins."""
        self.case = case
        if decision is not None:
            self.decision = decision
        self.record = cast("Record", DrawnRecord(case, "record", self.fields))
        self.observation = cast("Observation", Drawn(case, "observation", OBSERVATION))
        self.policy = cast("Policy", DrawnPolicy(case, "policy", POLICY))

    @cached_property
    def decision(self) -> Decision:
        return decide(self.record, self.observation, self.policy, NOW)

    @property
    def open(self) -> bool:
        """The generation is in progress, and the store is not older than what it started."""
        return self.record.state is State.IN_PROGRESS and not self.observation.rewound

    @property
    def settling(self) -> bool:
        return self.record.settling is not None and self.record.settling.attempt >= self.record.attempt

    @property
    def wish(self) -> bool:
        """An end of this generation was requested."""
        return self.record.stop_wanted is not None or self.observation.gone or self.observation.superseded

    @property
    def overdue(self) -> bool:
        deadline = self.policy.active_deadline
        return deadline is not None and deadline < NOW - self.record.created_at

    def but(self, target: str, **over: Any) -> Any:
        """The record, observation or policy with other values in these fields."""
        return getattr(self, target).but(**over)

    def real(self, chance: random.Random) -> tuple[Record, Observation, Policy]:
        """The same case in the real types; values that were never read are drawn at random."""
        record, observation, policy = (
            cast("Drawn", each).filled(chance) for each in (self.record, self.observation, self.policy)
        )
        if observation["seen"] is not None:
            observation["seen"] = ApplicationState(**observation["seen"])
        return Record.model_validate(record), Observation(**observation), Policy(**policy)


class Settled(Attempt):
    """One case of `conclude`. `settling` names the attempt, since it is written before anything is settled."""

    fields: Fields = {**RECORD, "settling": [{"attempt": [ATTEMPT], "why": list(Why), "note": ["why it ends"]}]}

    @property
    def verdict(self) -> Verdict:
        return cast("Verdict", self.case.pick("verdict", list(Verdict)))

    @property
    def why(self) -> Why:
        assert self.record.settling is not None
        return self.record.settling.why

    @cached_property
    def decision(self) -> Decision:
        return conclude(self.record, self.verdict, self.observation, self.policy, NOW)


A = TypeVar("A", bound=Attempt)


def attempts() -> Iterator[Attempt]:
    """Yields each case of `decide`. Values that only the loop body reads are drawn in every combination, too."""
    return _beyond(_decided(), Attempt)


def settled_attempts() -> Iterator[Settled]:
    """As `attempts`, for `conclude`."""
    return _beyond(_concluded(), Settled)


@cache
def _decided() -> list[Attempt]:
    """The only walk through everything that `decide` reads: all properties are asserted at its points."""
    return _walked(Attempt)


@cache
def _concluded() -> list[Settled]:
    return _walked(Settled)


def _walked(kind: type[A]) -> list[A]:
    points = []
    for point in every(kind):
        assert isinstance(point.decision, Decision)
        point.case.closed = True
        points.append(point)
    return points


def _beyond(points: list[A], kind: type[A]) -> Iterator[A]:
    for point in points:
        decision = point.decision
        yield from every(lambda case, decision=decision: kind(case, decision), point.case.read)  # type: ignore[misc]


def row_literals(module: ModuleType) -> set[str]:
    """Names of rows as literals in the code; `settled: {verdict}` means one row per verdict and is returned as `settled: `."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    places = {"Decision": 1, "_settle": 2, "Answered": 1}
    rows = [
        call.args[places[call.func.id]] for call in calls if isinstance(call.func, ast.Name) and call.func.id in places
    ]
    return {name for row in rows if (name := _text(row))}


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.Name), f"a row must be named where it is decided, not by {ast.dump(node)}"
    return ""  # passed through by `_settle`
