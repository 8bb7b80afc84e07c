"""`answer`: the answer to a request for a key, row by row, and properties of every combination of record, claim, policy and evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import cast

import pytest

from harness.attempts import POLICY, RECORD, DrawnPolicy, DrawnRecord, row_literals
from harness.exhaust import Case, every
from sparkonce.attempt import request as module
from sparkonce.attempt.decide import Policy, held_remedy
from sparkonce.attempt.request import Answer, Answered, answer, for_kubectl
from sparkonce.model.record import Address, HeldReason, NoEffect, Outcome, Record, State
from sparkonce.model.spec import OnDuplicate, OnFinalized, OnMismatch, OnResultChanged
from sparkonce.sink.protocol import LATE_INSTEAD, Change, Evidence, Found, Probed
from sparkonce.store.protocol import Claim, View

ADDRESS = Address(realm="local", key_hash="ab" * 32)
CLAIM = Claim(address=ADDRESS, lease="lease-1", owner="pid 7 on a laptop", revision=5, nonce="claim-1")
RECORDED = Record(
    realm="local",
    key_hash="ab" * 32,
    key="load-may",
    fingerprint="f1",
    fingerprint_version=1,
    generation=3,
    attempt=2,
    nonce="nonce-2",
    note="why it ended",
)
SUCCEEDED = RECORDED.changed(state=State.FINALIZED, outcome=Outcome.SUCCEEDED)
FAILED = RECORDED.changed(state=State.FINALIZED, outcome=Outcome.FAILED)
CANCELLED = RECORDED.changed(state=State.FINALIZED, outcome=Outcome.CANCELLED)
EFFECTLESS = FAILED.changed(no_effect=NoEffect(generation=3, attempt=2))
ALWAYS = Policy(declared=True, on_mismatch=OnMismatch.REJECT_ALWAYS)
HELD = RECORDED.changed(state=State.HELD, held=HeldReason.UNKNOWN)
PARTIAL = RECORDED.changed(state=State.HELD, held=HeldReason.PARTIAL)
REJECT = Policy(declared=True, on_duplicate=OnDuplicate.REJECT)
SUPERSEDE = Policy(declared=True, on_mismatch=OnMismatch.SUPERSEDE)
RERUN = Policy(declared=True, on_finalized=OnFinalized.RERUN_IF_FAILED)
DEFAULT = Policy(declared=True)

OWNED, SAME, OPENED = "owned", "same", "opened"
TABLE: list[tuple[str, Answer, Record | None, set[str], Policy]] = [
    ("unknown key", Answer.NEW, None, set(), DEFAULT),
    ("mismatch", Answer.MISMATCH, RECORDED, {OWNED}, DEFAULT),
    ("mismatch", Answer.MISMATCH, SUCCEEDED, set(), RERUN),
    ("mismatch", Answer.MISMATCH, CANCELLED, set(), DEFAULT),
    ("nothing to protect", Answer.SUPERSEDE, EFFECTLESS, set(), DEFAULT),
    ("nothing to protect", Answer.SUPERSEDE, EFFECTLESS.changed(outcome=Outcome.CANCELLED), set(), SUPERSEDE),
    ("mismatch", Answer.MISMATCH, EFFECTLESS, set(), ALWAYS),
    ("was superseded", Answer.MISMATCH, EFFECTLESS, {OPENED}, DEFAULT),
    ("mismatch", Answer.MISMATCH, EFFECTLESS.changed(outcome=Outcome.SUCCEEDED), set(), DEFAULT),
    ("mismatch", Answer.MISMATCH, FAILED.changed(no_effect=NoEffect(generation=3, attempt=1)), set(), DEFAULT),
    ("mismatch", Answer.MISMATCH, FAILED.changed(no_effect=NoEffect(generation=2, attempt=2)), set(), DEFAULT),
    ("superseded", Answer.SUPERSEDE, RECORDED, {OWNED}, SUPERSEDE),
    ("superseded", Answer.SUPERSEDE, SUCCEEDED, set(), SUPERSEDE),
    ("superseded", Answer.SUPERSEDE, PARTIAL, set(), SUPERSEDE),
    ("held", Answer.HELD, HELD, set(), SUPERSEDE),
    ("was superseded", Answer.MISMATCH, RECORDED, {OWNED, OPENED}, SUPERSEDE),
    ("held", Answer.HELD, HELD, {SAME}, RERUN),
    ("cancelled", Answer.REOPEN, CANCELLED, {SAME}, DEFAULT),
    ("finalized", Answer.REPLAY, CANCELLED, {SAME, OPENED}, DEFAULT),
    ("failed, and onFinalized is RerunIfFailed", Answer.REOPEN, FAILED, {SAME}, RERUN),
    ("finalized", Answer.REPLAY, FAILED, {SAME, OPENED}, RERUN),
    ("finalized", Answer.REPLAY, FAILED, {SAME}, DEFAULT),
    ("finalized", Answer.REPLAY, SUCCEEDED, {SAME}, RERUN),
    ("stale owner", Answer.TAKE_OVER, RECORDED, {SAME}, REJECT),
    ("running elsewhere", Answer.FOLLOW, RECORDED, {SAME, OWNED}, DEFAULT),
    ("running elsewhere", Answer.IN_PROGRESS, RECORDED, {SAME, OWNED}, REJECT),
]


def ask(record: Record | None, facts: set[str], policy: Policy, found: Mapping[str, Found] | None = None) -> Answered:
    view = View(record=record, claim=CLAIM if OWNED in facts else None, floor=0, revision=9, epoch=1)
    return answer(view, same=SAME in facts, policy=policy, outputs=found, key="load-may", opened=OPENED in facts)


@pytest.mark.parametrize(
    ("row", "expected", "record", "facts", "policy"), TABLE, ids=[f"{n}-{case[0]}" for n, case in enumerate(TABLE)]
)
def test_row(row: str, expected: Answer, record: Record | None, facts: set[str], policy: Policy) -> None:
    """This row answers, with this."""
    said = ask(record, facts, policy)
    assert (said.row, said.answer) == (row, expected)


@pytest.mark.parametrize("found", [Evidence.GONE, Evidence.REPLACED])
def test_a_result_whose_output_is_not_there_any_more_says_which(found: Evidence) -> None:
    """The sentence names the output, of several, that is gone or replaced, and how to run the job anew."""
    said = ask(SUCCEEDED, {SAME}, DEFAULT, {"orders": Evidence.PRESENT, "totals": found})
    assert (said.answer, said.row) == (Answer.RESULT_GONE, "result gone")
    assert "totals" in said.evidence and "orders" not in said.evidence
    assert said.unblock == "sparkonce rerun load-may"


CHANGE = Change(commit="version 7", operation="DELETE")
CHANGED = Probed(verdict=Evidence.CHANGED, why="rows of it were removed by version 7 (DELETE)", changes=(CHANGE,))
WITHHOLDING = Policy(declared=True, on_result_changed=OnResultChanged.GONE)


def test_a_changed_result_is_replayed_and_says_who_changed_it() -> None:
    """Rows that others removed are no reason to withhold the result: it is replayed, with the commits that did it; a rerun is advised."""
    said = ask(SUCCEEDED, {SAME}, DEFAULT, {"orders": Evidence.PRESENT, "totals": CHANGED})
    assert (said.answer, said.row) == (Answer.REPLAY, "result changed")
    assert said.evidence == (
        "generation 3 succeeded, and its output totals is changed (rows of it were removed by version 7 (DELETE))"
    )
    assert said.unblock == "sparkonce rerun load-may"


def test_a_changed_result_is_withheld_where_the_job_asks_for_it() -> None:
    """`onResultChanged: Gone` answers a changed result as one that is gone; it makes nothing of a present one."""
    said = ask(SUCCEEDED, {SAME}, WITHHOLDING, {"totals": CHANGED})
    assert (said.answer, said.row) == (Answer.RESULT_GONE, "result changed, and onResultChanged is Gone")
    assert "version 7 (DELETE)" in said.evidence
    assert ask(SUCCEEDED, {SAME}, WITHHOLDING, {"totals": Evidence.PRESENT}).row == "finalized"


SUPERSEDED = Probed(verdict=Evidence.SUPERSEDED, why="its rows were replaced by version 8", remedy="declare Allow")


def test_a_superseded_result_is_replayed_whatever_the_job_says_of_changes() -> None:
    """Its series wants it so. Beside a result that is changed, or gone, it is named with it."""
    for policy in (DEFAULT, WITHHOLDING):
        said = ask(SUCCEEDED, {SAME}, policy, {"orders": SUPERSEDED, "totals": Evidence.PRESENT})
        assert (said.answer, said.row) == (Answer.REPLAY, "result superseded")
        assert said.evidence.endswith("its output orders is superseded (its rows were replaced by version 8)")
        assert said.unblock == "orders: declare Allow"
    said = ask(SUCCEEDED, {SAME}, DEFAULT, {"orders": SUPERSEDED, "totals": CHANGED})
    assert (said.row, said.unblock) == ("result changed", "orders: declare Allow")
    assert "orders is superseded" in said.evidence
    assert ask(SUCCEEDED, {SAME}, WITHHOLDING, {"orders": SUPERSEDED, "totals": CHANGED}).answer is Answer.RESULT_GONE


def test_the_advice_of_an_output_that_was_skipped_is_passed_on() -> None:
    """Its result is present; a plain rerun would be skipped again."""
    found = Probed(verdict=Evidence.PRESENT, why="nothing was written", remedy="declare Allow")
    said = ask(SUCCEEDED, {SAME}, WITHHOLDING, {"orders": found})
    assert (said.answer, said.row, said.unblock) == (Answer.REPLAY, "finalized", "orders: declare Allow")


@pytest.mark.parametrize("verdict", [Evidence.GONE, Evidence.CHANGED])
def test_a_rerun_that_the_output_would_refuse_is_not_advised(verdict: Evidence) -> None:
    """The output's own remedy takes the place of the advice to rerun, under the output's name."""
    found = Probed(verdict=verdict, why="it is so", remedy="restore it from a backup")
    said = ask(SUCCEEDED, {SAME}, DEFAULT, {"orders": found, "totals": CHANGED})
    assert said.unblock == "orders: restore it from a backup"


def test_a_forgotten_key_says_that_it_is_not_its_first_generation() -> None:
    """A key whose record was forgotten is new, and the evidence says which generation follows."""
    view = View(record=None, claim=None, floor=2, revision=9, epoch=1)
    assert "generation 3" in answer(view, same=False, policy=DEFAULT).evidence


# --- properties of every case

OUTPUTS: list[Mapping[str, Evidence] | None] = [
    None,
    {},
    *({"orders": Evidence.PRESENT, "totals": e} for e in Evidence),
]


class Asked:
    """One case. Values are drawn when they are read; see harness/exhaust.py."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.policy = cast("Policy", DrawnPolicy(case, "policy", POLICY))
        known = case.pick("known", [True, False])
        self.record = cast("Record", DrawnRecord(case, "record", RECORD)) if known else None
        self.owned: bool = case.pick("owned", [True, False])
        self.same: bool = case.pick("same", [True, False])
        self.opened: bool = case.pick("opened", [True, False])
        self.outputs: Mapping[str, Evidence] | None = case.pick_plain("outputs", OUTPUTS)

    @cached_property
    def said(self) -> Answered:
        floor = self.case.pick("floor", [0, 2])
        view = View(record=self.record, claim=CLAIM if self.owned else None, floor=floor, revision=9, epoch=1)
        return answer(view, same=self.same, policy=self.policy, outputs=self.outputs, opened=self.opened)

    def state(self, state: State, outcome: Outcome | None = None) -> bool:
        return self.record is not None and self.record.state is state and outcome in (None, self.record.outcome)

    @property
    def missing(self) -> bool:
        withheld = {Evidence.GONE, Evidence.REPLACED}
        if Evidence.CHANGED in (self.outputs or {}).values() and self.policy.on_result_changed is OnResultChanged.GONE:
            return True
        return bool(withheld & set((self.outputs or {}).values()))


