"""`conclude`: what follows a settled attempt, for every verdict, reason, count, request and policy."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from harness.attempts import ATTEMPT, NOW, OURS, Settled, settled_attempts
from sparkonce.attempt.decide import Finalize, Grant, Hold, Observation, Policy, conclude
from sparkonce.model.record import Application, HeldReason, Outcome, Record, Settling, StopWanted, Verdict, Why
from sparkonce.model.spec import OnUnknown

ENDS = (Why.PERMANENT, Why.EXPECTATION, Why.TIMEOUT, Why.RESOLVED)
NO_EFFECT = (Verdict.NONE, Verdict.EXITED, Verdict.UNKNOWN)
"""Verdicts that allow an end other than Succeeded; for declared outputs only None."""

WISH = StopWanted(why=Why.CANCELLED, by="ann")
HOLDING = Policy(declared=False, max_attempts=3)
DECLARED = Policy(declared=True, max_attempts=3)
ONCE = Policy(declared=False, max_attempts=1)


def settled(why: Why, *, attempt: int = 2, uncounted: int = 0, wish: StopWanted | None = None) -> Record:
    return Record(
        realm="local",
        key_hash="ab" * 32,
        key="load-may",
        fingerprint="f1",
        fingerprint_version=1,
        generation=3,
        attempt=attempt,
        nonce=OURS,
        uncounted=uncounted,
        settling=Settling(attempt=attempt, why=why, note="why it ends"),
        stop_wanted=wish,
    )


FINALIZED_HELD_GRANTED: list[tuple[str, Any, Record, Verdict, Policy]] = [
    ("settled: All", Outcome.SUCCEEDED, settled(Why.EXITED), Verdict.ALL, DECLARED),
    ("settled: All", Outcome.SUCCEEDED, settled(Why.CANCELLED, wish=WISH), Verdict.ALL, DECLARED),
    ("settled: Completed", Outcome.SUCCEEDED, settled(Why.CANCELLED, wish=WISH), Verdict.COMPLETED, HOLDING),
    ("settled: Stuck", HeldReason.STUCK, settled(Why.LOST), Verdict.STUCK, DECLARED),
    ("settled: KeyConflict", HeldReason.KEY_CONFLICT, settled(Why.LOST), Verdict.KEY_CONFLICT, DECLARED),
    ("settled: StillThere", HeldReason.STILL_THERE, settled(Why.LOST), Verdict.STILL_THERE, HOLDING),
    ("settled: CannotPlace", HeldReason.CANNOT_PLACE, settled(Why.LOST), Verdict.CANNOT_PLACE, HOLDING),
    (
        "the name is taken",
        HeldReason.NAME_TAKEN,
        settled(Why.NAME_TAKEN, attempt=3, uncounted=2),
        Verdict.NONE,
        DECLARED,
    ),
    ("another attempt", False, settled(Why.NAME_TAKEN), Verdict.NONE, DECLARED),
    ("another attempt", False, settled(Why.NAME_TAKEN), Verdict.UNKNOWN, HOLDING),
    ("settled: CannotSettle", HeldReason.CANNOT_SETTLE, settled(Why.LOST, wish=WISH), Verdict.CANNOT_SETTLE, DECLARED),
    ("settled: None", Outcome.CANCELLED, settled(Why.NAME_TAKEN, wish=WISH), Verdict.NONE, DECLARED),
    ("settled: Some, and a reason to end", HeldReason.PARTIAL, settled(Why.PERMANENT), Verdict.SOME, DECLARED),
    ("settled: Some, and a reason to end", HeldReason.PARTIAL, settled(Why.LOST, wish=WISH), Verdict.SOME, DECLARED),
    ("settled: Some, and a reason to end", HeldReason.PARTIAL, settled(Why.LOST, attempt=3), Verdict.SOME, DECLARED),
    ("another attempt", True, settled(Why.COMPLETED), Verdict.SOME, DECLARED),
    ("settled: None", Outcome.CANCELLED, settled(Why.CANCELLED), Verdict.NONE, DECLARED),
    ("settled: None", Outcome.FAILED, settled(Why.COMPLETED), Verdict.NONE, DECLARED),
    ("settled: None", Outcome.FAILED, settled(Why.PERMANENT), Verdict.NONE, DECLARED),
    ("settled: Exited", Outcome.CANCELLED, settled(Why.EXITED, wish=WISH), Verdict.EXITED, HOLDING),
    ("settled: Unknown", Outcome.CANCELLED, settled(Why.CANCELLED), Verdict.UNKNOWN, HOLDING),
    ("outcome unknown", HeldReason.UNKNOWN, settled(Why.LOST), Verdict.UNKNOWN, HOLDING),
    (
        "outcome unknown",
        Outcome.FAILED,
        settled(Why.LOST),
        Verdict.UNKNOWN,
        replace(HOLDING, on_unknown=OnUnknown.FAIL),
    ),
    ("another attempt", True, settled(Why.LOST), Verdict.UNKNOWN, replace(HOLDING, on_unknown=OnUnknown.RETRY)),
    ("another attempt", True, settled(Why.EXITED), Verdict.EXITED, HOLDING),
    ("another attempt", True, settled(Why.LOST), Verdict.NONE, DECLARED),
    ("another attempt", False, settled(Why.PREEMPTED, attempt=3), Verdict.NONE, DECLARED),
    ("attempts used up", Outcome.FAILED, settled(Why.EXITED, attempt=3), Verdict.NONE, DECLARED),
    ("another attempt", True, settled(Why.EXITED, attempt=3, uncounted=1), Verdict.NONE, DECLARED),
    ("it never ran", False, settled(Why.LOST, attempt=3), Verdict.NONE, ONCE),
    ("it never ran", False, settled(Why.LOST), Verdict.NONE, replace(ONCE, submission_retries=1)),
    ("attempts used up", Outcome.FAILED, settled(Why.LOST), Verdict.NONE, replace(ONCE, submission_retries=0)),
    ("settled: None", Outcome.CANCELLED, settled(Why.LOST, wish=WISH), Verdict.NONE, ONCE),
    ("attempts used up", Outcome.FAILED, settled(Why.LOST, attempt=4, uncounted=3), Verdict.NONE, ONCE),
]


@pytest.mark.parametrize(
    ("row", "what", "record", "verdict", "policy"),
    FINALIZED_HELD_GRANTED,
    ids=[f"{n}-{case[0]}" for n, case in enumerate(FINALIZED_HELD_GRANTED)],
)
def test_row(row: str, what: Any, record: Record, verdict: Verdict, policy: Policy) -> None:
    """This row decides, with this outcome, this reason to hold, or, for a grant, whether the attempt counts."""
    decision = conclude(record, verdict, Observation(seen=None), policy, NOW)
    action = decision.action
    said = {Finalize: "outcome", Hold: "reason", Grant: "counted"}[type(action)]
    assert (decision.row, getattr(action, said)) == (row, what)


def test_every_row_has_its_line_above() -> None:
    """The table above has a line for every row of `conclude`."""
    assert {row for row, *_ in FINALIZED_HELD_GRANTED} == {attempt.decision.row for attempt in settled_attempts()}


# --- properties of every case


def wants_end(attempt: Settled) -> bool:
    return attempt.wish or attempt.why in (Why.CANCELLED, Why.SUPERSEDED)


def foreign(attempt: Settled) -> bool:
    """The attempt never ran because its name was taken, and there is no request to end the generation."""
    return attempt.why is Why.NAME_TAKEN and not attempt.wish


def more(attempt: Settled) -> bool:
    """Fewer attempts are counted than the policy allows; a preempted one never counts."""
    counted = ATTEMPT - attempt.record.uncounted - (attempt.why is Why.PREEMPTED)
    return counted < attempt.policy.max_attempts


def never_ran(attempt: Settled) -> bool:
    """The verdict of an opaque attempt is None only if it never ran; up to `submissionRetries` of those are repeated uncounted."""
    repeated = attempt.verdict is Verdict.NONE and not attempt.policy.declared
    return repeated and attempt.record.uncounted < attempt.policy.submission_retries


def test_every_case_gets_one_decision_that_explains_itself() -> None:
    """A settled attempt is finalized, held or followed by another one, with a row and a sentence, and never left as it is."""
    for attempt in settled_attempts():
        decision = attempt.decision
        assert isinstance(decision.action, Finalize | Hold | Grant)
        assert decision.row and decision.evidence


def test_the_stand_ins_conclude_as_real_values_do() -> None:
    """Each case gives the same conclusion with the real types and random values in all fields that were not read."""
    chance = random.Random(20261121)
    for attempt in settled_attempts():
        decision, verdict = attempt.decision, attempt.verdict
        record, observation, policy = attempt.real(chance)
        assert conclude(record, verdict, observation, policy, NOW) == decision


def test_all_is_succeeded_whatever_else_is_true() -> None:
    """Succeeded if and only if every output is committed, or an opaque job's noted application completed, whatever the exit code, the
    requests or the count."""
    for attempt in settled_attempts():
        action = attempt.decision.action
        succeeded = isinstance(action, Finalize) and action.outcome is Outcome.SUCCEEDED
        assert succeeded == (attempt.verdict in (Verdict.ALL, Verdict.COMPLETED))


def test_some_is_never_an_end() -> None:
    """With some outputs committed and some not, a generation is never Succeeded, Failed or Cancelled."""
    for attempt in settled_attempts():
        action = attempt.decision.action
        if attempt.verdict is Verdict.SOME:
            assert not isinstance(action, Finalize)


def test_some_with_a_reason_to_end_is_held_as_partial() -> None:
    """With some outputs committed another attempt completes them, unless attempts are used up, the error is permanent, or an end is
    requested; then the key is held."""
    for attempt in settled_attempts():
        action = attempt.decision.action
        if attempt.verdict is Verdict.SOME and not foreign(attempt):
            reason = wants_end(attempt) or attempt.why in ENDS or not more(attempt)
            assert isinstance(action, Hold) == reason
            assert isinstance(action, Grant) or (isinstance(action, Hold) and action.reason is HeldReason.PARTIAL)


def test_failed_and_cancelled_need_a_settled_nothing() -> None:
    """Failed or Cancelled needs the verdict None (declared outputs) or an opaque attempt that was stopped (Exited, Unknown)."""
    for attempt in settled_attempts():
        action = attempt.decision.action
        if isinstance(action, Finalize) and action.outcome is not Outcome.SUCCEEDED:
            assert attempt.verdict in NO_EFFECT


def test_a_wish_to_end_cancels_what_had_no_effect() -> None:
    """Without an effect, and with a request to end, now or when the attempt was settled: Cancelled, whatever the count or the error.
    Without such a request nothing is Cancelled."""
    for attempt in settled_attempts():
        action = attempt.decision.action
        cancelled = isinstance(action, Finalize) and action.outcome is Outcome.CANCELLED
        assert cancelled == (attempt.verdict in NO_EFFECT and wants_end(attempt))


def test_an_error_for_good_fails_and_is_not_tried_again() -> None:
    """A permanent error, a deadline or a person's decision, without an effect: Failed, whatever attempts are left."""
    for attempt in settled_attempts():
        if attempt.verdict is Verdict.NONE and attempt.why in ENDS and not attempt.wish:
            action = attempt.decision.action
            assert isinstance(action, Finalize) and action.outcome is Outcome.FAILED


