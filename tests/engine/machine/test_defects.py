"""The machine can fail: with one rule of the protocol patched out it finds a broken promise within the schedules that CI plays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.machine.machine import Broken, play
from engine.machine.scene import CONFIGS
from sparkonce.engine import entrust, follow, settler
from sparkonce.engine.decide import Decision, Finalize, Observation
from sparkonce.engine.drive import Drive
from sparkonce.model.record import Outcome, Record, Settling, Why
from sparkonce.sink.slots import SlotLog
from sparkonce.store import rules

WITHIN = 5000
"""Schedules; as many as the sound code is played with. Mostly tens or hundreds are enough."""


def settling_is_not_written(patch: pytest.MonkeyPatch) -> None:
    async def begin(drive: Drive, record: Record, claim: Any, settling: Settling) -> Record:
        return record.changed(settling=settling)

    patch.setattr(Drive, "begin_settling", begin)


def revisions_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    for verb in ("update", "finalize"):
        compare = getattr(rules, verb)

        def blind(seen: Any, record: Record, *others: Any, compare: Callable[..., Any] = compare) -> Any:
            if seen.record is not None:
                record = record.model_copy(update={"revision": seen.record.revision})
            return compare(seen, record, *others)

        patch.setattr(rules, verb, blind)


def a_fence_only_looks(patch: pytest.MonkeyPatch) -> None:
    async def look(sink: SlotLog, key: Any, token: int, *, fingerprint: str, by: str, lowest: int = 1) -> Any:
        return await sink.find(key)

    patch.setattr(SlotLog, "fence", look)


def forgetting_leaves_no_floor(patch: pytest.MonkeyPatch) -> None:
    removed = rules._removed

    def bare(*given: Any) -> Any:
        gone, write = removed(*given)
        return gone, replace(write, floor=0)

    patch.setattr(rules, "_removed", bare)


def a_no_about_another_attempt_is_believed(patch: pytest.MonkeyPatch) -> None:
    real = entrust.heard

    def heard(record: Record, outputs: Any, reports: Any, *, end: bool) -> Any:
        any_attempts = [each.model_copy(update={"attempt": record.attempt}) for each in reports]
        return real(record, outputs, any_attempts[:1], end=end)

    patch.setattr(settler, "heard", heard)


def a_name_is_enough(patch: pytest.MonkeyPatch) -> None:
    real = follow.follow

    def by_name(record: Record, observation: Observation, policy: Any) -> Any:
        assert record.bound is not None  # only such are followed
        seen = observation.seen and replace(observation.seen, uid=record.bound.uid)
        return real(record, replace(observation, seen=seen), policy)

    patch.setattr(follow, "follow", by_name)


def what_is_followed_is_cancelled(patch: pytest.MonkeyPatch) -> None:
    def cancelled(record: Record, seen: Any) -> Any:
        if record.stop_wanted is not None:
            return Decision(Finalize(Outcome.CANCELLED, Why.CANCELLED, "enough"), "cancelled", "enough")
        return real(record, seen)

    real = follow._running
    patch.setattr(follow, "_running", cancelled)


DEFECTS = {
    "settling": (settling_is_not_written, "tx"),
    "revision": (revisions_are_not_compared, "tx"),
    "fence": (a_fence_only_looks, "two"),
    "own attempt": (a_no_about_another_attempt_is_believed, "blind"),
    "floor": (forgetting_leaves_no_floor, "one"),
    "uid": (a_name_is_enough, "followed"),
    "no cancelling": (what_is_followed_is_cancelled, "followed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFECTS)
def test_a_missing_rule_is_found(
    name: str, tmpfs_path: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    """Without this rule some schedule breaks a promise, and the machine draws it."""
    defect, config = DEFECTS[name]
    defect(monkeypatch)
    with pytest.raises(Broken) as found:
        play(tmpfs_path, CONFIGS[config], monkeypatch, schedules=WITHIN)
    assert "TypeError" not in found.value.args[1], "the patch itself does not fit the code any more"
    say(f"without {name}: {found.value.args} after {found.value.schedules} schedules")
