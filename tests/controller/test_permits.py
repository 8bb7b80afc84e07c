"""Permits: how many new keys one process may have unfinished, and how many of them one realm must leave to others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.controller.workqueue import SHARE, Permits


def test_slots_are_limited_and_come_back() -> None:
    """As many permits as the limit are granted, then none until one is returned; returning one that was not taken is refused."""
    slots = Permits(2)
    assert slots.open == 2
    assert [slots.try_take("a") for _ in range(3)] == [True, True, False]
    assert slots.open == 0
    slots.release("a")
    assert [slots.try_take("a"), slots.try_take("a")] == [True, False]
    with pytest.raises(ValueError, match="no permit is taken"):
        slots.release("b")
    slots.release("a")
    slots.release("a")
    with pytest.raises(ValueError, match="no permit is taken"):
        slots.release("a")
    assert slots.taken == 0


def test_a_realm_leaves_permits_to_others() -> None:
    """Of 200 permits the first realm gets 160, the next 32, and every further one at least one while any is free."""
    slots = Permits(200, shared=True)
    got = [sum(slots.try_take(realm) for _ in range(300)) for realm in ("a", "b", "c", "d", "e")]
    assert got == [160, 32, 6, 1, 1]
    slots.release("a")
    assert slots.try_take("f")
    assert not slots.try_take("a")


@given(st.integers(1, 40), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_no_order_of_takes_and_returns_shuts_out_a_realm(limit: int, steps: list[tuple[str, bool]]) -> None:
    """In any order of takes and returns the limit holds, a realm without a permit gets one if one is free, and a realm that gets another
    has at most `SHARE` times as many as stay free. `open` predicts how many the realm with the most can still take."""
    slots = Permits(limit, shared=True)
    own = dict.fromkeys("abc", 0)
    for realm, takes in steps:
        free = limit - sum(own.values())
        if takes:
            granted = slots.try_take(realm)
            assert granted == (free > 0 and (own[realm] == 0 or own[realm] + 1 <= SHARE * (free - 1)))
            own[realm] += granted
        elif own[realm]:
            slots.release(realm)
            own[realm] -= 1
        assert slots.taken == sum(own.values()) <= limit
        busiest = max(own, key=lambda each: own[each])
        foreseen, taken = slots.open, 0
        while slots.try_take(busiest):
            taken += 1
        assert taken == foreseen or not any(own.values())
        for _ in range(taken):
            slots.release(busiest)
