"""Runs a coroutine of the core from plain code, without an event loop.

The protocols of this package are `async`, because etcd and the Kubernetes API are. Their local implementations (SQLite,
the memory store, local folders) never suspend: they block, for milliseconds. Driver code is plain PySpark, runs in scripts and in
notebooks that already have a running loop, and must not need one of its own. So `run` sends the coroutine once and takes its
result. It refuses a coroutine that really suspends: such a backend is reached through a channel with its own thread.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; RuntimeError when it awaits something that is not there yet."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # StopIteration is not generic
    coroutine.close()
    raise RuntimeError("a blocking caller met a store that suspends; reach it through a control channel instead")