def test_completed_without_an_effect_fails() -> None:
    """An application that completed without committing anything would do the same again: Failed."""
    for attempt in settled_attempts():
        if attempt.verdict is Verdict.NONE and attempt.why is Why.COMPLETED and not attempt.wish:
            action = attempt.decision.action
            assert isinstance(action, Finalize) and action.outcome is Outcome.FAILED


def test_no_effect_is_tried_again_until_the_attempts_are_used_up() -> None:
    """No effect for a reason that may pass: another attempt if it never ran or fewer than maxAttempts are counted, else Failed."""
    passing = (Why.EXITED, Why.LOST, Why.STALE, Why.PREEMPTED)
    for attempt in settled_attempts():
        if attempt.verdict in (Verdict.NONE, Verdict.EXITED) and attempt.why in passing and not attempt.wish:
            action = attempt.decision.action
            assert isinstance(action, Grant) == (more(attempt) or never_ran(attempt))
            assert isinstance(action, Grant) or (isinstance(action, Finalize) and action.outcome is Outcome.FAILED)


def test_a_preempted_attempt_is_not_counted() -> None:
    """A preempted attempt is counted neither by the next grant nor against maxAttempts."""
    for attempt in settled_attempts():
        if attempt.verdict is Verdict.NONE and attempt.why is Why.PREEMPTED and not attempt.wish:
            action = attempt.decision.action
            if ATTEMPT - attempt.record.uncounted <= attempt.policy.max_attempts:
                assert isinstance(action, Grant)
            assert not isinstance(action, Grant) or not action.counted


