"""Decides the next action for a generation that follows an application sparkonce did not start. Pure; a decision table like `decide`.

Such a generation is bound to an application's name and UID (`spec.bind`). sparkonce only observes it: no row launches, settles, stops
or grants anything. How it ended therefore comes before requests to stop: a known end is the result even if the key was cancelled.

Only the Spark operator's application state counts. That operator restarts such applications by itself (`restartPolicy: OnFailure`), so
a failed or vanished driver does not end the application before its state is COMPLETED or FAILED. Observing driver pods, as for our own
attempts, would be faster and wrong: we cannot know which pod is the last one.

Cancelling an application that still runs holds the key (StillThere). Finalizing it as Cancelled was rejected: Cancelled is not a result, so
the next object of the key would launch the job beside the running application. The same holds where its end is unknown: the Spark
operator may report FAILED, or be gone, while the driver runs. A job that supersedes it waits for its end.
"""

from __future__ import annotations

from sparkonce.attempt.decide import (
    Decision,
    Finalize,
    Hold,
    Note,
    Observation,
    Policy,
    Wait,
    ended,
    goes_back,
    stop_request_text,
)
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import Bound, HeldReason, Outcome, Record, State, Why
from sparkonce.model.spec import OnUnknown


def follow(record: Record, observation: Observation, policy: Policy) -> Decision:
    """Returns the next action for the owner of this bound record."""
    if record.state is not State.IN_PROGRESS:
        return ended(record)
    bound, seen = record.bound, observation.seen
    assert bound is not None  # of a bound record
    if seen is None or seen.uid != bound.uid:
        return _unknown(record, policy, _missing(record, bound, seen))
    if record.application is None:
        return Decision(Note(seen), "its application is seen", f"application {seen.name} exists, and is not ours")
    if seen.phase is Phase.SUCCEEDED:
        said = f"application {seen.name} completed, as the Spark operator says"
        return Decision(Finalize(Outcome.SUCCEEDED, Why.COMPLETED, said), "its application completed", said)
    if seen.phase is Phase.FAILED_KNOWN:
        said = f"application {seen.name}: {seen.message or f'the driver ended with exit code {seen.exit_code}'}"
        return Decision(Finalize(Outcome.FAILED, Why.EXITED, said), "its application exited", said)
    if seen.phase in (Phase.UNKNOWN, Phase.FAILED_INFRA):
        return _unknown(record, policy, f"application {seen.name}: {seen.message or seen.phase}")
    return _running(record, seen)


def _missing(record: Record, bound: Bound, seen: ApplicationState | None) -> str:
    if seen is not None:
        return f"application {bound.application} was deleted, and another one has its name"
    if record.application is None:
        return f"application {bound.application} of UID {bound.uid} is not in the job's namespace"
    return f"application {bound.application} no longer exists"


def _unknown(record: Record, policy: Policy, said: str) -> Decision:
    """Rows for an application that ended, or vanished, with unknown effects."""
    row = "how its application ended is unknown"
    if policy.on_unknown is OnUnknown.FAIL:
        note = f"outcome unknown; {said}"
        return Decision(Finalize(Outcome.FAILED, Why.LOST, note), row, note)
    first = f"{stop_request_text(record.stop_wanted)}; " if record.stop_wanted is not None else ""
    note = f"{first}it is unknown whether the job took effect: {said}"
    return Decision(Hold(HeldReason.UNKNOWN, note), row, note)


def _running(record: Record, seen: ApplicationState) -> Decision:
    """Rows for an application that may still take effect."""
    wish = record.stop_wanted
    if wish is not None and wish.why is not Why.SUPERSEDED:
        note = f"{stop_request_text(wish)}; application {seen.name} was not started by sparkonce, so it is not stopped and runs on"
        return Decision(Hold(HeldReason.STILL_THERE, note), "its application runs on", note)
    if seen.phase not in (record.phase, Phase.FINISHING) and not goes_back(record, seen.phase):
        return Decision(Note(seen), "its phase changed", f"application {seen.name} is {seen.phase}")
    end_it = f"kubectl delete sparkapplication {seen.name}"
    if wish is not None:
        said = f"{stop_request_text(wish)}; application {seen.name} is not ours, and is followed until it ends"
        return Decision(Wait(), "it ends first", said, end_it)
    said = f"application {seen.name} is {seen.phase}; it is followed, and not ours to stop"
    return Decision(Wait(), "its application is followed", said, end_it)
