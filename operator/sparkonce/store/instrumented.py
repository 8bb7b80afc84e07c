"""Wraps a store and reports each request to a callback (verb, result, seconds): for metrics, never for decisions.

Any store can be wrapped; requests of its caller are counted, not messages on the wire. The result of a request is the outcome's name
(Owned, Changed, ...), `ok` for a read, `False`, or the name of the error. A request whose caller was cancelled counts as Cancelled: its
outcome is unknown. Keepalives of leases are not counted, nor is a watch, which never ends.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sparkonce.errors import SparkonceError, StoreUnavailable, StoreUnusable
from sparkonce.store import protocol
from sparkonce.store.protocol import Page, View

T = TypeVar("T")


def metered(
    store: T, on_request: Callable[[str, str, float], None], *, result_of: Callable[[object], str] | None = None
) -> T:
    """Wraps the store: `on_request(verb, result, seconds)` is called after each request. `result_of`: names what a verb returned, for a
    store that is no ledger of jobs."""
    return cast(T, _Metered(store, on_request, result_of or _result))


class _Metered:
    """Forwards every verb, by name, of the protocol and of the store's other interfaces."""

    def __init__(
        self, inner: Any, on_request: Callable[[str, str, float], None], result_of: Callable[[object], str]
    ) -> None:
        self._inner, self._on_request, self._result_of = inner, on_request, result_of

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(real):
            return real

        async def counted(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                done = await real(*args, **kwargs)
            except SparkonceError as error:
                self._on_request(name, _error(error), time.monotonic() - began)
                raise
            except asyncio.CancelledError:
                self._on_request(name, "Cancelled", time.monotonic() - began)
                raise
            self._on_request(name, self._result_of(done), time.monotonic() - began)
            return done

        self.__dict__[name] = counted
        return counted


def _error(error: SparkonceError) -> str:
    """The base class of unavailable and unusable stores, so that metrics do not depend on the kind of store."""
    of_any_store = (StoreUnavailable, StoreUnusable)
    return next((kind.__name__ for kind in of_any_store if isinstance(error, kind)), type(error).__name__)


def _result(done: object) -> str:
    if done is False:
        return "False"
    kind = type(done)
    is_outcome = kind.__module__ == protocol.__name__ and kind not in (View, Page)
    return kind.__name__ if is_outcome else "ok"