def asked() -> Iterator[Asked]:
    return every(Asked)


def test_every_row_is_reached_and_has_its_line_above() -> None:
    """Every row of the code is reached by some case, and the table above has a line for it."""
    reached = {case.said.row for case in asked()}
    assert reached == row_literals(module)
    of_outputs = {
        "result gone",
        "result changed",
        "result changed, and onResultChanged is Gone",
        "result superseded",
    }
    assert {row for row, *_ in TABLE} == reached - of_outputs


def test_every_request_gets_one_answer_that_explains_itself() -> None:
    """Whatever the record contains, the answer has a row and evidence; an answer that waits for a person or refuses says what to do."""
    turned_away = {Answer.MISMATCH, Answer.HELD, Answer.RESULT_GONE, Answer.IN_PROGRESS, Answer.FOLLOW}
    for case in asked():
        assert case.said.row and case.said.evidence
        assert case.said.unblock or case.said.answer not in turned_away


def test_only_an_unknown_key_is_new() -> None:
    """The answer is New exactly if there is no record: an existing one is never reserved again."""
    for case in asked():
        assert (case.said.answer is Answer.NEW) == (case.record is None)


def test_another_job_gets_nothing_of_this_one() -> None:
    """A request with another fingerprint never gets the result, follows or takes over: it is refused, supersedes, or waits for a person."""
    for case in asked():
        if case.record is not None and not case.same:
            assert case.said.answer in (Answer.MISMATCH, Answer.SUPERSEDE, Answer.HELD)