def test_taken_names_are_not_counted_and_the_third_is_held() -> None:
    """An attempt whose name was taken never ran: it is followed by an uncounted one, regardless of onUnknown and maxAttempts; after two
    uncounted ones the key is held. Success and conditions that must be held take precedence, and a request to end prevents another
    attempt."""
    rules_first = {
        *(
            Verdict.ALL,
            Verdict.COMPLETED,
            Verdict.STUCK,
            Verdict.KEY_CONFLICT,
            Verdict.CANNOT_SETTLE,
            Verdict.STILL_THERE,
            Verdict.CANNOT_PLACE,
        )
    }
    for attempt in settled_attempts():
        if attempt.verdict not in rules_first and foreign(attempt):
            action = attempt.decision.action
            if attempt.record.uncounted >= 2:
                assert isinstance(action, Hold) and action.reason is HeldReason.NAME_TAKEN
            else:
                assert isinstance(action, Grant) and not action.counted


def test_what_only_a_person_can_untangle_is_held() -> None:
    """A stuck transaction, another job's commit, an opaque attempt that could not be stopped, or one whose name could not be taken by a
    placeholder: held, even after a cancellation."""
    reasons = {
        Verdict.STUCK: HeldReason.STUCK,
        Verdict.KEY_CONFLICT: HeldReason.KEY_CONFLICT,
        Verdict.CANNOT_SETTLE: HeldReason.CANNOT_SETTLE,
        Verdict.STILL_THERE: HeldReason.STILL_THERE,
        Verdict.CANNOT_PLACE: HeldReason.CANNOT_PLACE,
    }
    for attempt in settled_attempts():
        if attempt.verdict in reasons:
            action = attempt.decision.action
            assert isinstance(action, Hold) and action.reason is reasons[attempt.verdict]


