"""The input space of `follow`: every combination of the values that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

from sparkonce.attempt.decide import Decision, Observation, Policy
from sparkonce.attempt.follow import follow
from sparkonce.launch.protocol import ApplicationState, Phase
from sparkonce.model.record import Application, Bound, HeldReason, Outcome, Record, State, StopWanted, Why
from sparkonce.model.spec import OnUnknown

BOUND = Bound(application="nightly", uid="u1")
RECORD = Record(
    realm="team-a",
    key_hash="ab" * 32,
    key="nightly-1",
    fingerprint="f1",
    fingerprint_version=1,
    generation=1,
    attempt=1,
    nonce="nonce-1",
    bound=BOUND,
)
SEEN = ApplicationState(name="nightly", uid="u1", nonce="", phase=Phase.RUNNING)
NOTED = Application(name="nightly", uid="u1")
_SAID = {"held": HeldReason.UNKNOWN, "outcome": Outcome.SUCCEEDED}
_WISHES = (None, *(StopWanted(why=why, by="ann", reason="too slow") for why in (Why.CANCELLED, Why.SUPERSEDED)))


@cache
def followed() -> tuple[tuple[Record, Observation, Policy, Decision], ...]:
    """Each case with the decision of `follow`, computed in one walk; all properties are asserted at its points."""
    return tuple(_followed())


def _followed() -> Iterator[tuple[Record, Observation, Policy, Decision]]:
    sights = [
        None,
        *(ApplicationState(name="nightly", uid=uid, nonce="", phase=each) for uid in ("u1", "u2") for each in Phase),
    ]
    for state, noted, phase, wish in product(State, (None, NOTED), (None, *Phase), _WISHES):
        record = RECORD.changed(state=state, application=noted, phase=phase, stop_wanted=wish, **_SAID)
        for seen, on_unknown in product(sights, OnUnknown):
            observation, policy = Observation(seen=seen), Policy(declared=False, on_unknown=on_unknown)
            yield record, observation, policy, follow(record, observation, policy)
