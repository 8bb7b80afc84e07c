"""How long to wait before a thing is tried again: doubling, capped, and never two processes in step.

Full jitter over the upper half: three replicas that lost the same API server must not all list 10,000 objects at the same instant when
it is back. One small iterator, because kopf wants an iterable of seconds and the rest of this room wants the next number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


def pauses(first: float, cap: float, *, chance: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds, for ever: the n-th is between half of and the whole of `first` doubled n times, at most `cap`."""
    wait = first
    while True:
        yield wait * (0.5 + chance() / 2)
        wait = min(wait * 2, cap)
