"""Calls made at the same instant."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Results of the calls, each made in a thread of its own at the same moment."""
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


def in_children(calls: Sequence[Callable[[], object]]) -> list[int]:
    """Exit codes of forked children that each make one call at the same moment: 0, or 1 for an error, which the child prints.

    Call it only in a process with one thread, such as a worker: a fork copies no other thread.
    """
    waiting, gun = os.pipe()
    children = []
    for call in calls:
        child = os.fork()
        if child == 0:
            os.close(gun)
            os._exit(_status_of(call, waiting))
        children.append(child)
    os.close(waiting)
    os.close(gun)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _status_of(call: Callable[[], object], waiting: int) -> int:
    os.read(waiting, 1)  # returns when the parent closes its end
    try:
        call()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
