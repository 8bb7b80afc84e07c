"""Ends a command that holds something which must be taken down, such as a cluster, on SIGINT and SIGTERM.

Python turns SIGINT into KeyboardInterrupt only if it was not ignored at the start, and a shell without job control starts its background
commands with SIGINT ignored; SIGTERM ends Python at once, with everything left behind. So both get handlers of their own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible(say: Callable[[str], None]) -> Iterator[None]:
    """Inside the block the first of the signals raises KeyboardInterrupt with its number; later ones only print that clean-up is running,
    because one that ended the clean-up would leave parts behind."""

    def first(number: int, _: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, later)
        raise KeyboardInterrupt(number)

    def later(number: int, _: FrameType | None) -> None:
        say(f"{signal.Signals(number).name} again: everything is being taken down already, which takes a moment")

    before = {each: signal.signal(each, first) for each in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """The exit code that a shell reports for a command ended by this signal."""
    return 128 + int(interrupt.args[0] if interrupt.args else signal.SIGINT)
