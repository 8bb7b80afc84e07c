"""What to do next about a generation that follows an application of somebody else. Pure; one table of rows, as `decide`.

Such a generation is bound to a name and a UID (`spec.bind`). The application was there without us, so it is looked at and nothing else:
no row here launches, settles, stops or grants anything. The truth therefore comes first, before what anybody wishes: an end that is
known is the end, whoever cancelled the key.

The Spark operator's word is believed alone. It repeats such applications itself (`restartPolicy: OnFailure`), so that a driver which
failed, or vanished, is no end before it says COMPLETED or FAILED. To look at driver pods, as is done for attempts of ours, would be
faster and wrong: which pod is the last one is not ours to say.

A wish to cancel what runs on holds the key (StillThere). To call it Cancelled was not taken: Cancelled is no result, so the next
object of the key would launch the job beside the application that still runs. The same holds where nobody knows how it ended: its
Spark operator may call it FAILED, or be gone, while the driver runs. A job that supersedes it waits for its end.
"""

from __future__ import annotations

from sparkonce.engine.decide import Decision, Finalize, Hold, Note, Observation, Wait, decide, ended, goes_back, wished
from sparkonce.engine.policy import Policy
from sparkonce.launch.protocol import Phase, Seen
from sparkonce.model.policy import OnUnknown
from sparkonce.model.record import Bound, HeldReason, Outcome, Record, State, Why


def next_of(record: Record, observation: Observation, policy: Policy, now: float) -> Decision:
    """`decide`, or `follow` for a generation that is bound."""
    if record.bound is not None:
        return follow(record, observation, policy)
    return decide(record, observation, policy, now)


def follow(record: Record, observation: Observation, policy: Policy) -> Decision:
    """The next action for the owner of this bound record."""
    if record.state is not State.IN_PROGRESS:
        return ended(record)
    bound, seen = record.bound, observation.seen
    assert bound is not None  # asked of bound records only
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


def _missing(record: Record, bound: Bound, seen: Seen | None) -> str:
    if seen is not None:
        return f"application {bound.application} was deleted, and another one has its name"
    if record.application is None:
        return f"application {bound.application} of UID {bound.uid} is not in the job's namespace"
    return f"application {bound.application} is not there any more"


def _unknown(record: Record, policy: Policy, said: str) -> Decision:
    """It ended, or is gone, and what it did is not known."""
    row = "how its application ended is unknown"
    if policy.on_unknown is OnUnknown.FAIL:
        note = f"outcome unknown; {said}"
        return Decision(Finalize(Outcome.FAILED, Why.LOST, note), row, note)
    first = f"{wished(record.stop_wanted)}; " if record.stop_wanted is not None else ""
    note = f"{first}nobody can tell whether the job took effect: {said}"
    return Decision(Hold(HeldReason.UNKNOWN, note), row, note)


def _running(record: Record, seen: Seen) -> Decision:
    """It may still take effect."""
    wish = record.stop_wanted
    if wish is not None and wish.why is not Why.SUPERSEDED:
        note = f"{wished(wish)}; application {seen.name} was not started by sparkonce, so it is not stopped and runs on"
        return Decision(Hold(HeldReason.STILL_THERE, note), "its application runs on", note)
    if seen.phase not in (record.phase, Phase.FINISHING) and not goes_back(record, seen.phase):
        return Decision(Note(seen), "its phase changed", f"application {seen.name} is {seen.phase}")
    end_it = f"kubectl delete sparkapplication {seen.name}"
    if wish is not None:
        said = f"{wished(wish)}; application {seen.name} is not ours, and is followed until it ends"
        return Decision(Wait(), "it ends first", said, end_it)
    said = f"application {seen.name} is {seen.phase}; it is followed, and not ours to stop"
    return Decision(Wait(), "its application is followed", said, end_it)
