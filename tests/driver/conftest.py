"""Creates whose answer was lost are sent again at once: nothing here waits."""

from __future__ import annotations

import pytest

from sparkonce.sink.slotlog import sink as slots


@pytest.fixture(autouse=True)
def _resent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "RESEND_AFTER", (0.0, 0.0, 0.0))