def test_an_unknown_outcome_is_the_users_choice() -> None:
    """An opaque attempt that was stopped with an unknown outcome is held, failed or retried as onUnknown says, unless its reason already
    decides the end."""
    for attempt in settled_attempts():
        if attempt.verdict is not Verdict.UNKNOWN or foreign(attempt) or wants_end(attempt) or attempt.why in ENDS:
            continue
        action = attempt.decision.action
        match attempt.policy.on_unknown:
            case OnUnknown.HOLD:
                assert isinstance(action, Hold) and action.reason is HeldReason.UNKNOWN
            case OnUnknown.FAIL:
                assert isinstance(action, Finalize) and action.outcome is Outcome.FAILED
            case OnUnknown.RETRY:
                assert isinstance(action, Grant) == more(attempt)


def test_an_end_without_evidence_says_so() -> None:
    """An unknown outcome that is called Failed or Cancelled carries "outcome unknown" in its note, and no other end does."""
    for attempt in settled_attempts():
        action = attempt.decision.action
        if isinstance(action, Finalize):
            assert ("outcome unknown" in action.note) == (attempt.verdict is Verdict.UNKNOWN)
    ran = settled(Why.PERMANENT).changed(application=Application(name="so-1", uid="u1"))
    action = conclude(ran, Verdict.UNKNOWN, Observation(seen=None), HOLDING, NOW).action
    assert isinstance(action, Finalize)
    assert "outcome unknown" in action.note


