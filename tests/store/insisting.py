"""Repeats a call until the store answers, as every caller must."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from harness.eventually import assert_eventually
from sparkonce.blocking import run
from sparkonce.errors import StoreUnavailable

PATIENCE = 20.0
"""Seconds: after a connection was cut, one or two more calls may fail."""


def answered(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The store's answer, once the store can be reached again."""

    def ask() -> list[Any]:
        try:
            return [run(call())]
        except StoreUnavailable as unknown:
            raise AssertionError(str(unknown)) from unknown

    return assert_eventually(ask, PATIENCE)[0]