def test_supersede_is_declared_and_possible() -> None:
    """Another job takes a key's place only if onMismatch allows it, or if the generation had no effect, which frees its place. The request
    must not have been answered before, and no person's decision may be pending; a held generation that may be followed by another does not
    prevent it."""
    for case in asked():
        may = case.record is not None and not case.same and not case.opened
        free = may and case.record is not None and case.record.effectless
        declared = may and case.policy.on_mismatch is OnMismatch.SUPERSEDE
        may = declared or (free and case.policy.on_mismatch is OnMismatch.REJECT)
        blocked = may and case.record is not None and case.state(State.HELD) and not case.record.reopenable
        assert (case.said.answer is Answer.SUPERSEDE) == (may and not blocked)
        assert not blocked or case.said.answer is Answer.HELD


def test_a_success_is_never_run_again() -> None:
    """A duplicate of a succeeded job gets its result, or the answer that its output is gone; no policy makes it run."""
    for case in asked():
        if case.same and case.state(State.FINALIZED, Outcome.SUCCEEDED):
            assert case.said.answer is (Answer.RESULT_GONE if case.missing else Answer.REPLAY)


def test_result_gone_is_said_of_a_success_alone() -> None:
    """A failed or cancelled generation has no result that could be gone, and an output that was not checked does not count as gone."""
    for case in asked():
        if case.said.answer is Answer.RESULT_GONE:
            assert case.missing and case.state(State.FINALIZED, Outcome.SUCCEEDED)


