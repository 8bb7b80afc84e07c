"""Creates whose reply was lost are resent without a pause in all tests of this folder."""

from __future__ import annotations

import pytest

from sparkonce.sink.slotlog import sink as slots


@pytest.fixture(autouse=True)
def _resent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "RESEND_AFTER", (0.0, 0.0, 0.0))
