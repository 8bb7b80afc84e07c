"""Waiting for a fact in a test, without a bare sleep.

A test of several processes cannot know *when* something becomes true, only by when it must be. `assert_eventually` polls until the fact
holds and fails with the reason it saw last, so a slow machine costs time and not a red run (its limits stretch with the load, see
harness/patience.py), while a fast one waits for nothing. It does not retry effects: `fn` only reads. A decorator that repeats a whole
test was rejected, because that hides the very races these tests are for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from harness.patience import Patience

T = TypeVar("T")

INTERVAL = 0.02
"""Seconds between two polls: short compared with everything we wait for, long compared with the cost of a poll."""


def assert_eventually(
    fn: Callable[[], T],
    timeout: float,
    *,
    interval: float = INTERVAL,
    progress: Callable[[], object] = lambda: None,
) -> T:
    """Return the first value of `fn()` that says the fact holds; fail after `timeout` seconds of a quiet machine without one.

    A fact holds when `fn` returns anything but a false value and raises nothing; a function that only asserts returns
    None, which counts as holding. `False` and an `AssertionError` mean "not yet". Any other error is a defect of the
    test and ends the waiting at once. `fn` is called at least once, and once more at the deadline. `progress`: see
    `Patience`.
    """
    patience = Patience(timeout, progress=progress)
    while True:
        last_look = patience.over()
        try:
            value = fn()
        except AssertionError as error:
            why: AssertionError | str = error
        else:
            if value is None or value:
                return value
            why = f"it returned {value!r}"
        if last_look:
            cause = why if isinstance(why, AssertionError) else None
            message = f"not true within {timeout:g} s: {why or 'an assertion failed'}"
            raise AssertionError(message) from cause
        time.sleep(min(interval, max(0.0, patience.left)))