def test_a_grant_is_the_next_attempt_after_the_backoff() -> None:
    """Tokens are dense: always attempt + 1. The grant is not before the policy's delay for the attempts counted so far, which is at least
    nine tenths of the doubled wait and never above the cap."""
    for attempt in settled_attempts():
        action = attempt.decision.action
        if not isinstance(action, Grant):
            continue
        assert action.attempt == ATTEMPT + 1
        policy, counted = attempt.policy, ATTEMPT - attempt.record.uncounted
        if policy.backoff_initial <= 0:
            assert action.not_before is None
            continue
        longest = min(policy.backoff_initial * 2 ** (counted - 1), policy.backoff_max)
        assert action.not_before is not None
        assert 0.9 * longest <= action.not_before - NOW <= longest


def test_a_successor_concludes_the_same() -> None:
    """The conclusion depends only on record, verdict, policy and current requests, and on no application, driver or age, which a successor
    would observe differently."""
    read = set()
    for attempt in settled_attempts():
        assert attempt.decision.row
        read |= {path for path in attempt.case.read if path.startswith("observation.")}
    assert read == {"observation.gone", "observation.superseded"}


_HOLDS = (Verdict.STUCK, Verdict.KEY_CONFLICT, Verdict.CANNOT_SETTLE, Verdict.STILL_THERE, Verdict.CANNOT_PLACE)

# --- the executable model, word for word


def model(attempt: Settled) -> tuple[str, str]:
    """The model's `conclude` in our terms: the action, and its reason."""
    verdict, policy = attempt.verdict, attempt.policy
    if verdict in (Verdict.ALL, Verdict.COMPLETED):
        return "Finalize", "Succeeded"
    if verdict in _HOLDS:
        return "Hold", verdict
    reason, uncounted = attempt.why, attempt.record.uncounted
    if reason is Why.NAME_TAKEN:
        return ("Hold", "NameTaken") if uncounted >= 2 else ("Grant", "uncounted")
    ended = "Cancelled" if wants_end(attempt) else ""
    if reason in ENDS or (reason is Why.COMPLETED and verdict is Verdict.NONE):
        ended = ended or "Failed"
    left = ATTEMPT - uncounted < policy.max_attempts
    if verdict is Verdict.SOME and (ended or not left):
        return "Hold", "Partial"
    if ended:
        return "Finalize", ended
    if verdict is Verdict.UNKNOWN and policy.on_unknown is OnUnknown.HOLD:
        return "Hold", "Unknown"
    if left and not (verdict is Verdict.UNKNOWN and policy.on_unknown is OnUnknown.FAIL):
        return "Grant", "counted"
    return "Finalize", "Failed"


def ours(attempt: Settled) -> tuple[str, str]:
    match attempt.decision.action:
        case Finalize(outcome):
            return "Finalize", outcome
        case Hold(reason):
            return "Hold", reason
        case Grant(_, counted):
            return "Grant", "counted" if counted else "uncounted"
        case other:
            raise AssertionError(f"no conclusion: {other}")


def test_it_concludes_as_the_model_does() -> None:
    """Every case ends as in the model, with three exceptions. A request to end takes precedence over a taken name (the model tries another
    name first); a preempted attempt does not count, and one that never ran does not (the model has neither)."""
    for attempt in settled_attempts():
        mine, theirs = ours(attempt), model(attempt)
        if mine != theirs:
            taken = attempt.why is Why.NAME_TAKEN and attempt.wish
            assert taken or never_ran(attempt) or attempt.why is Why.PREEMPTED
            assert not taken or mine in (("Finalize", "Cancelled"), ("Hold", "Partial"))
            assert taken or mine == ("Grant", "uncounted")
