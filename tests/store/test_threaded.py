"""A suspending store for callers that block, when closing it hangs."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, cast

import pytest

from sparkonce.blocking import run
from sparkonce.store import threaded as module
from sparkonce.store.protocol import IdempotencyStore
from sparkonce.store.threaded import threaded


class _Stuck:
    """A store whose connection does not close: closing waits for ever, or blocks its event loop."""

    url = "etcd://nowhere:1"

    def __init__(self, *, blocks: bool) -> None:
        self.blocks, self.over = blocks, threading.Event()

    async def now(self) -> float:
        return 1.0

    async def close(self) -> None:
        while not self.over.is_set():
            if self.blocks:
                self.over.wait()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("blocks", [False, True])
def test_a_client_that_does_not_close_holds_up_nobody(
    blocks: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing returns at its time limit with one line in the log; results returned before stay valid."""
    monkeypatch.setattr(module, "CLOSES", 0.2)
    inner = _Stuck(blocks=blocks)
    store = threaded(cast(IdempotencyStore, inner))
    try:
        assert run(store.now()) == 1.0
        with caplog.at_level(logging.WARNING):
            _close(store)
        assert "etcd://nowhere:1 did not close within 0.2 s" in caplog.text
    finally:
        inner.over.set()


def _close(store: Any) -> None:
    run(store.close())
