"""Slots: how many new keys one process may have unfinished."""

from __future__ import annotations

import pytest

from sparkonce.engine.workqueue import Slots


def test_slots_are_limited_and_come_back() -> None:
    """As many as the limit are given, then none until one comes back; giving back what was not taken is refused."""
    slots = Slots(2)
    assert [slots.try_take() for _ in range(3)] == [True, True, False]
    slots.release()
    assert [slots.try_take(), slots.try_take()] == [True, False]
    slots.release()
    slots.release()
    with pytest.raises(ValueError, match="no slot is taken"):
        slots.release()
    assert slots.taken == 0
