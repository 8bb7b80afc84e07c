"""Runs a coroutine of the core from synchronous code, without an event loop.

The protocols of this package are `async` because etcd and the Kubernetes API are. Their local implementations (SQLite, local folders) never
suspend: they block for milliseconds. Driver code is plain PySpark in scripts and in notebooks, which already run an event loop, so it
cannot start its own. `run` therefore resumes the coroutine once and takes its result. It refuses a coroutine that suspends: such a backend
is reached through a channel with a thread of its own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the coroutine's result. Raises: RuntimeError: it suspended."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # StopIteration is not generic
    coroutine.close()
    raise RuntimeError("a blocking caller met a store that suspends; reach it through a control channel instead")
