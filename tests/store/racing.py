"""Calls that happen at the same instant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls return, made by one thread each from one starting gun."""
    gun = threading.Barrier(len(calls))
    returned: dict[int, T] = {}

    def call(number: int) -> None:
        gun.wait()
        returned[number] = calls[number]()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [returned[number] for number in range(len(calls))]