def test_a_generation_follows_only_no_result_or_a_declared_rerun() -> None:
    """A new generation of the same job opens exactly after a cancelled one, or after a failed one with RerunIfFailed, and only for a
    request that has opened none before."""
    for case in asked():
        failed = case.state(State.FINALIZED, Outcome.FAILED) and case.policy.on_finalized is OnFinalized.RERUN_IF_FAILED
        follows = case.same and (case.state(State.FINALIZED, Outcome.CANCELLED) or failed)
        assert (case.said.answer is Answer.REOPEN) == (follows and not case.opened)


def test_one_request_opens_one_generation() -> None:
    """A request that is among the record's openers opens nothing more, neither by reopening nor by superseding, so a job that fails each
    time, or two that supersede each other, cannot go on for ever."""
    for case in asked():
        if case.record is not None and case.opened:
            assert case.said.answer not in (Answer.NEW, Answer.REOPEN, Answer.SUPERSEDE)


def test_a_failure_is_replayed() -> None:
    """A request for a failed generation gets the recorded failure, unless the request may run it again."""
    for case in asked():
        if case.same and case.state(State.FINALIZED, Outcome.FAILED):
            assert case.said.answer in (Answer.REPLAY, Answer.REOPEN)


def test_a_held_key_waits_for_a_person() -> None:
    """Every duplicate of a held job is answered Held, and nothing runs."""
    for case in asked():
        if case.same and case.state(State.HELD):
            assert case.said.answer is Answer.HELD and "resolve" in case.said.unblock


def test_an_unfinished_key_is_followed_rejected_or_taken_over() -> None:
    """In progress without an owner it is taken over, even with `onDuplicate: Reject`; with an owner it is followed or rejected as
    declared."""
    for case in asked():
        if case.same and case.state(State.IN_PROGRESS):
            rejected = case.policy.on_duplicate is OnDuplicate.REJECT
            owned = Answer.IN_PROGRESS if rejected else Answer.FOLLOW
            assert case.said.answer is (owned if case.owned else Answer.TAKE_OVER)
        else:
            assert case.said.answer not in (Answer.TAKE_OVER, Answer.FOLLOW, Answer.IN_PROGRESS)


@pytest.mark.parametrize(
    ("text", "namespace", "told"),
    [
        (held_remedy("a/b@1"), "", "kubectl sparkonce resolve a/b@1 --reason TEXT --succeeded | --failed | --retry"),
        (held_remedy("k", "--retry"), "etl", "kubectl sparkonce resolve -n etl k --reason TEXT --retry"),
        ("wait, or `sparkonce cancel k`", "etl", "wait, or `kubectl sparkonce cancel -n etl k`"),
        (
            f"out: {LATE_INSTEAD}",
            "etl",
            f"out: {LATE_INSTEAD.partition('`sparkonce')[0]}`kubectl sparkonce rerun -n etl -f FILE --reason TEXT`",
        ),
        ("`kubectl sparkonce rerun -f FILE --reason TEXT`", "etl", "`kubectl sparkonce rerun -f FILE --reason TEXT`"),
        ("`sparkonce keys purge` removes it", "etl", "`sparkonce keys purge` removes it"),
    ],
)
def test_the_ledgers_commands_are_told_as_the_plugins(text: str, namespace: str, told: str) -> None:
    """Those that the plugin has, in the key's namespace, with what they require there; others as they are."""
    assert for_kubectl(text, namespace) == told
